"""``nccl-doctor watch``: what its rules say of series, and what it prints."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import watched
from jsonschema import validate
from rich.console import Console
from typer.testing import CliRunner
from watched import GIB, Change, all_gpus, both, one_gpu

from nccl_doctor import cli
from nccl_doctor.cli import _options
from nccl_doctor.collect import watch as collect
from nccl_doctor.collect.watch_folds import POINTS, Series
from nccl_doctor.collect.watch_series import EVENTS, GONE_NICS_KEPT, LINES_TOLD, HostSeries
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.gpu import Witness
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.facts.model import Bundle, Reach, ReachOutcome
from nccl_doctor.facts.watch import Watch
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import text_console
from nccl_doctor.report.watch import LiveWatch, Row, live_rows, render, summary, table
from nccl_doctor.rules.engine import WATCH, all_rules
from nccl_doctor.rules.watch import Answer, examine, to_json
from nccl_doctor.transport.base import ConnectOptions
from nccl_doctor.transport.session import Session

cli._load_commands()
DECLARED = {id for rule in all_rules() if rule.stage == WATCH for id in rule.ids}
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "watch.schema.json"


def told(bundle: Bundle) -> Answer:
    """The answer; every id in it is declared by a rule of the stage."""
    answer = examine(bundle)
    assert {item.id for item in answer.report.findings} <= DECLARED
    validate(json.loads(to_json(answer, answer.report.exit_code())), json.loads(SCHEMA.read_text()))
    return answer


def only(answer: Answer) -> Finding:
    """The one cause, and no gap."""
    (found,) = answer.report.causes
    assert not answer.report.unknown, answer.report.unknown
    return found


def clean(answer: Answer) -> bool:
    """Whether nothing is wrong and nothing unknown; a warning is something."""
    return answer.report.verdict == "healthy" and not answer.report.causes


def gaps(answer: Answer) -> set[tuple[str, tuple[str, ...]]]:
    """What is unknown, where."""
    return {(gap.what, gap.hosts) for gap in answer.report.unknown}


def test_a_job_that_works_has_no_finding_and_no_gap() -> None:
    answer = told(watched.bundle())
    assert answer.report.verdict == "healthy" and not answer.report.findings and not answer.events
    assert answer.report.exit_code() is ExitCode.HEALTHY


def during(start_s: float, end_s: float, change: Change) -> Change:
    """A change of some time only."""

    def apply(now_s: float, step: dict[str, Any]) -> None:
        if start_s <= now_s < end_s:
            change(now_s, step)

    return apply


HOT = one_gpu(2, throttle_reasons=0x40, temperature_c=91, clock_sm_mhz=1100)


@pytest.mark.parametrize(
    ("bit", "id"),
    [
        (0x40, "gpu.thermal-power.hw-thermal"),
        (0x80, "gpu.thermal-power.power-brake"),
        (0x20, "gpu.thermal-power.sw-thermal"),
        (0x48, "gpu.thermal-power.hw-thermal"),
    ],
)
def test_a_gpu_that_is_throttled_part_of_the_time(bit: int, id: str) -> None:
    change = during(100, 999, one_gpu(2, throttle_reasons=bit))
    found = only(told(watched.bundle(gpu_changes={"gpu02": change})))
    assert (found.id, found.severity, found.hosts) == (id, Severity.FAIL, ("gpu02",))
    assert "for 37 % of the time" in found.title and "in 11 of 30 busy samples" in found.evidence[0].text
    assert [place.gpu for place in found.places] == ["2 (0000:02:00.0)"]


def test_a_reason_that_is_no_mask_is_unknown() -> None:
    facts = msgspec.to_builtins(watched.bundle())
    facts["hosts"][0]["probes"]["watch"]["data"]["gpus"][0]["throttled"] = {"None": 3}
    answer = told(msgspec.convert(facts, Bundle))
    assert answer.report.unknown and answer.report.exit_code() != 0


def test_memory_that_no_host_has_is_unknown() -> None:
    facts = msgspec.to_builtins(watched.bundle())
    data = facts["hosts"][0]["probes"]["watch"]["data"]
    assert data["memory_available_bytes"]
    data["memory_available_bytes"] = [[at, 1e308] for at, _ in data["memory_available_bytes"]]
    answer = told(msgspec.convert(facts, Bundle))
    assert not answer.report.findings and answer.report.unknown and answer.report.exit_code() != 0


def test_a_moment_of_throttling_is_a_warning_and_so_is_one_without_a_reason() -> None:
    once = only(told(watched.bundle(gpu_changes={"gpu02": during(100, 105, HOT)})))
    assert (once.id, once.severity) == ("gpu.thermal-power.hw-thermal", Severity.WARN)
    unnamed = only(told(watched.bundle(gpu_changes={"gpu02": one_gpu(2, throttle_reasons=0x08)})))
    assert (unnamed.id, unnamed.severity) == ("gpu.thermal-power.hw-slowdown", Severity.WARN)


def test_idle_clocks_and_the_usual_power_cap_are_no_throttling() -> None:
    resting = both(one_gpu(1, utilization_percent=0, throttle_reasons=0x41), one_gpu(2, throttle_reasons=0x4))
    answer = told(watched.bundle(gpu_changes={"gpu01": resting}))
    assert not [item for item in answer.report.findings if item.id.startswith("gpu.thermal")]


def test_a_power_limit_below_the_default_that_holds_the_clock_down() -> None:
    found = only(told(watched.bundle(gpu_changes={"gpu01": one_gpu(0, power_limit_w=400.0)})))
    assert found.id == "gpu.thermal-power.power-cap" and "400 W, its default is 700 W" in found.title


def test_hotter_than_its_peers_and_slower_than_they_are() -> None:
    hotter = only(told(watched.bundle(gpu_changes={"gpu02": one_gpu(1, temperature_c=84)})))
    assert hotter.id == "gpu.thermal-power.hotter" and "at 84 C, 7 others under the same load at 62 C" in hotter.title
    slow = only(told(watched.bundle(gpu_changes={"gpu02": one_gpu(1, clock_sm_mhz=1200)})))
    assert slow.id == "gpu.thermal-power.slow-clock" and "1200 MHz, 7 others" in slow.title


@pytest.mark.parametrize(
    "change",
    [
        one_gpu(1, temperature_c=84, power_w=690.0),  # it works harder
        one_gpu(1, clock_sm_mhz=1500, power_w=690.0),
        one_gpu(1, temperature_c=70),
        one_gpu(1, temperature_c=84, power_w=None, refused={"power_w": "not supported"}),  # or may do so
    ],
)
def test_who_works_harder_may_be_hotter_and_slower(change: Change) -> None:
    assert clean(told(watched.bundle(gpu_changes={"gpu02": change})))


def test_gpus_of_another_job_are_no_peers() -> None:
    """Two hosts of a job whose GPUs run cool and fast say nothing of two others'."""

    def other_job(now_s: float, sample: dict[str, Any]) -> None:
        for process in sample["job"]["processes"]:
            process["environment"]["MASTER_PORT"] = "29600"

    slow = all_gpus(clock_sm_mhz=1200, temperature_c=84)
    apart = watched.bundle({"gpu02": other_job}, {"gpu02": slow})
    assert not [item for item in told(apart).report.findings if item.id.startswith("gpu.thermal")]
    together = watched.bundle(gpu_changes={"gpu02": both(slow, one_gpu(0, clock_sm_mhz=1755, temperature_c=61))})
    assert {item.id for item in told(together).report.findings} == {
        "gpu.thermal-power.slow-clock",
        "gpu.thermal-power.hotter",
    }


WAITS = all_gpus(utilization_percent=100, power_w=200.0)


def test_who_works_while_all_others_spin_may_be_the_straggler() -> None:
    works = both(WAITS, one_gpu(3, power_w=520.0))
    found = only(told(watched.bundle(gpu_changes={"gpu01": WAITS, "gpu02": works})))
    assert (found.id, found.severity, found.hosts) == ("watch.straggler", Severity.WARN, ("gpu02",))
    assert found.confidence < 0.75 and "draws 520 W, 7 others 200 W at full utilisation" in found.title


def test_who_is_not_busy_while_all_others_are_is_late_on_its_hosts_side() -> None:
    late = both(WAITS, one_gpu(3, utilization_percent=60))
    answer = told(watched.bundle(gpu_changes={"gpu01": WAITS, "gpu02": late}))
    found = {item.id: item for item in answer.report.findings}
    assert set(found) == {"watch.straggler", "watch.gpu-idle"} and "data loading" in found["watch.straggler"].title


def test_where_half_of_the_gpus_work_and_half_wait_nobody_is_accused() -> None:
    answer = told(watched.bundle(gpu_changes={"gpu01": WAITS, "gpu02": all_gpus(utilization_percent=100)}))
    assert not [item for item in answer.report.findings if item.id == "watch.straggler"]


def test_idle_gpus_are_a_warning_with_what_else_was_seen() -> None:
    def crowded(now_s: float, sample: dict[str, Any]) -> None:
        sample["cpu"] = [int(now_s * 6390), int(now_s * 6400)]
        sample["waiting"]["io"] = 40.0

    low = all_gpus(utilization_percent=60)
    answer = told(watched.bundle({"gpu02": crowded}, {"gpu02": low}))
    (found,) = [item for item in answer.report.findings if item.id == "watch.gpu-idle"]
    assert found.severity is Severity.WARN and "4 of 4 GPUs are busy for 60 % of the time" in found.title
    assert any("CPUs are busy at 100 %" in item.text for item in found.evidence)
    assert any("waited for disks in 40 %" in item.text for item in found.evidence)


def test_a_job_that_ended_leaves_no_idle_gpus() -> None:
    def ended(now_s: float, sample: dict[str, Any]) -> None:
        if now_s > 100:
            sample["ranks"] = {}

    gone = during(100, 999, all_gpus(utilization_percent=0, throttle_reasons=1))
    hosts = ("gpu01", "gpu02")
    answer = told(watched.bundle(dict.fromkeys(hosts, ended), dict.fromkeys(hosts, gone)))
    assert not answer.report.causes
    assert [event.text for event in answer.events] == [
        f"ranks {ranks} (train.py) have ended" for ranks in ("0-3", "4-7")
    ]


def test_gpus_that_nobody_uses_beside_those_of_the_job_are_only_told() -> None:
    idle = one_gpu(3, utilization_percent=0, memory_used_bytes=1 << 20)
    found = only(told(watched.bundle(gpu_changes={"gpu01": idle})))
    assert (found.id, found.severity) == ("watch.gpu-idle.unused", Severity.INFO) and "GPU 3" in found.title


def test_without_work_what_gpus_do_under_load_is_unknown() -> None:
    idle = dict.fromkeys(("gpu01", "gpu02"), all_gpus(utilization_percent=0, throttle_reasons=1))
    answer = told(watched.bundle(gpu_changes=idle))
    assert answer.report.verdict == "incomplete"
    assert {"throttling under load", "utilisation under load"} <= {what for what, _ in gaps(answer)}


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("throttle_reasons", "throttle reasons over time"),
        ("temperature_c", "what its GPUs do"),
        ("memory_used_bytes", "GPU memory over time"),
        ("ecc_uncorrected_volatile", "GPU error counters over time"),
        ("utilization_percent", "utilisation over time"),
    ],
)
def test_what_a_gpu_may_not_tell_is_unknown(field: str, what: str) -> None:
    def refuse(now_s: float, step: dict[str, Any]) -> None:
        step["samples"][1].pop(field)
        step["samples"][1]["refused"] = {field: "not permitted"}

    answer = told(watched.bundle(gpu_changes={"gpu02": refuse}))
    assert answer.report.verdict == "incomplete" and (what, ("gpu02",)) in gaps(answer), answer.report.unknown


def test_a_gpu_in_slices_tells_no_utilisation_and_nothing_of_its_load_is_known() -> None:
    def sliced(now_s: float, step: dict[str, Any]) -> None:
        del step["samples"][1]["utilization_percent"]
        step["samples"][1]["refused"] = {"utilization_percent": "not supported"}

    answer = told(watched.bundle(gpu_changes={"gpu02": sliced}))
    assert "GPU 1 tells no utilisation: not supported" in {gap.why for gap in answer.report.unknown}
    assert answer.report.verdict == "incomplete"


def test_counters_that_a_gpu_does_not_have_are_no_gap() -> None:
    def consumer(now_s: float, step: dict[str, Any]) -> None:
        for sample in step["samples"]:
            for field in ("ecc_uncorrected_volatile", "nvlink_replays", "nvlink_recoveries"):
                del sample[field]
                sample["refused"][field] = "not supported"
            sample["refused"] |= dict.fromkeys(("nvlink_failed_recoveries", "nvlink_integrity_errors"), "not supported")

    assert clean(told(watched.bundle(gpu_changes={"gpu01": consumer, "gpu02": consumer})))


def test_nvlink_5_has_counters_of_its_own_without_which_its_errors_are_unknown() -> None:
    def fifth(**counters: int | str) -> Change:
        def change(now_s: float, step: dict[str, Any]) -> None:
            for sample in step["samples"]:
                for field in ("nvlink_replays", "nvlink_recoveries"):
                    del sample[field]
                    sample["refused"][field] = "not supported"
                if why := counters.get("refused"):
                    sample["refused"]["nvlink_failed_recoveries"] = why
                elif counters:
                    risen = counters if now_s > 60 and sample["index"] == 1 else {}
                    sample |= {"nvlink_failed_recoveries": 0, "nvlink_integrity_errors": 3, **risen}

        return change

    sound, bad = fifth(nvlink_integrity_errors=4), fifth(nvlink_failed_recoveries=1)
    assert clean(told(watched.bundle(gpu_changes={"gpu01": sound, "gpu02": sound})))
    found = only(told(watched.bundle(gpu_changes={"gpu01": sound, "gpu02": bad})))
    assert found.id == "gpu.nvlink.errors" and "1 failed NVLink recoveries" in found.title
    for unseen in (fifth(), fifth(refused="18 NVLinks are up, and NVML tells no error counter of any")):
        answer = told(watched.bundle(gpu_changes={"gpu01": sound, "gpu02": unseen}))
        assert answer.report.verdict == "incomplete" and ("GPU error counters over time", ("gpu02",)) in gaps(answer)


def test_gpu_memory_that_is_all_but_full() -> None:
    change = during(50, 60, one_gpu(1, memory_used_bytes=80 * GIB - (200 << 20)))
    found = only(told(watched.bundle(gpu_changes={"gpu01": change})))
    assert found.id == "gpu.oom.near" and "200 MiB were left" in found.title


@pytest.mark.parametrize(
    ("field", "rise", "id", "severity"),
    [
        ("ecc_uncorrected_volatile", 1, "gpu.ecc.uncorrectable", Severity.FAIL),
        ("nvlink_recoveries", 1, "gpu.nvlink.errors", Severity.WARN),
        ("nvlink_replays", 500, "gpu.nvlink.errors", Severity.WARN),
        ("pcie_replays", 900, "gpu.pcie.replays", Severity.WARN),
    ],
)
def test_gpu_errors_that_rise(field: str, rise: int, id: str, severity: Severity) -> None:
    change = during(60, 999, one_gpu(1, **{field: 67 + rise if field == "pcie_replays" else rise}))
    found = only(told(watched.bundle(gpu_changes={"gpu01": change})))
    assert (found.id, found.severity) == (id, severity) and f"{rise} " in found.title


def test_a_counter_that_was_reset_has_not_risen() -> None:
    change = during(0, 60, one_gpu(1, ecc_uncorrected_volatile=7))
    assert clean(told(watched.bundle(gpu_changes={"gpu01": change})))


def rank_memory(amount: Callable[[float], float]) -> Change:
    """The resident memory of gpu02's second rank over time."""

    def change(now_s: float, sample: dict[str, Any]) -> None:
        grown = amount(now_s)
        sample["ranks"]["4005"]["resident_bytes"] = int(9 * GIB + grown)
        sample["memory"]["MemAvailable"] = int(800 * GIB - grown)

    return change


def test_a_rank_that_grows_until_the_host_is_full() -> None:
    found = only(told(watched.bundle({"gpu02": rank_memory(lambda now_s: now_s * 0.1 * GIB)})))
    assert (found.id, found.severity, found.hosts) == ("sys.host-oom.growing.rank", Severity.WARN, ("gpu02",))
    assert "rank 5 (pid 4005) grows by 360 GiB an hour: the host's memory is full in about 2 h" in found.title
    assert [place.rank for place in found.places] == [5]


def test_memory_that_sinks_beside_the_ranks() -> None:
    def sink(now_s: float, sample: dict[str, Any]) -> None:
        sample["memory"]["MemAvailable"] = int(800 * GIB - now_s * 0.1 * GIB)

    found = only(told(watched.bundle({"gpu01": sink})))
    assert found.id == "sys.host-oom.growing" and "free memory sinks by 360 GiB an hour" in found.title


@pytest.mark.parametrize(
    "amount",
    [
        lambda now_s: 40 * GIB * (now_s > 20),  # it filled its caches, and then stopped
        lambda now_s: 15 * GIB * (now_s % 15),  # up and down
        lambda now_s: now_s * 1e4,  # a month until it is full
    ],
)
def test_memory_that_does_not_grow_steadily_is_no_leak(amount: Callable[[float], float]) -> None:
    assert clean(told(watched.bundle({"gpu02": rank_memory(amount)})))


def test_few_samples_tell_no_trend_and_fewer_tell_nothing() -> None:
    answer = told(watched.bundle({"gpu02": rank_memory(lambda now_s: now_s * GIB)}, samples=20))
    assert gaps(answer) == {("growth of memory", ("gpu01", "gpu02"))} and not answer.report.findings
    assert ("the host over time", ("gpu01", "gpu02")) in gaps(told(watched.bundle(samples=3)))


def test_a_rank_that_came_late_has_no_trend_yet() -> None:
    def late(now_s: float, sample: dict[str, Any]) -> None:
        rank_memory(lambda now_s: now_s * GIB)(now_s, sample)
        if now_s < 100:
            del sample["ranks"]["4005"]

    answer = told(watched.bundle({"gpu02": late}))
    assert ("growth of rank 5 (pid 4005)", ("gpu02",)) in gaps(answer)
    assert not [item for item in answer.report.findings if item.id == "sys.host-oom.growing.rank"]


def test_a_rank_that_ended_while_the_others_went_on() -> None:
    def die(now_s: float, sample: dict[str, Any]) -> None:
        if now_s > 60:
            del sample["ranks"]["4005"]

    answer = told(watched.bundle({"gpu02": die}))
    found = only(answer)
    assert found.id == "hang.rank-gone.ended" and "rank 5 (pid 4005) of train.py ended; 7 other" in found.title
    assert [(event.kind, event.host) for event in answer.events] == [("rank-ended", "gpu02")]


def test_ranks_that_end_with_their_job_are_no_fault_and_nobody_saw_whether_it_was_done() -> None:
    def die(now_s: float, sample: dict[str, Any]) -> None:
        if now_s > 100:
            sample["ranks"] = {}

    answer = told(watched.bundle(dict.fromkeys(("gpu01", "gpu02"), die)))
    assert not answer.report.causes and answer.report.verdict == "incomplete"
    (gap,) = answer.report.unknown
    assert (gap.what, gap.hosts) == ("whether job gpu01:29500 was done or has failed", ("gpu01", "gpu02"))
    assert gap.why == "all its ranks had ended after 105 s: its log says why"


@pytest.mark.parametrize(
    ("until_s", "severity"), [(999, Severity.FAIL), (100, None)], ids=["to the end", "for a while"]
)
def test_a_rank_that_is_stopped_holds_the_others(until_s: float, severity: Severity | None) -> None:
    def stop(now_s: float, sample: dict[str, Any]) -> None:
        sample["ranks"]["4005"]["state"] = "T" if 60 < now_s < until_s else "S"

    answer = told(watched.bundle({"gpu02": stop}))
    words = ["rank 5 (pid 4005, train.py) is stopped", "rank 5 (pid 4005, train.py) is running again"]
    assert [event.text for event in answer.events] == words[: 2 if severity is None else 1]
    if severity is None:
        assert clean(answer)
    else:
        found = only(answer)
        assert (found.id, found.severity, found.hosts) == ("hang.stopped", severity, ("gpu02",))
        assert (
            "rank 5 (pid 4005) of train.py is stopped by a signal, for " in found.title
            and "state T from 65 s" in found.evidence[0].text
        )


def left_alone(end_s: float) -> Change:
    """Rank 0 goes on until then, all others end after 60 s."""

    def save(now_s: float, sample: dict[str, Any]) -> None:
        if now_s > 60:
            sample["ranks"] = {pid: told for pid, told in sample["ranks"].items() if pid == "4000" and now_s < end_s}

    return save


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 4), (1, 2), (2, 1)])
def test_who_writes_the_last_checkpoint_while_the_others_have_ended_is_a_warning(hosts: int, ranks: int) -> None:
    names = ("gpu01", "gpu02")[:hosts]
    over = told(watched.bundle(dict.fromkeys(names, left_alone(120)), hosts=hosts, ranks=ranks))
    warned = [("hang.rank-gone.ended", Severity.WARN)] * (hosts * ranks - 1)
    assert [(item.id, item.severity) for item in over.report.causes] == warned
    assert {what for what, _ in gaps(over)} == {"whether job gpu01:29500 was done or has failed"}
    assert over.report.causes[0].title.endswith("ended; 1 other rank went on, and the job may be at its end")
    still = told(watched.bundle(dict.fromkeys(names, left_alone(999)), hosts=hosts, ranks=ranks))
    assert [(item.id, item.severity) for item in still.report.causes] == warned
    assert still.report.verdict == "incomplete" and {what for what, _ in gaps(still)} == {
        "why ranks of job gpu01:29500 ended"
    }


def never_found(*pids: int, age_s: float = 600.0) -> Change:
    """These ranks had ended before the first look."""

    def change(now_s: float, sample: dict[str, Any]) -> None:
        for pid in pids:
            sample["ranks"].pop(str(pid), None)
        told = sample["job"]["processes"]
        sample["job"]["processes"] = [{**process, "age_s": age_s} for process in told if process["pid"] not in pids]

    return change


def test_a_rank_that_ended_before_the_first_look_is_known_by_what_the_others_of_its_host_say() -> None:
    found = only(told(watched.bundle({"gpu02": never_found(4005)})))
    assert (found.id, found.severity, found.hosts) == ("hang.rank-gone", Severity.FAIL, ("gpu02",))
    assert found.title.startswith("rank 5 has no process on gpu02") and "LOCAL_WORLD_SIZE=4" in found.evidence[0].text
    answer = told(watched.bundle({"gpu01": never_found(4001)}, hosts=1, ranks=2))
    (last,) = answer.report.causes
    assert (last.id, last.severity) == ("hang.rank-gone", Severity.WARN), "rank 0 may write the last checkpoint"
    assert gaps(answer) == {("why ranks of job gpu01:29500 ended", ("gpu01",))}
    young = told(watched.bundle({"gpu02": never_found(4005, age_s=20.0)}))
    assert not young.report.causes and gaps(young) == {("ranks 5 of job gpu01:29500", ("gpu02",))}
    over = dict.fromkeys(("gpu01", "gpu02"), both(never_found(4005), during(100, 999, never_found(*range(4000, 4008)))))
    ended = told(watched.bundle(over))
    assert not ended.report.causes, "who was the first to end, nobody saw"
    assert gaps(ended) == {("whether job gpu01:29500 was done or has failed", ("gpu01", "gpu02"))}


def test_without_ranks_and_without_busy_gpus_no_job_was_watched() -> None:
    def nobody(now_s: float, sample: dict[str, Any]) -> None:
        sample["ranks"], sample["job"]["processes"] = {}, []

    hosts = ("gpu01", "gpu02")
    answer = told(watched.bundle(dict.fromkeys(hosts, nobody), gpus=0))
    assert answer.report.verdict == "incomplete" and gaps(answer) == {("a job at work", hosts)}
    assert clean(told(watched.bundle(dict.fromkeys(hosts, nobody))))


def test_two_names_of_one_machine_are_told_and_no_fault_of_it() -> None:
    def at(bundle: Bundle, address: str) -> Bundle:
        reach = Reach(ReachOutcome.OK, address=address, port=22)
        return msgspec.structs.replace(
            bundle, hosts=tuple(msgspec.structs.replace(host, reach=reach) for host in bundle.hosts)
        )

    def calls_itself(name: str) -> Change:
        def change(now_s: float, sample: dict[str, Any]) -> None:
            sample["named"] = {"calls_itself": name, "addresses": ["10.0.0.1"]}

        return change

    def unnamed(now_s: float, sample: dict[str, Any]) -> None:
        del sample["named"]

    one = {name: calls_itself("node0") for name in ("gpu01", "gpu02")}
    answer = told(at(watched.bundle(one), "10.0.0.1"))
    (found,) = [item for item in answer.report.causes if item.id == "host.named-twice"]
    assert (found.severity, found.hosts) == (Severity.WARN, ("gpu01", "gpu02"))
    assert found.title.startswith("gpu01 and gpu02 are one machine, node0: ")
    two = {"gpu01": calls_itself("node0"), "gpu02": calls_itself("node1")}
    assert clean(told(at(watched.bundle(two), "10.0.0.1"))), "two machines behind a jump host each"
    assert gaps(told(watched.bundle({"gpu01": unnamed}))) == {("whether two names are one machine", ("gpu01",))}


def test_samples_that_come_late_count_from_when_they_were_taken() -> None:
    series = HostSeries("gpu01", 5.0)
    for at_s in range(1000, 1100, 5):
        sample = watched.host_sample(at_s, range(at_s < 1050), 1)
        series.take(sample, at_s - 1000.0 if at_s < 1030 else 300.0)
    (rank,) = series.watch(301.0).ranks
    assert (rank.last_s, rank.ended_s) == (pytest.approx(45, abs=0.1), pytest.approx(50, abs=0.1))
    assert rank.resident_bytes[-1][0] == pytest.approx(45, abs=0.1)


def test_ranks_whose_number_could_not_be_read_are_unknown() -> None:
    def unnumbered(now_s: float, sample: dict[str, Any]) -> None:
        sample["ranks"] = {}
        sample["job"].update(processes=[], unnumbered=4)

    answer = told(watched.bundle(dict.fromkeys(("gpu01", "gpu02"), unnumbered)))
    assert answer.report.verdict == "incomplete" and ("ranks", ("gpu01", "gpu02")) in gaps(answer)


def test_ranks_of_others_that_may_not_be_read_are_unknown() -> None:
    def refuse(now_s: float, sample: dict[str, Any]) -> None:
        sample["ranks"] = {}
        sample["job"].update(processes=[], refused={"count": 4, "pids": [1]})

    answer = told(watched.bundle({"gpu01": refuse}))
    assert ("ranks of others", ("gpu01",)) in gaps(answer)


@pytest.mark.parametrize(
    ("counter", "rise", "id", "severity"),
    [
        ("symbol_error", 9000, "ib.errors.rising", Severity.FAIL),
        ("port_xmit_discards", 9000, "ib.errors.rising", Severity.WARN),
        ("link_downed", 1, "ib.link-flapping", Severity.FAIL),
        ("rx_errors", 90, "net.interface-errors", Severity.WARN),
        ("losses", 2, "net.link-flapping", Severity.FAIL),
    ],
)
def test_links_that_go_down_and_errors_that_rise(counter: str, rise: int, id: str, severity: Severity) -> None:
    def change(now_s: float, sample: dict[str, Any]) -> None:
        for nic in sample["nics"].values():
            if counter in nic["errors"] and now_s > 60:
                nic["errors"][counter] += rise

    found = only(told(watched.bundle({"gpu02": change})))
    assert (found.id, found.severity, found.hosts) == (id, severity, ("gpu02",)), found


def without(nic: str, state: str, proof: str, begin_s: float = 65.0, end_s: float = 999.0) -> Change:
    """It is gone in that time; what became of it is told in the first sample that lacks it."""

    def change(now_s: float, sample: dict[str, Any]) -> None:
        del sample["nics"][nic]
        if now_s == begin_s:
            sample["gone"][nic] = {"state": state, "proof": proof}

    return during(begin_s, end_s, change)


def test_a_port_that_is_lost_is_a_fault_and_so_is_an_interface_that_carried_data() -> None:
    def tunnel(now_s: float, sample: dict[str, Any]) -> None:
        if now_s < 65:
            sample["nics"]["tun0"] = {**sample["nics"]["eth0"], "received_bytes": 0, "sent_bytes": 0}

    no_port = without("mlx5_0/1", "lost", "its device 0000:3b:00.0 is gone")
    no_interface = both(tunnel, without("eth0", "lost", "its device 0000:3c:00.0 has no driver"))
    answer = told(watched.bundle({"gpu01": no_port, "gpu02": no_interface}))
    found = {(item.id, *item.hosts): item for item in answer.report.causes}
    assert set(found) == {("ib.link-flapping", "gpu01"), ("net.link-flapping", "gpu02")}
    assert found["ib.link-flapping", "gpu01"].title == "mlx5_0/1 was gone for 91 s, and did not come back"
    assert {item.severity for item in found.values()} == {Severity.FAIL}
    assert [proof.text for proof in found["net.link-flapping", "gpu02"].evidence] == [
        "no sample from 60 s to 151 s of the watch: not in /sys",
        "its device 0000:3c:00.0 has no driver",
    ]
    assert [event.text for event in answer.events] == [
        "mlx5_0/1 is gone: its device 0000:3b:00.0 is gone",
        "eth0 is gone: its device 0000:3c:00.0 has no driver",
        "tun0 is gone",
    ]


def test_a_port_that_was_moved_to_another_namespace_is_no_fault_and_a_warning_where_it_carried_data() -> None:
    there = "it is in the network namespace of process 4711 (pause)"

    def unused(now_s: float, sample: dict[str, Any]) -> None:
        sample["nics"]["mlx5_0/1"].update(received_bytes=0, sent_bytes=0)

    gone = without("mlx5_0/1", "moved", there)
    busy = only(told(watched.bundle({"gpu01": gone})))
    assert (busy.id, busy.severity) == ("ib.link-flapping.moved", Severity.WARN)
    assert "was moved to another network namespace for 91 s" in busy.title and busy.evidence[-1].text == there
    idle = told(watched.bundle({"gpu01": both(unused, gone)}))
    assert only(idle).severity is Severity.INFO and idle.report.verdict == "healthy"


def test_a_port_of_which_nobody_knows_where_it_went_is_a_warning_and_unknown() -> None:
    still = "its device 0000:3b:00.0 still has its driver mlx5_core"

    def never_told(now_s: float, sample: dict[str, Any]) -> None:
        del sample["nics"]["mlx5_0/1"]

    for change, why in ((without("mlx5_0/1", "unknown", still), still), (during(65, 999, never_told), "not in /sys")):
        answer = told(watched.bundle({"gpu01": change}))
        (found,) = answer.report.causes
        assert (found.id, found.severity, found.evidence[-1].text) == ("ib.link-flapping", Severity.WARN, why)
        (gap,) = answer.report.unknown
        assert (gap.what, gap.hosts) == ("where mlx5_0/1 went", ("gpu01",)) and gap.why.startswith(f"{why}: taken down")


def test_a_port_that_came_back_was_gone_all_the_same() -> None:
    """Its driver was loaded anew, say: its counters begin at 0."""
    gone = without("mlx5_0/1", "lost", "its device 0000:3b:00.0 has no driver", 60, 90)
    answer = told(watched.bundle({"gpu01": gone}))
    found = only(answer)
    assert (found.id, found.severity) == ("ib.link-flapping", Severity.WARN)
    assert found.title == "mlx5_0/1 was gone for 35 s, and came back"
    assert [event.text for event in answer.events][1] == "mlx5_0/1 is back, after 35 s"


def test_a_port_whose_driver_counts_no_errors_is_told_and_no_gap() -> None:
    def efa(now_s: float, sample: dict[str, Any]) -> None:
        errors = dict.fromkeys(sample["nics"].pop("mlx5_0/1")["errors"])
        moved = {"received_bytes": int(now_s * 1e9), "sent_bytes": int(now_s * 12.2e9)}
        sample["nics"]["rdmap0s31/1"] = {"rate": "100 Gb/sec (4X EDR)", "errors": errors, **moved}

    answer = told(watched.bundle(dict.fromkeys(("gpu01", "gpu02"), efa)))
    found = {(item.id, item.hosts): item for item in answer.report.findings}
    assert {id for id, _ in found} == {"ib.errors.not-counted", "watch.network-full"}, "its bytes are counted"
    note = found["ib.errors.not-counted", ("gpu01",)]
    assert note.severity is Severity.INFO and "rdmap0s31/1 counts no link errors" in note.title
    assert answer.report.verdict == "healthy" and "counts no link errors" in printed(answer)


def test_counters_of_which_some_cannot_be_read_are_a_gap() -> None:
    def partly(now_s: float, sample: dict[str, Any]) -> None:
        sample["nics"]["mlx5_0/1"]["errors"]["symbol_error"] = None

    assert gaps(told(watched.bundle({"gpu02": partly}))) == {("error counters over time", ("gpu02",))}


def test_a_flapping_interface_that_carries_nothing_is_a_warning() -> None:
    def change(now_s: float, sample: dict[str, Any]) -> None:
        sample["nics"]["eth0"].update(received_bytes=0, sent_bytes=0)
        sample["nics"]["eth0"]["errors"]["losses"] = 1 + (now_s > 60)

    found = only(told(watched.bundle({"gpu02": change})))
    assert (found.id, found.severity) == ("net.link-flapping", Severity.WARN)


def test_a_network_at_its_rate_is_told_and_no_fault() -> None:
    def change(now_s: float, sample: dict[str, Any]) -> None:
        sample["nics"]["eth0"]["sent_bytes"] = int(now_s * 25e9 / 8 * 0.95)

    answer = told(watched.bundle({"gpu02": change}))
    found = only(answer)
    assert (found.id, found.severity) == ("watch.network-full", Severity.INFO)
    assert answer.report.verdict == "healthy" and "23.8 of 25 Gb/s" in found.evidence[0].text
    assert "note" in printed(answer) and "eth0 is at its rate" in printed(answer)


def logged(*texts: str) -> Change:
    """Lines of the kernel log, at one moment."""

    def change(now_s: float, sample: dict[str, Any]) -> None:
        if now_s == 50:
            sample["log"]["told"]["lines"] = [{"at_s": 9e5, "text": text} for text in texts]

    return change


def test_an_xid_is_told_as_it_comes_and_judged_by_the_catalogue() -> None:
    line = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
    answer = told(watched.bundle({"gpu02": logged(line)}))
    assert only(answer).id == "gpu.fell-off-bus" and only(answer).severity is Severity.FAIL
    assert [(event.at_s, event.kind, event.text) for event in answer.events] == [(50.0, "kernel", line)]


GROUP_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,oom_memcg=/other,task_memcg=/other,task=java,pid=77,uid=7",
    "Memory cgroup out of memory: Killed process 77 (java) total-vm:1kB",
)
HOST_KILL = ("Out of memory: Killed process 77 (java) total-vm:1kB",)


def kill(*lines: str, in_job: int = 0, **values: Any) -> Change:
    """One kill at 50 s, with what the kernel logs of it; ``in_job``: how many of the ranks' group."""

    def change(now_s: float, sample: dict[str, Any]) -> None:
        logged(*lines)(now_s, sample)
        sample["kernel"]["oom_kill"] = int(now_s >= 50)
        sample["killed"] = {file: count + in_job * (now_s >= 50) for file, count in sample["killed"].items()}
        sample.update(values)

    return change


def test_what_the_kernel_kills_of_the_job_is_a_fault() -> None:
    line = "Memory cgroup out of memory: Killed process 4711 (python)"  # a DataLoader worker
    answer = told(watched.bundle({"gpu02": kill(line, in_job=1)}))
    found = only(answer)
    assert (found.id, found.severity) == ("sys.host-oom.killed-now", Severity.FAIL)
    assert "killed 1 process of the job for want of memory" in found.title and line in found.evidence[0].text
    assert ("oom_kill +1", watched.OOM_FILE) in [(proof.text, proof.source) for proof in found.evidence]
    assert [event.text for event in answer.events if event.kind == "killed"] == [
        f"the kernel killed 1 process of the job for want of memory ({watched.OOM_FILE})"
    ]


def test_a_rank_that_the_kernel_log_names_was_killed_though_its_group_is_gone() -> None:
    line = "Memory cgroup out of memory: Killed process 4005 (python)"
    later = [f"Memory cgroup out of memory: Killed process {pid} (java)" for pid in (77, 78, 79)]

    def die(now_s: float, sample: dict[str, Any]) -> None:
        kill(line, *later)(now_s, sample)
        if now_s >= 50:
            sample["killed"] = {}
            del sample["ranks"]["4005"]

    answer = told(watched.bundle({"gpu02": die}))
    (found,) = answer.report.causes
    assert found.id == "sys.host-oom.killed-now" and line in [proof.text for proof in found.evidence]
    assert {item.id for item in answer.report.findings} == {"sys.host-oom.killed-now", "hang.rank-gone.ended"}
    assert not answer.report.unknown


def test_what_is_killed_in_other_jobs_is_held_against_nobody_and_a_full_host_is_a_warning() -> None:
    other = only(told(watched.bundle({"gpu02": kill(*GROUP_KILL)})))
    assert (other.id, other.severity) == ("sys.host-oom.killed-now", Severity.INFO)
    assert "killed 1 process outside the job's control groups" in other.title
    full = only(told(watched.bundle({"gpu02": kill(*HOST_KILL)})))
    assert full.severity is Severity.WARN and full.title == other.title


def test_whose_a_killed_process_was_is_unknown_where_no_group_tells() -> None:
    def uncounted(now_s: float, sample: dict[str, Any]) -> None:
        kill(*GROUP_KILL)(now_s, sample)
        sample["killed"] = {}

    def one_uncounted(now_s: float, sample: dict[str, Any]) -> None:
        kill(*GROUP_KILL)(now_s, sample)
        sample["ranks"]["4006"]["oom_file"] = ""

    for change in (uncounted, one_uncounted):
        answer = told(watched.bundle({"gpu02": change}))
        (found,) = answer.report.causes
        assert found.severity is Severity.WARN and "it is not known whose" in found.title
        assert gaps(answer) == {("whose processes the kernel killed", ("gpu02",))}


def test_a_host_that_swaps() -> None:
    def change(now_s: float, sample: dict[str, Any]) -> None:
        sample["kernel"]["pswpout"] = int(now_s * 1000)

    assert only(told(watched.bundle({"gpu02": change}))).id == "sys.host-oom.swapping"


def test_a_kernel_log_that_may_not_be_read_is_unknown() -> None:
    def refuse(now_s: float, sample: dict[str, Any]) -> None:
        sample["log"] = {"outcome": "not-permitted", "detail": "reading the kernel log needs root"}

    answer = told(watched.bundle({"gpu02": refuse}))
    assert gaps(answer) == {("kernel_log", ("gpu02",))} and answer.report.exit_code() is ExitCode.INCOMPLETE


def test_a_host_that_is_silent_at_the_end_is_a_fault_and_one_that_came_back_a_warning() -> None:
    answer = told(watched.bundle(silent={"gpu02": "connection lost: the stream ended"}))
    (found,) = answer.report.causes
    assert (found.id, found.severity) == ("host.cut-off.while-watched", Severity.FAIL)
    assert "connection lost" in found.evidence[0].text and ("the host's silent times", ("gpu02",)) in gaps(answer)

    def pause(now_s: float, sample: dict[str, Any]) -> None:
        if 50 <= now_s < 90:
            sample.clear()

    series, _ = watched.series("gpu02", range(4), 4, 10, pause, None, 0)
    series.fall_silent(50.0, "no sample for 15 s")
    assert series.fall_silent(51.0, "again") is None, "told once"
    (event,) = series.take(watched.host_sample(90.0, range(4), 4), 90.0)
    assert (event.kind, series.silence.now) == ("back", None)
    fact: Watch = series.watch(95.0)
    assert [(gap.from_s, gap.to_s, gap.open) for gap in fact.gaps] == [(45.0, 90.0, False)]


def judged(series: HostSeries, now_s: float) -> Answer:
    """The answer where this was the only host."""
    bundle = watched.bundle(hosts=1, samples=series.samples)
    fact = series.results(now_s)["watch"]
    (host,) = bundle.hosts
    one = msgspec.structs.replace(host, probes={**host.probes, "watch": fact})
    return told(msgspec.structs.replace(bundle, hosts=(one,)))


HANGS = Witness(
    "timed-out", "NVML call nvmlDeviceGetTemperature of GPU 3 did not answer", call="nvmlDeviceGetTemperature of GPU 3"
)


def test_a_driver_that_stops_answering_is_told_at_once_and_is_a_fault() -> None:
    series, now_s = watched.series("gpu01", range(4), 4, 30, None, HOT, 4)
    (event,) = series.lose_gpus(now_s, HANGS.detail, HANGS)
    assert (event.kind, event.text) == ("gpus", f"no samples of GPUs: {HANGS.detail}")
    assert not series.lose_gpus(now_s + 60, "nvmlInit", HANGS), "told once"
    (row,) = live_rows([series], verbose=False)
    assert (row.cells[2], row.cells[-1], row.trouble) == ("-", "GPUs SILENT", 2) and "GPUs at" not in summary([series])
    answer = judged(series, now_s + 15)
    found = {item.id: item for item in answer.report.causes}
    hang = found["gpu.driver.hang"]
    assert hang.severity is Severity.FAIL and "no samples for 16 s, and did not come back" in hang.title
    assert "no sample from 150 s to 166 s of the watch: NVML call" in hang.evidence[-1].text
    assert ("GPUs over time", ("gpu01",)) in gaps(answer)
    assert "gpu.thermal-power.hw-thermal" in found, "what was seen before is judged"


def test_a_driver_that_answers_again_is_a_warning_and_its_silence_stays_unknown() -> None:
    series, now_s = watched.series("gpu01", range(4), 4, 30, None, None, 4)
    series.lose_gpus(now_s, HANGS.detail, HANGS)
    step = {"at_s": now_s, "cost_s": 1.0, "samples": [watched.gpu_sample(index) for index in range(4)]}
    (event,) = series.take_gpus(step, now_s + 60)
    assert event.text == "NVML answers, after 61 s"
    answer = judged(series, now_s + 61)
    (found,) = answer.report.causes
    assert (found.id, found.severity) == ("gpu.driver.hang", Severity.WARN) and "and came back" in found.title
    assert ("GPUs over time", ("gpu01",)) in gaps(answer)


def test_a_driver_that_hangs_once_the_host_is_back_is_told() -> None:
    series, now_s = watched.series("gpu01", range(4), 4, 30, None, None, 4)
    assert not series.lose_gpus(now_s, "connection lost", None)
    assert [event.kind for event in series.lose_gpus(now_s + 20, HANGS.detail, HANGS)] == ["gpus"]
    (found,) = judged(series, now_s + 30).report.causes
    assert found.id == "gpu.driver.hang" and "for 10 s" in found.title

    back, now_s = watched.series("gpu01", range(4), 4, 30, None, None, 4)
    back.lose_gpus(now_s, "connection lost", None)
    step = {"at_s": now_s, "cost_s": 1.0, "samples": [watched.gpu_sample(index) for index in range(4)]}
    assert not back.take_gpus(step, now_s + 5), "the host tells that it is back"


@pytest.mark.parametrize(
    ("nvml", "id"),
    [
        (Witness("failed", "nvmlInit: Driver Not Loaded", call="nvmlInit", code=9), "gpu.driver.not-loaded"),
        (Witness("failed", "NVML call nvmlDeviceGetTemperature killed by signal 9", call="start"), None),
        (None, None),
    ],
)
def test_of_a_driver_that_fails_the_reason_is_told_and_our_own_end_blames_nobody(
    nvml: Witness | None, id: str | None
) -> None:
    series, now_s = watched.series("gpu01", range(4), 4, 30, None, None, 4)
    assert bool(series.lose_gpus(now_s, "connection lost", nvml)) is (nvml is not None)
    answer = judged(series, now_s + 15)
    assert [item.id for item in answer.report.causes] == ([id] if id else [])
    assert ("GPUs over time", ("gpu01",)) in gaps(answer)


def refuse_all(why: str, *indices: int) -> Change:
    """NVML answers no question about these GPUs."""

    def change(now_s: float, step: dict[str, Any]) -> None:
        for index in indices:
            sample = step["samples"][index]
            fields = sample.keys() - {"index", "bus_id", "refused"}
            step["samples"][index] = {
                **{name: sample[name] for name in ("index", "bus_id")},
                "refused": dict.fromkeys(fields, why),
            }

    return change


def leave_out(now_s: float, step: dict[str, Any]) -> None:
    """NVML was started again, and has three GPUs: the third is index 1 now."""
    del step["samples"][1]
    for index, sample in enumerate(step["samples"]):
        sample["index"] = index


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (refuse_all("nvmlDeviceGetTemperature: GPU is lost", 1), "nvmlDeviceGetTemperature: GPU is lost"),
        (refuse_all("nvmlDeviceGetTemperature: Unknown Error", 1), "nvmlDeviceGetTemperature: Unknown Error"),
        (
            one_gpu(1, refused={"power_w": "nvmlDeviceGetPowerUsage: GPU is lost"}),
            "nvmlDeviceGetPowerUsage: GPU is lost",
        ),
        (leave_out, "NVML gives it no more"),
    ],
)
def test_a_gpu_that_is_lost_in_the_middle_is_told_at_once_and_is_a_fault(change: Change, why: str) -> None:
    answer = told(watched.bundle(gpu_changes={"gpu02": during(145, 999, change)}))
    (event,) = answer.events
    assert (event.at_s, event.kind, event.text) == (145.0, "gpu-lost", f"GPU 1 does not answer the driver: {why}")
    (found,) = answer.report.causes
    assert (found.id, found.severity, found.hosts) == ("gpu.fell-off-bus.lost", Severity.FAIL, ("gpu02",))
    assert found.title == "GPU 1 (0000:01:00.0) was lost for 11 s, and did not come back"
    assert found.evidence[0].text == f"no sample from 140 s to 151 s of the watch: {why}"
    assert gaps(answer) == {("GPUs over time", ("gpu02",))}
    assert "lost 11 s" in printed(answer), "the table shows this GPU"


def test_a_gpu_of_which_nothing_may_be_asked_is_not_lost() -> None:
    answer = told(watched.bundle(gpu_changes={"gpu02": during(145, 999, refuse_all("not permitted", 1))}))
    assert not answer.events and "gpu.fell-off-bus.lost" not in {item.id for item in answer.report.causes}


def test_a_gpu_that_was_lost_for_a_while_is_a_warning() -> None:
    answer = told(watched.bundle(gpu_changes={"gpu02": during(50, 65, refuse_all("GPU is lost", 1))}))
    (found,) = answer.report.causes
    assert (found.id, found.severity) == ("gpu.fell-off-bus.lost", Severity.WARN)
    assert found.title.endswith("was lost for 20 s, and came back")
    assert [event.text for event in answer.events][1] == "GPU 1 answers again, after 20 s"


def test_what_follows_from_a_lost_gpu_is_folded_under_it() -> None:
    def die(now_s: float, sample: dict[str, Any]) -> None:
        logged("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")(now_s, sample)
        if now_s > 60:
            del sample["ranks"]["4005"]

    lost = during(50, 999, refuse_all("GPU is lost", 1))
    answer = told(watched.bundle({"gpu02": die}, {"gpu02": lost}))
    assert {item.id for item in answer.report.causes} == {"gpu.fell-off-bus", "gpu.fell-off-bus.lost"}
    assert {item.id for item in answer.report.findings} == {
        "gpu.fell-off-bus",
        "gpu.fell-off-bus.lost",
        "hang.rank-gone.ended",
    }


def test_where_no_gpu_answers_and_none_is_called_lost_it_is_the_driver() -> None:
    silent = during(100, 999, refuse_all("Unknown Error", 0, 1, 2, 3))
    (found,) = told(watched.bundle(gpu_changes={"gpu02": silent})).report.causes
    assert (found.id, found.severity, len(found.places)) == ("gpu.driver.failed", Severity.FAIL, 4)
    lost = during(100, 999, refuse_all("GPU is lost", 0, 1, 2, 3))
    all_lost = told(watched.bundle(gpu_changes={"gpu02": lost})).report.causes
    assert {item.id for item in all_lost} == {"gpu.fell-off-bus.lost"} and len(all_lost) == 4


def test_a_gpu_that_was_lost_before_is_a_fault() -> None:
    bundle = watched.bundle()
    bundle.hosts[1].probes["gpu"].data["proc_gpus"] = [{"bus_id": f"0000:{index:02x}:00.0"} for index in range(5)]
    item = only(told(bundle))
    assert (item.id, item.hosts) == ("gpu.not-visible.fewer-than-bus", ("gpu02",)) and "0000:04:00.0" in item.title


def every_third(now_s: float, sample: dict[str, Any]) -> None:
    """Two of three samples do not come."""
    if now_s % 15:
        sample.clear()


def test_where_samples_are_lost_what_happened_is_unknown() -> None:
    slow = told(watched.bundle({"gpu02": every_third}, samples=90))
    assert slow.report.verdict == "incomplete" and gaps(slow) == {("the host over time", ("gpu02",))}
    assert slow.report.unknown[0].why == "30 of 90 samples came"
    blind = told(watched.bundle(gpu_changes={"gpu02": every_third}, samples=90))
    assert blind.report.verdict == "incomplete" and gaps(blind) == {("GPUs over time", ("gpu02",))}


def test_hosts_without_gpus_are_judged_by_the_rest() -> None:
    assert clean(told(watched.bundle(gpus=0)))


# What is kept


def test_a_series_stays_small_and_keeps_its_course() -> None:
    series = Series()
    for number in range(10_000):
        series.add(float(number), 2.0 * number)
    points = series.points()
    assert POINTS / 2 <= len(points) <= POINTS
    assert all(amount == pytest.approx(2 * at) for at, amount in points)
    assert points[0][0] < 200 and points[-1][0] > 9_700


def leaves(told: Any, *place: Any) -> Iterator[tuple[Any, ...]]:
    """Where each value of a sample stands, and each part of it."""
    if place:
        yield place
    for key in told if isinstance(told, dict) else range(len(told)) if isinstance(told, list) else ():
        yield from leaves(told[key], *place, key)


def test_a_value_of_any_other_type_costs_a_sample_at_most() -> None:
    """Whatever stands in its place: the watch goes on, the samples before and after count, and all of it can be told."""
    sample = watched.host_sample(5.0, range(1), 1)
    logged(HOSTILE)(50.0, sample)
    step = {"at_s": 5.0, "cost_s": 1.0, "samples": [watched.gpu_sample(0)]}
    refused = 0
    for whole, place in [(sample, place) for place in leaves(sample)] + [(step, place) for place in leaves(step)]:
        for odd in ("x", "", -1, 1.5, 1e308, 10**400, True, None, [], {}, [None], {"x": None}, {"9": "x"}):
            broken = copy.deepcopy(whole)
            inner = broken
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = odd
            series = HostSeries("gpu01", 5.0)
            for number, told in enumerate((whole, broken, whole)):
                (series.take if whole is sample else series.take_gpus)(told, 5.0 * number)
                live_rows([series], verbose=True)
                summary([series])
            results = series.results(20.0)
            msgspec.json.encode(results)
            assert series.samples + series.unread == (3 if whole is sample else 0), (place, odd)
            assert series.asked() and series.unread <= 1
            refused += series.unread
    assert refused > 500


def test_samples_that_cannot_be_read_are_unknown_and_the_rest_is_judged() -> None:
    def odd(now_s: float, sample: dict[str, Any]) -> None:
        sample["memory"]["MemTotal"] = "1 TB"

    answer = told(watched.bundle({"gpu01": during(50, 60, odd)}, {"gpu02": HOT}))
    assert {(item.id, item.hosts) for item in answer.report.causes} == {("gpu.thermal-power.hw-thermal", ("gpu02",))}
    (gap,) = answer.report.unknown
    assert (gap.what, gap.hosts) == ("the host over time", ("gpu01",))
    assert gap.why == "2 of 30 samples cannot be read: Expected `float`, got `str` - at `$.memory[...]`"
    assert [event.text for event in answer.events if event.host == "gpu01"] == [
        "a sample that cannot be read: Expected `float`, got `str` - at `$.memory[...]`"
    ], "told once"
    blind = told(watched.bundle(gpu_changes={"gpu02": during(50, 60, one_gpu(1, temperature_c="hot"))}))
    assert not blind.report.causes and gaps(blind) == {("GPUs over time", ("gpu02",))}
    assert "got `str` - at `$.samples[1].temperature_c`" in blind.report.unknown[0].why
    none = told(watched.bundle({"gpu01": odd}, gpus=0))
    assert not none.report.causes and ("the host over time", ("gpu01",)) in gaps(none), "it is no silent host"


def test_a_long_watch_does_not_grow() -> None:
    def noisy(now_s: float, sample: dict[str, Any]) -> None:
        sample["log"]["told"]["lines"] = [{"at_s": now_s, "text": "NVRM: noise"}] * 40
        sample["nics"][f"veth{now_s:.0f}"] = copy.deepcopy(sample["nics"]["eth0"])
        if now_s > 5000:
            del sample["nics"]["mlx5_0/1"]
        sample["killed"][f"/sys/fs/cgroup/job/step_{now_s:.0f}/memory.events"] = 0

    series, now_s = watched.series("gpu01", range(4), 4, 1500, noisy, HOT, 4)
    results = series.results(now_s)
    fact = results["watch"].fact(Watch)
    assert len(fact.events) == EVENTS and fact.events_left_off > 1000 and len(fact.nics) == GONE_NICS_KEPT + 2
    assert [nic.name for nic in fact.nics if nic.rdma and nic.gaps], "gone before those of hundreds of containers"
    assert len(fact.killed_in) == 2
    log = results["kernel_log"].fact(KernelLogFact)
    assert len(log.lines) == 500 and log.left_off > 50_000
    assert len(msgspec.json.encode(results)) < 500_000


def test_a_flood_of_the_kernel_log_pushes_no_xid_out_and_is_a_gap() -> None:
    def flood(now_s: float, sample: dict[str, Any]) -> None:
        logged("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.")(now_s, sample)
        if now_s > 50:
            sample["log"]["told"].update(lines=[{"at_s": now_s, "text": "mlx5_core: Link down"}] * 40, left_off=3)

    answer = told(watched.bundle({"gpu02": flood}))
    assert "gpu.fell-off-bus" in {item.id for item in answer.report.causes}
    assert "360 of its lines were too many to keep" in {gap.why for gap in answer.report.unknown}


def test_a_flood_of_the_kernel_log_is_told_in_a_few_lines() -> None:
    answer = told(watched.bundle({"gpu02": logged(*[f"NVRM: line {number}" for number in range(50)])}))
    assert len(answer.events) == LINES_TOLD + 1 and "and 45 more lines" in answer.events[-1].text


def test_a_throttle_that_comes_and_goes_is_told_once_a_minute() -> None:
    def flicker(now_s: float, step: dict[str, Any]) -> None:
        if now_s % 10 == 0:
            HOT(now_s, step)

    events = told(watched.bundle(gpu_changes={"gpu02": flicker})).events
    assert [event.kind for event in events] == ["throttle"]
    assert events[0].text == "GPU 2 is throttled: hardware thermal slowdown, 91 C, SM clock 1100 MHz"


# What is printed


def printed(answer: Answer, **options: Any) -> str:
    stream = io.StringIO()
    render(answer, text_console(stream), **options)
    return stream.getvalue()


def test_the_answer_has_the_verdict_the_table_events_and_the_exit_code() -> None:
    answer = told(watched.bundle(gpu_changes={"gpu02": HOT}))
    text = printed(answer, exit_code=11)
    assert text.startswith("✗ FAULTY: 1 problem on 1 of 2 hosts") and "exit 11" in text
    assert "gpu02   2   97 91 542 1100" in text and "throttled 100 %" in text
    assert "[    5.0 s] gpu02  GPU 2 is throttled" in text
    every = printed(answer, verbose=True)
    assert sum(line.startswith("gpu02 ") for line in every.splitlines()) == 4
    assert printed(told(watched.bundle())).startswith("✓ NOTHING SEEN: nothing wrong was seen on 2 of 2 hosts in 2 min")
    assert printed(told(watched.bundle(samples=3))).startswith("? INCOMPLETE")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_number_of_the_table_is_cut(width: int) -> None:
    row = Row(
        (
            "a-host-with-a-long-name.example.org",
            "7",
            "100",
            "101",
            "1200",
            "1980",
            "100",
            "100",
            "2048.0",
            "800.00",
            "16",
            "HOT",
        )
    )
    lines = table([row], width).plain.splitlines()
    assert all(len(line) <= width for line in lines)
    words = [word for word in lines[1].split()[1:] if word != "H…"]  # what is cut is the remark
    assert words == list(row.cells[1 : 1 + len(words)]) and len(words) >= 4
    assert width < 80 or words[-1] == "HOT"


def test_where_there_is_room_for_few_lines_those_in_trouble_come_first() -> None:
    rows = [Row((f"n{number}", *["1"] * 10, ""), 2 * (number == 70)) for number in range(99)]
    lines = table(rows, 100, 10).plain.splitlines()
    assert len(lines) == 11 and lines[1].startswith("n70 ") and "90 more lines, 0 of them in trouble" in lines[-1]


def test_the_live_table_shows_the_worst_gpu_and_who_is_silent() -> None:
    hot, _ = watched.series("gpu01", range(4), 4, 3, None, HOT, 4)
    gone, _ = watched.series("gpu02", range(4), 4, 3, None, None, 4)
    gone.fall_silent(20.0, "connection lost")
    first, second = live_rows([hot, gone], verbose=False)
    assert first.cells[:6] == ("gpu01", "2", "97", "91", "542", "1100") and first.cells[-1] == "HOT"
    assert second.trouble == 2 and "SILENT since 15 s" in second.cells[-1] and second.cells[2] == "-"
    assert len(live_rows([hot, gone], verbose=True)) == 5
    assert "1 of 2 hosts answer, 3 samples of each, 4 GPUs at 97 %" in summary([hot, gone])
    new = HostSeries("gpu03", 5.0)
    assert live_rows([new], verbose=False)[0].cells[-1] == "..."
    new.fall_silent(1.0, "not reached: Connection refused")
    assert live_rows([new], verbose=False)[0].cells[-1] == "NOT REACHED"
    lost, _ = watched.series("gpu04", range(4), 4, 3, None, both(HOT, during(15, 99, refuse_all("GPU is lost", 3))), 4)
    assert live_rows([lost], verbose=False)[0].cells[1:3] == ("3", "-")
    assert live_rows([lost], verbose=False)[0].cells[-1] == "GPU LOST" and "3 samples of each" in summary([lost])


def test_hosts_without_gpus_have_no_columns_for_them() -> None:
    series, _ = watched.series("vm", range(1), 1, 2, None, None, 0)
    assert table(live_rows([series], verbose=False), 80).plain.splitlines() == [
        "host CPU% freeGiB  Gb/s ranks",
        "vm     47   800.0 32.00     1",
    ]


def test_64_hosts_fit_a_terminal_and_the_answer_two_pages() -> None:
    changes = {f"gpu{number:02}": HOT for number in (3, 17, 40)}
    gone = dict.fromkeys(("gpu09", "gpu10"), "connection lost")
    answer = told(watched.bundle(gpu_changes=changes, hosts=64, gpus=8, silent=gone, samples=12))
    text = printed(answer)
    assert len(text.splitlines()) < 70 and "gpu[03,17,40]" in text and "45 more lines, 0 of them in trouble" in text
    series = [watched.series(f"gpu{number:02}", range(4), 4, 2, None, None, 8)[0] for number in range(64)]
    series[50].fall_silent(20.0, "connection lost")
    lines = table(live_rows(series, verbose=False), 80, 21).plain.splitlines()
    assert len(lines) == 22 and lines[1].startswith("gpu50") and lines[1].endswith("SILENT since 10 s")


def test_without_a_terminal_a_line_comes_as_soon_as_each_host_has_told_something_and_then_now_and_then() -> None:
    stream = io.StringIO()
    live = LiveWatch(Console(file=stream, width=100))
    first, second = HostSeries("gpu01", 5.0), HostSeries("gpu02", 5.0)
    first.take(watched.host_sample(1.0, range(1), 1), 1.0)
    live.tick(1.0, [first, second])
    assert not stream.getvalue()
    second.fall_silent(2.0, "not reached")
    for now_s in (2.0, 3.0, 61.0, 62.0, 63.0):
        live.tick(now_s, [first, second])
    lines = stream.getvalue().splitlines()
    assert [line[:12] for line in lines] == ["[    2.0 s] ", "[   62.0 s] "]
    assert lines[0].endswith("1 of 2 hosts answer, 1 sample of each, 1 rank")


def test_a_host_of_which_nothing_came_yet_is_one_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    run = collect._Watch(
        [HostEntry("new")], collect.WatchOptions(ConnectOptions()), LiveWatch(Console(file=io.StringIO()))
    )
    run.reached["new"] = session = object.__new__(Session)
    session.reach = Reach(ReachOutcome.OK)
    bundle = msgspec.structs.replace(watched.bundle(hosts=1), hosts=(run.facts(HostEntry("new"), 0.5),))
    answer = told(bundle)
    assert {gap.why for gap in answer.report.unknown} == {"no sample"} and not answer.hosts
    assert printed(answer).count("not checked") == 1


HOSTILE = "\x1b]0;gotcha\x07 \x1b[2J\x9b31m [bold]x[/bold] \u202e"


def test_no_text_of_a_host_drives_the_terminal() -> None:
    def change(now_s: float, sample: dict[str, Any]) -> None:
        logged(HOSTILE)(now_s, sample)
        sample["nics"][HOSTILE] = sample["nics"].pop("eth0")
        for process in sample["job"]["processes"]:
            process["script"] = HOSTILE
        if now_s > 60:
            del sample["ranks"]["4005"]

    answer = told(watched.bundle({"gpu02": change}))
    stream = io.StringIO()
    live = LiveWatch(Console(file=stream, width=100))
    for event in answer.events:
        live.event(event)
    for text in (stream.getvalue(), printed(answer, verbose=True)):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text) and "[bold]" in text
        assert visible(HOSTILE).split()[0] in text


# The command


def test_a_saved_watch_is_judged_again(tmp_path: Path) -> None:
    saved = tmp_path / "watch.ndb"
    bundles.write(watched.bundle(gpu_changes={"gpu02": HOT}), saved)
    done = CliRunner().invoke(cli.app, ["watch", "--from", str(saved)])
    assert done.exit_code == ExitCode.FINDINGS and "gpu.thermal-power.hw-thermal" in done.output
    document = json.loads(CliRunner().invoke(cli.app, ["watch", "--from", str(saved), "--format", "json"]).stdout)
    assert (document["verdict"], document["exit_code"]) == ("faulty", 11)
    assert document["playbooks"]["gpu.thermal-power.hw-thermal"] == "gpu.thermal-power.hw-thermal"
    lenient = tmp_path / "thresholds.yaml"
    lenient.write_text("watch.throttled.share: .inf\n")
    judged = CliRunner().invoke(cli.app, ["watch", "--from", str(saved), "--thresholds", str(lenient)])
    assert judged.exit_code == ExitCode.HEALTHY


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--for 0", "--for '0': expected a time"),
        ("--for soon", "--for 'soon': expected a time such as 90s, 10m or 2h, up to 30d"),
        ("--for 99d", "--for '99d': expected a time"),
        ("--every 0.1", "--every '0.1': expected a time such as 5s, from 0.5s to 10m"),
        ("--every nan --for 1", "--every 'nan': expected a time"),
        ("--save /nowhere/x", "there is no directory"),
        ("--from x.ndb --every 3", "--every would change nothing"),
        ("--from x.ndb --for 9", "--for would change nothing"),
        ("hostfile", "hosts are named by --hosts FILE or -H HOSTS"),
    ],
)
def test_bad_input_is_told(words: str, why: str) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["watch", *words.split()])
    assert done.exit_code == ExitCode.USAGE and why in done.output


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("2d", 172800.0)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert _options.seconds(text, "--for", "90s", most=1e6) == seconds
    assert _options.time_option("", most=1e6).parser(text) == seconds
