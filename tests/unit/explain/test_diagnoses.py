"""What several lines prove together: one log for each rule that no other test and no case reaches."""

from __future__ import annotations

import pytest

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import LogSource, Verdict
from tests.unit.explained import explain_text

_TIMED_OUT = (
    "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
    "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
_NO_ANSWER = "n1:8:80 [0] misc/socket.cc:50 NCCL WARN socketPollConnect: Connect to 10.2.0.1<4711> returned 110(Connection timed out)\n"
_GLOO_FAILED = (
    "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n"
)


@pytest.mark.parametrize(
    ("cause", "title", "log"),
    [
        (
            "net.wrong-interface",
            "different networks",
            "n1:8:80 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.1<0>\nn2:8:80 [0] NCCL INFO Bootstrap : Using eno1:10.2.0.1<0>\n"
            + _NO_ANSWER,
        ),
        (
            "net.wrong-interface",
            "replaces the default exclusions",
            "n1:8:80 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^docker0\n"
            "n1:8:80 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
            "n2:8:80 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n",
        ),
        (
            "net.wrong-interface",
            "GLOO_SOCKET_IFNAME=lo",
            "export GLOO_SOCKET_IFNAME=lo\n"
            "RuntimeError: [gloo/transport/tcp/pair.cc:800] connect [127.0.0.1]:40000: Connection refused\n",
        ),
        ("net.wrong-interface", "over GLOO_SOCKET_IFNAME=eth7", "export GLOO_SOCKET_IFNAME=eth7\n" + _GLOO_FAILED),
        (
            "net.hostname-resolution",
            "own name does not resolve",
            "[W ProcessGroupGloo.cpp:7] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as "
            "fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME.\n" + _GLOO_FAILED,
        ),
        (
            "env.bad-nccl-var",
            "a family that this host does not have",
            "n1:8:80 [0] NCCL INFO NCCL_SOCKET_FAMILY set by environment to AF_INET6\n"
            "n1:8:80 [0] misc/socket.cc:300 NCCL WARN ncclSocketInit: Socket creation failed : Address family not supported by protocol\n",
        ),
        (
            "net.mtu",
            "eth0 has different MTUs",
            "n1: 2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP\n"
            "n2: 2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP\n" + _TIMED_OUT,
        ),
        (
            "ib.device-not-found",
            "other hosts of the job have one",
            "n1:8:80 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
            "n2:8:80 [0] NCCL INFO NET/IB : No device found.\n",
        ),
        (
            "gpu.thermal-power",
            "NVSwitch overheats",
            "[ 8.000000] nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 10004, Non-fatal, Temperature 97C\n",
        ),
        (
            "app.pg-misuse",
            "symmetric memory is not available",
            "n1:8:80 [0] dev_runtime.cc:90 NCCL WARN Communicator does not support symmetric memory!\n",
        ),
        (
            "env.bad-nccl-var",
            "symmetric memory is not available",
            "n1:8:80 [0] NCCL INFO NCCL_CUMEM_ENABLE set by environment to 0\n"
            "n1:8:80 [0] dev_runtime.cc:90 NCCL WARN Communicator does not support symmetric memory!\n",
        ),
        (
            "net.slow",
            "the hosts talk over an interface of 1000 Mb/s",
            "n1:8:80 [0] NCCL INFO NET/Socket : Using [0]eno1:10.2.0.1<0>\n"
            + 2 * "$ ethtool eno1\n\tSpeed: 1000Mb/s\n",
        ),
        (
            "net.wrong-interface",
            "the hosts talk over eno1 (1000 Mb/s), and ens9f0 has 100000 Mb/s",
            "n1:8:80 [0] NCCL INFO NET/Socket : Using [0]eno1:10.2.0.1<0>\nn1:8:80 [0] NCCL INFO Using network Socket\n"
            "Settings for eno1:\n\tSpeed: 1000Mb/s\nSettings for ens9f0:\n\tSpeed: 100000Mb/s\n",
        ),
    ],
)
def test_what_lines_prove_together(cause: str, title: str, log: str) -> None:
    best = explain_text(log).causes[0]
    assert (best.id, title in best.title) == (cause, True), best.title


def test_interfaces_of_one_host_have_mtus_of_their_own() -> None:
    """As ``ip link`` prints them, Docker's bridge is neither the job's nor another host's."""
    got = explain_text(
        "2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9001 qdisc mq state UP\n"
        "3: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN\n" + _TIMED_OUT
    )
    assert got.verdict is Verdict.UNDECIDED
    assert "gpu.fabric-manager" not in {cause.id for cause in got.causes}  # MULTICAST is a flag of theirs


def test_a_rank_with_no_work_under_way_waits_for_nobody() -> None:
    """torch writes -1 where no work failed."""
    status = (
        "[rank{rank}]:[E902 09:10:00.101 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure "
        "detected by watchdog at work sequence id: -1 PG status: last enqueued work: 4412, last completed work: 4412\n"
    )
    got = explain_text("".join(status.format(rank=rank) for rank in range(2)))
    assert got.verdict is Verdict.UNDECIDED
    assert not any("waits in work" in cause.title for cause in got.causes)


def test_the_load_of_a_gpu_is_not_that_of_another_hosts() -> None:
    """nvidia-smi -q of two hosts, a file each: an idle GPU may lower its clock, whatever the other one does."""
    of_a_gpu = (
        "GPU 00000000:5D:00.0\n    Utilization\n        Gpu                               : {load} %\n"
        "    Clocks\n        SM                                : {clock} MHz\n"
        "    Max Clocks\n        SM                                : 1980 MHz\n"
    )
    idle, busy = of_a_gpu.format(load=0, clock=345), of_a_gpu.format(load=100, clock=1980)
    got = analyse([LogSource("host1.log", idle), LogSource("host2.log", busy)])
    assert not [cause for cause in got.causes if cause.id == "gpu.thermal-power"]
    slow = analyse([LogSource("host1.log", busy), LogSource("host2.log", of_a_gpu.format(load=100, clock=345))])
    assert slow.causes[0].id == "gpu.thermal-power"
