"""RDMA devices of one host: have they driver, device files, verbs library, locked memory, and do the tools agree?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.agent.pci import AWS
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.infiniband_tools import ToolTextError, parse_ibv_devinfo
from nccl_doctor.facts.infiniband_witness import SYSFS, all_told, disagreements
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.infiniband_view import NO_DEVICE, needs_no_rdma, own_rails, with_devices
from nccl_doctor.rules.limits import memlock_fixes
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import size

ETHERNET_CLASS, INFINIBAND_CLASS = "0x0200", "0x0207"  # of PCI devices


@host_rule(
    "infiniband", "ib.device-not-found.uverbs", "ib.device-not-found.no-driver", "ib.device-not-found.hca-filter"
)
def devices_usable(host: Host, plan: Plan) -> Iterator[Finding]:
    """RDMA cards have their driver and their device files (also in the container), and NCCL_IB_HCA matches some.

    Ethernet NICs that could do RDMA and have no RDMA driver are information: most networks need none. A container that
    was given some of the host's devices lacks the others' files: a warning. So it is where one with one GPU, looked at
    alone, was given none.
    """
    fact = host.need(InfinibandFact)
    if not fact.devices:
        yield _no_driver(host, fact)
        return
    absent = [name for name in fact.uverbs_expected if name not in fact.uverbs]
    if absent:
        gpu = host.want(GpuFact)
        given = len(absent) < len(fact.uverbs_expected) and gpu is not None and gpu.surely_contained
        unused = needs_no_rdma(host)
        yield host.finding(
            "ib.device-not-found.uverbs",
            Severity.WARN if given or unused else Severity.FAIL,
            f"verbs device files: {len(absent)} of {len(fact.uverbs_expected)} missing"
            + (": this container was not given them" if given or unused else "")
            + ("; a job over several hosts would use TCP" if unused else ""),
            [(f"no /dev/infiniband/{name}", "/dev/infiniband") for name in absent[:3]],
            Fix(
                "give the container the devices (--device=/dev/infiniband), or load ib_uverbs", "ls -l /dev/infiniband"
            ),
            explains=("collectives",),
        )
    text = plan.env.get("NCCL_IB_HCA")
    if text and not host.once(own_rails, plan):
        names = ", ".join(sorted(device.name for device in fact.devices))
        yield host.finding(
            "ib.device-not-found.hca-filter",
            Severity.FAIL,
            f"NCCL_IB_HCA={text} matches none of the RDMA devices: NCCL would use TCP",
            [Evidence(f"NCCL_IB_HCA={text}", "the job's environment"), (f"devices: {names}", "/sys/class/infiniband")],
            env=[EnvAdvice("NCCL_IB_HCA", "", "it matches no device of this host", "any", unset=True)],
            explains=("collectives",),
        )


def _no_driver(host: Host, fact: InfinibandFact) -> Finding:
    """RDMA-capable NICs without an RDMA device; ``SkipRule`` where there is none, or they are given to virtual machines.

    An Ethernet NIC without any driver is not in use; InfiniBand cards and EFAs (of Ethernet's class) are for RDMA alone.
    """
    cards = [nic for nic in fact.pci_rdma if (nic.kind or "").startswith(INFINIBAND_CLASS) or nic.vendor == AWS]
    capable = [nic for nic in fact.pci_rdma if nic.driver != "vfio-pci" and (nic.driver or nic in cards)]
    if not capable:
        raise SkipRule(NO_DEVICE)
    module = (capable[0].driver or ("efa" if capable[0].vendor == AWS else "mlx5_core")).replace("_core", "_ib")
    ethernet = all((nic.kind or "").startswith(ETHERNET_CLASS) and nic not in cards for nic in capable)
    topology = host.want(TopologyFact)
    loaded = topology is not None and bool(topology.modules.get(module))
    return host.finding(
        "ib.device-not-found.no-driver",
        Severity.INFO if ethernet else Severity.WARN,
        f"{len(capable)} RDMA-capable NICs, but no RDMA device: "
        + (f"{module} is loaded, so they are elsewhere or off" if loaded else "the RDMA driver is not loaded"),
        [
            (f"{nic.bus_id} {nic.vendor}:{nic.device} driver {nic.driver or 'none'}", "/sys/bus/pci")
            for nic in capable[:4]
        ],
        Fix(
            "a container sees its own network namespace's alone; else see whether RDMA is switched off for them",
            "rdma system show; rdma link show; sudo devlink dev param show | grep -A2 enable_roce",
        )
        if loaded
        else Fix(
            "load it, if this host has an RDMA network",
            f"sudo modprobe -a {shell_word(module)} ib_uverbs && ls /sys/class/infiniband",
        ),
        confidence=0.7,
    )


@host_rule("infiniband", "ib.memlock")
def locked_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """RDMA can lock the memory it registers (``ulimit -l``): with a small limit NCCL fails in ibv_reg_mr or ibv_create_cq.

    Where the stage "system" runs it tells this itself, with the limits of the whole login.
    """
    if "system" in plan.stages:
        raise SkipRule("locked memory is judged in stage system")
    fact = with_devices(host)
    soft, hard = fact.memlock_bytes.soft, fact.memlock_bytes.hard
    if soft is None or soft >= value("memlock.rdma"):
        return
    severity, why = Severity.FAIL, "RDMA cannot register NCCL's buffers"
    if needs_no_rdma(host):
        severity, why = Severity.INFO, "harmless as long as this container has no RDMA device file"
    elif fact.container.locks_freely:
        severity = Severity.INFO if fact.container.hints else Severity.WARN
        why = "this login is not bound by it (CAP_IPC_LOCK), other users are"
    yield host.finding(
        "ib.memlock",
        severity,
        f"locked memory is limited to {size(soft)}: {why}",
        (f"RLIMIT_MEMLOCK soft {size(soft)}, hard {'unlimited' if hard is None else size(hard)}", "ulimit -l"),
        *memlock_fixes(hard is None),
        explains=("collectives",) if severity is Severity.FAIL else (),
    )


@host_rule("infiniband", "ib.device-not-found.no-provider")
def verbs_library(host: Host, plan: Plan) -> Iterator[Finding]:
    """The verbs library opens the devices that sysfs lists: ibv_devinfo, where it is installed, is asked as a witness.

    NCCL goes through the same library. A device that the kernel has and ibv_devinfo does not list has no user-space
    driver here (libmlx5, libefa), or may not be opened.
    """
    fact = with_devices(host)
    tool = fact.witnesses.get("ibv_devinfo")
    if tool is None or tool.outcome == "tool-missing":
        raise SkipRule("ibv_devinfo is not installed")
    if tool.outcome not in ("ok", "failed"):
        raise MissingFact("ibv_devinfo", tool.detail or tool.outcome)
    if set(fact.uverbs_expected) - set(fact.uverbs):
        raise SkipRule("device files are missing: that is told by itself")
    active = {rail.device.name for rail in host.once(own_rails, plan) if rail.port.active}
    try:
        opened = {device.name for device in parse_ibv_devinfo(tool.text).devices}
    except ToolTextError:
        opened = set()
    absent = sorted(active - opened)
    if absent:
        yield host.finding(
            "ib.device-not-found.no-provider",
            Severity.FAIL,
            f"the verbs library does not open {len(absent)} of {len(active)} rails: {', '.join(absent[:8])}",
            [
                (tool.detail or f"lists {', '.join(sorted(opened)) or 'no device'}", "ibv_devinfo"),
                (f"active: {', '.join(sorted(active))}", "/sys/class/infiniband"),
            ],
            Fix(
                "install the user-space drivers (rdma-core: ibverbs-providers), also in the container",
                "ibv_devices; ls /usr/lib/*/libibverbs /etc/libibverbs.d",
            ),
            explains=("collectives",),
            confidence=0.9,
        )


@host_rule("infiniband", "ib.witnesses-differ", "ib.sysfs-missing")
def further_witnesses(host: Host, plan: Plan) -> Iterator[Finding]:
    """What ibstat, ibv_devinfo and show_gids say of a port, where they are installed, is what sysfs says.

    State, physical state, rate, link layer, firmware and GIDs are compared. A tool that gives up on a device, or lists one
    that sysfs lacks, disagrees, too. Where sysfs shows no RDMA device at all (some containers), the tools stand in for it
    in all rules: what they do not tell (counters, MTU) stays unknown.
    """
    fact = with_devices(host)
    tools = {name: tool for name, tool in fact.witnesses.items() if tool.outcome != "tool-missing"}
    if not tools:
        raise SkipRule("ibstat, ibv_devinfo and show_gids are not installed")
    stuck = [name for name, tool in tools.items() if tool.outcome == "timed-out"]
    if stuck:
        raise MissingFact(stuck[0], tools[stuck[0]].detail or "does not answer")
    if fact.devices[0].source != SYSFS:
        names = ", ".join(device.name for device in fact.devices)
        yield host.finding(
            "ib.sysfs-missing",
            Severity.INFO,
            f"sysfs shows no RDMA device; {len(fact.devices)} are taken from the tools' word",
            [("no device", "/sys/class/infiniband"), (f"lists {names}", fact.devices[0].source)],
        )
        return
    proofs = [Evidence(str(item), item.tool, host=host.name) for item in disagreements(fact)]
    proofs += [
        Evidence(line, name, host=host.name)
        for name, tool in tools.items()
        for line in f"{tool.text}\n{tool.detail}".splitlines()
        if "ibpanic" in line
    ]
    if proofs:
        yield host.finding(
            "ib.witnesses-differ",
            Severity.WARN,
            f"{', '.join(sorted({proof.source for proof in proofs}))} and sysfs disagree about RDMA ports",
            proofs[:8],
            Fix("look again: a port that changes between two readings flaps", "ibstat; ibv_devinfo"),
            confidence=0.8,
        )
    elif not all_told(fact.witnesses):
        raise MissingFact(", ".join(sorted(tools)), "what they print names no port")
