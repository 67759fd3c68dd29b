"""Running the job: its output passed through and kept, looked at while it is silent, explained if it fails.

``preflight`` does so after a go, ``run`` without asking.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nccl_doctor.agent import children
from nccl_doctor.agent.job.processes import MARK
from nccl_doctor.cli import _tell
from nccl_doctor.cli._aside import aside, ourselves
from nccl_doctor.cli._guard import Following, Guard
from nccl_doctor.cli._keep import Keep
from nccl_doctor.cli._output import Kept, hand_on
from nccl_doctor.cli._signals import TO_END, handled_by
from nccl_doctor.facts import files
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.transport.descriptors import as_started

if TYPE_CHECKING:
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.findings.model import EnvAdvice
    from nccl_doctor.inventory import Inventory

LEFT_BEHIND_S = 5.0  # for the output of a job that has ended: what it left behind may hold it open for ever
CANNOT_RUN = 127  # as of a shell
EXPLAIN_LIMIT_S = 60.0  # what is kept is read in a few seconds, also on a busy machine
_TO_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's --signal before a time limit: the job's business


class Ended(msgspec.Struct, frozen=True):
    """How a job ended. ``told``: by a signal that this process got; ``hung``: ended because it stood.

    ``cause`` and ``title`` are those of the first cause that was found in its output; empty where none was. ``runs_on``: some
    of its ranks do; ``unseen``: hosts of which that is not known.
    """

    status: int
    told: bool = False
    hung: bool = False
    cause: str = ""
    title: str = ""
    runs_on: bool = False
    unseen: tuple[str, ...] = ()


def launch(
    command: list[str],
    advice: Iterable[EnvAdvice],
    inventory: Inventory,
    chosen: tuple[str, ...],
    following: Following,
    preflight: Bundle | None = None,
) -> Ended:
    """Run the command; its exit status (128 + signal where it was killed by one), or 127 where it cannot be run.

    The job finds the chosen hosts in NCCL_DOCTOR_HOSTS (comma list), NCCL_DOCTOR_HOSTFILE (the input's own format) and
    NCCL_DOCTOR_NNODES; in COMMAND the words {hosts}, {hostfile} and {nnodes} stand for them. By NCCL_DOCTOR_RUN its ranks are
    known. ``preflight`` is what chose the hosts, kept with what the job leaves.
    """
    from nccl_doctor.facts.bundle import to_bytes
    from nccl_doctor.inventory import render

    entries = [entry for entry in inventory.entries if entry.name in chosen]
    chosen = tuple(entry.name for entry in entries)  # in the order of the input: its first is the job's master
    try:
        place = tempfile.TemporaryDirectory(prefix="nccl-doctor-", ignore_cleanup_errors=True)
        hostfile = Path(place.name) / "hostfile"
        hostfile.write_text(render(entries, inventory.format), encoding="utf-8")
    except OSError as error:
        why = f"{error.strerror or error}; name a directory for them by TMPDIR"
        _tell.stop(f"the job's hostfile and the copy of its output have no place: {why}", ExitCode.INTERNAL_ERROR)
    with place as directory:
        words = {"hosts": ",".join(chosen), "hostfile": str(hostfile), "nnodes": str(len(chosen))}
        environment = dict(os.environ)
        for name, value in words.items():
            environment[f"NCCL_DOCTOR_{name.upper()}"] = value
        environment[MARK] = hostfile.parent.name  # a new one each time, and no other machine's
        for item in advice:
            if item.hosts and not set(item.hosts) & set(chosen):
                continue  # of hosts on which the job does not run: on the others it may name what they have not
            if item.unset:
                environment.pop(item.name, None)
            else:
                environment[item.name] = item.value
            _tell.say(f"{item.shell}   # {item.reason}")
        argv = [_filled(word, words) for word in command]
        kept = Kept(Path(directory))
        keep = Keep(following.keep, kept.directory, argv, environment, chosen)
        if preflight is not None:
            _tell.say(f"go: {shlex.join(argv)}")
            keep.add("preflight.ndb", lambda: to_bytes(preflight))
        guard = Guard(following, hostfile, chosen, environment[MARK], kept, keep)
        ended = _pass_through(argv, environment, kept, guard)
        if ended is None:
            return Ended(CANNOT_RUN)
        failed = ended.status not in (0, 130) and not ended.told
        if failed and not ended.hung:
            guard.recall()
            ended = _explain(kept, ended)
        if ended.status or ended.told:
            left, told = guard.left()
            ended = msgspec.structs.replace(ended, told=ended.told or told, runs_on=bool(left.told), unseen=left.unseen)
        if failed:
            keep.save(f"exit {ended.status}" + (": it hung, and --on-hang end ended it" if ended.hung else ""))
        if ended.hung:
            where = f"; kept in {keep.target}" if keep.target else ""
            _tell.say(f"the job hung: {guard.sentence}; ended, exit {ended.status}{where}")
        return ended


def _filled(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _pass_through(argv: list[str], environment: dict[str, str], kept: Kept, guard: Guard | None = None) -> Ended | None:
    """Run with this terminal's input; output goes on unchanged and is kept. Signals are passed on to the job. None: it cannot
    be run, which is said."""
    told: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object = None) -> None:
        told.append(number)
        for child in started:
            if number != signal.SIGINT or not _at_terminal():  # a terminal's Ctrl-C reaches the job by itself
                child.send_signal(number)

    def to_end() -> bool:
        return bool(set(told) & set(TO_END))

    with handled_by(pass_on, *TO_END, *_TO_PASS_ON):
        try:
            # A kill -9 of this process, which reads the job's output, tells the job to end: it could print no more.
            orphaned = children.die_with_parent(os.getpid(), signal.SIGTERM)

            def between_fork_and_exec() -> None:
                orphaned()
                as_started()

            child = subprocess.Popen(
                argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=between_fork_and_exec
            )
        except OSError as error:
            _tell.say(f"{argv[0]}: {error.strerror or error} (it, or what its first line names)")
            return None
        started.append(child)
        for number in tuple(told):  # came while it started
            child.send_signal(number)
        assert child.stdout is not None and child.stderr is not None
        with contextlib.suppress(OSError):
            sys.stdout.flush()  # what was told before stands before what the job prints
        copies = [
            threading.Thread(target=hand_on, args=(source, sink, kept), daemon=True)
            for source, sink in ((child.stdout, 1), (child.stderr, 2))
        ]
        for copy in copies:
            copy.start()
        over = threading.Event()
        threading.Thread(target=_tell_end, args=(child, over), daemon=True).start()
        hung = guard.follow(child, over) if guard else None
        over.wait(None if hung is None else 5.0)  # what cannot be killed (state D) is not waited for
        status = child.wait() if over.is_set() else 0
        until = time.monotonic() + LEFT_BEHIND_S
        for copy in copies:  # a reader that is slow gets all of it, as it would from the job
            while copy.is_alive() and (time.monotonic() < until or not (to_end() or kept.silent_s())):
                copy.join(0.05)
    if hung is not None:
        return Ended(int(hung), told=to_end(), hung=True)
    return Ended(128 - status if status < 0 else status, told=to_end())


def _tell_end(child: subprocess.Popen[bytes], over: threading.Event) -> None:
    children.wait_unreaped(child, None)
    over.set()


def _at_terminal() -> bool:
    """Whether a terminal sends its Ctrl-C to this process and to the job alike: not to what runs in the background."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _exit(status: int) -> str:
    with contextlib.suppress(ValueError):
        return f"exit {status} ({signal.Signals(status - 128).name})"
    return f"exit {status}"


def _explain(kept: Kept, job: Ended) -> Ended:
    """Say why the job failed, in a process of its own: the job's exit status must not wait for it for ever."""
    files = kept.files()
    lost = f" (as far as {kept.directory.parent} took it: {kept.lost})" if kept.lost else ""
    if not files:
        _tell.say(f"{_exit(job.status)}: the job failed and printed nothing{lost}: there is nothing to explain")
        return job
    _tell.say(f"{_exit(job.status)}: the job failed; its output{lost} says:")
    told: list[int] = []
    with handled_by(lambda number, _: told.append(number), *TO_END):
        options = {"stdout": sys.stderr.fileno(), "cwd": kept.directory}
        whole = aside(_explaining(files), EXPLAIN_LIMIT_S, lambda: bool(told), **options)
    if not whole:
        why = "told to end" if told else f"no end after {EXPLAIN_LIMIT_S:g} s"
        _tell.say(f"{why}: the job's output is not explained")
        return msgspec.structs.replace(job, told=bool(told))
    cause, title = _first_cause(kept.directory / "explanation.json")
    return msgspec.structs.replace(job, cause=cause, title=title)


def _explaining(files: list[str]) -> list[str]:
    """These files explained: told on standard output, and kept beside them as text and as JSON."""
    return ourselves("from nccl_doctor.cli.explain import keep; keep(sys.argv[1:])", *files)


class _Cause(msgspec.Struct):
    id: str
    title: str


class _Explanation(msgspec.Struct):
    verdict: str
    causes: tuple[_Cause, ...]


def _first_cause(path: Path) -> tuple[str, str]:
    """Id and title of the cause that decides; empty where the output was undecided, or not explained."""
    from nccl_doctor.explain.model import Verdict

    try:
        found = files.from_json(path.read_bytes(), _Explanation)
    except (OSError, msgspec.DecodeError):
        return "", ""
    decided = found.verdict in (Verdict.CAUSE_FOUND.value, Verdict.NOT_DISTRIBUTED.value)
    return (found.causes[0].id, found.causes[0].title) if decided and found.causes else ("", "")
