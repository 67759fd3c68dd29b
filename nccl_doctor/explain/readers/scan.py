"""Read one log source to its summary: linear time, bounded memory, whatever it holds.

Blocks of whole lines go through the anchor engine; only lines with an anchor are decoded, split into prefix and body
and shown to the signatures. While a traceback is open every line is looked at: its lines have nothing in common.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from nccl_doctor.explain import matcher
from nccl_doctor.explain.model import Hit, LogSource, Role
from nccl_doctor.explain.readers import pace, prefix, records
from nccl_doctor.explain.readers.tracebacks import QUOTE_LIMIT, Said, Tracebacks
from nccl_doctor.explain.signatures import Signature, all_signatures
from nccl_doctor.explain.summary import KEEP_PER_FILE, LAST_LINES, TAIL_LINES, HitGroup, Skip, Summary
from nccl_doctor.explain.template import Template

LINE_LIMIT = 8192  # bytes of a line that are looked at
BLOCK = 1 << 20
PIECE = 256 << 10  # read at once: stays in a core's cache until it was searched
STEP = 4 << 10  # behind a line that was looked at, this much at least is not passed over
AFTER_LINES = 24  # and so many lines: whether the work went on after a line is told by their numbers
TAIL = 64 << 10
BEFORE_LINES = 40
BEFORE = 32 << 10  # bytes
SAME_SHAPE = 4  # of lines that differ in numbers only, this many are kept (all, where they name a rank)
HEAD_LINES = 40
# Signs of progress are not counted: a log up to this size is looked at line by line, of a larger one its beginning, its
# tail, and one line of each step between.
SAMPLE_ALL = 192 << 10
SAMPLE_HEAD = 2 << 10
SAMPLE_STEP = 256 << 10
# An anchor that was seen this often in one file without any sign of trouble is dropped for the rest of the file; one
# that was, after ten times as many.
BUSY = 1000
CHANNELS = 4000  # so many things that processes say of several channels are told apart
CHANNEL_LINE = 400  # bytes
_NUMBER = re.compile(r"[a-f]*\d[0-9a-f]*")
_SAME_DIGIT = str.maketrans("123456789", "000000000")
_OF_MANY = re.compile(r"(?<![\d./:-])(\d{1,7}) ?/ ?(\d{1,7})(?![\d./:-]).*\d")
_NO_WORK = re.compile(r"\b(?:re)?tr(?:y|ies|ying)\b|attempt|wait|load|captur|compil|warm|check", re.IGNORECASE)
_DIGIT_BYTES = b"0123456789"
_ESCAPE = b"\x1b"  # one byte is looked for at the memory's speed, two are not: that cost half of the reading
_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_TRACEBACK = b"Traceback (most recent call last)"
_CHANNEL = b" NCCL INFO Channel "
_GENERIC = (_TRACEBACK, b"Error: ", b"Exception: ")


class _Wakes:
    """Which signatures, and which of their wordings, an anchor in a line wakes up."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self._by_anchor: dict[bytes, list[tuple[Signature, int]]] = {}
        for signature in signatures:
            for index, template in enumerate(signature.templates):
                for anchor in signature.wake or (template.anchor,):
                    for spelled in {anchor, json.dumps(anchor)[1:-1]}:  # a record of JSON escapes quotes and tabs
                        self._by_anchor.setdefault(spelled.encode(), []).append((signature, index))
        self.anchors = tuple(sorted(self._by_anchor))

    def matches(self, held: Iterable[bytes], text: str) -> list[tuple[Signature, dict[str, str]]]:
        """The signatures that recognise a line holding these anchors, each once, by name."""
        found = []
        for signature, templates in self._awake(frozenset(held)):
            groups = signature.match(text, templates)
            if groups is not None:
                found.append((signature, groups))
        return found

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - there are two of these in a process, for its life
    def _awake(self, held: frozenset[bytes]) -> list[tuple[Signature, list[Template]]]:
        """What these anchors wake up, by name; few combinations of them make up most of a log."""
        awake: dict[str, tuple[Signature, set[int]]] = {}
        for anchor in held:
            for signature, index in self._by_anchor.get(anchor, ()):
                awake.setdefault(signature.name, (signature, set()))[1].add(index)
        return [
            (signature, [signature.templates[index] for index in sorted(indices)])
            for _, (signature, indices) in sorted(awake.items())
        ]


class _Plan:
    """The anchors that are looked for in every line, in one order, and what each wakes up; sampled signatures apart."""

    def __init__(self, signatures: dict[str, Signature]) -> None:
        self.searched = _Wakes(item for item in signatures.values() if not item.sampled)
        self.sampled = _Wakes(item for item in signatures.values() if item.sampled)
        self.anchors = tuple(sorted({*self.searched.anchors, *_GENERIC}))
        self.progress = signatures["progress"]
        self.error_line = signatures["error-line"]


@functools.cache
def plan() -> _Plan:
    """The plan for all signatures, and its engines, built once per process."""
    made = _Plan(all_signatures())
    matcher.engine(made.anchors)
    matcher.engine(made.sampled.anchors)
    return made


class _Repeated(msgspec.Struct):
    """A line that is said again and again; ``times`` counts the lines that were not looked at, the last of them is kept."""

    anchors: set[bytes]
    times: int = 0
    raw: bytes = b""
    number: int = 0


class Scanner:
    """Reads one source; :meth:`summary` holds what was found."""

    def __init__(self, source: LogSource) -> None:
        self.source = source
        self.summary = Summary(files=1)
        self._plan = plan()
        self._anchors = self._plan.anchors
        self._engine = matcher.engine(self._anchors)
        self._sampler = matcher.engine(self._plan.sampled.anchors)
        self._dropped: set[bytes] = set()
        self._line = 0  # lines before the current block
        self._looked = 0  # the last line that was looked at
        self._seen: dict[str, set[tuple[object, ...]]] = {}
        self._busy: dict[bytes, float] = {}
        self._tracebacks = Tracebacks(self.summary.tracebacks, self._hit)
        self._before_kept = False
        self._sampled = 0
        self._unsampled = 0
        self._partly_sampled = False
        self._sampled_lines: list[tuple[int, bytes]] = []
        self._channels: dict[bytes, _Repeated] = {}
        self._table = ""  # the heading whose rows are being read
        self._rows_left = 0

    def feed(self, block: bytes, earlier: Callable[[], bytes], places: list[matcher.Found] | None = None) -> None:
        """Take a block that ends at a line's end (or at the log's end); ``earlier`` gives what came just before it."""
        self.summary.bytes += len(block)
        if _ESCAPE in block:
            block, places = _COLOUR.sub(b"", block), None  # a colour may begin or end inside of a message
        anchors = self._anchors
        found = self._engine.find(block, places)
        at = next_found = 0
        line_at, line_number = 0, self._line + 1
        while at < len(block):
            start = at
            if not self._reading():
                if next_found == len(found):
                    break
                start = block.rfind(b"\n", at, found[next_found][0]) + 1 or at
            end = block.find(b"\n", max(start, found[next_found][0]) if start > at else start)
            end = len(block) if end < 0 else end
            first = next_found
            while next_found < len(found) and found[next_found][0] <= end:
                next_found += 1
            line_number += block.count(b"\n", line_at, start)
            line_at = start
            at = end + 1
            self._looked = line_number
            held = {anchors[index] for _, index in found[first:next_found]}
            if self._look(self._piece(block, start, end, found[first][0] if held else start), line_number, held):
                self._keep_before(block, start, line_number, earlier)
        if self._line < HEAD_LINES:
            self._keep_commands(block)
        self._sample(block)
        self._line = line_number - 1 + block.count(b"\n", line_at)
        self.summary.lines = self._line

    def _reading(self) -> bool:
        """Whether the next line is looked at whatever it holds: a traceback or a table goes on."""
        return bool(self._rows_left) or self._tracebacks.reading()

    def calm(self) -> bool:
        """Whether lines without an anchor can be passed over."""
        return (
            self._line >= max(HEAD_LINES, self._looked + AFTER_LINES)
            and self._sampled >= SAMPLE_ALL
            and not self._reading()
        )

    def read(self, block: memoryview, buffer: bytearray, offset: int, earlier: Callable[[int], bytes]) -> None:
        """Take the ``block`` of whole lines at the beginning of ``buffer``, as :meth:`feed` does, but pass over what comes
        before and after the lines that need a closer look."""
        size = stop = len(block)
        if buffer.find(_ESCAPE, 0, size) >= 0:
            self.feed(bytes(block), functools.partial(earlier, offset))
            return
        places = self._engine.first(block)
        start = 0
        if self.calm():
            start = buffer.rfind(b"\n", 0, places[0][0] - 1) + 1 if places else size
            stop = buffer.find(b"\n", places[-1][0] - 1, size) + 1 if places else size
            self._pass_over(buffer, 0, start, offset)
        while start < size:
            here = [(at - start, which) for at, which in places if start < at <= stop]
            self.feed(bytes(block[start:stop]), functools.partial(earlier, offset + start), here)
            start, stop = stop, size
            if start < size and self.calm():
                self._pass_over(buffer, start, size, offset)
                break
            stop = buffer.find(b"\n", min(start + STEP, size - 1), size) + 1

    def _pass_over(self, buffer: bytearray, start: int, stop: int, offset: int) -> None:
        """Go on behind lines that hold nothing, without counting them.

        Until somebody wants to know (:func:`nccl_doctor.explain.files.number_lines`), each of their bytes counts as a line:
        numbers keep their order, and those of lines near each other their distance.
        """
        size = stop - start
        if not size:
            return
        skips = self.summary.skipped.setdefault(self.source.name, [])
        if skips and skips[-1].line + skips[-1].size == self._line:
            skips[-1].size += size
        else:
            skips.append(Skip(self._line, offset + start, size))
        self._line += size
        self.summary.bytes += size
        self.summary.lines = self._line
        self._partly_sampled = True
        self._sample_last(buffer, start, stop)

    @staticmethod
    def _piece(block: bytes, start: int, end: int, hit: int) -> bytes:
        """The part of a line that is looked at: of a progress bar's line, what follows the last CR before the hit; of one
        that begins with a hole (a log that was cut while it was written), what follows the NULs."""
        if block.startswith(b"\x00", start):
            start = hit - len(block[start:hit].lstrip(b"\x00"))
        back = block.rfind(b"\r", start, hit)
        if back >= 0 and back + 1 < end:
            start = back + 1
        return block[start : min(end, start + LINE_LIMIT)]

    def _sample(self, block: bytes) -> None:
        """Show some lines of the block to the signatures of progress: every step of a long run need not be counted."""
        if self._sampled < SAMPLE_ALL:
            self._sampled += len(block)
            # All of a small log, the first lines of a large one.
            whole = len(block) <= SAMPLE_ALL
            self._partly_sampled |= not whole
            self._sample_lines(block if whole else block[:SAMPLE_HEAD], self._line + 1)
        else:
            self._partly_sampled = True
        self._sample_last(block, 0, len(block))

    def _sample_last(self, block: bytes | bytearray, start: int, stop: int) -> None:
        """Of every so many bytes the last line, until one reports progress: that it did is enough."""
        self._unsampled += stop - start
        if self._unsampled < SAMPLE_STEP:
            return
        self._unsampled = 0
        if not self.summary.groups.get("progress"):
            last = block.rfind(b"\n", start, stop - 1) + 1 or start
            if self._plan.progress.match(records.plain(bytes(block[last : min(stop, last + 300)]))) is not None:
                self.summary.groups["progress"] = HitGroup(1)

    def _sample_lines(self, piece: bytes, number: int) -> None:
        """Show these lines to the sampled signatures; ``number`` is the first one's.

        Of lines that only report a step and differ in numbers, the first ones (of several ranks, perhaps) and the last say
        it all.
        """
        steps: dict[bytes, int] = {}  # shape -> how many lines of it were looked at
        later: dict[bytes, tuple[int, bytes]] = {}  # shape -> its last line
        known = self._sampled_lines[-1][0] if self._sampled_lines else 0
        for at, raw in enumerate(piece.split(b"\n"), number):
            raw = raw[:LINE_LIMIT]
            if raw and at > known:
                self._sampled_lines.append((at, raw))
            shape = raw.translate(None, _DIGIT_BYTES)
            if steps.get(shape, 0) >= SAME_SHAPE:
                later[shape] = at, raw
            elif self._sample_line(raw, at) == {"progress"}:
                steps[shape] = steps.get(shape, 0) + 1
        for at, raw in sorted(later.values()):
            self._sample_line(raw, at)

    def _sample_line(self, raw: bytes, number: int) -> set[str]:
        """Show a line to the sampled signatures; the names of those that recognise it."""
        anchors = self._plan.sampled.anchors
        held = {anchors[index] for _, index in self._sampler.find(raw)}
        known = set()
        for text in records.texts(raw) if held else ():
            line = self._parse(text)
            for signature, groups in self._plan.sampled.matches(held, text):
                self._add(signature, groups, number, line, text)
                known.add(signature.name)
            if known:
                self._spoke(self._hit("last", number, line, text))
        return known

    def finish(self, tail: bytes) -> Summary:
        """End of the log; ``tail`` is its last piece, for the lines that say how it ended."""
        self._tracebacks.finish()
        for item in self._channels.values():
            if item.times:
                self._look_at(records.plain(item.raw), item.number, item.anchors, item.times)
        if tail and not tail.endswith(b"\n"):
            self.summary.lines += 1
        text = tail.rstrip(b"\r\n\x00 ")
        blank = tail[len(text) :].count(b"\n") - tail.endswith(b"\n")
        lines = text.rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]
        number = self.summary.lines - blank - len(lines) + 1
        if self._partly_sampled:
            self._sample_lines(b"\n".join(lines), max(1, number))
        self._count_rows(lines, max(1, number))
        self._compare_rows()
        keep = len(lines) - LAST_LINES
        self.summary.tails[self.source.name] = [
            self._hit("tail", max(1, number + index), self._parse(text), text)
            for index, raw in enumerate(lines)
            for text in records.texts(raw[:LINE_LIMIT])
            if text.strip() and (index >= keep or "ping " in text)
        ]
        for hit in self.summary.tails[self.source.name]:
            self._spoke(hit)
        return self.summary

    def _count_rows(self, lines: list[bytes], number: int) -> None:
        """Rows that count up to a goal ("round 7/25 ..."), in any language: steps of work, too, if nothing in them accuses."""
        steps = self.summary.groups.get("progress")
        if steps and steps.last and steps.last.line >= number:
            return  # these lines tell of steps in words that are known
        rows: dict[tuple[bytes, str], list[tuple[int, int, str]]] = {}
        for at, raw in enumerate(lines, number):
            text = records.plain(raw[:LINE_LIMIT]) if b"/" in raw else ""
            found = _OF_MANY.search(text)
            if found and not _NO_WORK.search(text):
                shape = raw.translate(None, _DIGIT_BYTES + b" .")
                rows.setdefault((shape, found.group(2)), []).append((int(found.group(1)), at, text))
        for counted in rows.values():
            counts = [count for count, _, _ in counted]
            rising = len(counts) >= SAME_SHAPE and counts == sorted(set(counts))
            if rising and self._plan.error_line.match(counted[0][2]) is None:
                for _, at, text in (counted[0], counted[-1]):
                    self._add(self._plan.progress, {}, at, self._parse(text), text)

    def _compare_rows(self) -> None:
        """Whether the rows that were seen slowed down for good: of a large log its first and its last ones."""
        whole = not self._partly_sampled
        for shift in pace.shifts(self._sampled_lines, pace.SLOWER if whole else pace.FAR_SLOWER):
            group = self.summary.groups.setdefault(pace.SIGNATURE, HitGroup())
            group.count += 1
            for number, raw in shift.rows:
                text = records.texts(raw)[-1]
                group.hits.append(self._hit(pace.SIGNATURE, number, self._parse(text), text, shift.groups))

    def _keep_commands(self, block: bytes) -> None:
        """Probes that somebody typed at the top of a log: their command lines."""
        head = block[: 64 * 1024]
        if b"ping " in head:
            lines = enumerate(head.split(b"\n")[: HEAD_LINES - self._line], self._line + 1)
            texts = [(number, records.plain(raw)) for number, raw in lines if b"ping " in raw]
            self.summary.heads.setdefault(self.source.name, []).extend(
                self._hit("head", number, prefix.Line(text), text) for number, text in texts
            )

    # one line ----------------------------------------------------------------------------------------------------

    def _look(self, raw: bytes, number: int, held: set[bytes]) -> bool:
        """Take one line that holds these anchors; True if it is a sign of trouble."""
        live = held - self._dropped
        if not self._reading() and (not live or self._repeats(raw, number, live)):
            return False
        trouble = False
        for text in records.texts(raw):
            if self._rows_left:
                self._keep_row(text, number)
            trouble |= self._look_at(text, number, live)
        return trouble

    def _repeats(self, raw: bytes, number: int, live: set[bytes]) -> bool:
        """Whether a process says of one more channel what it said of another. NCCL says it thousands of times."""
        start = raw.find(_CHANNEL, 0, CHANNEL_LINE)
        if start < 0 or len(raw) > CHANNEL_LINE:
            return False
        via = raw.find(b" via ", start)
        shape = raw[:start] + raw[start:via].translate(None, _DIGIT_BYTES) + raw[via:]
        known = self._channels.get(shape)
        if known is None:
            if len(self._channels) < CHANNELS:
                self._channels[shape] = _Repeated(live)
            return False
        known.times += 1
        known.raw, known.number = raw, number
        return True

    def _look_at(self, text: str, number: int, live: set[bytes], times: int = 1) -> bool:
        trouble = False
        matches = self._plan.searched.matches(live, text)
        if matches and records.lists_settings(text):
            matches = [(signature, groups) for signature, groups in matches if not _accuses(signature)]
        if not matches and live.isdisjoint(_GENERIC) and not self._tracebacks.reading():
            self._count_busy(live, trouble)
            return False
        line = self._parse(text)
        known: list[str] = []
        for signature, groups in matches:
            self._add(signature, groups, number, line, text, times)
            known.append(signature.name)
            trouble |= signature.role in (Role.CAUSE, Role.SYMPTOM)
            if signature.rows:
                self._table, self._rows_left = signature.name, signature.rows
        if live:
            self._count_busy(live, trouble)
        if line.rank is not None:
            self.summary.ranks.add(line.rank)
            self._spoke(self._hit("last", number, line, text))
        if line.host:
            self.summary.hosts.add(line.host)
        self._tracebacks.take(Said(line, text, number, known))
        return trouble

    def _keep_row(self, text: str, number: int) -> None:
        """Keep a line below a table's heading."""
        self._rows_left -= 1
        group = self.summary.groups.setdefault(f"{self._table}-rows", HitGroup())
        group.count += 1
        if len(group.hits) < KEEP_PER_FILE:
            group.hits.append(self._hit(f"{self._table}-rows", number, self._parse(text), text))

    def _keep_before(self, block: bytes, at: int, number: int, earlier: Callable[[], bytes]) -> None:
        """The lines before the first sign of trouble: what each rank was doing."""
        if self._before_kept:
            return
        self._before_kept = True
        kept = []
        text_before = block[max(0, at - BEFORE) : at]
        if at < BEFORE:
            text_before = earlier()[at - BEFORE :] + text_before
        lines = text_before.removesuffix(b"\n").rsplit(b"\n", BEFORE_LINES)[-BEFORE_LINES:]
        later: dict[bytes, int] = {}  # of a shape of line, how many follow that are kept
        for index, raw in zip(range(number - 1, 0, -1), reversed(lines), strict=False):
            shape = raw[:LINE_LIMIT].translate(None, _DIGIT_BYTES)
            later[shape] = later.get(shape, 0) + 1
            if b"NCCL INFO" in raw or (later[shape] > SAME_SHAPE and b"ank" not in raw):
                continue
            for text in reversed(records.texts(raw[:LINE_LIMIT])):
                if text.strip():
                    kept.append(self._hit("before", index, self._parse(text), text))
        kept.reverse()
        self.summary.before[self.source.name] = kept
        for hit in kept:
            if hit.rank is not None:
                self.summary.ranks.add(hit.rank)
            self._spoke(hit)

    def _count_busy(self, held: set[bytes], trouble: bool) -> None:
        """Give up anchors that wake signatures again and again for nothing, or that have said enough."""
        for anchor in held:
            count = self._busy.get(anchor, 0) + (0.1 if trouble else 1)
            self._busy[anchor] = count
            if count >= BUSY and anchor not in self._dropped and anchor not in _GENERIC:
                self._dropped.add(anchor)
                self._anchors = tuple(item for item in self._plan.anchors if item not in self._dropped)
                self._engine = matcher.engine(self._anchors)

    def _parse(self, text: str) -> prefix.Line:
        """A line without its prefixes; what it does not say of its rank and host, the source says."""
        line = prefix.parse(text)
        if line.rank is None:
            line.rank = self.source.rank
        line.host = line.host or self.source.host
        return line

    def _spoke(self, hit: Hit) -> None:
        """Remember the last line of a rank."""
        if hit.rank is None:
            return
        last = self.summary.last_of_rank.get(hit.rank)
        if last is None or last.line <= hit.line:
            self.summary.last_of_rank[hit.rank] = hit

    def _hit(
        self, signature: str, number: int, line: prefix.Line, text: str, groups: dict[str, str] | None = None
    ) -> Hit:
        rank = line.rank if line.rank is not None else line.task
        return Hit(
            signature,
            self.source.name,
            number,
            text[:QUOTE_LIMIT],
            groups or {},
            rank,
            line.host,
            line.pid,
            line.seconds,
        )

    def _add(
        self, signature: Signature, groups: dict[str, str], number: int, line: prefix.Line, text: str, times: int = 1
    ) -> None:
        group = self.summary.groups.setdefault(signature.name, HitGroup())
        group.count += times
        hit = self._hit(signature.name, number, line, text, groups)
        last = group.last
        if last is None or last.line <= number:
            group.lasts[self.source.name] = hit
        if len(group.hits) >= KEEP_PER_FILE:
            return
        distinct = (
            hit.rank,
            hit.host,
            hit.pid,
            *sorted(groups.values()),
            _numberless(line.body[-160:].translate(_SAME_DIGIT)),
        )
        seen = self._seen.setdefault(signature.name, set())
        few = signature.role in (Role.PROGRESS, Role.HARMLESS)
        if (signature.every or distinct not in seen) and not (few and len(group.hits) >= 40):
            seen.add(distinct)
            group.hits.append(hit)


def _accuses(signature: Signature) -> bool:
    """Whether a line of it speaks of trouble."""
    return signature.role in (Role.CAUSE, Role.SYMPTOM) or signature.name == "error-line"


@functools.lru_cache(maxsize=1024)  # the ranks of a job print the same lines
def _numberless(text: str) -> str:
    return _NUMBER.sub("#", text)


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces of any size to blocks that end at a line's end.

    Of a line longer than :data:`LINE_LIMIT` only the beginning is kept (it still counts as one line), so a line of any
    length costs no memory.
    """
    rest = b""
    skipping = False
    for piece in pieces:
        data = rest + piece if rest else piece
        rest = b""
        if skipping:
            end = data.find(b"\n")
            if end < 0:
                continue
            skipping = False
            data = data[end:]  # keeps the newline: the cut line ends here
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if cut:
            yield data[:cut]
        if len(rest) > BLOCK:
            rest = rest.lstrip(b"\x00")  # a hole: the line begins behind it
        if len(rest) > BLOCK:
            yield rest[:LINE_LIMIT]
            rest = b""
            skipping = True
    if rest:
        yield rest


def pieces_of(source: LogSource) -> Iterator[bytes]:
    """The source's content as bytes, in pieces."""
    lines = source.lines
    if isinstance(lines, str):
        lines = lines.encode("utf-8", "surrogateescape")
    if isinstance(lines, bytes):
        for at in range(0, len(lines), BLOCK):
            yield lines[at : at + BLOCK]
        return
    batch: list[bytes] = []
    size = 0
    for line in lines:
        data = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        batch.append(data)
        size += len(data)
        if size >= BLOCK:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)


def scan(source: LogSource) -> Summary:
    """Read a whole source."""
    scanner = Scanner(source)
    tail = b""
    for block in whole_lines(pieces_of(source)):
        scanner.feed(block, functools.partial(bytes, tail))
        tail = (tail + block)[-TAIL:] if len(block) < TAIL else block[-TAIL:]
    return scanner.finish(tail)


def scan_descriptor(source: LogSource, descriptor: int) -> Summary:
    """Read a plain file that is open at its beginning: the same as :func:`scan`, without copying what holds nothing."""
    scanner = Scanner(source)
    buffer = bytearray(PIECE)
    held = offset = 0  # bytes at the buffer's beginning that were read before, and where they stand in the file
    skipping = False

    def earlier(at: int) -> bytes:
        size = min(BEFORE, at)
        return os.pread(descriptor, size, at - size)

    # The head is looked at line by line: it is read alone.
    while got := os.readv(descriptor, [memoryview(buffer)[held : None if offset or held else 2 * SAMPLE_ALL]]):
        end = held + got
        if skipping:  # the rest of a line that was cut
            rest = buffer.find(b"\n", 0, end)
            offset += end if rest < 0 else rest
            held = 0 if rest < 0 else end - rest
            buffer[:held] = buffer[end - held : end]
            skipping = rest < 0
            continue
        cut = buffer.rfind(b"\n", 0, end) + 1
        if not cut and end > BLOCK and not buffer[0]:
            kept = bytes(buffer[:end]).lstrip(b"\x00")  # a hole: the line begins behind it
            held, offset = len(kept), offset + end - len(kept)
            buffer[:held] = kept
            continue
        if not cut and end > BLOCK:
            scanner.feed(bytes(buffer[:LINE_LIMIT]), functools.partial(earlier, offset))
            skipping, held, offset = True, 0, offset + end
            continue
        if not cut:
            held = end
            if end == len(buffer):
                buffer.extend(bytes(PIECE))
            continue
        with memoryview(buffer)[:cut] as block:
            scanner.read(block, buffer, offset, earlier)
        held = end - cut
        buffer[:held] = buffer[cut:end]
        offset += cut
    if held:
        scanner.feed(bytes(buffer[:held]), functools.partial(earlier, offset))
    size = offset + held
    return scanner.finish(os.pread(descriptor, TAIL, max(0, size - TAIL)))
