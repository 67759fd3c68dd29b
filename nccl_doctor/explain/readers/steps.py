"""What a log reports of its job's progress: steps, and whether they slowed down.

Signs of progress are not counted. A log up to :data:`SAMPLE_ALL` is looked at line by line; of a larger one its beginning,
its tail, and one line of each :data:`SAMPLE_STEP` between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import bystanders, pace, records, speakers
from nccl_doctor.explain.readers.kept import Kept
from nccl_doctor.explain.readers.plan import plan
from nccl_doctor.explain.summary import HitGroup

LINE_LIMIT = 8192  # bytes of a line that are looked at
SAMPLE_ALL = 192 << 10
SAMPLE_STEP = 256 << 10
_HEAD = 2 << 10
SAME_SHAPE = 4  # of lines that differ in numbers only, this many are kept (all, where they name a rank)
DIGITS = b"0123456789"
_OF_MANY = re.compile(r"(?<![\d./:-])(\d{1,7}) ?/ ?(\d{1,7})(?![\d./:-]).*\d")
# Which step it is; not which rank tells it, nor how long the step took.
_STEP = re.compile(
    rb"\b(?:rank|worker|node|host|gpu|process)\W{0,3}\d+ ?/ ?\d+|"
    rb"((?<!per[ _])(?:step|iter(?!\w{0,20}time)\w*|epoch|batch|\bit)\W{0,12}\d+(?:\.\d+)?|(?<![\d./:-])\d{1,9} ?/ ?\d)",
    re.IGNORECASE,
)
_RECENT = 24  # reports of the last step and of the one before it, of the few ranks that tell them
_NO_WORK = re.compile(r"\b(?:re)?tr(?:y|ies|ying)\b|attempt|wait|load|captur|compil|warm|check", re.IGNORECASE)


class Steps:
    """Looks for progress in what it is shown of one log, in order."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._plan = plan()
        self._read = 0  # bytes of the log's beginning
        self._unread = 0  # bytes since the last line that was looked at
        self._all = True  # whether every line was looked at
        self._lines: list[tuple[int, bytes]] = []  # that were looked at, by number

    @property
    def begun(self) -> bool:
        """Whether the log's beginning, where every line is looked at, was read."""
        return self._read >= SAMPLE_ALL

    def take(self, block: bytes, number: int) -> None:
        """Look at a block, or at some of its lines; ``number`` is its first line's."""
        if self.begun:
            self._all = False
        else:
            self._read += len(block)
            whole = len(block) <= SAMPLE_ALL
            self._all &= whole
            self._look(block if whole else block[:_HEAD], number)
        self._look_at_last(block, 0, len(block))

    def pass_over(self, buffer: bytearray, start: int, stop: int) -> None:
        """Lines that hold nothing, and are not numbered."""
        self._all = False
        self._look_at_last(buffer, start, stop)

    def finish(self, lines: list[bytes], number: int) -> None:
        """The log's last lines; ``number`` is the first one's."""
        if not self._all:
            self._look(b"\n".join(lines), number)
        self._count_rows(lines, number)
        shapes = pace.by_shape(self._lines)
        for step in self._last_but_one(shapes):
            self._kept.summary.stepped[self._kept.source.name] = step
        for shift in pace.shifts(self._lines, shapes, pace.SLOWER if self._all else pace.FAR_SLOWER):
            for at, raw in shift.rows:
                self._kept.add_row(pace.SIGNATURE, self._kept.said(records.texts(raw)[-1], at), shift.groups)
        for apart in speakers.odd_ones(self._lines, shapes):
            for at, raw in apart.rows:
                self._kept.add_row(speakers.SIGNATURE, self._kept.said(records.texts(raw)[-1], at), apart.groups)

    def _look_at_last(self, block: bytes | bytearray, start: int, stop: int) -> None:
        """Of every so many bytes the last line, until one reports progress: that it did is enough."""
        self._unread += stop - start
        if self._unread < SAMPLE_STEP:
            return
        self._unread = 0
        groups = self._kept.summary.groups
        if "progress" not in groups:
            last = block.rfind(b"\n", start, stop - 1) + 1 or start
            if self._plan.progress.match(records.plain(bytes(block[last : min(stop, last + 300)]))) is not None:
                groups["progress"] = HitGroup(1)

    def _look(self, piece: bytes, number: int) -> None:
        """Look at all of these lines.

        Of lines that only report a step and differ in numbers, the first ones (of several ranks, perhaps) and the last say
        it all.
        """
        steps: dict[bytes, int] = {}  # shape -> how many lines of it were looked at
        later: dict[bytes, tuple[int, bytes]] = {}  # shape -> its last line
        known = self._lines[-1][0] if self._lines else 0
        for at, raw in enumerate(piece.split(b"\n"), number):
            raw = raw[:LINE_LIMIT]
            if raw and at > known:
                self._lines.append((at, raw))
            shape = raw.translate(None, DIGITS)
            if steps.get(shape, 0) >= SAME_SHAPE:
                later[shape] = at, raw
            elif self._look_at(raw, at) == {"progress"}:
                steps[shape] = steps.get(shape, 0) + 1
        for at, raw in sorted(later.values()):
            self._look_at(raw, at)

    def _look_at(self, raw: bytes, number: int) -> set[str]:
        """Show a line to the sampled signatures; the names of those that recognise it."""
        anchors = self._plan.sampled.anchors
        held = {anchors[index] for _, index in self._plan.sampling.find(raw)}
        known = set()
        for text in records.texts(raw) if held else ():
            said = self._kept.said(text, number)
            for signature, groups in self._plan.sampled.matches(held, text):
                self._kept.add(signature, groups, said)
                known.add(signature.name)
            if known and said.line.rank is not None:
                self._kept.spoke(self._kept.hit("last", said))
        return known

    def _last_but_one(self, shapes: dict[bytes, list[int]]) -> Iterator[Hit]:
        """The first report of the last step but one, where the same words report the last one."""
        known = self._kept.summary.groups.get("progress")
        told = {hit.line for hit in (*known.lasts.values(), *known.hits)} if known else set()
        found: tuple[int, bytes] = (0, b"")
        for indices in shapes.values():
            first, last = (self._lines[index][0] for index in (indices[0], indices[-1]))
            if last > max(first, found[0]) and not told.isdisjoint((first, last)):
                rows = [self._lines[index] for index in indices[-_RECENT:]]
                found = max([found, *_first_reports(rows)[-2:-1]])
        if found[0]:
            yield self._kept.hit("progress", self._kept.said(records.texts(found[1])[-1], found[0]))

    def _count_rows(self, lines: list[bytes], number: int) -> None:
        """Rows that count up to a goal ("round 7/25 ..."), in any language: steps of work, too, if nothing in them accuses."""
        steps = self._kept.summary.groups.get("progress")
        if steps and steps.last and steps.last.line >= number:
            return  # these lines tell of steps in words that are known
        rows: dict[tuple[bytes, str], list[tuple[int, int, str]]] = {}
        for at, raw in enumerate(lines, number):
            text = records.texts(raw[:LINE_LIMIT])[-1] if b"/" in raw else ""
            found = _OF_MANY.search(text)
            if found and not _NO_WORK.search(text) and not bystanders.is_preparation(text):
                shape = raw.translate(None, DIGITS + b" .")
                rows.setdefault((shape, found.group(2)), []).append((int(found.group(1)), at, text))
        for counted in rows.values():
            counts = [count for count, _, _ in counted]
            rising = len(counts) >= SAME_SHAPE and counts == sorted(set(counts))
            if rising and self._plan.error_line.match(counted[0][2]) is None:
                for _, at, text in (counted[0], counted[-1]):
                    self._kept.add(self._plan.progress, {}, self._kept.said(text, at))


def _first_reports(rows: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Of the reports of the last two or three steps, in the same words, those that are the first of their step; other ranks' may
    follow, a little out of order."""
    told: list[tuple[int, bytes, list[bytes]]] = []
    different: list[list[bytes]] = []
    for at, raw in reversed(rows):
        step = [number for number in _STEP.findall(raw) if number] or ([raw] if b"/s" in raw else [])  # a server's rate
        if step:
            told.append((at, raw, step))
            different += [] if step in different else [step]
        if len(different) > 2:
            break
    firsts: list[tuple[int, bytes]] = []
    latest: list[list[bytes]] = []
    for at, raw, step in reversed(told):
        if step not in latest[-2:]:
            firsts.append((at, raw))
            latest.append(step)
    return firsts
