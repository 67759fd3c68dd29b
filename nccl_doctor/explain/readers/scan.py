"""Read one log source to its summary: linear time, bounded memory, whatever it holds.

Blocks of whole lines go through the anchor engine; only lines with an anchor are decoded, split into prefix and body
and shown to the signatures. While a traceback is open every line is looked at: its lines have nothing in common.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from nccl_doctor.explain import matcher
from nccl_doctor.explain.model import InputProblem, LogSource, Role
from nccl_doctor.explain.readers import bystanders, content, prefix, records
from nccl_doctor.explain.readers.kept import Kept, Said
from nccl_doctor.explain.readers.newest_first import LARGEST, Order, oldest_first
from nccl_doctor.explain.readers.own_words import OwnWords, says_it_failed
from nccl_doctor.explain.readers.plan import GENERIC, plan
from nccl_doctor.explain.readers.steps import DIGITS, LINE_LIMIT, SAME_SHAPE, SAMPLE_ALL, Steps
from nccl_doctor.explain.readers.tracebacks import Tracebacks
from nccl_doctor.explain.readers.wrapped import joined
from nccl_doctor.explain.signatures import Signature
from nccl_doctor.explain.summary import LAST_LINES, TAIL_LINES, Skip, Summary

BLOCK = 1 << 20
PIECE = 256 << 10  # read at once: stays in a core's cache until it was searched
STEP = 4 << 10  # behind a line that was looked at, this much at least is not passed over
AFTER_LINES = 24  # and so many lines: whether the work went on after a line is told by their numbers
TAIL = 64 << 10
BEFORE_LINES = 40  # without the frames of a traceback, which may be more
BEFORE = 32 << 10  # bytes
HEAD_LINES = 40
# An anchor that was seen this often in one file without any sign of trouble is dropped for the rest of the file; one
# that was, after ten times as many.
BUSY = 1000
CHANNELS = 4000  # so many things that processes say of several channels are told apart
CHANNEL_LINE = 400  # bytes
_ESCAPE = b"\x1b"  # one byte is looked for at the memory's speed, two are not: that cost half of the reading
_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_CHANNEL = b" NCCL INFO Channel "
_FRAME = b'  File "'


def _frames(lines: list[bytes]) -> set[int]:
    """Which lines, counted from the last one, are frames of tracebacks, with the line of code and the mark below each."""
    found: set[int] = set()
    for at, line in enumerate(lines):
        if _FRAME in line:
            below = (nth for nth in (at + 1, at + 2) if nth < len(lines) and b"    " in lines[nth])
            found.update(len(lines) - nth for nth in (at, *below))
    return found


class _Repeated(msgspec.Struct):
    """A line that is said again and again; ``times`` counts the lines that were not looked at, the last of them is kept."""

    anchors: set[bytes]
    times: int = 0
    raw: bytes = b""
    number: int = 0


class Scanner:
    """Reads one source, block by block; :meth:`finish` gives what was found."""

    def __init__(self, source: LogSource) -> None:
        self._kept = Kept(source)
        self._summary = self._kept.summary
        self._steps = Steps(self._kept)
        self._plan = plan()
        self._anchors = self._plan.anchors
        self._engine = self._plan.engine
        self._dropped: set[bytes] = set()
        self._line = 0  # lines before the current block
        self._looked = 0  # the last line that was looked at
        self._busy: dict[bytes, float] = {}
        self._tracebacks = Tracebacks(self._kept)
        self._own = OwnWords()
        self._before_kept = False
        self._channels: dict[bytes, _Repeated] = {}
        self._table = ""  # the heading whose rows are being read
        self._rows_left = 0

    def feed(self, block: bytes, earlier: Callable[[], bytes], places: list[matcher.Found] | None = None) -> None:
        """Take a block that ends at a line's end (or at the log's end); ``earlier`` gives what came just before it."""
        self._summary.bytes += len(block)
        if _ESCAPE in block:
            block, places = _COLOUR.sub(b"", block), None  # a colour may begin or end inside of a message
        if not self._line:
            self._tracebacks.begin(block)
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
        self._steps.take(self._own.without(block, self._line + 1), self._line + 1)
        self._line = line_number - 1 + block.count(b"\n", line_at)
        self._summary.lines = self._line

    def _reading(self) -> bool:
        """Whether the next line is looked at whatever it holds: a traceback, a table or a report goes on."""
        return bool(self._rows_left) or self._own.open or self._tracebacks.reading()

    def calm(self) -> bool:
        """Whether lines without an anchor can be passed over."""
        looked = max(HEAD_LINES, self._looked + AFTER_LINES)
        return self._line >= looked and self._steps.begun and not self._reading()

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
        skips = self._summary.skipped.setdefault(self._kept.source.name, [])
        if skips and skips[-1].line + skips[-1].size == self._line:
            skips[-1].size += size
        else:
            skips.append(Skip(self._line, offset + start, size))
        self._line += size
        self._summary.bytes += size
        self._summary.lines = self._line
        self._steps.pass_over(buffer, start, stop)

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

    def finish(self, tail: bytes) -> Summary:
        """End of the log; ``tail`` is its last piece, for the lines that say how it ended."""
        self._tracebacks.finish()
        for item in self._channels.values():
            if item.times:
                self._look_at(records.plain(item.raw), item.number, item.anchors, item.times)
        if tail and not tail.endswith(b"\n"):
            self._summary.lines += 1
        text = tail.rstrip(b"\r\n\x00 ")
        blank = tail[len(text) :].count(b"\n") - tail.endswith(b"\n")
        last = b"\n".join(text.rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:])
        number = max(1, self._summary.lines - blank - last.count(b"\n"))
        lines = self._own.without(last, number).split(b"\n")
        self._steps.finish(lines, number)
        keep = number + len(lines) - LAST_LINES
        self._summary.tails[self._kept.source.name] = [
            self._kept.hit("tail", self._kept.said(text, at))
            for at, raw in enumerate(lines, number)
            for text in records.texts(raw[:LINE_LIMIT])
            if text.strip() and (at >= keep or "ping " in text)
        ]
        for hit in self._summary.tails[self._kept.source.name]:
            self._kept.spoke(hit)
        self._kept.settle()
        return self._summary

    def _keep_commands(self, block: bytes) -> None:
        """Probes that somebody typed at the top of a log: their command lines."""
        head = block[: 64 * 1024]
        if b"ping " in head:
            lines = enumerate(head.split(b"\n")[: HEAD_LINES - self._line], self._line + 1)
            texts = [
                (number, records.plain(raw)) for number, raw in lines if b"ping " in raw and not self._own.had(number)
            ]
            self._summary.heads.setdefault(self._kept.source.name, []).extend(
                self._kept.hit("head", Said(prefix.Line(text), text, number)) for number, text in texts
            )

    # one line ----------------------------------------------------------------------------------------------------

    def _look(self, raw: bytes, number: int, held: set[bytes]) -> bool:
        """Take one line that holds these anchors; True if it is a sign of trouble."""
        if self._own.takes(raw, number):
            if says_it_failed(raw):
                self._summary.failed.append(self._kept.hit("failed", self._kept.said(records.plain(raw), number)))
            return False
        live = held - self._dropped
        if not self._reading() and (not live or self._repeats(raw, number, live)):
            return False
        trouble = False
        for text in records.texts(raw):
            if self._rows_left:
                self._rows_left -= 1
                self._kept.add_row(f"{self._table}-rows", self._kept.said(text, number))
            trouble |= self._look_at(text, number, live)
        return trouble

    def _repeats(self, raw: bytes, number: int, live: set[bytes]) -> bool:
        """Whether a process says of one more channel what it said of another. NCCL says it thousands of times."""
        start = raw.find(_CHANNEL, 0, CHANNEL_LINE)
        if start < 0 or len(raw) > CHANNEL_LINE:
            return False
        via = raw.find(b" via ", start)
        shape = raw[:start] + raw[start:via].translate(None, DIGITS) + raw[via:]
        known = self._channels.get(shape)
        if known is None:
            if len(self._channels) < CHANNELS:
                self._channels[shape] = _Repeated(live)
            return False
        known.times += 1
        known.raw, known.number = raw, number
        return True

    def _look_at(self, text: str, number: int, live: set[bytes], times: int = 1) -> bool:
        matches = self._plan.searched.matches(live, text)
        if matches and bystanders.lists_settings(text):
            matches = [(signature, groups) for signature, groups in matches if not _accuses(signature)]
        if not matches and live.isdisjoint(GENERIC) and not self._tracebacks.reading():
            self._count_busy(live, False)
            return False
        trouble, said = False, self._kept.said(text, number)
        self._tracebacks.attribute(said)
        for signature, groups in matches:
            self._kept.add(signature, groups, said, times)
            said.known.append(signature.name)
            trouble |= signature.role in (Role.CAUSE, Role.SYMPTOM)
            # What clush puts between the parts of a table ends none.
            if signature.rows and not (self._rows_left and signature.name == "group-heading"):
                self._table, self._rows_left = signature.name, signature.rows
        self._count_busy(live, trouble)
        if said.line.rank is not None:
            self._summary.ranks.add(said.line.rank)
            self._kept.spoke(self._kept.hit("last", said))
        if said.line.host:
            self._summary.hosts.add(said.line.host)
        self._tracebacks.take(said)
        return trouble

    def _keep_before(self, block: bytes, at: int, number: int, earlier: Callable[[], bytes]) -> None:
        """The lines before the first sign of trouble: what each rank was doing."""
        if self._before_kept:
            return
        self._before_kept = True
        kept = []
        text_before = block[max(0, at - BEFORE) : at]
        if at < BEFORE:
            text_before = earlier()[at - BEFORE :] + text_before
        most = -1 if _FRAME in text_before else BEFORE_LINES
        lines = text_before.removesuffix(b"\n").rsplit(b"\n", most)
        frames = _frames(lines)
        numbered = zip(range(number - 1, 0, -1), reversed(lines), strict=False)
        later: dict[bytes, int] = {}  # of a shape of line, how many follow that are kept
        for index, raw in itertools.islice((one for one in numbered if number - one[0] not in frames), BEFORE_LINES):
            shape = raw[:LINE_LIMIT].translate(None, DIGITS)
            later[shape] = later.get(shape, 0) + 1
            if self._own.had(index) or b"NCCL INFO" in raw or (later[shape] > SAME_SHAPE and b"ank" not in raw):
                continue
            for text in reversed(records.texts(raw[:LINE_LIMIT])):
                if text.strip():
                    kept.append(self._kept.hit("before", self._kept.said(text, index)))
        kept.reverse()
        self._summary.before[self._kept.source.name] = kept
        for hit in kept:
            if hit.rank is not None:
                self._summary.ranks.add(hit.rank)
            self._kept.spoke(hit)

    def _count_busy(self, held: set[bytes], trouble: bool) -> None:
        """Give up anchors that wake signatures again and again for nothing, or that have said enough."""
        for anchor in held:
            count = self._busy.get(anchor, 0) + (0.1 if trouble else 1)
            self._busy[anchor] = count
            if count >= BUSY and anchor not in self._dropped and anchor not in GENERIC:
                self._dropped.add(anchor)
                self._anchors = tuple(item for item in self._plan.anchors if item not in self._dropped)
                self._engine = matcher.engine(self._anchors)


def _accuses(signature: Signature) -> bool:
    """Whether a line of it speaks of trouble."""
    return signature.role in (Role.CAUSE, Role.SYMPTOM) or signature.name == "error-line"


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
            data = data[end + 1 :]
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if cut:
            yield data[:cut]
        if len(rest) > BLOCK:
            rest = rest.lstrip(b"\x00")  # a hole: the line begins behind it
        if len(rest) > BLOCK:
            yield rest[:LINE_LIMIT] + b"\n"
            rest = b""
            skipping = True
    if rest:
        yield rest


def pieces_of(source: LogSource) -> Iterator[bytes]:
    """The source's content as bytes, in pieces of about :data:`BLOCK`."""
    content = source.content
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    if isinstance(content, bytes):
        for at in range(0, len(content), BLOCK):
            yield content[at : at + BLOCK]
        return
    batch: list[bytes] = []
    size = 0
    for piece in content:
        batch.append(piece)
        size += len(piece)
        if size >= BLOCK:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)


def scan(source: LogSource) -> Summary:
    """Read a whole source."""
    scanner = Scanner(source)
    tail = b""
    order = Order()
    blocks = (block.replace(content.HARD_BLANK, b" ") for block in whole_lines(pieces_of(source)))
    for block in joined(oldest_first(blocks, order)):
        scanner.feed(block, functools.partial(bytes, tail))
        tail = (tail + block)[-TAIL:] if len(block) < TAIL else block[-TAIL:]
    summary = scanner.finish(tail)
    if order.numbers:
        summary.turned[source.name] = order.numbers
    if order.large:
        summary.backwards.append(source.name)
        why = f"stands newest first and is larger than {LARGEST >> 20} MiB: sort it by time, oldest first"
        summary.problems.append(InputProblem(source.name, why))
    return summary


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
