"""What systems call a failure, whoever prints it: errno, signals and exit codes, statuses of verbs, gRPC and CUDA.

Each row of a table ends with the cause that it points to where its line names no subject of its own (:mod:`topics`). A number
counts only where its line says of what it is the number: 12 is ENOMEM behind ``err -``, retries exceeded behind ``completion ... status``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Linux: include/uapi/asm-generic/errno-base.h and errno.h, and glibc's strerror; read 2026-11. What says nothing of its cause
# (EINVAL, ENOENT) has no row.
ERRNO = (
    (1, "EPERM", "operation not permitted", "sys.container"),
    (5, "EIO", "input/output error", "sys.clock-or-dns-or-fs"),
    (11, "EAGAIN", "resource temporarily unavailable", "sys.threads"),
    (12, "ENOMEM", "cannot allocate memory", "sys.host-oom"),
    (13, "EACCES", "permission denied", "sys.container"),
    (19, "ENODEV", "no such device", "ib.device-not-found"),
    (23, "ENFILE", "too many open files in system", "sys.nofile"),
    (24, "EMFILE", "too many open files", "sys.nofile"),
    (28, "ENOSPC", "no space left on device", "sys.disk-full"),
    (30, "EROFS", "read-only file system", "sys.clock-or-dns-or-fs"),
    (32, "EPIPE", "broken pipe", "net.peer-lost"),
    (97, "EAFNOSUPPORT", "address family not supported", "net.wrong-interface"),
    (98, "EADDRINUSE", "address already in use", "net.port-in-use"),
    (99, "EADDRNOTAVAIL", "cannot assign requested address", "net.wrong-interface"),
    (100, "ENETDOWN", "network is down", "net.wrong-interface"),
    (101, "ENETUNREACH", "network is unreachable", "net.firewall"),
    (103, "ECONNABORTED", "software caused connection abort", "net.peer-lost"),
    (104, "ECONNRESET", "connection reset", "net.peer-lost"),
    (107, "ENOTCONN", "transport endpoint is not connected", "net.peer-lost"),
    (110, "ETIMEDOUT", "connection timed out", "net.firewall"),
    (111, "ECONNREFUSED", "connection refused", "net.master-unreachable"),
    (112, "EHOSTDOWN", "host is down", "net.firewall"),
    (113, "EHOSTUNREACH", "no route to host", "net.firewall"),
    (115, "EINPROGRESS", "operation now in progress", "net.firewall"),
    (116, "ESTALE", "stale file handle", "sys.clock-or-dns-or-fs"),
    (121, "EREMOTEIO", "remote i/o error", "sys.clock-or-dns-or-fs"),
    (122, "EDQUOT", "disk quota exceeded", "sys.disk-full"),
)

# signal(7) on x86 and ARM. A shell's exit code is 128 and the signal's number, Python's the number's negative.
SIGNALS = (
    (1, "SIGHUP", "launch.killed"),
    (2, "SIGINT", "launch.killed"),
    (4, "SIGILL", "sw.library-conflict"),
    (7, "SIGBUS", "sys.shm"),
    (9, "SIGKILL", "sys.host-oom"),
    (11, "SIGSEGV", "sw.library-conflict"),
    (15, "SIGTERM", "launch.killed"),
    (24, "SIGXCPU", "launch.killed"),
)

# enum ibv_wc_status of libibverbs (infiniband/verbs.h) without its prefix, and ibv_wc_status_str
COMPLETIONS = (
    (1, "LOC_LEN", "local length error", ""),
    (2, "LOC_QP_OP", "local qp operation error", "ib.gdr"),
    (4, "LOC_PROT", "local protection error", "ib.gdr"),
    (5, "WR_FLUSH", "work request flushed", ""),
    (8, "LOC_ACCESS", "local access error", "ib.gdr"),
    (9, "REM_INV_REQ", "remote invalid request", "net.mtu"),
    (10, "REM_ACCESS", "remote access error", "ib.gdr"),
    (11, "REM_OP", "remote operation error", "ib.gdr"),
    (12, "RETRY_EXC", "transport retry counter exceeded", "ib.retry-exceeded"),
    (13, "RNR_RETRY", "rnr retry counter exceeded", "ib.retry-exceeded"),
    (19, "FATAL_ERR", "fatal error", ""),
    (20, "RESP_TIMEOUT", "response timeout error", "ib.retry-exceeded"),
    (21, "GENERAL_ERR", "general error", ""),
)

# grpc_status_code (grpc/status.h), as absl::Status names it, too
_RPC = (
    (4, "deadline.exceeded", "net.master-unreachable"),
    (8, "resource.exhausted", "gpu.oom"),
    (14, "unavailable:", "net.master-unreachable"),
)

# cudaError_t (driver_types.h of CUDA 13) and CUresult (cuda.h): number, both names without their prefix, and of what
# cudaGetErrorString says of it as much as is its own
CUDA = (
    (2, "MemoryAllocation", "OUT_OF_MEMORY", "out of memory", "gpu.oom"),
    (3, "InitializationError", "NOT_INITIALIZED", "initialization error", "gpu.driver"),
    (35, "InsufficientDriver", "", "driver version is insufficient", "gpu.driver"),
    (46, "DevicesUnavailable", "DEVICE_UNAVAILABLE", "busy or unavailable", "gpu.not-visible"),
    (98, "InvalidDeviceFunction", "", "invalid device function", "gpu.driver"),
    (100, "NoDevice", "NO_DEVICE", "no CUDA-capable device", "gpu.not-visible"),
    (101, "InvalidDevice", "INVALID_DEVICE", "invalid device ordinal", "gpu.not-visible"),
    (200, "InvalidKernelImage", "INVALID_IMAGE", "device kernel image is invalid", "gpu.driver"),
    (209, "NoKernelImageForDevice", "NO_BINARY_FOR_GPU", "no kernel image is available", "gpu.driver"),
    (214, "ECCUncorrectable", "ECC_UNCORRECTABLE", "uncorrectable ECC error", "gpu.ecc"),
    (217, "PeerAccessUnsupported", "PEER_ACCESS_UNSUPPORTED", "peer access is not supported", "gpu.p2p"),
    (218, "InvalidPtx", "INVALID_PTX", "PTX JIT compilation failed", "gpu.driver"),
    (220, "NvlinkUncorrectable", "NVLINK_UNCORRECTABLE", "uncorrectable NVLink error", "gpu.nvlink"),
    (222, "UnsupportedPtxVersion", "UNSUPPORTED_PTX_VERSION", "unsupported toolchain", "gpu.driver"),
    (700, "IllegalAddress", "ILLEGAL_ADDRESS", "illegal memory access", "gpu.illegal-access"),
    (702, "LaunchTimeout", "LAUNCH_TIMEOUT", "launch timed out and was terminated", "gpu.illegal-access"),
    (710, "Assert", "ASSERT", "device-side assert", "gpu.illegal-access"),
    (714, "HardwareStackError", "HARDWARE_STACK_ERROR", "hardware stack error", "gpu.illegal-access"),
    (715, "IllegalInstruction", "ILLEGAL_INSTRUCTION", "illegal instruction was encountered", "gpu.illegal-access"),
    (716, "MisalignedAddress", "MISALIGNED_ADDRESS", "misaligned address", "gpu.illegal-access"),
    (
        717,
        "InvalidAddressSpace",
        "INVALID_ADDRESS_SPACE",
        "not supported on global/shared address space",
        "gpu.illegal-access",
    ),
    (718, "InvalidPc", "INVALID_PC", "invalid program counter", "gpu.illegal-access"),
    (719, "LaunchFailure", "LAUNCH_FAILED", "unspecified launch failure", "gpu.illegal-access"),
    (800, "NotPermitted", "NOT_PERMITTED", "", "gpu.imex"),
    (801, "NotSupported", "NOT_SUPPORTED", "", "gpu.driver"),
    (802, "SystemNotReady", "SYSTEM_NOT_READY", "system not yet initialized", "gpu.fabric-manager"),
    (803, "SystemDriverMismatch", "SYSTEM_DRIVER_MISMATCH", "unsupported display driver", "gpu.driver"),
    (804, "CompatNotSupportedOnDevice", "COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility", "gpu.driver"),
)

# What has no number and no name, by cause; it is asked in this order.
_WORDS: dict[str, tuple[str, ...]] = {
    "net.peer-lost": (
        r"commclosed",
        r"\b(?:peer|connection|socket|endpoint|stream|transport) (?:is |was |has been )?(?:clos(?:ed|ing)|aborted|lost)",
        r"closed by (?:remote )?peer",
        r"connection abort",
        r"lost (?:connection|communication)",
        r"remote process",
    ),
    "net.master-unreachable": (
        r"connect\(\) timed out",
        r"(?:failed|unable|cannot|could not) to (?:connect|contact|reach)",
        r"cannot connect",
        r"could not connect",
        r"connect(?:ion)? (?:attempts? )?fail",
        r"\bconnect(?:ing|ion)? (?:to .{0,60})?failed",
        r"not yet listening",
        r"send heartbeat to",
        r"publickey",
    ),
    "net.firewall": (
        r"no route",
        r"(?<!allow_)unreachable(?! in file)",  # an argument of torch's backward, in every traceback through it
        r"unable to reach",
        r"connectivity",
        r"\btimed out\b.{0,40}connect",
    ),
    "sys.host-oom": (
        r"low on .{0,12}memory",
        r"memory (?:usage )?limit",
        r"memlimit",
        r"memory pressure",
        r"memory allocation",
        r"outofmemory",
        r"\(killed\)",
    ),
    "launch.killed": (r"wall-?clock", r"limit.{0,20}exceeded"),
    "sys.nofile": (r"too many open", r"ancdata"),
    "sys.threads": (),
    "sys.disk-full": (r"write failed",),
    "sys.clock-or-dns-or-fs": (r"\bstale\b", r"credential", r"munge", r"\bskew"),
    "gpu.illegal-access": (
        r"mmu fault",
        r"access fault",
        r"graphics exception",
        r"assertion [`'\"].{0,40}(?:index|class|dim)",
        r"device pointer",
        r"resource handle",
    ),
    "gpu.driver": (r"cuda (?:error|failure)", r"\bcu(?:blas|dnn)_status", r"\bgpu hang", r"display driver"),
    "sys.node-failure": (r"not responding", r"node has died", r"node .{0,40}died", r"prolog"),
    "app.straggler-timeout": (r"watchdog", r"waiting for .{0,40}ranks", r"timed out after \d+ ?m?s"),
    "launch.world-size": (
        r"insufficient",
        r"not enough",
        r"unschedul",
        r"placement group",
        r"\bslots?\b",
        r"node configuration",
        r"gang",
        r"podgroup",
        r"resource request",
        r"capacity",
        r"barrier timed out",
        r"(?:tasks?|workers?|ranks?) to (?:start|join|register)",
        r"same rank",
        r"registration failed",
        r"gpus per node",
    ),
    "gpu.not-visible": (r"\bgres\b", r"runtime for \W?nvidia", r"\bcdi\b", r"/dev/nvidia"),
    "launch.env-missing": (r"argument --\w*rank",),
    "sw.nccl-bug": (r"\bfree\(\)", r"malloc\(", r"double free", r"internal error"),
    "sys.container": (r"not permitted", r"insufficient permission", r"read-only"),
}


def words() -> dict[str, str]:
    """Cause id -> a regular expression, without regard to case, of what a line with such a failure holds."""
    found = {cause: list(said) for cause, said in _WORDS.items()}
    for cause, said in _patterns().items():
        found.setdefault(cause, []).extend(said)
    return {cause: "|".join(said) for cause, said in found.items()}


_Row = tuple[Any, ...]
# How a process's end is told before its number
_ENDED = (
    r"\b(?:exit(?:ed|code|status| ?value)?|(?:exited|terminated) with|return(?:ed)?code|code|status)\W{0,3}(?:is |of )?"
)


def _patterns() -> dict[str, list[str]]:
    """Cause id -> regular expressions, without regard to case, of which one is in a line with a row of a table."""
    found: dict[str, list[str]] = {}

    def add(cause: str, *said: str) -> None:
        found.setdefault(cause, []).extend(filter(None, said))

    # -9 may be a process's end, -110 is none
    minus = {number for number, *_ in ERRNO} - {number for number, *_ in SIGNALS}
    for cause, rows in _by_cause(ERRNO):
        add(cause, rf"\b(?:{_either(row[1] for row in rows)})\b", *(row[2] for row in rows))
        add(cause, rf"\b(?:errno|system error)\W{{1,3}}(?:{_either(row[0] for row in rows)})\b")
        if returned := [row[0] for row in rows if row[0] in minus]:
            add(cause, rf"\b(?:err|error|ret|rc|status|failed|returned)\W{{0,3}}-(?:{_either(returned)})\b")
    for cause, rows in _by_cause(SIGNALS):
        numbers = _either(row[0] for row in rows)
        add(cause, rf"\b(?:{_either(row[1] for row in rows)})\b")
        add(
            cause, rf"\b(?:signals?|wtermsig)\W{{0,3}}-?(?:{numbers})\b", rf"\breceived (?:{numbers}) (?:death )?signal"
        )
        add(cause, rf"{_ENDED}(?:-(?:{numbers})|{_either(row[0] + 128 for row in rows)})\b")
        add(cause, rf"exit_?code\W{{0,2}}\d{{1,3}}:(?:{numbers})\b")  # Slurm's, of code and signal
    for cause, rows in _by_cause(COMPLETIONS):
        numbers = _either(one for row in rows for one in (row[0], hex(row[0])))
        add(cause, rf"(?:{_either(row[1] for row in rows)})(?:_|\b)", *(row[2] for row in rows))
        add(cause, rf"(?:completion|work item|wr_id).{{0,60}}\bstatus\W{{0,3}}(?:{numbers})\b")
        add(cause, rf"\bstatus\W{{0,3}}(?:{numbers})\b.{{0,20}}(?:opcode|wr_id|vendor|syndrom)")
    for cause, rows in _by_cause(_RPC):
        add(cause, *(row[1] for row in rows), rf"grpc_status\W{{1,3}}(?:{_either(row[0] for row in rows)})\b")
    for cause, rows in _by_cause(CUDA):
        add(cause, rf"\b(?:cuda|hip)Error(?:{_either(row[1] for row in rows)})\b", *(row[3] for row in rows))
        add(cause, rf"\bCUDA_ERROR_(?:{_either(row[2] for row in rows if row[2])})\b")
        add(
            cause,
            rf"\bcu\w*.{{0,80}}?\b(?:err|error|code|failed|result|returned)\W{{1,3}}(?:{_either(row[0] for row in rows)})\b",
        )
    found.pop("", None)
    return found


def _by_cause(table: Iterable[_Row]) -> list[tuple[str, list[_Row]]]:
    """The rows of a table by the cause that they end with."""
    grouped: dict[str, list[_Row]] = {}
    for row in table:
        grouped.setdefault(row[-1], []).append(row)
    return list(grouped.items())


def _either(words: Iterable[object]) -> str:
    return "|".join(map(str, words))
