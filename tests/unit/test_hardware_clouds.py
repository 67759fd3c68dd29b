"""Machines of clouds, workstations and large vendors as they really answer: healthy ones are not called faulty.

PCIe links as nvidia-smi -q of such machines prints them in public threads, November 2026.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from fleets import run

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


def with_storage(facts: Facts, *ports: dict[str, Any], board: str = "MT_0000000834") -> Facts:
    """The machine with further ports of the rails' chip on another board, two to a card, as in a DGX H100."""
    changed = copy.deepcopy(facts)
    devices = changed["infiniband"]["data"]["devices"]
    for number, port in enumerate(ports):
        extra = copy.deepcopy(devices[0])
        bus = f"0000:{0x90 + number // 2:02x}:00.{number % 2}"
        extra.update(name=f"mlx5_{8 + number}", board_id=board, bus_id=bus, path=["pci0000:90", bus])
        extra["ports"][0].update(port)
        devices.append(extra)
    return changed


STORAGE = {"rate": "200 Gb/sec (4X HDR)"}
UNPLUGGED = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}


@pytest.mark.parametrize(
    ("ports", "wanted", "words_of_it"),
    [
        ([STORAGE] * 4, {"ib.rate.degraded": "warn"}, "4 of 12 RDMA ports run at 200 Gb/s"),
        ([UNPLUGGED] * 4, {"ib.port-down": "warn"}, "4 ports of another board than the rails' are down"),
        ([STORAGE, UNPLUGGED] * 2, {"ib.rate.degraded": "warn", "ib.port-down": "warn"}, "2 of 10 RDMA ports"),
        ([{}] * 4, {}, ""),  # as fast as the rails
        ([STORAGE], {"ib.rate.degraded": "fail"}, "rail mlx5_8:1 runs at 200 Gb/s"),  # one alone: a replaced card
        ([UNPLUGGED], {"ib.port-down.disabled": "fail"}, "rail mlx5_8:1 is switched off"),
    ],
)
def test_storage_cards_with_the_chip_of_the_rails(
    ports: list[dict[str, Any]], wanted: dict[str, str], words_of_it: str, healthy: Facts
) -> None:
    seen = found(with_storage(healthy, *ports))
    assert grades(seen) == wanted
    assert not words_of_it or any(words_of_it in item.title for item in seen.values())
    for item in seen.values():
        if item.severity.value == "warn":
            assert f"'={','.join(f'mlx5_{n}:1' for n in range(8))}'" in item.fixes[0].command
            assert {place.nic for place in item.places} <= {f"mlx5_{n}:1" for n in range(8, 12)}


def test_storage_that_the_job_names_is_a_rail(healthy: Facts) -> None:
    seen = report(with_storage(healthy, STORAGE, UNPLUGGED), env={"NCCL_IB_HCA": "mlx5"})
    assert {item.severity.value for item in seen.findings} == {"fail"}


def test_where_most_rails_are_slower_nobody_knows_who_is_odd(healthy: Facts) -> None:
    slow = copy.deepcopy(healthy)
    for device in slow["infiniband"]["data"]["devices"][3:]:
        device["ports"][0].update(STORAGE)
    item = found(slow)["ib.rate.degraded"]
    assert (item.severity.value, len(item.places)) == ("warn", 5)
    slow["infiniband"]["data"]["devices"][3]["ports"][0].update(rate="400 Gb/sec (4X NDR)")
    assert found(slow)["ib.rate.degraded"].severity.value == "fail"  # half of them: those that are slower


@pytest.mark.parametrize(
    ("counters", "state", "physical", "severity"),
    [
        ({"port_rcv_packets": 0, "link_downed": 0}, "1: DOWN", "2: Polling", "warn"),  # a card without a cable
        ({"port_rcv_packets": 0, "link_downed": 1}, "1: DOWN", "2: Polling", "fail"),
        ({"port_rcv_packets": 7, "link_downed": 0}, "1: DOWN", "2: Polling", "fail"),
        ({"link_downed": 0}, "1: DOWN", "2: Polling", "fail"),  # it does not tell
        ({"port_rcv_packets": 0, "link_downed": 0}, "2: INIT", "5: LinkUp", "fail"),  # no subnet manager
    ],
)
def test_a_network_that_never_had_a_link_may_be_unused(
    counters: dict[str, int], state: str, physical: str, severity: str, healthy: Facts
) -> None:
    dead = copy.deepcopy(healthy)
    for device in dead["infiniband"]["data"]["devices"]:
        device["ports"][0].update(counters=counters, counters_before=counters, state=state, phys_state=physical)
    item = {one.id: one for one in report(dead).findings}["ib.port-down.all"]
    assert item.severity.value == severity
    assert ("nor has had a link since boot" in item.title) is (severity == "warn")
    beside = found(dead, healthy, healthy)  # others have one: then it is this host's fault
    assert beside["ib.rails-differ"].severity.value == "fail" and beside["ib.rails-differ"].hosts == ("gpu01",)


def test_advice_fits_card_and_link(healthy: Facts, healthy_roce: Facts) -> None:
    """A link that is down has no neighbour to ask for; mlxlink knows NVIDIA's cards alone."""

    def commands(facts: Facts, **values: Any) -> str:
        changed = copy.deepcopy(facts)
        changed["infiniband"]["data"]["devices"][3]["ports"][0].update(values)
        (item,) = found(changed).values()
        return "; ".join(fix.command for fix in item.fixes)

    down = commands(healthy, state="1: DOWN", phys_state="2: Polling")
    assert "mlxlink -d mlx5_3" in down and "iblinkinfo" not in down
    assert "dmesg -T | grep -iE 'mlx5_3|0000:4c:00.0'" in down
    assert "iblinkinfo" in commands(healthy, rate="200 Gb/sec (2X NDR)")
    assert "iblinkinfo" in commands(healthy, state="2: INIT")
    thor = copy.deepcopy(healthy_roce)
    for number, device in enumerate(thor["infiniband"]["data"]["devices"]):
        device.update(name=f"bnxt_re{number}", hca_type="BCM57608", pci_vendor="0x14e4")
    slow = commands(thor, rate="200 Gb/sec (2X NDR)")
    assert "rdma -d link show bnxt_re3/1; sudo ethtool ens3np0" in slow and "mlxlink" not in slow
    assert "lldpcli show neighbors ports ens3np0" in slow


def rdma(facts: Facts, **values: Any) -> Facts:
    changed = copy.deepcopy(facts)
    changed["infiniband"]["data"].update(values)
    return changed


@pytest.mark.parametrize(
    ("nic", "wanted"),
    [
        ({"class": "0x020000", "driver": "mlx5_core"}, {"ib.device-not-found.no-driver": "info"}),  # Ethernet
        ({"class": "0x020700", "driver": "mlx5_core"}, {"ib.device-not-found.no-driver": "warn"}),  # InfiniBand
        ({"class": "0x020700", "driver": None}, {"ib.device-not-found.no-driver": "warn"}),
        ({"class": "0x020000", "driver": None}, {}),
        ({"class": "0x020700", "driver": "vfio-pci"}, {}),  # a virtual machine's
        ({"driver": "mlx4_core"}, {"ib.device-not-found.no-driver": "warn"}),  # an older bundle
    ],
)
def test_nics_without_an_rdma_device(nic: dict[str, Any], wanted: dict[str, str], healthy: Facts) -> None:
    told = {"bus_id": "0000:71:00.0", "vendor": "0x15b3", "device": "0x101f", **nic}
    seen = found(rdma(healthy, devices=[], uverbs=[], uverbs_expected=[], pci_rdma=[told]))
    assert grades(seen) == wanted
    for item in seen.values():
        assert f"modprobe -a {'mlx4' if nic['driver'] == 'mlx4_core' else 'mlx5'}_ib" in item.fixes[0].command


def test_a_pod_with_one_nic_of_eight(healthy: Facts) -> None:
    """sysfs shows all of the host's devices; /dev has what the pod was given, and ibv_devinfo opens no more."""
    one = rdma(healthy, uverbs=["uverbs0"], witnesses={"ibv_devinfo": {"outcome": "ok", "text": "hca_id:\tmlx5_0\n"}})
    assert grades(found(one)) == {"ib.device-not-found.uverbs": "fail"}  # on a host
    one["gpu"]["data"]["container"] = "/proc/1/cgroup"
    assert grades(found(one)) == {"ib.device-not-found.uverbs": "warn"}
    assert grades(found(rdma(one, uverbs=[]))) == {"ib.device-not-found.uverbs": "fail"}  # it was given none


def test_a_driver_that_counts_no_link_errors_has_not_passed(healthy_roce: Facts) -> None:
    """Broadcom's: what it counts stands in hw_counters under other names."""
    thor = copy.deepcopy(healthy_roce)
    for device in thor["infiniband"]["data"]["devices"]:
        device["ports"][0].update(counters={"rx_pkts": 5}, counters_before={"rx_pkts": 4})
    result = run("infiniband_counters.counters", {"gpu01": {"infiniband": thor["infiniband"]["data"]}})
    assert result.skipped == {"gpu01": "the driver counts no link errors"} and not result.passed


def test_multi_node_nvlink_is_unknown_where_nvml_did_not_answer(healthy: Facts) -> None:
    silent = {**healthy["gpu"]["data"], "nvml": {"outcome": "timed-out", "detail": "nvmlInit hangs"}, "gpus": []}
    result = run("gpu_fabric.imex", {"gpu01": {"gpu": silent}})
    assert not result.skipped and [gap.what for gap in result.unknown] == ["NVML"]
