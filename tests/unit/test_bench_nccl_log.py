"""The proof of the path: NCCL's log lines of 2.4 to 2.32, put together over ranks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from nccl_doctor.bench.nccl_log import Edge, combine, read
from tests.tools.growth import is_linear

HEAD = "gpu01:4711:4711 [0] NCCL INFO "


def info(*lines: str) -> str:
    return "".join(f"{HEAD}{line}\n" for line in lines)


CHANNELS = [
    # 2.3 and 2.4: Ring, no channel/connection
    ("Ring 00 : 0[0] -> 1[1] via P2P/IPC", Edge(0, 1, 0, "P2P", "P2P/IPC")),
    ("Ring 01 : 1 -> 0 [receive] via NET/IB/0/GDRDMA", Edge(1, 0, 1, "NET", "NET/IB", "receive", 0, True)),
    ("Ring 00 : 0[1a000] -> 1[1b000] via direct shared memory", Edge(0, 1, 0, "SHM", "SHM/direct")),
    # 2.7 to 2.12: bus ids
    ("Channel 02 : 7[e0070] -> 8[10] [send] via NET/Socket/0", Edge(7, 8, 2, "NET", "NET/Socket", "send", 0)),
    ("Channel 00 : 0[1000] -> 1[2000] via P2P/direct pointer", Edge(0, 1, 0, "P2P", "P2P/direct pointer")),
    ("Channel 00 : 0[1000] -> 3[4000] via P2P/indirect/1[2000]", Edge(0, 3, 0, "P2P", "P2P/indirect")),
    # 2.12+: PXN, shared buffers
    (
        "Channel 13/1 : 9[1] -> 0[0] [send] via NET/IB/3(8)/GDRDMA/Shared",
        Edge(9, 0, 13, "NET", "NET/IB", "send", 3, True, True),
    ),
    ("Channel 01/0 : 8[0] -> 7[7] [receive] via NET/IB/1", Edge(8, 7, 1, "NET", "NET/IB", "receive", 1)),
    # some builds of 2.1x name the communicator
    (
        "Channel 00/0 : 7[ce000] -> 3[ce000] [send] via NET/Socket/1 comm 0xa573d4b0 nRanks 08",
        Edge(7, 3, 0, "NET", "NET/Socket", "send", 1),
    ),
    # plugins whose name has a blank, or a slash after it
    (
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/2/GDRDMA",
        Edge(0, 8, 0, "NET", "NET/AWS Libfabric", "send", 2, True),
    ),
    ("Channel 04/0 : 1[1] -> 0[0] via P2P/CUMEM/read", Edge(1, 0, 4, "P2P", "P2P/CUMEM")),
    ("Channel 04/0 : 1[1] -> 0[0] via P2P/MNNVL", Edge(1, 0, 4, "P2P", "P2P/MNNVL")),
    ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", Edge(0, 1, 0, "SHM", "SHM/direct/direct")),
    ("Channel 00 : 0[0] -> 1[1] via SHM/direct", Edge(0, 1, 0, "SHM", "SHM/direct")),
    # 2.31: how the receiver makes sure that the data are there
    (
        "Channel 00/0 : 4[0] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)/Shared/flush=c2c",
        Edge(4, 0, 0, "NET", "NET/IB", "receive", 0, True),
    ),
    # 2.26+: GPUDirect through the PCI BAR of C2C systems
    (
        "Channel 00/0 : 0[0] -> 4[0] [send] via NET/IB/0/GDRDMA(PCI)",
        Edge(0, 4, 0, "NET", "NET/IB", "send", 0, True),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "edge"), CHANNELS)
def test_channel_lines_of_every_version(line: str, edge: Edge) -> None:
    assert read(info(line)).edges == (edge,)


def test_one_log() -> None:
    log = read(
        info(
            "Bootstrap: Using eth0:10.0.0.1<0>",
            "NCCL version 2.28.9+cuda13.0",
            "NCCL_IB_HCA set by environment to mlx5",
            "NCCL_SOCKET_IFNAME set by environment to eth0",
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
            "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:fe80::1%eth1<0>",
            "Using network IB",
            "TUNER/Plugin: Using libnccl-tuner-ofi.so (v3)",
            "Channel 00/16 :    0   1   2   3",
            "Channel 01/16 :    0   1   2   3",
            "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
            "16 coll channels, 16 collnet channels, 8 nvls channels, 16 p2p channels, 2 p2p channels per peer",
            "Connected NVLS tree",
            "ncclCommInitRankConfig comm 0x5 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b commId 0x1 - Init COMPLETE",
        )
    )
    assert log.version == "2.28.9" and log.network == "IB" and log.tuner == "libnccl-tuner-ofi.so"
    assert log.hcas == ("mlx5_0:1/IB", "mlx5_1:1/RoCE")
    assert log.sockets == ("eth0 10.0.0.1", "eth1 fe80::1%eth1")
    assert (log.rings, log.trees, log.nvls, log.coll_channels) == (True, True, True, 16)
    assert log.env == (("NCCL_IB_HCA", "mlx5"), ("NCCL_SOCKET_IFNAME", "eth0"))
    assert log.init_complete


def test_ports_with_rail_and_plane() -> None:
    line = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1:2/IB [2]mlx5_2:1:2:3/IB [3]mlx5_3:1::3/RoCE [RO]; OOB eth0:10.0.0.1<0>"
    assert read(info(line)).hcas == ("mlx5_0:1/IB", "mlx5_1:1/IB", "mlx5_2:1/IB", "mlx5_3:1/RoCE")


def test_nccls_own_network_and_tuner_are_no_plugins() -> None:
    log = read(info("NET/Plugin: Using internal network plugin.", "TUNER/Plugin: Using internal tuner plugin."))
    assert (log.net_plugin, log.tuner) == ("", "")


@pytest.mark.parametrize(
    "line",
    [
        "comm 0x7f00 rank 1 nranks 8 cudaDev 1 nvmlDev 1 - Init COMPLETE",
        "comm 0x7f00 rank 1 nranks 8 cudaDev 1 busId 1b000 - Init COMPLETE",
        "ncclCommInitRank comm 0x7f00 rank 1 nranks 8 cudaDev 1 nvmlDev 1 busId 1b000 commId 0x1 - Init COMPLETE",
    ],
)
def test_init_complete_of_every_version(line: str) -> None:
    assert read(info(line)).init_complete
    assert not read(info(line.replace("COMPLETE", "START"))).init_complete


@pytest.mark.parametrize("end", ["Abort", "Destroy"])
def test_the_end_of_a_communicator_is_no_initialisation(end: str) -> None:
    """NCCL says so of one whose initialisation failed, too: a rank that got no further has proved no path."""
    log = info(f"comm 0x7f00 rank 0 nranks 1 cudaDev 0 busId 1b000 - {end} COMPLETE")
    assert not read(log).init_complete
    assert combine({0: read(log)}, hosts(1), 1).incomplete == ("no complete init in the NCCL log of rank 0",)


def test_the_bare_version_line_and_foreign_lines() -> None:
    assert read("NCCL version 2.18.1+cuda12.1\nunrelated\n").version == "2.18.1"
    assert read("we talk about NCCL and Channel 00 : 1 -> 2 via NET/IB/0\n").edges == ()


def logs(world: int, gdr: bool = True) -> dict[int, str]:
    found = {}
    for rank in range(world):
        after = (rank + 1) % world
        end = "/GDRDMA" if gdr else ""
        found[rank] = info(
            "NCCL version 2.27.5+cuda12.9",
            "Using network IB",
            "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            f"Channel 00/0 : {rank}[0] -> {after}[0] [send] via NET/IB/0{end}",
            f"Channel 00/0 : {(rank - 1) % world}[0] -> {rank}[0] [receive] via NET/IB/0{end}",
            f"comm 0x1 rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init COMPLETE",
        )
    return found


def hosts(world: int) -> dict[int, str]:
    return {rank: f"h{rank}" for rank in range(world)}


def test_the_path_is_proved_by_every_rank() -> None:
    path = combine({rank: read(text) for rank, text in logs(4).items()}, hosts(4), 4)
    assert path.proved and path.transports == {"NET/IB": 4} and (path.gdr_edges, path.net_edges) == (4, 4)
    assert path.devices == {"h0": 1, "h1": 1, "h2": 1, "h3": 1}
    assert "GPUDirect on 4 of 4 network connections, 1 network device per host" in path.words
    received = {rank: text.replace("] [send] via NET/IB/0", "] [send] via NET/IB/7") for rank, text in logs(4).items()}
    both = combine({rank: read(text) for rank, text in received.items()}, hosts(4), 4)
    assert both.transports == {"NET/IB": 4} and both.devices == {"h0": 2, "h1": 2, "h2": 2, "h3": 2}
    only = {0: read(info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/3"))}
    assert combine(only, hosts(2), 2).devices == {"h0": 1}


def test_a_missing_or_cut_log_proves_nothing() -> None:
    read_logs = {rank: read(text) for rank, text in logs(4).items()}
    del read_logs[2]
    path = combine(read_logs, hosts(4), 4)
    assert not path.proved and "rank 2" in path.incomplete[0]
    assert not combine({rank: read(text) for rank, text in logs(2).items()}, hosts(2), 2, cut=[1]).proved
    assert not combine({}, {}, 2).proved


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        ("NCCL INFO Channel 00/0 : ", "1 "),
        ("NCCL INFO NET/IB : Using ", "[0]"),
        ("NCCL INFO NET/Socket : Using ", "a:"),
        ("NCCL INFO comm 0x", "0"),
        ("NCCL INFO Channel 00 : 0[0] -> 1[1] via NET/", "/"),
        ("", "NCCL "),
    ],
)
def test_hostile_lines_are_read_in_linear_time(head: str, piece: str) -> None:
    assert is_linear(read, lambda length: head + piece * (length // len(piece)))


def test_no_channel_line_of_the_corpus_is_missed() -> None:
    """Logs of many versions and clusters, in the reference data beside the project."""
    shared = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).parents[2].parent / "shared"))
    logs = sorted((shared / "corpus" / "explain").glob("*/log.txt"))
    if not logs:
        pytest.skip("no reference data beside the project")
    seen, missed = 0, []
    for path in logs:
        for line in path.read_text(errors="replace").splitlines():
            if re.search(r"NCCL INFO (Channel|Ring) \d+(/\d+)? : .* via ", line):
                seen += 1
                if not read(line).edges:
                    missed.append(line)
    assert seen > 100 and not missed, missed[:5]
