"""Every hardware fault, broken into one machine of four and read by the real probes: named, on the right host, with
proof and playbook, and nothing else beside it."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

import pytest

from nccl_doctor.facts.infiniband import Device, InfinibandFact, Port
from nccl_doctor.facts.infiniband_tools import parse_ibstat
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import thresholds
from nccl_doctor.rules.judge import Report, judge
from nccl_doctor.rules.rails import rails
from tests.hardware_kit import machines
from tests.hardware_kit.faults import FAULTS, ODD, ROCE_FAULTS, XID, flapping, gpu, log, other_driver
from tests.hardware_kit.fleet import Facts, bundle, report, words
from tests.hardware_kit.machines import A100, Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))


def fleet(healthy: Facts, odd: Facts | None = None) -> dict[str, Facts]:
    facts = dict.fromkeys(("gpu01", "gpu02", ODD, "gpu04"), healthy)
    return {**facts, ODD: odd} if odd is not None else facts


def told(found: Report) -> dict[str, Finding]:
    """The causes that are more than information, by id."""
    return {item.id: item for item in found.causes if item.severity is not Severity.INFO}


def test_a_healthy_fleet_gives_nothing(healthy: Facts) -> None:
    found = report(fleet(healthy))
    assert found.findings == ()
    assert found.unknown == ()
    assert found.verdict == "healthy"
    assert [stage.state for stage in found.stages] == ["pass", "pass", "pass"]


def test_a_healthy_roce_fleet_gives_nothing(healthy_roce: Facts) -> None:
    found = report(fleet(healthy_roce))
    assert found.findings == ()
    assert found.unknown == ()


def test_machines_without_gpu_and_rdma_are_skipped(tmp_path: Path) -> None:
    bare = Machine(tmp_path, gpus=0, nics=0)
    bare.on_bus, bare.modules, bare.nvswitches, bare.smi_missing = [], set(), 0, True
    facts = bare.facts() | {}
    facts["gpu"]["data"]["libraries"] = []  # the stand-in's own directory is on the search path
    found = report({"a": facts, "b": facts})
    assert found.findings == ()
    assert [(stage.state, stage.passed) for stage in found.stages] == [("skipped", 0)] * 3
    no_gpu, no_device = "no NVIDIA GPU on any host", "no RDMA device on any host"
    assert [stage.reason for stage in found.stages] == [no_gpu, no_gpu, no_device]
    assert found.unknown == ()


# The broad causes, whose playbooks belong to `explain` as well; the finer ids beneath are this part's own.
PLAIN = {"gpu.ecc", "gpu.fell-off-bus", "gpu.mig", "gpu.nvlink", "ib.port-down"}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, healthy: Facts, tmp_path: Path) -> None:
    breaking, ids, quote = FAULTS[name]
    machine = Machine(tmp_path)
    breaking(machine)
    odd = machine.facts(limits={"nvml_limit_s": 3.0, "smi_limit_s": 2.0} if "hang" in name else None)
    found = report(fleet(healthy, odd))
    seen = told(found)
    assert set(seen) == ids, {id: words(item) for id, item in seen.items()}
    for item in seen.values():
        assert item.hosts == (ODD,)
        assert item.evidence
        assert for_finding(item.id) or item.id in PLAIN, f"no playbook for {item.id}"
        for fix in item.fixes:  # to look is safe to paste: what interrupts says so, and a reboot stands alone
            assert fix.risky or not re.search(r"reboot|power cycle|gpu.reset", fix.command), fix
            assert "reboot" not in fix.command or fix.command == "sudo reboot"
    assert any(quote in words(item) for item in seen.values()), [words(item) for item in seen.values()]


def test_the_adapter_of_other_firmware_is_named(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.hcas[3].fw_ver = "28.39.1002"
    (item,) = told(report(fleet(healthy, machine.facts()))).values()
    assert [(place.host, place.nic) for place in item.places] == [(ODD, "mlx5_3:1")]


def test_missing_gpu_is_named_by_its_slot(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    del machine.gpus[5]
    machine.files = {"/sys/bus/pci/slots/12/address": "0000:6b:00\n"}
    odd = machine.facts()
    (item,) = told(report(fleet(healthy, odd))).values()
    assert item.title == "NVML sees 7 of 8 GPUs: 0000:6b:00.0 (slot 12) is missing"


def test_the_card_of_a_gpu_that_fell_off_is_named(healthy: Facts, tmp_path: Path) -> None:
    """Slot from sysfs, serial number from the kernel log: NVML has lost it."""
    machine = Machine(tmp_path)
    machine.files = {"/sys/bus/pci/slots/12/address": "0000:3b:00\n"}
    machine.gpus[2]["handle"] = "lost"
    log(
        XID.format(79, "GPU has fallen off the bus."),
        "NVRM: GPU 0000:3b:00.0: GPU serial number is 1653723052734.",
    )(machine)
    item = told(report(fleet(healthy, machine.facts())))["gpu.fell-off-bus"]
    assert "0000:3b:00.0 is slot 12, serial 1653723052734" in words(item)


def test_gpu_gone_from_the_bus_too(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    del machine.gpus[5], machine.on_bus[5]
    seen = told(report(fleet(healthy, machine.facts())))
    item = seen["gpu.not-visible.fewer-than-peers"]
    assert item.title == "gpu03 has 7 of 8 GPUs: missing 0000:6b:00.0"
    assert {place.gpu for place in item.places} == {"0000:6b:00.0"}


def test_hanging_driver_leaves_no_process(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.settings["hang"] = "nvmlInitWithFlags"
    facts = machine.facts(limits={"nvml_limit_s": 1.0})
    assert facts["gpu"]["outcome"] == "ok"
    assert facts["gpu"]["data"]["nvml"]["outcome"] == "timed-out"
    assert facts["gpu"]["data"]["nvml"]["call"] == "nvmlInit"
    mark = str(machine.directory / "nvml.conf").encode()
    for entry in Path("/proc").iterdir():
        try:
            assert mark not in (entry / "environ").read_bytes()
        except OSError:
            continue


def test_link_flapping_now(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with flapping(tmp_path):
        odd = machine.facts(interval_s=0.5)
    seen = told(report(fleet(healthy, odd)))
    assert set(seen) == {"ib.link-flapping"}
    assert seen["ib.link-flapping"].hosts == (ODD,)


@pytest.mark.parametrize("name", ROCE_FAULTS)
def test_roce_fault(name: str, healthy_roce: Facts, tmp_path: Path) -> None:
    breaking, ids = ROCE_FAULTS[name]
    machine = Machine(tmp_path).roce()
    breaking(machine)
    seen = told(report(fleet(healthy_roce, machine.facts())))
    assert set(seen) == ids, {id: words(item) for id, item in seen.items()}
    assert all(item.hosts == (ODD,) for item in seen.values())


def test_gid_index_of_the_job(healthy_roce: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path).roce()
    second = machines.LINK_LOCAL.format(99)
    machine.hcas[0].gids[2:2] = [(second, "IB/RoCE v1"), (second, "RoCE v2")]  # IPv4 moves to 4 and 5
    found = report(fleet(healthy_roce, machine.facts()), env={"NCCL_IB_GID_INDEX": "2"})
    wrong = [item for item in found.causes if item.id == "ib.gid-index.wrong"]
    assert len(wrong) == 4 * 8
    assert "NCCL itself would choose 5" in next(item.title for item in wrong if item.hosts == (ODD,))
    good = report(fleet(healthy_roce, machine.facts()), env={"NCCL_IB_GID_INDEX": "3"})
    assert told(good) == {}  # link-local v2 on one port: information, NCCL would choose 5
    assert [item.id for item in good.causes] == ["ib.gid-index.set"]


def test_gid_is_judged_as_the_job_narrows_the_search(healthy_roce: Facts) -> None:
    ipv6 = report(fleet(healthy_roce, healthy_roce), env={"NCCL_IB_ADDR_FAMILY": "AF_INET6"})
    assert set(told(ipv6)) == {"ib.gid-index.link-local"}  # the only IPv6 GIDs there are
    for name, given in (("NCCL_IB_ROCE_VERSION_NUM", "1"), ("NCCL_IB_ADDR_RANGE", "10.0.0.0/8")):
        narrowed = report(fleet(healthy_roce, healthy_roce), env={name: given})
        assert any(name in gap.why for gap in narrowed.unknown), narrowed.unknown
    assert not report(fleet(healthy_roce, healthy_roce), env={"NCCL_IB_ROCE_VERSION_NUM": "2"}).unknown


def test_gid_index_that_a_host_sets_itself(healthy_roce: Facts) -> None:
    """It counts as the job's does, from a login's environment and from nccl.conf."""
    line = {"role": "system", "path": "/etc/nccl.conf", "lines": [{"line": 3, "text": "NCCL_IB_GID_INDEX=9"}]}
    interfaces = {"addresses": [], "environment": {}, "conf_files": [line]}
    for probe, data, place in (
        ("environment", {"variables": {"NCCL_IB_GID_INDEX": "9"}}, ("environment", None)),
        ("interfaces", interfaces, ("/etc/nccl.conf", 3)),
    ):
        odd = {**healthy_roce, probe: {"outcome": "ok", "data": data}}
        wrong = [item for item in report(fleet(healthy_roce, odd)).findings if item.id == "ib.gid-index.wrong"]
        assert wrong and all(item.hosts == (ODD,) and "an empty entry" in item.title for item in wrong)
        assert {(item.evidence[0].source, item.evidence[0].line) for item in wrong} == {place}
        assert all(bool(item.env) == (place[1] is None) for item in wrong)


def test_management_nics_are_not_rails(tmp_path: Path) -> None:
    """A down Ethernet card of another kind beside active rails is no fault, on one host or on all."""
    machine = Machine(tmp_path)
    front = machines.Hca("mlx5_8", "0000:9c:00.0", "Ethernet", "40 Gb/sec (4X QDR)", "1: DOWN", "3: Disabled", "MT4125")
    machine.hcas.append(front)
    machine.on_bus.append(Machine.gpu_bus(7))
    del machine.on_bus[-1]
    facts = machine.facts()
    found = report(dict.fromkeys(("a", "b", "c"), facts))
    assert [item.id for item in found.causes if item.id.startswith("ib.")] == []


def test_cuda_visible_devices(healthy: Facts) -> None:
    for text, left in (("0,1,9,2", 2), ("", 0), ("-1", 0), ("0,0", 1), ("0,1,2,3,4,5,6,7", None), ("7,6", None)):
        seen = told(report(fleet(healthy), env={"CUDA_VISIBLE_DEVICES": text}))
        if left is None:
            assert seen == {}, text
        else:
            assert f"leaves {left} of 8 GPUs" in seen["gpu.not-visible.cuda-visible-devices"].title


def test_mixed_models_advice(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path, model=A100)
    (item,) = told(report(fleet(healthy, machine.facts()))).values()
    said = words(item)
    assert "the slowest has 32 % of the fastest's speed" in said
    assert "common precision: BF16" in said and "FP8" not in said
    assert "NVIDIA A100-SXM4-80GB 1.2 % each (312 TFLOPS)" in said


def test_idle_gpu_at_generation_1_is_no_fault(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.model.update(pcie_gen="1", performance_state="8")
    assert told(report(dict.fromkeys(("a", "b"), machine.facts()))) == {}


def test_aborted_nvls_job_is_no_memory_fault(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    log(
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        XID.format(137, "NVLink: PRIV Error"),
        XID.format(94, "Contained: SM (0x1)."),
    )(machine)
    found = report(fleet(healthy, machine.facts()))
    assert told(found) == {}
    by_id = {item.id: item for item in found.causes}
    assert by_id.keys() == {"gpu.nvlink.nvswitch", "gpu.nvlink.remote-error", "gpu.ecc.contained"}
    assert "CONTAINED_ERROR" in words(by_id["gpu.ecc.contained"])


def test_what_the_driver_does_not_support_is_no_zero(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1, nics=0)
    for key in ("ecc_uncorrected_volatile", "remapped_correctable", "throttle_reasons", "temperature_0", "power_mw"):
        machine.gpus[0][key] = "ns"
    machine.gpus[0]["pcie_replays"] = "np"
    device = machine.facts()["gpu"]["data"]["gpus"][0]
    assert device["ecc_uncorrected_volatile"] is None and device["remapped_correctable"] is None
    assert device["power_w"] is None and device["temperature_c"] is None
    assert {"ecc_uncorrected_volatile", "remap_pending", "throttle_reasons", "power_w"} <= set(device["not_supported"])
    assert device["not_permitted"] == ["pcie_replays"]


@pytest.mark.parametrize("probe", ["gpu", "topology", "infiniband", "kernel_log"])
def test_missing_data_is_never_pass(probe: str, healthy: Facts) -> None:
    """Without a probe's data, no rule that needs it passes: the verdict is incomplete."""
    facts = fleet(healthy)
    facts[ODD] = {**healthy, probe: {"outcome": "not-permitted", "detail": "needs root", "data": None}}
    found = report(facts)
    assert found.verdict == "incomplete"
    assert any(ODD in gap.hosts and "needs root" in gap.why for gap in found.unknown)


def test_shuffled_hosts_give_the_same_report(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    other_driver(machine)
    odd = machine.facts()
    one = report({"a": healthy, "b": odd, "c": healthy})
    other = report({"c": healthy, "b": odd, "a": healthy})
    assert one == other


def _from_ibstat(text: str) -> InfinibandFact:
    """The sysfs fact of a machine of which only ibstat's output is known."""
    devices = tuple(
        Device(
            name=device.name,
            hca_type=device.fields.get("ca_type"),
            ports=tuple(
                Port(
                    port=port.number,
                    state=f"4: {port.fields['state'].upper()}",
                    phys_state=f"0: {port.fields['physical_state']}",
                    rate=f"{port.fields['rate']} Gb/sec",
                    link_layer=port.fields.get("link_layer"),
                )
                for port in device.ports
            ),
        )
        for device in parse_ibstat(text).devices
    )
    return InfinibandFact(devices=devices)


@pytest.mark.parametrize(
    ("sample", "rails_found", "down"),
    [
        ("ibstat-some-down-0", 8, set()),  # three ConnectX-6 Dx that are down belong to the front end
        ("ibstat-some-down-1", 8, {"mlx5_5:1", "mlx5_11:1"}),
        ("ibstat-a100-all-active-0", 8, set()),  # the first device is the Ethernet one
        ("ibstat-h100-all-active-2", 8, set()),
    ],
)
def test_rails_of_real_machines(sample: str, rails_found: int, down: set[str]) -> None:
    path = SHARED / "corpus" / "hw" / f"{sample}.txt"
    if not path.exists():
        pytest.skip("the shared hardware samples are not here")
    found = rails(_from_ibstat(path.read_text()), Plan())
    assert len(found) == rails_found, [rail.label for rail in found]
    assert {rail.label for rail in found if not rail.port.active} == down


def test_a_threshold_of_the_user_decides(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    gpu(4, temperature_0=80)(machine)
    facts = fleet(healthy, machine.facts())
    assert told(report(facts)) == {}
    strict = thresholds.with_values({"gpu.temperature.margin": 20}, "a policy")
    assert set(told(judge(bundle(facts), strict))) == {"gpu.thermal-power.hot"}


def test_verbs_library_without_provider(healthy: Facts) -> None:
    odd = copy.deepcopy(healthy)
    odd["infiniband"]["data"]["witnesses"] = {
        "ibv_devinfo": {"outcome": "failed", "detail": "exit status 255: No IB devices found", "text": ""}
    }
    seen = told(report(fleet(healthy, odd)))
    assert set(seen) == {"ib.device-not-found.no-provider"}
    assert seen["ib.device-not-found.no-provider"].hosts == (ODD,)


def test_rail_mtu_differs(healthy_roce: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path).roce()
    for one in machine.hcas:
        one.mtu = 1500
    seen = told(report(fleet(healthy_roce, machine.facts())))
    assert set(seen) == {"ib.mtu.differs"}
    assert seen["ib.mtu.differs"].hosts == (ODD,)
