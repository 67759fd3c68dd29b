"""Lines on the subject of a cause, as further quotes: facts and settings that prove nothing alone."""

from __future__ import annotations

from nccl_doctor.explain import trouble
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Hit


def lines(case: Case, cause: str) -> list[Hit]:
    """Further lines on the subject of a cause: settings, facts, then what sounds like trouble."""
    settings = [hit for name, hits in case.env.items() if cause in _SETTINGS.get(name, ()) for hit in hits[:3]]
    facts = [
        hit for name in _FACTS.get(cause, ()) for hit in (*case.hits(name)[:6], case.last(name)) if hit is not None
    ]
    return settings + facts + trouble.about(case, cause)


def concerns(name: str, cause: str) -> bool:
    """Whether a variable that is set bears on a cause."""
    return cause in _SETTINGS.get(name, ())


# Signatures whose lines belong to the proof of a cause, though they prove nothing alone, or not always. The lines that do
# prove it are the candidate's own.
_FACTS: dict[str, tuple[str, ...]] = {
    "ib.device-not-found": ("no-ib-device", "net-socket-using", "network-used", "net-ib-using", "rdma-plugin"),
    "sw.nccl-version-mismatch": ("nccl-version", "torch-version", "nccl-error-version"),
    "net.wrong-interface": (
        "bootstrap-using",
        "net-socket-using",
        "connect-refused",
        "connect-noroute",
        "connect-retry",
    ),
    "net.firewall": ("connect-retry", "bootstrap-using", "gloo-endpoint", "gloo-closed", "rdzv-timeout", "open-ports"),
    "net.hostname-resolution": ("master-unreachable",),
    "net.master-unreachable": ("master-flag",),
    "launch.rdzv": ("rdzv-trouble", "rdzv-connection", "rdzv-timeout", "store-closed"),
    "launch.world-size": (
        "rdzv-consequence",
        "rdzv-connection",
        "nnodes",
        "world-size",
        "socket-timeout",
        "random-run-id",
    ),
    "env.bad-nccl-var": ("env-echo", "env-set"),
    "app.collective-mismatch": (
        "desync-started",
        "desync-lagging",
        "watchdog-timeout",
        "watchdog-status",
        "flight-recorder-missing",
    ),
    "app.straggler-timeout": ("desync-lagging", "straggler-words"),
    "app.uneven-inputs": ("watchdog-timeout",),
    "app.pg-misuse": ("nccl-init-start", "barrier-device"),
    "gpu.p2p": ("p2p-not-enabled", "watchdog-status", "busy-and-watts", "channel-p2p"),
    "gpu.duplicate": ("nccl-init-start",),
    "gpu.driver": ("driver-version",),
    "gpu.fabric-manager": ("cumem-refused",),
    "gpu.nvlink": ("nvlink-link", "topo-row", "cumem-refused"),
    "net.slow": (
        "busbw-average",
        "network-used",
        "net-socket-using",
        "busbw-row",
        "measured-rate",
        "gdr-disabled",
        "link-speed",
    ),
    "net.peer-lost": ("gloo-closed", "rdzv-consequence"),
    "net.plugin": ("plugin-misfit", "ofi-any", "libfabric-warn", "no-net-plugin", "network-used"),
    "net.mtu": ("ip-link-mtu",),
    "ib.gid-index": ("modify-qp", "ib-retry", "net-ib-using"),
    "ib.gdr": ("gdr-disabled",),
    "ib.port-down": ("ib-async",),
    "ib.qp-connect": ("net-ib-using",),
    "ib.retry-exceeded": ("ib-async",),
    "sw.nccl-bug": ("nccl-frame", "nccl-warn", "proxy-failed"),
    "sys.container": ("cumem-refused", "cumem-host-fallback"),
    "sys.host-oom": ("host-memory-used", "large-allocation"),
    "sys.shm": ("shm-full",),
    "sys.disk-full": ("disk-full-listing", "disk-nearly-full"),
    "launch.killed": ("cancelled",),
}


_SETTINGS: dict[str, tuple[str, ...]] = {
    "NCCL_IB_GID_INDEX": ("ib.gid-index", "ib.qp-connect", "ib.retry-exceeded", "env.bad-nccl-var"),
    "NCCL_SOCKET_IFNAME": ("net.wrong-interface", "env.bad-nccl-var", "net.firewall"),
    "GLOO_SOCKET_IFNAME": ("net.wrong-interface", "env.bad-nccl-var", "net.hostname-resolution"),
    "NCCL_IB_HCA": ("ib.device-not-found", "env.bad-nccl-var", "ib.qp-connect"),
    "NCCL_COMM_ID": ("env.bad-nccl-var", "net.wrong-interface"),
    "NCCL_NET": ("ib.device-not-found", "net.plugin", "env.bad-nccl-var", "net.slow"),
    "NCCL_NET_PLUGIN": ("net.plugin", "env.bad-nccl-var"),
    "NCCL_ALGO": ("env.bad-nccl-var",),
    "NCCL_PROTO": ("env.bad-nccl-var", "app.collective-mismatch"),
    "NCCL_P2P_DISABLE": ("env.bad-nccl-var", "gpu.p2p", "net.slow"),
    "NCCL_P2P_LEVEL": ("env.bad-nccl-var", "gpu.p2p", "net.slow"),
    "NCCL_SHM_DISABLE": ("env.bad-nccl-var", "sys.shm"),
    "NCCL_TOPO_FILE": ("env.bad-nccl-var",),
    "NCCL_GRAPH_FILE": ("env.bad-nccl-var",),
    "NCCL_IB_DISABLE": ("net.slow", "ib.device-not-found", "env.bad-nccl-var"),
    "NCCL_NET_GDR_LEVEL": ("ib.gdr", "env.bad-nccl-var"),
    "NCCL_BUFFSIZE": ("env.bad-nccl-var", "gpu.oom"),
    "NCCL_HOSTID": ("env.bad-nccl-var", "gpu.duplicate"),
    "NCCL_NTHREADS": ("env.bad-nccl-var",),
    "NCCL_MAX_NCHANNELS": ("env.bad-nccl-var", "net.slow"),
    "NCCL_MIN_NCHANNELS": ("env.bad-nccl-var", "net.slow"),
    "NCCL_CROSS_NIC": ("ib.qp-connect", "ib.retry-exceeded"),
    "NCCL_SOCKET_FAMILY": ("env.bad-nccl-var", "net.wrong-interface"),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": ("env.bad-nccl-var", "app.straggler-timeout"),
    "NCCL_NVLS_ENABLE": ("env.bad-nccl-var", "gpu.fabric-manager"),
    "NCCL_MNNVL_ENABLE": ("env.bad-nccl-var", "gpu.imex"),
    "CUDA_VISIBLE_DEVICES": ("gpu.not-visible", "gpu.duplicate"),
    "MASTER_ADDR": ("net.master-unreachable", "launch.env-missing"),
    "MASTER_PORT": ("net.master-unreachable", "net.port-in-use"),
}
