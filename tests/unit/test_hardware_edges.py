"""Where the hardware rules draw their lines: one step on either side of each, on facts that were read once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_host import probe

from nccl_doctor.agent.probes import system
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules.engine import Host, reached
from nccl_doctor.rules.gpudirect import sentences
from nccl_doctor.rules.groups import groups
from nccl_doctor.rules.hardware_table import hardware_table
from nccl_doctor.rules.topology_view import matrix_of
from tests.hardware_kit import machines
from tests.hardware_kit.fleet import Facts, bundle, found, grades, report_on, words
from tests.hardware_kit.machines import H100, Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")


def gpu(facts: Facts, index: int, **values: Any) -> Facts:
    """The facts with other answers of one GPU."""
    changed = copy.deepcopy(facts)
    changed["gpu"]["data"]["gpus"][index].update(values)
    return changed


def every_gpu(facts: Facts, **values: Any) -> Facts:
    changed = copy.deepcopy(facts)
    for one in changed["gpu"]["data"]["gpus"]:
        one.update(copy.deepcopy(values))
    return changed


def port(facts: Facts, index: int, **values: Any) -> Facts:
    """The facts with other words of one rail's port."""
    changed = copy.deepcopy(facts)
    changed["infiniband"]["data"]["devices"][index]["ports"][0].update(values)
    return changed


def of_host(facts: Facts, probe: str = "gpu", **values: Any) -> Facts:
    changed = copy.deepcopy(facts)
    changed[probe]["data"].update(values)
    return changed


def link(facts: Facts, index: int, **values: Any) -> Facts:
    changed = copy.deepcopy(facts)
    changed["gpu"]["data"]["gpus"][2]["nvlinks"][index].update(values)
    return changed


def test_the_healthy_board_is_healthy(healthy: Facts, healthy_roce: Facts) -> None:
    assert found(healthy) == found(healthy_roce) == found(healthy, healthy, healthy) == {}


@pytest.mark.parametrize("name", ["gpus", "ib-ports"])
def test_hardware_that_is_required(name: str, healthy: Facts) -> None:
    assert not found(healthy, require=(f"{name}=8",))
    assert grades(found(healthy, require=(f"{name}=9",))) == {f"require.{name}": "fail"}


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({"ecc_uncorrected_volatile": 1}, "sudo nvidia-smi --gpu-reset -i 2"),
        ({"remap_pending": True}, "sudo nvidia-smi --gpu-reset -i 2"),
        ({"remap_failure": True}, "sudo nvidia-bug-report.sh"),  # no reset gives it a spare row
        ({"sram_threshold_exceeded": True}, "sudo nvidia-bug-report.sh"),
        ({"retired_pages_pending": True}, "sudo reboot"),
    ],
)
def test_the_command_does_what_the_fix_says(healthy: Facts, values: dict[str, Any], command: str) -> None:
    told = report_on(gpu(healthy, 2, **values)).findings
    assert [[fix.command for fix in item.fixes] for item in told] == [[command]]


# what a GPU says -> what is told of it (nothing beside it)
ONE_GPU: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"ecc_uncorrected_volatile": 1}, {"gpu.ecc.uncorrectable": "fail"}),
    ({"ecc_uncorrected_aggregate": 9}, {}),
    ({"ecc_corrected_volatile": 100_000}, {"gpu.ecc.corrected-many": "warn"}),
    ({"ecc_corrected_volatile": 99_999}, {}),
    ({"remap_pending": True}, {"gpu.ecc.row-remap-pending": "fail"}),
    ({"remap_failure": True}, {"gpu.ecc.row-remap-failure": "fail"}),
    ({"sram_threshold_exceeded": True}, {"gpu.ecc.sram-threshold": "fail"}),
    ({"remapped_uncorrectable": 3, "remapped_correctable": 7}, {}),
    ({"retired_pages_pending": True}, {"gpu.ecc.retirement-pending": "fail"}),
    ({"ecc_mode": False}, {"gpu.ecc.disabled": "warn"}),
    ({"recovery_action": "none"}, {}),
    ({"recovery_action": "node-reboot"}, {"gpu.needs-reset": "fail"}),
    ({"throttle_reasons": 0x1}, {}),
    ({"throttle_reasons": 0x4}, {}),  # the software's power cap: normal under load
    ({"throttle_reasons": 0x20}, {"gpu.thermal-power.sw-thermal": "fail"}),
    ({"throttle_reasons": 0x40}, {"gpu.thermal-power.hw-thermal": "fail"}),
    ({"throttle_reasons": 0x80}, {"gpu.thermal-power.power-brake": "fail"}),
    ({"throttle_reasons": 0x08}, {"gpu.thermal-power.hw-slowdown": "warn"}),
    ({"throttle_reasons": 0x48}, {"gpu.thermal-power.hw-thermal": "fail"}),
    ({"temperature_c": 90}, {"gpu.thermal-power.hot": "warn"}),  # slowdown at 93
    ({"temperature_c": 89}, {}),
    ({"temperature_c": 84, "temperature_slowdown_c": None}, {}),
    ({"temperature_c": 85, "temperature_slowdown_c": None}, {"gpu.thermal-power.hot": "warn"}),
    ({"temperature_memory_c": 95}, {"gpu.thermal-power.hot": "warn"}),
    ({"temperature_memory_c": 94}, {}),
    ({"temperature_memory_c": 95, "temperature_memory_max_c": None}, {"gpu.thermal-power.hot": "warn"}),
    ({"temperature_c": 92, "throttle_reasons": 0x40}, {"gpu.thermal-power.hw-thermal": "fail"}),
    ({"power_limit_w": 630.0}, {}),
    ({"power_limit_w": 629.0}, {"gpu.thermal-power.power-cap": "warn"}),
    ({"pcie_width": 8}, {"gpu.pcie.width": "fail"}),
    ({"pcie_width": None}, {}),
    ({"pcie_gen": 4, "throttle_reasons": 0}, {"gpu.pcie.generation": "fail"}),
    ({"pcie_gen": 4, "performance_state": 3}, {}),  # idle, and no other idles like it
    ({"pcie_gen": 4, "performance_state": 2}, {}),  # its reason says idle
    ({"pcie_gen": 4}, {"gpu.pcie.generation": "fail"}),  # idle like the others, which run at 5
    ({"pcie_gen": 4, "pcie_gen_max": 4}, {"gpu.pcie.generation": "fail"}),
    ({"pcie_replays": 9_999}, {}),
    ({"pcie_replays": 10_000}, {"gpu.pcie.replays": "warn"}),
    ({"mig_mode": True, "mig_mode_pending": True}, {"gpu.mig": "fail"}),
    ({"mig_mode": False, "mig_mode_pending": True}, {"gpu.mig.pending": "warn"}),
    ({"mig_mode": None, "mig_mode_pending": None}, {}),
    ({"compute_mode": "prohibited"}, {"gpu.compute-mode.prohibited": "fail"}),
    ({"compute_mode": "exclusive-process"}, {"gpu.compute-mode.exclusive": "info"}),
    ({"persistence_mode": False}, {"gpu.persistence-off": "info"}),
    ({"memory_used_bytes": 2 << 30}, {}),
    ({"memory_used_bytes": (2 << 30) + 1}, {"gpu.busy.memory-without-process": "warn"}),
    ({"memory_used_bytes": 9 << 30, "processes": None}, {}),
    ({"processes": [{"pid": 7, "kind": "graphics"}]}, {}),
    ({"processes": [{"pid": 7, "name": "nvidia-cuda-mps"}]}, {}),
    ({"processes": [{"pid": 7, "name": "python"}]}, {"gpu.busy.nvml": "warn"}),
    ({"errors": {"a": "x", "b": "x", "c": "y"}}, {}),  # two questions
    ({"errors": {"a": "x", "b": "y", "c": "z"}}, {"gpu.driver.failed": "fail"}),
    ({"errors": {"a": "nvmlX: GPU is lost"}}, {"gpu.fell-off-bus.lost": "fail"}),
    ({"fabric": {"state": "not-supported"}}, {}),
    ({"fabric": {"state": "not-started"}}, {"gpu.fabric-manager.not-completed": "fail"}),
    ({"fabric": {"state": "completed", "status": 1}}, {"gpu.fabric-manager.failed": "fail"}),
    ({"fabric": {"state": "completed", "degraded_bandwidth": True}}, {"gpu.fabric-manager.degraded": "fail"}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "wanted"), ONE_GPU, ids=lambda item: "-".join(item) or "nothing")
def test_one_gpu(values: dict[str, Any], wanted: dict[str, str], healthy: Facts) -> None:
    seen = found(gpu(healthy, 2, **values))
    assert grades(seen) == wanted
    for item in seen.values():
        assert {place.gpu for place in item.places} <= {"2 (0000:3b:00.0)", None}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"replay": 99}, set()), ({"replay": 100}, {"gpu.nvlink.errors"}),
        ({"recovery": 1}, {"gpu.nvlink.errors"}),
        ({"crc_flit": 999}, set()), ({"crc_flit": 1000}, {"gpu.nvlink.errors"}), ({"crc_data": 1000}, {"gpu.nvlink.errors"}),
        ({"integrity": 999}, set()), ({"recovery_failed": 1}, {"gpu.nvlink.errors"}),
        ({"active": False}, {"gpu.nvlink.link-down"}),
    ],
)  # fmt: skip
def test_one_nvlink(values: dict[str, Any], wanted: set[str], healthy: Facts) -> None:
    seen = found(link(healthy, 5, **values))
    assert {id for id in seen if id.startswith("gpu.nvlink")} == wanted
    assert all("5" in words(seen[id]) for id in wanted)


def test_exclusive_mode_is_a_fault_where_somebody_has_taken_it(healthy: Facts) -> None:
    taken = gpu(healthy, 2, compute_mode="exclusive-process", processes=[{"pid": 7, "name": "python"}])
    both = gpu(taken, 3, compute_mode="exclusive-process")
    item = found(both)["gpu.compute-mode.exclusive"]
    assert (item.severity, item.title) == (Severity.FAIL, "1 of 2 GPUs in exclusive mode are already taken")
    assert [place.gpu for place in item.places] == ["2 (0000:3b:00.0)"]


def test_ecc_off_everywhere_is_somebodys_choice(healthy: Facts) -> None:
    assert found(every_gpu(healthy, ecc_mode=False)) == {}


@pytest.mark.parametrize(
    "field", ["ecc_uncorrected_volatile", "remap_pending", "throttle_reasons", "pcie_width", "pcie_gen"]
)
def test_an_answer_that_failed_is_unknown(field: str, healthy: Facts) -> None:
    seen = report_on(gpu(healthy, 2, **{field: None, "errors": {field: "nvmlX: Timeout"}}))
    assert seen.verdict == "incomplete" and any("Timeout" in gap.why for gap in seen.unknown)
    known = healthy["gpu"]["data"]["gpus"][2]["not_supported"]
    assert report_on(gpu(healthy, 2, **{field: None, "not_supported": [*known, field]})).verdict == "healthy"


@pytest.mark.parametrize(
    ("version", "switches", "running", "wanted"),
    [
        ("550.90.07", 4, True, False),
        ("550.90.12", 4, True, True),
        ("550.90.12", 0, True, True),  # HGX B200 has no NVSwitch on its PCI bus
        ("550.90.12", 0, False, False),  # a virtual machine: left over in its image
        (None, 4, True, False),
    ],
)
def test_the_fabric_managers_version(
    version: str | None, switches: int, running: bool, wanted: bool, healthy: Facts
) -> None:
    manager = {"running": running, "installed": True, "version": version}
    seen = found(of_host(healthy, fabric_manager=manager, nvswitches=switches))
    assert set(seen) == ({"gpu.fabric-manager.version-mismatch"} if wanted else set())


@pytest.mark.parametrize(
    ("running", "container", "states", "wanted"),
    [
        (False, None, "in-progress", "gpu.fabric-manager.not-running"),
        (True, None, "in-progress", "gpu.fabric-manager.not-completed"),
        (False, "/.dockerenv", "in-progress", "gpu.fabric-manager.not-completed"),
        (False, None, None, "gpu.fabric-manager.not-running"),  # before Hopper: the process is the only witness
        (True, None, None, ""),
        (False, "/.dockerenv", None, ""),
        (None, None, "in-progress", "gpu.fabric-manager.not-completed"),  # others' processes are hidden
        (None, None, None, ""),
    ],
)
def test_the_fabric_manager(
    running: bool | None, container: str | None, states: str | None, wanted: str, healthy: Facts
) -> None:
    facts = every_gpu(healthy, fabric={"state": states} if states else None)
    seen = found(of_host(facts, fabric_manager={"running": running}, container=container))
    assert set(seen) == ({wanted} if wanted else set())
    gaps = report_on(of_host(facts, container=container, fabric_manager={"running": running})).unknown
    blind = states is None and (running is None or container is not None)
    assert any(gap.what == "fabric manager" for gap in gaps) is blind


def test_a_fabric_manager_of_a_containers_image_is_not_the_one_that_runs(healthy: Facts) -> None:
    other = {"running": False, "installed": True, "version": "535.161.08"}
    assert set(found(of_host(healthy, fabric_manager=other))) == {"gpu.fabric-manager.version-mismatch"}
    assert found(of_host(healthy, fabric_manager=other, container="/.dockerenv")) == {}


def test_in_a_rack_of_superchips_the_fabric_manager_is_elsewhere(healthy: Facts) -> None:
    waiting = every_gpu(healthy, name="NVIDIA GB200", fabric={"state": "in-progress"})
    seen = found(of_host(waiting, fabric_manager={"running": False}, nvswitches=0))
    item = seen["gpu.fabric-manager.not-completed"]
    assert "gpu.fabric-manager.not-running" not in seen and "NVLink switches" in item.fixes[0].text
    assert "systemctl" not in item.fixes[0].command


# ---- ports ----

UP, DAY = "4: ACTIVE", 86400.0
PER_DAY = 34_560  # bit errors of 1e-12 at 400 Gb/s


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({"symbol_error": 0}, {"symbol_error": 9}, {}),
        ({"symbol_error": 0}, {"symbol_error": 10}, {"ib.errors.rising": "fail"}),
        ({"symbol_error": 50}, {"symbol_error": 3}, {}),  # somebody reset it
        ({}, {"symbol_error": 500}, {}),  # not there at the first reading
        ({"port_xmit_discards": 0}, {"port_xmit_discards": 10}, {"ib.errors.rising": "warn"}),
        (
            {"port_xmit_discards": 0, "symbol_error": 0},
            {"port_xmit_discards": 10, "symbol_error": 10},
            {"ib.errors.rising": "fail"},
        ),
        ({"port_xmit_wait": 0}, {"port_xmit_wait": 10_000}, {}),  # congestion is no fault of this port
        ({"link_downed": 7}, {"link_downed": 8}, {"ib.link-flapping": "fail"}),
        ({"link_downed": 9}, {"link_downed": 9}, {}),
        ({"link_downed": 10}, {"link_downed": 10}, {"ib.link-flapping.past": "warn"}),  # five a day for two days
        ({"port_rcv_errors": 2 * PER_DAY - 1}, {"port_rcv_errors": 2 * PER_DAY - 1}, {}),
        ({"port_rcv_errors": 2 * PER_DAY}, {"port_rcv_errors": 2 * PER_DAY}, {"ib.errors": "warn"}),
        ({"port_xmit_discards": 1999}, {"port_xmit_discards": 1999}, {}),
        ({"port_xmit_discards": 2000}, {"port_xmit_discards": 2000}, {"ib.errors": "warn"}),
    ],
)
def test_counters(before: dict[str, int], after: dict[str, int], wanted: dict[str, str], healthy: Facts) -> None:
    facts = port(healthy, 3, counters_before=before, counters=after, counters_interval_s=1.0)
    seen = found(of_host(facts, "infiniband", uptime_s=2 * DAY))
    assert grades(seen) == wanted
    assert all({place.nic for place in item.places} == {"mlx5_3:1"} for item in seen.values())


@pytest.mark.parametrize(("name", "largest"), [("symbol_error", 65535), ("link_downed", 255)])
def test_a_counter_that_is_full_says_nothing_of_now(name: str, largest: int, healthy: Facts) -> None:
    """The counters of a port do not wrap: at their largest value they stay."""
    counts = {**healthy["infiniband"]["data"]["devices"][3]["ports"][0]["counters"], name: largest}
    seen = report_on(
        of_host(port(healthy, 3, counters_before=counts, counters=counts), "infiniband", uptime_s=900 * DAY)
    )
    assert [(gap.what, "mlx5_3:1" in gap.why, name in gap.why) for gap in seen.unknown] == [
        ("port counters", True, True)
    ]


def test_an_uptime_of_less_than_a_day_counts_as_one(healthy: Facts) -> None:
    facts = port(healthy, 3, counters_before={"link_downed": 4}, counters={"link_downed": 4})
    assert found(of_host(facts, "infiniband", uptime_s=60.0)) == {}


@pytest.mark.parametrize(
    ("state", "physical", "id", "quote"),
    [
        ("1: DOWN", "2: Polling", "ib.port-down", "is down (Polling)"),
        ("1: DOWN", None, "ib.port-down", "is down (1: DOWN)"),
        ("1: DOWN", "3: Disabled", "ib.port-down.disabled", "switched off or unplugged"),
        ("2: INIT", "5: LinkUp", "ib.port-down.no-subnet-manager", "waits for a subnet manager"),
        ("2: INIT", "5: Link Up", "ib.port-down.no-subnet-manager", "waits for a subnet manager"),
        ("2: INIT", "2: Polling", "ib.port-down", "is down (Polling)"),
    ],
)
def test_a_port_that_is_down(state: str, physical: str | None, id: str, quote: str, healthy: Facts) -> None:
    seen = found(port(healthy, 3, state=state, phys_state=physical))
    assert set(seen) == {id} and quote in seen[id].title and "7 of 8 rails are active" in seen[id].title
    assert not any("ip link" in fix.command for fix in seen[id].fixes)  # an InfiniBand port is none of its netdev


def dual(facts: Facts) -> Facts:
    """The eight devices as the two functions each of four cards."""
    changed = copy.deepcopy(facts)
    for number, device in enumerate(changed["infiniband"]["data"]["devices"]):
        device["bus_id"] = f"0000:{number // 2:02x}:00.{number % 2}"
    return changed


@pytest.mark.parametrize(
    ("down", "wanted", "titles"),
    [
        ((1, 3, 5, 7), {"ib.port-down": "warn"}, ["4 ports are down, each beside an active one"]),
        ((0, 3, 5, 7), {"ib.port-down": "warn"}, ["4 ports are down, each beside an active one"]),
        ((1, 3, 5), {"ib.port-down": "fail"}, [f"mlx5_{n}:1 is down" for n in (1, 3, 5)]),  # one card has both
        ((1, 3, 4, 5, 7), {"ib.port-down": "fail"}, [f"mlx5_{n}:1 is down" for n in (1, 3, 4, 5, 7)]),  # one has none
    ],
)
def test_the_second_ports_of_cards_may_be_spare(
    down: tuple[int, ...], wanted: dict[str, str], titles: list[str], healthy: Facts
) -> None:
    facts = dual(healthy)
    for index in down:
        facts = port(facts, index, state="1: DOWN", phys_state="2: Polling")
    assert grades(found(facts)) == wanted
    told = [item.title for item in report_on(facts).findings if item.id == "ib.port-down"]
    assert len(told) == len(titles) and all(any(text in title for title in told) for text in titles)


def test_of_cards_with_one_port_nobody_asks_for_a_second(healthy: Facts) -> None:
    facts = dual(healthy)
    for index in (0, 1):
        facts["infiniband"]["data"]["devices"][index]["bus_id"] = f"0000:f{index}:00.0"
    for index in (3, 5, 7):
        facts = port(facts, index, state="1: DOWN", phys_state="2: Polling")
    assert grades(found(facts)) == {"ib.port-down": "warn"}


def test_the_table_of_hosts_shows_a_rail_that_is_down(healthy: Facts) -> None:
    told = bundle({"gpu01": healthy, "gpu02": port(healthy, 2, state="1: DOWN")})
    (rates,) = [row for row in hardware_table(reached(told), told.plan) if row.subject == "rail rates (Gb/s)"]
    assert dict(rates.values).keys() == {"8 x 400", "400 400 down 400 400 400 400 400"}


def test_a_port_that_the_job_names_is_no_spare_one(healthy: Facts) -> None:
    facts = dual(healthy)
    for index in (1, 3, 5, 7):
        facts = port(facts, index, state="1: DOWN", phys_state="2: Polling")
    seen = report_on(facts, env={"NCCL_IB_HCA": "mlx5"})
    assert {item.severity.value for item in seen.findings if item.id == "ib.port-down"} == {"fail"}


def test_all_ports_down_is_one_finding(healthy: Facts, healthy_roce: Facts) -> None:
    for facts, severity in ((healthy, "fail"), (healthy_roce, "warn")):
        for index in range(8):
            facts = port(facts, index, state="1: DOWN", phys_state="2: Polling")
        assert grades(found(facts)) == {"ib.port-down.all": severity}


def test_a_slow_rail_is_shown_beside_a_fast_one(healthy: Facts) -> None:
    item = found(port(healthy, 0, rate="200 Gb/sec (2X NDR)"))["ib.rate.degraded"]
    assert "runs at 200 Gb/s, the others at 400 Gb/s" in item.title
    assert "400 Gb/sec (4X NDR)" in [proof.text for proof in item.evidence]


def test_a_rate_that_is_not_told_is_unknown(healthy: Facts) -> None:
    assert any(gap.what == "port rate" for gap in report_on(port(healthy, 0, rate="")).unknown)


@pytest.mark.parametrize(("layer", "wanted"), [("InfiniBand", 8), ("Ethernet", 7)])
def test_the_front_end_is_an_ethernet_port_with_the_default_route(
    layer: str, wanted: int, healthy: Facts, healthy_roce: Facts
) -> None:
    """IPoIB may carry the default route, and its port is a rail all the same."""
    facts = copy.deepcopy(healthy if layer == "InfiniBand" else healthy_roce)
    facts["infiniband"]["data"]["devices"][0]["netdevs"] = [{"name": "ib0"}]
    facts["infiniband"]["data"]["default_route_devices"] = ["ib0"]
    facts = port(facts, 1, state="1: DOWN")
    (item,) = found(facts).values()
    assert f"{wanted - 1} of {wanted} rails are active" in item.title


@pytest.mark.parametrize(("mtu", "wanted"), [(1500, True), (4199, True), (4200, False), (9000, False), (None, False)])
def test_mtu_of_a_roce_rail(mtu: int | None, wanted: bool, healthy_roce: Facts) -> None:
    changed = copy.deepcopy(healthy_roce)
    changed["infiniband"]["data"]["devices"][2]["netdevs"][0]["mtu"] = mtu
    assert grades(found(changed)) == ({"ib.mtu.small": "info"} if wanted else {})


@pytest.mark.parametrize(("soft", "wanted"), [(None, False), (1 << 30, False), ((1 << 30) - 1, True)])
def test_locked_memory(soft: int | None, wanted: bool, healthy: Facts) -> None:
    seen = found(of_host(healthy, "infiniband", memlock_bytes={"soft": soft, "hard": soft}))
    assert set(seen) == ({"ib.memlock"} if wanted else set())
    for item in seen.values():
        assert "99-rdma.conf" in "".join(fix.command for fix in item.fixes)  # as where the stage "system" runs


@pytest.mark.parametrize(
    ("hints", "mask", "severity"),
    [
        ([], "000001ffffffffff", "warn"),  # root on a host
        (["/.dockerenv"], "000001ffffffffff", "info"),
        ([], "00000000a80425fb", "fail"),
        ([], "", "fail"),
    ],
)
def test_who_may_lock_freely_is_not_bound_by_the_limit_here_either(
    hints: list[str], mask: str, severity: str, healthy: Facts
) -> None:
    login = {"hints": hints, "capabilities": mask, "user_namespace": False}
    low = {"memlock_bytes": {"soft": 65536, "hard": 65536}, "container": login}
    assert grades(found(of_host(healthy, "infiniband", **low))) == {"ib.memlock": severity}


ABSENT = {"nvidia_peermem": False, "nv_peer_mem": False}


@pytest.mark.parametrize(
    ("modules", "flavor", "kernel", "wanted"),
    [
        ({"nvidia_peermem": True}, "proprietary", "5.4.0", ""),
        ({"nv_peer_mem": True}, "proprietary", "5.4.0", ""),
        (ABSENT, "open", "5.12.0", ""),
        (ABSENT, "open", "5.11.9", "ib.gdr.off"),
        (ABSENT, "proprietary", "6.8.0", "ib.gdr.off"),
        (ABSENT, None, "6.8.0", "ib.gdr.unknown"),
        (ABSENT, "open", "?", "ib.gdr.unknown"),
        (ABSENT, "open", "4.18.0-553.el8_10.x86_64", "ib.gdr.unknown"),  # with a later kernel's RDMA core
        (ABSENT, "proprietary", "4.18.0-553.el8_10.x86_64", "ib.gdr.off"),
    ],
)
def test_gpudirect(modules: dict[str, bool], flavor: str | None, kernel: str, wanted: str, healthy: Facts) -> None:
    facts = of_host(of_host(healthy, module_flavor=flavor), "topology", modules=modules, kernel=kernel)
    assert set(found(facts)) == ({wanted} if wanted else set())
    consumer = every_gpu(facts, name="NVIDIA GeForce RTX 4090", nvlinks=[])
    assert not [id for id in found(consumer) if id.startswith("ib.gdr")]


def said(facts: Facts) -> dict[str, str]:
    """What `topo` says below the matrix of a host."""
    host = Host(bundle({"gpu01": facts}).hosts[0])
    return dict(sentences(host, matrix_of(host)))


@pytest.mark.parametrize(
    ("modules", "flavor", "words"),
    [
        ({**ABSENT, "nv_peer_mem": True}, "open", "nv_peer_mem is loaded"),
        ({}, "open", "not known: kernel modules"),
        (ABSENT, "open", "DMA-BUF is possible"),
        (ABSENT, None, "whether DMA-BUF works is not known"),
        (ABSENT, "proprietary", "off: neither"),
    ],
)
def test_topo_says_what_gpudirect_has(modules: dict[str, bool], flavor: str | None, words: str, healthy: Facts) -> None:
    facts = of_host(of_host(healthy, module_flavor=flavor), "topology", modules=modules, kernel="6.8.0")
    assert words in said(facts)["GPUDirect"]


def test_modules_that_were_not_collected_are_not_absent(healthy: Facts) -> None:
    untold = report_on(of_host(of_host(healthy, module_flavor="proprietary"), "topology", modules={}))
    assert not untold.findings and any(gap.what == "nvidia_peermem" for gap in untold.unknown)
    one = report_on(healthy, healthy, of_host(healthy, "topology", modules={}))
    assert not one.findings and any(gap.what == "nvidia_peermem" and gap.hosts == ("gpu03",) for gap in one.unknown)


@pytest.mark.parametrize("outcome", ["tool-missing", "ok", "timed-out"])
def test_the_verbs_library(outcome: str, healthy: Facts) -> None:
    """What it says when it lists nothing, and whether what it says is known at all."""
    tool = {"outcome": outcome, "detail": "", "text": ""}
    seen = report_on(of_host(healthy, "infiniband", witnesses={"ibv_devinfo": tool}))
    assert [item.id for item in seen.findings] == ["ib.device-not-found.no-provider"] * (outcome == "ok")
    assert any("ibv_devinfo" in item.what for item in seen.unknown) == (outcome != "tool-missing")


def test_hca_filter_of_the_job(healthy: Facts) -> None:
    assert set(found(healthy, env={"NCCL_IB_HCA": "mlx4"})) == {"ib.device-not-found.hca-filter"}
    assert found(healthy, env={"NCCL_IB_HCA": "mlx5"}) == {}
    # what the job does not use is no fault of its rails
    assert found(port(healthy, 3, state="1: DOWN"), env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}) == {}


# ---- topology ----


def matrix(facts: Facts, edit: Callable[[str], str]) -> Facts:
    changed = copy.deepcopy(facts)
    part = changed["topology"]["data"]["matrix"]
    part["text"] = edit(part["text"])
    return changed


def far(text: str) -> str:
    """NIC6 beside no GPU any more: GPU6 has none."""
    lines = [line.split("\t") for line in text.splitlines()]
    names = lines[0]
    for cells in lines:
        if cells[0] in ("GPU6", "NIC6"):
            other = names.index("NIC6" if cells[0] == "GPU6" else "GPU6")
            cells[other] = "SYS"
    return "\n".join("\t".join(cells) for cells in lines)


def test_a_far_nic_is_worse_without_nvlink(healthy: Facts) -> None:
    linked = matrix(healthy, far)
    assert grades(found(linked)).get("topology.nic-far") == "info"
    plain = every_gpu(matrix(linked, lambda text: text.replace("NV18", "NODE")), nvlinks=None, name="NVIDIA L40S")
    assert grades(found(plain)).get("topology.nic-far") == "warn"


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ({"read": "OK", "write": "OK"}, ""),
        ({"read": "NS", "write": "OK"}, "gpu.p2p.denied"),
        ({"read": "OK", "write": "NS"}, "gpu.p2p.denied"),
        ({"read": "OK", "write": None}, ""),
        ({"read": None, "write": None}, ""),
    ],
)
def test_p2p_between_linked_gpus(cells: dict[str, Any], wanted: str, healthy: Facts) -> None:
    changed = copy.deepcopy(healthy)
    changed["gpu"]["data"]["pairs"][0].update(cells)
    assert set(found(changed)) == ({wanted} if wanted else set())


def test_acs_and_iommu_of_a_virtual_machine_belong_to_its_host(healthy: Facts) -> None:
    redirecting = {"outcome": "ok", "redirecting": [{"bus_id": Machine.bridge(1), "control": "0x001d"}]}
    elsewhere = {"outcome": "ok", "redirecting": [{"bus_id": "0000:ff:01.0", "control": "0x001d"}]}
    iommu = {"groups": 1, "types": {Machine.gpu_bus(0): "DMA"}}
    bad = of_host(healthy, "topology", acs=redirecting, iommu=iommu)
    assert set(found(bad)) == {"gpu.p2p.acs", "gpu.p2p.iommu"}
    assert "1 port" in said(bad)["ACS"] and "1 GPUs and NICs" in said(bad)["IOMMU"]
    assert not {"ACS", "IOMMU"} & said(healthy).keys()
    assert found(of_host(bad, "topology", hypervisor="kvm")) == {}
    assert found(of_host(healthy, "topology", acs=elsewhere)) == {}  # above no GPU and no NIC
    ports = [{"bus_id": bus, "control": "0x001d"} for bus in ("0000:10:01.0", Machine.bridge(0), Machine.bridge(1))]
    item = found(of_host(healthy, "topology", acs={"outcome": "ok", "redirecting": ports}))["gpu.p2p.acs"]
    assert "on 2 ports" in item.title  # the first is a root port: what passes it goes through the CPU anyway
    assert f"for port in {Machine.bridge(0)} {Machine.bridge(1)}; do" in item.fixes[1].command
    closed = report_on(of_host(healthy, "topology", acs={"outcome": "not-permitted", "redirecting": []}))
    assert any("ACS" in gap.what for gap in closed.unknown)


def test_one_bridge_that_is_not_readable_leaves_acs_unknown_and_hides_no_other(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.acs = {Machine.bridge(1): 0x1D}
    root = machine.write()
    config = root / "sys/bus/pci/devices" / Machine.bridge(2) / "config"
    config.write_bytes(config.read_bytes()[:64])  # what a user other than root reads
    seen = report_on(of_host(healthy, "topology", acs=probe("topology", root)["acs"]))
    assert [(item.id, Machine.bridge(1) in item.fixes[1].command) for item in seen.causes] == [("gpu.p2p.acs", True)]
    assert [gap.what for gap in seen.unknown] == ["ACS of the PCI bridges"]


@pytest.mark.parametrize(
    ("capability", "cluster", "channels", "wanted"),
    [
        ("10.0", "ab" * 16, [], True), ("10.3", "ab" * 16, [], True), ("10.0", "ab" * 16, ["channel0"], False),
        ("10.0", "00" * 16, [], False), ("9.0", "ab" * 16, [], False),
    ],
)  # fmt: skip
def test_imex(capability: str, cluster: str, channels: list[str], wanted: bool, healthy: Facts) -> None:
    facts = every_gpu(healthy, compute_capability=capability, fabric={"state": "completed", "cluster": cluster})
    assert set(found(of_host(facts, imex_channels=channels))) == ({"gpu.imex.no-channel"} if wanted else set())


# ---- hosts compared ----


def test_the_odd_host_is_named(healthy: Facts) -> None:
    for values, id in (
        ({"vbios": "96.00.30.00.01"}, "gpu.firmware-differs"),
        ({"persistence_mode": False}, "gpu.settings-differ"),
        ({"pcie_gen_max": 4, "pcie_gen": 4, "pcie_gen_gpu_max": 4}, "gpu.pcie.differs"),
        ({"clock_sm_application_mhz": 1200}, "gpu.settings-differ"),
    ):
        seen = found(healthy, healthy, every_gpu(healthy, **values))
        assert seen[id].hosts == ("gpu03",) and "gpu03" in seen[id].title, id


def test_without_a_majority_nobody_is_odd(healthy: Facts) -> None:
    item = found(healthy, every_gpu(healthy, vbios="96.00.30.00.01"))["gpu.firmware-differs"]
    assert item.hosts == ("gpu01", "gpu02") and item.title.endswith(" differs between hosts") and item.fixes == ()
    odd = found(healthy, healthy, every_gpu(healthy, vbios="96.00.30.00.01"))["gpu.firmware-differs"]
    assert [fix.text for fix in odd.fixes] == ["bring gpu03 to what most hosts have"]
    assert odd.evidence[0].text.endswith(" on gpu[01-02]; 96.00.30.00.01 on gpu03")


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        (lambda facts: facts, True),
        (lambda facts: gpu(facts, 2, name="NVIDIA H200"), False),
        (lambda facts: port(facts, 2, rate="200 Gb/sec (4X HDR)"), False),
        (lambda facts: port(facts, 2, state="1: DOWN"), False),
    ],
)
def test_a_job_runs_best_on_hosts_with_the_same_gpus_and_rails(
    change: Callable[[Facts], Facts], alike: bool, healthy: Facts
) -> None:
    told = groups(bundle({"gpu01": healthy, "gpu02": change(healthy)}))
    assert (told["gpu01"] == told["gpu02"]) is alike


def test_equal_memory_in_other_words_is_no_mixture(healthy: Facts) -> None:
    total = int(H100["memory_total"])
    assert found(healthy, healthy, every_gpu(healthy, memory_total_bytes=total)) == {}
    assert "gpu.mixed-models" in found(healthy, healthy, every_gpu(healthy, memory_total_bytes=total // 2))
    here = found(gpu(healthy, 2, memory_total_bytes=total // 2))["gpu.mixed-models"]
    assert [place.gpu for place in here.places] == ["2 (0000:3b:00.0)"] and "memory sizes differ" in here.title
    models = found(gpu(healthy, 2, name="NVIDIA H200"))["gpu.mixed-models"]
    assert "different GPUs in one job: NVIDIA H100 80GB HBM3, NVIDIA H200" in models.title


def test_a_host_without_gpus_among_hosts_with_some(healthy: Facts) -> None:
    bare = copy.deepcopy(healthy)
    bare["gpu"]["data"].update(
        gpus=[], pci_gpus=[], proc_gpus=[], device_nodes=[], pairs=[], nvml={"outcome": "not-run"}
    )
    seen = found(healthy, healthy, bare)
    item = seen["gpu.not-visible.no-gpu-here"]
    assert item.hosts == ("gpu03",) and item.title == "gpu03 has none of 8 GPUs"


# ---- the kernel log ----

XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=4711, name=python, {}"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {}, {} Link 12 x"


def logged(facts: Facts, *lines: str, ago_s: float = 600.0) -> Facts:
    changed = copy.deepcopy(facts)
    data = changed["kernel_log"]["data"]
    at = data["uptime_s"] - ago_s
    data["lines"] = [*data["lines"], *({"text": line, "at_s": at} for line in lines)]
    return changed


@pytest.mark.parametrize(
    ("number", "text", "ago_s", "wanted", "risky"),
    [
        (13, "Graphics Exception", 1.0, "info", False),
        (79, "GPU has fallen off the bus.", 86_400.0, "fail", True),
        (79, "GPU has fallen off the bus.", 86_401.0, "warn", True),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", 1.0, "fail", True),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 1.0, "fail", True),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", 1.0, "fail", True),  # R610's words
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", 1.0, "fail", True),
        (154, "GPU recovery action changed from 0x2 (OS Reboot) to 0x4 (Drain and Reset)", 1.0, "fail", True),
        (154, "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", 1.0, "fail", False),
        (154, "GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)", 1.0, "fail", False),
        (154, "in words nobody knows", 1.0, "fail", False),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", 1.0, "info", None),
        (154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", 1.0, "info", None),
        (175, "GPU memory subsystem timeout (type 1) detected", 1.0, "fail", True),
        (999, "what is this", 1.0, "warn", None),
    ],
)
def test_xids(number: int, text: str, ago_s: float, wanted: str, risky: bool | None, healthy: Facts) -> None:
    older = gpu(healthy, 2, recovery_action=None)  # a driver that does not say by itself what the GPU needs now
    (item,) = found(logged(older, XID.format(number, text), ago_s=ago_s)).values()
    assert item.severity.value == wanted and text in item.evidence[0].text
    assert [fix.risky for fix in item.fixes] == ([] if risky is None else [risky])
    if text.endswith(("Reboot)", "Reboot Required)")):
        assert "power" in item.fixes[0].command
    elif text.endswith(("Reset)", "Reset Required)", "FLR)")):
        assert item.fixes[0].command == "sudo nvidia-smi --gpu-reset -i 0000:3b:00.0"


@pytest.mark.parametrize(
    ("number", "word", "wanted", "quote"),
    [
        (20034, "Fatal,", "fail", "--gpu-reset"),
        (12020, "Fatal,", "fail", "sudo reboot"),
        (20034, "Non-fatal,", "info", ""),
        (20034, "", "fail", "--gpu-reset"),  # without a word of its own, the catalogue's
        (11004, "", "info", ""),
        (99999, "", "warn", "--gpu-reset"),
        (99999, "Fatal,", "fail", "--gpu-reset"),
    ],
)
def test_sxids(number: int, word: str, wanted: str, quote: str, healthy: Facts) -> None:
    (item,) = found(logged(healthy, SXID.format(number, word))).values()
    assert (item.severity.value, item.places[0].gpu) == (wanted, "NVSwitch 0000:c1:00.0")
    assert bool(item.fixes) == bool(quote) and all(quote in fix.command for fix in item.fixes)


@pytest.mark.parametrize(
    ("first_s", "up_s", "known"),
    [
        (3.0, 1e6, True),  # from the boot on
        (60.0, 61.0, True),
        (1e6 - 86_400, 1e6, True),  # a day: what is older would only be a warning
        (1e6 - 86_399, 1e6, False),
        (61.0, 1000.0, False),
        (None, 1e6, True),  # the source tells no times
    ],
)
def test_a_log_that_was_overwritten_is_no_proof_of_silence(
    first_s: float | None, up_s: float, known: bool, healthy: Facts
) -> None:
    changed = copy.deepcopy(healthy)
    changed["kernel_log"]["data"].update(first_s=first_s, uptime_s=up_s, lines=[])
    gaps = [gap for gap in report_on(changed).unknown if gap.what == "older lines of the kernel log"]
    assert bool(gaps) is not known
    if gaps:
        assert "goes back" in gaps[0].why and "up for" in gaps[0].why
        xid = {"text": XID.format(79, "GPU has fallen off the bus."), "at_s": up_s - 1}
        changed["kernel_log"]["data"]["lines"] = [xid]
        told = report_on(changed)
        assert "gpu.fell-off-bus" in {item.id for item in told.findings}
        # An application's own errors are no news of the GPUs, and may be what has overwritten the beginning.
        xid["text"] = XID.format(43, "pid=4242, name=python")
        assert gaps[0] in report_on(changed).unknown


@pytest.mark.parametrize(
    ("action", "command", "risky"),
    [
        ("gpu-reset", "sudo nvidia-smi --gpu-reset -i 2", True),
        ("drain-and-reset", "sudo nvidia-smi --gpu-reset -i 2", True),
        ("node-reboot", "sudo reboot", True),
        ("bus-reset", "sudo reboot", True),
        ("9", "sudo reboot", True),  # unknown to us
        ("drain-p2p", "nvidia-smi -q | grep -A2 'GPU Recovery Action'", False),
        ("recover-imex-domain", "sudo systemctl restart nvidia-imex", True),
    ],
)
def test_recovery_actions(action: str, command: str, risky: bool, healthy: Facts) -> None:
    item = found(gpu(healthy, 2, recovery_action=action))["gpu.needs-reset"]
    assert [(fix.command, fix.risky) for fix in item.fixes] == [(command, risky)] and action in item.title


def test_an_aborted_job_excuses_its_own_events_alone(healthy: Facts) -> None:
    job = (SXID.format(12028, "Fatal,"), XID.format(137, "NVLink: PRIV Error"), XID.format(94, "Contained"))
    assert set(grades(found(logged(healthy, *job))).values()) == {"info"}
    other = report_on(logged(healthy, *job, SXID.format(20034, "Fatal,"))).findings
    assert [item.severity.value for item in other if "SXid 20034" in item.title] == ["fail"]
    assert found(logged(healthy, job[0], job[2]))["gpu.ecc.contained"].severity is Severity.WARN


def test_what_explains_the_drivers_wish_for_a_reset(healthy: Facts) -> None:
    """A repair that waits does; a GPU to be replaced does not."""
    for field, folded in (("remap_pending", True), ("remap_failure", False)):
        causes = {
            item.id for item in report_on(gpu(healthy, 2, **{field: True, "recovery_action": "gpu-reset"})).causes
        }
        assert ("gpu.needs-reset" not in causes) is folded, field


def test_rails_where_no_port_is_active(healthy: Facts) -> None:
    """The kind of card of which there are most."""
    changed = copy.deepcopy(healthy)
    for device in changed["infiniband"]["data"]["devices"]:
        device["ports"][0]["state"] = "1: DOWN"
    changed["infiniband"]["data"]["devices"][0]["hca_type"] = "MT4119"
    item = found(changed)["ib.port-down.all"]
    assert "none of the 7 RDMA ports is active" in item.title


def test_gpudirect_that_one_host_lacks(healthy: Facts) -> None:
    """Without any way it is a fault; with another way, worth a look."""
    no_module = of_host(healthy, "topology", modules=ABSENT)
    assert found(healthy, healthy, no_module)["ib.gdr.differs"].severity is Severity.WARN
    closed = of_host(no_module, module_flavor="proprietary")
    item = found(healthy, healthy, closed)["ib.gdr.differs"]
    assert (item.severity, item.hosts) == (Severity.FAIL, ("gpu03",))
    untold = of_host(no_module, module_flavor=None)
    seen = found(healthy, healthy, untold)
    assert "ib.gdr.differs" not in seen and seen["ib.gdr.unknown"].hosts == ("gpu03",)


def test_topology_that_differs_is_quoted_cell_by_cell(healthy: Facts) -> None:
    other = matrix(
        healthy,
        lambda text: text.replace("GPU0\t X \tNV18", "GPU0\t X \tNV12").replace("GPU1\tNV18\t X ", "GPU1\tNV12\t X "),
    )
    item = found(healthy, healthy, other)["topology.differs"]
    assert item.hosts == ("gpu03",)
    assert item.evidence[0].text == "GPU0-GPU1 NV12 (most hosts: NV18)"
    everywhere = found(healthy, healthy, matrix(healthy, lambda text: text.replace("NV18", "NV12")))["topology.differs"]
    assert everywhere.evidence[0].text.endswith("GPU0-GPU4 NV12 (most hosts: NV18) and 24 more")
    assert "topology.differs" not in found(healthy, healthy)


def test_cards_below_one_switch_without_p2p(healthy: Facts) -> None:
    """NCCL then goes through host memory by itself: information. Far apart nobody expects P2P."""
    plain = every_gpu(
        matrix(healthy, lambda text: text.replace("NV18", "SYS")), nvlinks=[], name="NVIDIA GeForce RTX 4090"
    )
    plain = of_host(plain, nvswitches=0)
    for pair in plain["gpu"]["data"]["pairs"]:
        pair.update(read="GNS", write="GNS", nvlink="NS")
    assert "gpu.p2p.consumer" not in found(plain)
    near = matrix(
        plain, lambda text: text.replace("GPU0\t X \tSYS", "GPU0\t X \tPIX").replace("GPU1\tSYS\t X ", "GPU1\tPIX\t X ")
    )
    item = found(near)["gpu.p2p.consumer"]
    assert item.severity is Severity.INFO and [place.gpu for place in item.places] == ["0-1"]


def test_the_lifetime_of_ecc_errors_is_told_where_it_is_known(healthy: Facts) -> None:
    for total, text in ((12, "errors: 3, lifetime 12"), (None, "errors: 3")):
        item = found(gpu(healthy, 2, ecc_uncorrected_volatile=3, ecc_uncorrected_aggregate=total))[
            "gpu.ecc.uncorrectable"
        ]
        assert item.evidence[0].text.endswith(text)


def test_a_process_that_the_system_stage_named_is_not_told_twice(healthy: Facts) -> None:
    held = gpu(healthy, 2, processes=[{"pid": 7, "name": "python"}])
    seen = system.system({})
    seen["gpu_processes"]["processes"] = [{"pid": 7, "command": "python", "state": "S", "devices": []}]
    held["system"] = {"outcome": "ok", "data": seen}
    for stages, twice in ((("gpu",), True), (("system", "gpu"), False)):
        told = report_on(held, stages=stages)
        assert any(item.id == "gpu.busy.nvml" for item in told.findings) is twice
        out_of_sight = gpu(held, 2, processes=[], memory_used_bytes=9 << 30)  # in a container
        told = report_on(out_of_sight, stages=stages)
        assert any(item.id == "gpu.busy.memory-without-process" for item in told.findings) is twice


def test_how_often_a_register_was_seen(healthy: Facts) -> None:
    line = XID.format(74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")
    for count, text in ((1, ""), (2, " (2 times)")):
        (item,) = found(logged(healthy, *[line] * count)).values()
        (seen,) = [proof.text for proof in item.evidence if "the line's registers" in proof.source]
        assert seen.startswith("link 14: ") and seen.endswith(text) and ("times" in seen) is (count > 1)


def test_versions_stand_beside_a_driver_that_fails(healthy: Facts) -> None:
    for library, text in (
        ("12.535.161.08", "kernel module 550.90.07; library 12.535.161.08"),
        (None, "kernel module 550.90.07"),
    ):
        failed = of_host(
            healthy,
            nvml={"outcome": "failed", "code": 18, "detail": "nvmlInit: mismatch"},
            gpus=[],
            system={"library": library},
        )
        item = found(failed)["gpu.driver.mismatch"]
        assert [proof.text for proof in item.evidence][:2] == ["nvmlInit: mismatch", text]


@pytest.mark.parametrize(("share", "told"), [(0.5, True), (0.97, True), (0.99, False), (1.0, False)])
def test_the_smallest_memory_counts_where_it_is_smaller(share: float, told: bool, healthy: Facts) -> None:
    total = int(int(H100["memory_total"]) * share)
    other = every_gpu(healthy, name="NVIDIA H200", memory_total_bytes=total)
    assert ("can hold only what fits the smallest" in words(found(healthy, healthy, other)["gpu.mixed-models"])) is told


def test_titles_count_links_and_events(healthy: Facts) -> None:
    hit = "NVLink: fatal error detected on link {}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    (one,) = found(logged(healthy, XID.format(74, hit.format(3)))).values()
    (two,) = found(logged(healthy, *(XID.format(74, hit.format(link)) for link in (14, 3)))).values()
    assert ", link 3:" in one.title and ", links 3, 14, 2 times:" in two.title
    (single,) = found(logged(healthy, SXID.format(20034, "Fatal,"))).values()
    several = logged(healthy, *[SXID.format(20034, "Fatal,")] * 2)
    (double,) = found(several).values()
    assert "times" not in single.title and ", 2 times:" in double.title
    several["kernel_log"]["data"]["left_off"] = 3  # lines that were too many to be told
    assert ", 2 times or more:" in next(iter(found(several).values())).title


def test_what_is_unknown_of_one_hides_no_fault_of_another(healthy: Facts) -> None:
    """A GPU without any word on its NVLinks, a rail without a rate: the others are judged all the same."""
    down = copy.deepcopy(gpu(healthy, 5, nvlinks=None, errors={"nvlinks": "nvmlDeviceGetNvLinkState: Timeout"}))
    down["gpu"]["data"]["gpus"][2]["nvlinks"][0]["active"] = False
    seen = report_on(down)
    assert "gpu.nvlink.link-down" in {item.id for item in seen.findings}
    assert any("NVLink state of GPU 5" in gap.what for gap in seen.unknown)
    mixed = gpu(healthy, 5, ecc_uncorrected_volatile=None, errors={"ecc_uncorrected_volatile": "nvmlX: Timeout"})
    mixed = gpu(mixed, 2, ecc_uncorrected_volatile=3, throttle_reasons=0x40, pcie_width=8)
    told = {item.id for item in report_on(mixed).findings}
    assert told >= {"gpu.ecc.uncorrectable", "gpu.thermal-power.hw-thermal", "gpu.pcie.width"}
    assert "ECC counters" in {gap.what for gap in report_on(mixed).unknown}
    slow = report_on(port(port(healthy, 0, rate="200 Gb/sec (2X NDR)"), 3, rate=None))
    assert [item.places[0].nic for item in slow.findings if item.id == "ib.rate.degraded"] == ["mlx5_0:1"]
    assert any(gap.what == "port rate" and "mlx5_3:1" in gap.why for gap in slow.unknown)


def test_of_an_unknown_model_the_neighbours_tell_how_many_links_there_are(healthy: Facts) -> None:
    strange = every_gpu(healthy, name="NVIDIA X900")
    assert "gpu.nvlink.link-down" in found(gpu(strange, 2, nvlinks=[]))
    assert "gpu.nvlink.link-down" not in found(gpu(strange, 2, nvlinks=None))
