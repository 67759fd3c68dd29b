"""One agent on this machine over the local transport: the session, the loader, the runtime's limits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from nccl_doctor.agent import runtime
from nccl_doctor.facts.model import NO_START, Outcome, Reach, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport import fleet
from nccl_doctor.transport import launch as launching
from nccl_doctor.transport import session as sessions
from nccl_doctor.transport.base import ConnectOptions, Deadline, Stream, Transport, Unreachable
from nccl_doctor.transport.fleet import _Attempt, close_all, connect_all
from nccl_doctor.transport.local import LocalTransport
from nccl_doctor.transport.session import Session, _Pace, connect

PROBES = (Path(__file__).parent / "session_probes.py").read_text(encoding="utf-8")


def ship(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, list[Any]]], None]) -> None:
    """Send the agent with other sources: module -> [source, whether it is a package]."""
    sources = json.loads(zlib.decompress(launching.pack()))
    change(sources)
    packed = zlib.compress(json.dumps(sources).encode())
    monkeypatch.setattr(launching, "pack", lambda: packed)


@pytest.fixture(autouse=True)
def more_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ship one more probe module, made for these tests."""
    more = {
        "nccl_doctor.agent.probes.testing": [PROBES, False],
        "nccl_doctor.agent.probes.broken": ["import no_such_module", False],
    }
    ship(monkeypatch, lambda sources: sources.update(more))


def open_session(deadline_s: float = 60, **options: Any) -> Session:
    found = connect(LocalTransport(), HostEntry("here", user="me"), ConnectOptions(**options), Deadline(deadline_s))
    assert isinstance(found, Session), found
    return found


def closing(**options: Any) -> contextlib.closing[Session]:
    return contextlib.closing(open_session(**options))


@pytest.fixture
def session() -> Iterator[Session]:
    with closing(python=sys.executable) as opened:
        yield opened


def reach_of(**options: Any) -> Reach:
    found = connect(LocalTransport(), HostEntry("here"), ConnectOptions(**options), Deadline(60))
    if isinstance(found, Session):
        found.close()
        raise AssertionError(f"reached: {found.hello}")
    return found


def gone(pids: list[int], limit_s: float = 60.0) -> list[int]:
    """The processes of these that still run after the limit."""
    end = time.monotonic() + limit_s
    left = [pid for pid in pids if running(pid)]
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = [pid for pid in left if running(pid)]
    return left


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_hello_and_an_ordinary_probe(session: Session) -> None:
    assert session.hello.pid != os.getpid() and session.hello.python.startswith("3.")
    assert session.reach.outcome is ReachOutcome.OK
    result = session.probe("t.echo", {"a": [1, "ü\u2028\n"]})
    assert result.outcome is Outcome.OK and result.data == {"got": {"a": [1, "ü\u2028\n"]}}


def test_every_way_a_probe_ends_is_a_result(session: Session) -> None:
    assert session.probe("t.raise").outcome is Outcome.FAILED
    assert "KeyError" in session.probe("t.raise").detail
    assert session.probe("t.exit").outcome is Outcome.FAILED
    trouble = session.probe("t.trouble")
    assert (trouble.outcome, trouble.detail, trouble.data) == (Outcome.NOT_SUPPORTED, "no such thing", {"seen": 1})
    assert "not plain JSON" in session.probe("t.unjson").detail
    assert session.probe("t.surrogate").data == {"x": "a?"}
    unknown = session.probe("t.nothing")
    assert unknown.outcome is Outcome.FAILED and "broken" in unknown.detail  # a module that cannot be imported is named
    assert session.alive


def test_what_a_library_prints_does_not_break_the_protocol(session: Session) -> None:
    assert session.probe("t.print").data == {"stdin": ""}
    assert session.probe("t.echo").outcome is Outcome.OK


@pytest.mark.alone
def test_a_hung_probe_is_timed_out_and_hangs_nothing_else(session: Session) -> None:
    results = session.probes({"t.hang": (None, 0.5), "t.echo": ({"x": 1}, 10.0)})
    assert results["t.hang"].outcome is Outcome.TIMED_OUT and 0.4 < results["t.hang"].seconds < 60
    assert results["t.echo"].outcome is Outcome.OK
    assert list(results) == ["t.echo", "t.hang"]


def test_too_much_output_is_truncated_not_sent(session: Session) -> None:
    assert session.probe("t.big", {"bytes": 17 << 20}, 30.0).outcome is Outcome.TRUNCATED
    assert len(session.probe("t.big", {"bytes": 4 << 20}, 30.0).data["text"]) == 4 << 20


def test_events_reach_the_caller_from_any_thread(session: Session) -> None:
    seen: list[dict[str, Any]] = []
    assert session.probe("t.events", on_event=seen.append).outcome is Outcome.OK
    assert seen == [{"n": 1}, {"n": 2}]


def test_a_module_is_carried(session: Session) -> None:
    missing = session.probe("t.import")
    assert missing.outcome is Outcome.TOOL_MISSING and missing.data == {"module": "pure_module_of_the_test"}
    assert session.carry("pure_module_of_the_test", "VALUE = 42\n").outcome is Outcome.OK
    assert session.probe("t.import").data == {"value": 42}


def test_pynvml_is_carried_by_itself(session: Session) -> None:
    result = session.probe("t.pynvml", limit_s=20.0)
    assert result.outcome is Outcome.OK, result
    assert result.data["file"].startswith("<nccl-doctor agent>")


def test_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("MY_OWN", "private")
    monkeypatch.setenv("SLURM_JWT", "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE2fQ.c2lnbmF0dXJl")
    with closing() as session:
        found = session.probe("environment").data["variables"]
    assert found["NCCL_SOCKET_IFNAME"] == "eth0" and found["SLURM_JWT"] == "[redacted]" and "MY_OWN" not in found


def test_closing_kills_everything_below_the_agent() -> None:
    session = open_session(python=sys.executable)
    data = session.probe("t.children", {"tag": "nccl-doctor-test-close"}, 20.0).data
    assert len(data["below"]) >= 4, data
    session.close()
    assert gone([data["agent"], *data["below"]]) == []
    assert session.reach.outcome is ReachOutcome.OK  # closed by us, not cut off
    assert session.probe("t.echo").outcome is Outcome.FAILED


def test_a_killed_agent_is_cut_off_and_its_children_die_with_it() -> None:
    session = open_session(python=sys.executable)
    data = session.probe("t.children", {"tag": "nccl-doctor-test-kill"}, 20.0).data
    os.kill(session.hello.pid, signal.SIGKILL)
    result = session.probe("t.echo")
    assert result.outcome is Outcome.FAILED and "connection lost" in result.detail
    assert session.reach.outcome is ReachOutcome.CUT_OFF
    assert (session.reach.user, session.reach.by_ssh) == ("me", False)  # for the command that is proposed
    assert gone([data["worker"]]) == []
    session.close()
    for pid in data["below"]:  # the double-forked daemon has no parent left that could know it
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_agent_and_its_children(how: signal.Signals) -> None:
    session = open_session(python=sys.executable)
    data = session.probe("t.children", {"tag": "nccl-doctor-test-signal"}, 20.0).data
    os.kill(session.hello.pid, how)
    assert gone([data["agent"], *data["below"]]) == []
    session.close()


CONTROLLER = """
import sys, time
from nccl_doctor.transport import launch as launching
packed = open({packed!r}, "rb").read()
launching.pack = lambda: packed
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import connect_all
entries = [HostEntry(f"h{{n}}") for n in range({hosts})]
found = connect_all(entries, ConnectOptions(transport="local"), Deadline(60))
for name, session in found.items():
    data = session.probe("t.children", {{"tag": "nccl-doctor-test-controller"}}, 30.0).data
    print(*data["below"], data["agent"], flush=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_controller(how: signal.Signals, tmp_path: Path) -> None:
    packed = tmp_path / "pack"
    packed.write_bytes(launching.pack())
    code = CONTROLLER.format(packed=str(packed), hosts=3)
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    pids: list[int] = []
    for line in controller.stdout:
        if line.strip() == "ready":
            break
        pids += [int(word) for word in line.split()]
    assert len(pids) >= 15
    pids += [child.pid for child in psutil.Process(controller.pid).children(recursive=True)]
    controller.send_signal(how)
    controller.wait(30)
    controller.stdout.close()
    assert gone(pids) == []


def silence_after(limit_s: float) -> Callable[[dict[str, list[Any]]], None]:
    """An agent that takes a controller for dead after so long."""

    def change(sources: dict[str, list[Any]]) -> None:
        runtime_source = sources["nccl_doctor.agent.runtime"]
        assert "SILENCE_S = 45.0" in runtime_source[0]
        runtime_source[0] = runtime_source[0].replace("SILENCE_S = 45.0", f"SILENCE_S = {limit_s}")

    return change


@pytest.mark.alone
def test_a_silent_controller_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is cut without a word: no end of input, no ping. The agent ends by its own clock."""
    ship(monkeypatch, silence_after(1.0))
    with closing() as session:
        assert gone([session.hello.pid]) == []
        assert "nothing heard" in session.probe("t.echo").detail


@pytest.mark.alone
def test_a_session_pings_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, silence_after(3.0))
    monkeypatch.setattr(sessions, "PING_S", 0.3)
    monkeypatch.setattr(sessions, "IDLE_PING_S", 0.3)
    with closing() as session:
        time.sleep(3.5)
        assert session.probe("t.echo").outcome is Outcome.OK


def write_python(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_no_python() -> None:
    reach = reach_of(python="/no/such/python")
    assert reach.outcome is ReachOutcome.NO_PYTHON and "/no/such/python" in reach.detail and reach.evidence
    assert not reach.by_ssh  # this machine


def test_no_python_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.symlink("/bin/sh", tmp_path / "sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    reach = reach_of()
    assert reach.outcome is ReachOutcome.NO_PYTHON and "neither python3 nor python" in reach.detail


def old_pythons() -> list[str]:
    found = [Path.home() / ".pyenv/versions" / name / "bin/python" for name in ("2.7.18", "3.6.15", "3.7.16")]
    return [str(path) for path in found if path.exists()]


@pytest.mark.parametrize("python", old_pythons() or [pytest.param("", marks=pytest.mark.skip("no old Python here"))])
def test_a_real_old_python_says_its_version(python: str) -> None:
    reach = reach_of(python=python)
    assert reach.outcome is ReachOutcome.PYTHON_TOO_OLD and "3.8 or newer" in reach.detail
    assert python in reach.evidence[0]


def test_garbage_and_endings(tmp_path: Path) -> None:
    prints = reach_of(python=write_python(tmp_path / "a", "echo 'Welcome to gpu07!'; exit 3"))
    assert prints.outcome is ReachOutcome.GARBAGE and "Welcome to gpu07!" in prints.evidence
    silent = reach_of(python=write_python(tmp_path / "b", "echo 'Segmentation fault' >&2; exit 139"))
    assert silent.outcome is ReachOutcome.CUT_OFF and "139" in silent.detail and "Segmentation" in silent.evidence[0]
    echoes = reach_of(python=write_python(tmp_path / "c", "exec cat"), start_s=1.0)
    assert echoes.outcome is ReachOutcome.GARBAGE
    flood = reach_of(python=write_python(tmp_path / "d", "exec cat /dev/zero"))
    assert flood.outcome is ReachOutcome.GARBAGE and "64 KiB" in flood.detail
    hangs = reach_of(python=write_python(tmp_path / "e", "exec sleep 600"), start_s=0.5)
    assert hangs.outcome is ReachOutcome.TIMED_OUT and hangs.detail.startswith(NO_START)
    head = "read n m; echo NCCL-DOCTOR-$(echo $m | rev) 'hello {\"proto'"
    cut = reach_of(
        python=write_python(tmp_path / "f", f"head -c {len(launching._loader())} >/dev/null; {head}; exit 0")
    )
    assert cut.outcome in (ReachOutcome.CUT_OFF, ReachOutcome.GARBAGE)


def test_a_login_banner_is_tolerated(tmp_path: Path) -> None:
    chatty = write_python(tmp_path / "p", f"echo Welcome; printf 'no newline'; exec {sys.executable} \"$@\"")
    with closing(python=chatty) as session:
        assert session.probe("t.echo").outcome is Outcome.OK


def test_env_setup_runs_in_bash_and_its_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("export NCCL_FROM_SETUP='it is $here'\n")
    with closing(env_setup=f"source {tmp_path}/activate; cat  # takes our input, if it could") as session:
        assert session.probe("environment").data["variables"]["NCCL_FROM_SETUP"] == "it is $here"
    assert "--env-setup failed" in reach_of(env_setup="exit 3").detail
    reach = reach_of(env_setup="export WANDB_API_KEY=canary; echo cannot use --token canary >&2; exit 3")
    assert (
        reach.detail
        == "--env-setup failed: export WANDB_API_KEY=[redacted]; echo cannot use --token [redacted] >&2; exit 3"
    )
    assert reach.evidence == ("cannot use --token [redacted]",)
    for hangs in ("sleep 60", "echo loading; sleep 60"):
        found = reach_of(env_setup=hangs, start_s=0.5)
        assert found.outcome is ReachOutcome.TIMED_OUT and found.detail.endswith(f"--env-setup, maybe still: {hangs}")
    reach = reach_of(env_setup="source /no/such/activate")
    assert reach.outcome is ReachOutcome.TRANSPORT_FAILED and "--env-setup failed" in reach.detail


class NoThread(threading.Thread):
    """What a limit on processes, or on memory, makes of a thread."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_host_with_no_room_for_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = runtime.Agent(0, 1)
    request = {"id": 7, "op": "probe", "name": "environment"}
    for ask in (lambda: agent._handle(json.dumps(request).encode()), lambda: agent._answer(agent._probe, request)):
        with monkeypatch.context() as patched:
            patched.setattr(runtime.threading, "Thread", NoThread)
            ask()
        told = json.loads(agent._lines.get_nowait() or b"")
        assert told["id"] == 7 and told["result"]["outcome"] == "failed" and "new thread" in told["result"]["detail"]
    code = (
        "from nccl_doctor.agent import runtime\n"
        'def serve(self): raise RuntimeError("can\'t start new thread")\n'
        "runtime.Agent.serve = serve\n"
        "runtime.serve(open(0, 'rb', buffering=0), 'M')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, check=True)
    assert "M hello" in done.stdout and "agent ends: RuntimeError: can't start new thread" in done.stderr


def test_nothing_is_written_on_the_host(tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    with closing(env_setup=f"cd {tmp_path}; export HOME={tmp_path} TMPDIR={tmp_path}") as session:
        session.probe("environment")
    assert set(tmp_path.rglob("*")) == before


def test_a_module_in_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')")
    with closing(env_setup=f"cd {tmp_path}") as session:
        assert session.probe("t.echo").outcome is Outcome.OK


def test_a_fleet_connects_answers_and_closes() -> None:
    progress: list[str] = []
    entries = [HostEntry(f"h{number}") for number in range(6)]
    options = ConnectOptions(transport="local", fan_out=3)
    found = connect_all(entries, options, Deadline(60), lambda name, _: progress.append(name))
    assert sorted(progress) == [entry.name for entry in entries] == list(found)
    sessions = {name: item for name, item in found.items() if isinstance(item, Session)}
    assert len(sessions) == 6
    for name, session in sessions.items():
        assert session.probe("t.echo", {"n": name}).data["got"]["n"] == name
    close_all(found.values())
    assert gone([session.hello.pid for session in sessions.values()]) == []


FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import close_all, connect_all
options = ConnectOptions(transport="command=sh -c {command} {host}")
found = connect_all([HostEntry(f"h{number}") for number in range(12)], options, Deadline(110))
print(*(session.reach.outcome.value for session in found.values()))
print(found["h11"].probe("system", limit_s=60.0).data["limits"]["nofile"])
close_all(found.values())
"""


def test_many_hosts_need_more_descriptors_than_the_soft_limit_gives_and_the_hosts_do_not_see_it() -> None:
    done = subprocess.run([sys.executable, "-c", FEW_DESCRIPTORS], capture_output=True, text=True, timeout=120)
    outcomes, limits = done.stdout.splitlines()
    assert outcomes.split() == ["ok"] * 12, done
    assert limits.startswith("{'soft': 40,")


def test_a_machine_with_few_threads_connects_and_closes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a limit on processes or a container's has it: one worker connects, and none is left to close."""

    class Few(threading.Thread):
        def start(self) -> None:
            if self.name in refused:
                raise RuntimeError("can't start new thread")
            if self.name == "connect":
                refused.append(self.name)
            super().start()

    refused = ["close"]
    entries = [HostEntry(f"h{number}") for number in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Few)
        found = connect_all(entries, ConnectOptions(transport="local"), Deadline(60))
        sessions = [item for item in found.values() if isinstance(item, Session)]
        close_all(sessions)
    assert len(sessions) == 3 and gone([session.hello.pid for session in sessions]) == []


@pytest.mark.alone
def test_the_run_ends_by_its_deadline(tmp_path: Path) -> None:
    slow = write_python(tmp_path / "slow", "exec sleep 600")
    started = time.monotonic()
    entries = [HostEntry(f"h{number}") for number in range(4)]
    options = ConnectOptions(transport="local", python=slow, fan_out=2, connect_s=0.5)
    found = connect_all(entries, options, Deadline(1.0))
    assert time.monotonic() - started < 60
    outcomes = sorted(item.outcome.value for item in found.values() if isinstance(item, Reach))
    assert outcomes == ["not-tried", "not-tried", "timed-out", "timed-out"]


def test_a_short_deadline_is_not_laid_at_the_hosts_door(tmp_path: Path) -> None:
    """A host that was not given the time of one connect is not known to be bad."""
    slow = write_python(tmp_path / "slow", "exec sleep 600")
    options = ConnectOptions(transport="local", python=slow, connect_s=10.0)
    (reach,) = connect_all([HostEntry("h")], options, Deadline(0.5)).values()
    assert isinstance(reach, Reach) and reach.outcome is ReachOutcome.NOT_TRIED
    assert "the run's deadline passed" in reach.detail


class Queued(Transport):
    """One host is connected to at a time, and none answers; ``seconds`` says how long a turn lasted."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.slot, self.seconds = threading.Lock(), seconds

    def open(self, entry: HostEntry, command: str, deadline: Deadline) -> Stream:
        if not self.slot.acquire(timeout=deadline.left(60.0)):
            time.sleep(0.2)
            raise Unreachable(ReachOutcome.NOT_TRIED, "the run's deadline passed before its turn")
        time.sleep(deadline.left(60.0) + 0.01)
        late = Unreachable(ReachOutcome.TIMED_OUT, "no answer")
        late.reach = msgspec.structs.replace(late.reach, seconds=self.seconds)
        raise late


def test_what_waits_for_the_end_of_a_session_is_called_then_and_once(session: Session) -> None:
    told: list[str] = []
    session.on_close(lambda: told.append("then"))
    assert not told
    session.close()
    session.close()
    session.on_close(lambda: told.append("at once"))
    assert told == ["then", "at once"]


def test_who_waited_for_a_turn_when_the_run_ended_did_not_fail_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a jump host or at the gate: the time of waiting is not the host's."""
    monkeypatch.setattr(fleet, "make_transport", lambda options: Queued())
    monkeypatch.setattr(fleet, "LAST_WORDS_S", 30.0)
    entries = [HostEntry(f"h{number}") for number in range(3)]
    found = connect_all(entries, ConnectOptions(connect_s=0.2), Deadline(3.0))
    outcomes = sorted(reach.outcome.value for reach in found.values() if isinstance(reach, Reach))
    assert outcomes == ["not-tried", "not-tried", "timed-out"]
    reach = connect(Queued(seconds=0.1), HostEntry("h"), ConnectOptions(connect_s=0.2), Deadline(0.5))
    assert isinstance(reach, Reach) and reach.outcome is ReachOutcome.NOT_TRIED and reach.seconds == 0.1


def test_a_login_banner_and_a_short_deadline_are_no_garbage(tmp_path: Path) -> None:
    chatty = write_python(tmp_path / "chatty", "echo Welcome; exec sleep 600")
    options = ConnectOptions(python=chatty, connect_s=20.0)
    reach = connect(LocalTransport(), HostEntry("h"), options, Deadline(1.5))
    assert isinstance(reach, Reach) and reach.outcome is ReachOutcome.NOT_TRIED


def test_who_answered_at_the_last_moment_has_answered() -> None:
    """Between the calling thread's last look and the end of the run: else a session would stay that nobody closes."""
    entries = [HostEntry(name, user="me") for name in "abc"]
    attempt = _Attempt(entries, LocalTransport(), ConnectOptions(), Deadline(0.0))
    attempt._begun["c"] = time.monotonic() - 60.0
    attempt._done.put(("a", answered := Reach(ReachOutcome.REFUSED, "refused")))
    told: dict[str, object] = {}
    attempt._give_up(told.__setitem__)
    assert told["a"] is answered and told == attempt._results
    assert attempt._results["b"].outcome is ReachOutcome.NOT_TRIED  # type: ignore[union-attr]
    late = attempt._results["c"]
    assert isinstance(late, Reach) and late.outcome is ReachOutcome.TIMED_OUT
    assert (late.user, late.by_ssh) == ("me", False)


def test_the_pack_is_deterministic() -> None:
    code = "import hashlib, nccl_doctor.transport.launch as l; print(hashlib.sha256(l.pack()).hexdigest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, locale in (("1", "C"), ("2", "C.UTF-8"))
    }
    assert len(digests) == 1


@pytest.mark.alone
def test_an_agent_that_falls_silent_is_not_asked_again_and_is_heard_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hung host: each of its probes would wait for its own limit, and the whole run with them."""
    monkeypatch.setattr(sessions, "GRACE_S", 0.3)
    monkeypatch.setattr(sessions, "SILENCE_S", 1.0)
    with closing(python=sys.executable) as opened:
        os.kill(opened.hello.pid, signal.SIGSTOP)
        started = time.monotonic()
        assert opened.probe("t.echo", limit_s=0.2).outcome is Outcome.TIMED_OUT
        assert opened.reach.outcome is ReachOutcome.TIMED_OUT and "not a word" in opened.reach.evidence[0]
        assert not opened.alive
        assert opened.probe("t.echo", limit_s=600.0).outcome is Outcome.TIMED_OUT  # told at once
        assert time.monotonic() - started < 300
        os.kill(opened.hello.pid, signal.SIGCONT)
        end = time.monotonic() + 60
        while not opened.alive and time.monotonic() < end:
            time.sleep(0.02)
        assert opened.reach.outcome is ReachOutcome.OK and opened.probe("t.echo").outcome is Outcome.OK


@pytest.mark.alone
def test_a_host_that_answers_no_ping_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It died without a word in the middle of a long probe: others may be waiting for it."""
    monkeypatch.setattr(sessions, "PING_S", 0.3)
    monkeypatch.setattr(sessions, "SILENCE_S", 1.0)
    with closing(python=sys.executable) as opened:
        assert opened.probe("t.hang", limit_s=2.5).detail == "no answer within 2.5 s"  # the agent's own word
        assert opened.alive and opened.reach.outcome is ReachOutcome.OK  # it answered the pings meanwhile
        os.kill(opened.hello.pid, signal.SIGSTOP)
        started = time.monotonic()
        result = opened.probe("t.hang", limit_s=300.0)
        assert (result.outcome, result.detail) == (Outcome.TIMED_OUT, "no answer: the agent has fallen silent")
        assert time.monotonic() - started < 100
        assert opened.reach.outcome is ReachOutcome.TIMED_OUT and "not a word" in opened.reach.evidence[0]
        os.kill(opened.hello.pid, signal.SIGCONT)


def test_an_answer_that_is_not_of_the_protocol_ends_the_session_and_is_quoted(session: Session) -> None:
    session._take(b'a job prints {"id": and goes on')
    with pytest.raises(OSError, match=r'not of the protocol: \{"id": "one"'):
        session._take(b'{"id": "one"}')
    with pytest.raises(OSError, match="not of the protocol"):
        session._take(b'{"id":1,"event":{"a":' + b"[" * 100_000)


def test_a_request_that_is_not_taken_is_silence_and_no_lost_connection(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(data: bytes, limit_s: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(session._stream, "write", write)
    monkeypatch.setattr(session, "_deadline", Deadline(3.0))  # all the time that the run had left for it
    result = session.probe("t.echo")
    assert result.outcome is not Outcome.OK and "took nothing of a request for 3 s" in result.detail
    assert session.reach.outcome is ReachOutcome.TIMED_OUT and "connection lost" not in session.reach.detail


@pytest.mark.alone
def test_a_slow_probe_within_its_limit_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi on a busy host takes longer than the grace, and nothing else is said meanwhile."""
    monkeypatch.setattr(sessions, "GRACE_S", 0.2)
    with closing(python=sys.executable) as opened:
        assert opened.probe("t.sleep", {"seconds": 1.0}, limit_s=20.0).outcome is Outcome.OK
        assert opened.alive and opened.reach.outcome is ReachOutcome.OK


@pytest.mark.alone
def test_answers_that_are_late_twice_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is heard now and then, so it is not silence, but each further question would wait in vain."""
    monkeypatch.setattr(sessions, "GRACE_S", 0.2)
    with closing(python=sys.executable) as opened:
        os.kill(opened.hello.pid, signal.SIGSTOP)
        opened.probe("t.echo", limit_s=0.1)
        opened._hear()  # a line of something else
        assert opened.alive
        opened.probe("t.echo", limit_s=0.1)
        assert opened.reach.outcome is ReachOutcome.TIMED_OUT and "too slowly: 2 times" in opened.reach.evidence[0]
        opened._hear()
        assert not opened.alive  # one more line makes it no faster


def dripping(place: Path, bytes_per_s: int) -> str:
    """A Python whose output comes so slowly."""
    drip = Path(__file__).parents[1] / "lab" / "programs" / "drip.py"
    return write_python(place / "p", f'{sys.executable} "$@" | {sys.executable} -I -S {drip} {bytes_per_s}\n')


@pytest.mark.alone
def test_an_answer_that_drips_ends_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known for what it is long before its end, and whoever waits for another answer need wait no more."""
    with closing(python=dripping(tmp_path, 120)) as opened:
        assert opened.probe("t.echo", limit_s=30.0).outcome is Outcome.OK  # slow, and short enough to arrive
        monkeypatch.setattr(sessions, "DRIP_S", 1.0)
        started = time.monotonic()
        assert opened.probe("t.big", {"bytes": 90_000}, 900.0).outcome is Outcome.FAILED  # it would take 750 s
        assert time.monotonic() - started < 300 and not opened.alive
        assert opened.reach.outcome is ReachOutcome.TIMED_OUT and "comes too slowly" in opened.reach.evidence[0]


@pytest.mark.alone
def test_a_first_line_that_drips_is_slow_and_no_garbage(tmp_path: Path) -> None:
    found = reach_of(python=dripping(tmp_path, 20), start_s=3.0)
    assert found.outcome is ReachOutcome.TIMED_OUT and "came too slowly" in found.detail and found.evidence


def test_a_network_that_pauses_does_not_drip() -> None:
    """Lost packets come again after seconds, and then with the rest; only what never pauses and is slow drips."""

    def drips(*blocks: tuple[float, int]) -> bool:
        pace = _Pace()
        for now, size in blocks:
            pace.take(size, 100.0 + now)
        return pace.drips

    assert not drips((0.0, 1460), (3.0, 1460), (9.0, 1460))
    assert not drips((0.0, 1460), (1.9, 1460), (3.8, 1460), (5.7, 1460))
    assert drips(*((number / 10, 40) for number in range(60)))
    assert not drips(*((number / 10, 60) for number in range(60)))
    assert not drips(*((number / 10, 40) for number in range(40)))


@pytest.mark.alone
def test_the_deadline_of_the_run_is_nobodys_silence() -> None:
    with closing(deadline_s=2.0, python=sys.executable) as opened:
        assert opened.probe("t.hang", limit_s=60.0).outcome is Outcome.TIMED_OUT
        assert opened.reach.outcome is ReachOutcome.OK
