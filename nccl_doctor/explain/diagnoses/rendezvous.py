"""How ranks find each other: the master's name, the rendezvous and its store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.addresses import is_local_only, is_loopback, several_hosts
from nccl_doctor.explain.hang import GAVE_UP
from nccl_doctor.explain.lines import came_after, hosts_of, later, place, speakers
from nccl_doctor.explain.model import Hit

# 0.0.0.0/8 is "this network"; 0.0.0.0 itself is written where all interfaces are meant.
_THIS_NETWORK = re.compile(r"(?<![\d.])0\.(?!0\.0\.0\b)(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\d.])")
_STORE_NOT_REACHED = ("master-unreachable", "master-timeout", "master-refused")


@diagnosis
def numeric_hostname(case: Case) -> Iterable[Candidate]:
    """A host name of digits only: resolvers read it as an IPv4 address (``6841231`` is 0.104.99.143), which is told instead at times."""
    for hit in case.hits(*_STORE_NOT_REACHED):
        host = hit.groups.get("host", "")
        if re.fullmatch(r"\d{3,10}|0x[0-9a-fA-F]+", host):
            title = f"the host name {host} is read as a number, that is as an IPv4 address"
            yield Candidate("net.hostname-resolution", 0.92, title, [hit], final=True)
            return
    for hit in case.hits("server-awaited", *_STORE_NOT_REACHED):
        if found := _THIS_NETWORK.search(hit.text):
            number = sum(int(part) << shift for part, shift in zip(found.groups(), (16, 8, 0), strict=True))
            title = f"no host can have the address {found[0]}: it is what resolvers make of a host name {number}"
            yield Candidate("net.hostname-resolution", 0.88, title, [hit, *case.hits("server-awaited")], final=True)
            return


# user@host, a URL, host:port (an IPv6 address has more colons), or with blanks or a port's comma in it.
_NO_HOST = re.compile(r"[@/\s,]|^[^:]+:\d*$")


@diagnosis
def ray_train_without_workers(case: Case) -> Iterable[Candidate]:
    """Ray Train asked for its workers and never said that they run: what they ask for is not free, or no node has it. Where
    nobody interrupted it, it may still be starting them."""
    waiting = [hit for hit in case.lasts("ray-train-workers") if "resources" in hit.groups]
    if waiting and not case.has("progress"):
        workers, resources = waiting[0].groups["workers"], waiting[0].groups["resources"][:80]
        title = f"Ray Train started none of its {workers} workers, for which it asked {resources}"
        yield Candidate("launch.world-size", 0.62 if case.has("cancelled") else 0.5, title, waiting)


@diagnosis
def name_of_the_master(case: Case) -> Iterable[Candidate]:
    """The resolver knows no address for the master's name, or what was given as its name cannot be one.

    MASTER_ADDR, main_process_ip and the like take a host name or an address alone: no user, no scheme, no port. That
    only IPv6 was asked for in vain proves less: torch repeats that until the time-out since a mapped IPv4 address would do
    (AI_V4MAPPED), but older releases went on to IPv4. Where some address was tried, there was one.
    """
    unknown = [hit for hit in case.hits("name-unresolved") if "name" in hit.groups]
    refused = [hit for hit in case.hits("master-refused") if "client socket has timed out" not in hit.text]
    if not unknown and case.has("master-timeout", "master-unreachable") and not refused:
        unknown = case.hits("name-without-ipv6")
    for hit in sorted(unknown, key=lambda hit: _NO_HOST.search(hit.groups["name"]) is None)[:1]:
        name = hit.groups["name"][:80]
        same = [hit, *(other for other in unknown if other is not hit)]
        proven = hit.signature == "name-unresolved"
        if _NO_HOST.search(name):
            title = f"{name!r} is not a host name: give a name or an address alone, without user, scheme or port"
            yield Candidate("net.hostname-resolution", 0.96, title, same, *speakers(same), final=True)
        else:
            title = f"the host name {name} does not resolve"
            yield Candidate("net.hostname-resolution", 0.94 if proven else 0.86, title, same, *speakers(same))


@diagnosis
def master_is_loopback(case: Case) -> Iterable[Candidate]:
    """Nodes other than the first look for the master on themselves: MASTER_ADDR is localhost, or a bridge's address.

    Docker's and libvirt's bridges have the same address on every host that has them. Where only one host is seen, no network
    lies between its ranks: rank 0 has not opened its store, which is no matter of addresses.
    """
    for hit in case.hits(*_STORE_NOT_REACHED):
        host = hit.groups.get("host", "")
        named = [line for line in case.hits("loopback-name") if host in line.groups["names"].split()]
        if named and host != "localhost":
            yield Candidate(
                "net.hostname-resolution",
                0.9,
                f"the master's name {host} resolves to loopback here, so this host looks for the master on itself",
                [*named[:2], hit],
                final=True,
            )
            return
        if (is_loopback(host) or is_local_only(host)) and (case.nodes > 1 or several_hosts(case)):
            yield Candidate(
                "net.master-unreachable",
                0.86,
                f"MASTER_ADDR is {host}: every node looks for the master on itself",
                [hit, *case.hits("master-flag")[:2], *case.env.get("MASTER_ADDR", [])[:2]],
            )
            return
        if is_loopback(host) and hit.signature != "master-refused":
            yield Candidate(
                "net.master-unreachable",
                0.82,
                f"rank 0 opened no store at {host}:{hit.groups.get('port', '')}, on this same host, in time: it was busy, or had ended",
                case.hits(hit.signature),
                page="net.master-unreachable.own-host",
            )
            return


@diagnosis
def address_that_windows_refuses(case: Case) -> Iterable[Candidate]:
    """WSAEADDRNOTAVAIL: an address of the store's host is none that this machine can connect to; it has others, which follow."""
    hits = [hit for hit in case.hits("master-refused") if "10049 - " in hit.text and hit.groups.get("host")]
    if hits and not case.course.overcome("master-refused"):
        host = hits[0].groups["host"]
        title = f"Windows cannot use an address of {host} (10049): usually only the first of several that it tries"
        yield Candidate("net.master-unreachable", 0.43, title, hits, *speakers(hits))


@diagnosis
def more_processes_than_ranks(case: Case) -> Iterable[Candidate]:
    """More processes came to the store than the group has ranks. Where torchrun had started its workers again, the store (of
    torch 1.8 to 1.10) counts them with those of the attempt before, and what ended that one is the cause."""
    hits, restarted = case.hits("joined-too-many"), case.hits("attempt-begins")
    if not hits:
        return
    joined, world = hits[0].groups["joined"], hits[0].groups["world"]
    title = f"more processes came to the store than the group has ranks, {joined} for {world}"
    if restarted:
        title = f"torchrun started its workers again, and the store counts {joined} for {world}: what ended the first attempt is the cause"
        yield Candidate("app.rank-exception", 0.46, title, [*hits, *restarted])
    else:
        title += ": each was told a world size of its own, another job uses this port, or workers were started again on the old store (or its file)"
        page = "launch.world-size.too-many"
        yield Candidate("launch.world-size", 0.8, title, hits, *speakers(hits), page=page)


@diagnosis
def rendezvous_on_loopback(case: Case) -> Iterable[Candidate]:
    """torchrun was to meet other nodes at localhost: every agent serves a rendezvous of its own, and nobody else comes there."""
    named = [hit for hit in case.hits("master-flag") if "rdzv" in hit.text]
    several = [hit for hit in case.hits("nnodes") if int(hit.groups["nodes"]) > 1]
    if named and all(_is_own(hit.groups["address"]) for hit in named) and several and case.has("rdzv-timeout"):
        yield Candidate(
            "launch.world-size",
            0.9,
            f"the rendezvous is at {named[0].groups['address']}: each of the {several[0].groups['nodes']} nodes waits at itself",
            [named[0], several[0], *case.hits("rdzv-timeout")[:2], *named[1:]],
            *speakers(named),
            final=True,
        )


def _is_own(endpoint: str) -> bool:
    return is_loopback(endpoint.rpartition(":")[0].strip("[]") or endpoint)


_ENTRY = re.compile(r"(?:^|\s)(?P<address>\d{1,3}(?:\.\d{1,3}){3})\s+(?P<names>[A-Za-z][\w.-]*(?:\s+[\w.-]+){0,9})\s*$")

# What stands above an answer: the command, or the hosts whose equal answers clush -b and dshbak gathered, "n[1-2,4] (3)".
_WHOSE = re.compile(r"\$ .*|\w[\w.,\[\]-]*(?: \(\d+\))?")


@diagnosis
def hosts_disagree_on_a_name(case: Case) -> Iterable[Candidate]:
    """Somebody asked several hosts for the master's address, and their answers differ: some look for it elsewhere.

    One host may be told several addresses, and the master itself may be told that it is a loopback one: neither is wrong.
    """
    answers: dict[str, dict[str, dict[str, Hit]]] = defaultdict(lambda: defaultdict(dict))
    whose = ""
    for hit in case.hits("name-lookup-rows"):
        if _WHOSE.fullmatch(hit.text.strip()):
            whose = hit.text
        elif (found := _ENTRY.search(hit.text)) and not is_loopback(found["address"]):
            for name in found["names"].split():
                answers[name][hit.host or whose].setdefault(found["address"], hit)
    for hit in case.hits(*_STORE_NOT_REACHED):
        name = hit.groups.get("host", "").strip("[]")
        told = answers.get(name, {}).values()
        if any(one.keys().isdisjoint(other) for one in told for other in told):
            lines = {address: line for one in told for address, line in one.items()}
            title = f"hosts do not agree on the master's name: {name} is {' or '.join(sorted(lines))}"
            yield Candidate(
                "net.hostname-resolution", 0.92, title, [*lines.values(), hit], *speakers([hit]), final=True
            )
            return


# No such name, or nobody who could tell; -5 and -9: no address of that family.
_UNKNOWN_NAME = re.compile(r"gai error: -[23]\b")


@diagnosis
def name_may_be_unknown(case: Case) -> Iterable[Candidate]:
    """c10d found no IPv6 address as the name is unknown, and nothing tells that IPv4 found one, or that the job went on: whoever says
    more may have found it later."""
    hits = [hit for hit in case.hits("name-without-ipv6") if _UNKNOWN_NAME.search(hit.text)]
    if hits and not case.has(
        "name-unresolved",
        "progress",
        "store-barrier",
        "gloo-connected",
        "nccl-init-start",
        "world-size",
        "watchdog-timeout",
    ):
        last = max((*hits, *case.lasts("name-without-ipv6")), key=place)
        more = any(later(hit, last) and "c10d" not in hit.text for hit in case.tail)
        title = f"the host name {hits[0].groups['name'][:80]} does not resolve"
        yield Candidate("net.hostname-resolution", 0.46 if more else 0.56, title, hits[:4], *speakers(hits))


@diagnosis
def several_masters(case: Case) -> Iterable[Candidate]:
    """Several tasks of one job want to serve the store, which rank 0 alone does: each takes itself for rank 0.

    srun, mpirun or a loop started them, and nothing turned the launcher's variables into RANK and WORLD_SIZE: a
    world of one rank is told. Without that it may be torchrun, started several times on a host.
    """
    bound: dict[int, Hit] = {}
    for hit in case.hits("port-in-use"):
        if hit.rank is not None and "server socket has failed" in hit.text:
            bound.setdefault(hit.rank, hit)
    alone = [hit for hit in case.hits("world-size") if hit.groups["world"] == "1"]
    if len(bound) > 1 and alone:
        title = f"{len(bound)} tasks of the job want to be rank 0: the launcher's rank and size do not reach torch"
        hits = list(bound.values())
        yield Candidate(
            "launch.env-missing", 0.9, title, [*hits[:2], *alone[:2], *hits[2:]], *speakers(hits), final=True
        )


@diagnosis
def each_by_itself(case: Case) -> Iterable[Candidate]:
    """Several tasks of one srun or mpirun say that they are the only process: each trains a model of its own, over all data, and
    they overwrite each other's checkpoints. Nothing fails."""
    alone: dict[int, Hit] = {}
    for hit in case.hits("accelerate-alone"):
        if hit.rank is not None and hit.labelled:
            alone.setdefault(hit.rank, hit)
    sizes = {hit.groups["world"] for hit in case.hits("accelerate-processes")}
    if len(alone) > 1 and sizes <= {"1"} and not case.has("nccl-init-start", "gloo-connected"):
        title = f"{len(alone)} tasks run by themselves, each in a world of one: the launcher's rank and size do not reach the program"
        hits = [*alone.values(), *case.hits("accelerate-processes")[:2]]
        yield Candidate("launch.env-missing", 0.84, title, hits[:6], final=True, slows=True)


_GPUS_WANTED = re.compile(r"'GPU': (\d+(?:\.\d+)?)")


@diagnosis
def ray_asked_for_another_address(case: Case) -> Iterable[Candidate]:
    """vLLM asks Ray for a place on its own node, by an address by which Ray knows none: no GPU is taken, and none is given."""
    asked, free = case.hits("ray-node-asked"), case.hits("ray-gpus-free")
    wanted = max((sum(float(number) for number in _GPUS_WANTED.findall(hit.text)) for hit in asked), default=0.0)
    if case.has("ray-too-small") and asked and free and wanted <= float(free[0].groups["gpus"]):
        address = asked[0].groups["address"].strip("'")
        title = f"Ray knows no node by the address {address} that is asked for; its GPUs are free"
        own = [hit for hit in case.hits("vllm-host-ip") if address in hit.text]
        yield Candidate("net.wrong-interface", 0.85, title, [*own[:1], asked[0], free[0], *asked[1:2]], final=True)


def _label(text: str) -> tuple[str, ...]:
    """The words before what a process says, without times and numbers: who passes it on, and for whom."""
    words = text.partition("Connecting")[0].split()
    return tuple(
        word for word in words if re.search(r"[A-Za-z]", word) and not re.fullmatch(r"[IWEF]\d{4}|[\d:.T+-]+Z?", word)
    )


@diagnosis
def coordinators_differ(case: Case) -> Iterable[Candidate]:
    """JAX's processes look for their coordinator at different addresses: those with the wrong one never register.

    A name and an address may be the same, and who tells two of them was started again.
    """
    told: dict[str, list[Hit]] = {}
    addresses: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for hit in case.hits("jax-coordinator"):
        told.setdefault(hit.groups["address"], []).append(hit)
        addresses[hit.file, hit.rank, hit.host, _label(hit.text)].add(hit.groups["address"])
    if any(len(own) > 1 for own in addresses.values()) or len({one[:1].isdigit() for one in told}) > 1:
        return
    late = case.hits("jax-registration", "jax-register-call", "coordination-service")
    if len(told) > 1 and late:
        groups = sorted(told.values(), key=len)
        title = f"JAX's processes look for the coordinator at different addresses: {', '.join(sorted(told))}"
        proof = [*(hit for hits in groups for hit in hits[:2]), *late[:2]]
        yield Candidate("net.master-unreachable", 0.84, title, proof, *speakers(groups[0]), final=True)


@diagnosis
def not_started_on_a_host(case: Case) -> Iterable[Candidate]:
    """A command could not be started on some hosts, and the others waited at the rendezvous in vain: they had waited for it."""
    missing = [hit for hit in case.hits("shell-missing") if hit.host]
    waited = [
        hit
        for hit in case.hits("rdzv-timeout", "socket-timeout", "master-timeout")
        if hit.host and hit.host not in hosts_of(missing)
    ]
    if missing and waited:
        title = f"the program could not be started on {', '.join(sorted(hosts_of(missing))[:4])}, and the others waited for it"
        yield Candidate(
            "launch.world-size", 0.88, title, [*missing[:4], *waited[:2]], hosts=hosts_of(missing), final=True
        )


_POD = re.compile(
    r"(?P<name>(?P<job>\S+?)(?:-(?:master|worker|launcher|head))?-\w+)\s+\d+/\d+\s+(?P<state>Pending|ContainerCreating|Running)\s"
)


@diagnosis
def pods_not_running(case: Case) -> Iterable[Candidate]:
    """The others waited at the rendezvous in vain, and kubectl lists a pod of their job, to judge by its name, that does not
    run yet: its node is missing."""
    pods = [(found, hit) for hit in case.hits("pod-row") if (found := _POD.match(hit.text.strip()))]
    run = {found["job"] for found, _ in pods if found["state"] == "Running"}
    waits = [(found, hit) for found, hit in pods if found["state"] != "Running" and found["job"] in run]
    waited = case.hits("rdzv-timeout", "joined-partly", "socket-timeout", "master-timeout")
    if waits and waited:
        title = f"the rendezvous timed out: pod {waits[0][0]['name']} is {waits[0][0]['state']}"
        yield Candidate("launch.world-size", 0.86, title, [*(hit for _, hit in waits[:4]), *waited[:2]])


@diagnosis
def members_missing(case: Case) -> Iterable[Candidate]:
    """Lightning's processes say which of how many they are: some are missing, and where others are there twice, every
    node counts itself as the first (the launcher starts one process per node, or does not tell the node's number)."""
    said = case.hits("lightning-member")
    ranks = {hit.groups["rank"] for hit in said}
    if not said or len(ranks) >= int(said[0].groups["world"]):
        return
    # rank 0 started it, and it ended
    if case.has("progress", "nccl-init-complete", "child-terminated", "barrier-completed"):
        return
    twice = case.count("lightning-member") > 1.5 * len(ranks)  # the first lines may be missing
    title = f"{len(ranks)} of {said[0].groups['world']} ranks were started{', and these more than once' * twice}"
    # such a job stands still, and somebody, or its time limit, ends it
    yield Candidate("launch.world-size", 0.74 if twice else 0.44, title, said, final=twice)


@diagnosis
def answers_pings_only(case: Case) -> Iterable[Candidate]:
    """The master waited for the others, whose connections to it got no answer at all, while its host answers pings: what is between
    lets those pass and drops connections."""
    waited, pings = case.hits("joined-partly"), case.hits("pinged")
    addresses = {hit.groups["address"] for hit in pings}
    tried = [hit for hit in case.hits("master-timeout") if hit.groups.get("host") in addresses]
    if waited and tried and case.has("round-trip") and not case.has("ping-loss"):
        title = (
            "the master waits, its host answers pings, and connections to it get no answer: they are dropped on the way"
        )
        yield Candidate("net.firewall", 0.82, title, [*tried[:2], waited[0], pings[0]])


@diagnosis
def came_too_late(case: Case) -> Iterable[Candidate]:
    """The store gave up with ranks missing, and on the same machine nobody can reach it afterwards: they came too late."""
    gave_up = next((hit for hit in case.hits("joined-partly") if hit.groups.get("seconds")), None)
    tried = case.hits("master-timeout", "master-refused")
    after = [hit for hit in tried if gave_up and came_after(hit, gave_up)]
    host = after[0].groups.get("host", "") if after else ""
    if gave_up and is_loopback(host) and not several_hosts(case):
        yield Candidate(
            "launch.world-size",
            0.9,
            "{joined} of {world} ranks had come when rank 0 gave up after {seconds} s; the others came later".format_map(
                gave_up.groups
            ),
            [gave_up, *after[:2]],
            final=True,
        )


@diagnosis
def store_waits_from_the_start(case: Case) -> Iterable[Candidate]:
    """The store gave no answer in time, and nothing tells of any work: the others never came, or went to another store.

    Only candidates: a rank that is late looks the same.
    """
    of_store = ("Socket Timeout", "keys:", "waitForInput")
    hits = [hit for hit in case.hits("socket-timeout") if any(words in hit.text for words in of_store)]
    if hits and not case.has("progress", "nccl-init-complete", "watchdog-timeout", "joined-partly"):
        title = "the store gave no answer in time: other ranks never came to it"
        yield from rivals({"launch.world-size": 0.33, "net.master-unreachable": 0.31}, title, hits, *speakers(hits))


@diagnosis
def store_lost_in_mid_run(case: Case) -> Iterable[Candidate]:
    """An agent that had joined the rendezvous (it sends keep-alives, its workers made steps) loses the store's connection.

    So it could reach the host before: the process that holds the store, the first node's agent, has gone.
    """
    lost, alive = case.hits("rdzv-connection"), case.first("keep-alive-failed")
    step = case.first("progress")
    began = step is not None and lost and later(lost[0], step)
    if lost and (alive is not None or began):
        hits = [*([alive] if alive else []), *case.hits("rdzv-consequence")[:2], *lost[:4]]
        title = "the process that held the rendezvous store, the first node's agent, went away in mid-run"
        yield Candidate("net.peer-lost", 0.76, title, hits, *speakers(hits), final=True)


_NO_MPI = re.compile(r"mpi4py|libmpi|MPI library")


@diagnosis
def no_launcher_and_no_mpi(case: Case) -> Iterable[Candidate]:
    """DeepSpeed found no launcher's variables, asked MPI for them, and there is no MPI: the script was started without a launcher.

    Where mpirun or srun stands in the lines, MPI was meant, and what it lacks is what is missing.
    """
    asked = case.hits("deepspeed-no-launcher")
    failed = [item.hit for item in case.summary.tracebacks if asked and _NO_MPI.search(item.message)]
    if failed and not case.has("under-mpi"):
        title = "started without a launcher: DeepSpeed found none of its variables, and then looked for MPI in vain"
        yield Candidate("launch.env-missing", 0.88, title, [asked[0], failed[0]], *speakers(failed), final=True)


@diagnosis
def spare_node_left(case: Case) -> Iterable[Candidate]:
    """An agent waited for a round that never came, the rendezvous was closed, and torchrun trips over its own missing result.

    The job had come to its end on the other nodes, or they had given it up, for a reason of their own: here nothing of it ran.
    """
    left, tripped = case.hits("spare-node"), case.hits("agent-without-result")
    if left and tripped and not case.exceptions.ordinary and not case.has(*GAVE_UP):
        title = "a node that only waited leaves the closed rendezvous, and torchrun trips over its missing result"
        yield Candidate("launch.rdzv", 0.82, title, [*left[:2], *tripped[:2]], *speakers(left))


@diagnosis
def random_rendezvous_id(case: Case) -> Iterable[Candidate]:
    """torchrun was given no rendezvous id and drew one; where others must join, each node waits in a room of its own."""
    drawn, failed = case.hits("random-run-id"), case.hits("rdzv-timeout", "rdzv-connection")
    if drawn and failed:
        title = "no --rdzv_id: torchrun drew a random one, which the other nodes do not know"
        yield Candidate("launch.rdzv", 0.82, title, [*drawn[:2], *failed[:3]])


@diagnosis
def different_rendezvous_ids(case: Case) -> Iterable[Candidate]:
    """The nodes use different rendezvous ids, so they wait for each other in different rooms."""
    by_id = {
        hit.groups["id"].strip("'\","): hit
        for hit in reversed(case.hits("rdzv-id"))
        if hit.groups["id"].strip("'\",") not in ("none", "None", "")
    }
    if len(by_id) > 1 and case.has(
        "rdzv-timeout", "rdzv-connection", "rdzv-consequence", "socket-timeout", "joined-partly"
    ):
        title = f"the nodes use different rendezvous ids: {', '.join(sorted(by_id))}"
        yield Candidate("launch.rdzv", 0.93, title, [*by_id.values(), *case.hits("rdzv-id")[:6]], final=True)


@diagnosis
def one_restarted_pod(case: Case) -> Iterable[Candidate]:
    """kubectl shows that one pod was restarted and the others were not: it wants to join a job that goes on without it."""
    rows = []
    for hit in case.hits("pod-row"):
        found = re.match(r"(\S+)\s+\d+/\d+\s+\w+\s+(\d+)", hit.text.strip())
        if found:
            rows.append((int(found.group(2)), hit))
    restarted = [hit for count, hit in rows if count > 0]
    if (
        restarted
        and len(restarted) < len(rows)
        and case.has(
            "connect-refused",
            "connect-retry",
            "peer-closed",
            "socket-timeout",
            "master-refused",
            "connect-gave-up",
            "unique-id",
        )
    ):
        title = "a pod was restarted alone and tries to join a communicator that is gone"
        proof = [*restarted[:4], *case.hits("connect-refused", "connect-retry")[:3]]
        yield Candidate("launch.rdzv", 0.72, title, proof)


@diagnosis
def step_waits(case: Case) -> Iterable[Candidate]:
    """srun waits for what other steps of its job hold, and no step is created after it: no rank has started."""
    waits = case.hits("step-waits")
    if waits and not any(came_after(created, waits[-1]) for created in case.hits("step-created")):
        reason = waits[-1].groups.get("reason", "")
        title = f"Slurm does not create the job's step: srun waits for what is not free in its own job{f' ({reason})' if reason else ''}"
        strength = (
            0.92 if "still disabled" in waits[-1].text else 0.6
        )  # who waits that long is cancelled at last, by hand or by the limit
        yield Candidate("launch.world-size", strength, title, [waits[-1], *waits[:1]], page="launch.world-size.step")
