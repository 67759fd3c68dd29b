"""What all ranks of a communicator must have alike, and an initialisation that does not end."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from nccl_doctor.env import knowledge
from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case, nccl_release
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.hang import WORK
from nccl_doctor.explain.lines import hosts_of, later, ranks_of, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.watchdogs import ASYMMETRIC


@diagnosis
def settings_differ(case: Case) -> Iterable[Candidate]:
    """A variable that all ranks must agree on is set on some hosts only, or differently, and messages then do not fit.

    NCCL does not compare these settings; different algorithms, protocols or buffer sizes end in truncated messages, wrong
    receive sizes or a hang.
    """
    if not case.has("size-mismatch", "watchdog-timeout", "bootstrap-truncated", "ib-remote-error", "nccl-internal"):
        return
    places = hosts_of(case.hits("env-echo", "bootstrap-using"))
    if len(places) < 2 or not case.env:
        return
    beside = {hit.groups.get("network", "").split(" ")[0] for hit in case.hits("network-used")} - {"IB", "Socket", ""}
    for name in sorted(knowledge.load().must_agree & case.env.keys()):
        if beside and name.startswith("NCCL_IB_"):
            continue  # a rank that takes a plugin does not read it
        hits = [hit for hit in case.env[name] if hit.signature == "env-echo" and hit.host]
        values = {hit.groups["value"].strip(" .") for hit in hits}
        hosts = {hit.host for hit in hits}
        if hits and (len(values) > 1 or hosts < places):
            what = (
                f"has different values ({', '.join(sorted(values))})"
                if len(values) > 1
                else f"is set on {', '.join(sorted(hosts)[:4])} only"
            )
            title = f"{name} {what}: all ranks must agree"
            proof = [*hits[:6], *case.hits("size-mismatch")[:3]]
            yield Candidate("env.bad-nccl-var", 0.87, title, proof, hosts=hosts, final=True)
            return


_INIT_STUCK_NET = ("net.firewall", "net.wrong-interface", "ib.qp-connect")
_IDLE_NET = ("ib.qp-connect", "net.firewall", "net.mtu")
_INIT_STUCK_LOCAL = ("gpu.p2p", "sys.shm", "gpu.fabric-manager")


@diagnosis
def engine_stops_at_nccl(case: Case) -> Iterable[Candidate]:
    """The last that a serving engine says is which NCCL it uses: its workers hang in their first collective.

    Between the GPUs of a host that is peer-to-peer or shared memory, usually; NCCL's own lines would tell.
    """
    hits = case.hits("engine-names-its-nccl")
    if hits and not case.has("engine-went-on", "progress", "nccl-init-complete", "nccl-error-text"):
        title = "the engine says nothing after its NCCL's version: its workers hang in the first collective"
        yield from rivals(falling(_INIT_STUCK_LOCAL, 0.4, 0.03), title, hits[-4:], ranks_of(hits))


@diagnosis
def init_never_completes(case: Case) -> Iterable[Candidate]:
    """Some ranks begin to initialise NCCL and none ends it: those without such a line never came, or their logs are not here.

    Releases that do not say that they begin say which network they chose, and which channels they connect.
    """
    if case.has("nccl-init-complete"):
        yield from _idle_after(case)
        return
    if not case.has("nccl-init-start"):
        if case.hang.unfinished and (case.nodes > 1 or case.has("channel-net", "channel-p2p", "channel-shm")):
            phrase, failed = _connecting(case)
            began = case.hits("bootstrap-using", "network-used")[:2]
            yield from _stuck(case, phrase, _INIT_STUCK_NET, [*failed, *began])
        return
    started = {hit.groups["rank"] for hit in case.hits("nccl-init-start")}
    size = max(int(hit.groups["nranks"]) for hit in case.hits("nccl-init-start"))
    if len(started) >= size and case.hang.unfinished:
        phrase, failed = _connecting(case)
        yield from _stuck(case, phrase, _INIT_STUCK_NET, [*failed, *case.hits("nccl-init-start")[:2]])
    if len(started) < size and case.hang.unfinished:
        strengths = {"launch.world-size": 0.4, "net.firewall": 0.36, "net.wrong-interface": 0.33}
        title = f"{len(started)} of {size} ranks began to initialise NCCL in these logs, and none ended it"
        yield from rivals(
            strengths,
            title,
            [*case.hits("nccl-init-start")[:4], *case.hits("unique-id", "socket-timeout")[:4]],
        )
    if len(started) < size and case.has("socket-timeout", "watchdog-timeout", "unique-id", "heartbeat"):
        missing = list(itertools.islice((rank for rank in range(size) if str(rank) not in started), 8))
        title = f"only {len(started)} of {size} ranks began to initialise NCCL (missing: {missing})"
        proof = [*case.hits("nccl-init-start")[:8], *case.hits("unique-id", "socket-timeout")[:4]]
        yield Candidate("launch.world-size", 0.48, title, proof)


BUS_ID = re.compile(r"\bbusId ([0-9a-f]+)\b")
_SAME_FOR_ALL = frozenset(("", "localhost", "localhost.localdomain"))


@diagnosis
def one_gpu_for_two_ranks(case: Case) -> Iterable[Candidate]:
    """Two processes of one host begin, or abort, a communicator as different ranks on the same GPU (bus id), and none ever
    completes: NCCL takes one rank per GPU. Its warning need not be in the log."""
    if case.has("nccl-init-complete"):
        return
    at: dict[tuple[str, ...], dict[str, Hit]] = {}
    for hit in case.hits("nccl-init-start") or case.hits("nccl-abort"):
        gpu = BUS_ID.search(hit.text)
        if gpu and "rank" in hit.groups and hit.pid and hit.host not in _SAME_FOR_ALL:
            communicator = hit.groups.get("comm") or hit.groups["nranks"]
            at.setdefault((hit.host, hit.signature, communicator, gpu[1]), {})[hit.groups["rank"]] = hit
    for (host, *_), ranks in at.items():
        hits = list(ranks.values())
        if len({hit.pid for hit in hits}) > 1:
            title = f"ranks {', '.join(ranks)} are on the same GPU of {host}"
            yield Candidate("gpu.duplicate", 0.8, title, hits, {int(rank) for rank in ranks}, {host})


_GPUS_OF_A_HOST = 16  # at most: DGX-2, p2.16xlarge, a2-megagpu-16g


@diagnosis
def first_work_never_ends(case: Case) -> Iterable[Candidate]:
    """Every rank that gave up did so in its group's first collective, the same one: data does not pass.

    torch numbers a work once its communicator is set up, for which all ranks have to come: nobody is missing there. (Where
    init_process_group was given a device_id, the communicator is older than the work, and a rank may still be late.)
    """
    waits = case.waits
    by_group = Counter((item.group, item.operation, item.elements) for item in waits)
    first = all(item.sequence == 1 and item.completed <= 0 for item in waits)
    if not first or min(by_group.values(), default=0) < 2 or any(item.operation in ASYMMETRIC for item in waits):
        return
    hits = [hit for item in waits for hit in item.hits]
    ranks = {item.rank for item in waits}
    causes: tuple[str, ...]
    if case.between_hosts or case.world > _GPUS_OF_A_HOST:
        used = " ".join(hit.text for hit in case.hits("channel-net"))
        verbs = ("ib.gdr", *_IDLE_NET) if "GDRDMA" in used else _IDLE_NET
        causes, where = verbs if "NET/IB" in used else _INIT_STUCK_NET, " between the hosts"
    elif case.nodes == 1 and len(ranks) >= case.world:
        causes, where = (*_between_gpus(case)[:2], "sys.container"), " between the GPUs of the host"
    else:
        causes, where = ("gpu.p2p", "net.firewall", "sys.shm"), ""
    title = (
        f"{len(ranks)} ranks wait in their group's first collective, and it ends on none of them: no data passes{where}"
    )
    yield from rivals(falling(causes, 0.44, 0.03), title, hits, ranks)


_MOVED = 0.1  # GB/s: with several ranks it is at least half as much on the bus, and not rounded to 0.00


def _alone(row: Hit) -> str:
    """What a row of nccl-tests did (size, type, operation) whose one rank moved data, and none on the bus; else empty."""
    if float(row.groups["busbw"]) > 0 or float(row.groups["algbw"]) < _MOVED:
        return ""
    return " ".join(row.groups["test"].split())


def _host(told: Hit) -> str:
    """The host that a line of nccl-tests' list names; its rows name none."""
    return told.groups.get("host", "")


def _of_a_host_each(one: Hit, other: Hit) -> bool:
    """Whether pdsh and the like pass on what two hosts tell of themselves: they were tested each for itself."""
    return _host(one) != _host(other) and all(f"{_host(hit)}: " in hit.text.partition("#")[0] for hit in (one, other))


@diagnosis
def tests_without_mpi(case: Case) -> Iterable[Candidate]:
    """mpirun started nccl-tests that was built without MPI: several processes each list the ranks of a job of their own.

    Only one process of a job prints the list. Where results or errors stand between two lists, these are runs one after the other.
    Without the lists it is told by the same result twice in a row: the bus bandwidth of a reduction over one rank is 0.
    """
    firsts = [hit for hit in case.hits("tests-device") if hit.groups["rank"] == "0"]
    # Where results or a failure stand between two lists, the first run was over; or it was stopped, and started again by hand.
    over = ("busbw-row", "busbw-average", "nccl-warn", "nccl-error-text", "tests-command", "under-mpi", "cancelled")
    apart = [hit.line for name in over for hit in (*case.hits(name), *case.lasts(name))]
    together = [
        (one, other)
        for one, other in itertools.pairwise(firsts)
        if one.file == other.file
        and one.groups["pid"] != other.groups["pid"]
        and not _of_a_host_each(one, other)
        and not any(one.line < line < other.line for line in apart)
    ]
    ends = [hit.line for hit in case.hits("busbw-average")]
    together += [
        (one, other)
        for one, other in itertools.pairwise(case.hits("busbw-row"))
        if one.file == other.file
        and _alone(one) == _alone(other) != ""
        and not any(one.line < line < other.line for line in ends)
    ]
    if together:
        title = "each process of nccl-tests is a job of its own, with a rank 0 of its own: it was built without MPI=1"
        # That each came to its end makes it no better: what was to be measured was not. Without MPI somebody may have started a test
        # on each host in the background.
        alone = len(firsts) == len(case.hits("tests-device"))  # a test over one GPU measures nothing
        meant = alone or case.has("under-mpi") or any(_host(one) == _host(other) for one, other in together)
        strength = 0.86 if meant else 0.46
        yield Candidate("launch.world-size", strength, title, [*itertools.chain(*together)], final=True, slows=True)


IF_IT_HANGS = 0.22  # nothing says that it does
_CONNECTING = "the ranks began to initialise NCCL and none ended it: they hang while they connect"


def _idle_after(case: Case) -> Iterable[Candidate]:
    """NCCL was initialised and nothing is said to be done with it: where somebody interrupted that, or where the job hangs,
    the first transfer never arrived."""
    began = case.hits("nccl-init-start", "nccl-init-complete")[:2]
    if case.hang.unfinished:
        phrase = "NCCL was initialised, then nothing was said until somebody interrupted it: data does not pass"
        yield from _stuck(case, phrase, _IDLE_NET, began)
    elif case.hang.only_began:
        phrase = "if the job stands still after NCCL was initialised: data does not pass"
        yield from _stuck(case, phrase, _IDLE_NET, began, IF_IT_HANGS)


def _connecting(case: Case) -> tuple[str, list[Hit]]:
    """What to say of ranks that began and did not end it: NCCL gave up on a connection, or nothing tells that it did."""
    failed = [hit for hit in case.hits("proxy-failed") if "Connect" in hit.text]
    return ("NCCL gave up while it connected its channels", failed[:3]) if failed else (_CONNECTING, [])


def _stuck(
    case: Case, phrase: str, over_net: tuple[str, ...], began: list[Hit], strength: float = 0.42
) -> Iterable[Candidate]:
    where = "between the hosts" if case.between_hosts else "between the GPUs of the host"
    stacks = case.hits("stack-main-rows", "stack-frame")
    hits = [*began, *case.hits("channel-net", "channel-p2p", "channel-shm")[-4:], *stacks[:4]]
    causes = over_net if case.between_hosts else _between_gpus(case)
    yield from rivals(falling(causes, strength, 0.03), f"{phrase} {where}", hits)


def _between_gpus(case: Case) -> tuple[str, ...]:
    """What can be wrong between the GPUs of a host: not peer-to-peer where all channels go through shared memory."""
    return ("sys.shm",) if case.has("channel-shm") and not case.has("channel-p2p") else _INIT_STUCK_LOCAL


_VERSIONS_CLASH = (
    "bootstrap-truncated",
    "nccl-error-text",
    "watchdog-timeout",
    "nccl-mismatch",
    "peer-closed",
    "socket-timeout",
    "nccl-internal",
    "segfault",
)
_RAN = (*WORK, "nccl-init-complete")


def _of_the_rarest(told: dict[str, list[Hit]]) -> tuple[set[int], set[str]]:
    """The ranks and the hosts that print another version than at least twice as many do; the hosts of all, if none is rare."""
    versions = sorted((speakers(hits) for hits in told.values()), key=lambda said: (len(said[1]), len(said[0])))
    rare, usual = versions[0], versions[-1]
    at = 1 if usual[1] else 0  # hosts, where they are known
    if 2 * len(rare[at]) <= len(usual[at]):
        return rare
    return set(), set().union(*(hosts for _, hosts in versions))


@diagnosis
def different_nccl_versions(case: Case) -> Iterable[Candidate]:
    """The hosts of one job print different NCCL versions, and initialisation fails.

    Where one host prints them one after the other, with work or a failure in between, these are runs of their own: a run
    that fails with one release and goes on with another is a trial, and speaks for a bug of the first.
    """
    told: dict[str, list[Hit]] = defaultdict(list)
    for hit in case.hits("nccl-version"):
        number = re.match(r"\d[\d.]*\d", hit.groups["version"])  # without what a record puts behind it
        if number:
            told[nccl_release(number[0])].append(hit)
    if len(told) < 2 or not case.has(*_VERSIONS_CLASH):
        return
    (bad, (one, *_)), (good, (other, *_)) = list(told.items())[:2]
    hosts, others = hosts_of(told[bad]), hosts_of(told[good])
    apart = bool(hosts and others) and not hosts & others
    if apart or case.has("nccl-mismatch", "bootstrap-truncated") or not _in_turn(case, one, other):
        yield Candidate(
            "sw.nccl-version-mismatch",
            0.84,
            f"the processes run different NCCL versions: {', '.join(sorted(told))}",
            [
                *case.hits("bootstrap-truncated", "nccl-mismatch")[:2],
                *(hits[0] for hits in told.values()),
                *_different_images(case),
                *case.hits("nccl-version"),
            ],
            *_of_the_rarest(told),
            final=True,
        )
        return
    failed = [hit for hit in case.hits(*_VERSIONS_CLASH, "nccl-warn") if later(other, hit)]
    on = [last for name in _RAN for last in case.lasts(name) if later(last, other)]
    if failed and on and not any(later(hit, other) and later(on[0], hit) for hit in case.hits(*_VERSIONS_CLASH)):
        title = f"fails with NCCL {bad}, and goes on with {good}"
        yield Candidate("sw.nccl-bug", 0.66, title, [*failed[:3], one, other, on[0]], cured=True)


_IMAGE_FILE = re.compile(r"(?<![^\s='\":,])[^\s='\":,]+\.(?:sqsh|sif)\b")


def _different_images(case: Case) -> list[Hit]:
    """A line for each of several images of one name (with other tags) or file, as far as hosts run different ones."""
    told: dict[str, dict[str, Hit]] = defaultdict(dict)
    for hit in case.hits("container-image"):
        file = _IMAGE_FILE.search(hit.text)
        image = file[0] if file else hit.groups.get("image", "").strip("'\".,")
        name = "" if file else re.split(r"@|:(?!.*/)", image)[0]
        told[name].setdefault(image, hit)
    return [hit for images in told.values() if len(images) > 1 for hit in images.values()]


@diagnosis
def different_images(case: Case) -> Iterable[Candidate]:
    """Hosts of a job start different images of one name, and NCCL's messages then do not fit: its versions may differ.

    Steps one after the other may use different images as well; NCCL's version line of each host would tell.
    """
    hits = _different_images(case)
    if hits and case.has(*_VERSIONS_CLASH):
        title = "the containers were started from different images: their NCCL may differ"
        yield Candidate("sw.nccl-version-mismatch", 0.49, title, hits, hosts=hosts_of(hits))


def _in_turn(case: Case, one: Hit, other: Hit) -> bool:
    """Whether something was done, or failed, before the second of two versions was printed: they belong to two runs."""
    return later(other, one) and any(later(other, hit) for hit in case.hits(*_RAN, *_VERSIONS_CLASH))


@diagnosis
def no_algorithm(case: Case) -> Iterable[Candidate]:
    """NCCL does not fall back where the forced algorithm or protocol does not exist for this function, data type or machine.

    Releases before 2.24 do not say whether one was forced; where none was, the choice of NCCL itself, or of a tuner plugin, was empty.
    """
    hits = case.hits("no-algorithm")
    forced = [hit for hit in hits if "was set to" in hit.text]
    forced += case.env.get("NCCL_ALGO", []) + case.env.get("NCCL_PROTO", [])
    if forced:
        title = "NCCL_ALGO/NCCL_PROTO leave no algorithm for this collective"
        yield from rivals({"env.bad-nccl-var": 0.93}, title, hits and [*hits[:4], *forced[:2]], *speakers(hits))
        return
    causes = ["env.bad-nccl-var", "sw.nccl-bug"]
    if any(" INFO " in hit.text or "for function" in hit.text for hit in case.hits("no-algorithm", "nccl-trail")):
        causes.reverse()  # NCCL's INFO lines, and 2.24 and later, would name the variable
    title = "NCCL finds no algorithm for a collective, and no line says that NCCL_ALGO or NCCL_PROTO forces one"
    yield from rivals(falling(causes, 0.6, 0.1), title, hits[:4], *speakers(hits))


@diagnosis
def described_topology(case: Case) -> Iterable[Candidate]:
    """NCCL's picture of the machine does not hold together: a topology file that was given, else NCCL's own detection.

    A CPU without its attributes is one of a file (NCCL_TOPO_FILE, or a network plugin's): what NCCL detects has them.
    """
    broken = case.hits("topology-description", "topology-attribute")
    if not broken:
        return
    given = case.hits("topology-given") or [hit for hit in broken if "of node cpu not found" in hit.text]
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
            title = f"NCCL_HOSTID={value.strip()} on several hosts makes NCCL take them for one"
            proof = [*list(hosts.values())[:4], *case.hits("nccl-warn")[:2]]
            yield Candidate("env.bad-nccl-var", 0.88, title, proof, hosts=set(hosts), final=True)


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
    title = "symmetric memory is not available on this communicator"
    proof = [*hits[:4], *off[:3]]
    yield Candidate("env.bad-nccl-var" if off else "app.pg-misuse", 0.72 if off else 0.56, title, proof, ranks_of(hits))
