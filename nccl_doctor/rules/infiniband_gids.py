"""GID tables of RoCE ports: does NCCL find a routable RoCE v2 GID on every rail?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.env import gid as gids
from nccl_doctor.env import number
from nccl_doctor.env.nccl_conf import Setting, effective
from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.infiniband import Port
from nccl_doctor.facts.infiniband_witness import SYSFS
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import EnvAdvice, Finding, Fix, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, host_rule
from nccl_doctor.rules.infiniband_view import place, roce_rails, sysfs
from nccl_doctor.rules.interface_view import nccl_version, quote
from nccl_doctor.rules.rails import Rail


def entries(port: Port) -> list[gids.GidEntry]:
    """The port's GID table as NCCL sees it."""
    return [gids.GidEntry(entry.index, entry.gid, gids.roce_version(entry.type)) for entry in port.gids]


@host_rule("infiniband", "ib.gid-index.no-roce-v2", "ib.gid-index.link-local", "ib.gid-index.wrong", "ib.gid-index.set")
def gid_tables(host: Host, plan: Plan) -> Iterator[Finding]:
    """On RoCE, NCCL finds a routable RoCE v2 GID on every rail.

    The index is the one NCCL's own walk over the table ends on (2.21.5 and later). A NCCL_IB_GID_INDEX of the job is
    judged entry by entry: an empty or v1 entry fails, and the right index often differs from port to port. Where a job
    narrows the walk by NCCL_IB_ADDR_RANGE or NCCL_IB_ROCE_VERSION_NUM, what NCCL finds is unknown.
    """
    ports = roce_rails(host, plan)
    version, _ = nccl_version(host, plan)
    settings = _in_force(host, plan)
    given = settings.get("NCCL_IB_GID_INDEX")
    index = number.as_read(given.value) if given and number.has_digits(given.value) else -1
    for name, usual in (("NCCL_IB_ADDR_RANGE", ""), ("NCCL_IB_ROCE_VERSION_NUM", "2")):
        if index < 0 and (narrowed := settings.get(name)) and narrowed.value not in ("", usual):
            raise MissingFact("GID that NCCL takes", f"{name}={narrowed.value} narrows its search")
    family = settings.get("NCCL_IB_ADDR_FAMILY")
    ipv6 = family is not None and family.value == "AF_INET6"
    untold: MissingFact | None = None
    for rail in ports:
        by_index = {entry.index: entry for entry in entries(rail.port)}
        if not by_index and rail.device.source != SYSFS:
            untold = MissingFact("GID table", f"{rail.label}: sysfs shows no RDMA device, and show_gids does not tell")
        elif any(entry.version is None for entry in by_index.values()):
            untold = MissingFact("RoCE version of the GIDs", f"{rail.label}: gid_attrs/types is not readable")
        else:
            table = by_index.values()
            chosen = gids.choose(table, ethernet=True, gid_index=index, nccl_version=version, ipv6=ipv6)
            automatic = gids.choose(table, ethernet=True, ipv6=ipv6)
            yield from _judge_gid(host, rail, by_index, chosen, automatic, given if index >= 0 else None)
    if untold:
        raise untold


def _in_force(host: Host, plan: Plan) -> dict[str, Setting]:
    """What a job on this host would see: the job's own settings, the host's environment, nccl.conf."""
    environment, network = host.want(Environment), host.want(Interfaces)
    variables = environment.variables if environment else {}
    files = network.conf_files if network else ()
    return effective(variables, files, nccl_version(host, plan)[0], plan.env)


def _judge_gid(
    host: Host, rail: Rail, table: dict[int, gids.GidEntry], chosen: int, automatic: int, given: Setting | None
) -> Iterator[Finding]:
    """``automatic`` is the index of a current NCCL's own choice; ``given``: the index that is set, None: NCCL chooses."""
    best = table.get(automatic)
    usable = best is not None and best.version == 2 and best.is_valid
    quoted = [
        sysfs(host, rail, f"GID {entry.index}: {entry.gid} RoCE v{entry.version}", "gids") for entry in table.values()
    ][:6] or [sysfs(host, rail, "GID table is empty", "gids")]
    entry = table.get(chosen)
    name = rail.device.name
    if given and (entry is None or entry.version != 2):
        remove = EnvAdvice("NCCL_IB_GID_INDEX", "", f"NCCL finds index {automatic} by itself", ">=2.21.5", unset=True)
        yield host.finding(
            "ib.gid-index.wrong",
            Severity.FAIL,
            f"NCCL_IB_GID_INDEX={chosen} is "
            + ("an empty entry" if entry is None else "a RoCE v1 entry")
            + f" on {rail.label}; NCCL itself would choose {automatic}",
            [quote(given, host.name), *quoted],
            *([Fix(f"remove line {given.line} of {given.source}")] if given.line else []),
            places=[place(host, rail)],
            env=[] if given.line else [remove],
            explains=("collectives",),
        )
    elif not any(item.version == 2 for item in table.values()):
        yield host.finding(
            "ib.gid-index.no-roce-v2",
            Severity.FAIL,
            f"rail {rail.label} has no RoCE v2 GID",
            quoted,
            Fix("give the interface an address: without one there is no routable GID", "ip -br address"),
            Fix("see the driver's RoCE mode", f"sudo cma_roce_mode -d {shell_word(name)} -p {rail.port.port}"),
            places=[place(host, rail)],
            explains=("collectives",),
        )
    elif not usable:
        yield host.finding(
            "ib.gid-index.link-local",
            Severity.WARN,
            f"rail {rail.label} has only link-local GIDs: it reaches its own subnet alone",
            quoted,
            Fix("give the interface an IPv4 address", "ip -br address"),
            places=[place(host, rail)],
            confidence=0.8,
        )
    elif given and chosen != automatic:
        yield host.finding(
            "ib.gid-index.set",
            Severity.INFO,
            f"NCCL_IB_GID_INDEX={chosen} on {rail.label}; NCCL itself would choose {automatic}",
            [quote(given, host.name), *quoted[:2]],
            places=[place(host, rail)],
        )
