"""The hang guard: a job that has printed nothing for a while is looked at, as ``hang`` does, again and again; and what it
left running when it has ended."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nccl_doctor.agent import children
from nccl_doctor.agent.job.processes import bearing
from nccl_doctor.agent.probing import stat_fields
from nccl_doctor.cli import _inputs, _options, _tell
from nccl_doctor.cli._aside import aside, ourselves
from nccl_doctor.cli._keep import Keep
from nccl_doctor.cli._output import Kept
from nccl_doctor.cli._signals import TO_END, handled_by
from nccl_doctor.facts.fold import fold
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.rules.hang import Hang
    from nccl_doctor.rules.silence import Command, Left, Look
    from nccl_doctor.transport.base import ConnectOptions

LOOK_LIMIT_S = 120.0  # of a look at all hosts; what was seen until then is judged
LOOK_GRACE_S = 15.0  # beyond it, for a look that does not keep its own limit
END_GRACE_S = 60.0  # from SIGTERM to SIGKILL: torchrun gives its workers 30 s
LEFT_WAIT_S = 30.0  # for its end: ranks whose peers are gone, or whose torchrun has told them to, end by themselves


class Following(msgspec.Struct, frozen=True):
    """How a command is followed. ``silence_s`` 0: it is never looked at; ``end``: ended where it surely stands.

    ``ways`` are the options of ``hang`` that say how its hosts are reached (None: no way is known); ``local``: there are none
    but this machine.
    """

    silence_s: float = 0.0
    end: bool = False
    keep: Path | None = None
    ways: tuple[str, ...] | None = None
    local: bool = False


def following(silence: str, on_hang: str, keep: Path | None, connect: ConnectOptions | None) -> Following:
    """What these options ask for; without a way to the hosts nothing can be looked at."""
    off = silence == "0" or connect is None
    silence_s = 0.0 if off else _options.seconds(silence, "--silence", "10m or 90s (0: off)")
    if on_hang == "end" and off:
        _tell.stop("--on-hang end needs to look: leave out --silence 0")
    if keep is not None:
        _inputs.check_directory(keep, "--keep")
    ways = None if connect is None else _ways(connect)
    local = connect is not None and connect.transport == "local"
    return Following(silence_s, on_hang == "end", keep and keep.absolute(), ways, local)


def _ways(connect: ConnectOptions) -> tuple[str, ...]:
    words = {"--python": connect.python, "--env-setup": connect.env_setup, "--ssh-config": connect.ssh_config}
    if connect.transport != "local":
        words["--transport"] = connect.transport
    said = tuple(word for option, value in words.items() if value for word in (option, value))
    return (*said, "--connect-timeout", str(connect.connect_s), "--fan-out", str(connect.fan_out))


def _word(answer: Hang) -> str:
    return answer.verdict.upper().replace("-", " ")


def _tell_left(found: Left) -> None:
    for line in found.told:
        _tell.say(line)


class Guard:
    """Looks at a silent job; tells what it sees on stderr, and ends the job only where that was asked for and two looks
    say the same. ``mark`` is in the environment of all that the job starts and hands its environment to."""

    def __init__(
        self, following: Following, hostfile: Path, hosts: tuple[str, ...], mark: str, output: Kept, keep: Keep
    ) -> None:
        self._following = following
        self._hostfile = hostfile
        self._hosts = hosts
        self._mark = mark
        self._here: set[tuple[int, int]] = set()
        self._output = output
        self._keep = keep
        self._looks = 0
        self._last: Hang | None = None
        self._last_at = 0.0
        self._started = time.monotonic()

    def follow(self, job: subprocess.Popen[bytes], over: threading.Event) -> ExitCode | None:
        """Until the job is over. The exit code that says why, where it was ended here.

        The times of silence at which it looks double: a job that stands for a day is told of some eight times. They
        double from where it looked, which is later than it should be in a job that was suspended meanwhile.
        """
        from nccl_doctor.rules.units import duration

        if not self._following.silence_s:
            return None
        heard, due, before = self._output.heard, self._following.silence_s, None
        while not over.wait(max(0.05, due - self._output.silent_s())):
            if self._output.heard != heard:
                heard, due, before = self._output.heard, self._following.silence_s, None
            if (silent := self._output.silent_s()) < due:
                continue
            due = 2 * silent
            _tell.say(f"the job has printed nothing for {duration(silent)}: looking at it")
            next_look = f"looking again after {duration(due)} of silence"
            try:
                found = self._look(over, heard)
                if found is None:
                    continue
                same = bool(found.key) and before is not None and found.key == before.key
                ending = self._following.end and same and not (found.keep_on or (before and before.keep_on))
                ending = ending and not over.is_set() and self._output.heard == heard  # while it was judged
                self._tell(found, same, "" if ending else next_look)
            except Exception as error:  # noqa: BLE001 - no defect of ours ends a job that has run for a week
                _tell.say(f"the look failed ({type(error).__name__}: {error}); {next_look}")
                continue
            before = found
            if ending:
                self._end(job, over)
                return found.answer.exit_code
        return None

    @property
    def sentence(self) -> str:
        """What the last look that named a rank, or a job that stands, said of it; empty before there is one."""
        return self._last.sentence if self._last else ""

    def recall(self) -> None:
        """Say what the last look saw that named somebody: a job that failed may have hung before, or have gone on since."""
        from nccl_doctor.rules.units import duration

        if self._last:
            ago = duration(time.monotonic() - self._last_at)
            _tell.say(f"the last look at it, {ago} before its end: {_word(self._last)}: {self.sentence}")

    def left(self) -> tuple[Left, bool]:
        """What of the job runs on though its command has ended, said; waited for a while. And whether a signal told to end
        meanwhile. Nothing is done to it: who started it there may still mean it to end by itself, and a process id of
        another host is no proof of what it is."""
        from nccl_doctor.rules import silence

        local = self._following.local  # here its processes are known by their mark, and others start theirs
        if self._following.ways is None or (local and not bearing(self._mark)):
            return silence.Left(), False
        told: list[int] = []
        until, found = 0.0, silence.Left(unseen=self._hosts)
        with handled_by(lambda number, _: told.append(number), *TO_END):
            while True:
                try:
                    seen = self._see("left.ndb", lambda: bool(told), LOOK_LIMIT_S, "--interval", "0.5")
                    found = silence.left(seen, self._command(), doubtful=not local) if seen else found
                except Exception as error:  # noqa: BLE001 - the exit code is the job's, whatever we fail at
                    _tell.say(f"the look failed ({type(error).__name__}: {error})")
                if not found.told or told or 0.0 < until < time.monotonic():
                    break
                if not until:
                    _tell_left(found)
                    _tell.say(f"waiting up to {LEFT_WAIT_S:g} s for its end (Ctrl-C: no longer)")
                    until = time.monotonic() + LEFT_WAIT_S
                time.sleep(1.0)
        _tell_left(found)
        if until and not found.told:
            _tell.say("it has ended")
        if found.unseen:
            _tell.say(f"whether any rank still runs on {fold(found.unseen)} is not known: it could not be looked at")
        # Its bundle is not kept: to whoever reads it as a look at the job, the ranks that have ended would be the cause.
        self._hostfile.with_name("left.ndb").unlink(missing_ok=True)
        if found.told:
            self._keep.add("left.txt", lambda: "\n".join((*found.told, "")).encode())
        return found, bool(told)

    def _command(self) -> Command:
        """What tells the job's processes from others', now."""
        from nccl_doctor.rules.silence import Command

        for pid in children.descendants(os.getpid()):
            if fields := stat_fields(pid):
                self._here.add((pid, int(fields[19])))
        return Command(self._mark, time.monotonic() - self._started, frozenset(self._here))

    def _look(self, over: threading.Event, heard: float) -> Look | None:
        """What a look says; None where it was cut short, by the job's end or its going on."""
        from nccl_doctor.rules.silence import look

        self._looks += 1
        seen = self._see(f"hang-{self._looks}.ndb", lambda: over.is_set() or self._output.heard != heard, LOOK_LIMIT_S)
        return look(seen, self._command()) if seen else None

    def _see(self, name: str, cut: Callable[[], bool], limit_s: float, *options: str) -> Bundle | None:
        """The job's hosts as ``hang`` sees them, kept as ``name``; None where it was cut short, or (said) gave no answer."""
        from nccl_doctor.facts import bundle as bundles

        told: list[str] = []
        saved = self._hostfile.with_name(name)
        hosts = () if self._following.local else ("--hosts", str(self._hostfile))
        limits = ("--deadline", f"{limit_s:g}", "--save", str(saved))
        words = ourselves("main()", "hang", *hosts, *(self._following.ways or ()), *options, *limits)
        try:
            with tempfile.TemporaryFile(dir=saved.parent) as log:
                aside(words, limit_s + LOOK_GRACE_S, cut, stdout=log, stderr=log)
                if cut():
                    return None
                log.seek(0)
                told = log.read().decode(errors="replace").strip().splitlines()
            return bundles.read(saved)
        except (OSError, bundles.BundleError) as error:
            _tell.say(f"the look gave no answer: {told[-1] if told else error}")
            return None

    def _tell(self, found: Look, same: bool, next_look: str) -> None:
        """The answer in full where it is a new one that names somebody, else in a line; and what comes next, if anything."""
        from nccl_doctor.report.hang import render
        from nccl_doctor.report.terminal import stderr_console, text_console

        answer = found.answer
        word = _word(answer)
        if not found.key:
            _tell.say(f"{word}: {answer.sentence}; {next_look}")
            return
        self._last, self._last_at = answer, time.monotonic()
        text = io.StringIO()
        render(answer, text_console(text), verbose=True)
        self._keep.add(f"hang-{self._looks}.txt", lambda: text.getvalue().encode())
        if same:
            _tell.say(f"as before: {word}: {answer.sentence}")
        else:
            render(answer, stderr_console())
        self._keep.save("hangs")
        if not next_look:
            return
        if not self._following.end:
            _tell.say(next_look)
        elif found.keep_on:
            _tell.say(f"it is not ended: {found.keep_on}; {next_look}")
        else:
            _tell.say(f"{next_look}, and ending it if that says the same")

    def _end(self, job: subprocess.Popen[bytes], over: threading.Event) -> None:
        """End the job and all that it started here: SIGTERM to the command, and SIGKILL to what is left a minute later."""
        elsewhere = "" if self._following.local else "; what it started on other hosts is its launcher's to end"
        _tell.say(f"two looks say the same: the job is told to end (SIGTERM; SIGKILL in {END_GRACE_S:g} s){elsewhere}")
        children.adopt_orphans()  # what the command leaves behind comes to us
        until = time.monotonic() + END_GRACE_S
        job.terminate()
        while not over.wait(0.1) or children.descendants(os.getpid()):
            if time.monotonic() > until:
                children.kill_all(limit_s=5.0)
                return
            if over.is_set():
                time.sleep(0.1)
