"""What is left of a log after it was read: hits grouped by signature, tracebacks, the tail. Small, whatever came in.

Summaries of several files merge into one, so files can be read by several processes.
"""

from __future__ import annotations

import msgspec

from nccl_doctor.explain.model import Hit, InputProblem, Proof, Traceback

# Per signature and file. Distinct ranks, hosts and contents are kept first; beyond this only the count grows.
KEEP_PER_FILE = 400
KEEP_IN_ALL = 20_000
TAIL_LINES = 30  # the last lines that are looked at for signs of progress or of a good end
LAST_LINES = 12  # of these, the ones that are kept
KEEP_TRACEBACKS = 400


class HitGroup(msgspec.Struct):
    """All hits of one signature: ``count`` of them (more, if the scan gave it up), ``hits`` is a sample."""

    count: int = 0
    hits: list[Hit] = msgspec.field(default_factory=list)
    lasts: dict[str, Hit] = msgspec.field(default_factory=dict)  # by file

    @property
    def last(self) -> Hit | None:
        """The last hit of the last file that has one."""
        return next(reversed(self.lasts.values()), None)


class Skip(msgspec.Struct):
    """A stretch of a file whose lines were not counted: each byte counts as one, until the numbers are wanted."""

    line: int  # lines before it, so counted
    offset: int
    size: int


class Summary(msgspec.Struct):
    """What one or several sources hold."""

    files: int = 0
    bytes: int = 0
    lines: int = 0
    groups: dict[str, HitGroup] = msgspec.field(default_factory=dict)
    tracebacks: list[Traceback] = msgspec.field(default_factory=list)
    tails: dict[str, list[Hit]] = msgspec.field(default_factory=dict)
    heads: dict[str, list[Hit]] = msgspec.field(default_factory=dict)  # probes (ping) among the first lines
    before: dict[str, list[Hit]] = msgspec.field(default_factory=dict)  # the lines before the first sign of trouble
    failed: list[Hit] = msgspec.field(default_factory=list)  # where nccl-doctor, which ran the job, says that it failed
    stepped: dict[str, Hit] = msgspec.field(default_factory=dict)  # by file, the report of the last step but one
    last_of_rank: dict[int, Hit] = msgspec.field(default_factory=dict)
    ranks: set[int] = msgspec.field(default_factory=set)  # that lines name as their speakers
    ranks_of_task: dict[int, set[int]] = msgspec.field(
        default_factory=dict
    )  # behind the labels of tasks that are nodes
    hosts: set[str] = msgspec.field(default_factory=set)
    skipped: dict[str, list[Skip]] = msgspec.field(default_factory=dict)
    turned: dict[str, list[int]] = msgspec.field(
        default_factory=dict
    )  # of logs that stand newest first: the lines' numbers
    backwards: list[str] = msgspec.field(default_factory=list)  # logs that stand so and are too large to be turned
    problems: list[InputProblem] = msgspec.field(default_factory=list)
    dumps: list[str] = msgspec.field(default_factory=list)  # files that are flight-recorder dumps or RAS reports
    bundles: list[str] = msgspec.field(default_factory=list)  # files that are saved runs of check
    proofs: list[Proof] = msgspec.field(default_factory=list)  # what these files prove together

    def merge(self, other: Summary) -> None:
        """Take in another summary."""
        self.files += other.files
        self.bytes += other.bytes
        self.lines += other.lines
        for name, group in other.groups.items():
            mine = self.groups.setdefault(name, HitGroup())
            mine.count += group.count
            mine.hits.extend(group.hits[: max(0, KEEP_IN_ALL - len(mine.hits))])
            mine.lasts.update(group.lasts)
        self.tracebacks.extend(other.tracebacks)
        self.tails.update(other.tails)
        self.heads.update(other.heads)
        self.before.update(other.before)
        self.failed.extend(other.failed)
        self.stepped.update(other.stepped)
        self.last_of_rank.update(other.last_of_rank)
        self.ranks |= other.ranks
        for task, ranks in other.ranks_of_task.items():
            self.ranks_of_task.setdefault(task, set()).update(ranks)
        self.hosts |= other.hosts
        self.skipped.update(other.skipped)
        self.turned.update(other.turned)
        self.backwards.extend(other.backwards)
        self.problems.extend(other.problems)
        self.dumps.extend(other.dumps)
        self.bundles.extend(other.bundles)
        self.proofs.extend(other.proofs)
