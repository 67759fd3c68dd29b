"""GPUs, their links and switches: facts that only together name a cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import (
    came_after,
    ending,
    hosts_of,
    hosts_told,
    just_below,
    later,
    place,
    shortened,
    speakers,
)
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.status import CUDA
from nccl_doctor.facts.xid import sxids, xids


@diagnosis
def mig_with_nccl(case: Case) -> Iterable[Candidate]:
    """MIG instances are in use and NCCL or CUDA fails: NCCL does not support several MIG instances of one GPU."""
    hits = case.hits("mig")
    if hits and case.has(
        "duplicate-gpu",
        "invalid-ordinal",
        "no-gpu",
        "nccl-error-text",
        "cumem-refused",
        "watchdog-timeout",
        "nccl-internal",
        "p2p-broken",
        "cuda-call",
    ):
        title = "MIG instances are used with NCCL"
        proof = [*hits[:6], *case.hits("duplicate-gpu", "invalid-ordinal", "cumem-refused")[:4]]
        yield Candidate("gpu.mig", 0.88, title, proof, hosts=hosts_of(hits), final=True)


_OF_A_COLLECTIVE = re.compile(
    r"all_?(?:reduce|gather|to_?all)|reduce|broadcast|bcast|gather|scatter|send|recv", re.IGNORECASE
)


@diagnosis
def invalid_usage(case: Case) -> Iterable[Candidate]:
    """NCCL refuses a call (ncclInvalidUsage), and its own line that says which use (NCCL_DEBUG=WARN) is not here. Where a
    communicator is made it is mostly two ranks on one GPU. One that exists has a GPU for each rank: there it is a call
    after an abort, in another group or capture, or one that other ranks do not make."""
    made = [hit for hit in case.hits("nccl-init-complete") if hit.groups["nranks"] != "1"]
    first: list[Hit] = []
    after: list[Hit] = []
    for hit in case.hits("nccl-invalid-usage"):
        collective = _OF_A_COLLECTIVE.match(hit.groups.get("call", "").removeprefix("nccl"))
        exists = any(None in (one.rank, hit.rank) or one.rank == hit.rank for one in made if came_after(hit, one))
        (after if collective or exists else first).append(hit)
    if first:
        title = "NCCL refuses the call: usually two ranks are on one GPU"
        yield Candidate("gpu.duplicate", 0.42, title, first, *speakers(first))
    else:
        title = "NCCL refuses a call on a communicator that exists"
        yield from rivals({"app.pg-misuse": 0.42, "app.collective-mismatch": 0.38}, title, after, *speakers(after))


@diagnosis
def peer_to_peer_hang(case: Case) -> Iterable[Candidate]:
    """All ranks of one node wait in the same collective, joined over P2P, and none ever completed one.

    Nobody is behind, so it is not the program; the first transfer over peer-to-peer never arrived. Typical of ACS or
    IOMMU redirection, and of consumer cards. NCCL_P2P_DISABLE=1 is the test.
    """
    if not case.has("channel-p2p") or case.between_hosts:
        return
    stuck = {(item.sequence, item.operation) for item in case.waits}
    early = all(item.sequence <= 8 and item.completed <= 5 for item in case.waits)
    everyone = case.world > 0 and len({item.rank for item in case.waits}) >= case.world
    if len(stuck) == 1 and early and (everyone or case.has("smi-busy", "busy-and-watts")):
        hits = [hit for item in case.waits for hit in reversed(item.hits)]
        strength = 0.82 if case.has("smi-busy", "busy-and-watts", "acs-redirect", "p2p-broken") else 0.68
        title = "the first transfer over GPU peer-to-peer never arrives: all ranks wait in the same operation"
        proof = [*hits, *case.hits("smi-busy", "busy-and-watts")[:2], *case.hits("channel-p2p")[:1]]
        yield Candidate("gpu.p2p", strength, title, proof, final=True)


@diagnosis
def virtualised_cuda(case: Case) -> Iterable[Candidate]:
    """CUDA calls inside NCCL fail with 'unknown error' or 'invalid argument' under WSL2 or in a VM: cuMem is not supported there."""
    hits = case.hits("cuda-unknown-error", "cumem-refused", "nccl-invalid-launch")
    if hits and case.has("wsl"):
        title = "NCCL's CUDA memory calls are not supported under WSL2"
        yield Candidate("sys.container", 0.62, title, [*hits, *case.hits("wsl")[:2]])
    elif case.has("cuda-unknown-error"):
        yield Candidate("gpu.driver", 0.52, "the CUDA driver returns 'unknown error'", case.hits("cuda-unknown-error"))


_NAMELESS_SEGMENT = "/dev/shm/nccl- "


@diagnosis
def shared_segment(case: Case) -> Iterable[Candidate]:
    """NCCL could not set up a segment in /dev/shm. Where its result is a CUDA error, the segment was there, and CUDA would
    not register it (cudaHostRegister). A segment to attach to that does not exist is one that the peer has made elsewhere:
    in a container's own /dev/shm, or, where it is told without its name, in CUDA's memory of the host (cuMem), which NCCL
    tries in each process by itself since 2.26. Otherwise there was no room for it."""
    hits = case.hits("shm-segment")
    absent = [hit for hit in hits if "attaching to" in hit.text and "No such file" in hit.text]
    nameless = [hit for hit in absent if _NAMELESS_SEGMENT in hit.text]
    if nameless:
        title = "the ranks of a host share memory in two ways: CUDA offers cuMem to some of them only"
        yield Candidate("sys.container", 0.9, title, nameless, *speakers(nameless))
    elif absent:
        title = "a rank does not find the shared memory that its peer has made: they do not see the same /dev/shm"
        yield Candidate("sys.container", 0.7, title, absent, *speakers(absent))
        yield Candidate("sw.nccl-bug", 0.4, "NCCL removes or names a shared segment wrongly", absent, *speakers(absent))
    if absent and not case.has("shm-no-space"):
        return
    results = " ".join(hit.text for hit in case.hits("nccl-error-text"))
    refused = "cuda error" in results and "system error" not in results and not case.has("shm-no-space")
    if refused:
        title = "CUDA does not take NCCL's shared memory: pinned memory is short (WSL2 gives little), or the context is broken"
        strengths = {"sys.container": 0.48, "gpu.driver": 0.46, "gpu.illegal-access": 0.44}
        yield from rivals(strengths, title, hits, *speakers(hits))
    elif hits:
        yield Candidate("sys.shm", 0.95, "/dev/shm is too small (or full)", hits, *speakers(hits))


# What these mean depends on who calls: initialisation, a busy GPU, and what is not permitted or not supported.
_OPEN = (3, 46, 800, 801)
_LIST = re.compile(r"(?:cudaError[A-Z]|CUDA_ERROR_).*(?:cudaError[A-Z]|CUDA_ERROR_)")  # NVSHMEM prints what it knows


@diagnosis
def cuda_error_of_the_table(case: Case) -> Iterable[Candidate]:
    """CUDA's error, by its name or its text: what most of them mean does not depend on the call that returned them."""
    known = {place(hit) for signature in case.seen(Role.CAUSE) for hit in case.hits(signature.name)}
    for hit in (hit for hit in case.hits("cuda-call") if place(hit) not in known and not _LIST.search(hit.text)):
        for number, runtime, driver, text, cause in CUDA:
            names = (rf"\bcudaError{runtime}\b", driver and rf"\bCUDA_ERROR_{driver}\b", text)
            if re.search("|".join(filter(None, names)), hit.text):
                title = f"a CUDA call failed: {text or f'cudaError{runtime}'}"
                yield Candidate(
                    cause, 0.45 if number in _OPEN else 0.86, title, [hit], *speakers([hit]), vague=number in _OPEN
                )


@diagnosis
def exclusive_gpu(case: Case) -> Iterable[Candidate]:
    """CUDA finds the GPU busy: certain where a listing shows a compute mode that admits one process, or none.

    Without one the GPU may as well be lost, which CUDA tells in the same words: that log does not decide.
    """
    busy = [hit for hit in case.hits("cuda-call") if "busy or unavailable" in hit.text]
    mode = case.hits("compute-mode")
    if busy and mode:
        title = "the GPU admits one process only (compute mode), and another one has it"
        yield Candidate("gpu.not-visible", 0.9, title, [busy[0], *mode[:2]], *speakers(busy), final=True)
    elif busy:
        title = "the GPU is lost or needs a reset (CUDA says the same of a busy one)"
        yield Candidate("gpu.fell-off-bus", 0.58, title, busy, *speakers(busy))


@diagnosis
def service_not_running(case: Case) -> Iterable[Candidate]:
    """systemctl names the fabric manager or the IMEX daemon, and a line of its answer says that it does not run."""
    names = case.hits("service-name")
    for state in case.hits("service-state"):
        near = [hit for hit in names if hit.file == state.file and 0 <= state.line - hit.line <= 4]
        for word, cause in (("fabricmanager", "gpu.fabric-manager"), ("imex", "gpu.imex")):
            named = [hit for hit in near if word in hit.text]
            if named:
                title = f"{shortened(named[0].text, 60)}: {shortened(state.text, 60)}"
                yield Candidate(cause, 0.92, title, [named[0], state], hosts=hosts_of(named))
                return


# By what the catalogue says of a number: how surely it is the cause of a job's failure.
_XID_STRENGTH = {"hardware": 0.96, "nvlink": 0.95, "fabric": 0.93, "driver": 0.62, "application": 0.72}
# A reset that is still owed (154) follows a fault of the GPU; 63 and 92 record memory trouble, 45 and 43 a dead context.
_XID_CAUSE = {154: "gpu.fell-off-bus", 61: "gpu.fell-off-bus"}
_XID_RECOVERY = 154
_XID_IGNORED = 0.4  # the catalogue's action is "ignore": recorded, but the job need not have noticed
_XID_RECORDS = frozenset((63, 92, 160, 137, 121, 43, 45))
_XID_RECORD = 0.7  # beside no fault: a job that fails for a reason of its own fails for that
_XID_REMAPPED = frozenset((63, 92))  # memory that was or will be replaced by spare rows: no job fails of it
_XID_AFTER_FAULT = 109  # the context whose kernel has just faulted cannot be switched away from in time
_XID_FAULTS = frozenset((13, 31))
_XID_BEFORE = re.compile(r"caused by previous Xid (\d+)")
_MANY_STEPS = 21  # lines


@diagnosis
def xid(case: Case) -> Iterable[Candidate]:
    """Xids in the kernel log, by the catalogue's class: hardware and NVLink faults explain everything after them.

    Application Xids (13, 31, 43, 45) are the program's own and mostly follow from something earlier; newer drivers say
    from which Xid. Those of the days before the job are another program's.
    """
    by_number: dict[int, list[Hit]] = {}
    for hit in case.hits("xid"):
        if number := _xid_told(hit):
            by_number.setdefault(number, []).append(hit)
    for number, hits in sorted(by_number.items()):
        entry = xids().get(number)
        if entry is None:
            continue
        cause = _XID_CAUSE.get(number, ".".join(entry.finding.split(".")[:2]))
        strength = _XID_STRENGTH.get(entry.kind, 0.6)
        if cause == "gpu.fell-off-bus":
            strength = max(strength, 0.94)  # GSP time-outs are of class "driver", and as final
        if number == _XID_RECOVERY and any(
            other != number and (known := xids().get(other)) is not None and known.kind in ("hardware", "nvlink")
            for other in by_number
        ):
            strength = _XID_IGNORED  # the driver asks for a reset because of the other one
        faults = [other[0] for at, other in by_number.items() if at in _XID_FAULTS]
        if number == _XID_AFTER_FAULT and any(_same_gpu(fault, hits[0]) for fault in faults):
            strength = _XID_IGNORED
        lasts = [*case.lasts("xid")]  # of lines alike only the first is kept, and of all Xids the last
        outlived = number in _XID_REMAPPED and all(
            case.course.outlived(hit, _MANY_STEPS) or _stepped_a_minute_after(case, hit)
            for hit in (*hits, *(last for last in lasts if _xid_told(last) == number))
        )
        if number in _XID_REMAPPED and by_number.keys() <= _XID_RECORDS:
            strength = min(strength, _XID_RECORD)
        latest = max(hit.seconds or math.inf for hit in (*hits, *lasts))
        past = entry.kind == "application" and case.course.began_after(latest)
        if outlived or past or (entry.action == "ignore" and number not in _XID_RECORDS):
            strength = min(strength, _XID_IGNORED)
        title = f"Xid {number}: {entry.name}"
        yield Candidate(
            cause, strength, title, hits, hosts=hosts_told(hits), why=f"{xid.__doc__ or ''} {entry.note}".strip()
        )


def _xid_told(hit: Hit) -> int | None:
    """The number of the Xid, or of the one that caused it."""
    before = _XID_BEFORE.search(hit.text)
    digits = before.group(1) if before else hit.groups.get("xid", "").lstrip("+")
    return int(digits) if digits.isdecimal() else None


def _stepped_a_minute_after(case: Case, hit: Hit) -> bool:
    """Whether a step was told more than a minute later than this line, wherever it stands: a kernel's log is pasted below."""
    steps = [step.seconds for step in case.lasts("progress") if step.seconds is not None]
    return hit.seconds is not None and max(steps, default=-math.inf) - hit.seconds > 60.0


def _same_gpu(earlier: Hit, hit: Hit) -> bool:
    """Whether this Xid came from the same GPU as an earlier one of the same log."""
    return later(hit, earlier) and earlier.groups.get("pci") == hit.groups.get("pci")


_THERMAL_SXID = 10004


def _sxid(hit: Hit) -> int:
    digits = hit.groups.get("xid", "")
    return int(digits) if digits.isdecimal() else 0


@diagnosis
def switch_sxid(case: Case) -> Iterable[Candidate]:
    """SXids of NVSwitches, by the word in the line (Fatal, Non-fatal), else by the catalogue's severity.

    A fatal one takes the link or the whole fabric down. Non-fatal ones are mostly corrected errors, or (12028) the trace
    of a job that was killed inside an NVLS collective: alone they explain nothing.
    """
    fatal: list[Hit] = []
    minor: list[Hit] = []
    thermal: list[Hit] = []
    for hit in case.hits("sxid"):
        number = _sxid(hit)
        entry = sxids().get(number)
        said = re.search(r"non-fatal|fatal", hit.text, re.IGNORECASE)
        word = said.group().lower() if said else entry.severity if entry else "fatal"
        if number == _THERMAL_SXID:
            thermal.append(hit)
        (minor if word == "non-fatal" else fatal).append(hit)
    for hits, strength in ((fatal, 0.93), (minor, 0.42)):
        if hits:
            entry = sxids().get(_sxid(hits[0]))
            title = f"NVSwitch error (SXid {hits[0].groups.get('xid', '')}{': ' + entry.name if entry else ''})"
            yield Candidate("gpu.nvlink", strength, title, hits, hosts=hosts_told(hits))
    if thermal:
        yield Candidate("gpu.thermal-power", 0.9, "an NVSwitch overheats (SXid 10004)", thermal)


@diagnosis
def no_switch_to_manage(case: Case) -> Iterable[Candidate]:
    """The fabric manager ends because the driver knows no NVSwitch. Without NVSwitches (PCIe cards, bridges between pairs)
    none is needed; on a machine that has them they are not seen, which 'lspci | grep -i nvswitch' tells."""
    hits = case.hits("no-switch-to-manage")
    if hits and case.has("fabric-manager"):
        title = "the fabric manager finds no NVSwitch: a machine without any does not need it, on others the switches are not seen"
        yield Candidate("gpu.fabric-manager", 0.45, title, hits, hosts=hosts_of(hits))


@diagnosis
def nvls_setup(case: Case) -> Iterable[Candidate]:
    """A multicast call of NVLink SHARP (NVLS) fails while a communicator is set up: the fabric manager or the switches.

    After 'Init COMPLETE' of that process only user buffers are registered; where that fails, NCCL says so in the next
    line, uses its own buffers and goes on.
    """
    ready: dict[tuple[str, str], Hit] = {}
    for hit in case.hits("nccl-init-complete"):
        ready.setdefault((hit.host, hit.pid), hit)
    hits = []
    for hit in case.hits("nvls-unsupported"):
        if any(just_below(note, hit, 3) for note in case.hits("nvls-registration")):
            continue
        before = ready.get((hit.host, hit.pid)) or (next(iter(ready.values()), None) if not hit.pid else None)
        if before is None or not later(hit, before):
            hits.append(hit)
    late = [] if hits else case.hits("nvls-unsupported")
    if hits or late:
        first = (hits or late)[0]
        title = f"setting up NVLink SHARP (NVLS) failed: {first.groups.get('error', '') or ending(first.text, 80)}"
        yield Candidate("gpu.fabric-manager", 0.7 if hits else 0.3, title, hits or late, *speakers(hits or late))


@diagnosis
def sharing_between_nodes(case: Case) -> Iterable[Candidate]:
    """With NVLink between nodes (MNNVL) the peer-to-peer transport imports handles through IMEX: its failure is theirs.

    On one node the same lines mean peer-to-peer or IPC trouble of that node.
    """
    used = case.hits("mnnvl-used")
    failed = [
        hit
        for hit in case.hits("p2p-more", "nccl-warn")
        if re.search(r"transport/p2p|allocator|mnnvl|cuMem", hit.text) and "NCCL INFO" not in hit.text
    ]
    if used and failed:
        title = "memory could not be shared over NVLink between nodes (MNNVL)"
        yield Candidate("gpu.imex", 0.78, title, [*failed[:5], used[0]], *speakers(failed))


_LINK = re.compile(r"Link \d+: (?:<inactive>|[\d.]+ GB/s)")


@diagnosis
def uneven_nvlinks(case: Case) -> Iterable[Candidate]:
    """nvidia-smi nvlink --status: one GPU has fewer active links than its neighbours of the same model."""
    headings = case.hits("nvlink-gpu")
    links = [row for row in case.hits("nvlink-gpu-rows") if _LINK.search(row.text)]
    table = [(head, rows) for head, rows in below(headings, links) if rows]
    active = [sum("inactive" not in row.text for row in rows) for _, rows in table]
    most = Counter(active).most_common(1)[0][0] if len(active) > 1 else 0
    poor = [pair for pair, count in zip(table, active, strict=True) if count < most]
    if poor and len(poor) < len(table):
        title = f"GPU {', '.join(head.groups['gpu'] for head, _ in poor[:4])} has fewer active NVLinks than the others"
        proof = [hit for head, rows in poor for hit in (head, *(row for row in rows if "inactive" in row.text))]
        yield Candidate("gpu.nvlink", 0.86, title, proof, hosts=hosts_of(head for head, _ in poor))


_GPU_ID = re.compile(r"\bgpuId (\d+):")
_LETTERS = re.compile(r"(?<!\S)(?:[UDX_] ){1,63}[UDX_]\s*$")


@diagnosis
def dcgm_links_down(case: Case) -> Iterable[Candidate]:
    """dcgmi nvlink --link-status shows links of a GPU as down.

    DCGM says the same of cards that could be bridged but are not: where no link of any GPU is up, that may be so.
    """
    gpu, some_up = "", False
    down: dict[str, Hit] = {}
    for row in case.hits("dcgm-link-states-rows"):
        letters = _LETTERS.search(row.text)
        if letters and gpu:  # the ports of switches are not all used
            some_up |= "U" in letters[0]
            if "D" in letters[0]:
                down[gpu] = row
        heading = _GPU_ID.search(row.text)
        gpu = heading[1] if heading else ""
    if down:
        title = f"NVLinks of GPU {', '.join([*down][:8])} are down"
        if not some_up:
            title = "DCGM lists no NVLink that is up: no bridge joins these GPUs, or the links were not trained"
        hits = [*down.values()]
        yield Candidate("gpu.nvlink", 0.86 if some_up else 0.46, title, hits, hosts=hosts_of(hits))


_STACK = 40  # lines


@diagnosis
def hung_task(case: Case) -> Iterable[Candidate]:
    """The kernel shows a process that waits in it and cannot be interrupted, with its stack.

    In the GPU's driver: the GPU or its firmware does not answer, or the driver deadlocked; else it is mostly a disk or a
    shared file system.
    """
    every = case.hits("hung-task")
    hung = [hit for hit in every if "echo 0 >" not in hit.text] or every
    if not hung:
        return
    frames = [hit for hit in case.hits("driver-frame") if any(just_below(hit, task, _STACK) for task in hung)]
    if frames:
        title = "a process hangs in the GPU's driver, and cannot be ended: the host or the GPU needs a reset"
        yield Candidate("gpu.fell-off-bus", 0.8, title, [hung[0], frames[0], *hung[1:3]], hosts=hosts_of(frames))
    else:
        title = "a shared file system or the host hangs or fails"
        yield Candidate("sys.clock-or-dns-or-fs", 0.8, title, hung, hosts=hosts_of(hung))


@diagnosis
def kernel_crash_in_driver(case: Case) -> Iterable[Candidate]:
    """The kernel crashed, and the instruction (RIP) is one of the GPU's driver."""
    frames = [hit for hit in case.hits("driver-frame") if "RIP: " in hit.text]
    near = [hit for hit in case.hits("node-died") if any(just_below(frame, hit, _STACK) for frame in frames)]
    if near:
        title = "the kernel crashed in the GPU's driver: a bug of this release, or a GPU that answers wrongly"
        yield Candidate("gpu.driver", 0.92, title, [near[0], frames[0], *near[1:3]], hosts=hosts_of(frames))


@diagnosis
def adapter_not_initialised(case: Case) -> Iterable[Candidate]:
    """RmInitAdapter, amdgpu's init or the probe failed: the GPU does not answer, unless the driver says that it cannot use it as it is."""
    hits = case.hits("adapter-not-initialised")
    if hits and not case.has("driver-files-differ", "driver-refuses-gpu", "no-memory-region"):
        yield Candidate("gpu.fell-off-bus", 0.9, "a GPU does not start: it needs a reset", hits, *speakers(hits))


@diagnosis
def broken_topology_matrix(case: Case) -> Iterable[Candidate]:
    """nvidia-smi topo -m: most GPU pairs are joined by NVLink (NV#), one GPU's pairs are not or by fewer links."""
    rows: dict[int, tuple[list[str], Hit]] = {}
    for hit in case.hits("topo-row"):
        cells = hit.text.split()
        at = next((index for index, cell in enumerate(cells) if re.fullmatch(r"GPU\d+", cell)), None)
        if at is not None:
            rows.setdefault(int(cells[at][3:]), (cells[at + 1 :], hit))
    size = len(rows)
    if size < 3:
        return
    table = {gpu: [cell for cell in cells[:size] if cell != "X"] for gpu, (cells, _) in rows.items()}
    kinds = Counter(cell for cells in table.values() for cell in cells)
    usual, count = kinds.most_common(1)[0]
    if not usual.startswith("NV") or count < 0.5 * sum(kinds.values()):
        return
    odd = [gpu for gpu, cells in table.items() if sum(cell != usual for cell in cells) > len(cells) / 2]
    if odd and len(odd) < size / 2:
        title = f"GPU {', '.join(map(str, odd))} is not joined by NVLink like the others"
        yield Candidate("gpu.nvlink", 0.82, title, [rows[gpu][1] for gpu in odd])


@diagnosis
def wrong_values_over_p2p(case: Case) -> Iterable[Candidate]:
    """nccl-tests found wrong values, and all data went from GPU to GPU of one machine: peer-to-peer delivers wrong bytes."""
    wrong = case.hits("nccl-corruption")
    direct = case.hits("channel-p2p")
    if wrong and direct and not case.has("channel-net"):
        title = "data that is copied directly between GPUs arrives wrong"
        yield Candidate("gpu.p2p", 0.72, title, [*wrong[:2], *direct[:2]])


@diagnosis
def no_peer_access(case: Case) -> Iterable[Candidate]:
    """GPUs of one machine have no access to each other's memory, and somebody says that it is slow."""
    without, complaint = case.hits("p2p-not-enabled"), complaints(case)
    if without and complaint and not case.has("channel-net"):
        title = "GPUs have no peer-to-peer access: their data goes through host memory"
        yield Candidate("gpu.p2p", 0.62, title, [*without[:3], *complaint[:2]])
