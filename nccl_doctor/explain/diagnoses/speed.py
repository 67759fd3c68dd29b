"""Who says that a job is too slow: somebody in words, a number beside the one that it ought to be, or once was."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import hosts_of, in_order, later, place, shortened
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import bystanders, pace, prefix
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.readers.pace import SLOWER
from nccl_doctor.explain.signatures.facts import EARLIER_RUN, EXPECTATION

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
    """How many times slower than a line says it ought to be, by its own number or else by nccl-tests' average or the last step."""
    word, unit = _OUGHT.search(hit.text), _UNIT.search(hit.text)
    if word is None or unit is None:
        return None
    wanted = _WITH_UNIT.search(hit.text, word.end()) or _BARE.search(hit.text[word.end() :])
    own = _OWN.search(hit.text[: word.start()])
    if own:
        measured = _plain(own.group(1) or own.group(2))
    elif "B/s" in unit.group():
        average = case.last("busbw-average")
        measured = float(average.groups["busbw"]) if average else 0.0
    else:
        measured = _last_step(case, unit.group(), hit)
    ought = _plain(wanted.group(1)) if wanted else 0.0
    if measured <= 0 or ought <= 0:
        return None
    ratio = ought / measured
    return 1 / ratio if re.match(r"m?s(?:ec)?/", unit.group(), re.I) else ratio


def _last_step(case: Case, unit: str, hit: Hit) -> float:
    """What the last step before this line tells in the unit that the line expects something in; 0 where none tells it so."""
    told = re.compile(rf"\b{re.escape(unit)}[=:]\s?({_NUMBER})|({_NUMBER})\s?{re.escape(unit)}")
    steps = [step for step in (*case.hits("progress"), *case.tail) if later(hit, step)]
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
    now = [each for line in (own, *steps) for each in (*_paces(line), *times_by_name(line))]
    for name, was in dict((*_paces(told), *times_by_name(told))).items():  # of several the last one told
        last = next((time for its_name, time in now if its_name == name), 0.0)
        if last and was:
            return last / was
    times = [time for line in (own, *steps) for time in _TIME_OF_STEP.findall(line)]
    bare = [(found[1], "s")] if (found := _BARE.search(told)) and len(text) < _REMARK and not _UNIT.search(told) else []
    for was_told, unit in _TIME.findall(told) or bare:
        seconds = next((float(time) for time, its_unit in times if its_unit == unit), 0.0)
        if _plain(was_told):
            return seconds / _plain(was_told)
    return 0.0


_LOOKS = re.compile(r"\b(?:grep|tail|head|cat|zcat|awk|sed|jq|logs|metrics|show)\b")


def _shown_of_another_run(case: Case) -> list[Hit]:
    """Steps that somebody looked up in another log, below this one, which took far less time."""
    shown: list[Hit] = []
    looks: Hit | None = None
    for hit in case.tail:
        if bystanders.is_typed(hit.text):
            looks = hit if _LOOKS.search(hit.text) else None
        elif looks and later(hit, looks):
            before = [step for step in case.hits("progress") if later(looks, step)][-1:]
            own = dict(_times_of(before[0].text)) if before else {}
            if any(own.get(name, 0.0) >= _FAR * time > 0 for name, time in _times_of(hit.text)):
                shown.append(hit)
    return shown[-1:]


def _times_of(text: str) -> list[tuple[str, float]]:
    return [*_paces(text), *times_by_name(text)]


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
    other = _shown_of_another_run(case)
    return list({place(hit): hit for hit in (*told, *shown, *slower, *case.hits("slow-in-words"), *other)}.values())


def too_slow(case: Case) -> list[Hit]:
    """The lines that say so, or that a pace fell for good; empty: nothing does."""
    return [*complaints(case)[:2], *case.hits(PACE_LEFT)[1:2]]


def communication_complaints(case: Case) -> list[Hit]:
    """The lines that say that it is too slow, or that its steps are communication mostly. That its pace fell accuses no network
    that the job used from its start."""
    return [*complaints(case), *case.communicating[-3:]]


def held_back(case: Case) -> list[Hit]:
    """The lines that say that the job is too slow, or that its steps consist of communication."""
    return [*too_slow(case), *case.communicating[-1:]]


class Lack(msgspec.Struct, frozen=True):
    """What a listing shows a host, its network or a link to lack, with what that proves: beside a sign that the job is slow, and
    alone, where the number may be old or the job may need no more (0: nothing). The hosts of ``hits`` are to blame; ``more`` belongs
    to the proof."""

    title: str
    hits: list[Hit]
    beside: float
    alone: float = 0.0
    more: list[Hit] = []


def weighed(
    case: Case, cause: str, lacks: Iterable[Lack], signs: Callable[[Case], list[Hit]], page: str = ""
) -> Iterator[Candidate]:
    """The lack that proves most, if any proves something, with the others' lines and the ``signs`` that the job is slow."""
    found = list(lacks)
    told = signs(case) if found else []
    proving = [(lack.beside if told else lack.alone, lack) for lack in found]
    strength, most = max(proving, key=lambda pair: pair[0], default=(0.0, None))
    if most and strength:
        others = [hit for proves, lack in proving if proves and lack is not most for hit in lack.hits]
        proof, hosts = [*most.hits, *most.more, *told, *others], hosts_of(most.hits)
        yield Candidate(cause, strength, most.title, proof, hosts=hosts, page=page, slows=True)


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
    for hit in case.hits("result-told"):
        typed = [command.groups for command in case.hits("command-on-host") if later(hit, command)]
        if typed and float(hit.groups["rate"]):
            rates = reached.setdefault((typed[-1]["command"], hit.groups["name"]), {})
            rates[typed[-1]["host"]] = float(hit.groups["rate"]), hit
    for (_, name), rates in reached.items():
        if len(rates) < 2:
            continue
        (host, (least, slow)), *_, (_, (most, fast)) = sorted(rates.items(), key=lambda told: told[1][0])
        if most >= _ONE_HOST * least:
            title = f"the same command reaches {least:.4g} on {host} and {most:.4g} on another host ({name})"
            causes = ("gpu.thermal-power", "app.straggler-timeout", "gpu.nvlink", "net.slow")
            yield from rivals(falling(causes, 0.44, 0.02), title, [slow, fast], hosts={host}, slows=True)
            return


_IN_WORDS_NODES = {"single": 1, "one": 1, "two": 2, "three": 3, "four": 4, "eight": 8}
_SOME_STEPS = 3  # the first ones are slow anywhere; on one node a single fast one is enough
_NO_SCALING = 4.0  # times: what no exchange over a network that is made for it costs, however the model is spread
# What a command says of where it runs, and of who it is there; all else is what it does.
_WHERE = re.compile(
    r"\b(?:NNODES|NODE_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|NCCL_\w+|HOSTS?)=\S+|"
    r"--(?:nnodes|num[_-](?:nodes|machines|processes)|node[_-]rank|machine[_-]rank|master[_-](?:addr|port)|main[_-]process[_-](?:ip|port)|"
    r"rdzv[_-]\w+|hostfile|standalone|include)(?:[= ](?!-)\S+)?|^.*?[$#] |\s# .*$"
)
_OTHER_STEP = re.compile(r"global|accum|larger|bigger|longer|[x\u00d7] ?batch", re.IGNORECASE)


@diagnosis
def slower_on_more_nodes(case: Case) -> Iterable[Candidate]:
    """Under one heading, or below one command, steps on one node are shown, under another those on several, and these take many
    times as long."""
    runs: list[tuple[int, float, list[Hit], str]] = []
    steps = in_order((*case.hits("progress"), *case.tail))
    told = in_order(case.hits("nodes-heading", "nodes-in-command"))
    headings = [hit for hit in told if not _OTHER_STEP.search(hit.text)]
    for head, rows in below(headings, steps):
        paces = [(time, hit) for hit in rows for unit, time in _paces(hit.text)[:1] if unit == "step"]
        number = head.groups["nodes"]
        nodes = _IN_WORDS_NODES.get(number.lower()) or int(number)
        if len(paces) >= (1 if nodes == 1 else _SOME_STEPS):
            does = "" if head.signature == "nodes-heading" else " ".join(_WHERE.sub("", head.text).split())
            runs.append((nodes, statistics.median(time for time, _ in paces), [head, paces[-1][1]], does))
    alone = [run for run in runs if run[0] == 1]
    several = [run for run in runs if run[0] > 1 and alone and run[1] >= _NO_SCALING * alone[-1][1]]
    if several and several[-1][-1] == alone[-1][-1]:
        (_, was, before, _), (nodes, now, after, _) = alone[-1], several[-1]
        title = f"a step takes {now:.3g} s on {nodes} nodes and {was:.3g} s on one: the network between them, or the way to it"
        causes = ("net.slow", "ib.device-not-found", "ib.gdr", "net.wrong-interface")
        sockets = [hit for hit in case.hits("net-socket-using", "network-used") if later(hit, after[0])]
        over_tcp = any("Socket" in hit.text for hit in sockets) and not case.has("net-ib-using")
        strengths = {"net.slow": 0.62} if over_tcp else falling(causes, 0.44, 0.02)
        yield from rivals(strengths, title, [*after, *sockets[:2], *before], slows=True)
