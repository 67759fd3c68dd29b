"""The consoles that results (standard output) and progress (standard error) are printed on."""

from __future__ import annotations

import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from typing import IO, Any, Literal, TypeVar, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from nccl_doctor.findings.model import SURE

D = TypeVar("D", bound="LiveDisplay")

PIPE_WIDTH = 128  # columns where there is no terminal: as wide as the widest table, bench's against a baseline
NARROWEST = 20  # columns: in fewer, or none, nothing could be told
_BLANKS_AT_ENDS = re.compile(r"(?: |\x1b\[[0-9;]*m)+(?=\n)")  # and the colours among them


class _Trimmed:
    """A stream that gets no blanks at the ends of lines: tables are padded, and people copy them."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.lines = 0

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        return self._stream.write(_BLANKS_AT_ENDS.sub(lambda end: end.group().replace(" ", ""), text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def confidence_word(confidence: float) -> str:
    """``certain``, ``likely`` or ``possible``: what a reader needs; the number is in the JSON."""
    return "certain" if confidence >= SURE else "likely" if confidence >= 0.75 else "possible"


def stdout_console(plain: bool = False) -> Console:
    """The console for results.

    ``plain`` where what looks like a terminal may be none: mpirun gives its ranks one and writes to a file.
    """
    return _console(sys.stdout, plain)


def stderr_console() -> Console:
    """The console for progress and notices."""
    return _console(sys.stderr)


def is_live(console: Console) -> bool:
    """Whether lines can be drawn again: a terminal, and no dumb one."""
    return console.is_terminal and not console.is_dumb_terminal


class LiveDisplay(ABC):
    """A picture on a terminal that is drawn again until the end; elsewhere there is none. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        """Called last: a first picture is made."""
        self._console = console
        self._live = Live(console=console, transient=True, get_renderable=self._picture) if is_live(console) else None

    def __enter__(self: D) -> D:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    @abstractmethod
    def _picture(self) -> RenderableType:
        """Made when it is shown, some times a second, in a thread of its own, and not at each event."""


_COMMAND = "nccl-doctor "
_CODE = re.compile("`[^`]+`")
_GLUE = "\ue000"  # a blank at which no line ends


def print_again(console: Console, verdict: Text) -> None:
    """The verdict once more where the screen has moved on from it: the prompt stands below it, and not the top."""
    if console.is_terminal and isinstance(console.file, _Trimmed) and console.file.lines >= console.height - 1:
        console.print(verdict)


def _console(stream: IO[str], plain: bool = False) -> Console:
    """Nothing is read as markup. NO_COLOR takes bold and dim away as well: no escape sequence is left."""
    file = cast("IO[str]", _Trimmed(stream))
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    told = os.environ.get("COLUMNS", "")
    width = max(int(told), NARROWEST) if told.isdecimal() and int(told) else None
    known = width or (shutil.get_terminal_size().columns if told.isdecimal() else None)  # 0: to be found out
    console = Console(file=file, highlight=False, markup=False, emoji=False, color_system=colours, width=known)
    if console.is_terminal and not plain:
        return console
    return _plain(file, width or PIPE_WIDTH)


def text_console(stream: IO[str]) -> Console:
    """The console for a text that is kept: the same wherever it is written."""
    return _plain(cast("IO[str]", _Trimmed(stream)), PIPE_WIDTH)


def _plain(file: IO[str], width: int | None) -> Console:
    return Console(file=file, highlight=False, markup=False, emoji=False, width=width, force_terminal=False)


def print_labelled(console: Console, label: str, style: str, text: Text) -> None:
    """Print a line of a report's end: its label, and the text beside it."""
    print_hanging(console, Text(f"{label:<13}", style).append_text(text), 2, 13)


def print_hanging(console: Console, text: Text, indent: int = 0, label: int = 0, most: int = 1000) -> None:
    """Print indented; what does not fit goes on beneath, past the first ``label`` columns, without blanks at ends.

    Lines have at most ``most`` columns. Commands, in backticks or as the whole text, stay whole: they are there to be copied.
    """
    head, body = text.divide([label])
    width = max(20, min(console.width - indent - label, most))
    body.plain = _CODE.sub(
        lambda code: code.group().replace(" ", _GLUE if len(code.group()) <= width else " "), body.plain
    )
    rows = [body] if body.plain.startswith(_COMMAND) else body.wrap(console, width, tab_size=1) or [Text()]
    for number, row in enumerate(rows):
        row.plain = row.plain.replace(_GLUE, " ")
        row.rstrip()
        start = head if number == 0 else Text(" " * label)
        console.print(Text(" " * indent).append_text(start).append_text(row), soft_wrap=True)
