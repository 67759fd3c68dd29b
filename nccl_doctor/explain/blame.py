"""Who is to blame, as exactly as the logs tell: the hosts of guilty ranks, the rank of a guilty GPU, the ranks of a guilty host."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Collection, Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.diagnoses.initialisation import BUS_ID
from nccl_doctor.explain.lines import place, shape
from nccl_doctor.explain.model import Role

_MOST_LINES = 128  # in which a peer is named
_MOST_PEERS = 2  # of several, none is singled out
_MOST_LOCAL = 256  # ranks of a host
_ONE_HOST = 8  # ranks: a job of no more runs on one host, unless something tells another
_DESCRIPTION = 12  # lines of kubectl describe, from the pod's name to its node's
_FEWEST_ALIKE = 2  # hosts from whose names and ranks those of a third follow
_MOST_RANKS = 65_536  # of a job whose blocks of ranks are looked at
# What ails a host ails each rank on it, whoever of them says so.
_ALIKE_THERE = (
    *("sys.node-failure", "sys.shm", "sys.threads", "sys.container", "sys.cpu-limit", "sys.nofile", "sys.noexec"),
    *("sys.clock-or-dns-or-fs", "gpu.driver", "gpu.fabric-manager", "gpu.imex"),
    *("ib.memlock", "ib.device-not-found", "net.wrong-interface"),
)
# So do these, unless some of them say that it is they.
_OF_A_HOST = (
    *_ALIKE_THERE,
    "gpu.not-visible",
    "sw.",
    "env.",
    "net.hostname-resolution",
    "net.plugin",
    "launch.env-missing",
)
# What stands on the one host of a job, whichever rank met it first.
_ON_THE_HOST = ("gpu.", "sys.", "ib.", "net.mtu")
# What lies between two hosts is the fault of neither alone, as far as a log tells.
_BETWEEN_HOSTS = ("net.mtu", "net.slow")
_OF_A_GPU = ("gpu.illegal-access", "gpu.oom", "gpu.ecc")
_RAISED = ("app.rank-exception", "app.bad-tensor", "app.nan-or-data", "app.dataloader-worker", *_OF_A_GPU)
_OF_A_PROGRAM = ("gpu.illegal-access", "gpu.oom", "gpu.duplicate")
_OF_A_PROCESS = ("gpu.", "ib.", "sys.host-oom")
# What is written for the job as a whole, and wrong for all ranks alike.
_OF_THE_JOB = ("env.bad-nccl-var", "app.ddp-unused-params", "app.pg-misuse", "sw.", "net.plugin")
# Who reports these says whom it could not reach.
_LOOPBACK = ("127.", "localhost", "::1")
_OF_PEERS = ("ib.retry-exceeded", "net.peer-lost", "net.firewall", "net.packet-loss")
_PEER = re.compile(
    r"\b(?:peer|from|to|towards) (\[?[\w.:-]{2,64}?)\]?<\d+>|\b(?:Read|Write) error \[([\w.:]{2,64})\]:\d+"
)
_PID = re.compile(r"\bpid[=: ]{1,2}'?(\d{2,9})\b|\b[Kk]illed process (\d{2,9})\b")
_ACTORS_PID = re.compile(r"\bpid: (\d{2,9})$")
_INIT = ("nccl-init-start", "nccl-init-complete", "nccl-abort")
# These are troubles of a machine, whichever pod met them.
_OF_A_MACHINE = ("gpu.", "ib.", "sys.node-failure")
_WIDE_ROW = re.compile(
    r"(?P<pod>[a-z0-9][a-z0-9.-]{0,252})\s+\d+/\d+\s+\w+\s+\d+(?: \([^)]{1,40}\))?\s+\w+\s+"
    r"(?:\d+\.\d+\.\d+\.\d+|[\da-f:]*:[\da-f:]*|<none>)\s+(?P<node>[a-z0-9][a-z0-9.-]{0,252})"
)
_OBJECT = re.compile(
    r"\b(?:Normal|Warning)\s+\w{3,40}\s+(?:[Pp]od|[Nn]ode)/([a-z0-9][a-z0-9.-]{0,252})\s"
)  # of an event
_OWN_GPU = re.compile(r":\d+:\d+ \[(\d{1,3})\] NCCL INFO ")
_WHOLE_JOB = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED |DUE TO TIME LIMIT|srun: (?:Job step aborted|Force Terminated|forcing job)"
)
_NAMED_RANK = re.compile(r"\b(?:on rank |Rank (?=\d+, node ))(\d{1,6})\b")
_ABORTED = re.compile(r"MPI_ABORT was invoked on rank (\d{1,7})\b")
_RAYS_NODE = re.compile(r"\bnode \((?:ID: \w+, )?IP: ([\d.]+)")
_VERSIONS = re.compile(r"rank (\d{1,7}) version (\d{1,9})\b")
_NUMBER_IN_NAME = re.compile(r"\d+(?=\D*$)")
_PCI = re.compile(r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.([0-7]))?(?![0-9A-Fa-f:])")


class Places:
    """Which rank runs on which host."""

    def __init__(self, case: Case) -> None:
        self._case = case
        told = case.hosts_by_rank()
        short = _shortest({*told.values(), *case.nccl_hosts, *case.summary.hosts})
        using = (hit for hit in case.hits("bootstrap-using") if hit.host)
        at: dict[str, set[str]] = {}
        for hit in using:
            at.setdefault(hit.groups["address"].strip("[]"), set()).add(short.get(hit.host, hit.host))
        self._names = short | {address: min(hosts) for address, hosts in at.items() if len(hosts) == 1}
        self.told = {rank: self._names.get(host, host) for rank, host in told.items()}
        self.node_of = _nodes_of_pods(case)
        self.names = set(map(self.name, {*told.values(), *case.nccl_hosts} or case.summary.hosts))

    def name(self, host: str) -> str:
        """One name for a host that has several: an address that NCCL says it uses, and a name with and without its domain."""
        return self._names.get(host, host)

    def hosts(self, ranks: Iterable[int]) -> set[str]:
        """The hosts on which these ranks ran, as far as the logs name them or as they follow from the ranks beside them."""
        return {host for rank in ranks if (host := self.told.get(rank) or self._in_block(rank))}

    def ranks(self, hosts: Collection[str]) -> set[int]:
        """The ranks on these hosts, as far as they are known."""
        pods = {pod: node for pod, node in self.node_of.items() if node in hosts}
        wanted = {*map(self.name, pods), *(set(hosts) - set(pods.values()))}
        if wanted.isdisjoint(self.told.values()):
            return self._of_silent(wanted)
        if wanted >= self.names:
            return set()
        own = [rank for rank in self._ranks if self.told[rank] in wanted]
        near = range(max(own[0] - _MOST_LOCAL, 0), min(own[-1] + _MOST_LOCAL, max(self._case.world - 1, own[-1])) + 1)
        return {rank for rank in near if self.hosts((rank,)) & wanted}

    @functools.cached_property
    def only(self) -> str:
        """The one host of a job that runs on one; empty if there are more, or none is named."""
        if len(self.names) != 1 or self._case.nodes > 1:
            return ""
        world = self._case.world
        most = 2 * max(len(self.told), self._local) > world
        few = world <= _ONE_HOST and not self._case.between_hosts
        return min(self.names) if most or self._case.has("one-node") or (few and not self._elsewhere()) else ""

    def _elsewhere(self) -> bool:
        """Whether a peer is named that is not known to be on the one host that names itself."""
        trouble = (signature.name for signature in self._case.seen(Role.CAUSE, Role.SYMPTOM))
        named = (_PEER.findall(hit.text) for hit in self._case.hits(*trouble)[:_MOST_LINES])
        peers = {"".join(found).strip("[]") for all_of_line in named for found in all_of_line}
        return any(not peer.startswith(_LOOPBACK) and self.name(peer) not in self.names for peer in peers)

    @functools.cached_property
    def _local(self) -> int:
        """How many ranks a host has at least: torchrun's table names local ranks, which count up from 0, and NCCL's lines the GPU of
        each process."""
        gpus: dict[str, set[str]] = {}
        for hit in self._case.hits("bootstrap-using", *_INIT):
            if hit.host and (gpu := _OWN_GPU.search(hit.text)):
                gpus.setdefault(hit.host, set()).add(gpu[1])
        told = (int(hit.groups["local"]) + 1 for hit in self._case.hits("torchrun-rank"))
        return max(*map(len, gpus.values()), 0, max(told, default=0))

    def _of_silent(self, hosts: set[str]) -> set[int]:
        """The ranks of a host that names none: where each other block of ranks has its host, those of the block that is left."""
        if len(hosts) == 1 and (block := self._numbered(min(hosts))):
            return set(block)
        sizes = self._sizes(len(hosts | set(self.told.values()))) if len(hosts) == 1 else []
        size, world = sizes[0] if len(sizes) == 1 else 0, self._case.world
        taken = {rank // size for rank in self.told} if size else set()
        free = [block for block in range(world // size) if block not in taken] if size else []
        return set(range(free[0] * size, (free[0] + 1) * size)) if len(free) == 1 and world > size else set()

    def _numbered(self, host: str) -> range | None:
        """The ranks of a host whose number in its name says where it stands among others, two of which at least are known: ``worker-3``
        has 24 to 31 where ``worker-2`` has 23 and ``worker-4`` has 32."""
        number = _NUMBER_IN_NAME.search(host)
        sizes = self._sizes(len(set(self.told.values())) + 1) if number else []
        if not number or len(sizes) != 1:
            return None
        size = sizes[0]
        shifts: dict[int, set[str]] = {}
        for rank, other in self.told.items():
            its = _NUMBER_IN_NAME.search(other)
            if its and (other[: its.start()], other[its.end() :]) == (host[: number.start()], host[number.end() :]):
                shifts.setdefault(rank // size - int(its[0]), set()).add(other)
        first = (int(number[0]) + min(shifts, default=0)) * size
        if len(shifts) != 1 or len(shifts[min(shifts)]) < _FEWEST_ALIKE or not 0 <= first < max(self._case.world, 1):
            return None
        return range(first, first + size)

    def _in_block(self, rank: int) -> str:
        """The host of a rank that names none: launchers give each host as many ranks as the others, in a row. It is the one of the
        ranks on both sides; or, however many ranks a host may have, that of the ranks on more than half of the block."""
        if self._in_a_row:
            at = bisect.bisect(self._ranks, rank)
            beside = {self.told[one] for one in self._ranks[max(at - 1, 0) : at + 1]}
            if 0 < at < len(self._ranks) and len(beside) == 1:
                return min(beside)
        answers = {self._at(rank, size) for size in self._all_sizes}
        return min(answers) if len(answers) == 1 else ""

    def _at(self, rank: int, size: int) -> str:
        first = rank - rank % size
        known = self._ranks[bisect.bisect_left(self._ranks, first) : bisect.bisect_left(self._ranks, first + size)]
        return self.told[known[0]] if known and 2 * (known[-1] - known[0] + 1) > size else ""

    @functools.cached_property
    def _ranks(self) -> list[int]:
        return sorted(self.told)

    @functools.cached_property
    def _in_a_row(self) -> bool:
        """Whether hosts have ranks that follow each other, and not every n-th one."""
        pairs = itertools.pairwise(self._ranks)
        return any(other == one + 1 and self.told[one] == self.told[other] for one, other in pairs)

    @functools.cached_property
    def _all_sizes(self) -> list[int]:
        return self._sizes(len(set(self.told.values())))

    def _sizes(self, hosts: int) -> list[int]:
        """How many ranks each host may have, if there are at least so many hosts: each block of ranks on one host, each host with one."""
        world = self._case.world
        if not self.told or world > _MOST_RANKS:
            return []
        ends: dict[str, tuple[int, int]] = {}
        for rank in sorted(self.told):
            ends[self.told[rank]] = ends.get(self.told[rank], (rank, rank))[0], rank
        widest = max(last - first + 1 for first, last in ends.values())
        widest = max(widest, self._local)
        nodes = self._case.nodes or 1
        fewest = max(hosts, nodes, -(-world // _MOST_LOCAL))
        sizes = (world // many for many in range(fewest, world // widest + 1) if world % many == 0)
        return [size for size in sizes if self._fits(size)]

    def _fits(self, size: int) -> bool:
        blocks = {(rank // size, host) for rank, host in self.told.items()}
        return len({block for block, _ in blocks}) == len({host for _, host in blocks}) == len(blocks)


def _nodes_of_pods(case: Case) -> dict[str, str]:
    """The node of each pod that kubectl's list or the scheduler names; of a pod that has been on several, none."""
    listed = filter(None, (_WIDE_ROW.search(hit.text) for hit in case.hits("pod-row")))
    told = [(hit.groups["pod"], hit.groups["node"]) for hit in case.hits("pod-on-node")]
    described = {place(hit): hit.groups["host"] for hit in case.hits("described")}
    for hit in case.hits("described-node"):
        above = ((hit.file, hit.line - lines) for lines in range(1, _DESCRIPTION))
        pod = next((described[at] for at in above if at in described), "")
        told += [(pod, hit.groups["node"])] if pod else []
    nodes: dict[str, set[str]] = {}
    for pod, node in (*told, *((row["pod"], row["node"]) for row in listed)):
        nodes.setdefault(pod, set()).add(node)
    return {pod: min(found) for pod, found in nodes.items() if len(found) == 1}


def _shortest(names: set[str]) -> dict[str, str]:
    """For each name the one without its domain, where that is told, too; two domains may have a host of the same name each."""
    with_domain: dict[str, list[str]] = {}
    for name in names:
        if "." in name and not name.replace(".", "").isdigit():
            with_domain.setdefault(name.partition(".")[0], []).append(name)
    return {full[0]: bare for bare, full in with_domain.items() if bare in names and len(full) == 1}


def who(case: Case, item: Candidate, places: Places) -> tuple[set[int], set[str]]:
    """The ranks and the hosts to blame for a cause: what it names itself, and what follows from that."""
    ranks, hosts = _odd(case, item) or set(item.ranks), set(map(places.name, item.hosts))
    if ranks != item.ranks:
        hosts = set()
    if not ranks and item.id == "app.nan-or-data":
        named = {int(rank) for hit in item.hits for rank in _NAMED_RANK.findall(hit.text)}
        ranks, hosts = (named, places.hosts(named) or hosts) if len(named) == 1 else (ranks, hosts)
    if not hosts and len(ranks) < max(case.world, 2):  # that all ranks ran somewhere blames no host
        hosts = places.hosts(ranks)
    if item.id == "launch.killed" and all(_WHOLE_JOB.search(hit.text) for hit in item.hits):
        return set(), set()
    if not hosts and item.id.startswith(_ON_THE_HOST):
        hosts = {
            places.name(told[1]) for hit in item.hits for way in (_OBJECT, _RAYS_NODE) if (told := way.search(hit.text))
        }
    if not hosts and places.only and (item.id.startswith(_ON_THE_HOST) or 0 < len(ranks) < case.world):
        hosts = {places.only}
    if item.id.startswith(_OF_PEERS):
        ranks, hosts = _with_peers(item, ranks, hosts, places)
    if len(places.names) == 2 and item.id.startswith(_BETWEEN_HOSTS) and len(hosts) < 2:
        hosts = places.names
    ranks = ranks or _ranks_behind(case, item, hosts, places)
    if not hosts and len(ranks) < max(case.world, 2):  # of ranks that only became known here
        hosts = places.hosts(ranks)
    alike = (len(hosts) > 1 and hosts >= places.names) or 1 < case.world <= len(ranks)
    if alike and item.id.startswith(_OF_THE_JOB):
        return set(), set()
    # Who lets nothing in; of a path, both ends are told.
    if item.id == "net.firewall" and not ranks and len(hosts) == 1:
        ranks = places.ranks(hosts)
    if item.id.startswith(_OF_A_HOST) and (not ranks or item.id.startswith(_ALIKE_THERE)):
        ranks |= places.ranks(hosts)
    if item.id.startswith(_OF_A_MACHINE) and not item.id.startswith(_OF_A_PROGRAM):
        hosts = {places.node_of.get(host, host) for host in hosts}
    return ranks, hosts


def _ranks_behind(case: Case, item: Candidate, hosts: set[str], places: Places) -> set[int]:
    """The ranks of the processes, of the GPUs and of the other lines that tell of a cause, where its own lines name none."""
    ranks: set[int] = set()
    if item.id.startswith(_OF_A_PROCESS):
        telling = (hit.text for hit in item.hits if "pid" in hit.text or "illed" in hit.text)
        pids = ["".join(pid) for text in telling for pid in _PID.findall(text)]
        if any(hit.signature == "ray-vanished" for hit in item.hits):  # of an actor, which the lines above describe
            pids = [pid[1] for row in case.hits("ray-actor-rows") if (pid := _ACTORS_PID.search(row.text))] or pids
        ranks = case.ranks_with(pids, _all_names(item, hosts, places))
        if not ranks and item.id == "sys.host-oom":
            ranks = case.ended_by_srun(item.hits)
    if not ranks and item.id.startswith("gpu."):
        ranks = _of_gpu(case, item, hosts, places)
    if not ranks and item.id.startswith(_OF_A_GPU):
        ranks = _only_one(item, _all_names(item, hosts, places))
    return ranks or (_failed_otherwise(case) if item.id.startswith(_RAISED) else set())


def _odd(case: Case, item: Candidate) -> set[int]:
    """The ranks that NCCL's comparison of versions finds to have the rare one; or those of whom nothing is heard, where as many
    joined as speak."""
    if item.id == "sw.nccl-version-mismatch":
        told: dict[str, set[int]] = {}  # by version
        for hit in case.hits("nccl-mismatch"):
            for rank, version in _VERSIONS.findall(hit.text):
                told.setdefault(version, set()).add(int(rank))
        groups = sorted(told.values(), key=len)
        return groups[0] if len(groups) > 1 and 2 * len(groups[0]) <= len(groups[-1]) else set()
    joined = {(int(hit.groups["joined"]), int(hit.groups["world"])) for hit in item.hits if "joined" in hit.groups}
    heard, (of, world) = case.summary.ranks, min(joined, default=(0, 0))
    if item.id == "launch.world-size" and 0 < len(heard) == of < world <= _MOST_RANKS and max(heard) < world:
        return set(range(world)) - heard
    return set()


def _all_names(item: Candidate, hosts: set[str], places: Places) -> set[str]:
    """These hosts, by all names that the cause's own lines have for them."""
    return hosts | {name for name in item.hosts if places.name(name) in hosts}


def _only_one(item: Candidate, hosts: set[str]) -> set[int]:
    """The rank of the quoted lines that name one, if they all name the same."""
    found = {hit.rank for hit in item.hits if hit.rank is not None and (not hosts or not hit.host or hit.host in hosts)}
    return found if len(found) == 1 else set()


def _failed_otherwise(case: Case) -> set[int]:
    """The rank that ended all others of its MPI job; or the ranks that ended with an error of Python's, where torchrun's table has
    others, and a signal ended all of these."""
    aborted = {int(rank) for hit in case.hits("mpi-abort") for rank in _ABORTED.findall(hit.text)}
    if len(aborted) == 1:
        return aborted
    raised = {rank for rank, code in case.exits.items() if code == 1}
    others = [code for rank, code in case.exits.items() if rank not in raised]
    return raised if others and max(others) < 0 else set()


def _with_peers(item: Candidate, ranks: set[int], hosts: set[str], places: Places) -> tuple[set[int], set[str]]:
    """Several that all miss the same host, which misses nobody, blame that one; so does one whose peer has gone; of connections between
    more than two hosts that all have one host at an end, that one. Else both ends of a connection are to be looked at."""
    pairs: set[tuple[str, str]] = set()  # who reports, and who is missed
    for hit in item.hits[:_MOST_LINES]:
        speaker = places.name(hit.host)
        told = [hit.groups.get("peer", "").partition("<")[0]] if not hosts or speaker in hosts else []
        if told == [""]:
            told = ["".join(found) for found in _PEER.findall(hit.text)]
        for name in (name.strip("[]") for name in told):
            if not name.startswith(_LOOPBACK):
                pairs.add((speaker or f"rank {hit.rank}", places.name(name)))
    missing, peers = {one for one, _ in pairs}, {peer for _, peer in pairs}
    if len(peers) == 1 and peers.isdisjoint(missing) and (len(missing) > 1 or item.id == "net.peer-lost"):
        return set(), peers
    in_all = set.intersection(*map(set, pairs)) if len(missing) > 1 and len(missing | peers) > _MOST_PEERS else set()
    if len(in_all) == 1:  # at one end of each broken connection
        return {hit.rank for hit in item.hits if hit.rank is not None and places.name(hit.host) in in_all}, in_all
    return ranks, (hosts | (peers & places.names) if len(peers) <= _MOST_PEERS else hosts)


def _of_gpu(case: Case, item: Candidate, hosts: set[str], places: Places) -> set[int]:
    """The ranks on the GPUs that the quoted lines name by their place on the bus, as NCCL's init lines do."""
    telling = [hit for hit in item.hits if _PCI.search(hit.text)]
    alike = [hit for hit in telling if shape(hit.text) == shape(telling[0].text)]
    named = {_address(*found) for hit in alike for found in _PCI.findall(hit.text)}
    found: set[int] = set()
    for hit in case.hits(*_INIT) if named else ():
        told = BUS_ID.search(hit.text)
        if (
            told
            and told[1].lstrip("0") in named
            and (not hosts or places.name(hit.host) in hosts)
            and hit.rank is not None
        ):
            found.add(hit.rank)
    return found if hosts or len({hit.host for hit in case.hits(*_INIT)}) < 2 else set()


def _address(domain: str, bus: str, device: str, function: str) -> str:
    """A place on the bus as NCCL writes it: "0000:9a:00" is "9a000"."""
    return f"{domain}{bus}{device}{function or '0'}".lower().lstrip("0")
