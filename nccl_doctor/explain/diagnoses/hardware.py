"""InfiniBand, GPUs and slowness: facts that only together name a cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain.case import Candidate, Case, diagnosis, hosts_of, ranks_of, speakers
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.signatures.facts import BUSBW_ROW
from nccl_doctor.facts.xid import xids

_FABRIC_TROUBLE = ("ib-retry", "ib-retry-text", "modify-qp", "create-qp", "ib-remote-error", "roce-gid-missing")


@diagnosis
def forced_gid_index(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_GID_INDEX is forced, the ports are RoCE, and queue pairs fail or retries run out.

    Index 0 (and 1) are the link-local RoCE entries, which no router forwards; an index beyond the table, or a v1 entry,
    fails as well. On InfiniBand links the variable is ignored since NCCL 2.22. Since 2.21 the automatic choice is right.
    """
    hits = case.env.get("NCCL_IB_GID_INDEX", [])
    value = case.value("NCCL_IB_GID_INDEX")
    if not hits or not case.has(*_FABRIC_TROUBLE):
        return
    roce = (
        any("RoCE" in hit.text for hit in case.hits("net-ib-using"))
        or case.has("roce-gid-missing")
        or not case.has("net-ib-using")
    )
    if not roce:
        return
    low = (value or "").strip() in ("0", "1", "2")
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


@diagnosis
def link_local_gid(case: Case) -> Iterable[Candidate]:
    """A RoCE error line shows a link-local local or remote GID (fe80::): the chosen GID cannot be routed."""
    hits = [
        hit
        for hit in case.hits(*_FABRIC_TROUBLE, "ib-local-protection")
        if re.search(r"[Gg]ids?:? ?\[?(?:fe80:)", hit.text)
    ]
    both = [hit for hit in hits if len(re.findall(r"fe80:", hit.text)) >= 1]
    if both and any("RoCE" in hit.text for hit in case.hits("net-ib-using")):
        yield Candidate(
            "ib.gid-index",
            0.8,
            "the queue pairs use link-local RoCE GIDs, which do not leave the subnet",
            both[:6],
            ranks_of(both),
        )


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
    roce = any("RoCE" in hit.text for hit in case.hits("net-ib-using")) or any(
        re.search(r"[Gg][Ii][Dd]", hit.text) for hit in hits
    )
    if hits and roce:
        yield Candidate(
            "ib.gid-index",
            0.68,
            "queue pairs are refused: the GID index points to an empty or unfitting entry",
            hits,
            ranks_of(hits),
        )


@diagnosis
def protection_error_with_gdr(case: Case) -> Iterable[Candidate]:
    """Local protection errors (status 4) while channels use GPUDirect RDMA: the adapter cannot read GPU memory.

    Usually PCIe ACS redirection or an IOMMU between GPU and adapter, or a peermem module that does not fit the driver.
    """
    hits = case.hits("ib-local-protection")
    if not hits:
        return
    gdr = case.has("channel-gdr")
    yield Candidate(
        "ib.gdr",
        0.85 if gdr else 0.62,
        "adapters get local protection errors on GPU memory: GPUDirect RDMA is broken (ACS, IOMMU or peermem)",
        [*hits, *case.hits("channel-gdr")[:2]],
        *speakers(hits),
    )


@diagnosis
def peermem(case: Case) -> Iterable[Candidate]:
    """GPUDirect RDMA is off on all HCAs (no peermem, no DMA-BUF), and the program complains of it or of speed."""
    hits = case.hits("peermem-missing") or [hit for hit in case.hits("gdr-disabled") if "HCA" in hit.text]
    rows = _slow_rows(case)
    low = rows and max(map(_busbw, rows)) < _ONE_PORT
    complaint = case.hits("slow-complaint")
    verbs = case.has("net-ib-using") or any("NET/IB" in hit.text for hit in hits)
    if hits and verbs and (low or complaint) and (rows or complaint):
        yield Candidate(
            "ib.gdr",
            0.66,
            "GPUDirect RDMA is disabled: all traffic goes through host memory",
            [*hits, *rows[-2:], *complaint[:2]],
        )


@diagnosis
def missing_device(case: Case) -> Iterable[Candidate]:
    """NCCL finds no HCA although one is expected: a variable, a plugin or other hosts of the job use InfiniBand.

    Alone, 'No device found' is harmless: a single node, or a cluster without RDMA.
    """
    none = case.hits("no-ib-device")
    if not none:
        return
    without = hosts_of(none)
    with_ib = case.hosts_of("net-ib-using")
    mixed = with_ib and without - with_ib
    wanted = [
        hit
        for name in ("NCCL_IB_HCA", "NCCL_NET", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_TIMEOUT")
        for hit in case.env.get(name, [])
        if name != "NCCL_NET" or hit.groups.get("value", "").strip().startswith("IB")
    ]
    plugin = case.has("rdma-plugin")
    if mixed:
        yield Candidate(
            "ib.device-not-found",
            0.84,
            "no usable HCA, though other hosts of the job have one",
            [*none, *case.hits("net-ib-using")[:2]],
            hosts=without - with_ib,
        )
    elif wanted and case.value("NCCL_IB_DISABLE") != "1":
        yield Candidate(
            "ib.device-not-found",
            0.72,
            "InfiniBand is configured but NCCL finds no usable HCA",
            [*none[:3], *wanted[:3]],
            hosts=without,
        )
    elif plugin and case.nodes > 1:
        yield Candidate(
            "ib.device-not-found",
            0.62,
            "an RDMA plugin is loaded but there is no RDMA device in this process",
            [*none[:3], *case.hits("rdma-plugin")[:2]],
            hosts=without,
        )
    elif plugin:
        yield Candidate(
            "ib.device-not-found",
            0.52,
            "an RDMA plugin is loaded but there is no RDMA device in this process",
            [*none[:3], *case.hits("rdma-plugin")[:2]],
            hosts=without,
        )


@diagnosis
def small_memlock(case: Case) -> Iterable[Candidate]:
    """Registration fails with ENOMEM, and a listing shows a small locked-memory limit on some host."""
    values = [
        hit for hit in case.hits("memlock-value") if not hit.groups.get("value") or int(hit.groups["value"]) < 1_000_000
    ]
    if case.has("reg-mr-nomem") and (values or case.has("memlock-text")):
        yield Candidate(
            "ib.memlock",
            0.94,
            "the locked-memory limit (ulimit -l) is too small for RDMA",
            [*values[:3], *case.hits("reg-mr-nomem")[:4], *case.hits("memlock-text")[:2]],
            case.ranks("reg-mr-nomem"),
            case.hosts_of("reg-mr-nomem"),
        )


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
        yield Candidate(
            "gpu.mig",
            0.88,
            "MIG instances are used with NCCL",
            [*hits[:6], *case.hits("duplicate-gpu", "invalid-ordinal", "cumem-refused")[:4]],
            hosts=hosts_of(hits),
            final=True,
        )


@diagnosis
def peer_to_peer_hang(case: Case) -> Iterable[Candidate]:
    """All ranks of one node wait in the same collective, joined over P2P, and none ever completed one.

    Nobody is behind, so it is not the program; the first transfer over peer-to-peer never arrived. Typical of ACS or
    IOMMU redirection, and of consumer cards. NCCL_P2P_DISABLE=1 is the test.
    """
    waits = [item for item in case.work if item.hit is not None]
    if not waits or not case.has("channel-p2p") or case.has("channel-net") or case.nodes > 1:
        return
    stuck = {(item.sequence, item.operation) for item in waits}
    early = all((item.sequence or 0) <= 8 and (item.completed is None or item.completed <= 5) for item in waits)
    everyone = case.world > 0 and len({item.rank for item in waits}) >= case.world
    if len(stuck) == 1 and early and (everyone or case.has("smi-busy")):
        hits = [hit for item in waits for hit in (item.status_hit, item.hit) if hit]
        strength = 0.82 if case.has("smi-busy", "acs-redirect", "p2p-broken") else 0.68
        yield Candidate(
            "gpu.p2p",
            strength,
            "the first transfer over GPU peer-to-peer never arrives: all ranks wait in the same operation",
            [*hits, *case.hits("smi-busy")[:2], *case.hits("channel-p2p")[:1]],
            final=True,
        )


_INIT_STUCK_NET = ("net.firewall", "net.wrong-interface", "ib.qp-connect")
_INIT_STUCK_LOCAL = ("gpu.p2p", "sys.shm", "gpu.fabric-manager")


@diagnosis
def init_never_completes(case: Case) -> Iterable[Candidate]:
    """Some ranks begin to initialise NCCL and none ends it: those without such a line never came, or their logs are not here."""
    if not case.has("nccl-init-start") or case.has("nccl-init-complete"):
        return
    started = {hit.groups["rank"] for hit in case.hits("nccl-init-start")}
    size = max(int(hit.groups["nranks"]) for hit in case.hits("nccl-init-start"))
    if len(started) >= size and case.unfinished:
        over_net = case.has("channel-net") or case.nodes > 1
        where = "between the hosts" if over_net else "between the GPUs of the host"
        for place, cause in enumerate(_INIT_STUCK_NET if over_net else _INIT_STUCK_LOCAL):
            yield Candidate(
                cause,
                0.42 - 0.03 * place,
                f"all ranks began to initialise NCCL and none ended it: they hang while they connect {where}",
                [*case.hits("nccl-init-start")[:2], *case.hits("channel-net", "channel-p2p")[-4:]],
            )
    if len(started) < size and case.unfinished:
        for cause, strength in (("launch.world-size", 0.4), ("net.firewall", 0.36), ("net.wrong-interface", 0.33)):
            yield Candidate(
                cause,
                strength,
                f"{len(started)} of {size} ranks began to initialise NCCL in these logs, and none ended it",
                [*case.hits("nccl-init-start")[:4], *case.hits("unique-id", "socket-timeout")[:4]],
            )
    if len(started) < size and case.has("socket-timeout", "watchdog-timeout", "unique-id", "heartbeat"):
        missing = sorted(set(range(size)) - {int(rank) for rank in started})
        yield Candidate(
            "launch.world-size",
            0.48,
            f"only {len(started)} of {size} ranks began to initialise NCCL (missing: {missing[:8]})",
            [*case.hits("nccl-init-start")[:8], *case.hits("unique-id", "socket-timeout")[:4]],
        )


@diagnosis
def virtualised_cuda(case: Case) -> Iterable[Candidate]:
    """CUDA calls inside NCCL fail with 'unknown error' or 'invalid argument' under WSL2 or in a VM: cuMem is not supported there."""
    hits = case.hits("cuda-unknown-error", "cumem-refused", "nccl-invalid-launch")
    if hits and case.has("wsl"):
        yield Candidate(
            "sys.container",
            0.62,
            "NCCL's CUDA memory calls are not supported under WSL2",
            [*hits, *case.hits("wsl")[:2]],
        )
    elif case.has("cuda-unknown-error"):
        yield Candidate("gpu.driver", 0.52, "the CUDA driver returns 'unknown error'", case.hits("cuda-unknown-error"))


@diagnosis
def exclusive_gpu(case: Case) -> Iterable[Candidate]:
    """CUDA finds the GPU busy: certain where a listing shows a compute mode that admits one process, or none.

    Without one the GPU may as well be lost, which CUDA tells in the same words: that log does not decide.
    """
    busy = [hit for hit in case.hits("cuda-call") if "busy or unavailable" in hit.text]
    mode = case.hits("compute-mode")
    if busy and mode:
        yield Candidate(
            "gpu.not-visible",
            0.9,
            "the GPU admits one process only (compute mode), and another one has it",
            [busy[0], *mode[:2]],
            *speakers(busy),
            final=True,
        )
    elif busy:
        title = "the GPU is lost or needs a reset, which CUDA tells in the same words as a busy one"
        yield Candidate("gpu.fell-off-bus", 0.58, title, busy, *speakers(busy))


@diagnosis
def different_nccl_versions(case: Case) -> Iterable[Candidate]:
    """The hosts of one job print different NCCL versions, and initialisation fails."""
    by_host: dict[str, set[str]] = {}
    lines: dict[str, Hit] = {}
    for hit in case.hits("nccl-version"):
        host = hit.host or (f"rank {hit.rank}" if hit.rank is not None else "")
        version = hit.groups["version"].split("+")[0]
        by_host.setdefault(host, set()).add(version)
        lines.setdefault(version, hit)
    if len(lines) > 1 and case.has(
        "bootstrap-truncated",
        "nccl-error-text",
        "watchdog-timeout",
        "nccl-mismatch",
        "peer-closed",
        "socket-timeout",
        "nccl-internal",
        "segfault",
    ):
        yield Candidate(
            "sw.nccl-version-mismatch",
            0.84,
            f"the processes run different NCCL versions: {', '.join(sorted(lines))}",
            [*case.hits("bootstrap-truncated", "nccl-mismatch")[:2], *lines.values(), *case.hits("nccl-version")],
            hosts={host for host in by_host if host and not host.startswith("rank")},
            final=True,
        )


# --- slow ------------------------------------------------------------------------------------------------------------

_SERVER_GPU = re.compile(r"H100|H200|B200|B300|GB200|GB300|A100|H800|A800|H20\b")


# Bus bandwidth in GB/s: below the first no InfiniBand or RoCE link of any age is at work, below the second not even one
# 100 Gbit/s port.
_ANY_VERBS = 1.5
_ONE_PORT = 11.0


def _servers_in_the_list(case: Case) -> bool:
    """Whether nccl-tests' list of devices shows several hosts, one of them with its eighth GPU."""
    devices = case.hits("tests-device")
    eighth = any(int(hit.groups["device"]) >= 7 for hit in devices)
    return len({hit.groups["host"] for hit in devices}) > 1 and eighth


_MEASURED = re.compile(r"busbw|all_?(?:reduce|gather)|reduce_scatter|all_?to_?all|collective")


def _over_verbs(case: Case) -> bool:
    """Whether nccl-tests ran over several hosts and its network was InfiniBand or RoCE."""
    hosts = {hit.groups["host"] for hit in case.hits("tests-device")}
    verbs = case.has("net-ib-using") or any(hit.groups["network"].startswith("IB") for hit in case.hits("network-used"))
    sockets = any(hit.groups["network"].startswith("Socket") for hit in case.hits("network-used"))
    several = len(hosts) > 1 or case.nodes > 1 or case.has("channel-net") or not hosts
    return verbs and not sockets and several


def _slow_rows(case: Case) -> list[Hit]:
    """nccl-tests rows of large messages (the last one, the largest, always among them)."""
    last = case.last("busbw-row")
    rows = case.hits("busbw-row")
    rows += [last] if last is not None and last not in rows else []
    return [hit for hit in rows if _row(hit, "size") >= 1 << 26]


def _row(hit: Hit, column: str) -> float:
    """A number of an nccl-tests row (out of place)."""
    found = BUSBW_ROW.search(hit.text)
    return float(found.group(column)) if found else 0.0


def _busbw(hit: Hit) -> float:
    return _row(hit, "busbw")


@diagnosis
def slow_network(case: Case) -> Iterable[Candidate]:
    """A multi-node run on server GPUs goes over TCP sockets (or is measured far below one NIC), and nothing failed.

    Sockets on machines built for hundreds of GB/s are a misconfiguration even when every value is right. On machines
    without RDMA (workstations, single-GPU cloud machines) they are not.
    """
    socket = [hit for hit in case.hits("network-used") if hit.groups["network"].startswith("Socket")]
    over_net = case.has("channel-net") or case.nodes > 1
    rows = _slow_rows(case)
    best = max((_busbw(hit) for hit in rows), default=0.0)
    server = [hit for hit in case.hits("gpu-model") if _SERVER_GPU.search(hit.text)]
    complaint = case.hits("slow-complaint")
    per_host = Counter(
        hit.host
        for hit in {(h.host, h.groups["rank"]): h for h in case.hits("nccl-init-start", "nccl-init-complete")}.values()
    )
    local = max([int(hit.groups["local"]) for hit in case.hits("nccl-nodes")] + list(per_host.values()), default=0)
    if socket and over_net and case.nodes > 1:
        proof = [*case.hits("net-socket-using")[:2], *socket[:2], *rows[-2:], *complaint[:2]]
        if rows and best < 60 and (server or local >= 8):
            yield Candidate(
                "net.slow",
                0.8,
                f"the nodes talk over TCP sockets: {best:.0f} GB/s bus bandwidth at large sizes",
                proof,
                hosts=hosts_of(socket),
            )
        elif complaint or (server and local >= 8 and not case.has("no-ib-device-harmless")):
            yield Candidate(
                "net.slow",
                0.66 if complaint else 0.56,
                "the nodes talk over TCP sockets although these machines have faster networks",
                proof,
                hosts=hosts_of(socket),
            )
    elif rows and best < _ANY_VERBS and not case.has("network-used") and _servers_in_the_list(case):
        yield Candidate(
            "net.slow",
            0.56,
            f"servers with eight GPUs each reach only {best:.1f} GB/s bus bandwidth together",
            [*rows[-3:], *case.hits("tests-device")[:2]],
        )
    elif rows and _over_verbs(case) and (best < _ANY_VERBS or (server and best < _ONE_PORT)):
        yield Candidate(
            "net.slow",
            0.64 if best < _ANY_VERBS else 0.56,
            f"RDMA is used, but large messages reach only {best:.1f} GB/s bus bandwidth",
            [*rows[-3:], *case.hits("net-ib-using")[:2], *complaint[:2]],
            hosts=case.hosts_of("net-ib-using"),
        )
    elif complaint and (case.has("gdr-disabled") or over_net or rows or _MEASURED.search(complaint[0].text)):
        yield Candidate(
            "net.slow",
            0.6 if rows or over_net else 0.52,
            "the measured bandwidth is far below what is expected",
            [*complaint[:3], *rows[-2:]],
        )


_TOO_FAR = re.compile(r"distance \d+ > \d+")


@diagnosis
def faster_with_gpudirect(case: Case) -> Iterable[Candidate]:
    """NCCL leaves GPUDirect RDMA out because GPU and adapter are far apart, and a second run of the same test is much faster."""
    far = [hit for hit in case.hits("gdr-disabled") if _TOO_FAR.search(hit.text)]
    runs = sorted(case.hits("busbw-average"), key=lambda hit: float(hit.groups["busbw"]))
    if far and runs and float(runs[-1].groups["busbw"]) > _MUCH_FASTER * float(runs[0].groups["busbw"]) > 0:
        title = (
            f"without GPUDirect RDMA {runs[0].groups['busbw']} GB/s, in another run {runs[-1].groups['busbw']} GB/s: "
            "GPU and adapter are on different sockets"
        )
        yield Candidate("net.slow", 0.68, title, [*far[:3], runs[0], runs[-1]], *speakers(far))
        yield Candidate("ib.gdr", 0.5, title, far)


_MUCH_FASTER = 2.0


@diagnosis
def narrow_pcie(case: Case) -> Iterable[Candidate]:
    """A PCIe link has fewer lanes than it could have, and somebody says that the bandwidth is too low."""
    narrow, complaint = case.hits("pcie-width"), case.hits("slow-complaint")
    if narrow and complaint:
        title = f"a PCIe link runs with {narrow[0].groups['width']} lanes only"
        yield Candidate("net.slow", 0.66, title, [*narrow[:3], *complaint[:2]])


_LINK = re.compile(r"Link \d+: (?:<inactive>|[\d.]+ GB/s)")


@diagnosis
def uneven_nvlinks(case: Case) -> Iterable[Candidate]:
    """nvidia-smi nvlink --status: one GPU has fewer active links than its neighbours of the same model."""
    headings = case.hits("nvlink-gpu")
    links = [row for row in case.hits("nvlink-gpu-rows") if _LINK.search(row.text)]
    table = [(head, rows) for head in headings if (rows := below(head, headings, links))]
    active = [sum("inactive" not in row.text for row in rows) for _, rows in table]
    most = Counter(active).most_common(1)[0][0] if len(active) > 1 else 0
    poor = [pair for pair, count in zip(table, active, strict=True) if count < most]
    if poor and len(poor) < len(table):
        yield Candidate(
            "gpu.nvlink",
            0.86,
            f"GPU {', '.join(head.groups['gpu'] for head, _ in poor[:4])} has fewer active NVLinks than the others",
            [hit for head, rows in poor for hit in (head, *(row for row in rows if "inactive" in row.text))],
            hosts={head.host for head, _ in poor if head.host},
        )


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
        yield Candidate(
            "gpu.nvlink",
            0.82,
            f"GPU {', '.join(map(str, odd))} is not joined by NVLink like the others",
            [rows[gpu][1] for gpu in odd],
        )


_RATE = re.compile(r"(\d+(?:\.\d+)?)\s?(MB/s|MiB/s|GB/s|GiB/s|Mbit/s|Gbit/s|MBps|GBps)")
_SCALE = {
    "MB/s": 1.0,
    "MiB/s": 1.05,
    "GB/s": 1000.0,
    "GiB/s": 1074.0,
    "Mbit/s": 0.125,
    "Gbit/s": 125.0,
    "MBps": 1.0,
    "GBps": 1000.0,
}


@diagnosis
def low_measured_rate(case: Case) -> Iterable[Candidate]:
    """A benchmark of collectives over several hosts measures less than gigabit Ethernet gives, and nothing failed."""
    rates = [
        (float(found.group(1)) * _SCALE[found.group(2)], hit)
        for hit in case.hits("measured-rate")
        for found in _RATE.finditer(hit.text)
        if re.search(
            r"all.?reduce|all.?gather|broadcast|bus|algbw|bandwidth|collective|rank|reduce", hit.text, re.IGNORECASE
        )
    ]
    told = max(len(rates), case.count("measured-rate") if rates else 0)  # lines of one shape are kept once
    if told >= 2 and max(rate for rate, _ in rates) < 130 and not case.summary.tracebacks:
        yield Candidate(
            "net.slow",
            0.6,
            f"collectives run at {max(rate for rate, _ in rates):.0f} MB/s: a slow link",
            [hit for _, hit in rates][:8],
        )


_TIMED = re.compile(r"(\d{5,12}) bytes\D{1,20}?(\d+(?:\.\d+)?) ?ms")


@diagnosis
def slow_timed_collectives(case: Case) -> Iterable[Candidate]:
    """Timed collectives of a megabyte and more run below 50 MB/s, and nothing failed."""
    slow = []
    for hit in case.hits("timed-collective"):
        found = _TIMED.search(hit.text)
        if found and int(found.group(1)) >= 1_000_000 and float(found.group(2)) > 0:
            rate = int(found.group(1)) / float(found.group(2)) / 1000  # MB/s
            if rate < 50:
                slow.append((rate, hit))
    if slow and not case.summary.tracebacks:
        yield Candidate(
            "net.slow",
            0.64,
            f"collectives run at {max(rate for rate, _ in slow):.1f} MB/s",
            [hit for _, hit in slow][:8],
        )


@diagnosis
def service_not_running(case: Case) -> Iterable[Candidate]:
    """systemctl names the fabric manager or the IMEX daemon, and a line of its answer says that it does not run."""
    names = case.hits("service-name")
    for state in case.hits("service-state"):
        near = [hit for hit in names if hit.file == state.file and 0 <= state.line - hit.line <= 4]
        for word, cause in (("fabricmanager", "gpu.fabric-manager"), ("imex", "gpu.imex")):
            named = [hit for hit in near if word in hit.text]
            if named:
                yield Candidate(
                    cause,
                    0.92,
                    f"{named[0].text.strip()[:60]}: {state.text.strip()[:60]}",
                    [named[0], state],
                    hosts=hosts_of(named),
                )
                return


# By what the catalogue says of a number: how surely it is the cause of a job's failure.
_XID_STRENGTH = {"hardware": 0.96, "nvlink": 0.95, "fabric": 0.93, "driver": 0.62, "application": 0.72}
_XID_RECOVERY = 154
_XID_IGNORED = 0.4  # the catalogue's action is "ignore": recorded, but the job need not have noticed


@diagnosis
def xid(case: Case) -> Iterable[Candidate]:
    """Xids in the kernel log, by the catalogue's class: hardware and NVLink faults explain everything after them.

    Application Xids (13, 31, 43, 45) are the program's own and mostly follow from something earlier.
    """
    by_number: dict[int, list[Hit]] = {}
    for hit in case.hits("xid"):
        digits = hit.groups.get("xid", "").lstrip("+")
        if digits.isdigit():
            by_number.setdefault(int(digits), []).append(hit)
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
        outlived = number in _XID_REMAPPED and case.outlived(hits[-1], _MANY_STEPS)
        if outlived or (entry.action == "ignore" and number not in _XID_RECORDS):
            strength = min(strength, _XID_IGNORED)
        yield Candidate(
            cause,
            strength,
            f"Xid {number}: {entry.name}",
            hits,
            hosts=hosts_of(hits),
            why=f"{xid.__doc__} {entry.note}".strip(),
        )


# A reset that is still owed (154) follows a fault of the GPU; 63 and 92 record memory trouble, 45 and 43 a dead context.
_XID_CAUSE = {154: "gpu.fell-off-bus", 61: "gpu.fell-off-bus"}
_XID_REMAPPED = frozenset((63, 92))  # memory that was or will be replaced by spare rows: no job fails of it
_MANY_STEPS = 21  # lines
_XID_RECORDS = frozenset((63, 92, 160, 137, 121, 43, 45))
