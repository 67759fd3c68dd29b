"""The probes interfaces, system and software, over recorded trees and over this very machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from recorded_host import Link, elf, loader_cache, probe, write_tree

from nccl_doctor.agent import filesystems, gpu_holders, probing
from nccl_doctor.agent.probes import gpu as gpu_probe
from nccl_doctor.agent.probes import interfaces, names
from nccl_doctor.agent.probes import system as system_probe
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import System

# --- interfaces ----------------------------------------------------------------------------------------------------


def test_addresses_are_the_kernels_in_its_own_order() -> None:
    facts = msgspec.convert(probe("interfaces", None), Interfaces)
    assert [address.name for address in facts.addresses if address.loopback and address.address == "127.0.0.1"]
    if shutil.which("ip"):
        shown = json.loads(
            subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, check=True, text=True).stdout
        )
        expected = [
            (item["ifname"], entry["local"], entry["prefixlen"]) for item in shown for entry in item["addr_info"]
        ]
        assert [(a.name, a.address, a.prefix) for a in facts.addresses if a.family == "inet"] == expected
    assert facts.hostname == socket.gethostname()
    assert {name for _, name in socket.if_nameindex()} == {device.name for device in facts.devices}


SYSFS = {
    "/sys/class/net/bonding_masters": "bond0\n",
    "/sys/class/net/bond0/bonding/mode": "802.3ad 4\n",
    "/sys/class/net/bond0/carrier_down_count": "3\n",
    "/sys/class/net/bond0/carrier_changes": "7\n",
    "/sys/class/net/bond0/lower_eth0": Link("../eth0"),
    "/sys/class/net/eth0/carrier_changes": "11\n",
    "/sys/class/net/bond0/type": "1\n",
    "/sys/class/net/bond0/speed": "200000\n",
    "/sys/class/net/bond0/mtu": "9000\n",
    "/sys/class/net/bond0/operstate": "up\n",
    "/sys/class/net/eth0/type": "1\n",
    "/sys/class/net/eth0/speed": "-1\n",
    "/sys/class/net/eth0/uevent": "INTERFACE=eth0\nIFINDEX=2\n",
    "/sys/class/net/eth0/device": Link("../../../devices/pci10000:00/10000:17:00.0"),
    "/sys/devices/pci10000:00/10000:17:00.0/driver": Link("../../../bus/pci/drivers/mlx5_core"),
    "/sys/class/net/eth0/master": Link("../bond0"),
    "/sys/class/net/docker0/bridge/stp_state": "0\n",
    "/sys/class/net/docker0/type": "1\n",
    "/sys/class/net/vpn/tun_flags": "0x1001\n",
    "/sys/class/net/vpn/type": "65534\n",
    "/sys/class/net/wg0/type": "65534\n",
    "/sys/class/net/wg0/uevent": "DEVTYPE=wireguard\nINTERFACE=wg0\n",
    "/sys/class/net/lo/type": "772\n",
    "/proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "bond0\t00000000\t0101000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "bond0\t0001000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n",
    "/etc/nccl.conf": "# site\nNCCL_DEBUG=WARN\nSECRET_TOKEN=canary\n"
    "NCCL_SOCKET_IFNAME=bond0\r\n export NCCL_IB_HCA = mlx5\n",
}


def test_devices_routes_and_configuration_of_a_recorded_host(tmp_path: Path) -> None:
    write_tree(tmp_path, SYSFS)
    data = probe("interfaces", tmp_path, {"NCCL_SOCKET_IFNAME": "bond", "NCCL_API_TOKEN": "canary", "SECRET": "canary"})
    facts = msgspec.convert(data, Interfaces)
    kinds = {device.name: device.kind for device in facts.devices}
    assert kinds == {
        "bond0": "bond", "docker0": "bridge", "eth0": "physical", "lo": "loopback", "vpn": "tun", "wg0": "wireguard",
    }  # fmt: skip
    eth0, bond0 = facts.device("eth0"), facts.device("bond0")
    assert eth0 and bond0
    assert (eth0.speed_mbps, eth0.driver, eth0.pci, eth0.master) == (None, "mlx5_core", "10000:17:00.0", "bond0")
    assert (bond0.speed_mbps, bond0.mtu) == (200000, 9000)
    assert [(item.name, item.losses) for item in facts.standing_on("bond0")] == [("bond0", 3), ("eth0", 5)]
    default, network = facts.routes
    assert (default.prefix, default.gateway, network.destination, network.prefix) == (0, "10.0.1.1", "10.0.1.0", 24)
    system = next(file for file in facts.conf_files if file.role == "system")
    assert [(line.line, line.text) for line in system.lines] == [
        (2, "NCCL_DEBUG=WARN"), (4, "NCCL_SOCKET_IFNAME=bond0\r"), (5, " export NCCL_IB_HCA = mlx5"),
    ]  # fmt: skip
    assert facts.environment == {"NCCL_SOCKET_IFNAME": "bond"}
    assert "canary" not in json.dumps(data)


def test_rejecting_routes_of_ipv6_are_told_but_for_the_kernels_last_resort(tmp_path: Path) -> None:
    def line(destination: str, prefix: str, metric: str, flags: str) -> str:
        return f"{destination:0<32} {prefix} {0:032} 00 {0:032} {metric} 00000001 00000000 {flags} lo\n"

    last, own = line("", "00", "ffffffff", "00200200"), line("fe80", "80", "00000000", "80200001")
    write_tree(tmp_path, {**SYSFS, "/proc/net/ipv6_route": line("fd", "08", "00000400", "00200200") + last + own})
    routes = msgspec.convert(probe("interfaces", tmp_path), Interfaces).routes
    assert [(route.destination, route.prefix, route.reject) for route in routes if route.family == "inet6"] == [
        ("fd00::", 8, True)
    ]


ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
DEFAULT = "{}\t00000000\t0101000A\t0003\t0\t0\t{}\t00000000\t0\t0\t0\n"
DEFAULT_6 = "{:032} 00 {:032} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003 {}\n"


def test_the_front_end_is_what_the_best_default_route_stands_on(tmp_path: Path) -> None:
    """A VLAN over a bond, a bridge; a rail may have a default route, too, of a larger metric, or announced by its switch."""
    tree = {
        "/proc/net/route": ROUTES + DEFAULT.format("rail0", 400) + DEFAULT.format("bond0.100", 100),
        "/proc/net/ipv6_route": DEFAULT_6.format(0, 0, "rail1"),
        "/sys/class/net/bond0.100/lower_bond0": Link("../bond0"),
        "/sys/class/net/bond0/lower_ens1": Link("../ens1"),
        "/sys/class/net/bond0/lower_ens2": Link("../ens2"),
    }
    write_tree(tmp_path, tree)
    assert probe("infiniband", tmp_path)["default_route_devices"] == ["bond0", "bond0.100", "ens1", "ens2"]
    write_tree(tmp_path, {"/proc/net/route": ROUTES})
    assert probe("infiniband", tmp_path)["default_route_devices"] == ["rail1"]


def test_a_route_that_is_not_up_is_none(tmp_path: Path) -> None:
    down = "bond0\t0002000A\t00000000\t0000\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    write_tree(tmp_path, {**SYSFS, "/proc/net/route": SYSFS["/proc/net/route"] + down})
    routes = msgspec.convert(probe("interfaces", tmp_path), Interfaces).routes
    assert [route.destination for route in routes] == ["0.0.0.0", "10.0.1.0"]


def test_cards_for_rdma_are_known_by_vendor_and_class(tmp_path: Path) -> None:
    cards = {
        "0000:01:00.0": ("0x15b3", "0x1021", "0x020700"), "0000:02:00.0": ("0x15b3", "0xc2d2", "0x080100"),
        "0000:03:00.0": ("0x1d0f", "0xefa1", "0x020000"), "0000:04:00.0": ("0x1d0f", "0xec20", "0x020000"),
        "0000:05:00.0": ("0x8086", "0x1593", "0x020000"),
    }  # fmt: skip
    names = ("vendor", "device", "class")
    write_tree(
        tmp_path,
        {
            f"/sys/bus/pci/devices/{bus}/{name}": f"{word}\n"
            for bus, words in cards.items()
            for name, word in zip(names, words, strict=True)
        },
    )
    assert [nic["bus_id"] for nic in probe("infiniband", tmp_path)["pci_rdma"]] == ["0000:01:00.0", "0000:03:00.0"]


def test_the_tools_for_rdma_are_asked_at_the_same_time(tmp_path: Path) -> None:
    """show_gids takes long: each of these waits until all of them have been started."""
    met = tmp_path / "met"
    met.mkdir()
    for tool in ("ibstat", "ibv_devinfo", "show_gids"):
        stub = tmp_path / tool
        stub.write_text(
            f"#!/bin/sh\n: > {met}/{tool}\n"
            f"for n in $(seq 80); do [ $(ls {met} | wc -l) = 3 ] && echo met && exit; sleep 0.1; done\nexit 1\n"
        )
        stub.chmod(0o755)
    write_tree(tmp_path / "root", {"/sys/class/infiniband/mlx5_0/ports": None})
    told = probe("infiniband", tmp_path / "root", {"PATH": f"{tmp_path}:/usr/bin:/bin"})["witnesses"]
    assert {tool: one["text"] for tool, one in told.items()} == dict.fromkeys(
        ("ibstat", "ibv_devinfo", "show_gids"), "met\n"
    )


def route(destination: str, prefix: int, interface: str = "eth0", reject: bool = False) -> dict[str, Any]:
    return {"destination": destination, "prefix": prefix, "interface": interface, "reject": reject}


def test_of_many_routes_those_that_may_lead_to_a_peer_are_told() -> None:
    """A Kubernetes node has one for each other node's pods, which say nothing of the hosts' own network."""
    pods = [route(f"10.244.{n // 4}.{n % 4 * 64}", 26) for n in range(600)]
    usual = [route("0.0.0.0", 0), route("::", 0), route("10.0.1.0", 24), route("10.0.1.7", 32), route("fd00:1::", 64)]
    rejecting = [route("10.96.0.0", 16, reject=True), route("10.99.0.0", 24, "*"), route("10.96.3.0", 24)]
    own = [("10.0.1.5", 24), ("fd00:1::5", 64), ("fe80::1", 64), ("127.0.0.1", 8)]
    addresses = [{"address": address, "prefix": prefix} for address, prefix in own]
    many = [*usual, *pods, *rejecting, route("fe80::", 64)]
    assert interfaces.that_matter(many, addresses) == [*usual, *rejecting]
    assert interfaces.that_matter(pods[:500], addresses) == pods[:500]  # a usual table is told whole


def test_routes_that_are_too_many_are_counted(tmp_path: Path) -> None:
    lines = [f"*\t{n // 256:02X}{n % 256:02X}000A\t00000000\t0205\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n" for n in range(600)]
    write_tree(tmp_path, {**SYSFS, "/proc/net/route": SYSFS["/proc/net/route"] + "".join(lines)})
    facts = msgspec.convert(probe("interfaces", tmp_path), Interfaces)
    assert (len(facts.routes), facts.routes_cut) == (500, 102)


def test_own_addresses_are_told_whatever_the_length_of_the_routing_tables(tmp_path: Path) -> None:
    """/proc/net/fib_trie has the host's own addresses behind all routes: with 40,000 of them, beyond what was read."""
    routes = "Main:\n" + "     |-- 10.244.0.64\n        /26 universe UNICAST\n" * 40_000
    write_tree(tmp_path, {"/proc/net/fib_trie": routes + "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n"})
    assert "127.0.0.1" in probe("names", tmp_path)["addresses"]


def test_the_line_of_etc_hosts_is_quoted_and_the_file_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand names in a file of ten thousand lines took each host seconds."""
    text = "127.0.0.1 localhost\n10.0.0.9 gpu07 # moved\n10.0.0.7 gpu07.site gpu07\n127.0.1.1 gpu08\n"
    given = {"gpu07": ["10.0.0.7", "10.0.0.7"], "gpu08": ["127.0.1.1"], "gpu09": ["10.0.0.9"]}
    read: list[str] = []
    monkeypatch.setattr(names, "read_text", lambda place, limit=0: read.append(place) or text)
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *_: [(0, 0, 0, "", (one, 0)) for one in given[name]])
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu07")
    told = names.names({"names": sorted(given)})["resolved"]
    assert [(told[name].get("line"), told[name].get("quoted"), told[name]["addresses"]) for name in sorted(told)] == [
        (3, "10.0.0.7 gpu07.site gpu07", ["10.0.0.7"]),
        (4, "127.0.1.1 gpu08", ["127.0.1.1"]),
        (None, None, ["10.0.0.9"]),
    ]
    assert read.count("/etc/hosts") == 1


# --- system --------------------------------------------------------------------------------------------------------

MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
23 21 0:21 / /dev/shm rw - tmpfs shm rw,size=65536k
24 21 0:44 / /mnt/my\\040data ro,relatime - nfs4 nas1:/export/data ro,vers=4.2
"""
GROUP = "/sys/fs/cgroup/system.slice/job.scope"


def system_tree() -> dict[str, str | bytes | None]:
    return {
        "/proc/self/mountinfo": MOUNTS,
        "/proc/self/cgroup": "0::/system.slice/job.scope\n",
        "/proc/meminfo": "MemTotal:       527955968 kB\nMemAvailable:   500000000 kB\nHugePages_Total:   0\n",
        f"{GROUP}/memory.max": "max\n",
        f"{GROUP}/memory.events": "low 0\noom 4\noom_kill 3\n",
        f"{GROUP}/pids.max": "512\n",
        f"{GROUP}/pids.current": "100\n",
        f"{GROUP}/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/system.slice/memory.max": "1073741824\n",
        "/sys/fs/cgroup/system.slice/memory.current": "900000000\n",
        "/sys/fs/cgroup/system.slice/memory.stat": "anon 1\ninactive_file 100000000\n",
        "/sys/fs/cgroup/system.slice/pids.max": "max\n",
        "/sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n",
        "/.dockerenv": "",
        "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "/proc/sys/net/ipv4/conf/eth0/rp_filter": "1\n",
        "/proc/uptime": "300000.00 1000.00\n",
        "/dev/shm": None,
        "/dev/nvidia0": "",
        "/dev/nvidia1": "",
        "/sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
        # a leftover rank, a zombie whose thread lives on, a shell
        "/proc/4242/fd/7": Link("/dev/nvidia1"),
        "/proc/4242/stat": "4242 (python3 (x)) S 1 " + " ".join(["0"] * 17) + " 4000000 0 0",
        "/proc/4242/comm": "python3 (x)\n",
        "/proc/4242/status": "Name:\tpython3\nUid:\t0\t0\t0\t0\n",
        "/proc/4243/fd": None,
        "/proc/4243/task/4250/fd/3": Link("/dev/nvidia0"),
        "/proc/4243/stat": "4243 (python3) Z 4242 " + " ".join(["0"] * 17) + " 4000000 0 0",
        "/proc/4243/status": "Name:\tpython3\nUid:\t54321\t0\t0\t0\n",
        "/proc/4300/fd/1": Link("/dev/null"),
    }


def test_a_login_to_a_pod_knows_it_by_its_mounts(tmp_path: Path) -> None:
    """Neither sshd's variables nor cgroups of version 2 say so, and containerd leaves no file."""
    overlay = "overlay overlay rw,lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs"
    tree = system_tree() | {"/proc/self/mountinfo": MOUNTS.replace("ext4 /dev/sda1 rw", overlay)}
    tree |= {"/proc/1/cgroup": "0::/\n", "/proc/self/cgroup": "0::/\n"}
    del tree["/.dockerenv"]
    write_tree(tmp_path, tree)
    facts = msgspec.convert(probe("system", tmp_path), System)
    assert facts.container.hints == ("/proc/self/mountinfo: containerd",)
    assert probe("gpu", tmp_path)["container"] == "/proc/self/mountinfo: containerd"


def test_system_of_a_recorded_host(tmp_path: Path) -> None:
    write_tree(tmp_path, system_tree())
    data = probe("system", tmp_path, {"HF_HOME": "/mnt/my data/hf", "TMPDIR": "relative"})
    facts = msgspec.convert(data, System)
    group = facts.cgroup
    assert (group.version, group.memory_limit_bytes, group.memory_used_bytes) == (2, 1 << 30, 900000000)
    assert (group.memory_cache_bytes, group.oom_kills, group.pids_limit, group.pids_used) == (100000000, 3, 512, 100)
    assert group.cpu_limit == 1.5
    assert facts.memory["MemTotal"] == 527955968 * 1024
    assert "/.dockerenv" in facts.container.hints and facts.container.user_namespace is None
    write_tree(tmp_path, {"/proc/self/uid_map": "         0          0 4294967295\n"})
    assert msgspec.convert(probe("system", tmp_path), System).container.user_namespace is False
    write_tree(tmp_path, {"/proc/self/uid_map": "         0       1000          1\n"})
    assert msgspec.convert(probe("system", tmp_path), System).container.user_namespace is True
    assert facts.sysctl_numbers("net.ipv4.tcp_rmem") == (4096, 131072, 6291456)
    assert facts.sysctl_numbers("net.ipv4.conf.eth0.rp_filter") == (1,)
    assert facts.rdma_devices == ("mlx5_0",)
    assert facts.shm.present and facts.shm.own_mount
    roles = {entry.role: entry for entry in facts.filesystems}
    assert (roles["HF_HOME"].mount, roles["HF_HOME"].source, roles["HF_HOME"].read_only) == (
        "/mnt/my data",
        "nas1:/export/data",
        True,
    )
    assert "TMPDIR" not in roles and roles["/tmp"].type == "ext4" and roles["/tmp"].outcome == "ok"


@pytest.mark.parametrize(
    ("readings", "state"),
    [
        ([("D", "5")] * 9, "D"),
        ([("D", "5"), ("D", "5"), ("S", "5")], "S"),
        ([("D", "5"), ("D", "6")], "R"),  # it ran in between
        ([("D", "5"), ("", "")], ""),
    ],
)
def test_who_waits_for_a_disk_for_a_moment_is_not_stuck(
    readings: list[tuple[str, str]], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(readings)
    monkeypatch.setattr(gpu_holders, "_state_and_ticks", lambda pid: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(gpu_holders, "STUCK_INTERVAL_S", 0.0)
    process = {"pid": 77, "state": "D"}
    gpu_holders._read_again([process])
    assert process["state"] == state


def test_the_state_of_a_process_is_read_with_its_cpu_time() -> None:
    state, ticks = gpu_holders._state_and_ticks(os.getpid())
    assert state == "R" and len(ticks) == 2 and int(ticks[0]) > 0
    assert gpu_holders._state_and_ticks(2**22 + 1) == ("", [])


def test_processes_with_open_gpus_of_a_recorded_host(tmp_path: Path) -> None:
    write_tree(tmp_path, system_tree())
    found = msgspec.convert(probe("system", tmp_path), System).gpu_processes
    assert found.gpu_devices == 2
    leftover, zombie = found.processes
    assert (leftover.pid, leftover.command, leftover.user, leftover.state, leftover.devices) == (
        4242, "python3 (x)", "root", "S", ("/dev/nvidia1",),
    )  # fmt: skip
    assert leftover.age_s is not None and 250000 < leftover.age_s < 270000
    assert (zombie.pid, zombie.state, zombie.user, zombie.devices) == (4243, "Z", "54321", ("/dev/nvidia0",))


def test_what_this_agent_started_itself_holds_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that asks NVML has the GPUs open, and does so at the same time."""
    mine = f"4244 (python3) S {os.getpid()} " + " ".join(["0"] * 17) + " 4000000 0 0"
    write_tree(tmp_path, {**system_tree(), "/proc/4244/fd/9": Link("/dev/nvidia0"), "/proc/4244/stat": mine})
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    assert [process["pid"] for process in gpu_holders.gpu_processes()["processes"]] == [4242, 4243]


def test_shared_memory_without_a_limit_is_as_large_as_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tmpfs mounted with size=0 tells no block at all."""
    write_tree(tmp_path, system_tree())
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_frsize=4096, f_blocks=0, f_bavail=0))
    told = system_probe.shared_memory()
    assert (told["size_bytes"], told["free_bytes"]) == (527955968 << 10, 500000000 << 10)


@pytest.mark.parametrize(("first", "hidden", "runs"), [("systemd", 0, False), (None, 1, None)])
def test_where_others_processes_are_hidden_nothing_is_known_of_them(
    first: str | None, hidden: int, runs: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With /proc mounted hidepid=2 they are not listed, and nobody seemed to hold the GPUs, nor to manage the fabric."""
    processes = {"/dev/nvidia0": "", "/proc/77/comm": "sshd", "/proc/77/fd": None}
    write_tree(tmp_path, {**processes, **({"/proc/1/comm": first, "/proc/1/fd": None} if first else {})})
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    assert gpu_holders.gpu_processes()["not_permitted"] == hidden
    assert gpu_probe._fabric_manager()["running"] is runs


def test_a_table_of_thousands_of_mounts_is_read_to_its_end(tmp_path: Path) -> None:
    """A Kubernetes host has an overlay and several secrets for each pod, with hundreds of bytes each."""
    pods = "".join(f"{n} 21 0:{n} / /run/pods/{n} rw - overlay overlay rw,lowerdir={'/l' * 99}\n" for n in range(900))
    root, *others = MOUNTS.splitlines(keepends=True)
    write_tree(tmp_path, {**system_tree(), "/proc/self/mountinfo": root + pods + "".join(others)})
    facts = msgspec.convert(probe("system", tmp_path), System)
    assert facts.shm.own_mount and facts.cgroup.memory_limit_bytes == 1 << 30


def test_a_limit_of_which_the_use_is_not_readable_leaves_perhaps_nothing(tmp_path: Path) -> None:
    own = {f"{GROUP}/memory.max": "10000\n", f"{GROUP}/memory.current": "10\n"}
    write_tree(tmp_path, {**system_tree(), **own})
    above = tmp_path / "sys/fs/cgroup/system.slice/memory.current"
    above.unlink()
    group = msgspec.convert(probe("system", tmp_path), System).cgroup
    assert (group.memory_group, group.memory_used_bytes) == (str(Path(GROUP).parent), None)


@pytest.mark.parametrize(("below", "limit"), [("/job.scope", 512), ("", 9)])
def test_a_group_below_the_one_that_is_mounted_is_found_there(tmp_path: Path, below: str, limit: int) -> None:
    tree = {"/proc/self/mountinfo": MOUNTS.replace("0:20 / ", "0:20 /pod7 "), "/proc/self/cgroup": f"0::/pod7{below}\n"}
    limits = {"/sys/fs/cgroup/job.scope/pids.max": "512\n", "/sys/fs/cgroup/pids.max": "9\n" if not below else "max\n"}
    write_tree(tmp_path, {**system_tree(), **tree, **limits})
    assert msgspec.convert(probe("system", tmp_path), System).cgroup.pids_limit == limit


@pytest.mark.parametrize(
    ("path", "point"), [("/data/x", "/data"), ("/data", "/data"), ("/database", "/"), ("/data/a/b", "/data/a")]
)
def test_a_path_lies_on_the_mount_with_the_longest_name(path: str, point: str) -> None:
    for points in (("/", "/data", "/data/a"), ("/data/a", "/data", "/")):
        found = filesystems.mount_of(path, [{"point": one} for one in points])
        assert found is not None and found["point"] == point


def test_without_a_cgroup_file_system_no_limit_is_known(tmp_path: Path) -> None:
    write_tree(tmp_path, {**system_tree(), "/proc/self/mountinfo": MOUNTS.splitlines()[0] + "\n"})
    assert msgspec.convert(probe("system", tmp_path), System).cgroup.version == 0


def test_what_was_killed_elsewhere_is_not_counted(tmp_path: Path) -> None:
    """Since Linux 5.3 a group counts what died below it: user.slice, and Slurm's, every process of every job."""
    write_tree(tmp_path, {**system_tree(), "/sys/fs/cgroup/system.slice/memory.events": "oom 9\noom_kill 40\n"})
    assert msgspec.convert(probe("system", tmp_path), System).cgroup.oom_kills == 3


def test_a_user_without_home_and_entry_in_passwd_has_caches_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654321)
    monkeypatch.setenv("HF_HOME", "/data/hf")
    assert [role for role, _ in filesystems._directories()] == ["/tmp", "HF_HOME"]


def test_the_limit_that_leaves_least_is_told_and_not_the_smallest(tmp_path: Path) -> None:
    """A step may start 400 more threads by its own limit, and 10 by that of the slice that it shares."""
    above = "/sys/fs/cgroup/system.slice"
    full = {f"{above}/pids.max": "10000\n", f"{above}/pids.current": "9990\n", f"{GROUP}/memory.max": "1000\n"}
    write_tree(tmp_path, {**system_tree(), **full, f"{GROUP}/memory.current": "10\n"})
    group = msgspec.convert(probe("system", tmp_path), System).cgroup
    assert (group.pids_limit, group.pids_used, group.pids_group) == (10000, 9990, above)
    assert (group.memory_limit_bytes, group.memory_used_bytes, group.memory_group) == (1000, 10, GROUP)
    cached = {f"{above}/memory.current": "1073741000\n"}  # nearly all of it is cache of other groups, which gives way
    cached[f"{above}/memory.stat"] = "inactive_file 1\ntotal_inactive_file 73740000\ntotal_active_file 1000000000\n"
    write_tree(tmp_path, cached)
    group = msgspec.convert(probe("system", tmp_path), System).cgroup
    assert (group.memory_limit_bytes, group.memory_group) == (1000, GROUP)
    write_tree(tmp_path, {f"{above}/pids.max": "max\n", f"{above}/memory.max": "max\n", f"{GROUP}/memory.max": "max\n"})
    group = msgspec.convert(probe("system", tmp_path), System).cgroup
    assert (group.pids_limit, group.pids_used) == (512, 100) and group.memory_limit_bytes is None


def test_cgroup_version_1_of_a_recorded_host(tmp_path: Path) -> None:
    base = "/sys/fs/cgroup"
    write_tree(
        tmp_path,
        {
            "/proc/self/mountinfo": f"30 1 0:30 /docker/abc {base}/memory rw - cgroup cgroup rw,memory\n"
            f"31 1 0:31 / {base}/pids rw - cgroup cgroup rw,pids\n"
            f"32 1 0:32 / {base}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            f"33 1 0:33 / {base}/unified rw - cgroup2 cgroup2 rw\n",
            "/proc/self/cgroup": "5:memory:/docker/abc\n4:pids:/user.slice\n3:cpu,cpuacct:/\n0::/\n",
            f"{base}/memory/memory.limit_in_bytes": "2147483648\n",
            f"{base}/memory/memory.usage_in_bytes": "1000\n",
            f"{base}/memory/memory.stat": "cache 5\ntotal_inactive_file 500\n",
            f"{base}/pids/user.slice/pids.max": "max\n",
            f"{base}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{base}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{base}/unified/cgroup.procs": "",
        },
    )
    group = msgspec.convert(probe("system", tmp_path), System).cgroup
    assert (group.version, group.memory_limit_bytes, group.memory_used_bytes, group.memory_cache_bytes) == (
        1,
        2 << 30,
        1000,
        500,
    )
    assert (group.pids_limit, group.cpu_limit) == (None, None)


def test_a_file_system_that_hangs_twice_is_named(tmp_path: Path) -> None:
    stub = tmp_path / "bin" / "stat"
    stub.parent.mkdir()
    stub.write_text(
        '#!/bin/sh\nfor last; do :; done\ncase "$last" in */hung*) exec sleep 60;; esac\nexec /usr/bin/stat "$@"\n'
    )
    stub.chmod(0o755)
    root = tmp_path / "root"
    write_tree(root, {**system_tree(), "/proc/self/mountinfo": MOUNTS + "25 21 0:45 / /hung rw - nfs4 nas2:/x rw\n"})
    path = f"{stub.parent}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": "/hung/home", "HF_HOME": "/hung/hf", "TORCH_HOME": "/hung/torch"}
    facts = msgspec.convert(probe("system", root, environment), System)
    outcomes = {entry.role: (entry.outcome, entry.mount, entry.source) for entry in facts.filesystems}
    assert outcomes["HF_HOME"] == outcomes["home"] == ("timed-out", "/hung", "nas2:/x")
    assert outcomes["/tmp"][0] == "ok"


def test_a_host_that_is_slow_everywhere_has_no_hung_mount(tmp_path: Path) -> None:
    stub = tmp_path / "bin" / "stat"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nexec sleep 60\n")
    stub.chmod(0o755)
    environment = {"PATH": f"{stub.parent}:/usr/bin:/bin", "HOME": "/root"}
    facts = msgspec.convert(probe("system", None, environment), System)
    assert {entry.outcome for entry in facts.filesystems} == {"failed"}
    assert "busy" in facts.filesystems[0].detail


def test_system_of_this_machine_is_readable() -> None:
    facts = msgspec.convert(probe("system", None), System)
    assert facts.memory["MemTotal"] > 0 and facts.limits["nofile"].soft != 0
    assert all(entry.outcome == "ok" for entry in facts.filesystems)


# --- software ------------------------------------------------------------------------------------------------------

SITE = "/opt/train/lib/python3.11/site-packages"


def library(version: str, cuda: str = "12.8") -> bytes:
    return elf(constants=f"\0\0NCCL version {version}+cuda{cuda}\0rest".encode())


def software_tree(search: dict[str, str]) -> dict[str, str | bytes | None]:
    return {
        f"{SITE}/torch/version.py": "__version__ = '2.8.0+cu128'\n"
        "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
        f"{SITE}/torch/lib/libtorch_cuda.so": elf(("libcudart.so.12", "libnccl.so.2"), **search),
        f"{SITE}/torch-2.8.0+cu128.dist-info/METADATA": "Name: torch\n"
        "Requires-Dist: nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'\n",
        f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/METADATA": "",
        f"{SITE}/numpy-2.1.0.dist-info/METADATA": "",
        f"{SITE}/secret_thing-1.0.dist-info/METADATA": "",
        f"{SITE}/nvidia/nccl/lib/libnccl.so.2": library("2.27.3"),
        "/opt/nccl/lib/libnccl.so.2.18.3": library("2.18.3", "12.1"),
        "/opt/nccl/lib/libnccl.so.2": Link("libnccl.so.2.18.3"),
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.20.5": elf(),  # no version string: the name tells
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2": Link("libnccl.so.2.20.5"),
        "/opt/amazon/ofi-nccl/lib/libnccl-net.so": elf(),
        "/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so": elf(),
        "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15": elf(),
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1": Link("libcuda.so.570.86.15"),
        "/etc/ld.so.cache": loader_cache(
            ("libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2"),
            ("libnccl-net.so", "/opt/amazon/ofi-nccl/lib/libnccl-net.so"),
            ("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        ),
        "/proc/driver/nvidia/version": "NVRM version: "
        "NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\nGCC version: 12\n",
        "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "",
        "/sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n",
        "/sys/bus/pci/devices/0000:1c:00.0/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:1c:00.0/class": "0x068000\n",  # an NVSwitch
        "/sys/module/mlx5_core/version": "24.10-1.1.4\n",
        "/usr/bin/ofed_info": "#!/bin/bash\necho 'MLNX_OFED_LINUX-24.10-1.1.4.0 (OFED-24.10-1.1.4):'\n",
        "/usr/local/cuda/version.json": '{"cuda" : {"name" : "CUDA SDK", "version" : "12.8.20241031"}, '
        '"cuda_cudart": {"version": "1"}}',
        "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
        "/proc/sys/kernel/osrelease": "6.8.0-50-generic\n",
    }  # fmt: skip


OWN = "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"


def software(root: Path, search: dict[str, str], **environment: str) -> Software:
    write_tree(root, software_tree(search))
    return msgspec.convert(probe("software", root, environment), Software)


def test_software_of_a_recorded_host(tmp_path: Path) -> None:
    facts = software(tmp_path, {"rpath": OWN})
    assert facts.torch and (facts.torch.version, facts.torch.cuda, facts.torch.nccl_link) == (
        "2.8.0+cu128",
        "12.8",
        "shared",
    )
    assert facts.distributions == {"torch": "2.8.0+cu128", "nvidia-nccl-cu12": "2.27.3", "numpy": "2.1.0"}
    assert facts.torch_wants_nccl == "2.27.3"
    assert (facts.driver.version, facts.driver.open, facts.driver.gpus) == ("570.86.15", True, 1)
    assert facts.driver.pci_gpus == ("0000:1b:00.0",)
    sandbox = msgspec.convert(probe("software", tmp_path / "sandbox", {}), Software)
    assert not sandbox.has_gpu
    write_tree(tmp_path / "sandbox", {"/dev/nvidia5": "", "/dev/nvidiactl": ""})
    sandbox = msgspec.convert(probe("software", tmp_path / "sandbox", {}), Software)
    assert (sandbox.driver.gpus, sandbox.driver.pci_gpus) == (1, ())
    assert facts.driver.libraries["libcuda.so.1"].version == "570.86.15"
    assert (facts.cuda_toolkit, facts.ofed["mlx5_core"]) == ("12.8.20241031", "24.10-1.1.4")
    assert facts.ofed["release"] == "MLNX_OFED_LINUX-24.10-1.1.4.0"
    assert (facts.system.kernel, facts.system.distribution) == ("6.8.0-50-generic", "Ubuntu 24.04.1 LTS")
    assert [(plugin.kind, plugin.path) for plugin in facts.plugins] == [
        ("net", "/opt/amazon/ofi-nccl/lib/libnccl-net.so")
    ]


@pytest.mark.parametrize(
    ("search", "environment", "version", "found_by"),
    [
        ({"rpath": OWN}, {}, "2.27.3", "RPATH of libtorch_cuda.so"),
        ({"rpath": OWN}, {"LD_LIBRARY_PATH": "/opt/nccl/lib"}, "2.27.3", "RPATH of libtorch_cuda.so"),
        ({"runpath": OWN}, {"LD_LIBRARY_PATH": "/opt/nccl/lib"}, "2.18.3", "LD_LIBRARY_PATH"),
        ({"runpath": OWN}, {}, "2.27.3", "RUNPATH of libtorch_cuda.so"),
        ({}, {}, "2.20.5", "ld.so.cache"),
        ({"rpath": OWN}, {"LD_PRELOAD": "/opt/nccl/lib/libnccl.so.2"}, "2.18.3", "LD_PRELOAD"),
    ],
)
def test_which_libnccl_wins(
    tmp_path: Path, search: dict[str, str], environment: dict[str, str], version: str, found_by: str
) -> None:
    facts = software(tmp_path, search, **environment)
    assert facts.winner and (facts.winner.version, facts.winner.found_by) == (version, found_by)
    assert facts.nccl_version == version
    assert {copy.version for copy in facts.nccl} >= {"2.27.3", "2.20.5"}
    assert sum(copy.wins for copy in facts.nccl) == 1


def test_torch_with_nccl_built_in_and_without_cuda(tmp_path: Path) -> None:
    write_tree(tmp_path, software_tree({"rpath": OWN}))
    shared = tmp_path / SITE.lstrip("/") / "torch/lib/libtorch_cuda.so"
    shared.write_bytes(elf(("libcudart.so.11.0",)))
    facts = msgspec.convert(probe("software", tmp_path), Software)
    assert facts.torch and facts.torch.nccl_link == "built-in" and facts.winner is None
    shared.write_bytes(b"\x7fELF broken")
    facts = msgspec.convert(probe("software", tmp_path), Software)
    assert facts.torch and facts.torch.nccl_link == "unknown"
    shared.unlink()
    facts = msgspec.convert(probe("software", tmp_path), Software)
    assert facts.torch and facts.torch.nccl_link == "none"


def test_software_of_this_machine_without_importing_torch() -> None:
    facts = msgspec.convert(probe("software", None), Software)
    assert facts.python.version and facts.system.kernel
    assert facts.torch is not None and facts.torch.version == facts.distributions["torch"]


@pytest.mark.parametrize(
    "damage", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01\x01" + b"\xff" * 200, b"NCCL version 2.26.2+cuda12.2\0"]
)
def test_damaged_libraries_do_not_break_the_probe(tmp_path: Path, damage: bytes) -> None:
    write_tree(tmp_path, software_tree({"rpath": OWN}))
    (tmp_path / SITE.lstrip("/") / "nvidia/nccl/lib/libnccl.so.2").write_bytes(damage)
    facts = msgspec.convert(probe("software", tmp_path), Software)
    assert facts.winner and facts.winner.version in ("", "2.26.2")
