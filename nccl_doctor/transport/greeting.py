"""The start of a session: the agent is sent, and its first line read out of whatever a login shell prints before it."""

from __future__ import annotations

import contextlib
import re
import threading
import time

import msgspec

from nccl_doctor.facts import files
from nccl_doctor.facts.model import NO_ANSWER, NO_START, SETUP_FAILED, ReachOutcome
from nccl_doctor.transport.base import ConnectOptions, Deadline, Stream, Transport, Unreachable

NOISE_LIMIT = 64 << 10  # bytes of a login shell's chatter before the agent's first line


class Hello(msgspec.Struct, frozen=True):
    """Who answered: the agent's Python and process."""

    python: str
    pid: int


class Greeting:
    """Sends the agent, skips what a login shell prints, reads the hello line, or explains why there is none."""

    def __init__(
        self, transport: Transport, stream: Stream, marker: str, options: ConnectOptions, deadline: Deadline
    ) -> None:
        self._transport = transport
        self._stream = stream
        self._marker = marker.encode("ascii")
        self._options = options
        self._deadline = deadline
        self._limit_s = deadline.left(options.start_s)
        self._end = time.monotonic() + self._limit_s
        self._seen = bytearray()
        self.rest = b""

    def exchange(self, payload: bytes) -> Hello:
        """Send ``payload``, return the agent's hello; raises :class:`Unreachable`."""
        if self._stream.may_block:
            # In a thread: who floods us may not read, and then neither side would ever go on.
            threading.Thread(target=self._send, args=(payload,), daemon=True, name="send agent").start()
        else:
            self._send(payload)
        while True:
            answer = self._answer()
            if answer is not None:
                return self._understand(answer)
            if len(self._seen) > NOISE_LIMIT:
                raise self._garbage("more than 64 KiB came, and the agent's first line was not among it")
            try:
                block = self._stream.read(self._left())
            except TimeoutError:
                raise self._too_late() from None
            except (OSError, EOFError):
                block = b""
            if not block:
                raise self._ended()
            self._seen += block

    def _send(self, payload: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # what ended it is told by what it printed
            self._stream.write(payload, self._left())

    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _answer(self) -> bytes | None:
        """The rest of the marked line, once it is complete."""
        start = self._seen.find(self._marker)
        end = self._seen.find(b"\n", start) if start >= 0 else -1
        if end < 0:
            return None
        self.rest = bytes(self._seen[end + 1 :])
        return bytes(self._seen[start + len(self._marker) : end]).strip()

    def _understand(self, answer: bytes) -> Hello:
        word, _, rest = answer.partition(b" ")
        if word == b"hello":
            try:
                return files.from_json(rest, Hello)
            except msgspec.DecodeError as error:
                raise Unreachable(
                    ReachOutcome.GARBAGE, f"the agent's first line is broken: {error}", quote(rest)
                ) from error
        if word == b"python-too-old":
            version, _, where = rest.decode("utf-8", "replace").partition(" ")
            detail = f"Python {version} is too old: 3.8 or newer is needed; name another with --python"
            raise Unreachable(ReachOutcome.PYTHON_TOO_OLD, detail, f"{where} is Python {version}")
        raise Unreachable(ReachOutcome.GARBAGE, "the agent's first line is broken", quote(answer))

    def _noise(self) -> str:
        return quote(bytes(self._seen))

    def _garbage(self, detail: str) -> Unreachable:
        return Unreachable(ReachOutcome.GARBAGE, detail, self._noise(), last_line(self._stream.error_text()))

    def _too_late(self) -> Unreachable:
        begun = bytes(self._seen[self._seen.rfind(b"\n") + 1 :])
        if begun and begun.startswith(self._marker[: len(begun)]):
            detail = f"connected, but the agent's first line came too slowly: {len(begun)} bytes of it"
            return Unreachable(ReachOutcome.TIMED_OUT, f"{detail} within {self._limit_s:.0f} s", quote(begun))
        nothing = NO_ANSWER if self._transport.by_ssh else NO_START
        if self._deadline.passed:  # then a login shell's chatter proves nothing
            return Unreachable(ReachOutcome.TIMED_OUT, nothing, self._noise(), last_line(self._stream.error_text()))
        setup = self._options.env_setup
        if self._seen.strip() and not setup:
            return self._garbage(f"bytes came, but not the agent's first line within {self._limit_s:.0f} s")
        if (waits := self._transport.explain(self._stream, None)) is not None:
            return waits
        detail = f"{nothing} within {self._limit_s:.0f} s"
        if setup:  # which runs first, and may say something before it hangs
            detail += f"; before it runs --env-setup, maybe still: {setup}"
        return Unreachable(ReachOutcome.TIMED_OUT, detail, self._noise(), last_line(self._stream.error_text()))

    def _ended(self) -> Unreachable:
        """The stream ended before the hello line was complete: why?"""
        status = self._stream.status(1.0)
        by_transport = self._transport.explain(self._stream, status)
        if by_transport is not None:
            return by_transport
        tail = last_line(self._stream.error_text())
        if b"nccl-doctor-boot: no-python" in self._seen or (status == 127 and self._marker not in self._seen):
            wanted = self._options.python or "neither python3 nor python"
            where = "is not there" if self._options.python else "is in the PATH of a non-interactive shell"
            detail = f"no Python: {wanted} {where}; name one with --python or --env-setup"
            return Unreachable(ReachOutcome.NO_PYTHON, detail, tail or f"exit status {status}")
        if b"nccl-doctor-boot: env-setup-failed" in self._seen:
            detail = f"{SETUP_FAILED}: {self._options.env_setup}"
            return Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, tail or self._noise())
        if self._marker in self._seen:
            return Unreachable(
                ReachOutcome.CUT_OFF, "the stream ended in the middle of the agent's first line", self._noise()
            )
        ending = "without an exit status" if status is None else f"with status {status}"
        if self._seen.strip():
            return self._garbage(f"the login shell printed something and ended {ending}; the agent never started")
        detail = f"the remote command ended {ending} before the agent answered"
        return Unreachable(ReachOutcome.CUT_OFF, detail, tail or "no output")


def quote(data: bytes, limit: int = 300) -> str:
    """The first bytes of something unexpected, readable and without control characters."""
    text = data[:limit].decode("utf-8", "backslashreplace").strip()
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


_SAYS_WHY = re.compile(r"error|denied|not found|cannot|no such|refused|killed|unable", re.I)


def last_line(text: str) -> str:
    """The last line of a command's stderr that says something (of an error, if one does), made safe to print."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _SAYS_WHY.search(line)]
    return quote((errors or lines)[-1].encode("utf-8", "replace")) if lines else ""
