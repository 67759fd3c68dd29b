"""Python's exceptions in one log, each put together by process though their lines come interleaved."""

from __future__ import annotations

import re

import msgspec

from nccl_doctor.explain.model import Hit, Traceback
from nccl_doctor.explain.readers import prefix, records
from nccl_doctor.explain.readers.kept import QUOTE_LIMIT, Kept, Said
from nccl_doctor.explain.summary import KEEP_TRACEBACKS

FRAME_LIMIT = 400  # lines of one traceback
FRAMES_KEPT = 12
FRAMELESS = 60  # lines without a frame: it is no traceback
MESSAGE_LINES = 6  # further lines of an exception's message
OPEN_LIMIT = 64  # tracebacks open at the same time

_FRAME = re.compile(r'[\s>]*File "([^"]{1,400})", line (\d+)(?:, in (\S{1,120}))?')
_FRAME_AT = re.compile(r'  File "[^"]{1,400}", line \d')
_BEGINNING = 2  # lines
# A paste that begins inside a traceback: its first line is a frame, or a frame's line of code
_BEGINS_INSIDE = re.compile(rb'(?:[^\n]{0,200}\n)?[^\n"]{0,120}File "[^"\n]{1,400}", line \d{1,7}, in \S')
_BOXED_FRAME = re.compile(r"│ (\S{1,400}?):(\d+) in (\S{1,120})")  # as rich draws it
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,160}?)(?::\s?(.*))?$", re.DOTALL)
_ENDINGS = ("Error", "Exception", "Interrupt", "Failure", "Timeout", "NotFound", "Exit")
_STANDALONE = re.compile(rf"(?:[\w.]{{1,120}}\.)?([A-Z]\w{{0,60}}(?:{'|'.join(_ENDINGS)}))(?::\s(.*)|:?\s*$)")
_TWICE = re.compile(r"^(\w{1,60}?(?:Error|Exception))(?:\1){1,64}$")  # several ranks' at once, without a prefix
_NODE = re.compile(r"\bNode: '[^']*'$")  # TensorFlow tells where, and on the next line what
_OF_RANK = re.compile(r"\(RANK (\d{1,6})\)\s*$")  # torch's distributed checkpoint tells on every rank what one raised
_LOWER_CASE = frozenset(("error", "timeout", "gaierror", "herror"))  # zlib.error, socket.timeout, cv2.error
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|<frozen|<string>|/torch/(?:nn|distributed|utils)|^<")
_REPEATED = re.compile(r" \[repeated [0-9]{1,9}x across cluster\].*")  # Ray tells a line of many workers once


class _Open(msgspec.Struct):
    """A traceback whose exception line has not come yet."""

    hit: Hit
    indent: str
    mixed: bool  # several processes without a prefix: whose frames these are cannot be told
    ignored: bool
    frames: list[str] = msgspec.field(default_factory=list)
    code: Said | None = None  # the line of code in the deepest frame
    where: str = ""
    function: str = ""
    lines: int = 0


class Tracebacks:
    """Reads them out of the lines that it is shown, in order. The summary grows by each that is complete, or was cut."""

    def __init__(self, kept: Kept) -> None:
        self._found = kept.summary.tracebacks
        self._kept = kept
        self._leads = records.Leads()
        self._open: dict[str, _Open] = {}  # by process
        self._ended: set[str] = set()  # processes whose exception was just told: the next line may go on
        # By process, its last exception, whose message may go on, and the indent of its lines.
        self._told: dict[str, tuple[int, str]] = {}
        # A traceback just begun: its process, its key in _open, its line.
        self._begun: tuple[str, str, int] | None = None
        self._passed_on: dict[str, int] = {}  # by process, the rank whose traceback it tells
        self._ignored: set[str] = set()  # processes that said "Exception ignored in": the next traceback is nothing
        self._inside_from_start = False  # until its first traceback ends, in a log that begins inside of it

    def begin(self, block: bytes) -> None:
        """Look at the beginning of a log."""
        self._inside_from_start = _BEGINS_INSIDE.match(block) is not None

    def reading(self) -> bool:
        """Whether every line has to be shown, whatever it holds."""
        return bool(self._open or self._ended or self._inside_from_start)

    def attribute(self, said: Said) -> None:
        """Give a line the rank that said it, where it is of a traceback that another rank only passes on."""
        key = _process(said.line)
        if key in self._passed_on:
            said.line.key, said.line.rank = key, self._passed_on[key]

    def take(self, said: Said) -> None:
        """Look at one line."""
        line = said.line
        process = key = _process(line)
        if "exception-ignored" in said.known:
            self._ignored.add(key)
        if records.MARK in line.body:
            self._begin(key, said)
            return
        if self._begun:
            self._drop_lead(key, said, *self._begun)
        if self._inside_from_start and (at := _FRAME_AT.search(line.body)) is not None:
            self._leads.learn(line.body[: at.start()] + records.MARK)
        lead, line.body = self._leads.split(line.body)
        key += lead
        body = line.body
        block = self._open.get(key)
        if block is None and self._inside_from_start and _FRAME.match(body):
            indent = body[: body.find("File") - len("  ")]
            block = self._open[key] = _Open(self._kept.hit("traceback", said), indent, False, False)
        if not self._open and said.number >= _BEGINNING:
            self._inside_from_start = False  # it was only a line that looks alike
        if block is not None:
            self._inside(block, key, said)
            if key not in self._open:
                self._passed_on.pop(process, None)
                self._inside_from_start = False
            return
        if key in self._ended:
            index, indent = self._told.get(key, (-1, ""))
            goes_on = body.removeprefix(indent)[:1] in " \t" or self._is_announced(index)
            if index >= 0 and goes_on and body.strip():
                self._goes_on(index, said)
            elif body.strip():
                self._ended.discard(key)
        elif any(ending in body for ending in _ENDINGS):
            self._standalone(said)
        if not self._open and len(self._ended) > OPEN_LIMIT:
            self._ended.clear()

    def finish(self) -> None:
        """End of the log: what is still open was cut."""
        for key in list(self._open):
            self._cut(key)

    def _begin(self, process: str, said: Said) -> None:
        lead, indent = self._leads.learn(said.line.body)
        key = process + lead
        self._ended.discard(key)
        mixed = key in self._open
        if mixed:
            self._cut(key)
        self._passed_on.pop(process, None)
        if (told := _OF_RANK.search(said.line.body)) is not None:
            self._passed_on[process] = int(told.group(1))
        if len(self._open) < OPEN_LIMIT and len(self._found) < KEEP_TRACEBACKS:
            hit = self._kept.hit("traceback", said)
            self._open[key] = _Open(hit, indent, mixed, process in self._ignored)
            self._ignored.discard(process)
            self._begun = (process, key, said.number) if lead else None

    def _drop_lead(self, process: str, said: Said, whose: str, key: str, number: int) -> None:
        """Between the prefix and ``Traceback`` the end of another line (a bar, ^C) may stand: the frames lack it."""
        body = said.line.body
        told, _ = self._leads.split(body)
        found = _FRAME_AT.search(body) if process == whose and not told else None
        lead = body[: found.start()] if found else ""
        if found and records.begins_with(key.removeprefix(process), lead):
            lead, indent = self._leads.learn(lead + records.MARK)
            if process + lead not in self._open and key in self._open:
                block = self._open[process + lead] = self._open.pop(key)
                block.indent = indent
        if told or found or said.number > number + 1:  # a blank line, whatever its prefix, may stand between
            self._begun = None

    def _inside(self, block: _Open, key: str, said: Said) -> None:
        body = said.line.body.removeprefix(block.indent)
        block.lines += 1
        frame = _FRAME.match(body) or _BOXED_FRAME.match(body)
        if frame:
            place = f"{frame.group(1)}:{frame.group(2)}"
            block.frames.append(place)
            block.code = None
            if not _LIBRARY.search(frame.group(1)):
                block.where, block.function = place, frame.group(3) or ""
            return
        if block.lines > FRAME_LIMIT:
            self._cut(key)
            return
        if not body.strip() or body[0] in " \t|+~^│╭╰❱":
            if block.code is None and body.strip() and (body[0] in " \t" or "❱" in body):
                block.code = said
            return
        found = _EXCEPTION.match(body.strip())
        # A line of another process that carries no prefix can stand between: only a dotted name or a name that looks
        # like an exception ends the block.
        if found and (_STANDALONE.match(body.strip()) or _looks_like_exception(found.group(1), found.group(2))):
            del self._open[key]
            self._record(block, found.group(1), found.group(2) or "", said)
            self._told[key] = len(self._found) - 1, block.indent
            self._ended.add(key)  # the next line may say that this exception led to another
        elif block.lines > FRAMELESS and not block.frames:
            self._cut(key)

    def _cut(self, key: str) -> None:
        block = self._open.pop(key)
        if block.frames:
            frames = tuple(block.frames[-FRAMES_KEPT:])
            last = None if block.mixed else block.code
            self._found.append(
                Traceback(
                    "",
                    "",
                    block.hit,
                    block.hit.line,
                    block.where,
                    block.function,
                    frames,
                    more=() if last is None else (self._kept.hit("exception", last),),
                )
            )

    def _is_announced(self, index: int) -> bool:
        """Whether this exception's message ends with a colon, and what it announces has not come yet."""
        if index < 0 or not self._found[index].message.endswith(":"):
            return False
        more = self._found[index].more
        return not more or _NODE.search(more[-1].text) is not None

    def _goes_on(self, index: int, said: Said) -> None:
        item = self._found[index]
        if len(item.more) < MESSAGE_LINES:
            more = (*item.more, self._kept.hit("exception", said))
            self._found[index] = msgspec.structs.replace(item, more=more)

    def _record(self, block: _Open, kind: str, message: str, said: Said) -> None:
        # An assertion without a message says nothing but the line that made it.
        silent = block.code if not message.strip() and not block.mixed else None
        self._found.append(
            Traceback(
                kind,
                _message(message),
                self._kept.hit("exception", said),
                block.hit.line,
                "" if block.mixed else block.where,
                block.function,
                () if block.mixed else tuple(block.frames[-FRAMES_KEPT:]),
                (*said.known, "exception-ignored") if block.ignored else tuple(said.known),
                () if silent is None else (self._kept.hit("exception", silent),),
            )
        )

    def _standalone(self, said: Said) -> None:
        """An exception line without its traceback (cut logs, loggers that print only the last line)."""
        body = said.line.body.strip()
        found = _STANDALONE.match(body)
        if found and len(self._found) < KEEP_TRACEBACKS:
            hit = self._kept.hit("exception", said)
            message = _message(found.group(2) or "")
            kind = _TWICE.sub(r"\1", body.split(":")[0])
            self._found.append(Traceback(kind, message, hit, said.number, known=tuple(said.known)))


def _process(line: prefix.Line) -> str:
    return line.key or (str(line.rank) if line.rank is not None else "")


def _message(text: str) -> str:
    return _REPEATED.sub("", text[:QUOTE_LIMIT])


def _looks_like_exception(name: str, message: str | None) -> bool:
    last = name.rsplit(".", 1)[-1]
    if "." in name:
        return last[:1].isupper() or last in _LOWER_CASE or last.endswith(("Error", "Exception"))
    return last[:1].isupper() and (message is not None or last.isidentifier()) and len(last) > 3
