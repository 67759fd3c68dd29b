"""Xids and SXids in the kernel log: what the driver said went wrong with a GPU or an NVSwitch, and when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.kernel_log import KernelLogFact, XidEvent, xid_events
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.nvlink_xid import Decoded, decode, worst
from nccl_doctor.facts.xid import SXid, Xid, sxids, xids
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity
from nccl_doctor.rules.engine import Host, MissingFact, Quote, host_rule
from nccl_doctor.rules.nvidia import card_words, proof, with_hardware
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration

SHOWN = 3
BOOT_S = 60.0  # the kernel's first lines are written in the first seconds

_GPU_RESET = "sudo nvidia-smi --gpu-reset"
# GPUs that stay registered while the fabric manager restarts keep stale state: NVLS fails then (NCCL issue 1488).
_FABRIC_RESET = f"sudo systemctl stop nvidia-fabricmanager; {_GPU_RESET}; sudo systemctl start nvidia-fabricmanager"

# The action of the catalogue -> what to do; a reset is of one GPU.
_ACTIONS = {
    "restart-job": Fix("restart the job; the GPU is fit for use"),
    "reset-gpu": Fix(
        "drain the host and reset the GPU (before Ampere: with all that it has NVLinks to)", _GPU_RESET, risky=True
    ),
    "reboot": Fix("drain the host and power-cycle it", "sudo ipmitool power cycle", risky=True),
    "rma": Fix("drain the host and reset the GPU; if it comes back, replace the GPU (RMA)", _GPU_RESET, risky=True),
    "check-mechanics": Fix("check the GPU's power cables and seating"),
    "update-software": Fix("update driver and firmware"),
    "contact-support": Fix("collect a bug report and open a case", "sudo nvidia-bug-report.sh"),
    "see-line": Fix("do what the quoted line asks for", "nvidia-smi -q | grep -A2 'GPU Recovery Action'"),
}
_HARMLESS = ("ignore", "restart-job", "update-software")

# Everything an Xid can become: the ids of the catalogue, and NVSwitch's and unknown numbers.
IDS = tuple(sorted({entry.finding for entry in xids().values()} | {"gpu.nvlink.nvswitch", "gpu.driver.unknown-xid"}))


@host_rule("gpu", *IDS)
def kernel_log_events(host: Host, plan: Plan) -> Iterator[Finding]:
    """The kernel log holds no Xid or SXid that asks for action.

    Each number has a meaning and an action in the catalogue (NVIDIA's, with date). Application errors (13, 31, 43, 45)
    are information: they name a job that failed, not a sick GPU. NVLink Xids (74 on Hopper, 144 to 150) are decoded from
    the registers in their line: link, cause, and whether a reset is needed. Events older than a day are warnings: the
    GPU may have been repaired since without a reboot. So are those that asked for a reset where the driver asks for
    none now (R570 and later tell) or was loaded anew, and those of a GPU that this container does not have. Reading the
    kernel log may need root; then nothing is known, as where it holds no fault and goes back less than that day, its
    beginning being overwritten (by an application's errors, say).
    """
    found = list(told(host))
    yield from found
    if not any(item.severity is Severity.FAIL for item in found):
        _need_a_day(host.need(KernelLogFact))


def told(host: Host) -> Iterator[Finding]:
    """What the Xids and SXids in the kernel log mean, whatever it covers."""
    fact = with_hardware(host)
    log = host.need(KernelLogFact)
    groups: dict[tuple[int, str, bool], list[XidEvent]] = {}
    for event in xid_events(log.lines):
        groups.setdefault((event.number, event.bus_id, event.switch), []).append(event)
    aborted = _aborted_job(groups)
    for (_, _, switch), events in sorted(groups.items()):
        yield _switch(host, log, events, aborted) if switch else _gpu(host, fact, log, events, aborted)


def _need_a_day(log: KernelLogFact) -> None:
    """``MissingFact`` where the log begins long after the boot and less than a day ago: that it is silent says little."""
    if log.first_s is not None and log.first_s <= BOOT_S:
        return
    if log.first_s is None or log.uptime_s is None:
        raise MissingFact("kernel log", "it is empty" if not log.total else "how far it goes back is not told")
    if (told := log.uptime_s - log.first_s) < value("gpu.xid.recent"):
        why = f"it goes back {duration(told)}, the host has been up for {duration(log.uptime_s)}"
        raise MissingFact("older lines of the kernel log", why)


def _aborted_job(groups: dict[tuple[int, str, bool], list[XidEvent]]) -> bool:
    """Xid 137 with SXid 12028: a job was killed inside an NVLS collective. Xid 94 then follows without a fault."""
    numbers = {(number, switch) for number, _, switch in groups}
    return (137, False) in numbers and (12028, True) in numbers


def _age(log: KernelLogFact, events: list[XidEvent]) -> float | None:
    """Seconds since the newest of the events; None where the log tells no times."""
    times = [event.line.at_s for event in events if event.line.at_s is not None]
    return log.uptime_s - max(times) if times and log.uptime_s is not None else None


def _times(log: KernelLogFact, events: list[XidEvent]) -> str:
    """``, 3 times``; with ``or more`` where the agent left lines of the log off."""
    return f", {len(events)} times{' or more' if log.left_off else ''}" if len(events) > 1 else ""


def _quoted(log: KernelLogFact, events: list[XidEvent]) -> list[Quote]:
    quoted: list[Quote] = []
    for event in events[-SHOWN:]:
        at = event.line.at_s
        when = f"  ({duration(max(0.0, log.uptime_s - at))} ago)" if at is not None and log.uptime_s is not None else ""
        quoted.append((event.line.text + when, log.source))
    return quoted


def _severity(action: str, age: float | None) -> Severity:
    if action in _HARMLESS:
        return Severity.INFO
    return Severity.FAIL if _is_recent(age) and action != "contact-support" else Severity.WARN


def _is_recent(age: float | None) -> bool:
    return age is None or age <= value("gpu.xid.recent")


def _gpu(host: Host, fact: GpuFact, log: KernelLogFact, events: list[XidEvent], aborted: bool) -> Finding:
    number, bus_id = events[0].number, events[0].bus_id
    entry = xids().get(number)
    label = _label(fact, bus_id)
    count = _times(log, events)
    if entry is None:
        return host.finding(
            "gpu.driver.unknown-xid",
            Severity.WARN,
            f"Xid {number} on GPU {label}{count}: not in the catalogue",
            _quoted(log, events),
            places=[Place(host=host.name, gpu=label)],
            confidence=0.5,
        )
    decoded = _decoded(fact, events)
    told = worst([one.do for one in decoded if one.do])
    action = told or _told_action(entry, events[-1])
    severity = _severity(action, _age(log, events))
    if number == 94 and not aborted:
        severity = Severity.WARN
    if told is None and all("Nonfatal" in event.line.text or "Non-fatal" in event.line.text for event in events):
        severity = Severity.INFO
    excuse = _excuse(host, fact, log, action, events) if severity is Severity.FAIL else []
    if excuse:
        severity = Severity.WARN
    fix = _ACTIONS.get(action)
    if fix and fix.command == _GPU_RESET:
        fix = msgspec.structs.replace(fix, command=f"{_GPU_RESET} -i {bus_id}")
    return host.finding(
        entry.finding,
        severity,
        f"Xid {number} on GPU {label}{_links(decoded)}{count}: {entry.name}",
        [
            *_quoted(log, events),
            *excuse,
            *_registers(decoded),
            *(_card(fact, log, bus_id) if action not in _HARMLESS else ()),
            Evidence(f"{entry.mnemonic}: {entry.note}" if entry.note and not told else entry.mnemonic, "Xid catalogue"),
        ],
        *([fix] if fix else []),
        places=[Place(host=host.name, gpu=label)],
        confidence=0.95 if entry.kind in ("hardware", "nvlink") else 0.8,
        explains=_explained(entry),
    )


_RELOADED = "NVRM: loading NVIDIA UNIX"  # the kernel module's first line


def _excuse(host: Host, fact: GpuFact, log: KernelLogFact, action: str, events: list[XidEvent]) -> list[Quote]:
    """What says that a GPU which needed a reset is fit by now, or that it is not one of this container's GPUs."""
    gpu = next((gpu for gpu in fact.gpus if gpu.bus_id == events[0].bus_id), None)
    if gpu is None:
        names = [gpu.bus_id for gpu in fact.gpus]
        if names and None not in names and fact.surely_contained:
            return [(f"this container has {', '.join(map(str, names))} only", "NVML")]
        return []
    if action != "reset-gpu":
        return []  # what needs a reboot is in this boot's log; what needs another GPU comes back
    if gpu.recovery_action == "none":
        return [proof(host, gpu, "GPU recovery action: none")]
    last = max((event.line.at_s for event in events if event.line.at_s is not None), default=None)
    loads = [line for line in log.lines if _RELOADED in line.text and None not in (last, line.at_s)]
    since: list[Quote] = [(line.text, log.source) for line in loads if (line.at_s or 0) > (last or 0)]
    return since[-1:]


# NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.  (the driver's word when a GPU falls off the bus)
_SERIAL = re.compile(r"NVRM: GPU ([0-9a-fA-F:.]{7,16}): GPU serial number is ([0-9]{6,20})")


def _card(fact: GpuFact, log: KernelLogFact, bus_id: str) -> list[Quote]:
    """Which card it is: its slot, and its serial number from NVML or, where NVML has lost it, from the kernel log."""
    serial = next((gpu.serial for gpu in fact.gpus if gpu.bus_id == bus_id), None)
    if serial is None:
        told = [found for line in log.lines if (found := _SERIAL.search(line.text[:1024]))]
        serial = next((found.group(2) for found in told if found.group(1).lower() == bus_id), None)
    words = card_words(fact, bus_id, serial)
    return [(f"{bus_id} is {words}", "NVML, /sys/bus/pci, kernel log")] if words else []


def _decoded(fact: GpuFact, events: list[XidEvent]) -> list[Decoded]:
    """What the registers of NVLink Xids say, event by event."""
    model = next((gpu.name for gpu in fact.gpus if gpu.bus_id == events[0].bus_id), None)
    model = model or next((gpu.name for gpu in fact.gpus if gpu.name), None)  # a GPU that is gone: like its neighbours
    return [one for event in events if (one := decode(event.number, event.line.text, model))]


def _links(decoded: list[Decoded]) -> str:
    """``, link 14`` or ``, links 3, 14``."""
    links = sorted({one.link for one in decoded if one.link >= 0})
    return f", link{'s' if len(links) > 1 else ''} {', '.join(map(str, links))}" if links else ""


def _registers(decoded: list[Decoded]) -> list[Evidence]:
    """Each meaning once, with the links it was seen on and how often."""
    seen = Counter((words, one.link) for one in decoded for words in one.words)
    return [
        Evidence(
            (f"link {link}: " if link >= 0 else "") + words + (f" ({count} times)" if count > 1 else ""),
            "Xid catalogue, the line's registers",
        )
        for (words, link), count in list(seen.items())[:SHOWN]
    ]


# Xid 154: "... changed from 0x0 (None) to 0x2 (OS Reboot)". The words change with the driver (before R610 "Node Reboot
# Required"), the numbers are NVML's nvmlDeviceGpuRecoveryAction_t; those not here (drain P2P, IMEX) are quoted.
_TOLD = re.compile(r" to 0x([0-9a-fA-F]{1,4}) ")
_TOLD_ACTIONS = {0: "ignore", 1: "reset-gpu", 2: "reboot", 4: "reset-gpu", 7: "reboot"}


def _told_action(entry: Xid, event: XidEvent) -> str:
    """The entry's action; for Xid 154 the one that the line ends on."""
    told = _TOLD.search(event.line.text) if entry.action == "see-line" else None
    return _TOLD_ACTIONS.get(int(told[1], 16), entry.action) if told else entry.action


def _explained(entry: Xid) -> tuple[str, ...]:
    if entry.finding.startswith("gpu.fell-off-bus"):
        return ("gpu.not-visible", "gpu.driver", "gpu.needs-reset", "topology", "gpu.nvlink", "collectives")
    if entry.kind == "nvlink":
        return ("gpu.nvlink.errors", "collectives")
    return ("gpu.needs-reset", "collectives") if entry.kind == "hardware" else ()


def _switch(host: Host, log: KernelLogFact, events: list[XidEvent], aborted: bool) -> Finding:
    number, bus_id = events[0].number, events[0].bus_id
    entry = sxids().get(number)
    text = next((event.line.text for event in events if "Fatal" in event.line.text), events[-1].line.text)
    severity = _switch_severity(entry, text, aborted and number == 12028)
    if severity is Severity.FAIL and not _is_recent(_age(log, events)):
        severity = Severity.WARN
    name = entry.name if entry else "not in the catalogue"
    reset = Fix("drain the host and reset its GPUs while the fabric manager is stopped", _FABRIC_RESET, risky=True)
    if entry is not None and entry.severity == "always-fatal":
        reset = Fix("drain the host and reset all GPUs and NVSwitches, or reboot", "sudo reboot", risky=True)
    return host.finding(
        "gpu.nvlink.nvswitch",
        severity,
        f"SXid {number} on NVSwitch {bus_id}{_times(log, events)}: {name}",
        _quoted(log, events),
        *([reset] if severity is not Severity.INFO else []),
        places=[Place(host=host.name, gpu=f"NVSwitch {bus_id}")],
        confidence=0.9 if entry else 0.5,
        explains=("gpu.nvlink", "collectives"),
    )


def _switch_severity(entry: SXid | None, text: str, aborted: bool) -> Severity:
    """The line's own word (Fatal, Non-fatal) decides; then the catalogue; an unknown number is a warning."""
    if aborted or "Non-fatal" in text:
        return Severity.INFO
    if "Fatal" in text:
        return Severity.FAIL
    if entry is None:
        return Severity.WARN
    return Severity.INFO if entry.severity == "non-fatal" else Severity.FAIL


def _label(fact: GpuFact, bus_id: str) -> str:
    """Index and address of the GPU at a PCI address; the address alone where NVML does not have it (any more)."""
    return next((gpu.label for gpu in fact.gpus if gpu.bus_id == bus_id), bus_id)
