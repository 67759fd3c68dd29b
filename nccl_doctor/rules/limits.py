"""Resource limits of a login and of its cgroup: locked memory, open files, threads; and hosts whose limits are lower."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.system import UNLIMITED, Limit, System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules import drift
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, fleet_rule, host_rule
from nccl_doctor.rules.infiniband_view import needs_no_rdma
from nccl_doctor.rules.system import limits_of_cgroup
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import size


@host_rule("system", "ib.memlock")
def locked_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """The limit on locked memory (``ulimit -l``) lets RDMA register its buffers.

    Registering memory with an RDMA device pins it. With a small limit ibv_reg_mr or ibv_create_cq fails with "Cannot
    allocate memory". A login with CAP_IPC_LOCK is not bound by it: root, and containers that are given it; on a host, other
    users are. Without an RDMA device the limit does not matter to NCCL: a small one is told, not blamed.
    """
    system = host.need(System)
    limit = _limit(system, "memlock")
    rdma = system.rdma_devices
    if limit.soft == UNLIMITED or (limit.soft > value("memlock.plain") and not rdma):
        return
    if rdma and limit.soft >= value("memlock.rdma"):
        return
    free = system.container.locks_freely
    shown = f"Locked memory is limited to {_show(limit.soft)}"
    if not rdma:
        severity, title = Severity.INFO, f"{shown}; harmless without an RDMA device, and none is here"
    elif needs_no_rdma(host):
        severity, title = Severity.INFO, f"{shown}; harmless as long as this container has no RDMA device file"
    elif free:
        severity = Severity.INFO if system.container.hints else Severity.WARN
        title = f"{shown}; this login is not bound by it (CAP_IPC_LOCK), other users are"
    else:
        severity, title = Severity.FAIL, f"{shown}: RDMA ({few(rdma)}) cannot register its buffers"
    capability = f", CapEff {system.container.capabilities}" if rdma and free else ""
    yield host.finding(
        "ib.memlock",
        severity,
        title,
        (f"RLIMIT_MEMLOCK soft {_show(limit.soft)}, hard {_show(limit.hard)}{capability}", "ulimit -l"),
        *memlock_fixes(limit.hard == UNLIMITED),
        explains=("collectives",) if severity is Severity.FAIL else (),
    )


def memlock_fixes(free: bool) -> list[Fix]:
    """How to raise the limit on locked memory; ``free``: the hard limit is none."""
    own = Fix("in the job's shell: the hard limit allows it", "ulimit -l unlimited")
    service = "Slurm: LimitMEMLOCK=infinity in slurmd's unit; containers: --ulimit memlock=-1, or --cap-add IPC_LOCK"
    return [*([own] if free else []), _raised("memlock", "unlimited", "rdma"), Fix(service)]


def _raised(limit: str, amount: str, file: str) -> Fix:
    lines = f"* soft {limit} {amount}\\n* hard {limit} {amount}\\n"
    command = f"printf '{lines}' | sudo tee /etc/security/limits.d/99-{file}.conf"
    return Fix("raise the limit for logins, and log in again", command)


_COMPARED_LIMITS = {
    "memlock": "locked memory",
    "nofile": "open files",
    "nproc": "processes",
    "as": "address space",  # CUDA reserves more than there is memory
    "fsize": "file size",  # a checkpoint is cut off, and its writer killed by SIGXFSZ
}


@fleet_rule("system", "sys.limits-differ")
def limits_differ(fleet: Fleet) -> Iterator[Finding]:
    """Logins have the same resource limits on all hosts.

    Nodes of one cluster are set up alike. One node whose limits on locked memory, open files, processes,
    address space or file size are lower than everywhere else has missed a configuration step, and a job fails there only.
    """
    every = fleet.every(System)
    for name, label in _COMPARED_LIMITS.items():
        known = {host: system.limits[name].soft for host, system in every.items() if name in system.limits}
        if untold := set(every) - set(known):
            fleet.lack(f"limit on {label}", "not collected", *untold)
        row = drift.row(label, {host: _show(soft, name) for host, soft in known.items()})
        if not row.odd:
            continue
        usual = known[row.values[0][1][0]]
        lower = tuple(
            host
            for host in row.odd
            if known[host] != UNLIMITED
            and (usual == UNLIMITED or known[host] * 4 < usual)
            and not _has_own_finding(name, known[host], every[host])
        )
        if lower:
            yield finding(
                "sys.limits-differ",
                Severity.WARN,
                f"The limit on {label} is {_show(known[lower[0]], name)} here and {row.majority} on the other hosts",
                tuple(
                    Evidence(f"RLIMIT_{name.upper()} soft {_show(known[host], name)}", "ulimit", host=host)
                    for host in (*lower, row.values[0][1][0])
                ),
                hosts=lower,
                fixes=(
                    Fix(
                        "compare with a good host",
                        "cat /etc/security/limits.d/*.conf; systemctl show -p DefaultLimitMEMLOCK,DefaultLimitNOFILE",
                        lower[0],
                    ),
                ),
            )


def _has_own_finding(name: str, soft: int, system: System) -> bool:
    """Whether a rule of its own already names this limit on this host."""
    if name == "nofile":
        return soft < value("nofile.warn")
    return name == "memlock" and bool(system.rdma_devices) and soft < value("memlock.rdma")


def _limit(system: System, name: str) -> Limit:
    if name not in system.limits:
        raise MissingFact(f"limit {name}", "not collected")
    return system.limits[name]


def _show(count: int, name: str = "memlock") -> str:
    if count == UNLIMITED:
        return "unlimited"
    return str(count) if name in ("nofile", "nproc") else size(count)


@host_rule("system", "sys.nofile")
def open_files(host: Host, plan: Plan) -> Iterator[Finding]:
    """The limit on open files (``ulimit -n``) is high enough for sockets, shared memory and DataLoader workers."""
    limit = _limit(host.need(System), "nofile")
    if limit.soft == UNLIMITED or limit.soft >= value("nofile.warn"):
        return
    yield host.finding(
        "sys.nofile",
        Severity.FAIL if limit.soft < value("nofile.fail") else Severity.WARN,
        f"Only {limit.soft} files may be open: every connection, shared tensor and worker takes some",
        (f"RLIMIT_NOFILE soft {limit.soft}, hard {_show(limit.hard, 'nofile')}", "ulimit -n"),
        *_more(limit, "nofile", "n"),
    )


_ENOUGH = 65536  # open files, or processes


def _more(limit: Limit, name: str, letter: str) -> tuple[Fix, ...]:
    """How to raise a limit: up to the hard one, if that is enough, anybody may."""
    if limit.hard == UNLIMITED or limit.hard >= value(f"{name}.warn"):
        own = _ENOUGH if limit.hard == UNLIMITED else limit.hard
        return (Fix("in the job's shell: the hard limit allows it", f"ulimit -{letter} {own}"),)
    word = f"{name}={_ENOUGH}"
    return (
        _raised(name, str(_ENOUGH), name),
        Fix(f"Slurm, systemd: Limit{word.upper()} in the unit; containers: --ulimit {word}"),
    )


@host_rule("system", "sys.threads.pids-limit", "sys.threads.nproc")
def threads(host: Host, plan: Plan) -> Iterator[Finding]:
    """There is room for the threads and processes of a job (cgroup ``pids.max``, ``ulimit -u``).

    NCCL, torch, CUDA and DataLoader workers start hundreds of threads a rank; at the limit pthread_create fails with
    "Resource temporarily unavailable".
    """
    system = host.need(System)
    group = system.cgroup
    if group.pids_limit is not None and group.pids_used is not None:
        room = group.pids_limit - group.pids_used
        if room < value("pids.free.warn"):
            yield host.finding(
                "sys.threads.pids-limit",
                Severity.FAIL if room < value("pids.free.fail") else Severity.WARN,
                f"The cgroup has room for only {room} more threads",
                (f"pids.max {group.pids_limit}, pids.current {group.pids_used}", group.pids_group),
                Fix("raise it: --pids-limit -1 (Docker, Podman), TasksMax= (systemd), podPidsLimit (kubelet)"),
                explains=("collectives",),
            )
    limit = _limit(system, "nproc")
    if system.user != 0 and limit.soft != UNLIMITED and limit.soft < value("nproc.warn"):
        yield host.finding(
            "sys.threads.nproc",
            Severity.WARN,
            f"This user may run only {limit.soft} threads",
            (f"RLIMIT_NPROC soft {limit.soft}, hard {_show(limit.hard, 'nproc')}", "ulimit -u"),
            *_more(limit, "nproc", "u"),
        )
    if limits_of_cgroup(system).pids_limit is not None and group.pids_used is None:
        raise MissingFact("pids.current", f"not readable in {group.pids_group}")
