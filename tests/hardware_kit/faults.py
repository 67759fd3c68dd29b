"""Hardware faults by name: what is broken in a machine that is not there, and what must be told of it.

The unit tests break each into one machine of four; the lab tests walk the whole way over ssh with those that clusters meet most.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hardware_kit import machines
from tests.hardware_kit.machines import A100, Machine

Break = Callable[[Machine], None]
ODD = "gpu03"  # the host that quotes below name


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


def not_loaded(machine: Machine) -> None:
    machine.settings.update(init="err:9")
    machine.modules -= {"nvidia", "nvidia_uvm"}


def log(*lines: str, ago_s: float = 600.0) -> Break:
    def apply(machine: Machine) -> None:
        assert machine.kernel_log is not None
        machine.kernel_log.extend((machine.uptime_s - ago_s, line) for line in lines)

    return apply


def seven_of_eight(machine: Machine) -> None:
    del machine.gpus[5]


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
    "driver not loaded": (not_loaded, {"gpu.driver.not-loaded"}, "Driver Not Loaded"),
    "driver loaded, NVML denies it": (setting(init="err:9"), {"gpu.driver.failed"}, "kernel module 550.90.07"),
    "GPU answers errors": (
        gpu(1, temperature_0="err:999", power_mw="err:999", clock_1="err:999"),
        {"gpu.driver.failed"},
        "Unknown Error",
    ),
    "uncorrectable ECC": (gpu(1, ecc_uncorrected_volatile=3), {"gpu.ecc.uncorrectable"}, "errors: 3"),
    "row remap pending": (gpu(1, remap_pending=1, remapped_uncorrectable=4), {"gpu.ecc.row-remap-pending"}, "Yes"),
    "row remap failure": (gpu(1, remap_failure=1), {"gpu.ecc.row-remap-failure"}, "Yes"),
    "SRAM threshold": (gpu(1, sram_threshold=1), {"gpu.ecc.sram-threshold"}, "threshold exceeded: Yes"),
    "driver asks for reset": (gpu(1, field_230=1), {"gpu.needs-reset"}, "gpu-reset"),
    "Xid 79": (log(XID.format(79, "GPU has fallen off the bus.")), {"gpu.fell-off-bus"}, "Xid (PCI:0000:3b:00): 79"),
    "Xid 94": (log(XID.format(94, "Contained: SM (0x1). RST: No")), {"gpu.ecc.contained"}, "94"),
    "Xid 79 long ago": (log(XID.format(79, "x"), ago_s=2 * 86400), {"gpu.fell-off-bus"}, "2 d ago"),
    "Xid 74": (
        log(XID.format(74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")),
        {"gpu.nvlink"},
        "link 14: register 3 bit 16: repeated: run the field diagnostic",
    ),
    "Xid 149": (
        log(XID.format(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)")),
        {"gpu.nvlink"},
        "link 8: NETIR_LINK_EVT: link down, alignment lost",
    ),
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
    "prohibited": (gpu(2, compute_mode=2), {"gpu.compute-mode.prohibited", "gpu.settings-differ"}, "no process may use it"),
    "other model": (other_model, {"gpu.mixed-models"}, "NVIDIA A100-SXM4-80GB on gpu03"),
    "other driver": (other_driver, {"gpu.driver.differs", "gpu.firmware-differs"}, "535.161.08 on gpu03"),
    "other VBIOS": (every_gpu(vbios="96.00.30.00.01"), {"gpu.firmware-differs"}, "96.00.30.00.01"),
    "ACS": (attribute(acs={Machine.bridge(1): 0x1D}), {"gpu.p2p.acs"}, "on 1 port of PCIe switches"),
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
    "locked memory": (attribute(memlock=8 << 20), {"ib.memlock"}, "soft 8 MiB"),
    "nvidia-smi fails": (
        attribute(tools={"nvidia-smi": "#!/bin/sh\necho 'Unable to determine the device handle for GPU0'; exit 255\n"}),
        {"gpu.driver.smi-differs"},
        "Unable to determine the device handle",
    ),
    "nvidia-smi sees fewer": (
        attribute(smi_hides={5}),
        {"gpu.driver.smi-differs"},
        "NVML alone lists 0000:6b:00.0",
    ),
    "HCA firmware": (hca(3, fw_ver="28.39.1002"), {"ib.firmware-differs"}, "28.39.1002"),
    "nvidia-smi hangs": (attribute(smi_hangs=True), {"gpu.driver.smi-hang"}, "did not answer"),
}  # fmt: skip


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


@contextlib.contextmanager
def flapping(place: Path) -> Iterator[None]:
    """A machine (its directory) on which the link of ``mlx5_3`` goes down 50 times a second meanwhile."""
    done = threading.Event()
    counter = place / "root/sys/class/infiniband/mlx5_3/ports/1/counters/link_downed"

    def flap() -> None:
        number = 0
        while not done.wait(0.02):
            number += 1
            if counter.parent.exists():
                temporary = counter.with_suffix(".new")
                temporary.write_text(f"{number}\n")
                os.replace(temporary, counter)

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
