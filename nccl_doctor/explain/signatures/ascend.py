"""HCCL, the collectives of Ascend NPUs: its own error codes (EI...), as torch_npu and MindSpore print them."""

from __future__ import annotations

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "hccl-wrapper",
    "HCCL error in: {place}",
    "OPS function error: Hccl{call:word}",
    "current working operator name is Hccl{call:word}",
    "call hccl api failed",
    "Task from HCCL run failed",
    "ACL stream synchronize failed, error code:507048",
    role=Role.SYMPTOM,
    fold="HCCL error raised in Python",
    why="torch_npu's wrapping of an HCCL error: the EI code with its reason stands beside it, or in another rank's log.",
)
says(
    "hccl-notify-timeout",
    "EI0002",
    "The wait execution of the Notify register times out",
    "Notify register has not received the Notify record",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.42,
    fold="HCCL: a rank waited in vain",
    title="an NPU waited for another rank that did not come in time",
    why="EI0002: this rank waited HCCL_EXEC_TIMEOUT long. The rank that does not print it is the one to look at.",
)
says(
    "hccl-socket-timeout",
    "EI0006",
    "Getting socket times out",
    "EI0015",
    "EI0016",
    "wait socket establish timeout, role[",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.42,
    fold="HCCL: no connection with a peer",
    title="an NPU's peer did not connect in time: its rank failed or is late, or the link between them is down",
    why="EI0006: no connection within HCCL_CONNECT_TIMEOUT (120 s). Other ranks' first errors say whether the peer failed; hccn_tool tests the link.",
)
says(
    "hccl-arguments-differ",
    "EI0005",
    "arguments for collective communication are inconsistent between ranks",
    cause="app.collective-mismatch",
    strength=0.9,
    title="the ranks call HCCL collectives with different arguments",
    why="EI0005: HCCL compares the operation's tag, type, count and root between ranks.",
)
says(
    "hccl-versions-differ",
    "EI0008",
    cause="sw.nccl-version-mismatch",
    strength=0.88,
    title="the ranks run different CANN/HCCL versions",
    why="EI0008: HCCL compares its version between ranks.",
)
says(
    "hccl-package-old",
    "his package does not support {call:word} {}, please change new package",
    cause="sw.library-conflict",
    strength=0.86,
    title="CANN here is newer than the NPU's driver and firmware: they lack {call}",
    why="HCCL loads the calls of the driver's RDMA library (hccp) by name, and this one is missing.",
)
says(
    "hccl-cqe",
    "EI0013",
    "EI0018",
    "error CQE occurred during operator execution",
    cause="ib.retry-exceeded",
    strength=0.8,
    title="an RDMA request of an NPU failed",
    why="EI0013 (EI0018: over UB): the NPU's port got an error completion: the link, the switch's PFC settings, or a peer that died.",
)
says(
    "hccl-still-running",
    "EJ0001",
    "Failed to initialize the HCCP process",
    cause="net.port-in-use",
    strength=0.78,
    title="an earlier training process still holds the NPU (HCCP cannot start)",
    why="EJ0001: the last job's process is still there, or another container uses the same device.",
)
says(
    "hccl-port-taken",
    "Please check the port status and whether the port is been using by other process",
    "EI0019",
    "EI0020",
    "EJ0003",
    "Failed to bind the IP port",
    cause="net.port-in-use",
    strength=0.9,
    title="HCCL cannot listen on its port: another process, mostly of an earlier job, holds it",
    why="HCCL listens on HCCL_IF_BASE_PORT and the ports behind it (16666 by default) on each host's NIC.",
)
says(
    "hccl-settings",
    "EI0001",
    "EI0003",
    "EI0004",
    "EI0014",
    "EI0016{}is invalid. Expected value",
    "EI0017",
    cause="env.bad-nccl-var",
    strength=0.74,
    title="HCCL refuses a variable, an argument or the rank table",
    why="EI0001, EI0003, EI0004, EI0014, EI0016, EI0017: an environment variable, a parameter or the rank table is not valid.",
)
says(
    "hccl-port-down",
    "EI0009{}he network port is down",
    cause="ib.port-down",
    strength=0.9,
    title="an NPU's network port is down",
    why="EI0009 with this reason: hccn_tool -i N -link -g shows the port, -optical -g its module.",
)
says(
    "hccl-memory",
    "EI0007{}emory",
    "EI0009{}memory limit exceeded",
    "EI0011",
    cause="gpu.oom",
    strength=0.86,
    title="HCCL could not allocate memory of an NPU",
    why="EI0007, EI0009, EI0011: HCCL's buffers (HCCL_BUFFSIZE for each communicator) do not fit beside the framework's.",
)
says(
    "hccl-peer-to-peer",
    "EI0010",
    cause="gpu.p2p",
    page="gpu.p2p.beside-nccl",
    strength=0.84,
    title="peer-to-peer between the NPUs of a host fails",
    why="EI0010: HCCL_INTRA_ROCE_ENABLE=1 takes RoCE within the host instead.",
)
says(
    "hccl-link",
    "EI0009",
    "EI0012",
    "ransport init error. Reason",
    role=Role.SYMPTOM,
    cause="ib.qp-connect",
    strength=0.46,
    fold="HCCL: no link with a peer",
    title="an NPU's link with a peer was not made, or broke",
    why="EI0009 and EI0012 name the pair, not the reason: a port that is down, ranks of one communicator on the same NPU, or a peer that failed first.",
)
