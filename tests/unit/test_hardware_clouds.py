"""Machines of clouds, workstations and large vendors as they really answer: healthy ones are not called faulty.

PCIe links as nvidia-smi -q of such machines prints them in public threads, November 2026.
"""

from __future__ import annotations

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
from fleets import run

from tests.hardware_kit import machines
from tests.hardware_kit.fleet import Facts, found, grades, report_on, words
from tests.hardware_kit.machines import Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")


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
        ([{**X16, "performance_state": 8}] * 3 + [{**X16, **SAVING}], False, {}),  # the first to save power
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
    dead = [{"link": n, "active": False} for n in range(6)]
    for told in (dead, []):
        nobody = report_on(cards(healthy, *[{**volta, "nvlinks": told}] * 4, virtual=True))
        assert "NVLink state of GPU 0 (0000:1b:00.0)" in [gap.what for gap in nobody.unknown] and not nobody.findings
    assert found(cards(healthy, {**volta, "nvlinks": links, "pcie_width": 8}, virtual=True)).keys() == {
        "gpu.pcie.width"
    }


def test_half_of_a_board_without_switches(healthy: Facts) -> None:
    """Two of the four H100s of an HGX board without NVSwitches: six links between them, the others lead to nobody."""

    def pair(up: int, kind: str) -> list[dict[str, Any]]:
        links = [{"link": n, "active": n < up, "remote_type": kind} for n in range(18)]
        return [{"name": "NVIDIA H100 80GB HBM3", "nvlinks": links}] * 2

    assert found(cards(healthy, *pair(6, "gpu"), virtual=True)) == {}
    for links in (pair(6, "switch"), pair(0, "gpu")):
        assert set(found(cards(healthy, *links, virtual=True))) == {"gpu.nvlink.link-down"}


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
    seen = report_on(with_storage(healthy, STORAGE, UNPLUGGED), env={"NCCL_IB_HCA": "mlx5"})
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
    item = {one.id: one for one in report_on(dead).findings}["ib.port-down.all"]
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
    waits = commands(healthy, state="2: INIT")  # on a cable that is good
    assert "sminfo -C mlx5_3 -P 1" in waits and "iblinkinfo" in waits and "dmesg" not in waits
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
        ({"class": "0x020000", "vendor": "0x1d0f", "driver": None}, {"ib.device-not-found.no-driver": "warn"}),  # EFA
        ({"driver": None}, {}),
    ],
)
def test_nics_without_an_rdma_device(nic: dict[str, Any], wanted: dict[str, str], healthy: Facts) -> None:
    told = {"bus_id": "0000:71:00.0", "vendor": "0x15b3", "device": "0x101f", **nic}
    bare = rdma(healthy, devices=[], uverbs=[], uverbs_expected=[], pci_rdma=[told])
    modules = bare["topology"]["data"]["modules"]
    modules["mlx5_ib"] = False
    seen = found(bare)
    assert grades(seen) == wanted
    for item in seen.values():
        module = "efa" if "vendor" in nic else "mlx4_ib" if nic["driver"] == "mlx4_core" else "mlx5_ib"
        assert item.title.endswith("the RDMA driver is not loaded")
        assert f"modprobe -a {module} ib_uverbs" in item.fixes[0].command
        modules[module] = True  # a pod whose RDMA devices are in its host's network namespace
        (there,) = found(bare).values()
        assert f"{module} is loaded" in there.title and "modprobe" not in there.fixes[0].command
        assert there.severity is item.severity


def test_a_pod_with_one_nic_of_eight(healthy: Facts) -> None:
    """sysfs shows all of the host's devices; /dev has what the pod was given, and ibv_devinfo opens no more."""
    one = rdma(healthy, uverbs=["uverbs0"], witnesses={"ibv_devinfo": {"outcome": "ok", "text": "hca_id:\tmlx5_0\n"}})
    assert grades(found(one)) == {"ib.device-not-found.uverbs": "fail"}  # on a host
    one["gpu"]["data"]["container"] = "pid 1 is bash"  # perhaps a container
    assert grades(found(one)) == {"ib.device-not-found.uverbs": "fail"}
    one["gpu"]["data"]["container"] = "/proc/1/cgroup"
    assert grades(found(one)) == {"ib.device-not-found.uverbs": "warn"}
    assert grades(found(rdma(one, uverbs=[]))) == {"ib.device-not-found.uverbs": "fail"}  # it was given none


def test_a_container_of_one_gpu_that_was_given_no_rdma_device(tmp_path: Path) -> None:
    """``docker run --gpus 1`` on a machine with InfiniBand, and its limit of 8 MiB on locked memory."""
    machine = Machine(tmp_path, gpus=1, nics=1)
    machine.hcas[0].uverbs, machine.memlock = False, 8 << 20
    one = machine.facts()
    assert grades(found(one)) == {
        "ib.device-not-found.uverbs": "fail",
        "ib.memlock": "fail",
    }  # a host without ib_uverbs
    one["gpu"]["data"]["container"] = "/.dockerenv"
    assert grades(found(one)) == {"ib.device-not-found.uverbs": "warn", "ib.memlock": "info"}
    assert "would use TCP" in found(one)["ib.device-not-found.uverbs"].title
    assert found(one, require=("ib-ports=1",))["require.ib-ports"].severity.value == "fail"
    for pods in ([one, one], [copy.deepcopy(one)]):  # of a job over two of them; and one that has more GPUs
        if len(pods) == 1:
            pods[0]["gpu"]["data"]["gpus"] *= 2
        assert grades(found(*pods))["ib.device-not-found.uverbs"] == "fail"


def test_a_port_whose_device_cannot_be_opened_meets_no_requirement(healthy: Facts) -> None:
    """sysfs shows eight active ports, also to a pod that was given one NIC."""

    def required(ports: int, facts: Facts) -> tuple[list[str], list[str]]:
        judged = report_on(facts, require=(f"ib-ports={ports}",))
        titles = [item.title for item in judged.findings if item.id == "require.ib-ports"]
        return titles, [gap.what for gap in judged.unknown]

    one = rdma(healthy, uverbs=["uverbs0"])
    one["gpu"]["data"]["container"] = "/proc/1/cgroup"
    told = "gpu01 does not meet ib-ports=8: it has device files for 1 of 8 RDMA devices"
    assert required(8, one) == ([told], []) and required(1, one) == ([], [])
    assert required(8, healthy) == ([], [])
    devices = copy.deepcopy(healthy["infiniband"]["data"]["devices"])
    for port in devices[0]["ports"]:
        port["state"] = "1: DOWN"
    assert required(1, rdma(one, devices=devices)) == ([], ["ib-ports=1"])  # maybe that one


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


GSP = "NVRM: Xid (PCI:0000:3b:00): 119, pid=4711, name=python, Timeout after 6s of waiting for RPC response from GPU2 GSP!"
OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
LOADING = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.90.07"


def after(facts: Facts, *lines: tuple[float, str], recovery: str | None = None, index: int = 2) -> Facts:
    """The machine with these lines in its kernel log, each so many seconds ago."""
    changed = copy.deepcopy(facts)
    log = changed["kernel_log"]["data"]
    log["lines"] = [{"at_s": log["uptime_s"] - ago, "text": text} for ago, text in lines]
    changed["gpu"]["data"]["gpus"][index]["recovery_action"] = recovery
    return changed


@pytest.mark.parametrize(
    ("lines", "recovery", "wanted", "quote"),
    [
        ([(600, GSP)], None, "fail", ""),
        ([(600, GSP)], "none", "warn", "GPU recovery action: none"),  # it was reset, says the driver itself
        ([(600, GSP), (300, LOADING)], None, "warn", "loading NVIDIA UNIX Open Kernel Module"),
        ([(600, LOADING), (300, GSP)], None, "fail", ""),
        ([(600, OFF)], "none", "fail", ""),  # needs a reboot, and this is the log of this boot
    ],
)
def test_a_gpu_that_was_reset_since(
    lines: list[tuple[float, str]], recovery: str | None, wanted: str, quote: str, healthy: Facts
) -> None:
    (item,) = found(after(healthy, *lines, recovery=recovery)).values()
    assert item.severity.value == wanted and quote in words(item)


def test_an_xid_of_a_gpu_that_the_container_does_not_have(healthy: Facts) -> None:
    """dmesg is the host's: its other GPUs are somebody else's."""
    four = after(healthy, (600, OFF.replace("3b", "7b")))
    data = four["gpu"]["data"]
    data.update(gpus=data["gpus"][:4], container="/.dockerenv", pairs=[])
    data["smi"]["gpus"] = data["smi"]["gpus"][:4]
    four["topology"]["data"]["matrix"] = {"outcome": "not-run", "text": ""}
    item = found(four)["gpu.fell-off-bus"]
    assert item.severity.value == "warn" and "this container has 0000:1b:00.0, " in words(item)
    for changes in (
        {"container": None},
        {"container": "pid 1 is sleep"},  # perhaps none
        {"gpus": [*data["gpus"], {"index": 4, "errors": {"handle": "GPU is lost"}}]},  # which one that was is not told
    ):
        other = copy.deepcopy(four)
        other["gpu"]["data"].update(changes)
        assert found(other)["gpu.fell-off-bus"].severity.value == "fail"


def test_the_worst_of_several_events_decides(healthy: Facts) -> None:
    """Not the last one: a fatal event of one link is not undone by a harmless one of another."""
    fatal = "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"
    harmless = "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 09 (0x00000002 0x00000000)"
    assert found(after(healthy, (600, harmless)))["gpu.nvlink"].severity.value == "info"
    assert found(after(healthy, (600, fatal), (300, harmless)))["gpu.nvlink"].severity.value == "fail"
    switch = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, {}, Link 12 LTSSM Fault Up"
    lines = [(600, switch.format("Fatal")), (300, switch.format("Non-fatal"))]
    assert found(after(healthy, *lines))["gpu.nvlink.nvswitch"].severity.value == "fail"


def test_a_display_card_for_the_console(healthy: Facts) -> None:
    """A card that the NVIDIA driver has not taken: of another model it is no lost GPU, of the same one it is."""
    card = {"bus_id": "0000:e1:00.0", "device": "0x0ffe", "class": "0x030000", "driver": "nouveau", "slot": "3"}
    for changes, wanted in (
        ({}, "warn"),
        ({"driver": None}, "warn"),
        ({"driver": "nvidia"}, "fail"),  # the driver took it, and NVML does not have it
        ({"device": "0x2330"}, "fail"),
        ({"class": "0x030200"}, "fail"),  # a board for computing
    ):
        more = copy.deepcopy(healthy)
        more["gpu"]["data"]["pci_gpus"].append({**card, **changes})
        item = found(more)["gpu.not-visible.fewer-than-bus"]
        assert item.severity.value == wanted and "0000:e1:00.0" in item.title


def test_a_closed_gpu_hides_no_lost_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.gpus[1]["handle"], machine.gpus[5]["handle"] = "np", "lost"
    seen = report_on(machine.facts())
    assert "gpu.fell-off-bus.lost" in {item.id for item in seen.findings}
    assert any(gap.what == "GPU 1" for gap in seen.unknown)


@pytest.mark.parametrize(("version", "wanted"), [("550.54.15", "warn"), ("535.161.08", "fail"), ("550.90.07", None)])
def test_a_driver_of_the_same_branch_is_no_fault(version: str, wanted: str | None, healthy: Facts) -> None:
    other = copy.deepcopy(healthy)
    other["gpu"]["data"].update(system={**other["gpu"]["data"]["system"], "driver": version}, nvswitches=0)
    other["gpu"]["data"]["fabric_manager"] = {"running": False}
    seen = found(healthy, healthy, other)
    assert {id: item.severity.value for id, item in seen.items() if id == "gpu.driver.differs"} == (
        {"gpu.driver.differs": wanted} if wanted else {}
    )


@pytest.mark.parametrize(("rate", "wanted"), [("25", "info"), ("100", "fail"), ("", "fail")])
def test_gpudirect_matters_to_fast_rails(rate: str, wanted: str, healthy_roce: Facts) -> None:
    """A server with cards and a 25 GbE port: host memory is fast enough."""
    plain = copy.deepcopy(healthy_roce)
    plain["gpu"]["data"]["module_flavor"] = "proprietary"
    plain["topology"]["data"]["modules"] = {"nvidia_peermem": False, "nv_peer_mem": False}
    for device in plain["infiniband"]["data"]["devices"]:
        device["ports"][0]["rate"] = f"{rate} Gb/sec (1X EDR)" if rate else None
    assert found(plain)["ib.gdr.off"].severity.value == wanted


def test_nvidia_smi_that_complains_of_a_corrupted_inforom(healthy: Facts) -> None:
    """Exit status 14: it lists every GPU and warns of one."""
    warned = copy.deepcopy(healthy)
    text = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    warned["gpu"]["data"]["smi"].update(outcome="failed", detail="exit status 14", lines=[text])
    item = found(warned)["gpu.driver.smi-differs"]
    assert item.title == "nvidia-smi lists all GPUs and ends with an error" and text in words(item)
    warned["gpu"]["data"]["smi"]["gpus"].pop()
    assert found(warned)["gpu.driver.smi-differs"].title == "nvidia-smi does not see the GPUs that NVML sees"


def test_nvlinks_are_off_under_mig(healthy: Facts) -> None:
    """A consequence of MIG, not a fault of its own; a link of a GPU without MIG is."""
    split = copy.deepcopy(healthy)
    for gpu in split["gpu"]["data"]["gpus"][:4]:
        gpu.update(mig_mode=True, mig_mode_pending=True)
        gpu["nvlinks"] = [{**link, "active": False} for link in gpu["nvlinks"]]
    assert set(found(split)) == {"gpu.mig", "topology.witnesses-differ"}
    split["gpu"]["data"]["gpus"][6]["nvlinks"][2]["active"] = False
    item = found(split)["gpu.nvlink.link-down"]
    assert [place.gpu for place in item.places] == ["6 (0000:7b:00.0)"]


def test_memory_that_the_driver_keeps_is_not_in_use(tmp_path: Path) -> None:
    """On the largest GPUs more than what would look like a leak."""
    machine = Machine(tmp_path, gpus=1, nics=0)
    machine.model.update(memory_used=str(3 << 30), nvlinks_down=machines.ALL_LINKS)
    assert "gpu.busy.memory-without-process" in found(machine.facts())  # a driver that does not tell them apart
    machine.model["memory_reserved"] = str(2800 << 20)
    assert "gpu.busy.memory-without-process" not in found(machine.facts())
    machine.model["memory_total"] = "err:999"
    assert "memory_used_bytes" in machine.facts()["gpu"]["data"]["gpus"][0]["errors"]


@pytest.mark.parametrize(("answer", "unknown"), [("ns", False), ("err:999", True), ("np", True)])
def test_p2p_status_that_failed_is_unknown(answer: str, unknown: bool, tmp_path: Path) -> None:
    """Where the driver has none (a vGPU), nothing is lacking."""
    machine = Machine(tmp_path, gpus=2, nics=0)
    machine.model.update(dict.fromkeys(("p2p_0", "p2p_1", "p2p_2"), answer))
    seen = report_on(machine.facts())
    assert any(gap.what == "P2P status" for gap in seen.unknown) is unknown


def test_storage_ports_are_not_compared_between_hosts(healthy: Facts) -> None:
    """A storage cable that one host lacks makes its rails no slower; the job that names the ports is told."""
    up, down = with_storage(healthy, STORAGE, STORAGE), with_storage(healthy, UNPLUGGED, UNPLUGGED)
    assert "ib.rails-differ" not in found(up, up, down)
    assert found(up, up, down, env={"NCCL_IB_HCA": "mlx5"})["ib.rails-differ"].hosts == ("gpu03",)


def test_the_display_card_of_a_dgx_station_needs_no_nvlink(healthy: Facts) -> None:
    names = [f"GPU{n}" for n in range(5)]
    rows = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for a, name in enumerate(names):
        row = ["X" if a == b else "SYS" if 3 in (a, b) else "NV4" for b in range(5)]
        rows.append("\t".join([name, *row, "0-127", "N/A"]))
    a100 = {"name": "NVIDIA A100-SXM4-80GB", "nvlinks": [{"link": n, "active": True} for n in range(12)]}
    station = cards(healthy, a100, a100, a100, {"name": "NVIDIA DGX Display"}, a100)
    station["topology"]["data"]["matrix"] = {"outcome": "ok", "text": "\n".join(rows) + "\n"}
    assert grades(found(station)) == {"gpu.mixed-models": "warn"}
    for name in ("NVIDIA A100-SXM4-80GB", None):  # a GPU whose name cannot be read is none of another model
        station["gpu"]["data"]["gpus"][3]["name"] = name
        lost = found(station)["gpu.nvlink.lost"]
        assert [place.gpu for place in lost.places] == ["GPU3"]
    assert [fix.risky for fix in lost.fixes] == [False, True]  # what looks and what interrupts are two commands


def test_where_all_rdma_ports_are_the_front_ends_nothing_is_judged(healthy_roce: Facts) -> None:
    """A virtual machine whose only RDMA port is its accelerated Ethernet: skipped, neither passed nor unknown."""
    front = copy.deepcopy(healthy_roce)
    data = front["infiniband"]["data"]
    data.update(devices=data["devices"][:1], default_route_devices=["ens0np0"])
    for rule in ("infiniband_ports.ports_up", "infiniband_ports.equal_rates", "infiniband_counters.counters"):
        result = run(rule, {"gpu01": {"infiniband": data}})
        assert result.skipped == {"gpu01": "none of the RDMA ports is a rail"} and not result.unknown
    assert found(front) == {}


def test_a_devices_name_is_one_word_of_the_shell(healthy_roce: Facts) -> None:
    hostile = copy.deepcopy(healthy_roce)
    device = hostile["infiniband"]["data"]["devices"][3]
    device["name"], device["netdevs"][0]["name"] = "a$(touch x)", "b;reboot"
    device["ports"][0].update(state="1: DOWN", phys_state="2: Polling")
    commands = [fix.command for item in found(hostile).values() for fix in item.fixes]
    assert len(commands) == 3
    for command in commands:
        words = [word for word in shlex.split(command) if "touch" in word or "reboot" in word]
        assert words and all(word in ("a$(touch x)", "b;reboot", "a$(touch x)|0000:4c:00.0") for word in words)


@pytest.mark.parametrize(("mode", "quote"), [(False, "nvidia-persistenced"), (True, "wchan")])
def test_nvidia_smi_that_is_slow_without_persistence_mode(mode: bool, quote: str, healthy: Facts) -> None:
    slow = copy.deepcopy(healthy)
    slow["gpu"]["data"]["smi"].update(outcome="timed-out", detail="nvidia-smi did not answer within 15 s", gpus=[])
    for gpu in slow["gpu"]["data"]["gpus"]:
        gpu["persistence_mode"] = mode
    item = found(slow)["gpu.driver.smi-hang"]
    assert quote in item.fixes[0].command and ("persistence mode: disabled" in words(item)) is (not mode)
