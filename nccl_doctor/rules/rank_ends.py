"""How the ranks of a collective run ended: what each says of itself, and how findings quote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nccl_doctor.facts.collectives import Collectives, RankEnd
from nccl_doctor.facts.fold import few
from nccl_doctor.findings.model import Evidence, Place

# The stages of a rank in their order, and what it does in each. The others wait for whoever is stuck in an earlier one.
_STAGES = {
    "spawn": "starting Python",
    "import": "importing torch",
    "store": "reaching the store",
    "process-group": "forming the process group",
    "first-collective": "the first collective",
    "links": "measuring host pairs",
    "gemm": "the matrix products",
    "measure": "a measured collective",
    "end": "leaving",
}
_START = ("spawn", "import", "store", "process-group", "first-collective")  # each has a finding of its own
STUCK_IDS = tuple(f"collectives.stuck.{stage}" for stage in (*_START, "measure"))
QUOTE_LINES = 6
_DUMP = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+[^\n]*most recent call first\):\n", re.M)  # faulthandler
# Lines that give no reason: NCCL's chatter, a warning, the code in a traceback.
_CHATTER = re.compile(r"NCCL INFO|hostname of the client socket cannot be retrieved|^ {4}")


class RankOnHost:
    """A rank's end with the host (inventory name) it was on."""

    def __init__(self, host: str, end: RankEnd, fact: Collectives) -> None:
        self.host, self.end, self.fact = host, end, fact

    @property
    def label(self) -> str:
        return f"rank {self.end.rank} on {self.host}"

    @property
    def kind(self) -> str:
        return self.end.error.kind if self.end.error else ""

    @property
    def raised(self) -> bool:
        """Whether its error is an exception of its own, not what we saw of it from outside."""
        return self.end.error is not None and self.end.error.event == "error"

    @property
    def text(self) -> str:
        return self.end.error.text if self.end.error else ""

    @property
    def first_line(self) -> str:
        """The first line of its error that is not empty."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    @property
    def stage(self) -> str:
        return self.end.where.stage

    @property
    def task(self) -> str:
        """What it does in its stage, in words."""
        return _STAGES.get(self.stage, self.stage)

    @property
    def stuck_id(self) -> str:
        """The id of the finding about ranks that are stuck there."""
        return f"collectives.stuck.{self.stage if self.stage in _START else 'measure'}"

    @property
    def place(self) -> Place:
        return Place(host=self.host, rank=self.end.rank)

    def evidence(self, text: str, source: str = "") -> Evidence:
        return Evidence(text, source=source or "launcher", host=self.host, rank=self.end.rank)

    @property
    def progress(self) -> tuple[int, int]:
        """How far it came: stage, then iterations done."""
        stages = [*_STAGES]
        stage = stages.index(self.stage) if self.stage in stages else len(stages)
        return stage, self.end.where.iterations or 0


def ranks_of(facts: Mapping[str, Collectives]) -> list[RankOnHost]:
    """All ranks of all hosts, in order of rank."""
    found = [RankOnHost(host, end, fact) for host, fact in facts.items() for end in fact.ranks]
    return sorted(found, key=lambda item: item.end.rank)


def unheard(ranks: list[RankOnHost]) -> list[int]:
    """Ranks of the world of which nothing is known, as their host fell silent. That others wait then proves nothing."""
    known = {rank.end.rank for rank in ranks}
    return [number for number in range(ranks[0].fact.world if ranks else 0) if number not in known]


def others(ranks: Iterable[RankOnHost], guilty: Iterable[RankOnHost]) -> list[Evidence]:
    """What the other ranks said: one line for each different answer, at most three."""
    names = {rank.end.rank for rank in guilty}
    groups: dict[str, list[RankOnHost]] = {}
    for rank in ranks:
        if rank.end.rank not in names and not rank.end.finished:
            said = rank.first_line[:200] or f"was in {rank.end.where.words}"
            groups.setdefault(said, []).append(rank)
    return [
        members[0].evidence(said, "other ranks")
        if len(members) == 1
        else Evidence(f"{said} (ranks {numbers(members)})", source="other ranks")
        for said, members in sorted(groups.items(), key=lambda item: -len(item[1]))[:3]
    ]


def numbers(ranks: Iterable[RankOnHost]) -> str:
    return few([rank.end.rank for rank in ranks], 8)


def printed(rank: RankOnHost) -> list[Evidence]:
    """The last lines a rank printed before its stack was taken, and the stack."""
    before = _DUMP.split(rank.end.output)[0]
    lines = [line for line in before.splitlines() if line.strip() and not _CHATTER.search(line)][-QUOTE_LINES:]
    found = [rank.evidence(line[:300], "stderr") for line in lines]
    stack = _main_stack(rank.end.output)
    if stack:
        found.append(rank.evidence(stack, "stack, innermost first"))
    if rank.end.stack:
        found.append(rank.evidence("\n".join(rank.end.stack.splitlines()[:12]), "py-spy dump"))
    return found


def _main_stack(output: str) -> str:
    """The five innermost frames of the main thread from a faulthandler dump, on one line; empty if there is none."""
    blocks = _DUMP.split(output)
    if len(blocks) < 2:
        return ""
    found = re.findall(r'^  File "([^"\n]{1,400})", line (\d+) in (\S{1,100})', blocks[-1], flags=re.M)
    return " <- ".join(f"{name} ({path.rpartition('/')[2]}:{line})" for path, line, name in found[:5])
