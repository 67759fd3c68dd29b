"""Every hardware fault, broken into one machine of four and read by the real probes: named, on the right host, with
proof and playbook, and nothing else beside it."""

from __future__ import annotations

import copy
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hardware_kit"))

import machines
from machines import A100, Machine

from nccl_doctor.facts.infiniband import Device, InfinibandFact, Port
from nccl_doctor.facts.infiniband_tools import parse_ibstat
from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import thresholds
from nccl_doctor.rules.judge import Report, judge
from nccl_doctor.rules.rails import rails

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
STAGES = ("gpu", "topology", "infiniband")
ODD = "gpu03"
Facts = dict[str, Any]


def host(name: str, facts: Facts) -> HostFacts:
    return HostFacts(name, Reach(ReachOutcome.OK), {k: msgspec.convert(v, ProbeResult) for k, v in facts.items()})


def report(facts: dict[str, Facts], **plan: Any) -> Report:
    hosts = tuple(host(name, one) for name, one in sorted(facts.items()))
    return judge(Bundle(BUNDLE_SCHEMA, "test", "2026-11-21T00:00:00+00:00", Plan(stages=STAGES, **plan), hosts))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return Machine(tmp_path_factory.mktemp("healthy")).facts()


@pytest.fixture(scope="session")
def healthy_roce(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return Machine(tmp_path_factory.mktemp("roce")).roce().facts()


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
    assert [stage.state for stage in found.stages] == ["skipped"] * 3
    assert found.unknown == ()


Break = Callable[[Machine], None]


def gpu(index: int, **values: Any) -> Break:
    def apply(machine: Machine) -> None:
        machine.gpus[index].update({key: str(value) for key, value in values.items()})

    return apply


def every_gpu(**values: Any) -> Break:
    def apply(machine: Machine) -> None:
        machine.model.update({key: str(value) for key, value in values.items()})

    return apply


def setting(**values: str) -> Break:
    return lambda machine: machine.settings.update(values)


def hca(index: int, **values: Any) -> Break:
    def apply(machine: Machine) -> None:
        for key, value in values.items():
            setattr(machine.hcas[index], key, value)

    return apply


def attribute(**values: Any) -> Break:
    def apply(machine: Machine) -> None:
        for key, value in values.items():
            setattr(machine, key, value)

    return apply


def log(*lines: str, ago_s: float = 600.0) -> Break:
    def apply(machine: Machine) -> None:
        assert machine.kernel_log is not None
        machine.kernel_log.extend((machine.uptime_s - ago_s, line) for line in lines)

    return apply


def seven_of_eight(machine: Machine) -> None:
    del machine.gpus[5]


def not_even_on_the_bus(machine: Machine) -> None:
    del machine.gpus[5], machine.on_bus[5]
    machine.matrix = ""  # what nvidia-smi prints is not the matter here


def other_driver(machine: Machine) -> None:
    machine.settings.update(driver="535.161.08", library="12.535.161.08")
    machine.module_version = "535.161.08"
    machine.model["gsp_firmware"] = "535.161.08"


def other_model(machine: Machine) -> None:
    machine.model.update(A100)


def without_rdma(machine: Machine) -> None:
    machine.hcas.clear()
    machine.modules -= {"mlx5_core", "mlx5_ib"}


def no_manager(machine: Machine) -> None:
    machine.fabric_manager = False
    machine.model.update(fabric_state="2")


def lost_nvlink(machine: Machine) -> None:
    machine.nvlink_lost = {2}
    machine.gpus[2]["nvlinks_down"] = "," + ",".join(map(str, range(18))) + ","


def no_peermem(machine: Machine) -> None:
    machine.modules -= {"nvidia_peermem"}
    machine.open_module = False


XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=4711, name=python, {}"
FAULTS: dict[str, tuple[Break, set[str], str]] = {
    # name: (what is broken, ids that must be told, text that must be in the evidence or title)
    "7 of 8 GPUs": (seven_of_eight, {"gpu.not-visible.fewer-than-bus"}, "0000:6b:00.0"),
    "GPU is lost": (gpu(5, handle="lost"), {"gpu.fell-off-bus.lost"}, "GPU is lost"),
    "hanging NVML": (setting(hang="nvmlDeviceGetUUID", hang_gpu="3"), {"gpu.driver.hang"}, "GetUUID of GPU 3"),
    "driver mismatch": (setting(init="err:18"), {"gpu.driver.mismatch"}, "version mismatch"),
    "driver not loaded": (setting(init="err:9"), {"gpu.driver.not-loaded"}, "Driver Not Loaded"),
    "GPU answers errors": (
        gpu(1, temperature_0="err:999", power_mw="err:999", clock_1="err:999"),
        {"gpu.driver.failed"},
        "Unknown Error",
    ),
    "uncorrectable ECC": (gpu(1, ecc_uncorrected_volatile=3), {"gpu.ecc.uncorrectable"}, "errors: 3"),
    "row remap pending": (gpu(1, remap_pending=1, remapped_uncorrectable=4), {"gpu.ecc.row-remap-pending"}, "Yes"),
    "row remap failure": (gpu(1, remap_failure=1), {"gpu.ecc.row-remap-failure"}, "Yes"),
    "driver asks for reset": (gpu(1, field_230=1), {"gpu.needs-reset"}, "gpu-reset"),
    "Xid 79": (log(XID.format(79, "GPU has fallen off the bus.")), {"gpu.fell-off-bus"}, "Xid (PCI:0000:3b:00): 79"),
    "Xid 94": (log(XID.format(94, "Contained: SM (0x1). RST: No")), {"gpu.ecc.contained"}, "94"),
    "Xid 79 long ago": (log(XID.format(79, "x"), ago_s=2 * 86400), {"gpu.fell-off-bus"}, "2 d ago"),
    "SXid fatal": (
        log("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 12 LTSSM Fault Up"),
        {"gpu.nvlink.nvswitch"},
        "LTSSM",
    ),
    "thermal": (gpu(4, throttle_reasons=0x48, temperature_0=94), {"gpu.thermal-power.hw-thermal"}, "94 C"),
    "power brake": (every_gpu(throttle_reasons=0x88), {"gpu.thermal-power.power-brake"}, "power brake"),
    "hot": (gpu(4, temperature_0=91), {"gpu.thermal-power.hot"}, "91 C"),
    "power cap": (gpu(4, power_limit_mw=350000), {"gpu.thermal-power.power-cap", "gpu.settings-differ"}, "350 W"),
    "PCIe x8": (gpu(6, pcie_width=8), {"gpu.pcie.width"}, "x8"),
    "PCIe Gen3": (gpu(6, pcie_gen=3), {"gpu.pcie.generation"}, "generation: 3"),
    "NVLink down": (gpu(7, nvlinks_down=",11,"), {"gpu.nvlink.link-down"}, "17 of 18 (inactive: 11)"),
    "NVLinks lost": (lost_nvlink, {"gpu.nvlink.link-down"}, "0 of 18"),
    "NVLink errors": (gpu(7, nvlink3_error_1=5), {"gpu.nvlink.errors"}, "5 recoveries"),
    "no fabric manager": (no_manager, {"gpu.fabric-manager.not-running"}, "in-progress"),
    "fabric failed": (gpu(0, fabric_status=999), {"gpu.fabric-manager.failed"}, "999"),
    "MIG": (gpu(0, mig_mode=1, mig_mode_pending=1), {"gpu.mig"}, "enabled"),
    "held by a process": (gpu(2, processes=f"4711:{40 << 30}"), {"gpu.busy.nvml"}, "pid 4711"),
    "leaked memory": (gpu(2, memory_used=20 << 30), {"gpu.busy.memory-without-process"}, "20 GiB"),
    "prohibited": (gpu(2, compute_mode=2), {"gpu.compute-mode.prohibited", "gpu.settings-differ"}, "prohibited"),
    "other model": (other_model, {"gpu.mixed-models"}, "NVIDIA A100-SXM4-80GB on gpu03"),
    "other driver": (other_driver, {"gpu.driver.differs", "gpu.firmware-differs"}, "535.161.08 on gpu03"),
    "other VBIOS": (every_gpu(vbios="96.00.30.00.01"), {"gpu.firmware-differs"}, "96.00.30.00.01"),
    "ACS": (attribute(acs={Machine.bridge(1): 0x1D}), {"gpu.p2p.acs"}, "0x001d"),
    "IOMMU": (attribute(iommu="DMA-FQ"), {"gpu.p2p.iommu"}, "DMA-FQ"),
    "P2P denied": (gpu(0, p2p_0_1=5, p2p_1_1=5), {"gpu.p2p.denied"}, "read NS"),
    "IB port down": (hca(3, state="1: DOWN", phys_state="2: Polling"), {"ib.port-down"}, "2: Polling"),
    "IB port disabled": (
        hca(3, state="1: DOWN", phys_state="3: Disabled", rate="40 Gb/sec (4X QDR)"),
        {"ib.port-down.disabled"},
        "Disabled",
    ),
    "no subnet manager": (hca(3, state="2: INIT"), {"ib.port-down.no-subnet-manager"}, "INIT"),
    "half rate": (hca(3, rate="200 Gb/sec (2X NDR)"), {"ib.rate.degraded"}, "200 Gb/sec (2X NDR)"),
    "past flaps": (hca(3, counters={"link_downed": 40}), {"ib.link-flapping.past"}, "link_downed 40"),
    "no IB here": (without_rdma, {"ib.device-not-found.none-here"}, "none of 8"),
    "one HCA fewer": (
        lambda machine: machine.hcas.pop(6),
        {"ib.device-not-found.fewer-than-peers"},
        "mlx5_6:1",
    ),
    "no peermem": (no_peermem, {"ib.gdr.off", "gpu.driver.flavour-differs"}, "nvidia_peermem is not loaded"),
    "no uverbs": (hca(3, uverbs=False), {"ib.device-not-found.uverbs"}, "/dev/infiniband/uverbs3"),
    "HCA firmware": (hca(3, fw_ver="28.39.1002"), {"ib.firmware-differs"}, "28.39.1002"),
    "nvidia-smi hangs": (attribute(smi_hangs=True), {"gpu.driver.smi-hang"}, "did not answer"),
}  # fmt: skip


# The broad causes, whose playbooks belong to `explain` as well; the finer ids beneath are this part's own.
PLAIN = {"gpu.ecc", "gpu.fell-off-bus", "gpu.mig", "gpu.nvlink", "ib.port-down"}


def _words(item: Finding) -> str:
    return item.title + " " + " ".join(proof.text for proof in item.evidence)


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, healthy: Facts, tmp_path: Path) -> None:
    breaking, ids, quote = FAULTS[name]
    machine = Machine(tmp_path)
    breaking(machine)
    odd = machine.facts(limits={"nvml_limit_s": 3.0, "smi_limit_s": 2.0} if "hang" in name else None)
    found = report(fleet(healthy, odd))
    seen = told(found)
    assert set(seen) == ids, {id: _words(item) for id, item in seen.items()}
    for item in seen.values():
        assert item.hosts == (ODD,)
        assert item.evidence
        assert for_finding(item.id) or item.id in PLAIN, f"no playbook for {item.id}"
    assert any(quote in _words(item) for item in seen.values()), [_words(item) for item in seen.values()]


def test_missing_gpu_is_named_by_its_slot(healthy: Facts, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    del machine.gpus[5]
    machine.files = {"/sys/bus/pci/slots/12/address": "0000:6b:00\n"}
    odd = machine.facts()
    (item,) = told(report(fleet(healthy, odd))).values()
    assert item.title == "NVML sees 7 of 8 GPUs: 0000:6b:00.0 (slot 12) is missing"


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
    done = threading.Event()

    def flap() -> None:
        counter = tmp_path / "root/sys/class/infiniband/mlx5_3/ports/1/counters/link_downed"
        number = 0
        while not done.is_set():
            number += 1
            if counter.parent.exists():
                temporary = counter.with_suffix(".new")
                temporary.write_text(f"{number}\n")
                os.replace(temporary, counter)
            time.sleep(0.02)

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        odd = machine.facts(interval_s=0.5)
    finally:
        done.set()
        thread.join()
    seen = told(report(fleet(healthy, odd)))
    assert set(seen) == {"ib.link-flapping"}
    assert seen["ib.link-flapping"].hosts == (ODD,)


ROCE_FAULTS: dict[str, tuple[Break, set[str]]] = {
    "no RoCE v2": (hca(2, gids=[(machines.LINK_LOCAL.format(3), "IB/RoCE v1")]), {"ib.gid-index.no-roce-v2"}),
    "link-local only": (
        hca(2, gids=[(machines.LINK_LOCAL.format(3), f"{kind}RoCE v{n}") for n, kind in ((1, "IB/"), (2, ""))]),
        {"ib.gid-index.link-local"},
    ),
    "other link layer": (
        lambda machine: [setattr(hca, "link_layer", "InfiniBand") for hca in machine.hcas] and None,
        {"ib.device-not-found.none-here"},
    ),
}


@pytest.mark.parametrize("name", ROCE_FAULTS)
def test_roce_fault(name: str, healthy_roce: Facts, tmp_path: Path) -> None:
    breaking, ids = ROCE_FAULTS[name]
    machine = Machine(tmp_path).roce()
    breaking(machine)
    seen = told(report(fleet(healthy_roce, machine.facts())))
    assert set(seen) == ids, {id: _words(item) for id, item in seen.items()}
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


def test_management_nics_are_not_rails(healthy: Facts, tmp_path: Path) -> None:
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
    words = _words(item)
    assert "the slowest has 32% of the fastest's speed" in words
    assert "common precision: BF16" in words and "FP8" not in words
    assert "NVIDIA A100-SXM4-80GB 1.2% each (312 TFLOPS)" in words


def test_idle_gpu_at_generation_1_is_no_fault(healthy: Facts, tmp_path: Path) -> None:
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
    assert {item.id for item in found.causes} == {"gpu.nvlink.nvswitch", "gpu.nvlink.remote-error", "gpu.ecc.contained"}


def test_what_the_driver_does_not_support_is_no_zero(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1, nics=0)
    for key in ("ecc_uncorrected_volatile", "remapped_correctable", "throttle_reasons", "temperature_0", "power_mw"):
        machine.gpus[0][key] = "ns"
    machine.gpus[0]["pcie_replays"] = "np"
    device = machine.facts()["gpu"]["data"]["gpus"][0]
    assert device["ecc_uncorrected_volatile"] is None and device["remapped_correctable"] is None
    assert device["power_w"] is None and device["temperature_c"] is None
    assert {"ecc_uncorrected_volatile", "remapped_rows", "throttle_reasons", "power_mw"} <= set(device["not_supported"])
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
    hosts = tuple(host(name, one) for name, one in sorted(facts.items()))
    bundle = Bundle(BUNDLE_SCHEMA, "test", "2026-11-21T00:00:00+00:00", Plan(stages=STAGES), hosts)
    strict = thresholds.with_values({"gpu.temperature.margin": 20}, "a policy")
    assert set(told(judge(bundle, strict))) == {"gpu.thermal-power.hot"}


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
