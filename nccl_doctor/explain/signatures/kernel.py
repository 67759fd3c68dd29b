"""Kernel drivers of network adapters, PCIe, and the checks that schedulers run on a node."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

_VIRTUAL = re.compile(r"\b(?:ena|gve|virtio_net) (?:[0-9a-f]{4}:|virtio)|\((?:ena|gve|virtio_net)\)|\bENA admin")
says(
    "adapter-firmware",
    "timeout. Will cause a leak of a command resource",
    "device's health compromised",
    "mlx5_health",
    "health recovery",
    "firmware internal error",
    "Fatal error detected, entering error state",
    "mlx5_core {dev}: {}poll_health",
    "mlx5_core {dev}: {}handling bad device here",
    "mlx5_core {dev}: {}enter_error_state",
    "mlx5_core {dev}: {}synd 0x{synd:hex}",
    "assert_var[0]",
    "mlx5_pci_err_detected",
    "mlx5_error_sw_reset",
    "mlx5_core {dev}: PCIe Bus Error: severity=Uncorrected (Fatal)",
    "bnxt_en {dev}: PCIe Bus Error: severity=Uncorrected (Fatal)",
    "PCI I/O error detected",
    "hwrm_{call:word} timed out",
    "TX timeout detected, starting reset task",
    "Firmware not responding",
    "Firmware reset request",
    "failed, status bad system state",
    "mlx5_core {dev}: Fatal error {code:int} detected",
    "TX timeout on queue",
    "transmit queue {queue:int} timed out",
    "transmit timeout: latency",
    "bnxt_en {dev}: Firmware heartbeat stopped",
    "crdump: ",
    "bnxt_re: Device is in error state",
    "FW STALL Detected. cmdq[",  # bnxt_re
    "QPLIB: {}timedout (",
    "bnxt_en {dev}Error (timeout: ",
    "mlx5_core {dev}: TX timeout detected",
    "mlx5_core {dev}: {}Health issue observed, ",
    "irdma: abnormal ae_id",
    "efa {dev}: {}reset",
    "Failed to process command {command:word} (opcode {opcode:int}) comp_status",
    cause="ib.port-down",
    strength=0.82,
    title="a network adapter's firmware failed or does not answer (kernel log)",
    why="The driver lost its adapter: firmware crash, a command that timed out, or an adapter in error state. Its ports are gone until it is reset.",
    where=lambda groups, line: (
        bool(re.search(r"mlx|bnxt|irdma|ice |efa|hwrm|assert_var|\bib\d?\b|NETDEV", line, re.IGNORECASE))
        and "err -12" not in line
        and "High temperature" not in line
        and not _VIRTUAL.search(line)
    ),
)
says(
    "virtual-adapter-stuck",
    "transmit queue {queue:int} timed out",
    "Found a Tx that wasn't completed on time",  # ENA, until 2.13
    "lost tx completions is above the threshold",
    "Lost TX completions are above threshold",
    "is paused for too long (threshold",
    "napi handler hasn't been called for a long time",
    "Keep alive watchdog timeout, ",
    "ENA admin queue is not in running state",
    "Can not reset the device",
    "Timeout on tx queue, {queue:int}",  # gVNIC
    "TX timeout on queue: {queue:int}, sq: ",  # virtio
    cause="sys.node-failure",
    strength=0.72,
    title="an instance's network adapter stopped sending, and its driver resets it (kernel log)",
    why="The adapter of a cloud's instance (ENA, gVNIC, virtio) is software of its host: it stalls where the driver's interrupts get no CPU, the "
    "driver has a bug, or the host is ill. Connections stand still for seconds; another instance, or a newer driver, mends it.",
    pattern=_VIRTUAL,
)
says(
    "adapter-probe-failed",
    "mlx5_core: probe of {dev:word} failed with error",
    "mlx5_core {dev:word}: probe with driver mlx5_core failed with error",
    "mlx5_load_one failed with error code",
    "handle_hca_cap failed",
    "bnxt_en: probe of {dev:word} failed with error",
    "ice: probe of {dev:word} failed with error",
    cause="ib.device-not-found",
    page="ib.device-not-found.driver-failed",
    strength=0.84,
    title="the driver could not start a network adapter (kernel log)",
    why="The probe of the adapter failed: driver and firmware do not fit, or the adapter does not answer. It has no RDMA device then.",
)
says(
    "mlx5-qp-command",
    "_QP({opcode:hex}) op_mod({mod:hex}) failed, status {status}(",
    cause="ib.qp-connect",
    strength=0.7,
    title="the adapter refuses a step of a queue pair: {status} (kernel log)",
    why="mlx5 refused CREATE_QP, INIT2RTR_QP or RTR2RTS_QP: attributes that it does not support, or a GID, MTU or port that does not fit. Who asked for it also prints its own error.",
    where=lambda groups, line: not re.search(r"limits exceeded|bad system state|2(?:ERR|RST)_QP|DESTROY_QP", line),
)
says(
    "qp-command",
    "infiniband {dev:word}: Failed to create HW QP",  # bnxt_re
    "infiniband {dev:word}: Failed to modify HW QP",
    "infiniband {dev:word}: [Create QP Cmd Error][op_code={code:int}]",  # irdma
    "infiniband {dev:word}: [Modify QP Cmd Error][op_code={code:int}]",
    cause="ib.qp-connect",
    strength=0.6,
    title="{dev} refuses a step of a queue pair (kernel log)",
    why="The driver could not create or connect a queue pair: its firmware refused the attributes, has none left, or does not answer (then the lines before tell of a time-out).",
)
says(
    "mlx5-key-command",
    "_MKEY({opcode:hex}) op_mod({mod:hex}) failed, status {status}(",
    "_mkey({opcode:hex}) op_mod({mod:hex}) failed, status {status}(",
    "async reg mr failed. status",
    cause="ib.memlock",
    strength=0.48,
    title="the adapter refuses a memory key: {status} (kernel log)",
    why="mlx5 refused CREATE_MKEY: no keys or memory left, or a kind of memory that it cannot register so. The limit on locked memory is only one reason.",
    where=lambda groups, line: not re.search(r"limits exceeded|bad system state|DESTROY_MKEY", line),
)
says(
    "mlx5-kernel-retry",
    "syndrome 0x15, vendor syndrome 0x81",
    cause="ib.retry-exceeded",
    strength=0.74,
    title="the fabric did not deliver: transport retries exceeded (kernel log)",
    why="A completion of a kernel's own queue pair (storage, IPoIB): 0x15 is mlx5's for retries exceeded.",
)
says(
    "mlx5-kernel-flush",
    "syndrome 0x5, vendor syndrome 0xf9",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.4,
    fold="flushed requests of a queue pair (kernel log)",
    title="a queue pair of the kernel was in error, and its requests are flushed: earlier lines say what broke it",
    why="0x5 is mlx5's for a flushed request: a consequence of the first error of that queue pair, or of a peer that disconnected.",
)
says(
    "umem-get",
    "umem get failed (-{code:int})",
    cause="ib.memlock",
    strength=0.48,
    title="the kernel cannot pin the pages that an adapter is to register (errno {code})",
    why="12 is the locked-memory limit, 95 memory of a file system (DAX) that forbids it. (14 is an address that is no ordinary memory: a GPU's, without nvidia_peermem.)",
    where=lambda groups, line: groups["code"] != "14",
)
says(
    "kernel-register-mr",
    "Failed to process command REG_MR (opcode {opcode:int}) comp_status {}err -12",
    "Failed to register mr [-12]",
    cause="ib.memlock",
    strength=0.7,
    title="the adapter's driver could not register memory (ENOMEM)",
    why="The driver refused a registration for want of memory or of registration entries.",
)
says(
    "adapter-heat",
    "High temperature on sensors with bit set",
    "mlx5_core {dev}: {}Health issue observed, High temperature",
    "module {module}, High Temperature",
    "Transceiver module {}over temperature",
    cause="gpu.thermal-power",
    strength=0.62,
    title="a network adapter or its transceiver overheats",
    why="The adapter's driver reports its own temperature, or the transceiver's: links flap or are shut down.",
)
says(
    "subnet-port-gone",
    "drop_mgr_remove_port: Removed port with GUID",
    "osm_spst_rcv_process: {}is DOWN",
    "Reporting Generic Notice type:1 num:128 (Link state change)",
    cause="ib.port-down",
    strength=0.66,
    title="the subnet manager lost a port (opensm's log)",
    why="OpenSM removed a port from the subnet: its link went down, or its host did.",
)
says(
    "subnet-manager-not-bound",
    "osm_sm_bind: ERR {code:word}: SM MAD Controller bind failed",
    "osm_vendor_bind: ERR {code:word}: Unable to register class",
    cause="ib.port-down",
    strength=0.76,
    title="the subnet manager does not start: it cannot bind to its port (opensm's log)",
    why="Without a subnet manager the ports of an InfiniBand fabric do not become active. Another one holds the port, or the kernel refuses the registration.",
)
says(
    "port-not-active",
    "No IB port {port} is ACTIVE",
    "IB port {port} is not ACTIVE",
    "IB port {port} is not active",
    "No active IB port",
    cause="ib.port-down",
    strength=0.9,
    title="an InfiniBand port is not active: {port}",
    why="A node check looked for an active port of the expected rate and found none.",
)
says(
    "node-check",
    "Health check failed:{check}",
    "NHC: check_{check}",
    "reason set to: {check}",
    " Reason={check} [",
    "rolog failed",
    why="A node health check or the scheduler's prolog refused a node; its words tell the subject.",
)
