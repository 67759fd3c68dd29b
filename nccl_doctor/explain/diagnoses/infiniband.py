"""InfiniBand and RoCE: facts that only together name a cause."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.lines import hosts_of, later, ranks_of, speakers
from nccl_doctor.explain.model import Hit

_RETRY = ("ib-retry", "ib-retry-text", "ib-retry-ucx")
_FABRIC_TROUBLE = (*_RETRY, "modify-qp", "create-qp", "ib-remote-error", "roce-gid-missing")


def _roce(case: Case) -> bool:
    """Whether NCCL names a port of RoCE among those that it uses."""
    return any("RoCE" in hit.text for hit in case.hits("net-ib-using"))


_USED = re.compile(r"\[\d+\]([\w.-]+):\d")
_FAILING = re.compile(r"(?:on dev |\bhca )([A-Za-z][\w.-]*)")


def _one_rail(case: Case) -> bool:
    """Whether several hosts have trouble over one and the same of several adapters: the index is that of all of them."""
    used = {device for hit in case.hits("net-ib-using") for device in _USED.findall(hit.text)}
    told = [(hit.host, found[1]) for hit in case.hits(*_FABRIC_TROUBLE) if (found := _FAILING.search(hit.text))]
    return len(used) > 1 and len({host for host, _ in told}) > 1 and len({device for _, device in told}) == 1


@diagnosis
def forced_gid_index(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_GID_INDEX is forced, the ports are RoCE, and queue pairs fail or retries run out.

    Index 0 (and 1) are the link-local RoCE entries, which no router forwards; an index beyond the table, or a v1 entry,
    fails as well. On InfiniBand links the variable is ignored since NCCL 2.22. Since 2.21 the automatic choice is right.
    """
    hits = case.env.get("NCCL_IB_GID_INDEX", [])
    value = case.value("NCCL_IB_GID_INDEX")
    if not hits or not case.has(*_FABRIC_TROUBLE) or _passed(case):
        return
    if not (_roce(case) or case.has("roce-gid-missing") or not case.has("net-ib-using")):
        return
    low = value in ("0", "1", "2")
    if not low and _one_rail(case):
        return
    local = any(re.search(r"fe80:|[Gg]id(?:s)?:? ?::(?:,|$| )", hit.text) for hit in case.hits(*_FABRIC_TROUBLE))
    trouble = case.hits(*_FABRIC_TROUBLE)
    yield Candidate(
        "ib.gid-index",
        0.92 if low or local else 0.66,
        f"NCCL_IB_GID_INDEX={value} selects a GID that does not lead to the peer",
        [*hits, *trouble[:4]],
        ranks_of(trouble),
        hosts_of(hits),
        final=low or local,
    )


_PACKET = 4096  # bytes: the largest MTU of InfiniBand and RoCE


def _passed(case: Case) -> list[Hit]:
    """The rows of nccl-tests above the first failed request between hosts: by them, both ends' GIDs lead to each other."""
    failed = case.first(*_RETRY, "ib-remote-error")
    return [row for row in case.hits("busbw-row") if failed and case.nodes != 1 and later(failed, row)]


@diagnosis
def only_one_packet_passes(case: Case) -> Iterable[Candidate]:
    """nccl-tests' sizes of one packet pass over RoCE, and retries are exceeded at the first larger one: the path, or one end, carries
    packets of a smaller MTU only. A fabric that drops under load fails at a large size."""
    sizes = [int(row.groups["size"]) for row in _passed(case)]
    if _roce(case) and 0 < max(sizes, default=0) <= _PACKET and case.has(*_RETRY):
        title = f"RoCE carries messages of one packet (up to {max(sizes)} bytes) and loses the first larger ones: the MTUs on the path differ"
        proof = [*case.hits(*_RETRY)[:4], _passed(case)[-1]]
        yield Candidate("net.mtu", 0.7, title, proof, *speakers(case.hits("ib-retry")))


@diagnosis
def nvshmem_passes_over_all(case: Case) -> Iterable[Candidate]:
    """NVSHMEM finds no adapter after it has passed over those that it sees: why it passed over them is the cause.

    A log that ends there may be of a job that found others.
    """
    strength = 0.84 if case.has("nvshmem-no-start", "nvshmem-no-device") else 0.44
    passed = case.hits("nvshmem-does-without")
    foreign = [hit for hit in passed if "is not enumerated as an mlx5 device" in hit.text]
    refused = [hit for hit in passed if "cannot allocate buffer on the specified memory type" in hit.text]
    if foreign and not refused:
        title = "NVSHMEM's IBGDA needs ConnectX adapters (mlx5), and these are not"
        yield Candidate("ib.device-not-found", strength, title, foreign, *speakers(foreign))
    if refused:
        title = "NVSHMEM's IBGDA cannot register GPU memory with any adapter: GPUDirect RDMA does not work here"
        yield Candidate("ib.gdr", strength, title, refused, *speakers(refused))


_HASTY = 10  # 4.096 us * 2^10 = 4 ms for an acknowledgement; NCCL's default is 20 (4.3 s), 18 before 2.23


@diagnosis
def hasty_timeout(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_TIMEOUT is set so low that a busy fabric alone runs into it, and retries were exceeded."""
    value, trouble = case.value("NCCL_IB_TIMEOUT") or "", case.hits(*_RETRY)
    if trouble and value.isdecimal() and int(value) <= _HASTY:
        title = f"NCCL_IB_TIMEOUT={value} waits {4.096e-3 * 2 ** int(value):.2f} ms for an acknowledgement: a busy fabric needs more"
        proof = [*case.env["NCCL_IB_TIMEOUT"][:2], *trouble[:4]]
        yield Candidate("env.bad-nccl-var", 0.78, title, proof, *speakers(trouble), final=True)


@diagnosis
def link_local_gid(case: Case) -> Iterable[Candidate]:
    """A RoCE error line shows a link-local local or remote GID (fe80::): the chosen GID cannot be routed."""
    hits = [
        hit
        for hit in case.hits(*_FABRIC_TROUBLE, "ib-local-protection")
        if re.search(r"[Gg]ids?:? ?\[?(?:fe80:)", hit.text)
    ]
    if hits and _roce(case):
        title = "the queue pairs use link-local RoCE GIDs, which do not leave the subnet"
        yield Candidate("ib.gid-index", 0.8, title, hits[:6], ranks_of(hits))


@diagnosis
def invalid_gid_in_modify(case: Case) -> Iterable[Candidate]:
    """ibv_modify_qp fails with 'Invalid argument' or 'No such device/address' over RoCE: the GID entry is empty or of another family."""
    hits = [
        hit
        for hit in case.hits("modify-qp", "create-qp")
        if re.search(
            r"Invalid argument|(?:with|error|errno) (?:22|61)\b|No such device|No data available|Cannot assign requested",
            hit.text,
        )
    ]
    empty = [hit for hit in hits if re.search(r"local GID ::(?![0-9a-fA-F:])", hit.text)]
    if empty:
        at = re.search(r"local GID index (\d+)", empty[0].text)
        title = f"queue pairs are refused: the adapter's GID entry{f' {at[1]}' if at else ''} is empty (local GID ::)"
        yield Candidate("ib.gid-index", 0.92, title, [*empty, *hits], ranks_of(empty))
    elif hits and (_roce(case) or any(re.search(r"[Gg][Ii][Dd]", hit.text) for hit in hits)):
        title = "queue pairs are refused: the GID index points to an empty or unfitting entry"
        yield Candidate("ib.gid-index", 0.68, title, hits, ranks_of(hits))


@diagnosis
def protection_error_with_gdr(case: Case) -> Iterable[Candidate]:
    """Local protection errors (status 4) while channels use GPUDirect RDMA: the adapter cannot read GPU memory.

    Usually PCIe ACS redirection or an IOMMU between GPU and adapter, or a peermem module that does not fit the driver.
    """
    hits = case.hits("ib-local-protection")
    if not hits:
        return
    gdr = case.has("channel-gdr")
    title = "adapters get local protection errors on GPU memory: GPUDirect RDMA is broken (ACS, IOMMU or peermem)"
    yield Candidate("ib.gdr", 0.85 if gdr else 0.62, title, [*hits, *case.hits("channel-gdr")[:2]], *speakers(hits))


@diagnosis
def missing_device(case: Case) -> Iterable[Candidate]:
    """NCCL finds no HCA although one is expected: a variable, a plugin or other hosts of the job use InfiniBand, or a
    listing shows adapters.

    Alone, 'No device found' and a missing libibverbs are harmless: a single node, or a cluster without RDMA.
    """
    none = case.hits("no-ib-device", *(("no-verbs-library",) if case.between_hosts else ()))
    if not none:
        return
    without = hosts_of(none)
    with_ib = hosts_of(case.hits("net-ib-using"))
    mixed = with_ib and without - with_ib
    wanted = [
        hit
        for name in ("NCCL_IB_HCA", "NCCL_NET", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_TIMEOUT")
        for hit in case.env.get(name, [])
        if name != "NCCL_NET" or hit.groups.get("value", "").strip().startswith("IB")
    ]
    asked = (case.value("NCCL_NET") or "").lower() == "socket"
    if mixed:
        title = "no usable HCA, though other hosts of the job have one"
        proof = [*none, *case.hits("net-ib-using")[:2]]
        yield Candidate("ib.device-not-found", 0.84, title, proof, hosts=without - with_ib)
    elif wanted and case.value("NCCL_IB_DISABLE") != "1":
        title = "InfiniBand is configured but NCCL finds no usable HCA"
        yield Candidate("ib.device-not-found", 0.72, title, [*none[:3], *wanted[:3]], hosts=without)
    elif case.sockets and not asked and case.between_hosts and (listed := case.hits("verbs-device")):
        lacks = "the image lacks libibverbs" if case.has("no-verbs-library") else "NCCL finds no usable adapter"
        title = f"{lacks}, though the host has RDMA adapters: all goes over TCP sockets"
        yield Candidate("ib.device-not-found", 0.74, title, [*none[:3], *listed[:2]], hosts=without)
    elif plugin := case.hits("rdma-plugin"):
        title = "an RDMA plugin is loaded but there is no RDMA device in this process"
        strength = 0.62 if case.nodes > 1 else 0.52
        yield Candidate("ib.device-not-found", strength, title, [*none[:3], *plugin[:2]], hosts=without)


@diagnosis
def no_driver_library(case: Case) -> Iterable[Candidate]:
    """The kernel has RDMA devices, and libibverbs finds no library that drives them: rdma-core's providers are missing here."""
    hits = [hit for hit in case.hits("libibverbs-driver") if "couldn't load driver" not in hit.text]
    if hits and (none := case.hits("no-hca")):
        title = "libibverbs has no driver library for the adapters: rdma-core's providers (ibverbs-providers) are missing here"
        page = "ib.device-not-found.no-provider"
        yield Candidate("ib.device-not-found", 0.86, title, [*hits, *none[:2]], *speakers(hits), page=page)


@diagnosis
def no_device_listed(case: Case) -> Iterable[Candidate]:
    """ibv_devices printed its heading and no device below it."""
    headings = case.hits("verbs-device-list")
    rows = case.hits("verbs-device-list-rows")
    dashes = any("------" in row.text for row in rows)
    if dashes and not any(re.search(r"\b[0-9a-f]{16}\b", row.text) for row in rows):
        title = "libibverbs finds no RDMA device here (ibv_devices lists none)"
        yield Candidate(
            "ib.device-not-found",
            0.74,
            title,
            [*case.hits("libibverbs-driver")[:3], *headings[:1]],
            *speakers(headings),
        )


@diagnosis
def small_memlock(case: Case) -> Iterable[Candidate]:
    """Registration fails with ENOMEM (or older NCCL and perftest do not say why), and a small locked-memory limit is told.
    What perftest took from a GPU is no matter of that limit."""
    values = [
        hit for hit in case.hits("memlock-value") if not hit.groups.get("value") or int(hit.groups["value"]) < 1_000_000
    ]
    unsaid = case.hits("reg-mr-unsaid")
    if buffers := case.hits("perftest-gpu-buffer") if unsaid else []:
        title = "GPU memory cannot be registered for GPUDirect RDMA"
        yield Candidate("ib.gdr", 0.8, title, [*unsaid[:4], *buffers[:2]], *speakers(unsaid))
    elif unsaid:
        queues = [hit for hit in unsaid if "create_" in hit.text]
        title = "a queue of the adapter cannot be created" if queues else "memory cannot be registered with the adapter"
        title += ", and the locked-memory limit is small" * bool(values)
        strength = 0.88 if values else 0.66 if queues else 0.58
        yield Candidate("ib.memlock", strength, title, [*values[:3], *unsaid[:4]], *speakers(unsaid))
    if case.has("reg-mr-nomem") and (values or case.has("memlock-text")):
        title = "the locked-memory limit (ulimit -l) is too small for RDMA"
        proof = [*values[:3], *case.hits("reg-mr-nomem")[:4], *case.hits("memlock-text")[:2]]
        yield Candidate("ib.memlock", 0.94, title, proof, *speakers(case.hits("reg-mr-nomem")))


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
    events = case.hits("ib-request-refused")
    access = [hit for hit in refused if _ACCESS_STATUS.search(hit.text)]
    hits = (access or refused) + events
    who = speakers(hits)
    if access and case.has("channel-gdr"):
        title = "an adapter cannot reach the GPU memory that its peers write to"
        yield Candidate("ib.gdr", 0.66, title, hits, *who)
    elif access:
        yield Candidate("ib.gdr", 0.52, "an adapter refuses access to its memory", hits, *who)
    elif refused or (events and not case.has("ib-local-protection")):
        infiniband = any("/IB" in hit.text and "RoCE" not in hit.text for hit in case.hits("net-ib-using"))
        title = "the two ends of a RoCE path have different MTUs"  # if RoCE it is
        yield Candidate("net.mtu", 0.45 if infiniband else 0.6 if _roce(case) else 0.56, title, hits, *who)
        title = "an adapter cannot reach the memory that its peers write to"
        yield Candidate("ib.gdr", 0.5, title, events + refused, *who)


@diagnosis
def mtu_of_queue_pairs(case: Case) -> Iterable[Candidate]:
    """Queue pairs of one job were set up with different path MTUs on different hosts, and requests then fail."""
    told = case.hits("qp-mtu")
    failing = case.has("ib-remote-error", "ib-retry", "ib-port-error", "ib-async", "modify-qp")
    if failing and len({hit.groups["mtu"] for hit in told}) > 1:
        fewest, most = (pick(told, key=lambda hit: int(hit.groups["mtu"])) for pick in (min, max))
        title = f"the RoCE MTU differs between hosts (mtu {fewest.groups['mtu']} on {fewest.host}, {most.groups['mtu']} on {most.host})"
        proof = [fewest, most, *case.hits("ib-remote-error", "ib-retry")[:3]]
        yield Candidate("net.mtu", 0.85, title, proof, hosts={fewest.host, most.host}, final=True)


@diagnosis
def mtu_in_listings(case: Case) -> Iterable[Candidate]:
    """ibv_devinfo shows different active MTUs, and an adapter refuses a packet of its peer: the paths' ends do not agree."""
    listed = {hit.groups["mtu"]: hit for hit in case.hits("ib-mtu-listing")}
    refused = case.hits("ib-remote-error")
    if len(listed) > 1 and refused:
        values = " and ".join(sorted(listed, key=len))
        title = f"the two ends of a RoCE path have different MTUs ({values})"
        yield Candidate("net.mtu", 0.85, title, [*listed.values(), *refused[:4]], *speakers(refused), final=True)


@diagnosis
def flapping_port(case: Case) -> Iterable[Candidate]:
    """A port's link-down counter is high, and connections break. The counter alone may be old: it grows until it is cleared."""
    counted = case.hits("ib-port-counters")
    broken = case.hits(*_RETRY, "ib-flush")
    if counted and broken:
        title = "the link of a port has gone down again and again"
        yield Candidate("ib.port-down", 0.72, title, [*counted[:3], *broken[:3]], hosts=hosts_of(counted))


@diagnosis
def adapter_is_full(case: Case) -> Iterable[Candidate]:
    """The adapter's firmware has no room for another queue pair, queue or region; no limit of the process is to blame."""
    hits = case.hits("adapter-full")
    if hits:
        title = "the adapter has no room for more queue pairs, completion queues or memory regions"
        proof = [*hits[:4], *case.hits("reg-mr-nomem", "create-qp")[:4]]
        yield Candidate("ib.qp-connect", 0.96, title, proof, hosts=hosts_of(hits), final=True)


@diagnosis
def only_flushed(case: Case) -> Iterable[Candidate]:
    """Only flushed requests (status 5) are in sight: the queue pair failed before, and what failed it is in no line here."""
    hits = case.hits("ib-flush")
    if not hits or case.has("ib-retry", "ib-local-protection", "ib-remote-error", "ib-port-error", "adapter-failed"):
        return
    # A process that ends closes its sockets as well; where the fabric fails, they stand until somebody gives up.
    closed = case.hits("peer-closed")
    lost = 0.54 if closed else 0.42
    hits = [*closed[:2], *hits] if closed else hits
    for cause, strength, phrase in (
        ("net.peer-lost", lost, "a peer went away and the requests to it were flushed"),
        (
            "ib.retry-exceeded",
            0.44 if closed else 0.46,
            "requests were flushed after the connection to a peer had failed",
        ),
        ("ib.gdr", 0.36, "requests were flushed, maybe after an access error of the other adapter"),
    ):
        yield Candidate(cause, strength, phrase, hits)
