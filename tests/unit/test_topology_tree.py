"""The matrix rebuilt from sysfs and NVML: the kinds by their definitions, and against what nvidia-smi prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_in import typed

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.gpu import GpuDevice, GpuFact, NvLink
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.topology import PciDevice, TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from nccl_doctor.facts.topology_paths import signature
from nccl_doctor.facts.topology_tree import Node, differences, kind_between, node, nvlinks_between, rebuild
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules.judge import Report, judge
from tests.hardware_kit import fleet, machines
from tests.hardware_kit.machines import Machine

needs_gcc = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")

# A tree as on an HGX H100: root port, a switch (upstream port, downstream ports), and a switch below the switch.
ROOT, PORT, UP = "pci0000:15", "0000:15:01.0", "0000:16:00.0"
BELOW = (ROOT, PORT, UP)


def device(*path: str, numa: int | None = 0) -> Node:
    return node("GPU0", PciDevice(path[-1], "gpu", path=path, numa_node=numa))


CASES = [
    # two functions of one card; two devices below one switch; one of them below a second switch
    (device(*BELOW, "0000:17:00.0", "0000:18:00.0"), device(*BELOW, "0000:17:00.0", "0000:18:00.1"), "PIX"),
    (device(*BELOW, "0000:17:00.0", "0000:18:00.0"), device(*BELOW, "0000:17:01.0", "0000:1b:00.0"), "PIX"),
    (
        device(*BELOW, "0000:17:00.0", "0000:18:00.0"),
        device(*BELOW, "0000:17:01.0", "0000:1c:00.0", "0000:1d:00.0", "0000:1e:00.0"),
        "PXB",
    ),
    # two root ports of one host bridge; two host bridges of one node; of two nodes; the node not told
    (device(ROOT, PORT, "0000:16:00.0"), device(ROOT, "0000:15:02.0", "0000:26:00.0"), "PHB"),
    (device(ROOT, PORT, "0000:16:00.0"), device("pci0000:26", "0000:26:01.0", "0000:27:00.0"), "NODE"),
    (device(ROOT, PORT, "0000:16:00.0"), device("pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1), "SYS"),
    (device(ROOT, PORT, "0000:16:00.0", numa=-1), device("pci0000:26", "0000:26:01.0", "0000:27:00.0"), None),
    (device(ROOT, PORT, "0000:16:00.0"), device("pci0000:26", "0000:26:01.0", "0000:27:00.0", numa=None), None),
    (device(ROOT, "0000:00:05.0", numa=-1), device(ROOT, "0000:00:06.0", numa=-1), "PHB"),  # a virtual machine
]


@pytest.mark.parametrize(("one", "other", "kind"), CASES)
def test_kinds(one: Node, other: Node, kind: str | None) -> None:
    assert kind_between(one, other) == kind_between(other, one) == kind


def gpu(index: int, *links: NvLink) -> Node:
    bus_id = f"0000:{index:02x}:00.0"
    return node(f"GPU{index}", PciDevice(bus_id, "gpu"), GpuDevice(index, bus_id=bus_id, nvlinks=links))


def test_nvlinks_straight_and_over_switches() -> None:
    to_switch = [NvLink(n, True, remote="0000:c1:00.0", remote_type="switch") for n in range(18)]
    down = [msgspec.structs.replace(link, active=link.link != 11) for link in to_switch]
    assert nvlinks_between(gpu(0, *to_switch), gpu(1, *to_switch)) == 18
    assert nvlinks_between(gpu(0, *to_switch), gpu(1, *down)) == 17
    bridge = [NvLink(n, True, remote="0000:01:00.0", remote_type="gpu") for n in range(4)]
    assert nvlinks_between(gpu(0, *bridge), gpu(1)) == 4
    assert nvlinks_between(gpu(0, *bridge), gpu(2)) == 0


@pytest.mark.parametrize("kind", [None, "unknown", "switch"])
@pytest.mark.parametrize("remote", [None, "0000:00:00.0", "fffffff:ffff:ff"])
def test_what_is_not_visible_is_a_switch(kind: str | None, remote: str | None) -> None:
    """In a virtual machine without its NVSwitches, and with NVLink 5, whose switches are no PCI devices here."""
    hidden = [NvLink(n, True, remote=remote, remote_type=kind) for n in range(18)]
    assert nvlinks_between(gpu(1, *hidden), gpu(2, *hidden)) == 18
    card = GpuDevice(0, nvlinks=(NvLink(0, True, remote="0000:01:00.0"),))  # an old driver tells no kind
    straight = node("GPU0", PciDevice("0000:00:00.0", "gpu"), card, gpus=("0000:00:00.0", "0000:01:00.0"))
    assert nvlinks_between(straight, gpu(1, *hidden)) == 1 and nvlinks_between(straight, gpu(2, *hidden)) == 0


Facts = dict[str, Any]


def pair(facts: Facts) -> tuple[TopologyFact, GpuFact]:
    return msgspec.convert(facts["topology"]["data"], TopologyFact), msgspec.convert(facts["gpu"]["data"], GpuFact)


def report(facts: Facts) -> Report:
    return judge(bundle(facts))


def bundle(facts: Facts) -> Bundle:
    return fleet.bundle({"gpu01": facts}, ("topology",))


@needs_gcc
def test_a_whole_machine_is_rebuilt(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    printed = parse(machine.topology())
    rebuilt = rebuild(*pair(machine.facts()))
    assert rebuilt.source == "sysfs" and not rebuilt.truncated
    assert set(rebuilt.links) == set(printed.links)
    assert signature(rebuilt) == signature(printed)
    assert rebuilt.gpus == tuple(msgspec.structs.replace(gpu, gpu_numa_id=None) for gpu in printed.gpus)
    assert rebuilt.nics == printed.nics


@needs_gcc
def test_it_stands_in_for_nvidia_smi(tmp_path: Path) -> None:
    """A GPU whose links are down is found without nvidia-smi, and `topo` says where its matrix comes from."""
    machine = Machine(tmp_path)
    machine.smi_missing = True
    machine.gpus[2]["nvlinks_down"] = machines.ALL_LINKS
    facts = machine.facts()
    found = report(facts)
    (lost,) = [item for item in found.findings if item.id == "gpu.nvlink.lost"]
    assert lost.title == "GPU2 has no NVLink, all other GPUs are linked"
    assert lost.evidence[0].source == "the PCI tree in sysfs and NVML"
    path = tmp_path / "b.ndb"
    bundles.write(bundle(facts), path)
    done = typed("topo --from", path, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "rebuilt from the PCI tree in sysfs and NVML; nvidia-smi topo -m: nvidia-smi: not found" in done.output
    done = typed("topo --from", path, "--format", "json")
    assert '"source": "sysfs"' in done.output


@needs_gcc
def test_without_nvml_links_are_unknown_not_absent(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.smi_missing = True
    machine.settings["init"] = "err:9"
    topology, told = pair(machine.facts())
    rebuilt = rebuild(topology, told)
    assert rebuilt.truncated and "NVLinks are not known for GPU0, GPU1" in " ".join(rebuilt.notes)
    bare = msgspec.structs.replace(topology, devices=())
    with pytest.raises(TopologyError, match="no PCI address"):
        rebuild(bare, told)


@needs_gcc
def test_disagreement_is_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.matrix = machine.topology().replace("PIX", "PHB")
    facts = machine.facts()
    (item,) = [item for item in report(facts).findings if item.id == "topology.witnesses-differ"]
    assert item.severity is Severity.INFO
    assert item.evidence[0].text == "GPU0-mlx5_0: nvidia-smi says PHB, sysfs and NVML PIX"
    machine.matrix = None
    machine.matrix = machine.topology().replace("NV18", "NV17")
    (item,) = [item for item in report(machine.facts()).findings if item.id == "topology.witnesses-differ"]
    assert (item.severity, item.title) == (
        Severity.WARN,
        "nvidia-smi and sysfs disagree on 28 pairs of devices about NVLinks",
    )


@needs_gcc
def test_order_of_nics_is_no_difference(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.hcas.reverse()
    topology, told = pair(machine.facts())
    printed: Matrix = parse(topology.matrix.text)
    assert differences(printed, rebuild(topology, told)) == []
