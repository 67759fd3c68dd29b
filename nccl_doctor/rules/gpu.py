"""GPU visibility: does the driver answer, and are all GPUs there?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.agent.containers import GVISOR
from nccl_doctor.facts.gpu import GpuDevice, GpuFact, PciGpu, Witness
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, host_rule
from nccl_doctor.rules.nvidia import LOST, Slot, answered, devices, need_fields, place, proof, with_hardware

# NVML's error code of nvmlInit -> finding id, title, what to do
_INIT_FAILURES = {
    18: (
        "gpu.driver.mismatch",
        "the NVIDIA kernel module and the user-space libraries are of different versions",
        Fix(
            "a driver update without a reload: see which versions meet, and load the new module while no process uses the old one",
            "cat /proc/driver/nvidia/version; ls -l /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*",
        ),
    ),
    9: (
        "gpu.driver.not-loaded",
        "the NVIDIA kernel module is not loaded",
        Fix(
            "load it; if that fails, the module is not built for the running kernel",
            "sudo modprobe nvidia && nvidia-smi; uname -r; dkms status; sudo dmesg | grep -i nvrm | tail",
        ),
    ),
    12: (
        "gpu.driver.library-missing",
        "libnvidia-ml.so.1 is not found: the driver's user-space part is missing here",
        Fix(
            "in a container: start it with the NVIDIA container toolkit (--gpus all); else install the driver's libraries",
            "ldconfig -p | grep -i nvidia-ml",
        ),
    ),
}
_NO_PERMISSION = 4  # NVML's error code, too
# NVML's words for a GPU that it does not open, beside "GPU is lost" -> what to do
_REFUSALS = {
    "Insufficient External Power": Fix("connect the GPU's power cables", "sudo ipmitool sdr type 'Power Supply'"),
    "Interrupt Request Issue": Fix(
        "the GPU's interrupts do not arrive: update the BIOS, look at the kernel's interrupt and IOMMU options",
        "cat /proc/cmdline; grep nvidia /proc/interrupts; sudo dmesg -T | grep -iE 'irq|nvrm' | tail -20",
    ),
    "GPU requires restart": Fix("drain the host, then reset the GPU", "sudo nvidia-smi --gpu-reset", risky=True),
}
DISPLAY_CLASS = "0x0300"  # of PCI devices: VGA controllers; boards without a display have 0x0302
MANY_ERRORS = 3  # one question that fails may be a defect of one driver version; several are a sick GPU
_CURED_BY_REBOOT = ("gpu.driver.hang", "gpu.driver.mismatch")
_EXPLAINED = ("gpu.not-visible", "gpu.driver", "topology", "collectives", "gpu.p2p")


SILENT_DRIVER = (
    "gpu.driver.hang", "gpu.driver.mismatch", "gpu.driver.not-loaded", "gpu.driver.library-missing", "gpu.driver.failed"
)  # fmt: skip


@host_rule("gpu", *SILENT_DRIVER, "gpu.driver.smi-hang", "gpu.driver.smi-differs")
def driver_answers(host: Host, plan: Plan) -> Iterator[Finding]:
    """The NVIDIA driver answers, through NVML and through nvidia-smi.

    A call that does not come back is named; a library that does not fit the loaded kernel module is told from a module
    that is not loaded. nvidia-smi is a second witness: if it alone hangs, fails or lists other GPUs, that is said, too.
    """
    fact = with_hardware(host)
    if fact.nvml.outcome != "ok":
        yield silent_driver(host, fact, fact.nvml)
    elif broken := {gpu.index: errors for gpu in devices(fact) if len(errors := _unanswered(gpu)) >= MANY_ERRORS}:
        index, errors = next(iter(broken.items()))
        if fact.container == GVISOR:
            # It passes on some of the driver's calls only.
            raise MissingFact(f"{len(errors)} NVML answers about GPU {index}", "a sandbox (gVisor) is in between")
        yield _driver_finding(
            host,
            fact,
            "gpu.driver.failed",
            f"the driver fails to answer {len(errors)} questions about GPU {index}",
            Fix(
                "read what the kernel module says; if the GPU is sick, drain the host and reset it",
                "nvidia-smi; sudo dmesg -T | grep -iE 'nvrm|xid' | tail -20",
            ),
            "; ".join(f"{field}: {text}" for text, field in list(errors.items())[:4]),
        )
    else:
        yield from _second_witness(host, fact)


def silent_driver(host: Host, fact: GpuFact, nvml: Witness) -> Finding:
    """What an NVML that did not answer says of the driver; ``MissingFact`` where it may not be asked."""
    if nvml.code == _NO_PERMISSION:
        raise MissingFact("NVML", f"not permitted: {nvml.detail}")
    id, title, fix = _init_failure(fact, nvml)
    if nvml.outcome == "timed-out":
        id, title = "gpu.driver.hang", f"the NVIDIA driver hangs: {nvml.call or 'NVML'} does not return"
        fix = Fix(
            "look for a stuck process and Xids",
            "ps -eo pid,stat,wchan:30,args | awk '$2 ~ /D/'; sudo dmesg -T | grep -iE 'xid|nvrm' | tail",
        )
    return _driver_finding(host, fact, id, title, fix, nvml.detail or nvml.outcome)


def _unanswered(gpu: GpuDevice) -> dict[str, str]:
    """NVML's words for each question that failed -> the first field that it would have filled."""
    return {text: field for field, text in reversed(gpu.errors.items())}


def _init_failure(fact: GpuFact, nvml: Witness) -> tuple[str, str, Fix]:
    """Finding id, title, and what to do where NVML does not start."""
    look = Fix("read what the kernel module says", "nvidia-smi; sudo dmesg -T | grep -iE 'nvrm|nvidia' | tail -20")
    known = _INIT_FAILURES.get(nvml.code or 0)
    if known and known[0] == "gpu.driver.not-loaded" and fact.module_version:
        known = None  # it does not answer for another reason: no device files, or GPUs that failed to start
        look = Fix(
            "its module is loaded: see whether the device files are there, and what the module says of its GPUs",
            "ls -l /dev/nvidia*; sudo dmesg -T | grep -iE 'nvrm|nvidia' | tail -20",
        )
    return known or ("gpu.driver.failed", f"NVML fails: {nvml.detail}", look)


def _second_witness(host: Host, fact: GpuFact) -> Iterator[Finding]:
    """nvidia-smi hangs, or contradicts an NVML that answers."""
    if fact.smi.outcome == "timed-out":
        evidence = [Evidence(fact.smi.detail, "nvidia-smi", host=host.name)]
        confidence = 0.8
        fix = Fix("see where it waits", "ps -eo pid,stat,wchan:30,args | grep '[n]vidia-smi'")
        if unkept := next((gpu for gpu in devices(fact) if gpu.persistence_mode is False), None):
            evidence.append(proof(host, unkept, "persistence mode: disabled"))
            text = "without persistence mode every start initialises all GPUs: run the persistence daemon, look again"
            command = "sudo systemctl enable --now nvidia-persistenced; time nvidia-smi -L"
            confidence, fix = 0.5, Fix(text, command)
        yield host.finding(
            "gpu.driver.smi-hang",
            Severity.WARN,
            "nvidia-smi does not return, though NVML answers",
            evidence,
            fix,
            confidence=confidence,
        )
    elif proofs := _smi_differs(host, fact):
        yield host.finding(
            "gpu.driver.smi-differs",
            Severity.WARN,
            "nvidia-smi lists all GPUs and ends with an error"
            if {gpu.get("bus_id") for gpu in fact.smi.gpus} == {gpu.bus_id for gpu in devices(fact)}
            else "nvidia-smi does not see the GPUs that NVML sees",
            proofs,
            Fix("read what nvidia-smi and the kernel module say", "nvidia-smi -L; sudo dmesg -T | grep -i nvrm | tail"),
            confidence=0.8,
        )


def _smi_differs(host: Host, fact: GpuFact) -> list[Evidence]:
    """How the second witness contradicts the first: it failed, or lists other GPUs. Where it is not installed: nothing."""
    smi, nvml = {gpu.get("bus_id") for gpu in fact.smi.gpus}, {gpu.bus_id for gpu in devices(fact)}
    if fact.smi.outcome == "ok" and (smi == nvml or None in nvml):  # an integrated GPU (Jetson) has no PCI address
        return []
    if fact.smi.outcome not in ("ok", "failed"):
        return []
    lines = [fact.smi.detail, *fact.smi.lines[:3]] if fact.smi.outcome == "failed" else list(fact.smi.lines[:2])
    told = [Evidence(line, "nvidia-smi", host=host.name) for line in lines if line]
    for words, only in (("NVML alone lists", nvml - smi), ("nvidia-smi alone lists", smi - nvml)):
        if only and fact.smi.outcome == "ok":
            told.append(Evidence(f"{words} {', '.join(sorted(map(str, only)))}", "NVML, nvidia-smi", host=host.name))
    return told


def _driver_finding(host: Host, fact: GpuFact, id: str, title: str, fix: Fix, proof: str) -> Finding:
    evidence = [Evidence(proof, "NVML", host=host.name)]
    if fact.module_version:
        library = f"; library {fact.system.library}" if fact.system.library else ""
        evidence.append(Evidence(f"kernel module {fact.module_version}{library}", "/sys/module/nvidia", host=host.name))
    for line in (fact.smi.detail, *fact.smi.lines[:3]):
        if line and fact.smi.outcome not in ("ok", "tool-missing", "not-run"):
            evidence.append(Evidence(line, "nvidia-smi", host=host.name))
    if fact.pci_gpus:
        evidence.append(Evidence(f"{len(fact.pci_gpus)} NVIDIA GPUs on the PCI bus", "/sys/bus/pci", host=host.name))
    # What looks and what interrupts are never one line to paste.
    reboot = [Fix("drain the host and reboot it", "sudo reboot", risky=True)] if id in _CURED_BY_REBOOT else []
    return host.finding(id, Severity.FAIL, title, evidence, fix, *reboot, explains=_EXPLAINED)


ALL_VISIBLE = (
    "gpu.not-visible.fewer-than-bus", "gpu.not-visible.none", "gpu.fell-off-bus.lost", "gpu.driver.failed"
)  # fmt: skip


@host_rule("gpu", *ALL_VISIBLE)
def all_visible(host: Host, plan: Plan) -> Iterator[Finding]:
    """NVML sees every GPU that the PCI bus and the driver's /proc tree list.

    A GPU that fell off the bus shows exactly so: it is listed, and NVML (or nvidia-smi) does not have it. GPUs handed
    to a virtual machine (vfio-pci) do not count, and in a container the runtime decides what is seen; where that it is
    a container is only likely, nothing is known. A display card of another model, which the driver has not taken, is a
    warning: an old one may be there for the console alone.
    """
    fact = answered(host)
    yield from _lost(host, fact)
    barred = [gpu.index for gpu in fact.gpus if "handle" in gpu.not_permitted]
    if barred and not fact.container:
        raise MissingFact(
            f"GPU {', '.join(map(str, barred))}", "not permitted: the device's cgroup or file is closed to us"
        )
    seen = {gpu.bus_id for gpu in fact.gpus if gpu.bus_id}
    displays = _displays(fact, seen)
    yield from (_display(host, gpu) for gpu in displays)
    listed = {gpu.bus_id: gpu.slot for gpu in fact.pci_gpus if gpu.driver != "vfio-pci" and gpu not in displays}
    for entry in fact.proc_gpus:
        listed.setdefault(str(entry.get("bus_id")), None)
    missing = [Slot(bus_id, slot) for bus_id, slot in sorted(listed.items()) if bus_id not in seen]
    unknown_handles = sum(gpu.bus_id is None for gpu in fact.gpus)
    if len(missing) <= unknown_handles:
        need_fields(devices(fact) if missing else [], "PCI address of a GPU", "bus_id")
        return  # the lost ones were told above
    names = ", ".join(str(slot) for slot in missing)
    if fact.surely_contained:
        return  # it is given what its runtime gives it
    if fact.container:
        raise MissingFact(f"GPU {names}", f"on the PCI bus, not in NVML; {fact.container}: this may be a container")
    none = not seen
    yield host.finding(
        "gpu.not-visible.none" if none else "gpu.not-visible.fewer-than-bus",
        Severity.FAIL,
        f"NVML sees {len(seen) or 'none'} of {len(listed)} GPUs: {names} {'is' if len(missing) == 1 else 'are'} missing",
        [
            (f"nvmlDeviceGetCount: {fact.system.count}", "NVML"),
            (f"NVIDIA GPUs on the bus: {', '.join(sorted(listed))}", "/sys/bus/pci/devices"),
            *_smi_complaints(host, fact),
        ],
        Fix(
            "see why: an Xid 79 means it fell off the bus; 'probe failed' means the driver refused it",
            f"sudo dmesg -T | grep -iE 'xid|nvrm' | tail -20; sudo lspci -vvs {shell_word(missing[0].bus_id)}",
        ),
        Fix(
            "power-cycle the host (a warm reboot often does not bring it back)", "sudo ipmitool power cycle", risky=True
        ),
        places=[Place(host=host.name, gpu=str(slot)) for slot in missing],
        confidence=0.95,
        explains=("gpu.not-visible.fewer-than-peers", "topology", "gpu.nvlink", "collectives"),
    )


def _displays(fact: GpuFact, seen: set[str]) -> list[PciGpu]:
    """Display cards that are of no model that NVML sees, and not driven by NVIDIA's driver."""
    models = {gpu.device for gpu in fact.pci_gpus if gpu.bus_id in seen}
    return [
        gpu
        for gpu in fact.pci_gpus
        if models
        and gpu.device not in models
        and (gpu.kind or "").startswith(DISPLAY_CLASS)
        and gpu.driver not in ("nvidia", "vfio-pci")
    ]


def _display(host: Host, gpu: PciGpu) -> Finding:
    quote = f"{gpu.bus_id}: device {gpu.device}, class {gpu.kind}, driver {gpu.driver or 'none'}"
    return host.finding(
        "gpu.not-visible.fewer-than-bus",
        Severity.WARN,
        f"NVML does not see {gpu.bus_id}, a display card of another model than the GPUs that it sees",
        (quote, "/sys/bus/pci/devices"),
        Fix(
            "nothing, if it is for the console; else see why the NVIDIA driver does not take it",
            f"lspci -nnks {shell_word(gpu.bus_id)}; sudo dmesg -T | grep -i nvrm | tail",
        ),
        places=[Place(host=host.name, gpu=gpu.bus_id)],
        confidence=0.6,
    )


def _lost(host: Host, fact: GpuFact) -> Iterator[Finding]:
    """The GPUs that NVML counts and cannot open, or finds lost."""
    for gpu in fact.gpus:
        if "handle" not in gpu.errors and not any(LOST in text for text in gpu.errors.values()):
            continue
        text = next(iter(gpu.errors.values()))
        if refusal := next((words for words in _REFUSALS if words in gpu.errors.get("handle", "")), None):
            yield host.finding(
                "gpu.driver.failed",
                Severity.FAIL,
                f"the driver does not open GPU {gpu.label}: {refusal}",
                proof(host, gpu, text),
                _REFUSALS[refusal],
                places=[place(host, gpu)],
                explains=_EXPLAINED,
            )
            continue
        quotes = [proof(host, gpu, text), *_smi_complaints(host, fact)]
        title = f"GPU {gpu.label} does not answer the driver"
        yield lost_gpu(host, Severity.FAIL, title, quotes, place(host, gpu))


def lost_gpu(host: Host, severity: Severity, title: str, proof: list[Evidence], place: Place) -> Finding:
    """A GPU that fell off the bus, or was off it for a while."""
    cycle = "power-cycle the host; if it comes back, reseat and test the GPU"
    return host.finding(
        "gpu.fell-off-bus.lost",
        severity,
        title,
        proof,
        Fix(cycle, "sudo ipmitool power cycle", risky=True),
        places=[place],
        explains=("gpu.not-visible", "gpu.driver", "topology", "collectives", "gpu.p2p", "gpu.nvlink"),
    )


def _smi_complaints(host: Host, fact: GpuFact) -> list[Evidence]:
    return [Evidence(line, "nvidia-smi", host=host.name) for line in fact.smi.lines[:2]]


@host_rule("gpu", "gpu.not-visible.cuda-visible-devices")
def visible_devices(host: Host, plan: Plan) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES, where it is set, names GPUs that exist, each once.

    CUDA stops reading the list at the first entry it does not know: ``0,1,9,2`` on an 8-GPU host leaves two GPUs, and
    an empty value or ``-1`` leaves none. The job's value (``--env``) goes before the login's.
    """
    fact = answered(host)
    name = "CUDA_VISIBLE_DEVICES"
    text, source = plan.env.get(name), "the job's environment"
    if text is None:
        text, source = fact.environment.get(name), "the login's environment"
    if text is None:
        return
    if "-" in text.lstrip("-") and any(gpu.uuid is None for gpu in fact.gpus):
        raise MissingFact("GPU UUIDs", f"the driver does not tell them all; {name}={text}")
    usable = _usable(text, fact)
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    if entries and usable == len(entries):
        return
    count = len(fact.gpus)
    yield host.finding(
        "gpu.not-visible.cuda-visible-devices",
        Severity.FAIL if source.startswith("the job") else Severity.WARN,
        f"{name}={text!r} leaves {usable} of {count} GPUs visible to CUDA",
        (f"{name}={text}", source),
        Fix(f"unset it, or give indices 0 to {count - 1}, each once", f"unset {name}"),
    )


def _usable(text: str, fact: GpuFact) -> int:
    """How many entries CUDA takes: up to the first that names no GPU or one a second time."""
    taken: set[int] = set()
    for entry in text.split(","):
        word = entry.strip()
        if word.isdecimal():
            found = [gpu.index for gpu in fact.gpus if gpu.index == int(word)]
        else:
            found = [gpu.index for gpu in fact.gpus if word and (gpu.uuid or "").lower().startswith(word.lower())]
            if word.startswith("MIG-"):
                found = [-1 - len(taken)]  # MIG instances are not listed here: believed
        if len(found) != 1 or found[0] in taken:
            break
        taken.add(found[0])
    return len(taken)
