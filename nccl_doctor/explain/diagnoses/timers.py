"""Timers of each rank, and profiles: which rank the others wait for, and which part of its step makes it late."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import shortened
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers.speakers import SIGNATURE as SPEAKER_APART
from nccl_doctor.explain.readers.speakers import odd_files

_SECTION = re.compile(r"(?:^|[\s:])([a-z][\w-]*)(?: \.{2,64})?: *$")
_OF_RANK = re.compile(r"\brank +(\d+): (\d+(?:\.\d+)?)\s*$")
_WAITS = re.compile(r"sync|reduce|gather|barrier|send|recv|optimizer")  # where a rank waits for others
_FEWEST = 4  # ranks: of fewer, which one is odd cannot be told
_LONGER = 1.4  # times as long as the middle rank
_OF_A_STEP = 0.2
_FEW = 0.25  # of the ranks

_Times = dict[str, dict[int, tuple[float, Hit]]]  # part of a step -> rank -> milliseconds and the line


def _tables(case: Case) -> Iterable[_Times]:
    headings = case.hits("timers-of-each-rank")
    for head in headings:
        times: _Times = {}
        part = ""
        for row in below(head, headings, case.hits("timers-of-each-rank-rows")):
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
        if len(ranks) >= _FEWEST and 0 < len(late) <= _FEW * len(ranks) and not _WAITS.search(part):
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


_PERCENT = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3})?) ?(?:%|\|?\s*$)")
_CELLS = re.compile(r"\|\s*(\d+(?:\.\d+)?)\s*\|\s*(\d+)\s*\|\s*(\d+(?:\.\d+)?)\s*\|\s*(\d+(?:\.\d+)?)\s*\|?\s*$")
_HALF = 50.0  # percent: a loader that keeps up has the next batch ready
_CALLS = 10


@diagnosis
def profile_of_waiting_for_data(case: Case) -> Iterable[Candidate]:
    """A profile (Lightning's simple profiler, torch.profiler) says that the loop waited for its next batch in half of the time and
    more: the file system or object store, the host's cores, or a loader with few workers."""
    told = []
    for hit in case.hits("data-share"):
        cells, percent = _CELLS.search(hit.text), _PERCENT.search(hit.text)
        share = float(cells[4]) if cells else float(percent[1]) if percent else 0.0
        if share >= _HALF and (not cells or int(cells[2]) >= _CALLS):
            told.append((share, hit))
    if told:
        share, hit = max(told, key=lambda pair: pair[0])
        title = f"the loop waits for its next batch in {share:.0f} % of the time: {shortened(hit.text.strip(), 80)}"
        causes = ("app.straggler-timeout", "sys.clock-or-dns-or-fs", "app.dataloader-worker", "sys.container")
        yield from rivals(falling(causes, 0.44, 0.02), title, [hit for _, hit in told[:4]], slows=True)
