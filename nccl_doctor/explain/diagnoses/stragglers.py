"""What is told of each rank or GPU: which one the others wait for, and which part of its step makes it late."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.gpu_listings import BUSY, HEATED, SLOW
from nccl_doctor.explain.diagnoses.tables import FEWEST, far_below, tables
from nccl_doctor.explain.lines import hosts_of, in_order
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.readers.speakers import SIGNATURE as SPEAKER_APART
from nccl_doctor.explain.readers.speakers import odd_files
from nccl_doctor.explain.signatures.heat import HOT
from nccl_doctor.facts.fold import ranges

_SECTION = re.compile(r"(?:^|[\s:])([a-z][\w-]*)(?: \.{2,64})?: *$")
_OF_RANK = re.compile(r"\brank +(\d+): (\d+(?:\.\d+)?)\s*$")
_WAITS = re.compile(r"sync|reduce|gather|barrier|send|recv|optimizer")  # where a rank waits for others
_LONGER = 1.4  # times as long as the middle rank
_OF_A_STEP = 0.2
_FEW = 0.25  # of the ranks

_Times = dict[str, dict[int, tuple[float, Hit]]]  # part of a step -> rank -> milliseconds and the line


def _tables(case: Case) -> Iterable[_Times]:
    for _, rows in tables(case, "timers-of-each-rank"):
        times: _Times = {}
        part = ""
        for row in rows:
            if section := _SECTION.search(row.text):
                part = section[1]
            elif part and (found := _OF_RANK.search(row.text)):
                times.setdefault(part, {})[int(found[1])] = float(found[2]), row
        yield times


def _late(times: _Times) -> tuple[str, dict[int, tuple[float, Hit]], float] | None:
    """The part of the step that takes far longer on a few ranks, these ranks, and what the middle one needs. Of parts that hold
    one another (the batch generator is one of the forward pass) the one that differs most from its usual time."""
    whole = max((time for ranks in times.values() for time, _ in ranks.values()), default=0.0)
    parts = []
    for part, ranks in times.items():
        usual = statistics.median(time for time, _ in ranks.values())
        late = {
            rank: told
            for rank, told in ranks.items()
            if told[0] >= _LONGER * usual and told[0] - usual >= _OF_A_STEP * whole
        }
        if len(ranks) >= FEWEST and 0 < len(late) <= _FEW * len(ranks) and not _WAITS.search(part):
            parts.append((max(time for time, _ in late.values()) / max(usual, 1e-3), part, late, usual))
    return max(parts, key=lambda each: each[0])[1:] if parts else None


_LATE_DATA = {"app.straggler-timeout": 0.62, "sys.clock-or-dns-or-fs": 0.48}
_LATE_GPU = {"gpu.thermal-power": 0.46, "app.straggler-timeout": 0.44}


def _stage(case: Case, times: _Times, ranks: set[int]) -> str:
    """Which stage of Megatron's pipeline these ranks are, where they are all of the first or of the last one; empty if they are not."""
    everybody = sorted({rank for told in times.values() for rank in told})
    stages = max((int(hit.groups["stages"]) for hit in case.hits("pipeline-stages")), default=1)
    of_each = len(everybody) // stages
    if stages > 1 and len(ranks) == of_each and ranks == set(everybody[-of_each:]):
        return f"{stages} of {stages}"
    return f"1 of {stages}" if stages > 1 and ranks == set(everybody[:of_each]) else ""


@diagnosis
def rank_of_longer_parts(case: Case) -> Iterable[Candidate]:
    """Megatron's timers of each rank: a part of the step that is no waiting takes far longer on a few ranks, in most reports, and
    all others wait for them. If it is the batch generator, the rank waits for its data; if it computes, its GPU may be slow, or
    its stage of the pipeline has more to do."""
    tables = list(_tables(case))
    whole = max((sum(map(len, times.values())) for times in tables), default=0)
    tables = [
        times for times in tables if sum(map(len, times.values())) == whole
    ]  # of a long log the first ones are kept
    found = [late for times in tables if (late := _late(times))]
    if not found or 2 * len(found) <= len(tables):
        return
    part, ranks, usual = found[-1]
    worst = max(time for time, _ in ranks.values())
    who = ", ".join(map(str, sorted(ranks)[:8]))
    title = f"rank {who} needs {worst:.0f} ms for {part}, the others {usual:.0f} ms: they wait for it in each step"
    proof = [hit for _, hit in ranks.values()] + [hit for _, others, _ in found[:-1] for _, hit in others.values()]
    if stage := _stage(case, tables[0], set(ranks)):
        title = f"stage {stage} of the pipeline needs {worst:.0f} ms for {part}, the others {usual:.0f} ms: it has more to do"
        yield Candidate(
            "app.straggler-timeout", 0.62, title, [*proof, *case.hits("pipeline-stages")[:1]], set(ranks), slows=True
        )
        return
    strengths = _LATE_DATA if "batch" in part or "data" in part else _LATE_GPU
    yield from rivals(strengths, title, proof, ranks, slows=True)


_DATA = re.compile(r"data|load|batch|input", re.IGNORECASE)
_OF_RANKS = re.compile(r"rank (\d+)")


@diagnosis
def one_is_far_from_the_others(case: Case) -> Iterable[Candidate]:
    """All ranks, or hosts, report the same numbers, and a few are far from all others: a part of the step that takes longer, or a
    measured rate that is lower. All others wait for them."""
    hits = case.hits(SPEAKER_APART)
    for hit, other in zip(hits[::2], hits[1::2], strict=False):
        yield from _apart(hit.groups, [hit, other])
    tails = [its for its in case.summary.tails.values() if len({(one.rank, one.host) for one in its}) == 1]
    for apart in odd_files([[hit.text for hit in its] for its in tails]):
        proof = [
            next(hit for hit in tails[at][::-1] if hit.text.encode(errors="replace") == raw) for at, raw in apart.rows
        ]
        who = f"rank {proof[0].rank}" if proof[0].rank is not None else proof[0].host or proof[0].file
        yield from _apart({**apart.groups, "who": who}, proof)


def _apart(told: dict[str, str], proof: list[Hit]) -> Iterable[Candidate]:
    who, name, its, others = (told[key] for key in ("who", "name", "its", "others"))
    rank = _OF_RANKS.fullmatch(who)
    ranks, hosts = ({int(rank[1])}, set[str]()) if rank else (set[int](), {who} if who != proof[0].file else set())
    if "B/s" in name or "b/s" in name:
        strengths = {"net.slow": 0.68}
    elif "FLOP" in name:
        strengths = {"gpu.thermal-power": 0.68}
    else:
        strengths = _LATE_DATA if _DATA.search(name) else _LATE_GPU
    title = f"{who} tells {name} {its} where the others tell {others}"
    yield from rivals(strengths, title, proof, ranks, hosts, slows=True)


_RATE = re.compile(r"(?:GPU|gpu|cuda|device)[ :#_]{0,2}(\d{1,3})\b(\D{1,60})(\d+(?:\.\d+)?) ?([TG]?FLOP|GB/s|MHz)")
_FAR_BELOW = 0.6  # of what the others reach


@diagnosis
def one_device_behind(case: Case) -> Iterable[Candidate]:
    """A program measured each GPU in the same way, and one reached far less than the others."""
    told: dict[tuple[str, str], dict[str, tuple[float, Hit]]] = {}
    for hit in case.hits("device-rate"):
        if found := _RATE.search(hit.text):
            device, words, number, unit = found.groups()
            told.setdefault((words, unit), {})[f"{hit.host}/{device}"] = float(number), hit
    for (_, unit), devices in told.items():
        slow, usual = far_below({device: rate for device, (rate, _) in devices.items()}, _FAR_BELOW)
        if slow:
            rate, hits = devices[slow[0]][0], [devices[device][1] for device in slow]
            cause = "net.slow" if unit == "GB/s" else "gpu.thermal-power"
            title = f"one GPU reaches {rate:g} {unit}, the others {usual:g}"
            proof = [*hits, *(hit for _, hit in devices.values())][:8]
            yield Candidate(cause, 0.7, title, proof, hosts=hosts_of(hits))


_SPREAD = re.compile(r"(M[nx])(Rtt|Tmp|Utl|Clk|DRtt)/Rnk: (\d+(?:\.\d+)?)[a-zA-Z%]*/(\d{1,7})")
_FEW_REPORTS = 3
_WAITS_FOR_DATA = 0.3  # of a rank's time in a report: a loader that keeps up costs milliseconds


@diagnosis
def straggler_lines(case: Case) -> Iterable[Candidate]:
    """Megatron's straggler detector tells the least and the most of all ranks' clocks, heat, load and times, and who has it.

    Where all ranks are loaded, a GPU at half of another's clock holds all of them up, and so does a rank that waits for its data.
    """
    hits = in_order((*case.hits("megatron-straggler"), *case.lasts("megatron-straggler")))
    reports = [(dict(_spread(hit)), hit) for hit in hits]
    slow, hungry = [], []
    for told, hit in reports:
        (least, who), (most, _), (_, hottest) = (told.get(key, (0.0, "")) for key in ("MnClk", "MxClk", "MxTmp"))
        busy = told.get("MnUtl", (0.0, ""))[0] >= BUSY
        if busy and 0 < least < most * (HEATED if hottest == who and told["MxTmp"][0] >= HOT else SLOW):
            slow.append((who, told, hit))
        if told.get("MxDRtt", (0.0, ""))[0] > _WAITS_FOR_DATA * told.get("MxRtt", (1e18, ""))[0]:
            hungry.append((told["MxDRtt"][1], told, hit))
    if slow and slow[-1][2] is hits[-1]:  # and is so still
        who, told, hit = slow[-1]
        heat = f" and {told['MxTmp'][0]:.0f} C" if told.get("MxTmp", (0.0, ""))[1] == who else ""
        title = f"rank {who}'s GPU runs at {told['MnClk'][0]:.0f} MHz{heat} under load, the fastest at {told['MxClk'][0]:.0f} MHz"
        proof = [hit, *(one for _, _, one in slow)]
        yield Candidate("gpu.thermal-power", 0.82, title, proof, {int(who)}, slows=True)
    elif len(hungry) >= _FEW_REPORTS and len({who for who, _, _ in hungry}) == 1:
        who, told, hit = hungry[-1]
        title = f"rank {who} waits {told['MxDRtt'][0]:.0f} ms for its data, of {told['MxRtt'][0]:.0f} ms"
        proof = [hit, *(one for _, _, one in hungry)]
        yield Candidate("app.straggler-timeout", 0.6, title, proof, {int(who)}, slows=True)


def _spread(hit: Hit) -> Iterable[tuple[str, tuple[float, str]]]:
    return ((end + what, (float(number), rank)) for end, what, number, rank in _SPREAD.findall(hit.text))


_TIMER = re.compile(r"([\w-]+) \.{2,}: ?\((\d+(?:\.\d+)?), (\d+(?:\.\d+)?)\)")
_LATE = 1000.0  # ms that the slowest rank needs for its batch: a loader that keeps up has it ready
_APART = 10.0  # times as long as the fastest rank


@diagnosis
def late_batches(case: Case) -> Iterable[Candidate]:
    """Megatron's timers: one rank waits seconds for its batch, another gets it at once, and every step waits for the last one.

    Other parts differ between the stages of a pipeline by design, or are waiting themselves; batch-generator is neither.
    """
    headings = case.hits("timers-across-ranks")
    late = []
    for _, rows in tables(case, "timers-across-ranks"):
        timed = [(found, hit) for hit in rows if (found := _TIMER.search(hit.text))]
        whole = max((float(found[3]) for found, _ in timed), default=0.0)
        for found, hit in timed:
            least, most = float(found[2]), float(found[3])
            if found[1] == "batch-generator" and most >= max(_LATE, _APART * least, _OF_A_STEP * whole):
                late.append((least, most, hit))
    if 2 * len(late) > len(headings):  # a first one is slow anywhere, and one may be
        least, most, hit = late[-1]
        title = f"a rank waits {most / 1000:.1f} s for its batch in each step, the fastest {least:.0f} ms"
        proof = [hit, *(one for _, _, one in late), *headings[-1:]]
        yield from rivals(_LATE_DATA, title, proof, slows=True)


_COMMS = re.compile(
    r"(?<!\S)(\d+(?:\.\d+)? [KMGT]?B)\s+(\d+)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s*$"
)
_CALLS = 20  # the first ones wait for set-up
_WAITED = 3.0  # times as long as the data took
_LONG = 100.0  # ms


@diagnosis
def late_for_collectives(case: Case) -> Iterable[Candidate]:
    """DeepSpeed's comms summary: of a call's time, the most is waiting for the last rank, and little the exchange of data."""
    rows = case.hits("comms-straggler-rows")
    waits = []
    for above, hit in itertools.pairwise(rows):
        if found := _COMMS.search(hit.text):
            calls, _, total, own, waited = map(float, found.groups()[1:])
            if calls >= _CALLS and waited >= max(_LONG, _WAITED * own):
                waits.append((total, prefix.parse(above.text).body.strip(), own, waited, hit))
    if waits:
        _, call, own, waited, hit = max(waits, key=lambda wait: wait[0])
        title = f"each {call} waits {waited:.0f} ms for the last rank, and takes {own:.0f} ms: the network is not slow, a rank is late"
        strengths = {"app.straggler-timeout": 0.62, "gpu.thermal-power": 0.46}
        yield from rivals(strengths, title, [hit, *case.hits("comms-straggler")[:1]], slows=True)


_LIST = re.compile(r"(?:\d+(?:\.\d+)?%?[ ,]+){3,}\d+(?:\.\d+)?")
_CROWDED = 4.0  # times what the middle one gets
_GREW = 1.5


@diagnosis
def crowded_rank(case: Case) -> Iterable[Candidate]:
    """The router of a mixture of experts sends one rank, or one expert, a share of the tokens that is many times the others',
    and grew: its computation is what everybody waits for."""
    loads = []
    for hit in in_order((*case.hits("load-of-ranks"), *case.lasts("load-of-ranks"))):
        if found := _LIST.findall(hit.text):
            parts = [float(part.rstrip("%")) for part in re.split(r"[ ,]+", max(found, key=len))]
            loads.append((parts, max(parts) / (sum(parts) or 1.0), hit))
    if len(loads) < 2:
        return
    (first, before, _), (last, share, hit) = loads[0], loads[-1]
    if (
        len(first) == len(last)
        and share >= _GREW * before > 0
        and max(last) >= _CROWDED * max(statistics.median(last), 1e-9)
    ):
        title = f"number {last.index(max(last))} of {len(last)} gets {share:.0%} of the tokens (at first the most was {before:.0%}): the others wait for it"
        proof = [hit, *(one for _, _, one in loads[:-1])]
        yield from rivals({"app.straggler-timeout": 0.62, "app.nan-or-data": 0.46}, title, proof, slows=True)


# "[13]", or "{StragglerId(rank=13, node='gpu02'), ...}"
_STRAGGLERS = re.compile(r"(?:rank=|[\[ ])(\d+)(?=[,\]])")


@diagnosis
def gpus_told_slow(case: Case) -> Iterable[Candidate]:
    """The straggler detection of NVIDIA's resiliency extension names ranks whose kernels take longer. It times the GPU's own
    work, without the waiting for others; heat, power, memory errors or a second process there are what it does not tell."""
    hits = case.hits("straggler-report")
    ranks = {int(rank) for hit in hits for rank in _STRAGGLERS.findall(hit.groups["ranks"])}
    title = f"GPU work takes longer on rank {ranges(sorted(ranks))} than on others, or than before"
    if ranks:
        strengths = {"gpu.thermal-power": 0.44, "gpu.ecc": 0.42, "app.straggler-timeout": 0.4}
        yield from rivals(strengths, title, hits, ranks)
