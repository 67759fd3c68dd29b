"""``nccl-doctor watch``: from what the agent reads on a host to the series that are judged."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import watched

from nccl_doctor.agent import cgroups, isolated, nvml, probing
from nccl_doctor.agent.job import processes, stacks
from nccl_doctor.agent.probes import gpu, kernel_log, watch
from nccl_doctor.agent.probing import ProbeTrouble
from nccl_doctor.agent.whereabouts import device_of, whereabouts
from nccl_doctor.collect import watch as collect
from nccl_doctor.collect.watch_series import HostSeries
from nccl_doctor.facts.gpu import Witness
from nccl_doctor.facts.model import Outcome, ProbeResult, Reach, ReachOutcome
from nccl_doctor.facts.watch import Event, Watch
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.rules.watch import examine
from nccl_doctor.transport.base import ConnectOptions
from nccl_doctor.transport.session import Session
from tests.hardware_kit import machines

# The way from a host to the fact


class Restless:
    """Stops the agent of the watched host once it has told something, lets it go on, and ends the watch when it is back.

    On a busy machine it may have been silent before.
    """

    def __init__(self) -> None:
        self.run: Any = None
        self.events: list[Event] = []
        self.stopped: list[psutil.Process] = []

    def event(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "silent":
            for process in self.stopped:
                process.resume()
        if event.kind == "back" and self.stopped:
            self.run.interrupt()

    def tick(self, now_s: float, hosts: Sequence[HostSeries]) -> None:
        if hosts[0].samples and not hosts[0].silence.now and not self.stopped:
            self.stopped = [one for one in psutil.Process().children() if "import sys;exec" in " ".join(one.cmdline())]
            for process in self.stopped:
                process.suspend()


def test_a_host_that_stops_answering_is_told_and_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "SILENT_S", 0.5)
    listener = Restless()
    options = collect.WatchOptions(ConnectOptions(transport="local"), 0.1, 120.0)
    listener.run = run = collect._Watch([HostEntry("here")], options, listener)
    try:
        run.start(run.connect)
        run.look_on()
    finally:
        run.end()
    # Other programs of this machine may be ranks that end.
    kinds = [event.kind for event in listener.events if event.kind in ("silent", "back")]
    assert listener.stopped and kinds[-2:] == ["silent", "back"]
    watched_host = run.facts(HostEntry("here"), run.now_s)
    fact = watched_host.probes["watch"].fact(Watch)
    assert fact.samples > 1
    assert fact.gaps[0].why.startswith("no sample for ") and not fact.gaps[0].open
    assert set(watched_host.probes) == {"watch", "job", "kernel_log", "gpu"}
    _, alive = psutil.wait_procs(listener.stopped, timeout=60)
    assert not alive


def test_hosts_are_not_silent_where_this_machine_stood_still() -> None:
    class Late(threading.Event):
        """Waits as a process that is stopped meanwhile does, and is set the second time."""

        def wait(self, timeout: float | None = None) -> bool:
            run.started -= 600.0
            over, self.once = self.once, True
            return over

        once = False

    listener = Restless()
    listener.stopped = [psutil.Process()]
    run = collect._Watch([HostEntry("here")], collect.WatchOptions(ConnectOptions()), listener)
    run.series["here"].began_s = 0.0
    run.over = Late()
    run.look_on()
    assert not listener.events and run.now_s > 600


def test_samples_that_are_nonsense_end_nothing() -> None:
    class Odd(Session):
        """A session whose agent is none of ours."""

        alive = True  # type: ignore[assignment]

        def __init__(self) -> None:
            """Nothing is opened."""
            self.reach = Reach(ReachOutcome.OK)

        def probe(self, name: str, arguments: Any = None, limit_s: float = 0.0, on_event: Any = None) -> ProbeResult:
            if name == "gpu":
                return ProbeResult(Outcome.OK, watched.gpu_fact(1))
            broken = {**watched.host_sample(1.0, range(1), 1), "ranks": {"4000": None}}
            too_much = {**watched.host_sample(1.0, range(1), 1), "memory": {"available": 1e308}}
            for odd in ({}, {"at_s": "x"}, {"at_s": 1.0, "samples": [7]}, broken, too_much):
                on_event(odd)
            run.over.set()
            return ProbeResult(Outcome.FAILED, None, "connection lost")

        def close(self) -> None:
            """Nothing is open."""

    listener = Restless()
    run = collect._Watch([HostEntry("odd")], collect.WatchOptions(ConnectOptions()), listener)
    run.reached["odd"] = session = Odd()
    run._follow("odd", session)
    assert [event.kind for event in listener.events] == ["unreadable"] and "cannot be read" in listener.events[0].text
    fact = run.facts(HostEntry("odd"), 2.0).probes["watch"].fact(Watch)
    assert (fact.samples, fact.unread, fact.gaps) == (0, 5, ()), "it is not silent"
    assert run.series["odd"].asked()["ranks"] == {}
    run.over.clear()
    run._follow_gpus("odd", session)
    gap = run.series["odd"].gpus_silence.now
    assert gap and "cannot be read" in gap.why and gap.nvml is None


class Told(Session):
    """A session whose agent gives these answers about GPUs, one after the other, and is lost."""

    alive = True  # type: ignore[assignment]

    def __init__(self, *answers: ProbeResult) -> None:
        """Nothing is opened."""
        self.answers = list(answers)

    def probe(self, name: str, arguments: Any = None, limit_s: float = 0.0, on_event: Any = None) -> ProbeResult:
        if name == "gpu":
            assert arguments == {"use_only": True} and limit_s > gpu.NVML_LIMIT_S, "a slow start is no hang"
        answer = self.answers.pop(0)
        self.alive = bool(self.answers)  # type: ignore[misc]
        return answer


def asked_for_gpus(monkeypatch: pytest.MonkeyPatch, *answers: ProbeResult) -> tuple[collect._Watch, list[str]]:
    """A watch of one host that gave these answers, and what was told of it."""
    monkeypatch.setattr(collect, "GPUS_AGAIN_S", 0.0)
    run = collect._Watch([HostEntry("host")], collect.WatchOptions(ConnectOptions()), Restless())
    run.reached["host"] = session = Told(*answers)
    run._follow_gpus("host", session)
    return run, [event.text for event in run.listener.events]


def test_a_host_without_gpus_is_not_asked_again_whatever_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = {"outcome": "failed", "detail": "nvmlInit: Driver Not Loaded", "call": "nvmlInit", "code": 9}
    bare = {**watched.gpu_fact(0), "nvml": fails, "libraries": ["/usr/lib"]}
    never = ProbeResult(Outcome.FAILED, None, "asked again")
    run, events = asked_for_gpus(monkeypatch, ProbeResult(Outcome.OK, bare), never)
    assert not events and not run.series["host"].gpus_silence.now and not run.series["host"].gpus


def test_what_nvml_said_first_stays_and_how_it_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    good = ProbeResult(Outcome.OK, watched.gpu_fact(4))
    hung = {"call": "nvmlDeviceGetTemperature of GPU 3", "code": None}
    stops = ProbeResult(Outcome.TIMED_OUT, hung, "NVML call nvmlDeviceGetTemperature of GPU 3 did not answer")
    dead = {**watched.gpu_fact(0), "nvml": {"outcome": "timed-out", "detail": "nvmlInit"}, "device_nodes": ["nvidia0"]}
    run, events = asked_for_gpus(monkeypatch, good, stops, ProbeResult(Outcome.OK, dead))
    assert events == [f"no samples of GPUs: timed-out: {stops.detail}"]
    gap = run.series["host"].gpus_silence.now
    assert gap and gap.nvml == Witness("timed-out", stops.detail, call="nvmlDeviceGetTemperature of GPU 3")
    assert len(run.gpus["host"].data["gpus"]) == 4, "the GPUs that there were"
    run, events = asked_for_gpus(monkeypatch, good, ProbeResult(Outcome.TIMED_OUT, None, "the agent has fallen silent"))
    gap = run.series["host"].gpus_silence.now
    assert not events and gap and gap.nvml is None, "no word of NVML's"


def test_of_a_connection_that_is_lost_while_the_driver_is_silent_nothing_is_asked_any_more() -> None:
    """The next one has told of GPUs since."""
    hung = {**watched.gpu_fact(1), "nvml": {"outcome": "timed-out", "detail": "nvmlInit"}}
    run = collect._Watch([HostEntry("host")], collect.WatchOptions(ConnectOptions()), Restless())
    session = Told(ProbeResult(Outcome.OK, hung), ProbeResult(Outcome.FAILED, None, "connection lost"))

    class LostMeanwhile(threading.Event):
        """Waits as long as it takes to lose the connection."""

        def wait(self, timeout: float | None = None) -> bool:
            session.alive = False  # type: ignore[misc]
            return False

    run.over = LostMeanwhile()
    run._follow_gpus("host", session)
    assert len(session.answers) == 1


def test_the_clock_of_a_host_is_read_anew_with_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was suspended, or booted anew: its samples are as young as ever."""
    run = collect._Watch([HostEntry("host")], collect.WatchOptions(ConnectOptions()), Restless())
    monkeypatch.setattr(run, "start", lambda *_: None)
    for at_s, now_s in ((1000.0, 10.0), (1005.0, 300.0), (7.0, 400.0)):
        run.connected("host", object.__new__(Session))
        run.series["host"].take(watched.host_sample(at_s, range(1), 1), now_s)
        assert run.series["host"].ranks[4000].last_s == now_s


def test_a_host_that_is_not_reached_ends_the_watch_and_is_told() -> None:
    listener = Restless()
    entries = [HostEntry("nosuch.invalid")]
    bundle = collect.watch(entries, collect.WatchOptions(ConnectOptions(connect_s=2.0), 1.0, 600.0), listener)
    answer = examine(bundle)
    assert [event.kind for event in listener.events] == ["silent"] and "not reached" in listener.events[0].text
    assert answer.report.exit_code() is ExitCode.NOTHING_CHECKED and answer.report.causes[0].id.startswith("host.")


class Patience(threading.Event):
    """Waits for nothing, and is set after a while."""

    left = 50

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0 or self.is_set()


class Hosts:
    """Hosts that are reached, or not, as ``answers`` says of each attempt; a session lives until the watch is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[Any]) -> None:
        self.answers, self.asked = answers, []
        self.watch = collect._Watch(
            [HostEntry(name) for name in answers], collect.WatchOptions(ConnectOptions()), Restless()
        )
        self.followed: list[str] = []
        monkeypatch.setattr(collect, "connect_all", self.connect_all)
        monkeypatch.setattr(collect, "RECONNECT_S", (0.0,))
        self.watch.over = Patience()
        monkeypatch.setattr(self.watch, "_follow", lambda name, session: self.followed.append(name))
        monkeypatch.setattr(self.watch, "_follow_gpus", lambda name, session: None)

    def connect_all(self, entries: Sequence[HostEntry], options: Any, deadline: Any, told: Callable[..., None]) -> None:
        names = sorted(entry.name for entry in entries)
        self.asked.append(names)
        for name in names:
            told(name, self.answers[name].pop(0))
        if not any(self.answers.values()):
            self.watch.over.set()


def away(outcome: ReachOutcome) -> Reach:
    return Reach(outcome, "it said why")


def test_a_host_that_was_not_reached_is_tried_again_and_who_refuses_us_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    session = object.__new__(Session)
    hosts = Hosts(
        monkeypatch,
        there=[session],
        booting=[away(ReachOutcome.REFUSED), away(ReachOutcome.TIMED_OUT), session],
        locked=[away(ReachOutcome.AUTH_FAILED)],
    )
    hosts.watch.connect()
    assert hosts.asked == [["booting", "locked", "there"], ["booting"], ["booting"]]
    series = hosts.watch.series["booting"]
    assert [event.text for event in hosts.watch.listener.events if event.host == "booting"] == [
        "not reached: it said why"
    ]
    (event,) = series.take(watched.host_sample(5.0, range(1), 1), 90.0)
    assert event.text.startswith("answers, after ") and isinstance(hosts.watch.reached["booting"], Session)
    assert isinstance(hosts.watch.reached["locked"], Reach)


def test_hosts_that_are_lost_are_tried_again_together_and_what_they_told_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = object.__new__(Session)
    again = [session, away(ReachOutcome.AUTH_FAILED), session]
    hosts = Hosts(monkeypatch, one=list(again), two=list(again))
    follow = hosts.watch._follow

    def lost(name: str, session: Session) -> None:
        follow(name, session)
        with hosts.watch.lock:
            hosts.watch.again(name)

    monkeypatch.setattr(hosts.watch, "start", lambda work, name, session: work(name, session))
    monkeypatch.setattr(hosts.watch, "_follow", lost)
    hosts.watch.connect()
    assert hosts.asked == [["one", "two"]] * 3 and hosts.followed == ["one", "two"] * 2
    assert all(isinstance(found, Session) for found in hosts.watch.reached.values())


@pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
def test_an_nvml_call_that_hangs_is_named(tmp_path: Path) -> None:
    machine = machines.Machine(tmp_path, gpus=2, nics=0)
    machine.settings.update(hang="nvmlDeviceGetTemperature", hang_gpu="1")
    machine.write()
    asked = {"watch_gpus": {"every_s": 0.1, "nvml_silence_s": 4.0}}
    done = subprocess.run(
        [sys.executable, str(machines.HERE / "run_probes.py"), json.dumps(asked)],
        env=machine.environment(), capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    result = json.loads(done.stdout)["watch_gpus"]
    assert (
        result["outcome"] == "timed-out" and "NVML call nvmlDeviceGetTemperature of GPU 1 did not" in result["detail"]
    )
    assert result["data"]["call"] == "nvmlDeviceGetTemperature of GPU 1"


class Nvml:
    """NVML of one GPU of which all calls fail that are not told here: ``totals``, and of its links ``old`` and ``new`` counters."""

    NVMLError = type("NVMLError", (Exception,), {"value": 3})
    NVML_NVLINK_MAX_LINKS, nvmlMemory_v2 = 18, 2

    def __init__(
        self, links: int = 0, totals: int | None = None, old: int | None = None, new: int | None = None
    ) -> None:
        self.links, self.told, self.old = links, {52: totals, 59: totals, 214: new, 211: new}, old

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> bool:
        if link >= self.links:
            raise self.NVMLError
        return link != 0  # one is down

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:
        if self.old is None:
            raise self.NVMLError
        return self.old

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[Any]) -> list[Any]:
        counts = [self.told[field[0] if isinstance(field, tuple) else field] for field in fields]
        return [
            SimpleNamespace(
                fieldId=field[0] if isinstance(field, tuple) else field,
                nvmlReturn=3 if count is None else 0,
                value=SimpleNamespace(ullVal=count or 0),
            )
            for field, count in zip(fields, counts, strict=True)
        ]


@pytest.mark.parametrize(
    ("gpu", "told", "why"),
    [
        (Nvml(18, totals=7), {"nvlink_replays": 7, "nvlink_recoveries": 7}, ""),
        (Nvml(3, old=5), {"nvlink_replays": 10, "nvlink_recoveries": 10}, ""),
        (Nvml(18, new=2), {"nvlink_failed_recoveries": 34, "nvlink_integrity_errors": 34}, ""),
        (Nvml(18), {}, "17 NVLinks are up, and NVML tells no error counter of any"),
        (Nvml(0), {}, "not supported"),
    ],
    ids=["totals", "each link's", "NVLink 5", "none of them", "no link"],
)
def test_nvlink_errors_are_summed_by_whatever_counters_the_gpu_has(gpu: Nvml, told: dict[str, int], why: str) -> None:
    came: list[dict[str, Any]] = []

    def report(step: dict[str, Any]) -> None:
        if "samples" in step:
            came.extend(step["samples"])
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        nvml.sample(gpu, report, 0.1)
    (sample,) = came
    assert {name: value for name, value in sample.items() if name.startswith("nvlink_")} == told
    assert sample["refused"].get("nvlink_failed_recoveries", "") == why


# The agent's part


def samples_of(until: Callable[[list[dict[str, Any]]], bool], **arguments: Any) -> list[dict[str, Any]]:
    """What the agent tells of this machine until then."""
    came: list[dict[str, Any]] = []
    enough = threading.Event()

    def tell(sample: dict[str, Any]) -> None:
        came.append(json.loads(json.dumps(sample)))
        if until(came):
            enough.set()
            raise BrokenPipeError  # the thread ends here

    def work() -> None:
        probing.set_emitter(tell)
        with contextlib.suppress(BrokenPipeError):
            watch.watch({"every_s": 0.01, **arguments})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert enough.wait(60)
    thread.join(60)
    return came


def test_samples_come_until_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find", lambda: "")  # what else runs on this machine is not looked into
    came = samples_of(lambda told: any("job" in sample for sample in told[:-3]))
    assert sum("job" in sample for sample in came) == 1, "all of /proc is looked through once a minute"
    series = HostSeries("here", 0.01)
    for number, sample in enumerate(came):
        series.take(sample, float(number))
    assert series.samples == len(came) and series.cpu.samples < len(came) and series.memory["MemTotal"] > 0


def test_a_look_for_ranks_that_takes_long_holds_no_sample_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = threading.Event()

    def look(py_spy: str, told: Any) -> Any:
        assert looks.wait(60)
        return [], {"refused": {"count": 0, "pids": []}, "unnumbered": 0}

    def enough(came: list[dict[str, Any]]) -> bool:
        if len(came) == 5:
            looks.set()
        return "job" in came[-1]

    monkeypatch.setattr(processes, "find", look)
    assert len(samples_of(enough)) > 5


def test_ranks_that_mp_spawn_started_are_found_with_the_py_spy_that_hang_is_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks, "find", lambda: "")
    monkeypatch.setattr(stacks, "hold", lambda packed: packed)
    unread = {"refused": {"count": 0, "pids": []}}
    monkeypatch.setattr(processes, "find", lambda py_spy, told: ([], {**unread, "unnumbered": 0 if py_spy else 2}))

    def tell(sample: dict[str, Any]) -> None:
        assert "job" not in sample

    with monkeypatch.context() as here, pytest.raises(ProbeTrouble) as asked:
        here.setattr(watch, "emitter", lambda: tell)
        watch.watch({"every_s": 0.01, "machine": stacks.machine()})
    assert asked.value.outcome == "tool-missing" and asked.value.data == {"program": "py-spy"}
    lent = samples_of(lambda came: "job" in came[-1], machine=stacks.machine(), py_spy="packed")
    assert lent[-1]["job"]["unnumbered"] == 0
    elsewhere = samples_of(lambda came: "job" in came[-1], machine="another")
    assert elsewhere[-1]["job"]["unnumbered"] == 2


def test_py_spy_is_asked_of_a_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[int, int]] = []

    def spawned(py_spy: str, parents: dict[int, int]) -> dict[int, dict[str, str]]:
        asked.append(parents)
        return {pid: {"RANK": str(pid)} for pid in parents if pid < 30}

    monkeypatch.setattr(stacks, "spawned", spawned)
    found = {pid: {"parent": pid // 10, "start_ticks": 5, "age_s": 90.0} for pid in (20, 21, 30)}
    told: processes.Numbers = {}
    for _ in range(2):
        assert set(processes._spawned_numbers("py-spy", found, told)) == {20, 21}
    found[22], found[40] = dict(found[20]), {"parent": 4, "start_ticks": 6, "age_s": 1.0}
    assert set(processes._spawned_numbers("py-spy", found, told)) == {20, 21, 22}
    del found[30], found[22]
    processes._spawned_numbers("py-spy", found, told)
    assert asked == [{20: 2, 21: 2, 30: 3}, {}, {20: 2, 21: 2, 22: 2, 40: 4}, {40: 4}]
    assert set(told) == {(20, 5), (21, 5)}, "a young one is asked again, one that has ended is forgotten"


def test_a_rank_that_is_not_found_again_lives_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    start = int(probing.stat_fields(os.getpid())[19])
    own = {"pid": os.getpid(), "start_ticks": start, "role": "rank"}
    finds = [[own, {"pid": 4194305, "start_ticks": 1, "role": "rank"}], [], []]
    looks: list[int] = []

    def find(py_spy: str, told: Any) -> Any:
        looks.append(1)
        return (finds[len(looks) - 1] if len(looks) < 4 else []), {"unnumbered": 0}

    monkeypatch.setattr(processes, "find", find)
    monkeypatch.setattr(watch, "LOOK_FOR_RANKS_S", 0.0)
    came = samples_of(lambda _: len(looks) > 4)
    first = next(number for number, sample in enumerate(came) if "job" in sample)
    assert [set(sample["ranks"]) for sample in came[first:]] == [{str(os.getpid())}] * len(came[first:])
    again = samples_of(lambda came: True, ranks={str(os.getpid()): start, "4194305": 1})
    assert set(again[0]["ranks"]) == {str(os.getpid())}, "a host that was lost is asked for those that it had"


@pytest.mark.parametrize(
    ("after_s", "read_s"), [({}, 900.0), ({"log_after_s": 700.0}, 700.0), ({"log_after_s": 1e6}, 0.0)]
)
def test_a_host_that_is_back_is_asked_for_the_lines_since(
    after_s: dict[str, float], read_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was booted anew has a younger clock: all of its log is new."""
    monkeypatch.setattr(watch, "uptime", lambda: 900.0)
    asked: list[float] = []
    monkeypatch.setattr(watch, "_log", lambda since_s: (asked.append(since_s), ({"outcome": "ok"}, since_s))[1])
    samples_of(lambda came: True, **after_s)
    assert asked[0] == read_s


def test_what_the_next_connection_is_asked_for() -> None:
    series, _ = watched.series("gpu01", range(2), 2, 3, None, None, 0)
    last = watched.host_sample(20.0, range(1), 2)
    del last["job"]
    series.take(last, 20.0)
    assert series.asked() == {"every_s": 5.0, "ranks": {"4000": 100}, "log_after_s": 9e5}
    assert HostSeries("new", 5.0).asked() == {"every_s": 5.0, "ranks": {}}


def test_a_long_watch_does_not_read_all_of_the_journal_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "kernel_log", lambda asked: {"lines": [], "uptime_s": 900.0})
    assert watch._log(100.0)[1] == 900.0 - watch.LOG_LATE_S
    assert watch._log(899.0)[1] == 899.0


def test_a_child_that_reports_for_ever_is_heard_as_it_goes_and_ended_when_it_falls_silent() -> None:
    def report_and_hang(report: Callable[[Any], None]) -> None:
        for number in range(3):
            report({"number": number, "child": os.getpid()})
        time.sleep(600)

    heard: list[Any] = []
    answer = isolated.call(report_and_hang, 60.0, silence_s=3.0, on_report=heard.append)
    assert [one["number"] for one in heard] == [0, 1, 2] and not answer.reports
    assert answer.outcome == "timed-out" and not Path(f"/proc/{heard[0]['child']}").exists()


def test_only_new_lines_of_the_kernel_log_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("6,1,5000000,-;NVRM: old\n6,2,7000000,-;NVRM: new\n6,3,8000000,-;other\n")
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    assert [line["text"] for line in kernel_log.kernel_log({"after_s": 5.0})["lines"]] == ["NVRM: new"]
    assert len(kernel_log.kernel_log({})["lines"]) == 2


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of which ``mlx5_0`` and ``eth0`` were moved into the pod of process 77 (as ``net1``), or are gone."""
    for place in ("devices/pci0000:00/0000:3b:00.0", "devices/virtio1", "class/net", "bus/pci/drivers/mlx5_core"):
        (tmp_path / "sys" / place).mkdir(parents=True)
    for place in (
        "proc/self/ns",
        "proc/77/ns",
        "proc/77/root/sys/class/net/net1",
        "proc/77/root/sys/class/infiniband/x",
    ):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "proc/self/ns/net").symlink_to("net:[1]")
    (tmp_path / "proc/77/ns/net").symlink_to("net:[2]")
    (tmp_path / "proc/77/comm").write_text("pause\n")
    (tmp_path / "proc/77/mountinfo").write_text("31 30 0:26 / /sys ro,nosuid - sysfs sysfs ro\n")
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    return tmp_path


def test_where_an_interface_or_port_went_is_seen_in_sysfs(sysfs: Path) -> None:
    card = sysfs / "sys/devices/pci0000:00/0000:3b:00.0"
    device = "/sys/devices/pci0000:00/0000:3b:00.0"
    (sysfs / "sys/class/net/eth0").mkdir()
    (sysfs / "sys/class/net/eth0/device").symlink_to("../../../devices/pci0000:00/0000:3b:00.0")
    assert device_of("eth0") == device and device_of("bond0") == ""
    assert whereabouts("eth0", device) == {"state": "lost", "proof": "its device 0000:3b:00.0 has no driver"}
    (card / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    still = {"state": "unknown", "proof": "its device 0000:3b:00.0 still has its driver mlx5_core"}
    assert whereabouts("mlx5_0/1", device) == whereabouts("eth0", device) == still
    (sysfs / "proc/77/root/sys/class/net/net1/device").symlink_to("../../../0000:3b:00.0")
    there = {"state": "moved", "proof": "it is in the network namespace of process 77 (pause)"}
    assert whereabouts("eth0", device) == there, "renamed there"
    alike = {"state": "unknown", "proof": "one of its name is in the network namespace of process 77 (pause)"}
    assert whereabouts("net1", "") == alike, "without a device: it may be another one"
    (sysfs / "proc/77/root/sys/class/infiniband/x/device").symlink_to("../../../0000:3b:00.0")
    assert whereabouts("mlx5_0/1", device) == there
    (sysfs / "proc/77/mountinfo").write_text("31 30 0:26 / /sys rw - fuse.hangs x rw\n")
    assert whereabouts("eth0", device) == still, "what is no sysfs is not walked into"
    card.rename(card.parent / "elsewhere")
    assert whereabouts("eth0", device) == {"state": "lost", "proof": "its device 0000:3b:00.0 is gone"}
    assert whereabouts("tun0", "") == {"state": "lost", "proof": "not in /sys"}


def test_what_became_of_a_port_is_told_when_it_goes_and_asked_again_with_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = iter([{"a/1": {}, "b/1": {}}, {"b/1": {}}, {}, {}, {"a/1": {}}])
    monkeypatch.setattr(watch, "_ports", lambda: next(ports, {}))
    monkeypatch.setattr(watch, "_interfaces", list)
    monkeypatch.setattr(watch, "device_of", {"a/1": "/card", "b/1": ""}.__getitem__)
    monkeypatch.setattr(watch, "whereabouts", lambda name, device: {"state": "lost", "proof": name + device})
    monkeypatch.setattr(processes, "find", lambda py_spy, told: ([], {}))
    looks = iter([True, False, False, True, False, False])
    monkeypatch.setattr(watch._Look, "begin", lambda *_: next(looks))
    came = samples_of(lambda told: len(told) == 6)
    assert [sorted(sample["gone"]) for sample in came] == [[], ["a/1"], ["b/1"], ["a/1"], [], ["a/1"]]


def test_an_interface_that_loses_its_address_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([["bond0"]])
    monkeypatch.setattr(watch, "_ports", dict)
    monkeypatch.setattr(watch, "_interfaces", lambda: next(found, []))
    monkeypatch.setattr(watch, "_interface", lambda name: {"speed_mbps": 25_000})
    monkeypatch.setattr(processes, "find", lambda py_spy, told: ([], {}))
    monkeypatch.setattr(watch._Look, "begin", lambda *_: True)
    came = samples_of(lambda told: len(told) == 2)
    assert [(list(sample["nics"]), sample["gone"]) for sample in came] == [(["bond0"], {})] * 2


def test_a_port_without_standard_counters_has_its_bytes_in_its_drivers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = tmp_path / "sys/class/infiniband/rdmap0s31/ports/1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    (port / "hw_counters/rx_bytes").write_text("7\n")
    (port / "hw_counters/tx_bytes").write_text("8\n")
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    told = watch._ports()["rdmap0s31/1"]
    assert (told["received_bytes"], told["sent_bytes"], set(told["errors"].values())) == (7, 8, {None})


def test_the_ranks_of_this_machine_are_counted_in_their_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "sys/fs/cgroup/slurm/job_42/task_0"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (group.parent / "memory.events").write_text("oom_kill 9\n")
    for name, text in {
        "proc/4005/cgroup": "0::/slurm/job_42/task_0\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    file = cgroups.oom_file_of(4005)
    assert file == "/sys/fs/cgroup/slurm/job_42/task_0/memory.events" and cgroups.oom_kills(file) == 2
    assert cgroups.oom_kills("/sys/fs/cgroup/memory.events") is None
