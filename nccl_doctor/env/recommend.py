"""The smallest set of variables these hosts need, each line with the fact that calls for it, and what was left alone.

Pure: :class:`HostNeeds` in, :class:`Advice` out. NCCL's defaults are right on most clusters, so on most clusters the
answer is "none".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from nccl_doctor.env import knowledge, lint, versions
from nccl_doctor.env import recommend_fabric as fabric
from nccl_doctor.env import recommend_interfaces as network
from nccl_doctor.env.assignments import Assignment
from nccl_doctor.env.interface_advice import IFNAME, Attempt
from nccl_doctor.env.recommend_hang import hang
from nccl_doctor.env.recommend_model import Advice, Draft, HostNeeds, Line, Purpose, some
from nccl_doctor.findings.model import EnvAdvice, Severity
from nccl_doctor.findings.playbooks import EnvEntry

# A smaller /dev/shm is what Docker gives by default (64 MiB); NCCL and data loaders fill it.
SMALL_SHM_BYTES = 1 << 30


def recommend(hosts: Sequence[HostNeeds], attempts: Sequence[Attempt] = (), purpose: Purpose = Purpose.RUN) -> Advice:
    """The smallest set for these hosts. ``attempts``: the connections that were tried between them."""
    draft = Draft()
    taken = network.interfaces(hosts, attempts, draft)
    network.gloo(hosts, taken, draft)
    fabric.adapters(hosts, draft)
    fabric.gids(hosts, draft)
    fabric.plugins(hosts, draft)
    _containers(hosts, draft)
    _removals(hosts, draft)
    if purpose is Purpose.HANG:
        hang(hosts, draft)
    _always_left(draft)
    releases = ", ".join(sorted({host.nccl_version for host in hosts} - {""}))
    releases = releases or f"{knowledge.NEWEST_NCCL} (none found: the newest known)"
    torch = ", ".join(sorted({host.torch_version for host in hosts} - {""})) or "none found"
    return Advice(
        tuple(sorted(host.host for host in hosts)),
        purpose,
        tuple(draft.lines),
        tuple(draft.left),
        tuple(draft.notes),
        tuple(draft.unknown),
        f"NCCL {releases}; PyTorch {torch}",
    )


def _taken_away(
    items: Sequence[Assignment], nccl_version: str, torch_version: str, devices: lint.Devices | None = None
) -> Iterator[tuple[Assignment, str]]:
    """(what lint would take away, why): debugging settings left over, pins, dead names, lists that match nothing."""
    known = {"": devices} if devices else None
    for made in lint.remarks(items, nccl_version, torch_version, known):
        if made.edit is not None and made.edit.removes and made.finding.severity is not Severity.INFO:
            yield made.assignment, made.finding.env[0].reason if made.finding.env else made.finding.title


def removals(
    items: Sequence[Assignment], nccl_version: str = "", torch_version: str = "", failed: Collection[str] = ()
) -> tuple[EnvAdvice, ...]:
    """The variables to take away of those that are set, each once. ``failed``: lists of interfaces seen to be wrong."""
    why: dict[str, str] = {}
    for item, reason in _taken_away(items, nccl_version, torch_version):
        why.setdefault(item.name, reason)
    for name in failed:
        why.setdefault(name, "it leads to the wrong interface; `env recommend` says what the hosts need")
    return tuple(EnvAdvice(name, "", reason, unset=True) for name, reason in why.items())


def workarounds(entries: Iterable[EnvEntry], nccl_version: str, set_here: Mapping[str, str]) -> tuple[EnvAdvice, ...]:
    """Of the variables a playbook names, those that would change something: read and not the default at this release,
    not set already, and with a value (IFACE stands for a name that only the hosts can tell: :func:`recommend`).
    """
    version = versions.parse(nccl_version) if nccl_version else None
    kept = []
    for entry in entries:
        answer = knowledge.lookup(entry.name, nccl_version)
        if (
            "IFACE" not in entry.value
            and versions.in_range(entry.versions, version)
            and set_here.get(entry.name) != entry.value
            and answer.status is knowledge.Status.CURRENT
            and (not nccl_version or answer.default != entry.value)
        ):
            kept.append(EnvAdvice(entry.name, entry.value, entry.when, entry.versions))
    return tuple(kept)


def _removals(hosts: Sequence[HostNeeds], draft: Draft) -> None:
    """What is set on the hosts and better were not."""
    decided = {line.advice.name for line in draft.lines} | {IFNAME}
    judged: dict[object, list[tuple[Assignment, str]]] = {}
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for host in hosts:
        items = tuple(item for _, layer in host.layers for item in layer)
        if not items:
            continue
        key = items, host.devices, host.nccl_version, host.torch_version
        if key not in judged:  # on most clusters all hosts are set alike
            judged[key] = list(_taken_away(items, host.nccl_version, host.torch_version, host.devices))
        for wrong, reason in judged[key]:
            if wrong.name not in decided:
                where = f"{wrong.file}:{wrong.line}" if wrong.line else ""
                found.setdefault((wrong.name, wrong.value or "", where, reason), []).append(host.host)
    lines: dict[str, Line] = {}
    for (name, value, where, reason), names in sorted(found.items()):
        if where:
            draft.note(f"remove {where}: {name}={value} on {some(names)}: {reason}")
        elif name not in lines:
            own = tuple(names) if len(names) < len(hosts) else ()
            advice = EnvAdvice(name, "", reason, unset=True, hosts=own)
            lines[name] = Line(advice, 0.9, f"{name}={value} is set on {some(names)}")
        else:
            before = lines[name].advice
            own = tuple(sorted({*before.hosts, *names})) if before.hosts else ()
            lines[name] = msgspec.structs.replace(lines[name], advice=msgspec.structs.replace(before, hosts=own))
    draft.lines += lines.values()


def _containers(hosts: Sequence[HostNeeds], draft: Draft) -> None:
    """Shared memory and locked memory are no variables: say what to do instead."""
    small = [host for host in hosts if host.shm_bytes is not None and 0 < host.shm_bytes < SMALL_SHM_BYTES]
    if small:
        draft.note(
            f"/dev/shm is only {(small[0].shm_bytes or 0) / 2**20:.0f} MiB on {some(h.host for h in small)}; "
            "NCCL_SHM_DISABLE=1 would hide that and cost bandwidth. Enlarge it",
            "docker run --shm-size=16g ...   # Kubernetes: an emptyDir of medium Memory mounted at /dev/shm"
            if any(host.container for host in small)
            else "sudo mount -o remount,size=16G /dev/shm",
        )
    locked = {
        host.host: host.memlock_bytes
        for host in hosts
        if host.memlock_bytes is not None and any(port.active for port in host.ports or ())
    }
    if locked:
        draft.note(
            f"locked memory is limited to {next(iter(locked.values())) / 1024:.0f} KiB on "
            f"{some(locked)}: registering buffers with the HCA fails; no variable helps",
            "docker run --ulimit memlock=-1 ...   # host: memlock unlimited in limits.conf; LimitMEMLOCK=infinity",
        )


def _always_left(draft: Draft) -> None:
    """What cheat sheets set and this tool does not, unless a fact called for it above."""
    said = {line.advice.name for line in draft.lines} | {left.name for left in draft.left}
    for names, why in (
        (
            "NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_BUFFSIZE, NCCL_*_NCHANNELS",
            "NCCL tunes these itself; no fact speaks against it",
        ),
        ("NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL", "NCCL knows the distances; no fact speaks against its limits"),
        (
            "NCCL_TIMEOUT, TORCH_DISTRIBUTED_TIMEOUT",
            "nobody reads them; the time-out is an argument of init_process_group",
        ),
        ("NCCL_ASYNC_ERROR_HANDLING", "on by default, and torchrun sets the new name"),
    ):
        if not any(name in said for name in names.split(", ")):
            draft.leave(names, why)
