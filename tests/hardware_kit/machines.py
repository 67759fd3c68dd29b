"""GPU machines that are not there: a recorded-looking tree of files, a stand-in NVML and a stub nvidia-smi each.

``Machine(directory)`` is a healthy HGX H100 with eight GPUs and eight 400 Gb/s InfiniBand HCAs; a test breaks one thing
and lets the *real* probes read it (:meth:`Machine.facts`), or writes it where a lab host looks (:meth:`Machine.write`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
DRIVER = "550.90.07"
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "capability": "9.0",
    "memory_total": str(81559 << 20),
    "memory_used": str(529 << 20),
    "bar1_total": str(128 << 30),
    "vbios": "96.00.74.00.0D",
    "board_part": "692-2G520-0200-000",
    "inforom": "G520.0200.00.05",
    "gsp_firmware": DRIVER,
    "pcie_gen": "5",
    "pcie_gen_max": "5",
    "pcie_gen_gpu_max": "5",
    "pcie_width": "16",
    "pcie_width_max": "16",
    "pcie_replays": "67",
    "temperature_0": "34",
    "temperature_threshold_0": "96",
    "temperature_threshold_1": "93",
    "temperature_threshold_2": "95",
    "power_mw": "69000",
    "power_limit_mw": "700000",
    "power_default_mw": "700000",
    "clock_1": "345",
    "clock_2": "2619",
    "clock_max_1": "1980",
    "clock_max_2": "2619",
    "clock_application_1": "1980",
    "performance_state": "0",
    "throttle_reasons": "1",
    "persistence_mode": "1",
    "compute_mode": "0",
    "ecc_mode": "1",
    "ecc_corrected_volatile": "0",
    "ecc_uncorrected_volatile": "0",
    "ecc_corrected_aggregate": "2",
    "ecc_uncorrected_aggregate": "0",
    "remapped_correctable": "0",
    "remapped_uncorrectable": "0",
    "remap_pending": "0",
    "remap_failure": "0",
    "sram_threshold": "0",
    "mig_mode": "0",
    "mig_mode_pending": "0",
    "utilization": "0",
    "fabric_state": "3",
    "fabric_status": "0",
    "nvlinks": "18",
    "field_82": "40",
    "field_230": "0",
}
A100 = {
    **H100,
    "name": "NVIDIA A100-SXM4-80GB",
    "capability": "8.0",
    "memory_total": str(81920 << 20),
    "pcie_gen": "4",
    "pcie_gen_max": "4",
    "pcie_gen_gpu_max": "4",
    "power_limit_mw": "400000",
    "power_default_mw": "400000",
    "clock_max_1": "1410",
    "clock_application_1": "1410",
    "vbios": "92.00.45.00.03",
    "nvlinks": "12",
    "fabric_state": "ns",
}

H200 = {
    **H100,
    "name": "NVIDIA H200",
    "memory_total": str(143771 << 20),
    "memory_used": str(4 << 20),
    "board_part": "692-2G520-0280-000",
    "vbios": "96.00.CF.00.01",
    "clock_2": "3201",
    "clock_max_2": "3201",
}
ALL_LINKS = "," + ",".join(map(str, range(18))) + ","


@functools.cache
def library() -> Path:
    """The directory with the compiled stand-in; compiled once per run of the tests."""
    directory = Path(tempfile.mkdtemp(prefix="nvml-stand-in-"))
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(target), str(HERE / "nvml.c")], check=True)
    import atexit

    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def compiler_missing() -> bool:
    """Whether the stand-in cannot be compiled here (then its tests skip)."""
    return shutil.which("gcc") is None


@dataclasses.dataclass
class Hca:
    """One RDMA device with one port."""

    name: str
    bus_id: str
    link_layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    hca_type: str = "MT4129"
    fw_ver: str = "28.41.1000"
    board_id: str = "MT_0000000838"
    netdev: str = ""
    mtu: int = 4200
    uverbs: bool = True
    gids: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (gid, type), from index 0
    counters: dict[str, int] = dataclasses.field(default_factory=dict)


LINK_LOCAL = "fe80:0000:0000:0000:a288:c2ff:fe5b:03{:02x}"
IPV4 = "0000:0000:0000:0000:0000:ffff:0b00:00{:02x}"


class Machine:
    """A host's hardware. Change the public attributes, then call :meth:`facts` or :meth:`write`."""

    def __init__(self, directory: Path, *, gpus: int = 8, model: dict[str, str] = H100, nics: int = 8) -> None:
        self.directory = directory
        self.model = dict(model)
        self.gpus: list[dict[str, str]] = [
            {
                "bus_id": self.gpu_bus(i),
                "uuid": f"GPU-5b1c7e2a-9d3f-4c6e-8a70-{i:012d}",
                "minor": str(i),
                "serial": f"16532230410{i:02d}",
            }
            for i in range(gpus)
        ]
        self.hcas = [Hca(f"mlx5_{i}", self.nic_bus(i)) for i in range(nics)]
        self.on_bus = [self.gpu_bus(i) for i in range(gpus)]
        self.settings: dict[str, str] = {"driver": DRIVER, "library": f"12.{DRIVER}"}
        self.kernel_log: list[tuple[float, str]] | None = [(3.2, "Linux version 5.15.0-105-generic")]
        self.modules = {"nvidia", "nvidia_uvm", "nvidia_peermem", "mlx5_core", "mlx5_ib", "ib_uverbs", "ib_core"}
        self.module_version = DRIVER
        self.open_module = True
        self.nvswitches = 4
        self.fabric_manager = True
        self.smi_hangs = False
        self.smi_missing = False
        self.smi_hides: set[int] = set()  # GPUs that nvidia-smi does not list
        self.uptime_s = 3 * 86400.0
        self.hypervisor = False
        self.acs: dict[str, int] = {}  # bridge -> ACS control register
        self.iommu = "identity"
        self.matrix: str | None = None  # None: made from the parts
        self.nvlink_lost: set[int] = set()
        self.default_route = "eno1"
        self.files: dict[str, str] = {}  # further files of the tree
        self.memlock: int | None = None  # bytes; None: unlimited
        self.tools: dict[str, str] = {}  # further commands: name -> script
        self.dmesg = "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n"

    @classmethod
    def alone(cls, directory: Path) -> Machine:
        """A virtual machine with one H200 of eight: NVLinks inactive, no fabric, no InfiniBand, no NVSwitch."""
        machine = cls(directory, gpus=1, model=H200, nics=0)
        machine.model.update(nvlinks_down=ALL_LINKS, fabric_state="ns")
        machine.modules -= {"mlx5_core", "mlx5_ib", "nvidia_peermem"}
        machine.nvswitches, machine.fabric_manager, machine.hypervisor = 0, False, True
        return machine

    @staticmethod
    def gpu_bus(index: int) -> str:
        return f"0000:{0x10 * (index + 1) + 0xB:02x}:00.0"

    @staticmethod
    def nic_bus(index: int) -> str:
        return f"0000:{0x10 * (index + 1) + 0xC:02x}:00.0"

    @staticmethod
    def bridge(index: int) -> str:
        """The PCI bridge above GPU and NIC ``index``."""
        return f"0000:{0x10 * (index + 1) + 0x8:02x}:01.0"

    def roce(self) -> Machine:
        """Turn the HCAs into RoCE ports with the usual GID table."""
        for i, hca in enumerate(self.hcas):
            hca.link_layer, hca.netdev = "Ethernet", f"ens{i}np0"
            local, ip = LINK_LOCAL.format(i + 1), IPV4.format(i + 1)
            hca.gids = [(local, "IB/RoCE v1"), (local, "RoCE v2"), (ip, "IB/RoCE v1"), (ip, "RoCE v2")]
        return self

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self) -> Path:
        """Write everything; returns the root of the tree (NCCL_DOCTOR_ROOT)."""
        root = self.directory / "root"
        shutil.rmtree(root, ignore_errors=True)
        for path, text in self._plain().items():
            _put(root / path.lstrip("/"), text)
        for index, bus in enumerate(self.on_bus):
            real = self._pci(root, self._path(bus), "0x10de", "0x2330", "0x030200", numa=index // 4)
            (real / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
        for hca in self.hcas:
            self._hca(root, hca)
        for index in range(self.nvswitches):
            self._pci(root, f"pci0000:c0/0000:c{index + 1:x}:00.0", "0x10de", "0x22a3", "0x068000", numa=0)
        for index in range(max(len(self.on_bus), len(self.hcas))):
            self._bridge(root, index)
        for module in self.modules:
            (root / "sys/module" / module).mkdir(parents=True, exist_ok=True)
        self._iommu_groups(root)
        self._conf()
        self._smi()
        return root

    def _plain(self) -> dict[str, str]:
        flavor = "Open Kernel Module" if self.open_module else "Kernel Module"
        files = {
            "/proc/uptime": f"{self.uptime_s:.2f} 100.00\n",
            "/proc/cpuinfo": "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu"
            + (" hypervisor" if self.hypervisor else "")
            + "\n",
            "/proc/cmdline": "BOOT_IMAGE=/vmlinuz iommu=pt quiet\n",
            "/proc/sys/kernel/osrelease": "5.15.0-105-generic\n",
            "/proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
            f"{self.default_route}\t00000000\t0101000A\t0003\t0\t0\t0\t00000000\n",
            "/sys/devices/system/node/node0/cpulist": "0-55,112-167\n",
            "/sys/devices/system/node/node1/cpulist": "56-111,168-223\n",
        }
        if self.kernel_log is not None:
            records = enumerate(self.kernel_log)
            files["/dev/kmsg"] = "".join(f"6,{i},{int(at * 1e6)},-;{text}\n" for i, (at, text) in records)
        if "nvidia" in self.modules and self.on_bus:
            files["/sys/module/nvidia/version"] = self.module_version + "\n"
            files["/proc/driver/nvidia/version"] = f"NVRM version: NVIDIA UNIX {flavor}  {self.module_version}\n"
            files["/dev/nvidiactl"] = files["/dev/nvidia-uvm"] = ""
            for index in range(len(self.gpus)):
                files[f"/dev/nvidia{index}"] = ""
            for bus in self.on_bus:
                files[f"/proc/driver/nvidia/gpus/{bus}/information"] = (
                    f"Model: \t\t {self.model['name']}\nIRQ:   \t\t 33\nBus Location: \t {bus}\n"
                )
        files["/proc/1/comm"] = "systemd\n"
        if self.fabric_manager:
            files["/proc/4242/comm"] = "nv-fabricmanage\n"
        return {**files, **self.files}

    def _path(self, bus: str) -> str:
        """Where a GPU or NIC hangs: one switch per index, so that GPU i and NIC i are PIX to each other."""
        number = int(bus.split(":")[1], 16)
        base = number // 0x10 * 0x10
        upstream, bridge = f"0000:{base:02x}:01.0", f"0000:{base + 8:02x}:01.0"
        return f"pci0000:{base:02x}/{upstream}/{bridge}/{bus}"

    def _pci(self, root: Path, path: str, vendor: str, device: str, kind: str, numa: int) -> Path:
        real = root / "sys/devices" / path
        bus = real.name
        files = {
            "vendor": vendor,
            "device": device,
            "class": kind,
            "numa_node": str(numa),
            "local_cpulist": ("0-55,112-167", "56-111,168-223")[numa],
            "current_link_speed": "32.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_width": "16",
        }
        for name, text in files.items():
            _put(real / name, text + "\n")
        link = root / "sys/bus/pci/devices" / bus
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(real, link.parent))
        return real

    def _bridge(self, root: Path, index: int) -> None:
        bridge = self.bridge(index)
        base = 0x10 * (index + 1)
        real = self._pci(root, f"pci0000:{base:02x}/0000:{base:02x}:01.0/{bridge}", "0x1000", "0xc030", "0x060400", 0)
        config = bytearray(4096)
        config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")  # AER, then ACS at 0x148
        config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        config[0x14E:0x150] = self.acs.get(bridge, 0).to_bytes(2, "little")
        (real / "config").write_bytes(config)

    def _hca(self, root: Path, hca: Hca) -> None:
        index = int(hca.bus_id.split(":")[1], 16) // 0x10 - 1
        kind = "0x020700" if hca.link_layer == "InfiniBand" else "0x020000"
        real = self._pci(root, self._path(hca.bus_id), "0x15b3", "0x1021", kind, numa=min(index // 4, 1))
        base = real / "infiniband" / hca.name
        for name in ("fw_ver", "hca_type", "board_id"):
            _put(base / name, getattr(hca, name) + "\n")
        _put(base / "node_guid", f"946d:ae03:00cd:{index:04x}\n")
        (base / "device").symlink_to("../..")
        port = base / "ports/1"
        for name in ("state", "phys_state", "rate", "link_layer"):
            _put(port / name, getattr(hca, name) + "\n")
        counters = dict.fromkeys(("symbol_error", "link_downed", "port_rcv_errors", "port_xmit_discards"), 0)
        counters.update({"port_rcv_packets": 9_000_000, **hca.counters})
        for name, count in counters.items():
            _put(port / "counters" / name, f"{count}\n")
        table = hca.gids or [(LINK_LOCAL.format(index), "IB/RoCE v1")]
        for number in range(max(8, len(table))):
            gid, kind = table[number] if number < len(table) else ("0000:" * 7 + "0000", "")
            _put(port / "gids" / str(number), gid + "\n")
            if kind:
                _put(port / "gid_attrs/types" / str(number), kind + "\n")
        if hca.netdev:
            _put(real / "net" / hca.netdev / "mtu", "")
            _put(root / f"sys/class/net/{hca.netdev}/mtu", f"{hca.mtu}\n")
            _put(root / f"sys/class/net/{hca.netdev}/operstate", "up\n")
        link = root / "sys/class/infiniband" / hca.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(base, link.parent))
        number = self.hcas.index(hca)
        _put(root / f"sys/class/infiniband_verbs/uverbs{number}/ibdev", hca.name + "\n")
        if hca.uverbs:
            _put(root / f"dev/infiniband/uverbs{number}", "")

    def _iommu_groups(self, root: Path) -> None:
        for number, bus in enumerate([*self.on_bus, *(hca.bus_id for hca in self.hcas)]):
            _put(root / f"sys/kernel/iommu_groups/{number}/type", self.iommu + "\n")
            link = root / "sys/bus/pci/devices" / bus / "iommu_group"
            link.symlink_to(f"/sys/kernel/iommu_groups/{number}")

    def _conf(self) -> None:
        lines = [f"{key}={text}" for key, text in {"count": str(len(self.gpus)), **self.settings}.items()]
        lines += [f"gpu.{key}={text}" for key, text in self.model.items()]
        lines += [f"gpu{index}.{key}={text}" for index, gpu in enumerate(self.gpus) for key, text in gpu.items()]
        _put(self.directory / "nvml.conf", "\n".join(lines) + "\n")

    def _linked(self) -> bool:
        """Whether the GPUs have NVLinks (``nvlinks`` may also be an error of the stand-in's)."""
        return self.model["nvlinks"].isdecimal() and self.model["nvlinks"] != "0"

    def topology(self) -> str:
        """The matrix as nvidia-smi prints it."""
        if self.matrix is not None:
            return self.matrix
        names = [f"GPU{i}" for i in range(len(self.gpus))] + [f"NIC{i}" for i in range(len(self.hcas))]
        width = len(self.gpus)

        def base(index: int) -> int:
            bus = self.gpus[index]["bus_id"] if index < width else self.hcas[index - width].bus_id
            if ":" not in bus:
                return index
            return int(bus.split(":")[1], 16) // 0x10 - 1

        def cell(a: int, b: int) -> str:
            if a == b:
                return " X "
            if a < width and b < width and not {a, b} & self.nvlink_lost and self._linked():
                return "NV" + self.model["nvlinks"]
            one, other = base(a), base(b)
            return "PIX" if one == other else "NODE" if one // 4 == other // 4 else "SYS"

        lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
        for a, name in enumerate(names):
            cells = [name, *(cell(a, b) for b in range(len(names)))]
            node = min(base(a) // 4, 1)
            cells += [("0-55,112-167", "56-111,168-223")[node], str(node), "", "N/A"] if a < width else ["", "", "", ""]
            lines.append("\t".join(cells))
        legend = [
            "X    = Self",
            "SYS  = SMP",
            "NODE = NODE",
            "PHB  = PHB",
            "PXB  = PXB",
            "PIX  = PIX",
            "NV#  = NVLinks",
        ]
        lines += ["", "Legend:", "", *("  " + line for line in legend), "", "NIC Legend:", ""]
        lines += [f"  NIC{index}: {hca.name}" for index, hca in enumerate(self.hcas)]
        return "\n".join(lines) + "\n"

    def _smi(self) -> None:
        tools = self.directory / "bin"
        shutil.rmtree(tools, ignore_errors=True)
        tools.mkdir(parents=True)
        if self.kernel_log is None:
            for name in ("dmesg", "journalctl"):
                self._tool(name, self.dmesg)
        if not self.smi_missing:
            self._nvidia_smi()
        for name, text in self.tools.items():
            self._tool(name, text)

    def _nvidia_smi(self) -> None:
        driver = self.settings["driver"]
        rows = [
            f"{_printed(gpu['bus_id'])}, {gpu['uuid']}, {gpu.get('name', self.model['name'])}, {driver}"
            for index, gpu in enumerate(self.gpus)
            if index not in self.smi_hides
        ]
        _put(self.directory / "smi.gpus", "\n".join(rows) + "\n")
        _put(self.directory / "smi.topo", self.topology())
        for field in _FIELDS:
            lines = [_field(field, {**self.model, **gpu}) for gpu in self.gpus]
            _put(self.directory / "smi.fields" / field, "\n".join(lines) + "\n")
        _put(self.directory / "smi.nvlink", self._nvlink())
        script = "#!/bin/sh\n" + ("exec sleep 600\n" if self.smi_hangs else "")
        _put(self.directory / "smi.query", self._query())
        script += f"""case "$1" in
topo) cat {self.directory}/smi.topo;;
nvlink) cat {self.directory}/smi.nvlink;;
-q) cat {self.directory}/smi.query;;
--query-gpu=pci.bus_id,*) cat {self.directory}/smi.gpus;;
--query-gpu=*) IFS=,; cd "{self.directory}/smi.fields" && found=$(paste -d, ${{1#--query-gpu=}}) || exit 2
  echo "$found" | sed 's/,/, /g';;
*) echo "this stub does not know $*"; exit 2;;
esac
"""
        self._tool("nvidia-smi", script)

    def _nvlink(self) -> str:
        """``nvidia-smi nvlink -s``."""
        lines = []
        for index, gpu in enumerate(self.gpus):
            told = {**self.model, **gpu}
            lines.append(f"GPU {index}: {told['name']} (UUID: {told['uuid']})")
            for link in range(int(told["nvlinks"]) if told["nvlinks"].isdecimal() else 0):
                up = f",{link}," not in told.get("nvlinks_down", "")
                lines.append(f"\t Link {link}: " + ("26.562 GB/s" if up else "<inactive>"))
        return "\n".join(lines) + "\n"

    def _query(self) -> str:
        """``nvidia-smi -q``, the part that our tests look at."""
        lines = [
            f"Driver Version                            : {self.settings['driver']}",
            "CUDA Version                              : 12.4",
            f"\nAttached GPUs                             : {len(self.gpus)}",
        ]
        fabric = {"0": "N/A", "1": "Not Started", "2": "In Progress", "3": "Completed"}
        for gpu in self.gpus:
            told = {**self.model, **gpu}
            lines += [
                f"GPU {_printed(gpu['bus_id'])}",
                f"    Product Name                          : {told['name']}",
                f"    GPU UUID                              : {told['uuid']}",
                f"    VBIOS Version                         : {told['vbios']}",
                "    Remapped Rows",
                f"        Pending                           : {'Yes' if told['remap_pending'] == '1' else 'No'}",
                "    Fabric",
                f"        State                             : {fabric.get(told['fabric_state'], 'N/A')}",
            ]
        return "\n".join(lines) + "\n"

    def _tool(self, name: str, script: str) -> None:
        place = self.directory / "bin" / name
        _put(place, script)
        place.chmod(0o755)

    def rdma_tools(self) -> dict[str, str]:
        """ibstat, ibv_devinfo and show_gids as they would print this machine, for :attr:`tools`."""
        stat, info, gids = [], [], ["DEV\tPORT\tINDEX\tGID\tIPv4\tVER\tDEV", "---\t----\t-----\t---\t----\t---\t---"]
        for hca in self.hcas:
            state = hca.state.split(": ")[1]
            stat += [
                f"CA '{hca.name}'",
                f"\tCA type: {hca.hca_type}",
                f"\tFirmware version: {hca.fw_ver}",
                "\tPort 1:",
                f"\t\tState: {state.capitalize()}",
                f"\t\tPhysical state: {hca.phys_state.split(': ')[1]}",
                f"\t\tRate: {hca.rate.split()[0]}",
                f"\t\tLink layer: {hca.link_layer}",
            ]
            info += [
                f"hca_id:\t{hca.name}",
                f"\tfw_ver:                         {hca.fw_ver}",
                "\t\tport:\t1",
                f"\t\t\tstate:\t\t\tPORT_{state} ({hca.state[0]})",
                f"\t\t\tlink_layer:\t\t{hca.link_layer}",
                "",
            ]
            for index, (gid, kind) in enumerate(hca.gids):
                gids.append(f"{hca.name}\t1\t{index}\t{gid}\t\t v{'2' if kind.endswith('2') else '1'}\t{hca.netdev}")
        texts = {"ibstat": stat, "ibv_devinfo": info, "show_gids": gids}
        return {name: "#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n" for name, lines in texts.items()}

    # --- reading -----------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """The environment in which the probes see this machine and nothing of the real one."""
        clean = {
            key: text for key, text in os.environ.items() if not key.startswith(("CUDA_", "NVIDIA_", "KUBERNETES"))
        }
        return {
            **clean,
            "NCCL_DOCTOR_ROOT": str(self.directory / "root"),
            "NVML_STAND_IN": str(self.directory / "nvml.conf"),
            "LD_LIBRARY_PATH": str(library()),
            "PATH": f"{self.directory / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(PROJECT),
        }

    def facts(self, *, limits: dict[str, Any] | None = None, interval_s: float = 0.0) -> dict[str, Any]:
        """Run the real probes in a fresh process; probe name -> {outcome, data, detail}."""
        self.write()
        arguments = {
            "gpu": limits or {},
            "topology": limits or {},
            "infiniband": {"interval_s": interval_s},
            "kernel_log": {},
        }
        child = subprocess.run(
            [sys.executable, str(HERE / "run_probes.py"), json.dumps(arguments)],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert child.returncode == 0, child.stderr
        answer: dict[str, Any] = json.loads(child.stdout)
        answer["infiniband"]["data"]["memlock_bytes"] = {
            "soft": self.memlock,
            "hard": self.memlock,
        }  # not this machine's
        return answer


_SWITCH = {"0": "Disabled", "1": "Enabled"}
_COMPUTE_MODES = {"0": "Default", "1": "Exclusive_Thread", "2": "Prohibited", "3": "Exclusive_Process"}
# nvidia-smi's name of a field -> the stand-in's, and how nvidia-smi prints it
_FIELDS: dict[str, tuple[str, Callable[[str], str]]] = {
    "serial": ("serial", str),
    "vbios_version": ("vbios", str),
    "inforom.img": ("inforom", str),
    "compute_cap": ("capability", str),
    "memory.total": ("memory_total", lambda text: str(int(text) >> 20)),
    "pcie.link.gen.max": ("pcie_gen_max", str),
    "pcie.link.width.max": ("pcie_width_max", str),
    "pcie.link.width.current": ("pcie_width", str),
    "power.limit": ("power_limit_mw", lambda text: f"{int(text) / 1000:.2f}"),
    "power.default_limit": ("power_default_mw", lambda text: f"{int(text) / 1000:.2f}"),
    "clocks.max.sm": ("clock_max_1", str),
    "clocks.max.memory": ("clock_max_2", str),
    "ecc.mode.current": ("ecc_mode", _SWITCH.__getitem__),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_volatile", str),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected_aggregate", str),
    "persistence_mode": ("persistence_mode", _SWITCH.__getitem__),
    "compute_mode": ("compute_mode", lambda text: _COMPUTE_MODES.get(text, "[Unknown Error]")),
    "mig.mode.current": ("mig_mode", _SWITCH.__getitem__),
    "gsp.mode.current": ("gsp_firmware", lambda text: "Enabled"),
}


def _field(name: str, told: dict[str, str]) -> str:
    key, form = _FIELDS[name]
    text = told.get(key, "ns")
    return "[N/A]" if text in ("ns", "np", "lost") or text.startswith("err:") else form(text)


def _printed(bus_id: str) -> str:
    """A PCI address as nvidia-smi prints it; ``[N/A]`` of a GPU that has none."""
    return f"0000{bus_id.upper()}" if ":" in bus_id else "[N/A]"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
