"""``run``, and what it shares with ``preflight``: the hang guard, what is kept, and which failure is worth another start."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import test_hang
import typer
from test_preflight_cli import preflight, running, saved
from typing_in import typed

from nccl_doctor import cli
from nccl_doctor.agent.job.processes import MARK
from nccl_doctor.cli import _guard, _keep, _launch
from nccl_doctor.cli._guard import Following, Guard
from nccl_doctor.cli._keep import Keep
from nccl_doctor.cli._output import Kept
from nccl_doctor.explain.files import explain_paths
from nccl_doctor.facts.model import Bundle, HostFacts, Plan, Reach, ReachOutcome
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.inventory import HostEntry, Inventory
from nccl_doctor.report.hang import render
from nccl_doctor.report.terminal import text_console
from nccl_doctor.rules.gate import Decision, Gate
from nccl_doctor.rules.judge import judge
from nccl_doctor.rules.retry import why_not
from nccl_doctor.rules.silence import Command, Left, Look, left, look
from nccl_doctor.transport.base import ConnectOptions

HERE = Inventory((HostEntry("a"),), format="local")
YOUNG_S, OLD_S = 700.0, 60.0  # a command that is older, or younger, than the ranks of 600 s in the bundles here


MINE = frozenset((100 + rank, rank) for rank in range(4))  # the ranks here, if this machine is theirs


def seen(bundle: Bundle, since_s: float = YOUNG_S, here: frozenset[tuple[int, int]] = MINE) -> Look:
    """What a look says of a command of this age, from which these processes descend."""
    return look(bundle, Command("m1", since_s, here))


def run(*words: str, cwd: Path | None = None, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "nccl_doctor", "run", *words]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, timeout=120, **more)


def test_the_options_of_a_command_are_its_own_also_without_the_dashes_before_it(tmp_path: Path) -> None:
    words = ("echo", "-H", "gpu[01-02]", "--silence", "soon", "--", "-x")
    assert run(*words).stdout == run("--silence", "5m", "--", *words).stdout == b"-H gpu[01-02] --silence soon -- -x\n"
    assert preflight(tmp_path, "--from", saved(tmp_path), "echo", "--from", "me").stdout.endswith("\n--from me\n")


# -- the job that was seen


def test_two_looks_at_one_rank_that_holds_the_others_are_equal() -> None:
    away = test_hang.process(3, test_hang.OWN)
    one = seen(test_hang.bundle(*test_hang.four(r3=away)))
    two = seen(test_hang.bundle(*test_hang.four(r3=away)), YOUNG_S + 600)
    assert one.answer.verdict == "held" and one.key and one.key == two.key and not one.keep_on
    other = seen(test_hang.bundle(*test_hang.four(r2=test_hang.process(2, test_hang.OWN))))
    assert other.answer.verdict == "held" and other.key != one.key


def test_a_job_in_which_all_wait_may_be_ended_and_one_that_moves_has_no_key() -> None:
    stands = seen(test_hang.bundle(*test_hang.four()))
    assert (stands.answer.verdict, bool(stands.key), stands.keep_on) == ("stands", True, "")
    busy = [test_hang.reading("R", cpu_s=1.0), test_hang.reading("R", cpu_s=4.0)]
    work = (test_hang.process(rank, test_hang.OWN, readings=busy) for rank in range(1, 4))
    early = seen(test_hang.bundle(test_hang.process(0), *work))  # rank 0 alone waits, for those who compute
    assert (early.answer.verdict, early.key) == ("not-known", ())
    lines = ([("load", "/job/data.py", rank)] for rank in range(1, 4))
    apart = seen(test_hang.bundle(test_hang.process(0), *map(test_hang.process, range(1, 4), lines)))
    assert (apart.answer.verdict, apart.keep_on) == ("stands", "ranks 1-3 are elsewhere, and may come")
    ranks = test_hang.four()
    for item in ranks:
        item["connections"] = [{**one, "moved_bytes": 1 << 20} for one in item["connections"]]
    moves = seen(test_hang.bundle(*ranks))
    assert (moves.answer.verdict, moves.key) == ("moves", ())


def test_a_job_that_ran_before_the_command_is_not_the_commands() -> None:
    away = test_hang.process(3, test_hang.OWN)
    found = seen(test_hang.bundle(*test_hang.four(r3=away)), OLD_S, frozenset())
    assert (found.answer.verdict, found.key, found.answer.ranks) == ("not-known", (), ())
    assert found.answer.sentence == "no rank of this command was found, only of others: gpu01:29500"


def two_jobs(mark: str = "", **others: Any) -> Bundle:
    """One that rank 3 holds, and beside it another, at port 29999, that rank 2 holds."""
    second = test_hang.four(r2=test_hang.process(2, test_hang.OWN))
    for number, item in enumerate(second):
        item.update(pid=500 + number, rank_pid=500 + number, start_ticks=500 + number, **others)
        item["environment"].update({"MASTER_PORT": "29999"}, **({MARK: mark} if mark else {}))
    return test_hang.bundle(*test_hang.four(r3=test_hang.process(3, test_hang.OWN)), *second)


def test_among_several_jobs_it_is_the_one_that_the_command_started() -> None:
    """By its mark, also where the other one is younger; by descent; else by what it cannot be."""
    for since_s in (YOUNG_S, OLD_S):
        for found in (seen(two_jobs("m1"), since_s, frozenset()), seen(two_jobs(), since_s, frozenset({(501, 501)}))):
            assert found.answer.jobs[0].id == "gpu01:29999" and found.key[-1] == 2 and not found.keep_on
            assert [item.rank for item in found.answer.ranks] == [0, 1, 2, 3]
    neither = seen(two_jobs(), here=frozenset())
    assert neither.answer.verdict == "several-jobs" and not neither.key
    assert "2 jobs may be this command's: `nccl-doctor hang --job ID` looks at one (gpu01:29" in neither.answer.sentence
    for other in (two_jobs("m2"), two_jobs(age_s=9_000.0)):
        found = seen(other, here=frozenset())
        assert found.answer.verdict == "held" and found.answer.jobs[0].id == "gpu01:29500"


def test_of_torchruns_that_wait_only_the_commands_own_are_told() -> None:
    """Beside a job of others, and beside torchruns of others."""
    waiting = test_hang.torchruns("nnodes=3 rdzv-endpoint=gpu01:29400")
    (launcher,) = waiting.hosts[0].probes["job"].data["processes"]
    for mark, verdict in (("m1", "stands"), ("", "stands"), ("m2", "no-job")):
        launcher["environment"] = {MARK: mark} if mark else {}
        found = seen(waiting, here=frozenset())
        assert found.answer.verdict == verdict and (not found.key or found.keep_on)
        beside = test_hang.bundle(*(marked(rank, "m2") for rank in range(4)))
        beside.hosts[0].probes["job"].data["processes"].append(launcher)
        found = seen(beside, here=frozenset())
        assert found.answer.verdict == ("not-known" if mark == "m2" else "held"), found.answer.sentence
        assert ("torchrun on gpu01 waits" in found.answer.sentence) == (mark != "m2")
        assert not found.key or found.keep_on


def test_a_number_of_a_process_that_started_at_another_time_is_another_process() -> None:
    assert not seen(two_jobs(), here=frozenset({(501, 77)})).key


SAVE = [("save", "/opt/env/lib/python3.11/site-packages/torch/serialization.py", 800), *test_hang.OWN]
LOAD = [("load", "/opt/env/lib/python3.11/site-packages/torch/serialization.py", 900), *test_hang.OWN]


@pytest.mark.parametrize(
    ("stack", "readings"),
    [
        (SAVE, [test_hang.reading()] * 2),
        (LOAD, [test_hang.reading()] * 2),
        (test_hang.OWN, [test_hang.reading(cpu_s=1.0), test_hang.reading(cpu_s=3.9)]),
        (test_hang.OWN, [test_hang.reading(written_bytes=0), test_hang.reading(written_bytes=5 << 20)]),
        (test_hang.OWN, [test_hang.reading(read_bytes=0), test_hang.reading(read_bytes=5 << 20)]),
        (test_hang.OWN, [test_hang.reading("D", waits_in="folio_wait_bit")] * 2),
        (test_hang.OWN, [test_hang.reading(dumps_core=True)] * 2),
    ],
    ids=["saving", "loading", "computes", "writes", "reads", "in-the-kernel", "dumps-its-core"],
)
def test_a_rank_that_works_may_come_by_itself_and_its_job_is_not_ended(stack: Any, readings: Any) -> None:
    away = test_hang.process(0, stack, readings=readings)
    found = seen(test_hang.bundle(*test_hang.four(r0=away)))
    assert found.answer.verdict == "held" and found.key
    assert found.keep_on == "rank 0 (pid 100) works (it computes, reads or writes), and may come by itself"


def test_so_is_one_that_fetches_something() -> None:
    away = test_hang.process(0, test_hang.OWN)
    away["connections"].append({**away["connections"][0], "peer": "10.9.9.9:443", "moved_bytes": 80 << 20})
    found = seen(test_hang.bundle(*test_hang.four(r0=away)))
    assert found.answer.verdict == "held" and found.keep_on


def test_so_is_one_whose_child_works() -> None:
    away = test_hang.process(1, test_hang.POPEN)
    shell = {"pid": 900, "start_ticks": 900, "parent": 101, "role": "child", "rank_pid": 101, "connections": []}
    busy = [test_hang.reading(cpu_s=0.0), test_hang.reading(cpu_s=2.9)]
    child = {**test_hang.process(1), **shell, "stacks": [None, None], "readings": busy}
    assert seen(test_hang.bundle(*test_hang.four(r1=away), child)).keep_on
    assert not seen(test_hang.bundle(*test_hang.four(r1=away))).keep_on


def test_a_rank_that_was_not_seen_may_be_at_work() -> None:
    """As of ``torchrun --nnodes 2`` that is followed on each node by itself: here all wait, and the other one saves."""
    whole = test_hang.bundle(*test_hang.four())
    found = seen(msgspec.structs.replace(whole, hosts=whole.hosts[:1]))
    assert found.answer.verdict == "stands" and found.key
    assert found.keep_on == "ranks 2-3 were not seen, and may be at work"
    ranks = test_hang.four()
    for item in ranks:
        del item["environment"]["WORLD_SIZE"]
    assert seen(test_hang.bundle(*ranks)).keep_on.startswith("how many ranks it has is not known")
    gone = seen(test_hang.bundle(*test_hang.four()[:3]))
    assert gone.answer.report.causes[0].id == "hang.rank-gone" and not gone.keep_on


def test_a_job_that_is_the_commands_by_its_age_alone_is_told_and_not_ended() -> None:
    """Another user's, started on the same hosts while this one's ranks are still to come, is as young."""
    found = seen(test_hang.bundle(*test_hang.four()), here=frozenset())
    assert found.answer.verdict == "stands" and found.key
    assert found.keep_on == "no rank was found that is surely this command's"


def test_a_job_without_ranks_is_not_said_to_have_ended() -> None:
    """It runs: the hint to its logs is for who looks by hand."""
    found = seen(test_hang.bundle())
    assert found.answer.verdict == "no-job" and not found.key and "ended" not in found.answer.sentence
    text = io.StringIO()
    render(found.answer, text_console(text))
    assert "if it has ended, nccl-doctor explain reads its logs" in text.getvalue()


def test_where_no_host_was_reached_nothing_is_said_to_stand() -> None:
    lost = HostFacts("gpu01", Reach(ReachOutcome.TIMED_OUT), {})
    bundle = msgspec.structs.replace(test_hang.bundle(), hosts=(lost,), plan=Plan(stages=("job",)))
    found = seen(bundle)
    assert found.answer.verdict == "not-known" and int(found.answer.exit_code) == 3 and not found.key


# -- what it leaves running


def marked(rank: int, mark: str = "m1", **more: Any) -> dict[str, Any]:
    process = test_hang.process(rank, **more)
    process["environment"][MARK] = mark
    return process


def ran_on(*processes: dict[str, Any], since_s: float = YOUNG_S, lost: str = "", doubtful: bool = True) -> Left:
    bundle = test_hang.bundle(*processes)
    hosts = tuple(
        msgspec.structs.replace(host, reach=Reach(ReachOutcome.TIMED_OUT), probes={}) if host.name == lost else host
        for host in bundle.hosts
    )
    return left(msgspec.structs.replace(bundle, hosts=hosts), Command("m1", since_s), doubtful=doubtful)


def test_what_runs_on_is_told_by_host_rank_and_pid() -> None:
    torchrun = marked(2, pid=90, role="launcher", script="torchrun")
    ended = marked(1, readings=[test_hang.reading(), None])
    found = ran_on(marked(0), ended, torchrun, marked(2), marked(3))
    assert found == Left(
        (
            "rank 0 still runs on gpu01; to end it, there: kill 100",
            "ranks 2-3 and torchrun still run on gpu02; to end them, there: kill 90 102 103",
        ),
    )
    spawned = [marked(rank) for rank in (0, 1)]
    for process in spawned:
        del process["environment"]["RANK"]
    assert ran_on(*spawned).told == ("2 ranks still run on gpu01; to end them, there: kill 100 101",)


def test_what_another_command_started_or_ran_before_is_none_of_it() -> None:
    assert not ran_on(marked(0, "m2"), test_hang.process(2, age_s=9_000.0)).told
    assert not ran_on(test_hang.process(2), since_s=OLD_S).told
    assert not ran_on(test_hang.process(2, namespace="net:[77]")).told and ran_on(marked(2, namespace="net:[77]")).told


def test_what_may_be_the_commands_is_told_as_that_and_hosts_that_were_not_seen_are_named() -> None:
    found = ran_on(marked(0), test_hang.process(2), lost="gpu01")
    assert found.unseen == ("gpu01",)
    assert found.told == (
        "rank 2 still runs on gpu02, and may be this command's (without NCCL_DOCTOR_RUN in its environment nobody can"
        " tell); to end it, there: kill 102",
    )
    assert not ran_on(marked(0), test_hang.process(2), lost="gpu01", doubtful=False).told


def test_each_start_has_a_mark_of_its_own() -> None:
    marks = [run("--", "sh", "-c", f"echo ${MARK}").stdout.strip() for _ in range(2)]
    assert all(marks) and marks[0] != marks[1]


def test_a_rank_that_outlives_its_command_is_named_and_waited_for(tmp_path: Path) -> None:
    """Nothing is done to it; it ends here because it wants to."""
    end, pid = tmp_path / "end", tmp_path / "pid"
    program = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.02)"
    script = f'RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "$0" -c "$1" >&- 2>&- & echo $! > {pid}; exit 3'
    command = [sys.executable, "-m", "nccl_doctor", "run", "--", "sh", "-c", script, sys.executable, program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = ""
            while "waiting up to" not in told and (line := process.stderr.readline()):
                told += line
        finally:
            end.touch()
        process.stderr.read()
    assert process.returncode == 3
    assert re.search(
        rf"nccl-doctor: rank 1 still runs on \S+; to end it, there: kill {pid.read_text().strip()}\n", told
    )


def left_by(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *seen: Bundle | Exception | int | None,
    local: bool = False,
    kept: bool = False,
) -> tuple[Left, bool]:
    """What a guard says of these looks, one after the other, at a job that bears the mark m1. A number: of a signal that comes
    meanwhile."""
    looks = list(seen)
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)

    def see(guard: Guard, name: str, *_: object) -> Bundle | None:
        (place / name).touch()
        found = looks.pop(0) if looks else pytest.fail("one look too many")
        if isinstance(found, Exception):
            raise found
        if isinstance(found, int):
            os.kill(os.getpid(), found)
            return None
        return found

    monkeypatch.setattr(Guard, "_see", see)
    monkeypatch.setattr(_guard.time, "sleep", lambda _: None)
    monkeypatch.setattr(_guard, "bearing", lambda mark: [1])
    following = Following(ways=(), local=local)
    keep = Keep(tmp_path / "keep" if kept else None, place, ["true"], {}, ())
    guard = Guard(following, place / "hostfile", ("gpu01", "gpu02"), "m1", None, keep)  # type: ignore[arg-type]
    guard._started -= YOUNG_S
    found = guard.left()
    keep.save("exit 1")
    return found


def test_ranks_that_end_by_themselves_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs, over = test_hang.bundle(marked(0)), test_hang.bundle()
    assert left_by(monkeypatch, tmp_path, runs, runs, over) == (Left(), False)
    told = capfd.readouterr().err
    assert told.count("rank 0 still runs on gpu01") == 1 and told.endswith("nccl-doctor: it has ended\n")
    assert left_by(monkeypatch, tmp_path, over) == (Left(), False) and not capfd.readouterr().err
    found, told_to_end = left_by(monkeypatch, tmp_path, runs, signal.SIGINT)
    assert found.told and told_to_end  # whoever is at the terminal has seen enough
    monkeypatch.setattr(_guard, "LEFT_WAIT_S", 0.0)
    assert left_by(monkeypatch, tmp_path, runs, runs, kept=True)[0].told
    (kept,) = (tmp_path / "keep").iterdir()
    assert {path.name for path in kept.iterdir()} == {
        "job.json",
        "left.txt",
    }  # no bundle: `explain` reads those as causes
    assert (kept / "left.txt").read_text() == "rank 0 still runs on gpu01; to end it, there: kill 100\n"


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("no-such-word", 127), ("exit 0", 0)])
def test_it_is_looked_for_where_the_command_failed(script: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "left", lambda _: (Left(("rank 0 still runs",), ("b",)), True))
    ended = _launch.launch(["sh", "-c", script], (), HERE, ("a",), Following())
    assert ended.status == status
    assert (ended.told, ended.runs_on, ended.unseen) == ((True, True, ("b",)) if status else (False, False, ()))


def test_what_could_not_be_looked_at_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for trouble in (None, RuntimeError("a defect")):
        assert left_by(monkeypatch, tmp_path, trouble) == (Left(unseen=("gpu01", "gpu02")), False)
        assert "whether any rank still runs on gpu[01-02] is not known" in capfd.readouterr().err


def test_on_this_machine_what_others_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beside = test_hang.bundle(test_hang.process(0))
    assert left_by(monkeypatch, tmp_path, beside, local=True) == (Left(), False)
    monkeypatch.setattr(_guard, "LEFT_WAIT_S", 0.0)
    assert left_by(monkeypatch, tmp_path, beside, beside)[0].told


# -- the guard

HELD = seen(test_hang.bundle(*test_hang.four(r3=test_hang.process(3, test_hang.OWN))))
STANDS = seen(test_hang.bundle(*test_hang.four()))
UNKNOWN = seen(test_hang.bundle(*test_hang.four()), OLD_S, frozenset())
WORKS = msgspec.structs.replace(HELD, keep_on="rank 3 works")


def guarded(
    tmp_path: Path,
    script: str,
    answers: list[Look | Exception],
    *,
    end: bool = True,
    grace_s: float = 20.0,
    until: str = "",
) -> tuple[_launch.Ended, int, str, str]:
    """A command under a guard whose looks give these answers, the last one again and again, in a process of its own (it
    becomes the parent of orphans): how it ended, how many looks there were, and what was printed. Each look leaves a file
    ``look-N``; ``until``: it lasts until the job has printed something (``heard``), or ended (``over``)."""
    order = pickle.dumps((tmp_path, script, answers, end, grace_s, until))
    words = [sys.executable, "-c", "import test_run; test_run.guarded_here()"]
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(words, input=order, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    ended, looks = json.loads((tmp_path / "ended").read_text())
    return msgspec.convert(ended, _launch.Ended), looks, done.stdout.decode(), done.stderr.decode()


def guarded_here() -> None:
    """The other half of it."""
    tmp_path, script, answers, end, grace_s, until = pickle.load(sys.stdin.buffer)  # noqa: S301 - from ourselves
    looks = 0

    def answer(guard: Guard, over: threading.Event, heard: float) -> Look:
        nonlocal looks
        looks += 1
        (tmp_path / f"look-{looks}").touch()
        if until == "over" and looks == 2:
            over.wait()
        while until == "heard" and guard._output.heard == heard and not over.wait(0.01):
            pass
        found = answers[min(looks, len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Look)
        return found

    Guard._look = answer  # type: ignore[method-assign]
    _guard.END_GRACE_S = grace_s
    place = tmp_path / "place"
    place.mkdir()
    kept = Kept(place)
    following = Following(silence_s=0.2, end=end, keep=tmp_path / "keep", local=True)
    keep = Keep(following.keep, place, ["sh", "-c", script], {}, ("a",))
    guard = Guard(following, place / "hostfile", ("a",), "m1", kept, keep)
    ended = _launch._pass_through(["sh", "-c", script], dict(os.environ), kept, guard)
    (tmp_path / "ended").write_bytes(msgspec.json.encode((ended, looks)))


def test_a_job_that_two_looks_find_held_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"trap '' TERM; (trap '' TERM; sleep 600) & echo $! > {tmp_path}/child; wait; wait"
    ended, looks, _, told = guarded(tmp_path, script, [HELD], grace_s=0.5)
    assert ended == _launch.Ended(int(ExitCode.FINDINGS), hung=True) and looks == 2
    assert _is_gone(tmp_path / "child")
    assert told.count("✗ HELD") == 1 and "as before: HELD: gpu02: rank 3" in told
    assert "and ending it if that says the same" in told and "two looks say the same: the job is told to end" in told
    (directory,) = (tmp_path / "keep").iterdir()
    assert {"job.json", "job-output", "hang-0.txt"} <= {path.name for path in directory.iterdir()}


def _is_gone(told: Path) -> bool:
    try:
        return Path(f"/proc/{told.read_text().strip()}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_job_that_stands_and_ends_at_sigterm_is_12(tmp_path: Path) -> None:
    script = f"sh -c 'echo $$ > {tmp_path}/child; exec sleep 600' & wait"  # an orphan, once the command has ended
    ended, looks, _, _ = guarded(tmp_path, script, [HELD, STANDS], grace_s=1.0)
    assert ended == _launch.Ended(int(ExitCode.UNDECIDED), hung=True) and looks == 3 and _is_gone(tmp_path / "child")


def test_who_is_told_to_end_while_it_ends_a_job_is_not_to_start_another(tmp_path: Path) -> None:
    script = "trap 'trap \"\" TERM; kill -TERM $PPID; kill $!; exit 0' TERM; sleep 600 & wait"
    ended, *_ = guarded(tmp_path, script, [HELD])
    assert ended == _launch.Ended(int(ExitCode.FINDINGS), told=True, hung=True)


def test_a_rank_that_worked_at_one_of_the_two_looks_is_looked_at_again(tmp_path: Path) -> None:
    ended, looks, _, told = guarded(tmp_path, "exec sleep 600", [WORKS, HELD, HELD])
    assert (ended.hung, looks) == (True, 3) and "it is not ended: rank 3 works; looking again after" in told


@pytest.mark.parametrize(
    ("answers", "end"),
    [([HELD], False), ([WORKS], True), ([UNKNOWN], True), ([RuntimeError("a defect")], True)],
    ids=["not-asked-for", "works", "not-known", "a-defect-of-ours"],
)
def test_nothing_else_ends_a_job(answers: list[Look | Exception], end: bool, tmp_path: Path) -> None:
    ended, looks, _, told = guarded(tmp_path, wait_for(tmp_path / "look-2") + "exit 7", answers, end=end)
    assert ended == _launch.Ended(7) and looks >= 2
    assert "told to end" not in told and "looking again after" in told
    if answers == [UNKNOWN]:
        assert "NOT KNOWN: no rank of this command" in told and not (tmp_path / "keep").exists()


def test_output_starts_the_silence_anew(tmp_path: Path) -> None:
    """A progress bar that rewrites its line is output as well: three silences, a look in each, and no two of one."""
    script = "".join(wait_for(tmp_path / f"look-{number}") + f"printf '\\r{number}'; " for number in (1, 2, 3))
    ended, looks, out, told = guarded(tmp_path, script + "exit 3", [HELD], until="heard")
    assert (ended.status, out) == (3, "\r1\r2\r3") and looks >= 3 and "as before" not in told


def test_a_job_that_ends_while_it_is_judged_has_its_own_exit_code(tmp_path: Path) -> None:
    ended, _, _, told = guarded(tmp_path, wait_for(tmp_path / "look-2") + "exit 0", [HELD], until="over")
    assert ended == _launch.Ended(0) and "told to end" not in told


def test_after_a_job_was_suspended_two_looks_are_as_far_apart_as_ever(tmp_path: Path) -> None:
    """Slurm stops a suspended job and us alike: afterwards hours have passed without a word."""
    waited: list[float] = []

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return len(waited) > 1

    class Silent(Kept):
        def silent_s(self) -> float:
            return 3600.0 if waited else 0.0

    guard = Guard(
        Following(silence_s=60.0, end=True),
        tmp_path,
        ("a",),
        "m1",
        Silent(tmp_path),
        Keep(None, tmp_path, ["true"], {}, ()),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Guard, "_look", lambda *_: HELD)
        assert guard.follow(None, Over()) is None  # type: ignore[arg-type]
    assert waited == [60.0, 3600.0]


def wait_for(file: Path) -> str:
    return f"until [ -e '{file}' ]; do sleep 0.02; done; "


def test_a_job_that_waits_for_its_reader_is_not_silent(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.heard -= 100
    assert kept.silent_s() >= 100
    with kept.handing_on():
        assert kept.silent_s() == 0
    assert kept.silent_s() < 100


def test_a_look_uses_the_ways_that_the_command_was_given() -> None:
    ssh = ConnectOptions(python="/opt/py", env_setup="source x", ssh_config="/etc/x", connect_s=3, fan_out=2)
    group: Any = cli.typer.main.get_command(cli.app)
    for connect in (ssh, ConnectOptions(transport="local"), ConnectOptions(transport="command=env H={host}")):
        ways = _guard.following("10m", "tell", None, connect).ways
        taken = group.commands["hang"].make_context("hang", list(ways)).params
        transport = "" if connect.transport == "local" else connect.transport
        assert (taken["transport"], taken["python"]) == (transport, connect.python)
        assert (taken["connect_timeout"], taken["fan_out"]) == (connect.connect_s, connect.fan_out)
        assert (taken["env_setup"], str(taken["ssh_config"] or "")) == (connect.env_setup, connect.ssh_config)


def test_a_look_that_gives_no_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def say(message: str) -> None:
        said.append(message)
        if "no answer" in message:
            (tmp_path / "told").touch()

    monkeypatch.setattr(_guard._tell, "say", say)
    monkeypatch.setattr(_guard, "ourselves", lambda *_: ["sh", "-c", "echo no such host; exit 2"])
    job = ["sh", "-c", wait_for(tmp_path / "told") + "exit 3"]
    assert _launch.launch(job, (), HERE, ("a",), Following(silence_s=0.2, local=True)).status == 3
    assert "the look gave no answer: no such host" in said


def test_a_look_ends_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    looking = f"(echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600) & wait"
    monkeypatch.setattr(_guard, "ourselves", lambda *_: ["sh", "-c", looking])
    job = ["sh", "-c", wait_for(pid) + "exit 0"]
    assert _launch.launch(job, (), HERE, ("a",), Following(silence_s=0.2, local=True)).status == 0
    until = time.monotonic() + 60
    while running(int(pid.read_text())):  # its whole session: killed, it may take a moment to go
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_job_that_was_held_and_then_failed_is_reminded_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def held(*_: object) -> Look:
        (tmp_path / "looked").touch()
        return HELD

    monkeypatch.setattr(Guard, "_look", held)
    job = ["sh", "-c", wait_for(tmp_path / "looked") + "echo RuntimeError: boom; exit 3"]
    assert _launch.launch(job, (), HERE, ("a",), Following(silence_s=0.2, local=True)).status == 3
    told = capfd.readouterr().err
    assert re.search(r"the last look at it, \d+ s before its end: HELD: gpu02: rank 3 \(pid 103\)", told), told


# -- what is kept


def test_a_failure_is_kept_with_its_explanation_and_without_secrets(tmp_path: Path) -> None:
    environment = {**os.environ, "NCCL_DEBUG": "WARN", "SLURM_JWT": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter3"}
    script = "echo 'RuntimeError: CUDA error: an illegal memory access was encountered' >&2; echo; exit 9"
    for _ in range(2):
        done = run("--keep", "out", "--", "sh", "-c", script, "--token=hunter4", cwd=tmp_path, env=environment)
        assert done.returncode == 9 and done.stdout == b"\n"
    assert b"kept in " in done.stderr and b"explanation.txt (" in done.stderr
    one, two = sorted((tmp_path / "out").iterdir())  # an earlier one is never written to
    for directory in (one, two):
        assert directory.stat().st_mode & 0o777 == 0o700
        names = {path.name for path in directory.iterdir()}
        assert names == {"job.json", "job-output", "explanation.txt", "explanation.json", "hostfile"}
        assert "illegal memory access" in (directory / "explanation.txt").read_text()
        assert json.loads((directory / "explanation.json").read_text())["causes"][0]["id"] == "gpu.illegal-access"
    again = explain_paths([str(one)])  # all of it together: what was said of the job is not heard as the job
    assert {item.source for cause in again.causes for item in cause.evidence} == {str(one / "job-output")}
    assert again.read.files == 2 and (one / "hostfile").exists()
    job = json.loads((two / "job.json").read_text())
    assert job["state"] == "exit 9" and job["environment"]["NCCL_DEBUG"] == "WARN" and job["command"][0] == "sh"
    assert "hunter" not in (two / "job.json").read_text()


def test_the_last_line_of_a_job_that_was_ended_says_why_and_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def ended(argv: list[str], environment: object, kept: object, guard: Guard) -> _launch.Ended:
        guard._tell(HELD, same=False, next_look="")
        return _launch.Ended(int(ExitCode.FINDINGS), hung=True)

    monkeypatch.setattr(_launch, "_pass_through", ended)
    following = Following(silence_s=60, end=True, keep=tmp_path / "out", local=True)
    assert _launch.launch(["true"], (), HERE, ("a",), following).hung
    (directory,) = (tmp_path / "out").iterdir()
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == f"nccl-doctor: the job hung: {HELD.answer.sentence}; ended, exit 11; kept in {directory}"
    assert HELD.answer.sentence.startswith("gpu02: rank 3 (pid ")
    job = json.loads((directory / "job.json").read_text())
    assert job["state"] == "exit 11: it hung, and --on-hang end ended it"


def test_how_it_ended_is_told_and_a_word_that_its_shell_did_not_find_is_a_failure_like_others(tmp_path: Path) -> None:
    for script, told in (("exit 3", "exit 3"), ("kill -9 $$", "exit 137 (SIGKILL)"), ("no-such-word", "exit 127")):
        done = run("--keep", "out", "--", "sh", "-c", f"echo; {script}", cwd=tmp_path)
        assert f"nccl-doctor: {told}: the job failed; its output says:" in done.stderr.decode()
    assert done.returncode == 127 and len(list((tmp_path / "out").iterdir())) == 3


def test_words_that_are_not_utf_8_are_kept_as_well(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"run\xff")
    odd.mkdir()
    environment = {**os.environb, b"NCCL_DEBUG_FILE": b"a\xff"}
    done = run("--keep", "out", "--", "sh", "-c", "exit 9", os.fsdecode(b"b\xff"), cwd=odd, env=environment)
    assert done.returncode == 9, done.stderr
    (directory,) = (odd / "out").iterdir()
    job = json.loads((directory / "job.json").read_text())
    assert (job["command"][-1], job["environment"]["NCCL_DEBUG_FILE"]) == ("b\\xff", "a\\xff")
    assert job["directory"].endswith("run\\xff")


def test_a_job_that_ends_well_or_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    assert run("--keep", "out", "--", "true", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "out").exists()


def test_a_full_disk_loses_the_copy_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half of")
        if source.name == "job-output":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(_keep.shutil, "copyfile", full)
    following = Following(keep=tmp_path / "out")
    assert _launch.launch(["sh", "-c", "echo x; exit 7"], (), HERE, ("a",), following).status == 7
    (directory,) = (tmp_path / "out").iterdir()
    assert sorted(path.name for path in directory.iterdir()) == [
        "explanation.json",
        "explanation.txt",
        "hostfile",
        "job.json",
    ]
    assert "; without job-output: No space left on device" in capfd.readouterr().err
    (tmp_path / "file").touch()
    following = Following(keep=tmp_path / "file" / "out")
    assert _launch.launch(["sh", "-c", "exit 7"], (), HERE, ("a",), following).status == 7
    assert "nothing is kept" in capfd.readouterr().err


# -- the command


def test_output_input_and_exit_code_are_the_commands_own() -> None:
    noise = bytes(range(256)) * 300
    done = run("--", "sh", "-c", "cat; printf '\\377\\0err' >&2", stdin=noise)
    assert (done.returncode, done.stdout, done.stderr) == (0, noise, b"\xff\x00err")
    assert run("--", "sh", "-c", "kill -SEGV $$").returncode == 139
    assert (
        run("-H", "a,b", "--", "sh", "-c", 'echo $1 $2; cat "$3"', "x", "{nnodes}", "{hosts}", "{hostfile}").stdout
        == b"2 a,b\na\nb\n"
    )


@pytest.mark.parametrize("blocking", [True, False], ids=["slow", "does-not-block"])
def test_a_reader_that_is_slow_gets_all_of_it(blocking: bool) -> None:
    """What a pipe does not hold is still to be handed on when the job has ended."""
    program = "from nccl_doctor.cli import _launch, main; _launch.LEFT_BEHIND_S = 0.1; main()"
    words = ["run", "--", "sh", "-c", "seq 1 20000; echo done >&2; exit 5"]
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    with subprocess.Popen([sys.executable, "-c", program, *words], stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        assert process.stderr is not None and process.stderr.readline() == b"done\n"
        time.sleep(1.0)  # for what would not wait for the reader
        with open(read, "rb") as reader:
            assert reader.read() == b"".join(b"%d\n" % number for number in range(1, 20001))
        process.stderr.read()
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("to", "why"), [("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor"), ("| true", "")]
)
def test_output_that_nobody_takes_changes_no_exit_code(to: str, why: str, tmp_path: Path) -> None:
    command = (
        f"{{ {sys.executable} -m nccl_doctor run -- sh -c 'seq 1 20000; exit 5'; echo $? > {tmp_path}/code; }} {to}"
    )
    told = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=120).stderr
    assert (tmp_path / "code").read_text() == "5\n"
    assert told.count("output of the job cannot be handed on") == bool(why) and why in told


def test_what_cannot_be_told_is_kept(tmp_path: Path) -> None:
    """A terminal that has gone takes nothing, as a full disk."""
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "nccl_doctor", "run", "--keep", "out", "--", "sh", "-c", "echo Error; exit 5"]
        assert subprocess.run(command, cwd=tmp_path, stderr=full, timeout=120).returncode == 5
    assert len(list((tmp_path / "out").glob("*/explanation.*"))) == 2


def test_what_is_ignored_stays_ignored_for_the_job() -> None:
    """Under nohup the terminal may go."""
    asked = "grep SigIgn /proc/self/status"
    done = subprocess.run(
        ["nohup", sys.executable, "-m", "nccl_doctor", "run", "--", "sh", "-c", asked], capture_output=True
    )
    assert int(done.stdout.split()[1], 16) & 1 << (signal.SIGHUP - 1)


def test_a_signal_before_the_time_limit_reaches_the_job_and_is_no_end(tmp_path: Path) -> None:
    """Slurm's --signal goes to the batch script, or to every process of a step: it must not end this one."""
    script = "trap 'echo saved; exit 5' USR1; echo ready; while :; do sleep 0.1; done"
    command = [sys.executable, "-m", "nccl_doctor", "run", "--keep", str(tmp_path / "out"), "--", "sh", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "saved\n") and "the job failed; its output says" in err
    assert not running(process.pid)


@pytest.mark.parametrize("background", [False, True], ids=["ctrl-c", "background"])
def test_an_interrupt_reaches_the_job_once(background: bool, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to both; ``kill -INT`` of what runs in its background reaches this process alone."""
    end = tmp_path / "end"
    script = f"trap 'echo int' INT; n=$(seq 600); echo ready; for i in $n; do [ -e '{end}' ] && exit 5; sleep 0.1; done"
    job = [sys.executable, "-m", "nccl_doctor", "run", "--", "sh", "-c", script]
    shell = f'"$@" & echo $! > {tmp_path}/pid; wait $!' if background else 'exec "$@"'
    main, side = os.openpty()
    with subprocess.Popen(
        ["bash", "-c", f"set -m; {shell}", "x", *job], stdin=side, stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(side, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        if background:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
        else:
            os.write(main, b"\x03")
        assert process.stdout.readline() == "int\n"
        end.touch()
        assert process.stdout.read() == ""
    assert process.returncode == 5
    os.close(main)
    os.close(side)


def test_a_job_that_leaves_a_daemon_behind_is_not_waited_for(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo started"
    started = time.monotonic()
    done = run("--", "sh", "-c", script)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it lives: it is none of our business
    assert (done.returncode, done.stdout) == (0, b"started\n") and time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run -- no-such-program", "'no-such-program' is no program"),
        ("run -- /etc/passwd", "a script, behind --, needs its interpreter before it"),
        ("run --silence soon -- true", "--silence 'soon': expected a time such as 10m or 90s (0: off)"),
        ("run --silence 0 --on-hang end -- true", "--on-hang end needs to look"),
        ("run --on-hang kill -- true", "'kill' is not one of tell, end"),
        ("run --keep /dev/null -- true", "--keep /dev/null: /dev/null is no directory"),
        ("run --keep /proc/x -- true", "--keep /proc/x: /proc cannot be written to: "),
        ("run --hosts /no/such -- true", "/no/such: cannot be read"),
        ("run", "Missing argument"),
        ("preflight --retries 2", "--retries: of a COMMAND that is run, and there is none"),
        ("preflight --from x.ndb --retries 2 --silence 5m -- true", "nothing is measured: --silence, --retries would"),
    ],
)
def test_bad_input_is_a_clear_error_and_nothing_is_run(words: str, told: str) -> None:
    done = typed(words, env={"COLUMNS": "200"})
    assert done.exit_code == ExitCode.USAGE and told in done.output, done.output


# -- another start


def test_what_would_fail_again_says_so_in_its_playbook() -> None:
    for cause in ("app.rank-exception", "unrelated", "launch.env-missing", "app.collective-mismatch"):
        assert why_not(cause, "the title").startswith(f"the title ({cause}): this is the program's own"), cause
    for cause in ("", "gpu.ecc.uncorrectable", "net.peer-lost", "sys.node-failure", "gpu.oom", "no.such.cause"):
        assert not why_not(cause, "the title"), cause
    repeats = {name for name in playbooks.names() if playbooks.load(name).repeats}
    assert {name.partition(".")[0] for name in repeats} == {"app", "launch", "unrelated"}  # no fault of a host


def attempts(*ended: _launch.Ended, retries: int, go: int = 9) -> tuple[int, int]:
    """The exit code of jobs that end so, one after the other, on ``go`` goes, and how many were started."""
    from nccl_doctor.cli import preflight as command

    bundle = test_hang.bundle()
    gate = Gate(True, (Decision("gpu01", "bad", ("gpu.ecc",)),), ("gpu02",), (), "", ("gpu02",))
    started: list[_launch.Ended] = []

    def decision() -> Any:
        if len(started) >= go:
            raise typer.Exit(11)
        return bundle, gate, judge(bundle)

    def launch(*_: object) -> _launch.Ended:
        started.append(ended[len(started)])
        return started[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_launch, "launch", launch)
        try:
            code = command._attempts(["true"], retries, HERE, Following(), decision, False)
        except typer.Exit as stopped:
            code = stopped.exit_code
    return code, len(started)


FAILED, GOOD, HUNG = _launch.Ended(1), _launch.Ended(0), _launch.Ended(11, hung=True)


@pytest.mark.parametrize(
    ("ended", "code", "started"),
    [
        ([GOOD], 0, 1),
        ([FAILED, GOOD], 0, 2),
        ([FAILED, HUNG, _launch.Ended(1, cause="gpu.ecc", title="x")], 1, 3),
        ([_launch.Ended(1, cause="unrelated", title="a typo")], 1, 1),
        ([FAILED, _launch.Ended(2, cause="app.rank-exception", title="KeyError")], 2, 2),
        ([_launch.Ended(7, told=True)], 7, 1),
        ([_launch.Ended(11, told=True, hung=True)], 11, 1),
        ([_launch.Ended(143)], 143, 1),  # somebody told the command itself to end
        ([_launch.Ended(130)], 130, 1),
        ([_launch.Ended(127)], 127, 1),
        ([_launch.Ended(1, runs_on=True)], 1, 1),
        ([_launch.Ended(1, unseen=("gpu01",)), GOOD], 0, 2),  # which is not chosen
        ([_launch.Ended(1, unseen=("gpu02",)), GOOD], 1, 1),
    ],
)
def test_a_failure_is_started_again_where_that_may_help(ended: list[_launch.Ended], code: int, started: int) -> None:
    assert attempts(*ended, retries=2) == (code, started)
    assert attempts(*ended, retries=0) == (ended[0].status, 1)


def test_on_hosts_that_are_no_go_by_then_nothing_is_started(capfd: pytest.CaptureFixture[str]) -> None:
    assert attempts(FAILED, GOOD, retries=2, go=1) == (11, 1)
    assert "for attempt 2 of 3" in capfd.readouterr().err
    attempts(FAILED, GOOD, retries=2)
    assert "attempt 2 of 3 on gpu02, without gpu01: gpu.ecc" in capfd.readouterr().err


def test_a_saved_bundle_still_runs_its_job_once_and_is_never_looked_at(tmp_path: Path) -> None:
    command = ("--", "sh", "-c", "echo last; exit 7")
    done = preflight(tmp_path, "--from", saved(tmp_path), "--format", "json", "--keep", "out", *command)
    assert done.returncode == 7
    assert done.stdout.startswith("{") and done.stdout.endswith("\n}\nlast\n")
    (directory,) = (tmp_path / "out").iterdir()
    assert (directory / "preflight.ndb").read_bytes()[:2] == b"\x1f\x8b"
