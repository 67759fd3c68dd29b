"""Slowness: what was measured, and what slows it down."""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.lines import hosts_of, place, ranks_of, shortened, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import pace, prefix
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.readers.pace import SLOWER
from nccl_doctor.explain.signatures.facts import BUSBW_ROW, COMMAND, EARLIER_RUN, EXPECTATION, NODES_HEADING, RESULT
from nccl_doctor.explain.signatures.infiniband import ADAPTERS_TOLD
from nccl_doctor.explain.slowdown import communication_share
from nccl_doctor.facts.gpu_models import find

_SERVER_GPU = re.compile(r"H100|H200|B200|B300|GB200|GB300|A100|H800|A800|H20\b")
# Bus bandwidth in GB/s: below the first no InfiniBand or RoCE link of any age is at work, below the second not even one
# 100 Gbit/s port.
_ANY_VERBS = 1.5
_ONE_PORT = 11.0
_MEASURED = re.compile(r"busbw|all_?(?:reduce|gather)|reduce_scatter|all_?to_?all|collective")


def _servers_in_the_list(case: Case) -> bool:
    """Whether nccl-tests' list of devices shows several hosts, one of them with its eighth GPU."""
    devices = case.hits("tests-device")
    eighth = any(int(hit.groups["device"]) >= 7 for hit in devices)
    return len({hit.groups["host"] for hit in devices}) > 1 and eighth


def _over_verbs(case: Case) -> bool:
    """Whether nccl-tests ran over several hosts and its network was InfiniBand or RoCE."""
    hosts = {hit.groups["host"] for hit in case.hits("tests-device")}
    verbs = case.has("net-ib-using") or any(hit.groups["network"].startswith("IB") for hit in case.hits("network-used"))
    several = len(hosts) > 1 or case.between_hosts or not hosts
    return verbs and not case.sockets and several


def _slow_rows(case: Case) -> list[Hit]:
    """nccl-tests rows of large messages (the last one, the largest, always among them)."""
    last = case.last("busbw-row")
    rows = case.hits("busbw-row")
    more = [last] if last is not None and last not in rows else []
    return [hit for hit in (*rows, *more) if _row(hit, "size") >= 1 << 26]


def _row(hit: Hit, column: str) -> float:
    """A number of an nccl-tests row (out of place)."""
    found = BUSBW_ROW.search(hit.text)
    return float(found.group(column)) if found else 0.0


def _busbw(hit: Hit) -> float:
    return _row(hit, "busbw")


_OUGHT = re.compile("|".join(EXPECTATION), re.I)
_PER = r"(?:[a-z]{1,20}/s(?:ec\w*)?|[KMGT]i?B(?:ps|/s)|[KMG]b(?:it)?(?:ps|/s)|m?s(?:ec)?/(?:it|step|iter\w*))"
_NUMBER = r"\d{1,3}(?:,\d{3}){1,5}|\d{1,15}(?:\.\d{1,15})?"  # 1,200,000 or 0.8
_WITH_UNIT = re.compile(rf"({_NUMBER})(?:\s?[-\u2013]\s?(?:{_NUMBER}))?\s?({_PER})\b", re.I)
_BARE = re.compile(rf"^\D{{0,12}}({_NUMBER})")
_UNIT = re.compile(rf"\b{_PER}\b", re.I)
# The number before that word, beside its unit or its name: a time stamp stands there, too.
_OWN = re.compile(
    rf"(?:(?:{_PER}|busbw|algbw|bandwidth|throughput|speed|rate)\W{{1,4}}({_NUMBER})|({_NUMBER})\s?{_PER})\D{{0,24}}$",
    re.IGNORECASE,
)
_IN_WORDS = re.compile(r"below|slow|poor|fail|degraded|\blow|under", re.IGNORECASE)
_MET = 1.25  # times slower than expected: as good as met
_FAR = 2.0  # times slower than it ought to be: what no noise and no other machine of its kind makes


def _times_too_slow(case: Case, hit: Hit) -> float | None:
    """How many times slower than a line says it ought to be, by its own number or else nccl-tests' average."""
    word, unit = _OUGHT.search(hit.text), _UNIT.search(hit.text)
    if word is None or unit is None:
        return None
    wanted = _WITH_UNIT.search(hit.text, word.end()) or _BARE.search(hit.text[word.end() :])
    own = _OWN.search(hit.text[: word.start()])
    average = case.last("busbw-average") if "B/s" in unit.group() else None
    measured = _plain(own.group(1) or own.group(2)) if own else float(average.groups["busbw"]) if average else 0.0
    if not own and "B/s" not in unit.group():
        measured = _last_step(case, unit.group(), hit)
    ought = _plain(wanted.group(1)) if wanted else 0.0
    if measured <= 0 or ought <= 0:
        return None
    ratio = ought / measured
    return 1 / ratio if re.match(r"m?s(?:ec)?/", unit.group(), re.I) else ratio


def _last_step(case: Case, unit: str, hit: Hit) -> float:
    """What the last step before this line tells in the unit that the line expects something in; 0 where none tells it so."""
    told = re.compile(rf"\b{re.escape(unit)}[=:]\s?({_NUMBER})|({_NUMBER})\s?{re.escape(unit)}")
    steps = [step for step in (*case.hits("progress"), *case.tail) if step.file == hit.file and step.line < hit.line]
    values = [_plain(found.group(1) or found.group(2)) for step in steps if (found := told.search(step.text))]
    return values[-1] if values else 0.0


def _plain(number: str) -> float:
    return float(number.replace(",", ""))


_FEWER_HOSTS = re.compile(r"\b(?:1|one|single) node", re.IGNORECASE)  # who has no network to wait for
_EARLIER = re.compile("|".join(EARLIER_RUN), re.I)
_NAMED_RATE = re.compile(
    r"\b(tps|mfu|MFU|tflops|TFLOP/s\S*|throughput|(?:tokens?|samples|steps|images|it)/s(?:ec\w*)?)\W{1,3}(\d[\d,]*(?:\.\d+)?)"
)
_OF_STEPS = re.compile(r"(m)?s(?:ec)?/|(?:it|steps?|iter\w*)/s", re.IGNORECASE)
_TIME_OF_STEP = re.compile(
    r"(?:\bstep(?:[_ ]?time)?\W{0,3}|\b(?:in|took) |(?=\d\S{0,23} ?m?s/(?:step|it)))(\d{1,12}(?:\.\d{1,6})?) ?(m?s)(?:\b|/)",
    re.IGNORECASE,
)
_TIME = re.compile(r"(?<![\d.])(\d{1,12}(?:\.\d{1,6})?) ?(m?s)\b")
_REMARK = 60  # characters: no program's report


def _paces(text: str) -> list[tuple[str, float]]:
    """What a line tells of a pace, each as the time that a unit of work takes: seconds where that is a step."""
    told = [(unit.lower(), _plain(number)) for number, unit in _WITH_UNIT.findall(text)]
    paces = []
    for unit, number in [*told, *((name.lower(), _plain(rate)) for name, rate in _NAMED_RATE.findall(text))]:
        of_steps = _OF_STEPS.match(unit)
        if of_steps and of_steps[0].endswith("/"):
            paces.append(("step", number / 1000 if of_steps[1] else number))
        elif number:
            paces.append(("step" if of_steps else unit, 1 / number))
    return paces


def times_by_name(text: str) -> Iterable[tuple[str, float]]:
    """What a line tells of the time of a step or of its parts, by their names."""
    for found in pace.NUMBER.finditer(text):
        name = pace.name_of(text, found)
        if pace.is_time(name):
            yield name, pace.value_of(found[0])


def _times_slower_than_before(case: Case, hit: Hit) -> float:
    """How many times slower the last step is than what this line tells of an earlier run; 0 where they cannot be compared."""
    text = prefix.parse(hit.text).body
    word = _EARLIER.search(text)
    if word is None:
        return 0.0
    own, told = text[: word.start()], text[word.end() :]
    if not _paces(told) and _paces(own):  # "2.3 s/it before the update"
        own, told = own.rpartition(",")[::2]  # "16 s/step, 8 s/step on the other hosts"
    earlier = {place(one) for one in case.hits("earlier-run")}
    steps = [step.text for step in [*case.hits("progress"), *case.tail][::-1] if place(step) not in earlier]
    now = [pace for text in (own, *steps) for pace in _paces(text)]
    for unit, was in _paces(told):
        last = next((pace for its_unit, pace in now if its_unit == unit), 0.0)
        if last and was:
            return last / was
    named = dict(times_by_name(told))
    for name, seconds in (time for text in steps for time in times_by_name(text)):
        if named.get(name):
            return seconds / named[name]
    times = [time for text in (own, *steps) for time in _TIME_OF_STEP.findall(text)]
    bare = [(found[1], "s")] if (found := _BARE.search(told)) and len(text) < _REMARK and not _UNIT.search(told) else []
    for was_told, unit in _TIME.findall(told) or bare:
        seconds = next((float(time) for time, its_unit in times if its_unit == unit), 0.0)
        if _plain(was_told):
            return seconds / _plain(was_told)
    return 0.0


@functools.lru_cache(maxsize=1)  # many rules ask
def complaints(case: Case) -> list[Hit]:
    """The lines that say that it is too slow: in words, or by a number far from the one that it ought to be, or once was."""
    last = case.last("expectation")
    far = last is not None and (_times_too_slow(case, last) or 0.0) >= _FAR  # the first steps are slow anywhere
    shown = [hit for hit in case.hits("expectation") if far and (_times_too_slow(case, hit) or 0.0) >= _FAR]
    told = [
        hit
        for hit in case.hits("slow-complaint")
        if _IN_WORDS.search(hit.text) or (_times_too_slow(case, hit) or _FAR) > _MET
    ]
    slower = [
        hit
        for hit in case.hits("earlier-run")
        if _times_slower_than_before(case, hit) >= (_FAR if _FEWER_HOSTS.search(hit.text) else SLOWER)
    ]
    return list({place(hit): hit for hit in (*told, *shown, *slower, *case.hits("slow-in-words"))}.values())


def too_slow(case: Case) -> list[Hit]:
    """The lines that say so, or that a pace fell for good; empty: nothing does."""
    return [*complaints(case)[:2], *case.hits(PACE_LEFT)[1:2]]


@diagnosis
def told_to_be_slow(case: Case) -> Iterable[Candidate]:
    """Somebody says, in words or by a number of another run, that the job is too slow, and what slows it down is not told. The
    clocks of the GPUs, the counters of the links, and the times of each rank would tell."""
    told = complaints(case)
    if told and case.has("progress"):
        causes = ("net.slow", "gpu.thermal-power", "app.straggler-timeout", "sys.clock-or-dns-or-fs")
        title = f"it is slower than it ought to be: {shortened(told[-1].text, 110)}"
        yield from rivals(falling(causes, 0.32, 0.02), title, told[-4:], vague=True)


_ONE_HOST = 1.5  # times: what no two hosts of a kind differ by


@diagnosis
def same_command_slower_on_a_host(case: Case) -> Iterable[Candidate]:
    """The same benchmark was run on two hosts, as their shells' prompts tell, and one reaches far less in a second."""
    reached: dict[tuple[str, str], dict[str, tuple[float, Hit]]] = {}  # command and result -> host -> what it reached
    commands = [(hit, found) for hit in case.hits("command-on-host") if (found := COMMAND.search(hit.text))]
    for hit in case.hits("result-told"):
        typed = [found for head, found in commands if head.file == hit.file and head.line < hit.line]
        result = RESULT.search(hit.text)
        if typed and result and float(result["rate"]):
            rates = reached.setdefault((typed[-1]["command"], result["name"]), {})
            rates[typed[-1]["host"]] = float(result["rate"]), hit
    for (_, name), rates in reached.items():
        (least, slow), (most, fast) = min(rates.values(), key=_first), max(rates.values(), key=_first)
        if most >= _ONE_HOST * least:
            host = next(host for host, told in rates.items() if told[1] is slow)
            title = f"the same command reaches {least:.4g} on {host} and {most:.4g} on another host ({name})"
            causes = ("gpu.thermal-power", "app.straggler-timeout", "gpu.nvlink", "net.slow")
            yield from rivals(falling(causes, 0.44, 0.02), title, [slow, fast], hosts={host}, slows=True)
            return


def _first(pair: tuple[float, Hit]) -> float:
    return pair[0]


_IN_WORDS_NODES = {"single": 1, "one": 1, "two": 2, "three": 3, "four": 4, "eight": 8}
_NO_SCALING = 4.0  # times: what no exchange over a network that is made for it costs, however the model is spread
_OTHER_STEP = re.compile(r"global|accum|larger|bigger|longer|[x\u00d7] ?batch", re.IGNORECASE)


@diagnosis
def slower_on_more_nodes(case: Case) -> Iterable[Candidate]:
    """Under one heading steps on one node are shown, under another those on several, and these take many times as long."""
    runs: list[tuple[int, float, list[Hit]]] = []
    steps = sorted({place(hit): hit for hit in (*case.hits("progress"), *case.tail)}.values(), key=place)
    headings = [hit for hit in case.hits("nodes-heading") if not _OTHER_STEP.search(hit.text)]
    for nth, head in enumerate(headings):
        found, until = NODES_HEADING.search(head.text), headings[nth + 1].line if nth + 1 < len(headings) else math.inf
        own = [hit for hit in steps if hit.file == head.file and head.line < hit.line < until]
        paces = [(time, hit) for hit in own for unit, time in _paces(hit.text)[:1] if unit == "step"]
        nodes = (_IN_WORDS_NODES.get(found[1].lower()) or int(found[1])) if found else 0
        if len(paces) >= (
            1 if nodes == 1 else _SOME_STEPS
        ):  # a first step that is slow anywhere accuses nobody on one node
            runs.append((nodes, statistics.median(time for time, _ in paces), [head, paces[-1][1]]))
    alone = [run for run in runs if run[0] == 1]
    several = [run for run in runs if run[0] > 1 and alone and run[1] >= _NO_SCALING * alone[-1][1]]
    if several:
        (_, was, before), (nodes, now, after) = alone[-1], several[-1]
        title = f"a step takes {now:.3g} s on {nodes} nodes and {was:.3g} s on one: the network between them, or the way to it"
        causes = ("net.slow", "ib.device-not-found", "ib.gdr", "net.wrong-interface")
        yield from rivals(falling(causes, 0.44, 0.02), title, [*after, *before], slows=True)


_SOME_STEPS = 3  # the first ones are slow anywhere


@diagnosis
def slow_network(case: Case) -> Iterable[Candidate]:
    """A multi-node run on server GPUs goes over TCP sockets (or is measured far below one NIC), and nothing failed.

    Sockets on machines built for hundreds of GB/s are a misconfiguration even when every value is right. On machines
    without RDMA (workstations, single-GPU cloud machines) they are not.
    """
    rows = _slow_rows(case)
    best = max((_busbw(hit) for hit in rows), default=0.0)
    complaint = complaints(case)
    if case.sockets and case.nodes > 1:
        yield from _over_sockets(case, rows, best)
    elif rows and best < _ANY_VERBS and not case.has("network-used") and _servers_in_the_list(case):
        title = f"servers with eight GPUs each reach only {best:.1f} GB/s bus bandwidth together"
        yield Candidate("net.slow", 0.56, title, [*rows[-3:], *case.hits("tests-device")[:2]])
    elif (
        rows and best < _ONE_PORT and not case.has("network-used") and _server_gpus(case) and _servers_in_the_list(case)
    ):
        title = f"servers with eight GPUs each reach only {best:.1f} GB/s bus bandwidth together; over which network is not told"
        causes = ("net.slow", "ib.gdr", "ib.device-not-found", "env.bad-nccl-var")
        proof = [*rows[-3:], *case.hits("tests-device")[:2]]
        yield from rivals(falling(causes, 0.46, 0.02), title, proof, slows=True)
    elif rows and _over_verbs(case) and best < _least(case):
        yield Candidate(
            "net.slow",
            0.64 if best < _ANY_VERBS else 0.56,
            f"RDMA is used, but large messages reach only {best:.1f} GB/s bus bandwidth",
            [*rows[-3:], *case.hits("net-ib-using")[:2], *complaint[:2]],
            hosts=hosts_of(case.hits("net-ib-using")),
        )
    elif complaint and (case.has("gdr-disabled") or case.between_hosts or rows or _MEASURED.search(complaint[0].text)):
        title = "the measured bandwidth is far below what is expected"
        few = [*case.env.get("NCCL_IB_HCA", ())[:2], *case.hits("net-ib-using")[:1]]  # fewer adapters than there are
        few += case.hits("no-net-plugin")[:1] if case.sockets else []  # without which NCCL does not use a cloud's
        proof = [*complaint[:3], *rows[-2:], *few]
        yield Candidate("net.slow", 0.6 if rows or case.between_hosts else 0.52, title, proof)


# Bus bandwidth in GB/s: less than half of what eight GPUs on NVSwitches reach since the first of them (V100, 130 GB/s).
_NVLINK = 60.0
_NO_PEERS = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}  # level 1 (NVL) is that of NVLinks
# Values with which NVLinks carry nothing, or a fraction: no peers, few thread blocks that copy, a protocol that sends a flag
# with every four bytes.
_SLOW_LINKS = {
    **_NO_PEERS,
    "NCCL_MAX_NCHANNELS": ("1", "2"),
    "NCCL_MAX_CTAS": ("1", "2"),
    "NCCL_PROTO": ("LL",),
}
_SXM = re.compile(r"SXM|HBM3\b")


def _set_to(case: Case, values: dict[str, tuple[str, ...]]) -> list[Hit]:
    """The lines that set one of these variables to one of these values."""
    return [hit for name, some in values.items() if case.value(name) in some for hit in case.env[name]]


@diagnosis
def links_held_back(case: Case) -> Iterable[Candidate]:
    """nccl-tests on one host, whose GPUs have NVLink, reaches less than half of what NVSwitches do, and a variable keeps them
    from the speed of their links.

    That the GPUs have NVLink is told by NVLS, which needs NVSwitches, or by their model (SXM). Another run in the same logs
    that is fast shows that somebody compares on purpose.
    """
    forbidden = _set_to(case, _SLOW_LINKS)
    linked = case.hits("nvls-available") or [
        hit for hit in case.hits("gpu-model", "tests-device") if _SXM.search(hit.text)
    ]
    rows = _slow_rows(case)
    best = max(map(_busbw, (*case.hits("busbw-row"), *case.lasts("busbw-row"))), default=0.0)
    if forbidden and linked and rows and best < _NVLINK and case.nodes == 1:
        name = forbidden[0].groups["name"]
        title = f"{name}={case.value(name)} keeps the GPUs of one host from the speed of their NVLinks: {best:.1f} GB/s bus bandwidth"
        more = case.env.get("NCCL_SHM_DISABLE", ())  # then not even host memory is left
        proof = [*forbidden[:1], *more[:1], *rows[-2:], *linked[:1], *case.hits("channel-net", "channel-shm")[:1]]
        yield Candidate("env.bad-nccl-var", 0.72, title, proof, hosts=hosts_of(forbidden))


@diagnosis
def adapters_forbidden(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_DISABLE=1 sends the data of several hosts over TCP sockets, and a listing shows RDMA adapters that are up; or
    somebody tells of them; or it is slow, and the hosts have eight GPUs: such are not joined by TCP."""
    forbidden = case.env.get("NCCL_IB_DISABLE", ()) if case.value("NCCL_IB_DISABLE") == "1" else ()
    up = case.hits("adapter-up") or case.hits("adapters-told")
    complaint = [*complaints(case), *case.communicating[-3:]]
    several = case.nodes > 1 or len(hosts_of(case.sockets)) > 1
    if forbidden and (up or (complaint and _gpus_per_host(case) >= 8)) and case.sockets and several:
        what = "RDMA adapters that are up" if up else "any RDMA adapter"
        title = f"NCCL_IB_DISABLE=1 keeps NCCL from {what}: the nodes talk over TCP sockets"
        proof = [*forbidden[:2], *up[:2], *complaint[:2], *case.sockets[:1]]
        strength = 0.72 if complaint else 0.6
        yield Candidate("env.bad-nccl-var", strength, title, proof, hosts=hosts_of(forbidden), slows=True)


_NVLINKS = re.compile(r"\bNV\d")


@diagnosis
def peers_forbidden(case: Case) -> Iterable[Candidate]:
    """A variable keeps the GPUs of one host from their peers, their data goes through host memory, and a matrix shows NVLinks."""
    forbidden = _set_to(case, _NO_PEERS)
    linked = [hit for hit in case.hits("topo-row") if _NVLINKS.search(hit.text)]
    shared = case.hits("channel-shm")
    if forbidden and linked and shared:
        name = forbidden[0].groups["name"]
        title = f"{name}={case.value(name)} keeps the GPUs from their NVLinks: their data goes through host memory"
        proof = [*forbidden[:1], *linked[:1], *shared[:2]]
        yield Candidate("env.bad-nccl-var", 0.62, title, proof, hosts=hosts_of(forbidden), slows=True)


@diagnosis
def steps_are_communication(case: Case) -> Iterable[Candidate]:
    """Steps tell that they consist of communication, and NCCL's network is not TCP sockets, or it is not told: who waits for
    a late rank, for a slow link or for a wrong path says the same. The ranks' own times, and a benchmark, would tell."""
    told = [] if case.sockets else case.communicating
    if told:
        causes = ("net.slow", "app.straggler-timeout", "ib.gdr", "gpu.nvlink")
        title = f"the steps consist of communication, or of waiting in it: {shortened(told[-1].text, 110)}"
        yield from rivals(falling(causes, 0.42, 0.02), title, told[-4:], ranks_of(told))


_TOKENS = re.compile(r"Avg generation throughput: (\d+(?:\.\d+)?) tokens/s, Running: (\d+)")
_READABLE = 10.0  # tokens a second for each request: a reader's pace, which a model in one host leaves far behind


@diagnosis
def tensor_parallel_over_sockets(case: Case) -> Iterable[Candidate]:
    """vLLM spreads tensor parallelism over hosts, which exchange each layer's results over TCP sockets, and serves slowly.

    Each token waits for two exchanges a layer: it is the delay of the network that counts. Pipeline parallelism between the
    hosts needs one for each of them."""
    spread, rates = case.hits("tensor-parallel-spread"), []
    for hit in case.tail if spread and case.sockets else ():
        found = _TOKENS.search(hit.text)
        if found and int(found[2]):
            rates.append((float(found[1]) / int(found[2]), hit))
    if rates and max(rate for rate, _ in rates) < _READABLE:
        title = f"tensor parallelism goes over TCP sockets between hosts: {rates[-1][0]:.1f} tokens/s for each request"
        proof = [*spread[:1], *case.sockets[:2], *(hit for _, hit in rates[-2:]), *case.hits("link-speed")[:1]]
        yield Candidate("net.slow", 0.66, title, proof)


@diagnosis
def plugin_over_tcp(case: Case) -> Iterable[Candidate]:
    """The plugin for libfabric found no adapter and goes over TCP: on hosts with eight GPUs, or instances, which have such adapters,
    or in a job that is too slow. A small cloud machine has none."""
    hits, complaint = case.hits("ofi-over-tcp"), [*complaints(case), *case.communicating[-3:]]
    several = case.between_hosts or len(hosts_of(hits)) > 1
    ranks = max(Counter(host for host, _ in {(hit.host, hit.pid) for hit in hits}).values(), default=0)
    if hits and several and (complaint or case.has("efa-instance") or max(ranks, _gpus_per_host(case)) >= 8):
        title = "the plugin for libfabric found no adapter of its kind: the nodes talk over its provider of TCP"
        proof = [*hits[:2], *complaint[:2], *case.hits("efa-instance", "channel-net")[:2]]
        yield Candidate("net.plugin", 0.72 if complaint else 0.62, title, proof, hosts=hosts_of(hits), slows=True)


_SOCKET_INTERFACE = re.compile(r"\[\d+\]([\w.-]+):")
_TUNNEL = re.compile(r"tailscale|wg\d|zt\w|tun\d|tap\d|utun|ppp\d|nebula|netmaker|vpn")


def _over_sockets(case: Case, rows: list[Hit], best: float) -> Iterable[Candidate]:
    complaint = [*complaints(case), *case.communicating[-3:]]
    eight = _gpus_per_host(case) >= 8
    proof = [*case.hits("net-socket-using")[:2], *case.sockets[:2], *rows[-2:], *complaint[:2]]
    proof += case.hits("no-net-plugin")[:1]  # without which NCCL does not use a cloud's adapters
    if rows and best < 60 and (eight or _server_gpus(case)):
        title = f"the nodes talk over TCP sockets: {best:.0f} GB/s bus bandwidth at large sizes"
        yield Candidate("net.slow", 0.8, title, proof, hosts=hosts_of(case.sockets))
    elif complaint or (eight and _server_gpus(case)):
        title = "the nodes talk over TCP sockets although these machines have faster networks"
        if tunnels := [name for hit in proof for name in _SOCKET_INTERFACE.findall(hit.text) if _TUNNEL.match(name)]:
            title = f"the nodes' data goes over {tunnels[0]}, a tunnel"
        elif complaint:
            told = case.communicating
            share = communication_share(told[-1].text) if told else None
            far = f"{share * 100:.0f} % of a step is communication" if share else "it is far slower than it ought to be"
            title = f"the nodes talk over TCP sockets, and {far}"
        yield Candidate("net.slow", 0.66 if complaint else 0.56, title, proof, hosts=hosts_of(case.sockets))


_GIGABIT = 1000  # Mb/s: a GPU's gradients of one step are worth many seconds of it


@diagnosis
def slow_interface(case: Case) -> Iterable[Candidate]:
    """Hosts talk over TCP sockets, and somebody looked up (ethtool, iperf) that an interface has no more than gigabit Ethernet."""
    used = {name for hit in case.hits("net-socket-using") for name in _SOCKET_INTERFACE.findall(hit.text)}
    told = [(hit, _asked_of(case, hit)) for hit in case.hits("link-speed")]
    told = [(hit, interface) for hit, interface in told if not used or interface in {"", *used}]
    speeds = [hit for hit, _ in told if 0 < float(hit.groups.get("speed") or 0) <= _GIGABIT]
    fast = [pair for pair in told if "gigabits" in pair[0].groups or float(pair[0].groups.get("speed") or 0) > _GIGABIT]
    if fast and not all(interface in used for _, interface in told):
        return  # which of them the job uses is not told
    sockets = case.sockets + [hit for hit in case.hits("channel-net") if hit.groups["network"].startswith("Socket")]
    if speeds and (sockets or case.has("gloo-connected", "net-socket-using")):
        title = f"the hosts talk over an interface of {speeds[0].groups['speed']} Mb/s"
        proof = [*speeds[:2], *sockets[:2], *case.hits("net-socket-using")[:2]]
        yield Candidate("net.slow", 0.68, title, proof, hosts=hosts_of(sockets))


_NAME = re.compile(r"^\s*([a-z][\w.-]{1,14})\s*:?\s*(?:Speed: (\d{1,7})Mb/s)?\s*$")
_SPEED_ALONE = re.compile(r"^\s*Speed: (\d{1,7})Mb/s\s*$")
_MANY_TIMES = 10  # as fast: no choice that somebody makes on purpose


@diagnosis
def faster_interface_unused(case: Case) -> Iterable[Candidate]:
    """Hosts talk over TCP sockets of an interface, and a loop of ethtool over all of them shows one that is many times as fast."""
    used = {name for hit in case.hits("net-socket-using") for name in _SOCKET_INTERFACE.findall(hit.text)}
    speeds: dict[str, tuple[int, list[Hit]]] = {}
    name, above = "", []
    for row in case.hits("ethtool-loop-rows"):
        text = prefix.parse(row.text).body.strip('" ')
        found, alone = _NAME.match(text), _SPEED_ALONE.match(text)
        told = (found[2] if found else None) or (alone[1] if alone else None)
        if found:
            name, above = found[1], [row]
        if told and name:
            speeds[name] = (int(told), [*above, row])
    slow = [name for name in used if name in speeds]
    fast = max(speeds, key=lambda name: speeds[name][0], default="")
    if slow and case.sockets and speeds[fast][0] >= _MANY_TIMES * max(speeds[name][0] for name in slow):
        title = f"the hosts talk over {slow[0]} ({speeds[slow[0]][0]} Mb/s), and {fast} has {speeds[fast][0]} Mb/s"
        proof = [*case.hits("net-socket-using")[:1], *speeds[slow[0]][1], *speeds[fast][1]]
        proof += case.env.get("NCCL_SOCKET_IFNAME", ())[:1]
        yield Candidate("net.wrong-interface", 0.74, title, proof, hosts=hosts_of(case.sockets), slows=True)


_ETHTOOL = 30  # lines: what it prints of an interface before the speed


def _asked_of(case: Case, speed: Hit) -> str:
    """The interface whose speed a line tells; empty where that is not told."""
    asked = [
        hit for hit in case.hits("ethtool-asked") if hit.file == speed.file and 0 < speed.line - hit.line <= _ETHTOOL
    ]
    return asked[-1].groups["interface"] if asked else ""


_PART = re.compile(r"\b([a-z][a-z_-]*): ?(\d+(?:\.\d+)?)")
_EXCHANGE = re.compile(r"all-?reduce|reduce-?scatter|all-?gather|grads-sync", re.IGNORECASE)
_MOST = 0.7  # of a step: no computation hides so much of it
_SECONDS = 5000.0  # ms: even large models exchange their gradients in less over any network made for it
_TOLD = 3  # steps: the first ones are slow anywhere
# Who waits for a late rank, for a slow link or for a wrong path says the same.
_EXCHANGES = ("net.slow", "app.straggler-timeout", "ib.gdr", "gpu.nvlink")


@diagnosis
def step_of_waiting(case: Case) -> Iterable[Candidate]:
    """A framework's own timers say that nearly all of a step, seconds of it, is exchange of gradients between hosts."""
    slow = []
    for hit in case.hits("step-timers"):
        parts = {name: float(time) for name, time in _PART.findall(hit.text)}
        exchange = max((time for name, time in parts.items() if _EXCHANGE.search(name)), default=0.0)
        whole = max((time for name, time in parts.items() if not _EXCHANGE.search(name)), default=0.0)
        if exchange > max(_SECONDS, _MOST * whole) and whole:
            slow.append((exchange, hit))
    if slow and case.between_hosts and not case.summary.tracebacks:
        worst, hit = max(slow, key=lambda pair: pair[0])
        title = f"the exchange of gradients takes {worst / 1000:.0f} s of each step"
        yield Candidate("net.slow", 0.58, title, [hit, *(hit for _, hit in slow[:3])], *speakers([hit]))
    elif len(slow) >= _TOLD:
        worst, hit = max(slow, key=lambda pair: pair[0])
        title = f"the exchange of gradients, or waiting in it, takes {worst / 1000:.1f} s of each step"
        yield from rivals(falling(_EXCHANGES, 0.42, 0.02), title, [hit for _, hit in slow[-4:]], slows=True)


def _least(case: Case) -> float:
    """The bus bandwidth in GB/s that RDMA between these hosts reaches even if it is set up badly."""
    return max(_ONE_PORT, _TINY * _carried(case)) if _server_gpus(case) else _ANY_VERBS


def _server_gpus(case: Case) -> bool:
    return any(_SERVER_GPU.search(hit.text) for hit in case.hits("gpu-model", "tests-device"))


def _gpus_per_host(case: Case) -> int:
    """The most ranks that a host of the job has, by NCCL's count or by its lines."""
    hosts = {(hit.host, hit.groups["rank"]): hit.host for hit in case.hits("nccl-init-start", "nccl-init-complete")}
    told = [int(hit.groups["local"]) for hit in case.hits("nccl-nodes")]
    told += [int(hit.groups["device"]) + 1 for hit in case.hits("tests-device")]
    return max([*told, *Counter(hosts.values()).values()], default=0)


_REDUCED = re.compile(r"\s(?:sum|prod|max|min|avg)\s")
# Parts of what the adapters carry: less than the first is explained by GPUDirect RDMA that is off, less than the second
# needs an explanation on any machine.
_LITTLE, _TINY = 0.4, 0.25
_GBITS = re.compile(r"(\d+)(?: Gb/sec|\s*$)")
_ADAPTER = re.compile(r"\[\d+\]([\w-]+):\d+/")


def _carried(case: Case) -> float:
    """The bus bandwidth in GB/s that a host's adapters carry in a reduction over hosts, by the rate that a listing names.

    Each GPU uses one adapter at a time; 0 where the rate, or what was measured, is not known, and where the GPUs of a
    host have no NVLink: then PCIe is what they wait for.
    """
    rates = [float(found[0]) / 8 for hit in case.hits("port-rate") if (found := _GBITS.findall(hit.text))]
    rows = case.hits("busbw-row")
    if not rates or not rows or case.has("channel-shm", "tests-in-pairs"):
        return 0.0
    if any("PCIe" in hit.text for hit in case.hits("gpu-model")) or not all(_REDUCED.search(row.text) for row in rows):
        return 0.0
    adapters = max((len(set(_ADAPTER.findall(hit.text))) for hit in case.hits("net-ib-using")), default=0)
    return min(rates) * min(adapters, _gpus_per_host(case))


_SEVERAL = re.compile(
    r"\b(?:[2-9]|\d{2,4}|two|three|four|eight|sixteen) ?[xX]? ?(?:nodes|hosts|servers|machines)\b", re.I
)


@diagnosis
def far_below_the_adapters_told(case: Case) -> Iterable[Candidate]:
    """nccl-tests over several hosts reaches a small part of what the adapters carry that somebody says they have, and nothing
    tells which way the data went."""
    told = [(found, hit) for hit in case.hits("adapters-told") if (found := ADAPTERS_TOLD.search(hit.text))]
    rows = [row for row in _slow_rows(case) if _REDUCED.search(row.text)]
    several = case.between_hosts or _servers_in_the_list(case) or any(_SEVERAL.search(hit.text) for _, hit in told)
    if not told or not rows or not several or case.has("network-used", "tests-in-pairs", "channel-shm"):
        return
    found, hit = told[0]
    count, rate = found["count"] or found["count_after"], found["rate"] or found["rate_before"]
    carried, best = int(count) * int(rate) / 8, max(map(_busbw, rows))
    if best < _TINY * carried:
        title = f"{count} adapters of {rate} Gb/s carry {carried:.0f} GB/s, and {best:.1f} GB/s bus bandwidth are reached; over which network is not told"
        causes = ("net.slow", "ib.gdr", "ib.device-not-found", "env.bad-nccl-var")
        yield from rivals(falling(causes, 0.46, 0.02), title, [hit, *rows[-3:]], slows=True)


_MODEL = re.compile(r"device +\d+ \[[\w:.]+\] (.{3,60})")


def _rails(case: Case) -> list[float]:
    """The rate in Gb/s of the adapter that is sold beside each GPU of these models."""
    models = [find(name[1]) for hit in case.hits("tests-device") if (name := _MODEL.search(hit.text))]
    return [model.rail_gbps for model in models if model and model.rail_gbps]


def _usual(case: Case) -> float:
    """The same by the adapters that these GPUs usually have, one for each; 0 where a host has fewer of them, or other GPUs."""
    used = max((len(set(_ADAPTER.findall(hit.text))) for hit in case.hits("net-ib-using")), default=0)
    rates = _rails(case)
    return min(rates) / 8 * used if rates and used >= _gpus_per_host(case) else 0.0


_EIGHT = 8  # GPUs of a host that is built for training, with an adapter beside each or each pair
_FEW = 2  # times as many adapters are up: a storage network's beside those of the GPUs are fewer
_UP = re.compile(r"(\S+) port \d+ ==>|NIC\d+: (\S+)")
_AS_ONE = 1.1  # times what the adapters that are used carry


@diagnosis
def few_of_the_adapters(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_HCA names one adapter of a host with several GPUs, or a few, and a listing shows many more that are up; the
    tests between hosts were measured like that."""
    named = case.env.get("NCCL_IB_HCA", [])
    used = {adapter for hit in case.hits("net-ib-using") for adapter in _ADAPTER.findall(hit.text)}
    listed = case.hits("adapter-up") or case.hits("adapter-in-legend")
    up = {found.group(1) or found.group(2) for hit in listed if (found := _UP.search(hit.text))}
    gpus = max((int(hit.groups["device"]) + 1 for hit in case.hits("tests-device")), default=_gpus_per_host(case))
    rows = _slow_rows(case)
    if named and rows and case.between_hosts and used < up and len(up) > _FEW * len(used) > 0 and gpus > len(used):
        told = sorted(named, key=lambda hit: hit.signature != "env-echo")
        title = f"NCCL_IB_HCA leaves NCCL {len(used)} of {len(up)} adapters, for {gpus} GPUs of a host"
        yield Candidate(
            "net.slow",
            0.62,
            title,
            [*told[:2], *case.hits("net-ib-using")[:1], *listed[:4], *rows[-2:]],
        )
    elif named and rows and case.between_hosts and gpus >= _EIGHT and 0 < len(used) * _FEW < gpus:
        rate = min(_rails(case), default=0.0) / 8 * len(used)
        if max(map(_busbw, rows)) <= _AS_ONE * rate:
            title = f"NCCL_IB_HCA names {len(used)} adapter{'s' * (len(used) > 1)} for {gpus} GPUs of a host, and no more than {rate:.0f} GB/s are reached"
            proof = [*named[:2], *case.hits("net-ib-using")[:1], *rows[-2:]]
            yield Candidate("env.bad-nccl-var", 0.46, title, proof, slows=True)
            yield Candidate("net.slow", 0.44, title, proof, slows=True)


@diagnosis
def peermem(case: Case) -> Iterable[Candidate]:
    """GPUDirect RDMA is off on all HCAs (no peermem, no DMA-BUF, too far from the GPUs), and the program complains of it or of
    speed, or nccl-tests measures a small part of what the adapters used carry: by the rate that a listing names, or by that
    of the adapters that such GPUs are sold with."""
    hits, rows = case.gpudirect_off, _slow_rows(case)
    best, listed, usual = max(map(_busbw, rows), default=0.0), _carried(case), _usual(case)
    carried = listed or usual
    low = rows and best < max(_ONE_PORT, _LITTLE * carried)
    complaint = complaints(case) or case.hits("peermem-looked-for")
    verbs = case.has("net-ib-using") or any("NET/IB" in hit.text for hit in hits)
    if hits and verbs and (low or complaint) and (rows or complaint):
        told = (
            f"{best:.0f} of the {carried:.0f} GB/s that {'the' if listed else 'such servers have'} adapters carry"
            if low and carried
            else ""
        )
        title = f"GPUDirect RDMA is disabled: {told or 'all traffic goes through host memory'}"
        yield Candidate("ib.gdr", 0.66, title, [*hits, *rows[-2:], *complaint[:2]])


@diagnosis
def gpudirect_on_some_hosts(case: Case) -> Iterable[Candidate]:
    """NCCL uses GPUDirect RDMA on some hosts of the job and does not on others, which slow all of it down: it finds it disabled
    there, or all that they receive goes without. Which it sends without depends on the path from the GPU."""
    used, lacking = hosts_of(case.hits("channel-gdr")), case.hits("gdr-disabled")
    received = [hit for hit in case.hits("channel-net") if "[receive] via NET/IB" in hit.text]
    with_it = hosts_of(hit for hit in received if "/GDRDMA" in hit.text)
    odd = (
        (hosts_of(lacking) & hosts_of(case.hits("channel-net"))) | (hosts_of(received) - with_it if with_it else set())
    ) - used
    if used and odd:
        proof = [hit for hit in (*lacking, *received) if hit.host in odd]
        complaint = complaints(case)
        where = f" on {shortened(', '.join(sorted(odd)), 60)}" * (
            len(odd) > 1
        )  # of one the sentence begins with its name
        title = f"GPUDirect RDMA is not used{where}, and on the other hosts it is"
        strength = 0.7 if complaint or _slow_rows(case) else 0.56
        yield Candidate("ib.gdr", strength, title, [*proof, *case.hits("channel-gdr")[:1], *complaint[:2]], hosts=odd)


_TOO_FAR = re.compile(r"distance \d+ > \d+")
_MUCH_FASTER = 2.0


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


@diagnosis
def narrow_pcie(case: Case) -> Iterable[Candidate]:
    """A PCIe link has fewer lanes than it could have, and somebody says that the bandwidth is too low."""
    narrow, complaint = case.hits("pcie-width"), complaints(case)
    if narrow and complaint:
        title = f"a PCIe link runs with {narrow[0].groups['width']} lanes only"
        yield Candidate("net.slow", 0.66, title, [*narrow[:3], *complaint[:2]])
    elif complaint and (lowest := case.hits("pcie-saves-power")):
        title = "a PCIe link is at the speed of its first generation, which is a GPU's at rest only"
        yield Candidate("net.slow", 0.46, title, [*lowest[:3], *complaint[:2]], slows=True)


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
        title = "a GPU is slowed down by heat or power"
        yield Candidate("gpu.thermal-power", 0.74, title, [*below[:6], *headings[:2]], hosts=hosts_of(below))


_RATE = re.compile(r"(?<!\d)(\d+(?:\.\d+)?)\s?(MB/s|MiB/s|GB/s|GiB/s|Mbit/s|Gbit/s|MBps|GBps)")
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


_TRANSFER = re.compile(
    r"load|writ|wrote|\bread|\bcop(?:y|ied)|\bsav|checkpoint|\bs3\b|disk|fetch|stag(?:e|ing)|dataset", re.I
)


@diagnosis
def low_measured_rate(case: Case) -> Iterable[Candidate]:
    """A benchmark of collectives over several hosts measures less than gigabit Ethernet gives, and nothing failed.

    The rate of an upload, a copy or a file is none of collectives.
    """
    rates = [
        (float(found.group(1)) * _SCALE[found.group(2)], hit)
        for hit in case.hits("measured-rate")
        for found in _RATE.finditer(hit.text)
        if re.search(
            r"all.?reduce|all.?gather|broadcast|bus|algbw|bandwidth|collective|rank|reduce", hit.text, re.IGNORECASE
        )
        and not _TRANSFER.search(hit.text)
    ]
    told = max(len(rates), case.count("measured-rate") if rates else 0)  # lines of one shape are kept once
    failed = case.summary.tracebacks or case.has("watchdog-timeout", "socket-timeout", "monitored-barrier")
    if told >= 2 and max(rate for rate, _ in rates) < 130 and not failed:
        title = f"collectives run at {max(rate for rate, _ in rates):.0f} MB/s: a slow link"
        yield Candidate("net.slow", 0.6, title, [hit for _, hit in rates][:8])


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
        title = f"collectives run at {max(rate for rate, _ in slow):.1f} MB/s"
        yield Candidate("net.slow", 0.64, title, [hit for _, hit in slow][:8])
