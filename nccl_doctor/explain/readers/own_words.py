"""What nccl-doctor itself has printed into a log (the report of ``preflight`` before the job's output, say).

It speaks of hosts and of what was not measured in the words of the failures it looks for, and is no line of the job.
"""

from __future__ import annotations

import bisect
import math
import re

# What its words begin with: a message, the first line of progress, a verdict.
ANCHORS = (
    b"nccl-doctor: ", b" s] connect ",
    *(b" %s: " % word for word in (b"FAULTY", b"HEALTHY", b"INCOMPLETE", b"GO", b"NO-GO")),
    *(b" %s: " % word for word in (b"HELD", b"STANDS", b"MOVES", b"NOT KNOWN", b"NO JOB", b"WHICH JOB", b"NOTHING SEEN")),
)  # fmt: skip
_TIME = rb"(?:\d{4}-\d\d-\d\dT[\d:.,]{8,20}Z ?)?"  # as CI services put before each line
_MARK = "(?:✗|✓|[?x+]) ".encode()
_VERDICTS = b"|".join(anchor.strip() for anchor in ANCHORS[2:])
_PROGRESS = rb"\[ *\d+\.\d s\] "
_BEGINS = re.compile(
    _TIME + b"(?:nccl-doctor: |(?P<verdict>" + _MARK + b"(?:" + _VERDICTS + b"))|" + _PROGRESS + rb"connect \d)"
)
# No "+ ": where the locale lacks signs, what goes on is no good news, and `set -x` writes commands so.
_GOES_ON = re.compile(_TIME + rb"(?:  |\s*$|" + _PROGRESS + "|(?P<verdict>(?:✗|✓|[?x]) ))".encode())
_FAILED = re.compile(_TIME + rb"nccl-doctor: (?:exit [1-9]|the job hung)")
_WRAPPED = 3  # lines at most that a verdict goes on without an indent
_NARROWEST = 60  # bytes: a shorter line was not wrapped


def says_it_failed(raw: bytes) -> bool:
    """Whether a line is ours and says that the job failed: a fact, whatever is said of the cause."""
    return _FAILED.match(raw) is not None


class OwnWords:
    """Tells, line after line, which of a log are nccl-doctor's own: all that is indented below one of its lines is."""

    def __init__(self) -> None:
        self.open = False
        self._spans: list[list[float]] = []  # first and last line
        self._wrapped = 0

    def takes(self, raw: bytes, number: int) -> bool:
        """Whether this line is one of them. Lines come in order; while :attr:`open`, none is left out."""
        found = _BEGINS.match(raw) or (_GOES_ON.match(raw) if self.open else None)
        if found:
            self._wrapped = _WRAPPED if found["verdict"] else 0
        elif self._wrapped and self.open:
            self._wrapped -= 1
        else:
            self.open = False
            return False
        if len(raw) < _NARROWEST:
            self._wrapped = 0
        if self.open:
            self._spans[-1][1] = number
        else:
            self._spans.append([number, number])
        self.open = True
        return True

    def had(self, number: int) -> bool:
        """Whether the line of this number was one of them."""
        at = bisect.bisect(self._spans, [number, math.inf])
        return at > 0 and number <= self._spans[at - 1][1]

    def without(self, text: bytes, number: int) -> bytes:
        """The text, which begins with the line of this number, with empty lines in their place."""
        if not self._spans or self._spans[-1][1] < number:
            return text
        return b"\n".join(b"" if self.had(at) else raw for at, raw in enumerate(text.split(b"\n"), number))
