"""What is kept of one source's lines, by what was recognised in them."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable

import msgspec

from nccl_doctor.explain.model import Hit, LogSource, Role
from nccl_doctor.explain.readers import inputs, labels, prefix
from nccl_doctor.explain.signatures import Signature
from nccl_doctor.explain.summary import KEEP_PER_FILE, HitGroup, Summary

QUOTE_LIMIT = 2000  # characters of a line that are kept as a quote
_FEW = 40  # of lines that accuse nobody
_HEADINGS = ("section-of-host", "described", "group-heading")  # what stands below is of one host, or of several
_BEGINS = ("section", "typed-look", "typed-launch", "section-of-host", "described")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_PROMPTS = ("remote", "host", "bracketed", "titled", "bare")  # what a shell's prompt calls the host, or the command
_NAMING = ("torchrun-host", "tests-device", "rank-on-host", "rank-on-host-somehow")
_NUMBER = re.compile(rb"[a-f]*\d[0-9a-f]*")
_ENDED = re.compile(r"srun: error: ([\w.-]+): task (\d+): ")
_OF_SEVERAL = re.compile(r"\(exitcode: -?\d+\) local_rank: [1-9]")  # of what torchrun started under this label
_SAME_DIGIT = bytes.maketrans(b"123456789", b"000000000")


class Said(msgspec.Struct):
    """One line, the same with its prefixes taken off, its number, and the names of the signatures that recognised it."""

    line: prefix.Line
    text: str
    number: int
    known: list[str] = msgspec.field(default_factory=list)


class Kept:
    """Fills the summary of one source."""

    def __init__(self, source: LogSource) -> None:
        self.source = source
        self.summary = Summary(files=1)
        self._seen: dict[str, set[tuple[object, ...]]] = {}
        self._ranks_of_label: dict[int, set[int]] = {}
        self._ranks_told: dict[int, set[int]] = {}  # in words that may be of others
        # place among a line's words and the word: (0, "[hopper14]"), where NCCL goes on "hopper14:2101:2130 [0]"
        self._host_of_label: dict[tuple[int, str], str] = {}
        self._behind_label: dict[tuple[int, str], set[str]] = {}  # whom NCCL names behind such a word

    def said(self, text: str, number: int) -> Said:
        """A line of this source: what it does not say of its rank and host, the source says."""
        line = prefix.parse(text)
        if line.rank is None:
            line.rank = self.source.rank
        elif line.task is not None:
            told = self._ranks_of_label if _own(line.rank, text) else self._ranks_told
            told.setdefault(line.task, set()).add(line.rank)
        if line.host and line.pid and not line.body.startswith(f"{line.host}:"):
            self._learn_label(line, text)
        line.host = line.host or self.source.host
        return Said(line, text, number)

    def _learn_label(self, line: prefix.Line, text: str) -> None:
        """What a collector writes in front of all lines of a host, by one in which NCCL names the host behind it."""
        at = text.find(f"{line.host}:{line.pid}:", 0, labels.LABEL_LIMIT)
        before = text[:at].split() if at > 0 else []
        for place, word in enumerate(before):
            self._behind_label.setdefault((place, word), set()).add(line.host)
        if before:
            name = before[-1].strip("[]():|>")
            if name == line.host or (line.host.endswith(f"-{name}") and any(map(str.isdigit, name))):
                self._host_of_label[len(before) - 1, before[-1]] = line.host

    def hit(self, name: str, said: Said, groups: dict[str, str] | None = None) -> Hit:
        """The line as a hit of this signature."""
        line = said.line
        rank = line.rank if line.rank is not None else line.task
        text, labelled = said.text[:QUOTE_LIMIT], line.rank is None and line.task is not None
        return Hit(
            name, self.source.name, said.number, text, groups or {}, rank, line.host, line.pid, line.seconds, labelled
        )

    def add(self, signature: Signature, groups: dict[str, str], said: Said, times: int = 1) -> None:
        """Count a hit, and keep it unless it says what another one said."""
        group = self.summary.groups.setdefault(signature.name, HitGroup())
        group.count += times
        hit = self.hit(signature.name, said, groups)
        last = group.last
        if last is None or last.line <= said.number:
            group.lasts[self.source.name] = hit
        calm = signature.role in (Role.PROGRESS, Role.HARMLESS)
        if len(group.hits) >= (_FEW if calm else KEEP_PER_FILE):
            return
        tail = _numberless(said.line.body[-160:].encode(errors="replace").translate(_SAME_DIGIT))
        distinct = (hit.rank, hit.host, hit.pid, *sorted(groups.values()), tail)
        seen = self._seen.setdefault(signature.name, set())
        if signature.every or distinct not in seen:
            seen.add(distinct)
            group.hits.append(hit)

    def add_row(self, name: str, said: Said, groups: dict[str, str] | None = None) -> None:
        """Keep a line that was recognised by where it stands, and not by its words."""
        group = self.summary.groups.setdefault(name, HitGroup())
        group.count += 1
        if len(group.hits) < KEEP_PER_FILE:
            group.hits.append(self.hit(name, said, groups))

    def spoke(self, hit: Hit) -> None:
        """Remember the last line of a rank."""
        if hit.rank is None:
            return
        last = self.summary.last_of_rank.get(hit.rank)
        if last is None or last.line <= hit.line:
            self.summary.last_of_rank[hit.rank] = hit

    def settle(self) -> None:
        """Give the lines their hosts and ranks that only the whole of the source tells."""
        nameless = {hit.line: hit.text for group in self.summary.groups.values() for hit in group.hits if not hit.host}
        told = (hit.groups.get("host", "") for name in _NAMING for hit in self._hits(name))
        for label, name in labels.hosts(nameless.values(), {*self.summary.hosts, *filter(None, told)}).items():
            behind = self._behind_label.get(label, set())
            if len(behind) < 2:  # or it names the job, or the rack
                self._host_of_label.setdefault(label, min(behind, default=name))
        if "section" in self.summary.groups:
            self._rewrite(self._in_its_section)
            of_files = (inputs.identity(hit.groups["path"])[0] for hit in self._hits("section"))
            self.summary.ranks |= {rank for rank in of_files if rank is not None}
        if self._host_of_label:
            self._rewrite(self._at_its_host)
        if not self.summary.groups.keys().isdisjoint((*_BEGINS[1:], "group-heading")):
            self._rewrite(self._where_somebody_looked)
        self._take_back_labels()

    def _hits(self, name: str) -> list[Hit]:
        group = self.summary.groups.get(name)
        return group.hits if group else []

    @functools.cached_property
    def _places(self) -> tuple[list[int], list[Hit]]:
        """Where a file, or what somebody typed, begins: the lines' numbers, and the lines."""
        ruled = {hit.line for hit in self._hits("group-heading")}
        rows = (
            [hit for name in self.summary.groups if name.endswith("-rows") for hit in self._hits(name)] if ruled else []
        )
        between = (_of_one_host(hit) for hit in rows if {hit.line - 1, hit.line + 1} <= ruled)
        found = (*between, *(_with_its_host(hit) for name in _BEGINS for hit in self._hits(name)))
        hits = sorted(found, key=lambda hit: hit.line)
        return [hit.line for hit in hits], hits

    def _last_above(self, hit: Hit) -> Hit | None:
        """The last such place above a line."""
        lines, hits = self._places
        at = bisect.bisect_left(lines, hit.line)
        return hits[at - 1] if at else None

    @functools.cached_property
    def _mixed(self) -> set[int]:
        """The numbers of the commands below which lines of another host stand, so that no line is of the command's host for certain."""
        lines, begins = self._places
        found, own = set(), set(lines)
        for group in self.summary.groups.values():
            for hit in group.hits:
                at = bisect.bisect_left(lines, hit.line)
                if at and hit.line not in own and hit.host and hit.host not in map(begins[at - 1].groups.get, _PROMPTS):
                    found.add(lines[at - 1])
        return found

    def _at_its_host(self, hit: Hit) -> Hit:
        """The line with the host that its label is known to stand for."""
        if hit.host:
            return hit
        words = enumerate(labels.words(hit.text))
        host = next((self._host_of_label[word] for word in words if word in self._host_of_label), "")
        return msgspec.structs.replace(hit, host=host) if host else hit

    def _in_its_section(self, hit: Hit) -> Hit:
        """A line with the rank and the host of the file that head or tail names above it, where it tells none itself."""
        heading = self._last_above(hit)
        if heading is None or heading.signature != "section":
            return hit
        path = heading.groups["path"]
        rank, host = inputs.identity(path)
        named = re.match(r"[\w.-]{2,64}(?= |$)", path)
        host = host or (named[0] if named and prefix.is_host(named[0]) else "")
        return msgspec.structs.replace(hit, rank=rank if hit.rank is None else hit.rank, host=hit.host or host)

    def _where_somebody_looked(self, hit: Hit) -> Hit:
        """A line below a command that looks at a host, or starts its processes there, with that host; who looks sees no ranks."""
        if hit.host:
            return hit
        last = self._last_above(hit)
        looked = last is not None and last.signature == "typed-look" and hit.rank is None
        here = (
            last is not None
            and (last.signature in _HEADINGS or last.groups.get("here"))
            and last.line not in self._mixed
        )
        if last is None or not (looked or here):
            return hit
        return msgspec.structs.replace(hit, host=next(filter(None, map(last.groups.get, _PROMPTS)), ""))

    def _take_back_labels(self) -> None:
        """Take back the ranks that only a launcher's label told, where lines that name their rank show that labels are none:
        srun started one task a node, and torchrun in it the ranks. What srun says of a task tells its host."""
        summary = self.summary
        told = (*summary.tails.values(), *(group.hits for group in summary.groups.values()))
        several = any(hit.labelled and _OF_SEVERAL.search(hit.text) for hits in told for hit in hits)
        if not (several or _side_by_side(self._ranks_told)) and all(
            ranks == {label} for label, ranks in self._ranks_of_label.items()
        ):
            return
        hosts = {
            task: host for hits in summary.tails.values() for hit in hits for host, task in _ENDED.findall(hit.text)
        }

        def unlabelled(hit: Hit) -> Hit:
            if not hit.labelled:
                return hit
            return msgspec.structs.replace(
                hit, rank=None, labelled=False, host=hit.host or hosts.get(str(hit.rank), "")
            )

        summary.last_of_rank = {rank: hit for rank, hit in summary.last_of_rank.items() if not hit.labelled}
        self._rewrite(unlabelled)
        summary.ranks_of_task = self._ranks_of_label
        summary.ranks = set().union(summary.last_of_rank, *self._ranks_of_label.values(), *self._ranks_told.values())

    def _rewrite(self, change: Callable[[Hit], Hit]) -> None:
        """Change every line that is kept."""
        summary = self.summary
        for group in summary.groups.values():
            group.hits = [change(hit) for hit in group.hits]
            group.lasts = {file: change(hit) for file, hit in group.lasts.items()}
        for kept in (summary.tails, summary.before):
            kept.update({file: [change(hit) for hit in hits] for file, hits in kept.items()})
        summary.failed = [change(hit) for hit in summary.failed]
        summary.tracebacks = [msgspec.structs.replace(item, hit=change(item.hit)) for item in summary.tracebacks]
        summary.last_of_rank = {rank: change(hit) for rank, hit in summary.last_of_rank.items()}


def _of_one_host(hit: Hit) -> Hit:
    """A heading of clush and dshbak with the host that it names; one that names several tells none."""
    name = hit.text.strip()
    told = {"host": name} if prefix.is_host(name) and _NAME.fullmatch(name) else {}
    return msgspec.structs.replace(hit, signature="group-heading", groups=told)


def _with_its_host(hit: Hit) -> Hit:
    """A heading of ansible with the host that was read as the label of its line."""
    named = hit.signature != "section-of-host" or hit.groups.get("host")
    return hit if named else msgspec.structs.replace(hit, groups={"host": hit.host})


def _own(rank: int, text: str) -> bool:
    """Whether a line's rank stands in the tag of torch or of a serving engine; other words may be of other ranks, or of a group's."""
    return f"[rank{rank}]" in text or f" TP{rank}]" in text or f"_TP{rank} pid=" in text


def _side_by_side(told: dict[int, set[int]]) -> bool:
    """Whether each of several labels has some ranks, and the next one those behind them, as nodes have."""
    ends = [(min(ranks), max(ranks)) for _, ranks in sorted(told.items()) if len(ranks) > 1]
    return 1 < len(ends) == len(told) and all(one[1] < other[0] for one, other in itertools.pairwise(ends))


@functools.lru_cache(maxsize=1024)  # the ranks of a job print the same lines
def _numberless(text: bytes) -> bytes:
    return _NUMBER.sub(b"#", text)
