"""One GPU alone, as clouds hand it out: in a virtual machine, in a container, in a sandbox. Nothing healthy is blamed
there, and what cannot be seen from inside is said to be unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.findings.model import Severity
from nccl_doctor.rules.judge import Report
from tests.hardware_kit import fleet, machines
from tests.hardware_kit.machines import Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")

BUILD = "#1 SMP Sun Jan 10 15:06:54 PST 2016\n"
GVISORS = (f"Linux version 4.4.0 {BUILD}", f"Linux version 4.19.0-gvisor {BUILD}")  # up to April 2026, and since


def report(machine: Machine) -> Report:
    return fleet.report({"vm": machine.facts()})


def unknown(found: Report) -> set[str]:
    return {gap.what for gap in found.unknown}


def ids(found: Report) -> dict[str, Severity]:
    return {item.id: item.severity for item in found.causes}


def plain(machine: Machine) -> None:
    """A virtual machine in which we are root."""


def fabric_told(machine: Machine) -> None:
    """The same, where the host's fabric manager has registered the GPU."""
    machine.model.update(fabric_state="3")


def links_hidden(machine: Machine) -> None:
    """The driver does not answer questions about NVLinks."""
    machine.model["nvlinks"] = "ns"


@pytest.mark.parametrize("change", [plain, fabric_told, links_hidden], ids=lambda item: item.__name__)
def test_virtual_machine(change: Callable[[Machine], None], tmp_path: Path) -> None:
    machine = Machine.alone(tmp_path)
    change(machine)
    found = report(machine)
    assert ids(found) == {"gpu.nvlink.inactive": Severity.INFO}
    assert (found.verdict, unknown(found)) == ("healthy", set())


def test_container_without_rights(tmp_path: Path) -> None:
    """No kernel log, no nvidia-smi, all of the host's GPUs and switches on the bus, only ours in NVML and /proc."""
    machine = Machine.alone(tmp_path)
    machine.kernel_log, machine.smi_missing, machine.hypervisor = None, True, False
    machine.on_bus, machine.nvswitches = [Machine.gpu_bus(i) for i in range(8)], 4
    machine.files["/proc/1/cgroup"] = "0::/kubepods.slice/pod1/cri-containerd-0.scope\n"
    machine.files["/.dockerenv"] = ""
    found = report(machine)
    assert not [item for item in found.findings if item.severity is Severity.FAIL], ids(found)
    assert "kernel_log" in unknown(found) and not any("0000:2b:00.0" in gap.what for gap in found.unknown)
    assert "nvidia-smi topo -m" not in unknown(found)  # sysfs and NVML stand in for it
    assert found.verdict == "incomplete"


def test_weak_sign_of_a_container_makes_missing_gpus_unknown(tmp_path: Path) -> None:
    machine = Machine.alone(tmp_path)
    machine.on_bus = [Machine.gpu_bus(0), Machine.gpu_bus(1)]
    machine.files["/proc/1/comm"] = "sleep\n"
    found = report(machine)
    assert "gpu.not-visible.fewer-than-bus" not in ids(found)
    assert any("0000:2b:00.0" in gap.what and "pid 1 is sleep" in gap.why for gap in found.unknown)
    machine.files["/proc/1/comm"] = "systemd\n"
    assert ids(report(machine))["gpu.not-visible.fewer-than-bus"] is Severity.FAIL


@pytest.mark.parametrize("version", GVISORS, ids=["older", "newer"])
def test_sandbox(version: str, tmp_path: Path) -> None:
    """gVisor: a cut sysfs, a kernel log of its own, and calls of the driver that it does not pass on."""
    machine = Machine.alone(tmp_path)
    machine.on_bus, machine.kernel_log, machine.smi_missing = [], None, True
    machine.dmesg = "#!/bin/sh\necho '[   0.000000] Starting gVisor...'\n"
    machine.model.update(nvlinks="err:999", power_mw="err:999", clock_1="err:999", pcie_width="err:17")
    machine.files["/proc/version"] = version
    machine.files["/dev/nvidia0"] = ""
    found = report(machine)
    assert ids(found) == {}
    assert any(gap.what == "kernel_log" and "gVisor" in gap.why for gap in found.unknown)
    assert any("gVisor" in gap.why and "NVML answers" in gap.what for gap in found.unknown)
    assert any(gap.what.startswith("NVLink state") for gap in found.unknown)
    assert found.verdict == "incomplete"


def test_gpu_that_we_may_not_open_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2, nics=0)
    machine.gpus[1]["handle"] = "np"
    found = report(machine)
    assert "gpu.fell-off-bus.lost" not in ids(found)
    assert any(gap.what == "GPU 1" and "not permitted" in gap.why for gap in found.unknown)


def test_links_of_several_gpus_are_not_excused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2, nics=0)
    machine.hypervisor = True
    machine.model["nvlinks_down"] = machines.ALL_LINKS
    assert ids(report(machine))["gpu.nvlink.link-down"] is Severity.FAIL
    machine.model["nvlinks"] = "ns"
    found = report(machine)
    assert any(gap.what.startswith("NVLink state of GPU 0") for gap in found.unknown)


def test_numbers_of_links_may_have_gaps(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1, nics=0)
    machine.gpus[0]["nvlinks_absent"] = ",0,5,"
    links: list[dict[str, Any]] = machine.facts()["gpu"]["data"]["gpus"][0]["nvlinks"]
    assert [link["link"] for link in links] == [n for n in range(18) if n not in (0, 5)]


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe"])
def test_nvlinks_that_we_may_not_ask_for_are_unknown(name: str, tmp_path: Path) -> None:
    """A card without a bridge, and a module whose links are inactive, are known by answers, not by a refusal."""
    machine = Machine.alone(tmp_path)
    machine.model.update(name=name, nvlinks="np")
    found = report(machine)
    assert "gpu.nvlink.inactive" not in ids(found)
    assert [gap.why for gap in found.unknown if gap.what.startswith("NVLink state")] == ["not permitted"]


def test_a_refused_question_about_the_fabric_is_not_a_gpu_without_one(tmp_path: Path) -> None:
    """The older call, which this driver has not, must not make "not supported" of it."""
    machine = Machine.alone(tmp_path)
    machine.model["fabric_state"] = "np"
    found = report(machine)
    assert [gap.why for gap in found.unknown if gap.what == "state of the NVLink fabric"] == ["not permitted"]


@pytest.mark.parametrize(("answer", "wanted"), [("err:999", {"gpu.driver.failed"}), ("np", set())])
def test_gpus_that_nvml_does_not_count_are_not_gone(answer: str, wanted: set[str], tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2, nics=0)
    machine.settings["count"] = answer
    found = report(machine)
    assert {item.id for item in found.findings if item.severity is Severity.FAIL} == wanted
    assert any(gap.what == "NVML" and "nvmlDeviceGetCount" in gap.why for gap in found.unknown)


def test_a_gpu_that_was_counted_and_is_none_is_lost(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2, nics=0)
    machine.gpus[1]["handle"] = "err:2"  # an index that is invalid: it went between two calls
    assert ids(report(machine))["gpu.fell-off-bus.lost"] is Severity.FAIL


def test_links_behind_one_that_the_driver_fails_to_tell_are_unknown_not_down(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2, nics=0)
    machine.gpus[1]["nvlinks_failing"] = ",12,"
    found = report(machine)
    assert "gpu.nvlink.link-down" not in ids(found)
    assert any(gap.what.startswith("NVLink state of GPU 1") for gap in found.unknown)
    machine.gpus[1]["nvlinks_down"] = ",3,"  # this one is known
    assert ids(report(machine))["gpu.nvlink.link-down"] is Severity.FAIL


@pytest.mark.parametrize("code", [21, 26])
def test_what_a_driver_dropped_is_not_supported(code: int, tmp_path: Path) -> None:
    machine = Machine.alone(tmp_path)
    machine.gpus[0]["clock_application_1"] = f"err:{code}"
    gpu = machine.facts()["gpu"]["data"]["gpus"][0]
    assert gpu["errors"] == {} and "clock_sm_application_mhz" in gpu["not_supported"]
    assert gpu["throttle_reasons"] == 1  # by its old name: the stand-in lacks the new one


def test_a_driver_without_the_older_call_for_the_temperature(tmp_path: Path) -> None:
    machine = Machine.alone(tmp_path)
    machine.gpus[0].update(temperature_0="err:13", temperature_v="41")
    gpu = machine.facts()["gpu"]["data"]["gpus"][0]
    assert gpu["temperature_c"] == 41 and "temperature_c" not in gpu["not_supported"]
