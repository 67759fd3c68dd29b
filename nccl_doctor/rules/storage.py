"""Where a job writes: /dev/shm, temporary and cache directories, home; full, read-only, noexec, or hung."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.system import Filesystem, SharedMemory, System
from nccl_doctor.findings.model import Finding, Fix, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, host_rule
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import size

_COLLECTIVES = ("collectives",)  # what a fault of the host explains


@host_rule("system", "sys.shm.missing", "sys.shm.read-only", "sys.shm.too-small", "sys.shm.full")
def shared_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """/dev/shm is there, writable, large enough, and not full.

    NCCL's shared-memory transport and DataLoader workers put their buffers into /dev/shm. A container without
    ``--shm-size`` has 64 MiB of it: the job dies with a bus error or "Error while creating shared memory segment".
    """
    system = host.need(System)
    shm = system.shm
    useless = "NCCL's shared-memory transport and DataLoader workers cannot work"
    if not shm.present:
        title, proof = f"There is no /dev/shm: {useless}", ("/dev/shm: no such directory", "/dev/shm")
        yield host.finding("sys.shm.missing", Severity.FAIL, title, proof, _more_shm(system), explains=_COLLECTIVES)
        return
    proof = (f"/dev/shm: {size(shm.size_bytes)} in all, {size(shm.free_bytes)} free", "statvfs /dev/shm")
    if shm.read_only:
        yield host.finding(
            "sys.shm.read-only",
            Severity.FAIL,
            f"/dev/shm is read-only: {useless}",
            ("/dev/shm is mounted ro", "/proc/self/mountinfo"),
            Fix("make it writable until the next boot", "sudo mount -o remount,rw /dev/shm"),
            explains=_COLLECTIVES,
        )
    elif shm.size_bytes < value("shm.warn"):
        yield host.finding(
            "sys.shm.too-small",
            Severity.FAIL if shm.size_bytes <= value("shm.fail") else Severity.WARN,
            f"/dev/shm has only {size(shm.size_bytes)}: a job with several GPUs or DataLoader workers here dies of it",
            proof,
            _more_shm(system),
            explains=_COLLECTIVES,
        )
    elif shm.free_bytes < value("shm.free"):
        yield _shm_full(host, shm, proof)
    elif shm.read_only is None:
        raise MissingFact("mount options of /dev/shm", "its mount is not known")


def _shm_full(host: Host, shm: SharedMemory, proof: tuple[str, str]) -> Finding:
    held = [
        (f"{group['files']} files {prefix}*, {size(group['bytes'])}", "ls /dev/shm")
        for prefix, group in sorted(shm.leftovers.items())
    ]
    return host.finding(
        "sys.shm.full",
        Severity.FAIL,
        f"/dev/shm is full: {size(shm.free_bytes)} free of {size(shm.size_bytes)}",
        [proof, *held],
        Fix("see who still uses the files", "sudo fuser -v /dev/shm/* 2>&1 | head"),
        Fix("remove what a dead job left, once nobody uses it", "rm -f /dev/shm/nccl-* /dev/shm/torch_*", risky=True),
        explains=_COLLECTIVES,
    )


def _more_shm(system: System) -> Fix:
    if system.container.hints:
        return Fix(
            "start the container with --ipc=host or --shm-size=16g (Kubernetes: an emptyDir with medium: Memory)"
        )
    if not system.shm.present:
        command = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o size=50%,mode=1777,nosuid,nodev tmpfs /dev/shm"
        return Fix("mount one until the next boot", command)
    return Fix("make it larger until the next boot", "sudo mount -o remount,size=50% /dev/shm")


_WRITTEN = ("/tmp", "TMPDIR")
_EXECUTED = ("/tmp", "TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")


@host_rule("system", "sys.noexec")
def executable_caches(host: Host, plan: Plan) -> Iterator[Finding]:
    """What torch.compile, Triton and torch's C++ extensions build lies where it may be executed.

    They write libraries into /tmp (TMPDIR) or a cache directory and load them; on a file system mounted noexec that
    ends in "failed to map segment from shared object".
    """
    caches = _one_per_mount(tuple(item for item in host.need(System).filesystems if item.role in _EXECUTED))
    for entry in caches:
        if entry.noexec:
            yield host.finding(
                "sys.noexec",
                Severity.WARN,
                f"{entry.path} is mounted noexec: torch.compile, Triton and C++ extensions that are built there cannot be loaded",
                (f"{entry.mount} ({entry.type} {entry.source}) has noexec", "/proc/self/mountinfo"),
                Fix("allow it until the next boot", f"sudo mount -o remount,exec {shell_word(entry.mount)}"),
                Fix(
                    "or build elsewhere: TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR and TMPDIR in a directory that allows it"
                ),
            )
    for entry in caches:
        if entry.noexec is None:
            raise MissingFact(f"mount options of {entry.path}", "its mount is not known")


@host_rule("system", "sys.disk-full", "sys.disk-full.inodes", "sys.disk-full.low", "sys.disk-full.read-only")
def disks(host: Host, plan: Plan) -> Iterator[Finding]:
    """The places a job writes to (/tmp, home, caches) have free space and inodes, and can be written."""
    entries = host.need(System).filesystems
    for entry in _one_per_mount(entries):
        yield from _disk(host, entry, _paths(entries, entry))
    unknown = [entry for entry in entries if entry.outcome not in ("ok", "timed-out")]
    if unknown:
        raise MissingFact(f"free space of {unknown[0].path}", f"{unknown[0].outcome}: {unknown[0].detail}")
    for entry in entries:
        if entry.role in _WRITTEN and entry.read_only is None:
            raise MissingFact(f"mount options of {entry.path}", "its mount is not known")


def _one_per_mount(entries: tuple[Filesystem, ...]) -> list[Filesystem]:
    found: dict[tuple[str, int, int], Filesystem] = {}
    for entry in entries:
        if entry.outcome == "ok":
            found.setdefault((entry.mount, entry.size_bytes, entry.free_bytes), entry)
    return list(found.values())


def _paths(entries: tuple[Filesystem, ...], one: Filesystem) -> str:
    same = [entry for entry in entries if entry.outcome == "ok" and entry.mount == one.mount]
    return ", ".join(dict.fromkeys(entry.path for entry in same))


def _disk(host: Host, entry: Filesystem, paths: str) -> Iterator[Finding]:
    kind = " ".join(dict.fromkeys((entry.type, entry.source)))  # a tmpfs is its own source
    where = f"{entry.mount} ({kind})" if entry.mount else entry.looked_at
    free, place = size(entry.free_bytes), shell_word(entry.looked_at)
    holds = f" ({paths})" if paths != entry.mount else ""
    proof = (
        f"{where}: {free} free of {size(entry.size_bytes)}, {entry.inodes_free} of {entry.inodes} inodes free{holds}",
        f"stat -f {entry.looked_at}",
    )
    look = Fix("see what fills it", f"sudo du -xsh {place}/* 2>/dev/null | sort -h | tail")
    if entry.read_only:
        # An image (squashfs) is full by nature, and nobody writes to a read-only home by mistake.
        if entry.role in _WRITTEN:
            yield host.finding(
                "sys.disk-full.read-only",
                Severity.FAIL,
                f"{entry.path} is read-only",
                proof,
                Fix("see whether a disk error caused it", "sudo dmesg | grep -iE 'remount|I/O error'"),
                Fix("if not, make it writable", f"sudo mount -o remount,rw {shell_word(entry.mount or entry.path)}"),
            )
    elif entry.free_bytes < value("disk.free.fail"):
        title = f"{where} is full: {free} free{holds}"
        yield host.finding("sys.disk-full", Severity.FAIL, title, proof, look)
    elif entry.inodes and entry.inodes_free < value("disk.inodes.fail"):
        title = f"{where} has no inodes left: {entry.inodes_free} free{holds}"
        fix = Fix("see where they are", f"sudo du --inodes -xs {place}/* | sort -n | tail")
        yield host.finding("sys.disk-full.inodes", Severity.FAIL, title, proof, fix)
    elif entry.free_bytes < min(value("disk.free.warn"), entry.size_bytes / 2):
        title = f"{where} is nearly full: {free} free{holds}"
        yield host.finding("sys.disk-full.low", Severity.WARN, title, proof, look)


@host_rule("system", "sys.clock-or-dns-or-fs.hung-mount")
def hung_mounts(host: Host, plan: Plan) -> Iterator[Finding]:
    """No file system that the job uses hangs (a dead NFS server): a process that touches one cannot even be killed."""
    for entry in host.need(System).filesystems:
        if entry.outcome != "timed-out":
            continue
        where = f"{entry.mount} ({entry.type} from {entry.source})" if entry.mount else entry.path
        server = shell_word(entry.source.split(":/")[0].strip("[]"))
        asked = f"stat -f {entry.path}"
        yield host.finding(
            "sys.clock-or-dns-or-fs.hung-mount",
            Severity.FAIL,
            f"{where} hangs: asked for its free space, it did not answer",
            (f"{asked}: {entry.detail or 'no answer within 3 s'}", asked),
            Fix("see which processes are stuck on it", "ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'"),
            Fix("does the server answer?", f"timeout 5 rpcinfo -t {server} nfs")
            if entry.type.startswith("nfs") and ":" in entry.source
            else Fix("is it mounted as intended?", "cat /proc/mounts"),
            explains=_COLLECTIVES,
        )
