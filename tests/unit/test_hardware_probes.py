"""The hardware probes' own promises: a child that hangs is killed, any bytes are read, what is not permitted is said."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.agent import isolated, nvml, probing
from nccl_doctor.agent.probes import gpu as gpu_probe
from nccl_doctor.agent.probes import kernel_log, topology
from nccl_doctor.collect.check import local_probes
from nccl_doctor.collect.run import CheckOptions
from tests.hardware_kit import fleet, machines


@pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
@pytest.mark.parametrize("stage", fleet.STAGES)
def test_one_stage_alone_asks_for_all_that_its_rules_go_by(stage: str, healthy: fleet.Facts) -> None:
    asked = {probe: told for probe, told in healthy.items() if probe in local_probes((stage,))}
    report = fleet.report({"gpu01": asked, "gpu02": asked}, (stage,))
    assert (report.verdict, report.unknown) == ("healthy", ())


def test_isolated_call_reports_in_order() -> None:
    answer = isolated.call(lambda report: [report({"n": n}) for n in range(3)] and None, 10.0)
    assert (answer.outcome, answer.reports) == ("ok", [{"n": 0}, {"n": 1}, {"n": 2}])


def test_isolated_hang_is_killed_and_keeps_what_was_told(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    def hang(report: isolated.Report) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        mark.write_text(str(os.getpid()))
        report("before")
        time.sleep(600)

    answer = isolated.call(hang, 2.0)
    assert (answer.outcome, answer.reports) == ("timed-out", ["before"])
    assert answer.seconds < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_isolated_silence_is_a_hang_before_the_limit() -> None:
    def slow_then_silent(report: isolated.Report) -> None:
        for _ in range(6):
            time.sleep(0.3)
            report("alive")
        time.sleep(600)

    answer = isolated.call(slow_then_silent, 60.0, 1.5)
    assert (answer.outcome, len(answer.reports)) == ("timed-out", 6)
    assert answer.seconds < 30


def test_isolated_calls_of_a_process_with_many_descriptors() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("no more descriptors can be had here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.dup(null) for _ in range(1100)]
    try:
        assert isolated.call(lambda report: report(1), 10.0).reports == [1]
    finally:
        for descriptor in (*held, null):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_isolated_start_may_take_longer() -> None:
    def slow_start(report: isolated.Report) -> None:
        report({"at": "nvmlInit"})
        time.sleep(1.5)
        report({"at": "next"})
        time.sleep(600)

    answer = isolated.call(slow_start, 60.0, 0.5, start_s=30.0)
    assert (answer.outcome, len(answer.reports)) == ("timed-out", 2)
    assert 1.5 < answer.seconds < 25


def test_isolated_child_holds_none_of_our_streams() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)

    def look(report: isolated.Report) -> None:
        report(sorted(os.listdir("/proc/self/fd")))

    open_there = isolated.call(look, 10.0).reports[0]
    os.close(reader)
    os.close(writer)
    assert set(open_there) <= {"0", "1", "2", "3", "4"}  # 4: the directory it lists


def test_isolated_failure_and_flood() -> None:
    def fail(report: isolated.Report) -> None:
        report(1)
        raise ValueError("x")

    def flood(report: isolated.Report) -> None:
        while True:
            report("x" * 60000)

    failed = isolated.call(fail, 10.0)
    assert (failed.outcome, failed.reports, failed.detail) == ("failed", [1], "exit status 1")
    flooded = isolated.call(flood, 10.0, limit_bytes=1 << 20)
    assert flooded.outcome == "truncated"


@given(st.text(max_size=40))
def test_any_bus_id(text: str) -> None:
    assert isinstance(nvml.bus_id(text), str)


def test_bus_id_as_sysfs_writes_it() -> None:
    assert nvml.bus_id("00000000:3B:00.0") == "0000:3b:00.0"
    assert nvml.bus_id("0000:3b:00.0") == "0000:3b:00.0"


@given(st.binary(max_size=4096))
def test_any_configuration_space(config: bytes) -> None:
    control = topology.acs_control(config.ljust(0x200, b"\0"))
    assert control is None or 0 <= control <= 0xFFFF


def test_acs_needs_extended_configuration() -> None:
    assert topology.acs_control(b"\0" * 64) is None
    looped = bytearray(4096)
    looped[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert topology.acs_control(bytes(looped)) == 0


@given(st.text(max_size=200))
def test_any_kernel_record(line: str) -> None:
    kernel_log.kmsg_record(line)


def test_kernel_log_not_permitted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    refused = probing.CommandResult("failed", 1, "", "dmesg: read kernel buffer failed: Operation not permitted", 0.0)
    monkeypatch.setattr(kernel_log, "_kmsg", refuse)
    monkeypatch.setattr(kernel_log, "run_command", lambda *_, **__: refused)
    with pytest.raises(probing.ProbeTrouble) as trouble:
        kernel_log.kernel_log({})
    assert trouble.value.outcome == "not-permitted"
    assert "root" in trouble.value.detail


def test_a_flood_of_other_lines_pushes_no_xid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = [(float(n), f"pcieport AER: corrected {n}") for n in range(1, kernel_log.KEPT + 50)]
    xid = (0.5, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    monkeypatch.setattr(kernel_log, "_kmsg", lambda _: [(0.0, "Linux version 6.8"), xid, *flood, (1e6, xid[1])])
    told = kernel_log.kernel_log({})
    texts = [line["text"] for line in told["lines"]]
    assert len(texts) == kernel_log.KEPT and texts[0] == texts[-1] == xid[1] and texts[1].endswith(" 52")
    assert told["left_off"] == 51 and told["first_s"] == 0.0
    warps = [(n + 1.0, f"NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM {n}") for n in range(kernel_log.KEPT)]
    monkeypatch.setattr(kernel_log, "_kmsg", lambda _: [xid, *warps, *flood])
    texts = [line["text"] for line in kernel_log.kernel_log({})["lines"]]
    assert texts[:2] == [xid[1], warps[-kernel_log.KEPT_OF_EACH][1]] and len(texts) == kernel_log.KEPT


def test_who_was_killed_for_want_of_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB"
    monkeypatch.setattr(kernel_log, "_kmsg", lambda _: [(0.0, "Linux version 4.18"), (9.0, killed)])
    assert [line["text"] for line in kernel_log.kernel_log({})["lines"]] == [killed]


def test_a_log_that_is_overwritten_while_it_is_read_has_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        b"6,1,1000000,-;lost neighbours",
        OSError(errno.EPIPE, ""),
        b"6,9,9000000,-;first",
        b"6,10,9100000,-;last",
    ]

    def read(descriptor: int, size: int) -> bytes:
        record = records.pop(0) if records else OSError(errno.EAGAIN, "")
        if isinstance(record, OSError):
            raise record
        return record

    monkeypatch.setattr(kernel_log, "os", types.SimpleNamespace(**{**vars(os), "read": read}))
    assert kernel_log._kmsg(str(tmp_path)) == [(9.0, "first"), (9.1, "last")]


JOURNAL = """[ 5000.000000] gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, told twice
-- no time --
[  100.250000] gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
[    1.000000] gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 7"""


@pytest.mark.parametrize(
    ("first_s", "outcome", "times"),
    [
        (5000.0, "ok", [1.0, 100.25, 5000.0]),
        (5000.0, "truncated", [100.25, 5000.0]),  # the newest are asked for first: the oldest are missing
        (5000.0, "timed-out", [100.25, 5000.0]),
        (5000.0, "failed", [5000.0]),
        (60.0, "ok", [60.0]),
        (None, "ok", [None]),
    ],
)
def test_what_the_ring_buffer_lost_is_read_from_the_journal(
    first_s: float | None, outcome: str, times: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring: kernel_log.Entries = [(first_s, "NVRM: Xid (PCI:0000:3b:00): 79, told twice")]
    monkeypatch.setattr(kernel_log, "_kmsg", lambda _: ring)
    monkeypatch.setattr(kernel_log, "run_command", lambda *_, **__: probing.CommandResult(outcome, 0, JOURNAL, "", 0.1))
    told = kernel_log.kernel_log({})
    assert [line["at_s"] for line in told["lines"]] == times
    assert told["source"] == ("/dev/kmsg, journalctl -k" if len(times) > 1 else "/dev/kmsg")


def test_a_part_of_the_log_begins_where_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of dmesg the newest lines would be missing: the journal is asked, newest first."""

    def answer(argv: list[str], **_: Any) -> probing.CommandResult:
        text = JOURNAL if "--reverse" in argv else "[    0.000000] Linux version 6.8\n"
        return probing.CommandResult("truncated", 0, text, "", 0.1)

    monkeypatch.setattr(kernel_log, "run_command", answer)
    monkeypatch.setattr(kernel_log, "_kmsg", lambda _: os.open("/nowhere", os.O_RDONLY))
    told = kernel_log.kernel_log({})
    assert (told["source"], told["first_s"], told["total"]) == ("journalctl -k", 100.25, 3)


def test_missing_pynvml_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pynvml on a host with a GPU, the probe names the module, so that the controller sends its own."""

    monkeypatch.setattr(gpu_probe, "_any_sign", lambda data: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(probing.ProbeTrouble) as trouble:
        gpu_probe.gpu({})
    assert trouble.value.outcome == "tool-missing"
    assert trouble.value.data is not None and trouble.value.data["module"] == "pynvml"


def test_an_old_pynvml_gives_way_to_the_one_that_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count 12 of 18 NVLinks (nvidia-ml-py 11.495) and never ask for the fabric."""
    old = types.ModuleType("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", old)
    assert gpu_probe.find_pynvml() is None and "pynvml" not in sys.modules
    monkeypatch.setattr(old, "nvmlDeviceGetMarginTemperature", None, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", old)
    assert gpu_probe.find_pynvml() is old


def test_slow_starts_of_the_driver_fit_into_the_probes_limit() -> None:
    """Eight GPUs that are started anew take over 25 s; what hangs longer is told by name before the probe is given up."""
    declared = probing.PROBES["gpu"]
    (host,) = [field.default for field in msgspec.structs.fields(CheckOptions) if field.name == "host_limit_s"]
    assert 30 < gpu_probe.NVML_START_S < gpu_probe.NVML_LIMIT_S
    assert gpu_probe.NVML_LIMIT_S + gpu_probe.SMI_LIMIT_S < declared.limit_s < host
