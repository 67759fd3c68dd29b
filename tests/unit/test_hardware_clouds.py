"""Machines of clouds, workstations and large vendors as they really answer: healthy ones are not called faulty.

PCIe links as nvidia-smi -q of such machines prints them in public threads, November 2026.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.findings.model import Finding
from nccl_doctor.rules.judge import Report
from tests.hardware_kit import fleet, machines
from tests.hardware_kit.fleet import Facts, words
from tests.hardware_kit.machines import Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")


def report(*hosts: Facts, **plan: Any) -> Report:
    return fleet.report({f"gpu{number:02d}": one for number, one in enumerate(hosts, 1)}, **plan)


def found(*hosts: Facts, **plan: Any) -> dict[str, Finding]:
    return {item.id: item for item in report(*hosts, **plan).findings}


def grades(findings: dict[str, Finding]) -> dict[str, str]:
    return {id: item.severity.value for id, item in findings.items()}


def cards(facts: Facts, *answers: dict[str, Any], name: str = "NVIDIA L40S", virtual: bool = False) -> Facts:
    """The machine with as many cards without NVLink as there are answers."""
    changed = copy.deepcopy(facts)
    data = changed["gpu"]["data"]
    plain = {"name": name, "nvlinks": [], "fabric": None}
    data.update(gpus=[{**gpu, **plain, **one} for gpu, one in zip(data["gpus"], answers, strict=False)])
    data.update(system={**data["system"], "count": len(answers)}, nvswitches=0, pairs=[])
    seen = {gpu["bus_id"] for gpu in data["gpus"]}
    data.update({key: [one for one in data[key] if one["bus_id"] in seen] for key in ("pci_gpus", "proc_gpus")})
    data["smi"]["gpus"] = [one for one in data["smi"]["gpus"] if one["bus_id"] in seen]
    topology = changed["topology"]["data"]
    topology.update(hypervisor="Amazon EC2" if virtual else None, matrix={"outcome": "not-run", "text": ""}, devices=[])
    return changed


X8 = {"pcie_width": 8, "pcie_width_max": 16, "pcie_gen": 4, "pcie_gen_max": 4, "pcie_gen_gpu_max": 4}
X16 = {**X8, "pcie_width": 16}
SAVING = {"pcie_gen": 1, "performance_state": 8}


@pytest.mark.parametrize(
    ("answers", "virtual", "wanted"),
    [
        ([X8], True, {"gpu.pcie.slot-limited": "info"}),  # EC2 g5.xlarge: A10G, busy or idle
        ([X8] * 8, True, {"gpu.pcie.slot-limited": "info"}),  # g5.48xlarge
        ([X8], False, {"gpu.pcie.slot-limited": "warn"}),  # an L4 in a short slot
        ([{**X8, **SAVING}] * 2, False, {"gpu.pcie.slot-limited": "warn"}),  # two cards share the lanes of one slot
        ([X16, {**X16, "pcie_width": 4, "pcie_width_max": 4}], False, {"gpu.pcie.slot-limited": "warn"}),
        ([X16, {**X16, "pcie_gen_max": 3, "pcie_gen": 3}], False, {"gpu.pcie.slot-limited": "warn"}),
        ([X16] * 3 + [X8], False, {"gpu.pcie.width": "fail"}),  # its neighbours prove that the slots have more
        ([X16] * 3 + [{**X16, "pcie_width": 4, "pcie_width_max": 4}], False, {"gpu.pcie.width": "fail"}),
        ([X16] * 2 + [X8] * 2, False, {"gpu.pcie.slot-limited": "warn"}),  # half of them: built so, as far as one knows
        ([{**X16, **SAVING}] * 3 + [{**X16, "performance_state": 8}], False, {}),  # one has just been used
        ([X16] * 3 + [{**X16, **SAVING}], False, {}),
    ],
)  # fmt: skip
def test_pcie_of_cards(answers: list[dict[str, Any]], virtual: bool, wanted: dict[str, str], healthy: Facts) -> None:
    seen = found(cards(healthy, *answers, virtual=virtual))
    assert grades(seen) == wanted
    if "gpu.pcie.width" in seen:
        assert {place.gpu for place in seen["gpu.pcie.width"].places} == {"3 (0000:4b:00.0)"}


def test_a_module_has_all_lanes_even_alone(tmp_path: Path) -> None:
    machine = Machine.alone(tmp_path)
    machine.model["pcie_width"] = "8"
    item = found(machine.facts())["gpu.pcie.width"]
    assert item.severity.value == "fail"
    assert item.evidence[0].text == "PCIe link width: x8, maximum x16"  # there are no others to speak of


def test_a_part_of_a_board_whose_gpus_are_joined_to_each_other(healthy: Facts) -> None:
    """EC2 p3.8xlarge: four of the eight V100s of a board have four of six links up."""
    volta = {"name": "Tesla V100-SXM2-16GB"}
    links = [{"link": n, "active": n < 4} for n in range(6)]
    lost = [{"link": n, "active": n < 3} for n in range(6)]
    quarter = [{**volta, "nvlinks": links}] * 3
    assert found(cards(healthy, *quarter, quarter[0], virtual=True)) == {}
    item = found(cards(healthy, *quarter, {**volta, "nvlinks": lost}, virtual=True))["gpu.nvlink.link-down"]
    assert "3 of 4" in words(item) and [place.gpu for place in item.places] == ["3 (0000:4b:00.0)"]
