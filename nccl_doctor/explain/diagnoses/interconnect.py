"""NVSwitch, NVLS, RDMA completions and NCCL's topology: lines whose meaning depends on what stands around them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nccl_doctor.explain.case import Candidate, Case, diagnosis, hosts_of, ranks_of, speakers
from nccl_doctor.explain.diagnoses.tables import REASONS, cause_of
from nccl_doctor.explain.model import Hit
from nccl_doctor.facts.xid import sxids

_THERMAL_SXIDS = frozenset((10004,))


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
        digits = hit.groups.get("xid", "")
        number = int(digits) if digits.isdigit() else 0
        entry = sxids().get(number)
        said = re.search(r"non-fatal|fatal", hit.text, re.IGNORECASE)
        word = said.group().lower() if said else entry.severity if entry else "fatal"
        if number in _THERMAL_SXIDS:
            thermal.append(hit)
        (minor if word == "non-fatal" else fatal).append(hit)
    for hits, strength in ((fatal, 0.93), (minor, 0.42)):
        if hits:
            first = hits[0].groups.get("xid", "")
            entry = sxids().get(int(first)) if first.isdigit() else None
            yield Candidate(
                "gpu.nvlink",
                strength,
                f"NVSwitch error (SXid {first}{': ' + entry.name if entry else ''})",
                hits,
                hosts=hosts_of(hits),
            )
    if thermal:
        yield Candidate("gpu.thermal-power", 0.9, "an NVSwitch overheats (SXid 10004)", thermal)


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
        if any(note.file == hit.file and 0 < note.line - hit.line <= 3 for note in case.hits("nvls-registration")):
            continue
        before = ready.get((hit.host, hit.pid)) or (next(iter(ready.values()), None) if not hit.pid else None)
        if before is None or not (before.file == hit.file and before.line < hit.line):
            hits.append(hit)
    late = [] if hits else case.hits("nvls-unsupported")
    if hits or late:
        first = (hits or late)[0]
        yield Candidate(
            "gpu.fabric-manager",
            0.7 if hits else 0.3,
            f"setting up NVLink SHARP (NVLS) failed: {first.groups.get('error', '') or first.text.strip()[-80:]}",
            hits or late,
            *speakers(hits or late),
        )


_REFUSED_EVENT = re.compile(r"local access violation|invalid request local work queue")
_ACCESS_STATUS = re.compile(r"(?:error |status=)(?:IBV_WC_)?(?:REM_\w+\()?1[01]\b|REM_(?:ACCESS|OP)_ERR")


@diagnosis
def refused_by_the_peer(case: Case) -> Iterable[Candidate]:
    """A peer's adapter refuses a request, and the number says why.

    Status 10 and 11: it may not, or cannot, reach its own memory; with GPUDirect RDMA that is ACS, IOMMU or peermem.
    Status 9 and 1 ('invalid request', 'length'), and 'local access violation' on the other side: the packet was longer
    than it can take. On RoCE that is a path MTU that differs between the two ends; NCCL 2.20 to 2.29 takes each port's
    own MTU and does not agree on the smaller one.
    """
    refused = case.hits("ib-remote-error")
    events = [hit for hit in case.hits("ib-async") if _REFUSED_EVENT.search(hit.text)]
    access = [hit for hit in refused if _ACCESS_STATUS.search(hit.text)]
    other = [hit for hit in refused if hit not in access]
    if access and case.has("channel-gdr"):
        yield _refused(
            "ib.gdr", 0.66, "an adapter cannot reach the GPU memory that its peers write to", access + events
        )
    elif access:
        yield _refused("ib.gdr", 0.52, "an adapter refuses access to its memory", access + events)
    elif other or events:
        infiniband = any("/IB" in hit.text and "RoCE" not in hit.text for hit in case.hits("net-ib-using"))
        yield _refused(
            "net.mtu", 0.45 if infiniband else 0.6, "the two ends of a RoCE path have different MTUs", other + events
        )
        yield _refused("ib.gdr", 0.5, "an adapter cannot reach the memory that its peers write to", events + other)


def _refused(cause: str, strength: float, title: str, hits: list[Hit]) -> Candidate:
    return Candidate(
        cause,
        strength,
        title,
        hits,
        *speakers(hits),
    )


@diagnosis
def mtu_in_listings(case: Case) -> Iterable[Candidate]:
    """ibv_devinfo shows different active MTUs, and an adapter refuses a packet of its peer: the paths' ends do not agree."""
    listed = {hit.groups["mtu"]: hit for hit in case.hits("ib-mtu-listing")}
    refused = case.hits("ib-remote-error")
    if len(listed) > 1 and refused:
        values = " and ".join(sorted(listed, key=len))
        yield Candidate(
            "net.mtu",
            0.85,
            f"the two ends of a RoCE path have different MTUs ({values})",
            [*listed.values(), *refused[:4]],
            *speakers(refused),
            final=True,
        )


@diagnosis
def flapping_port(case: Case) -> Iterable[Candidate]:
    """A port's link-down counter is high, and connections break. The counter alone may be old: it grows until it is cleared."""
    counted = case.hits("ib-port-counters")
    broken = case.hits("ib-retry", "ib-retry-text", "ib-flush")
    if counted and broken:
        yield Candidate(
            "ib.port-down",
            0.72,
            "the link of a port has gone down again and again",
            [*counted[:3], *broken[:3]],
            hosts=hosts_of(counted),
        )


@diagnosis
def adapter_is_full(case: Case) -> Iterable[Candidate]:
    """The adapter's firmware has no room for another queue pair, queue or region; no limit of the process is to blame."""
    hits = case.hits("adapter-full")
    if hits:
        yield Candidate(
            "ib.qp-connect",
            0.96,
            "the adapter has no room for more queue pairs, completion queues or memory regions",
            [*hits[:4], *case.hits("reg-mr-nomem", "create-qp")[:4]],
            hosts=hosts_of(hits),
            final=True,
        )


@diagnosis
def only_flushed(case: Case) -> Iterable[Candidate]:
    """Only flushed requests (status 5) are in sight: the queue pair failed before, and what failed it is in no line here."""
    hits = case.hits("ib-flush")
    if not hits or case.has("ib-retry", "ib-local-protection", "ib-remote-error", "ib-port-error"):
        return
    for cause, strength, phrase in (
        ("ib.retry-exceeded", 0.46, "requests were flushed after the connection to a peer had failed"),
        ("net.peer-lost", 0.42, "a peer went away and the requests to it were flushed"),
        ("ib.gdr", 0.36, "requests were flushed, maybe after an access error of the other adapter"),
    ):
        yield Candidate(cause, strength, phrase, hits)


@diagnosis
def established_but_silent(case: Case) -> Iterable[Candidate]:
    """A connection that worked gets no answers any more, neither data nor a close: nobody said goodbye.

    A process that dies closes its sockets. Silence means that its host vanished, or that a firewall or NAT between
    forgot the connection.
    """
    hits = case.hits("established-timeout")
    if not hits:
        return
    ranks = ranks_of(hits)
    yield Candidate(
        "net.firewall",
        0.54,
        "an established connection fell silent: a firewall or NAT dropped it, or the peer's host vanished",
        hits,
        ranks,
    )
    yield Candidate("net.peer-lost", 0.5, "a peer's host stopped answering", hits, ranks)


@diagnosis
def described_topology(case: Case) -> Iterable[Candidate]:
    """NCCL's picture of the machine does not hold together: a topology file that was given, else NCCL's own detection."""
    broken = case.hits("topology-description", "topology-attribute")
    if not broken:
        return
    given = case.hits("topology-given")
    host_ids = case.env.get("NCCL_HOSTID", [])
    cause = "env.bad-nccl-var" if given or host_ids else "sw.nccl-bug"
    proof = [*broken[:4], *given[:2], *host_ids[:3]]
    yield Candidate(
        cause,
        0.8 if given or host_ids else 0.55,
        "the topology file given to NCCL does not describe this machine"
        if given
        else "NCCL_HOSTID makes hosts look alike that are not"
        if host_ids
        else "NCCL cannot make sense of this machine's topology",
        proof,
        *speakers(broken),
    )


@diagnosis
def same_host_id(case: Case) -> Iterable[Candidate]:
    """NCCL_HOSTID has one value on several hosts: NCCL takes them for one and joins them by shared memory or P2P."""
    by_value: dict[str, dict[str, Hit]] = {}
    for hit in case.env.get("NCCL_HOSTID", []):
        if hit.host:
            by_value.setdefault(hit.groups.get("value", ""), {}).setdefault(hit.host, hit)
    for value, hosts in by_value.items():
        if len(hosts) > 1:
            yield Candidate(
                "env.bad-nccl-var",
                0.88,
                f"NCCL_HOSTID={value.strip()} on several hosts makes NCCL take them for one",
                [*list(hosts.values())[:4], *case.hits("nccl-warn")[:2]],
                hosts=set(hosts),
                final=True,
            )


@diagnosis
def no_symmetric_memory(case: Case) -> Iterable[Candidate]:
    """Symmetric memory or one-sided calls are refused: a variable switched off what they need, or the machine lacks it."""
    hits = case.hits("symmetric-unsupported")
    if not hits:
        return
    off = [
        hit
        for name in ("NCCL_CUMEM_ENABLE", "NCCL_P2P_DISABLE", "NCCL_GIN_ENABLE", "NCCL_WIN_ENABLE")
        for hit in case.env.get(name, [])
    ]
    yield Candidate(
        "env.bad-nccl-var" if off else "app.pg-misuse",
        0.72 if off else 0.56,
        "symmetric memory is not available on this communicator",
        [*hits[:4], *off[:3]],
        ranks_of(hits),
    )


# Words of the tests of dcgmi diag -> cause.
_TESTS: tuple[tuple[str, str], ...] = (
    (r"memory|memtest|page retirement|row remap", "gpu.ecc"),
    (r"nvlink|nvswitch|nvbandwidth", "gpu.nvlink"),
    (r"power|pulse|thermal", "gpu.thermal-power"),
    (r"pcie", "net.slow"),
)


@diagnosis
def node_check(case: Case) -> Iterable[Candidate]:
    """A node health check failed and took the node away: the check's name and words tell what is wrong with the node."""
    for hit in case.hits("node-check", "dcgm-row"):
        dcgm = hit.signature == "dcgm-row"
        text = hit.groups.get("check") or hit.text.strip(" |")
        cause = cause_of(text, _TESTS if dcgm else REASONS)
        if cause:
            detail = [
                row for row in case.hits("dcgm-row-rows") if row.file == hit.file and 0 < row.line - hit.line <= 3
            ]
            yield Candidate(
                cause,
                0.64 if "| Warning" in hit.text else 0.84,
                f"a node health check failed: {' '.join(text.split())[:100]}",
                [hit, *(detail if dcgm else ())],
                hosts=hosts_of([hit]),
            )
            return


_HARD_REASON = re.compile(r"(?:throttle|event)_reasons\.(?:hw_|sw_thermal)")
_COLUMNS = re.compile(r"[\w.]+(?:,\s?[\w.]+(?: \[\w+\])?)+")


def _slowed(head: Hit, row: Hit) -> bool:
    """Whether a row below this heading says Active in a column of a slowdown (a power cap is none)."""
    names = re.split(r",\s?", max(_COLUMNS.findall(head.text), key=len, default=""))
    cells = [cell.strip() for cell in row.text.split(", ")]
    if len(names) <= len(cells):  # the last ones belong together, whatever stands before the first
        return any(
            _HARD_REASON.search(name) and cell == "Active" for name, cell in zip(names[::-1], cells[::-1], strict=False)
        )
    return row.file == head.file and row.line > head.line


@diagnosis
def throttle_table(case: Case) -> Iterable[Candidate]:
    """nvidia-smi was asked for hardware or thermal slowdown in CSV, and a row says Active."""
    headings = [hit for hit in case.hits("dcgm-throttle") if _HARD_REASON.search(hit.text)]
    rows = case.hits("throttle-column")
    below = [row for row in rows if any(_slowed(head, row) for head in headings)]
    if below:
        yield Candidate(
            "gpu.thermal-power",
            0.74,
            "a GPU is slowed down by heat or power",
            [*below[:6], *headings[:2]],
            hosts=hosts_of(below),
        )


@diagnosis
def sharing_between_nodes(case: Case) -> Iterable[Candidate]:
    """With NVLink between nodes (MNNVL) the peer-to-peer transport imports handles through IMEX: its failure is theirs.

    On one node the same lines mean peer-to-peer or IPC trouble of that node.
    """
    used = case.hits("mnnvl-used")
    failed = [
        hit
        for hit in case.hits("p2p-more", "nccl-warn")
        if re.search(r"transport/p2p|allocator|mnnvl|cuMem", hit.text) and "INFO" not in hit.text
    ]
    if used and failed:
        yield Candidate(
            "gpu.imex",
            0.78,
            "memory could not be shared over NVLink between nodes (MNNVL)",
            [*failed[:5], used[0]],
            *speakers(failed),
        )
