"""Machines that are not eight H100s on bare metal: superchips, integrated GPUs, vGPUs, cards, clouds, containers, AMD.

Each is healthy and must not be blamed; what differs there from NVML's usual answers is in docs/hardware.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.facts.gpu_models import find
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.rules.judge import Report
from tests.hardware_kit import machines
from tests.hardware_kit.fleet import report, words
from tests.hardware_kit.machines import Hca, Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")

_COUNTERS = [f"ecc_{kind}_{since}" for kind in ("corrected", "uncorrected") for since in ("volatile", "aggregate")]
_OTHERS = ["ecc_mode", "remapped_correctable", "gsp_firmware", "inforom", "mig_mode", "fabric_state", "field_82"]
NO_ECC = dict.fromkeys([*_COUNTERS, *_OTHERS], "ns")


def judged(facts: dict[str, Any], hosts: int = 1, **plan: Any) -> Report:
    return report({f"gpu{n:02d}": facts for n in range(1, hosts + 1)}, **plan)


def blamed(found: Report) -> dict[str, Finding]:
    return {item.id: item for item in found.findings if item.severity is not Severity.INFO}


def gb200(directory: Path) -> Machine:
    """A compute tray of an NVL72 rack: C2C to the CPU, memory as NUMA nodes, a clique of the rack, IMEX."""
    machine = Machine(directory, gpus=4, nics=4)
    machine.model.update(
        name="NVIDIA GB200", capability="10.0", memory_total=str(189471 << 20), memory_used=str(60 << 30),
        pcie_width="1", pcie_width_max="1", pcie_gen_max="5", pcie_gen_gpu_max="6", power_limit_mw="1200000",
        power_default_mw="1200000", nvlink_errors="ns", field_214="0", field_211="3", fabric_cluster="171",
        temperature_threshold_0="ns", temperature_threshold_1="ns", temperature_threshold_2="ns",
        temperature_margin="51",
    )  # fmt: skip
    for index, gpu in enumerate(machine.gpus):
        gpu["memory_numa_node"] = str(2 + 8 * index)
    machine.nvswitches, machine.fabric_manager, machine.iommu = 0, False, "DMA-FQ"
    machine.modules -= {"nvidia_peermem"}
    machine.files["/dev/nvidia-caps-imex-channels/channel0"] = ""
    names = [f"GPU{i}" for i in range(4)] + [f"NIC{i}" for i in range(4)]
    rows = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for a, one in enumerate(names):
        near = ["X" if a == b else "NV18" if a < 4 and b < 4 else "SYS" if a < 4 or b < 4 else "NODE" for b in range(8)]
        rows.append("\t".join([one, *near, *(("0-71", "0", str(2 + 8 * a)) if a < 4 else ())]))
    machine.matrix = "\n".join(rows) + "\n"
    return machine


def gh200(directory: Path) -> Machine:
    """One Grace Hopper with the name that every memory size has, its NVLinks unused, page cache in its memory."""
    machine = Machine(directory, gpus=1, nics=0)
    machine.model.update(
        name="NVIDIA GH200 480GB", memory_total=str(97871 << 20), memory_used=str(30 << 30), pcie_width="4",
        nvlinks_down=machines.ALL_LINKS, fabric_state="ns",
    )  # fmt: skip
    machine.nvswitches, machine.fabric_manager, machine.iommu = 0, False, "DMA"
    return machine


def spark(directory: Path) -> Machine:
    """DGX Spark: one GB10 with the host's memory, which NVML therefore does not tell."""
    machine = Machine(directory, gpus=1, nics=4)
    machine.model.update(
        NO_ECC, name="NVIDIA GB10", capability="12.1", memory_total="ns", bar1_total="ns", power_limit_mw="ns",
        power_default_mw="ns", nvlinks="ns", pcie_gen="1", pcie_gen_max="1", pcie_gen_gpu_max="5", pcie_width="1",
        pcie_width_max="1", clock_application_1="ns", temperature_threshold_2="ns",
    )  # fmt: skip
    machine.nvswitches, machine.fabric_manager = 0, False
    machine.roce()
    machine.matrix = (
        "\tGPU0\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNODE\tNODE\t0-19\t0\tN/A\n"
    )
    machine.matrix += "NIC0\tNODE\t X \tPIX\nNIC1\tNODE\tPIX\t X \n"
    return machine


def jetson(directory: Path) -> Machine:
    """An integrated GPU: no PCI address, and a driver that knows next to nothing of it."""
    machine = Machine(directory, gpus=1, nics=0)
    told = {"name": "Orin (nvgpu)", "capability": "8.7", "compute_mode": "0"}
    machine.model = {**dict.fromkeys(machine.model, "ns"), **told}
    machine.gpus[0].update(bus_id="ns", serial="ns", minor="ns")
    machine.on_bus, machine.nvswitches, machine.fabric_manager = [], 0, False
    machine.files["/dev/nvidia0"] = ""
    return machine


def consumer(directory: Path) -> Machine:
    """Two idle GeForce cards: no ECC, no NVLink, no P2P, a lowered PCIe generation, a desktop."""
    machine = Machine(directory, gpus=2, nics=0)
    machine.model.update(
        NO_ECC, name="NVIDIA GeForce RTX 4090", capability="8.9", memory_total=str(24564 << 20), pcie_gen="1",
        pcie_gen_max="4", pcie_gen_gpu_max="4", performance_state="8", p2p_0="2", p2p_1="2", p2p_2="5", nvlinks="ns",
        graphics_processes="1234:52428800", power_limit_mw="450000", power_default_mw="450000",
    )  # fmt: skip
    machine.nvswitches, machine.fabric_manager, machine.open_module = 0, False, False
    return machine


def one_bridge(directory: Path) -> Machine:
    """Three cards, two of them joined by a bridge: the third has nothing to be joined to."""
    machine = Machine(directory, gpus=3, nics=0)
    machine.model.update(NO_ECC, name="NVIDIA RTX A6000", capability="8.6", nvlinks="4", memory_total=str(49140 << 20))
    machine.model.update(pcie_gen="4", pcie_gen_max="4", pcie_gen_gpu_max="4", p2p_0_2="3", p2p_1_2="3")
    machine.gpus[2]["nvlinks_down"] = ",0,1,2,3,"
    machine.nvswitches, machine.fabric_manager = 0, False
    rows = ["\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity", "GPU0\t X \tNV4\tSYS\t0-63\t0"]
    machine.matrix = "\n".join([*rows, "GPU1\tNV4\t X \tSYS\t0-63\t0", "GPU2\tSYS\tSYS\t X \t64-127\t1"]) + "\n"
    return machine


def vgpu(directory: Path) -> Machine:
    """A virtual machine with two shares of GPUs: what the host keeps for itself is not supported."""
    machine = Machine(directory, gpus=2, nics=0)
    ecc = {key: "err:22" for key in NO_ECC if key.startswith("ecc")}
    machine.model.update({**NO_ECC, **ecc, "name": "NVIDIA H200-141C", "nvlinks": "ns", "pcie_width": "ns"})
    machine.model.update(pcie_gen="ns", pcie_replays="ns", power_mw="ns", power_limit_mw="ns", temperature_0="ns")
    machine.hypervisor, machine.nvswitches, machine.fabric_manager = True, 0, False
    return machine


def part_of_a_board(directory: Path) -> Machine:
    """A container that was given four of eight H100s: the others' files are closed by the cgroup, /proc is masked."""
    machine = Machine(directory)
    for gpu in machine.gpus[4:]:
        gpu["handle"] = "np"
    machine.files["/.dockerenv"] = ""
    for bus in machine.on_bus:
        machine.files[f"/proc/driver/nvidia/gpus/{bus}/information"] = ""
    machine.smi_hides = {4, 5, 6, 7}
    return machine


def efa(directory: Path) -> Machine:
    """AWS: EFA instead of InfiniBand, without link layer, GID choice and port counters, in a virtual machine."""
    machine = Machine(directory)
    machine.hcas = [
        Hca(f"rdmap{i}s0", Machine.nic_bus(i), "Unspecified", "100 Gb/sec", hca_type="", board_id="", fw_ver="0.0.0.0")
        for i in range(8)
    ]
    machine.hypervisor = True
    return machine


def cpu_only(directory: Path) -> Machine:
    """A machine without GPU where torch and a container image brought NVIDIA's libraries along."""
    machine = Machine(directory, gpus=0, nics=0)
    machine.modules, machine.on_bus, machine.nvswitches, machine.smi_missing = set(), [], 0, True
    machine.fabric_manager = False
    machine.settings["init"] = "err:9"
    return machine


def amd(directory: Path) -> Machine:
    """Eight AMD accelerators on the bus."""
    machine = cpu_only(directory)
    for index in range(8):
        base = f"/sys/bus/pci/devices/{Machine.gpu_bus(index)}"
        machine.files.update(
            {f"{base}/vendor": "0x1002\n", f"{base}/class": "0x038000\n", f"{base}/device": "0x74a1\n"}
        )
    return machine


HEALTHY: tuple[Callable[[Path], Machine], ...] = (
    gb200, gh200, spark, jetson, consumer, one_bridge, vgpu, part_of_a_board, efa, cpu_only, amd,
)  # fmt: skip


def facts_of(machine: Machine) -> dict[str, Any]:
    facts = machine.facts()
    if "efa" in str(machine.directory):  # what sysfs shows of an EFA that the kit's trees do not
        for device in facts["infiniband"]["data"]["devices"]:
            device["pci_vendor"] = "0x1d0f"
            for port in device["ports"]:
                port.update(counters={}, counters_before={})
    return facts


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)
def test_a_healthy_machine_is_not_blamed(make: Callable[[Path], Machine], tmp_path: Path) -> None:
    """Neither alone nor among its like."""
    place = tmp_path / make.__name__
    place.mkdir()
    facts = facts_of(make(place))
    for hosts in (1, 2):
        found = judged(facts, hosts)
        assert {id: words(item) for id, item in blamed(found).items()} == {}
        closed = {"GPU 4, 5, 6, 7"} if make is part_of_a_board else set()
        assert {gap.what for gap in found.unknown} <= closed, found.unknown


def test_a_superchip_says_nothing_is_wrong_with_its_nics(tmp_path: Path) -> None:
    found = judged(gb200(tmp_path).facts())
    assert [item.id for item in found.findings] == []


def test_page_cache_in_a_superchips_memory_is_told_from_a_leak(tmp_path: Path) -> None:
    """The driver says whether its memory is a node of the host; where it does not say, the model does."""
    machine = gh200(tmp_path)
    machine.model["memory_numa_node"] = "-1"
    assert set(blamed(judged(machine.facts()))) == {"gpu.busy.memory-without-process"}


def test_iommu_translation_is_a_superchips_way(tmp_path: Path) -> None:
    machine = gh200(tmp_path)
    machine.model["name"] = "NVIDIA H100 PCIe"
    machine.model.update(pcie_width="16", memory_used="0")
    assert set(blamed(judged(machine.facts()))) == {"gpu.p2p.iommu"}


@pytest.mark.parametrize(("margin", "told"), [(3, True), (4, False), (-1, True)])
def test_distance_to_slowdown_where_no_threshold_is_told(margin: int, told: bool, tmp_path: Path) -> None:
    machine = gb200(tmp_path)
    machine.model["temperature_0"] = "70"
    machine.gpus[1]["temperature_margin"] = str(margin)
    machine.model["temperature_threshold_1"] = str(2**32 - 2)  # a driver that gives a distance (-2) as a threshold
    found = blamed(judged(machine.facts()))
    assert set(found) == ({"gpu.thermal-power.hot"} if told else set())
    assert all({place.gpu for place in item.places} == {"1 (0000:2b:00.0)"} for item in found.values())


@pytest.mark.parametrize(("field", "quote"), [("field_214_7", "NVLink 7: 1 failed"), ("field_211_3", "link integrity")])
def test_errors_of_nvlink_5(field: str, quote: str, tmp_path: Path) -> None:
    machine = gb200(tmp_path)
    machine.gpus[2][field] = "1" if "214" in field else "5000"
    found = blamed(judged(machine.facts()))
    assert set(found) == {"gpu.nvlink.errors"} and quote in words(found["gpu.nvlink.errors"])


@pytest.mark.parametrize(
    ("health", "quote"),
    [
        (0x001, "degraded bandwidth"),
        (0x010, "unhealthy route"),
        (0x004, "route recovery"),
        (0x040, "access time-out"),
        (0x500, "too few NVLinks"),
        (0x122, ""),
        (0x022, ""),
    ],
)
def test_health_of_the_fabric(health: int, quote: str, tmp_path: Path) -> None:
    machine = gb200(tmp_path)
    machine.gpus[0]["fabric_health"] = str(health)
    found = blamed(judged(machine.facts()))
    assert set(found) == ({"gpu.fabric-manager.degraded"} if quote else set())
    assert all(quote in words(item) for item in found.values())


def test_a_card_that_lost_a_part_of_its_bridge(tmp_path: Path) -> None:
    machine = one_bridge(tmp_path)
    machine.gpus[1]["nvlinks_down"] = ",2,"
    machine.matrix = (machine.matrix or "").replace("NV4", "NV3")
    found = blamed(judged(machine.facts()))
    assert set(found) == {"gpu.nvlink.link-down"} and "3 of 4" in words(found["gpu.nvlink.link-down"])


def test_nvml_that_may_not_be_asked_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.settings["init"] = "np"
    found = judged(machine.facts())
    assert blamed(found) == {}
    assert found.verdict == "incomplete"
    assert any(gap.what == "NVML" and "not permitted" in gap.why for gap in found.unknown)


@pytest.mark.parametrize(
    ("code", "id", "quote"),
    [
        (8, "gpu.driver.failed", "Insufficient External Power"),
        (11, "gpu.driver.failed", "Interrupt Request Issue"),
        (16, "gpu.driver.failed", "GPU requires restart"),
        (15, "gpu.fell-off-bus.lost", "GPU is lost"),
        (999, "gpu.fell-off-bus.lost", "Unknown Error"),
    ],
)
def test_a_gpu_that_the_driver_does_not_open(code: int, id: str, quote: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.gpus[5]["handle"] = f"err:{code}"
    machine.smi_hides = {5}
    found = blamed(judged(machine.facts()))
    assert set(found) == {id} and quote in words(found[id])
    assert found[id].places[0].gpu == "5"


def test_a_driver_older_than_our_calls(tmp_path: Path) -> None:
    """pynvml then raises an error that is none of NVML's; the call's older version answers."""
    machine = Machine(tmp_path)
    machine.model.update(processes="err:13", graphics_processes="err:13")
    machine.gpus[3]["processes_v2"] = f"4711:{40 << 30}"
    facts = machine.facts()
    assert facts["gpu"]["data"]["nvml"]["outcome"] == "ok"
    assert [process["pid"] for process in facts["gpu"]["data"]["gpus"][3]["processes"]] == [4711]


UUID = "GPU-5b1c7e2a-9d3f-4c6e-8a70-00000000000"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{UUID}3,{UUID}0", None),
        ("GPU-5b1c", 0),  # of eight GPUs
        (f"{UUID}3,{UUID}3", 1),
        ("MIG-3b2c7a1e-0000-5000-8000-000000000001", None),
        (f"MIG-{UUID}0/1/0", None),
        ("NoDevFiles", 0),
        (" 0, 1 ", None),
    ],
)
def test_cuda_visible_devices_by_name(text: str, left: int | None, healthy: dict[str, Any]) -> None:
    found = blamed(judged(healthy, env={"CUDA_VISIBLE_DEVICES": text}))
    assert set(found) == (set() if left is None else {"gpu.not-visible.cuda-visible-devices"})
    assert all(f"leaves {left} of 8" in item.title for item in found.values())


def test_names_of_gpus_that_are_not_told_are_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.gpus[1]["uuid"] = "ns"
    found = judged(machine.facts(), env={"CUDA_VISIBLE_DEVICES": f"{UUID}0,{UUID}1"})
    assert any(gap.what == "GPU UUIDs" for gap in found.unknown)
    assert "gpu.not-visible.cuda-visible-devices" not in blamed(found)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200-141C", None),
        ("NVIDIA A40-48Q", None),
        ("GRID A100X-10C", None),
        ("NVIDIA A100-1-5CME", None),
        ("NVIDIA H20-3e", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GH200 480GB", "GH200"),
    ],
)
def test_a_share_of_a_gpu_has_no_model(name: str, match: str | None) -> None:
    model = find(name)
    assert (model.match if model else None) == match


def test_a_nic_far_from_the_only_gpu(tmp_path: Path) -> None:
    """A virtual machine's PCIe tree is none to be judged by; on bare metal there is something to gain."""
    machine = Machine(tmp_path, gpus=1, nics=1)
    machine.nvswitches, machine.fabric_manager = 0, False
    machine.model.update(nvlinks_down=machines.ALL_LINKS, fabric_state="ns")
    machine.matrix = "\tGPU0\tNIC0\nGPU0\t X \tSYS\nNIC0\tSYS\t X \n"
    assert set(blamed(judged(machine.facts()))) == {"topology.nic-far"}
    machine.hypervisor = True
    assert blamed(judged(machine.facts())) == {}
