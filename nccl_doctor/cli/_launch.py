"""Running the job after a go: environment shown and exported, output passed through and kept, explained if it fails."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nccl_doctor.agent import children
from nccl_doctor.cli import _hosts
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.transport.descriptors import as_started

if TYPE_CHECKING:
    from nccl_doctor.findings.model import EnvAdvice
    from nccl_doctor.inventory import Inventory
    from nccl_doctor.rules.gate import Gate

KEPT_BYTES = 256 << 20  # of the job's output, at least its last half: a job may print for weeks
EXPLAIN_LIMIT_S = 60.0  # what is kept is read in a few seconds, also on a busy machine


def launch(command: list[str], advice: Iterable[EnvAdvice], inventory: Inventory, gate: Gate) -> int:
    """Run the command; its exit status (128 + signal where it was killed by one), or 127 where it cannot be run.

    The job finds the chosen hosts in NCCL_DOCTOR_HOSTS (comma list), NCCL_DOCTOR_HOSTFILE (the input's own format) and
    NCCL_DOCTOR_NNODES; in COMMAND the words {hosts}, {hostfile} and {nnodes} stand for them.
    """
    from nccl_doctor.inventory import render

    chosen = [entry for entry in inventory.entries if entry.name in gate.chosen]
    try:
        place = tempfile.TemporaryDirectory(prefix="nccl-doctor-")
        hostfile = Path(place.name) / "hostfile"
        hostfile.write_text(render(chosen, inventory.format), encoding="utf-8")
    except OSError as error:
        why = f"{error.strerror or error}; name a directory for them by TMPDIR"
        _hosts.stop(f"the job's hostfile and the copy of its output have no place: {why}", ExitCode.INTERNAL_ERROR)
    with place as directory:
        words = {"hosts": ",".join(gate.chosen), "hostfile": str(hostfile), "nnodes": str(len(gate.chosen))}
        environment = dict(os.environ)
        for name, value in words.items():
            environment[f"NCCL_DOCTOR_{name.upper()}"] = value
        for item in advice:
            if item.hosts and not set(item.hosts) & set(gate.chosen):
                continue  # of hosts on which the job does not run: on the others it may name what they have not
            if item.unset:
                environment.pop(item.name, None)
            else:
                environment[item.name] = item.value
            _hosts.say(f"{item.shell}   # {item.reason}")
        argv = [_filled(word, words) for word in command]
        _hosts.say(f"go: {shlex.join(argv)}")
        kept = _Kept(Path(directory))
        status, told_to_end = _pass_through(argv, environment, kept)
        if status not in (0, 127, 130) and not told_to_end:
            _explain(kept)
        return status


class _Kept:
    """The end of the job's output, in two files of half the size: when one is full, the older one goes."""

    def __init__(self, directory: Path) -> None:
        self.older, self.newer = (
            directory / "job-output-before",
            directory / "job-output",
        )  # no number: it would be a rank
        self._stream: IO[bytes] = self.newer.open("wb")
        self._lock = threading.Lock()

    def write(self, block: bytes) -> None:
        """Append; a full disk loses the copy, never the job's own output."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._stream.tell() > KEPT_BYTES // 2:
                self._stream.close()
                self.newer.replace(self.older)
                self._stream = self.newer.open("wb")
            self._stream.write(block)

    def files(self) -> list[str]:
        """The names of the files that hold something, older first."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
        return [path.name for path in (self.older, self.newer) if path.exists() and path.stat().st_size]


def _filled(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _pass_through(argv: list[str], environment: dict[str, str], kept: _Kept) -> tuple[int, bool]:
    """Run with this terminal's input; output goes on unchanged and is kept. Signals are passed on to the job.

    Its exit status, and whether it was told to end by such a signal.
    """
    told: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object = None) -> None:
        told.append(number)
        for child in started:
            if number != signal.SIGINT or not _has_terminal():  # a terminal's Ctrl-C reaches the job by itself
                child.send_signal(number)

    with _handled_by(pass_on):
        try:
            # A kill -9 of this process, which reads the job's output, tells the job to end: it could print no more.
            orphaned = children.die_with_parent(os.getpid(), signal.SIGTERM)

            def between_fork_and_exec() -> None:
                orphaned()
                as_started()

            child = subprocess.Popen(
                argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=between_fork_and_exec
            )
            started.append(child)
            for number in tuple(told):  # came while it started
                child.send_signal(number)
            assert child.stdout is not None and child.stderr is not None
            copies = [
                threading.Thread(target=_copy, args=(source, sink, kept), daemon=True)
                for source, sink in ((child.stdout, sys.stdout.buffer), (child.stderr, sys.stderr.buffer))
            ]
            for copy in copies:
                copy.start()
            status = child.wait()
            for copy in copies:
                copy.join(5.0)
        except OSError as error:
            _hosts.say(f"{argv[0]}: {error.strerror or error}")
            return 127, False
    return 128 - status if status < 0 else status, bool(told)


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """What tells this process to end is the handler's business."""
    previous = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def _has_terminal() -> bool:
    """Whether a terminal sends its signals to this process and to the job alike."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _copy(source: IO[bytes], sink: IO[bytes], kept: _Kept) -> None:
    for block in iter(lambda: source.read1(65536), b""):  # type: ignore[attr-defined]
        kept.write(block)
        with contextlib.suppress(OSError):  # our own reader went away: the job and its log go on
            sink.write(block)
            sink.flush()


def _explain(kept: _Kept) -> None:
    """Say why the job failed, in a process of its own: the job's exit status must not wait for it for ever."""
    files = kept.files()
    if not files:
        _hosts.say("the job failed and printed nothing: there is nothing to explain")
        return
    _hosts.say("the job failed; its output says:")
    ended: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def end(number: int = 0, _: object = None) -> None:
        ended.append(number)
        for child in started:
            children.kill_group(child.pid)

    with _handled_by(end):
        child = children.spawn(_explaining(files), stdout=sys.stderr.fileno(), cwd=kept.newer.parent)
        started.append(child)
        try:
            child.wait(0.0 if ended else EXPLAIN_LIMIT_S)  # told to while it started: at once
        except subprocess.TimeoutExpired:
            ended.append(0)
        children.finish(child, 5.0)
    if ended:
        why = "told to end" if ended[0] else f"no end after {EXPLAIN_LIMIT_S:g} s"
        _hosts.say(f"{why}: the job's output is not explained")


def _explaining(files: list[str]) -> list[str]:
    """``nccl-doctor explain`` as this very installation, whatever lies in the working directory."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from nccl_doctor.cli import main; main()"
    return [sys.executable, "-c", program, "explain", *files]
