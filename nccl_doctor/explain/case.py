"""The case: everything the readers found, with the questions that diagnoses ask of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from nccl_doctor.explain import diagnoses
from nccl_doctor.explain.model import Hit, Role, Traceback
from nccl_doctor.explain.signatures import Signature, all_signatures
from nccl_doctor.explain.summary import LAST_LINES, Summary

_SOON = 8  # lines: what a program that has come to its end still prints, and the traceback of an interrupt
_STOPPED = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|signal: (?:2|15)\b")
_ANSWER = 'HTTP/1.1" 200'  # a server answers requests one by one: the next answer shows that it lives
_LINES_AFTER = 3  # one rank's step may be printed just after another rank's last line
_MANY_LINES = 21  # of other ranks of a job that stands still, no more than this is printed


class Candidate(msgspec.Struct):
    """A cause that one signature or diagnosis points to, before ranking."""

    id: str
    strength: float
    title: str
    hits: list[Hit]
    ranks: set[int] = msgspec.field(default_factory=set)
    hosts: set[str] = msgspec.field(default_factory=set)
    why: str = ""
    final: bool = False  # a diagnosis has already weighed it against the rest: it is not demoted
    cured: bool = False  # it was gone once something was changed: what went well afterwards speaks for it
    vague: bool = False  # read from a line's words or place only: no rival of a cause that somebody described


def ranks_of(hits: Iterable[Hit]) -> set[int]:
    """The ranks that these lines are known to come from."""
    return {hit.rank for hit in hits if hit.rank is not None}


def hosts_of(hits: Iterable[Hit]) -> set[str]:
    """The hosts that these lines are known to come from."""
    return {hit.host for hit in hits if hit.host}


def speakers(hits: Sequence[Hit]) -> tuple[set[int], set[str]]:
    """The ranks and the hosts that these lines are known to come from."""
    return ranks_of(hits), hosts_of(hits)


class Work(msgspec.Struct):
    """Where one rank of one process group stood when its watchdog spoke."""

    rank: int
    group: str
    sequence: int | None = None  # the work that timed out
    operation: str = ""
    elements: str = ""
    timeout_ms: int = 0
    enqueued: int | None = None
    completed: int | None = None
    hit: Hit | None = None
    status_hit: Hit | None = None


Diagnosis = Callable[["Case"], Iterable[Candidate]]
_DIAGNOSES: dict[str, Diagnosis] = {}


def diagnosis(function: Diagnosis) -> Diagnosis:
    """Declare a function that weighs several facts of a case. Its docstring is its candidates' ``why``."""
    why = function.__doc__
    if not why:
        raise ValueError(f"diagnosis {function.__name__} has no docstring")
    if function.__name__ in _DIAGNOSES:
        raise ValueError(f"diagnosis {function.__name__} is declared twice")

    @functools.wraps(function)
    def weighed(case: Case) -> Iterator[Candidate]:
        for candidate in function(case):
            candidate.why = " ".join((candidate.why or why).split())
            yield candidate

    _DIAGNOSES[function.__name__] = weighed
    return weighed


def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every diagnosis of the package, by name: in which module one stands changes no answer."""
    diagnoses.load()
    return tuple(rule for _, rule in sorted(_DIAGNOSES.items()))


LAUNCHER = re.compile(
    r"(?:ChildFailedError|SignalException|ProcessExitedException|ProcessRaisedException|CalledProcessError|SystemExit|"
    r"RayTaskError|RayActorError|ActorDiedError|RendezvousGracefulExitError|WorkerCrashedError|"
    r"WorkerGroupError|ControllerError|TrainingFailedError|WorkerGroupStartup\w+Error|WorkerHealthCheckFailedError)"
)
# Exceptions that only wrap what NCCL, Gloo, the store or the fabric reported.
_WRAPPED = re.compile(
    r"gloo/transport|ProcessGroup(?:NCCL|Gloo|MPI|UCC|Wrapper)|\bNCCL (?:error|operation|Error)|"
    r"nccl(?:Unhandled|System|Internal|Remote|Invalid)\w+Error|"
    r"monitoredBarrier|"
    r"coordination service|DEADLINE_EXCEEDED|UNAVAILABLE: |Worker failed with error|Engine core|See stack trace above|"
    r"see above|"
    r"Failed core proc|The actor died|Training failed due to (?:worker|controller) error|failed to start|unhandled (?:cuda|system) error|"
    r"process group watchdog|\bc10d\b|\bHCCL\b|\bHccl[A-Z]"
)
_DISTRIBUTED = [
    "nccl-init-complete",
    "nccl-init-start",
    "nccl-version",
    "watchdog-timeout",
    "torchrun-failed",
    "torchrun-exit",
    "spawn-exit",
    "nccl-error-text",
    "channel-net",
    "channel-p2p",
    "bootstrap-using",
    "gloo-connected",
    "deepspeed-init",
    "store-barrier",
    "watchdog-status",
    "hccl-wrapper",
]


class Case:
    """All that is known about one set of logs."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.signatures = all_signatures()
        self._known: dict[str, list[Hit]] = {}  # by signature, with ranks
        self._name_ranks()

    def _name_ranks(self) -> None:
        """Give NCCL lines the rank that their process named in its init line (``rank 3 nranks 8``)."""
        named: dict[tuple[str, str], int] = {}
        for name in ("nccl-init-start", "nccl-init-complete", "nccl-comm-rank"):
            for hit in self._raw(name):
                size = hit.groups.get("nranks", "")
                if hit.pid and hit.groups.get("rank", "").isdigit() and size.isdigit():
                    # The first (usually the world) communicator of a process names its global rank.
                    named.setdefault((hit.host, hit.pid), int(hit.groups["rank"]))
        self._ranks_by_process = named
        self._ranks_by_pid = self._table_of_failures() | self._ray_workers()

    def _table_of_failures(self) -> dict[str, int]:
        """The rank of each pid that torchrun's failure table names (``rank : 2``, then ``exitcode : -9 (pid: 812)``)."""
        found: dict[str, int] = {}
        rank: int | None = None
        rows = [*self._raw("torchrun-rank"), *self._raw("torchrun-exitcode")]
        for hit in sorted(rows, key=lambda hit: (hit.file, hit.line)):
            if hit.signature == "torchrun-rank":
                rank = int(hit.groups["rank"])
            elif rank is not None:
                found[hit.groups["pid"]] = rank
                rank = None
        return found

    def _ray_workers(self) -> dict[str, int]:
        """The rank of each pid in Ray Train's list of workers; a pid of two ranks (on two hosts) tells nothing."""
        ranks: dict[str, set[int]] = {}
        for hit in self._raw("ray-worker-rank"):
            ranks.setdefault(hit.groups["pid"], set()).add(int(hit.groups["rank"]))
        return {pid: min(found) for pid, found in ranks.items() if len(found) == 1}

    def _raw(self, name: str) -> list[Hit]:
        group = self.summary.groups.get(name)
        return group.hits if group else []

    def hits(self, *names: str) -> list[Hit]:
        """The kept hits of these signatures, in the order of the log(s), with ranks filled in."""
        for name in names:
            if name not in self._known:
                self._known[name] = [self._ranked(hit) for hit in self._raw(name)]
        found = [hit for name in names for hit in self._known[name]]
        if len(names) > 1:
            found.sort(key=lambda hit: (hit.file, hit.line))
        return found

    def _ranked(self, hit: Hit) -> Hit:
        if hit.pid and hit.host:
            rank = self._ranks_by_process.get((hit.host, hit.pid))
            if rank is not None and rank != hit.rank:
                return msgspec.structs.replace(hit, rank=rank)
        if hit.rank is None and self._ranks_by_pid:
            told = _PID.search(hit.text)
            if told and told.group(1) in self._ranks_by_pid:
                return msgspec.structs.replace(hit, rank=self._ranks_by_pid[told.group(1)])
        return hit

    def first(self, *names: str) -> Hit | None:
        """The first hit of any of these signatures."""
        found = self.hits(*names)
        return found[0] if found else None

    def last(self, name: str) -> Hit | None:
        """The last hit of this signature."""
        group = self.summary.groups.get(name)
        return group.last if group else None

    def has(self, *names: str) -> bool:
        """Whether any of these signatures hit."""
        return any(name in self.summary.groups and self.summary.groups[name].count for name in names)

    def count(self, *names: str) -> int:
        """How many lines these signatures recognised."""
        return sum(self.summary.groups[name].count for name in names if name in self.summary.groups)

    def ranks(self, *names: str) -> set[int]:
        """The ranks that these signatures' lines name as their speaker."""
        return ranks_of(self.hits(*names))

    def hosts_of(self, *names: str) -> set[str]:
        """The hosts that these signatures' lines name as their speaker."""
        return hosts_of(self.hits(*names))

    @functools.cached_property
    def world(self) -> int:
        """The number of ranks, as far as the logs say; 0 if they do not."""
        sizes = [int(hit.groups["nranks"]) for hit in self.hits("nccl-init-start", "nccl-init-complete")]
        sizes += [int(hit.groups["world"]) for hit in self.hits("world-size")]
        best = max(sizes, default=0)
        seen = [rank for rank in self.summary.ranks if rank < 100_000]
        return max(best, max(seen, default=-1) + 1)

    @functools.cached_property
    def nccl_hosts(self) -> set[str]:
        """Host names in NCCL's own lines and in torchrun's failure table."""
        names = hosts_of(self.hits("nccl-init-start", "nccl-init-complete", "bootstrap-using"))
        return names or {hit.groups["host"] for hit in self.hits("torchrun-host")}

    @functools.cached_property
    def nodes(self) -> int:
        """The number of nodes, as far as the logs say (NCCL's nNodes, distinct hosts); 0 if they do not."""
        told = [int(hit.groups["nodes"]) for hit in self.hits("nccl-nodes", "nnodes") if hit.groups["nodes"].isdigit()]
        return max([*told, len(self.nccl_hosts)], default=0)

    @functools.cached_property
    def sockets(self) -> list[Hit]:
        """The lines in which NCCL says that its network is TCP sockets."""
        return [hit for hit in self.hits("network-used") if hit.groups["network"].startswith("Socket")]

    @functools.cached_property
    def distributed(self) -> bool:
        """Whether anything in the logs shows a distributed job."""
        return self.has(*_DISTRIBUTED) or any(rank > 0 for rank in self.summary.ranks)

    @functools.cached_property
    def unfinished(self) -> bool:
        """Whether NCCL began to initialise and no work followed: the logs end there, or somebody interrupted it."""
        # Releases before 2.18 do not say "Init START": that they chose a network, or connect channels, is the beginning.
        began = ("nccl-init-start", "nccl-init-complete", "channel-net", "channel-p2p", "channel-shm", "network-used")
        worked = self.has("progress", "busbw-row", "ended-well", "nccl-tests-ok", "busbw-average")
        return self.has(*began) and not worked and (not self.has("nccl-init-complete") or self.interrupted)

    @functools.cached_property
    def interrupted(self) -> bool:
        """Whether a terminal shows that somebody pressed Ctrl-C at the end."""
        return any(_CTRL_C.search(hit.text) for hit in self.tail)

    @functools.cached_property
    def env(self) -> dict[str, list[Hit]]:
        """Environment variables seen set, with the lines that set them; group ``value`` holds the value."""
        found: dict[str, list[Hit]] = {}
        for hit in self.hits("env-echo", "env-set", "env-dump"):
            if hit.signature == "env-echo":
                found.setdefault(hit.groups["name"], []).append(hit)
                continue
            for name, value in _ASSIGNED.findall(hit.text):
                groups = {"name": name, "value": value}
                found.setdefault(name, []).append(msgspec.structs.replace(hit, groups=groups))
        return found

    def value(self, name: str) -> str | None:
        """The (first) value of an environment variable, or None if it was not seen set."""
        hits = self.env.get(name)
        return hits[0].groups.get("value", "").strip().strip("'\"").rstrip(".") if hits else None

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """Versions of NCCL, torch, CUDA and the driver that the logs name; several are joined by comma."""
        found: dict[str, set[str]] = {}
        for signature, name in (
            ("nccl-version", "nccl"),
            ("nccl-error-version", "nccl"),
            ("torch-version", "torch"),
            ("driver-version", "driver"),
            ("plugin-ofi-version", "aws-ofi-nccl"),
        ):
            for hit in self.hits(signature):
                version = re.match(r"\d[\w.]*(?:\+\w+[\d.]*)?", hit.groups.get("version", ""))
                if version:
                    text = version.group().rstrip(".")
                    number, _, cuda = text.partition("+cuda")
                    found.setdefault(name, set()).add(nccl_release(number) if name == "nccl" else text)
                    if cuda:
                        found.setdefault("cuda", set()).add(cuda)
        return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}

    @functools.cached_property
    def work(self) -> list[Work]:
        """What each rank's watchdog said about its last work, by process group."""
        table: dict[tuple[str, int], Work] = {}
        groups: dict[int, str] = {}
        for hit in self.hits("watchdog-status"):
            rank = _rank_of(hit)
            if rank is None:
                continue
            group = _group_of(hit.text)
            groups.setdefault(rank, group)
            entry = table.setdefault((group, rank), Work(rank, group))
            entry.enqueued = _number(hit.groups.get("enqueued"))
            entry.completed = _number(hit.groups.get("completed"))
            entry.status_hit = entry.status_hit or hit
            if entry.sequence is None:
                entry.sequence = _number(hit.groups.get("sequence"))
        for hit in self.hits("watchdog-timeout"):
            rank = _rank_of(hit)
            if rank is None:
                continue
            group = groups.get(rank, _group_of(hit.text))
            entry = table.setdefault((group, rank), Work(rank, group))
            if entry.hit is None:
                entry.hit = hit
                described = _WORK.search(hit.text)
                if described:
                    entry.sequence = int(described.group("seq")) if described.group("seq") else entry.sequence
                    entry.operation = described.group("op")
                    entry.elements = described.group("shape") or ""
                    entry.timeout_ms = int(described.group("timeout") or 0)
        return sorted(table.values(), key=lambda item: (item.group, item.rank))

    @functools.cached_property
    def ordinary(self) -> list[Traceback]:
        """Exceptions that no signature knows: the program's own errors, without launchers and wrappers."""
        kept = []
        for item in self.summary.tracebacks:
            if not item.type or LAUNCHER.search(item.type) or self.is_known(item):
                continue
            if _WRAPPED.search(item.message[:400]) or self._only_logged(item):
                continue
            kept.append(msgspec.structs.replace(item, hit=self._ranked(item.hit)))
        return kept

    def is_harmless(self, item: Traceback) -> bool:
        """Whether Python itself said that it goes on after this exception."""
        return any(self.signatures[name].role is Role.HARMLESS for name in item.known)

    def is_known(self, item: Traceback) -> bool:
        """Whether a signature knows the exception's line: it then says what it means."""
        return any(self.signatures[name].role in (Role.CAUSE, Role.SYMPTOM, Role.HARMLESS) for name in item.known)

    @functools.cached_property
    def exits(self) -> dict[int, int]:
        """Exit code of each rank that torchrun's table names (negative: signal)."""
        found: dict[int, int] = {}
        rank: int | None = None
        for hit in self.hits("torchrun-rank", "torchrun-exitcode"):
            if hit.signature == "torchrun-rank":
                rank = int(hit.groups["rank"])
            elif rank is not None:
                found.setdefault(rank, int(hit.groups["code"]))
                rank = None
        return found

    @functools.cached_property
    def exit_codes(self) -> set[int]:
        """All exit codes named anywhere."""
        return {int(hit.groups["code"]) for hit in self.hits("torchrun-exit", "torchrun-exitcode")}

    @functools.cached_property
    def tail(self) -> list[Hit]:
        """The last lines of all files."""
        return [hit for hits in self.summary.tails.values() for hit in hits]

    @functools.cached_property
    def recovered(self) -> bool:
        """Whether all trouble was followed, in the same file, by the end of the whole run: it was overcome.

        What is said of a store or peer that is gone after that end is the shutdown of a job that had finished.
        """
        ends = {hit.file: hit.line for hit in (*self.hits("run-ended"), self.last("run-ended")) if hit is not None}
        file, worked = self._last_step_before("exit-zero")
        if worked and all(hit.line + _LINES_AFTER <= worked for hit in self.troubles if hit.file == file):
            ends[file] = worked  # the job exited with 0, and had worked on after all that went wrong
        ends = {file: line for file, line in ends.items() if file not in self.failed_files}
        return bool(ends) and all(hit.line < ends.get(hit.file, -1) for hit in self.troubles)

    @functools.cached_property
    def failed_files(self) -> set[str]:
        """Files whose last lines name an exit status that is not 0: what they say of a good end is not true of the job."""
        return {hit.file for hit in self.tail if _FAILED_EXIT.search(hit.text) and not self._stepped_on(hit)}

    @functools.cached_property
    def slowed(self) -> bool:
        """Whether the last step that was reported took far longer than the first one."""
        texts = [hit.text for hit in (*self.hits("progress"), *self.tail)]
        times = [float(found) for text in texts for found in _STEP_TIME.findall(text)]
        rates = [float(found) for text in texts for found in _STEP_RATE.findall(text)]
        slower = bool(times) and times[-1] > _SLOWED * times[0]
        return slower or (bool(rates) and rates[0] > _SLOWED * rates[-1])

    @functools.cached_property
    def slower_steps(self) -> list[Hit]:
        """A first step and the last ones, of one shape, where all of the last took far longer, and about the same time."""
        for first in self.hits("progress"):
            pace, tail = _pace(first.text), self.summary.tails.get(first.file, [])
            if not pace or not tail or first.line >= tail[0].line:
                continue
            last = [hit for hit in tail if _shape(hit.text) == _shape(first.text)]
            paces = [_pace(hit.text) for hit in last]
            if len(last) >= _STEADY and _SLOWED * max(pace, max(paces) / _SLOWED**2) < min(paces):
                return [first, *last]
        return []

    @functools.cached_property
    def rows(self) -> set[tuple[str, int]]:
        """File and line of the last lines that report a step as several of their neighbours do, in the same words."""
        steps = self.signatures["progress"]
        alike: dict[str, list[Hit]] = {}
        for hit in self.tail[-LAST_LINES:]:
            alike.setdefault(_shape(hit.text), []).append(hit)
        several = [
            hits for hits in alike.values() if len(hits) > _LINES_AFTER and steps.match(hits[0].text) is not None
        ]
        return {(hit.file, hit.line) for hits in several for hit in hits}

    @property
    def stands(self) -> list[Hit]:
        """Where somebody took the stacks of processes: unless work went on, because they hang."""
        last = self.last("stack-process")
        return self.hits("stack-process") if last is not None and not self.outlived(last) else []

    @functools.cached_property
    def troubles(self) -> list[Hit]:
        """The lines that speak of a failure, apart from what is said of the store and peers in a file that ended well."""
        ends = self.hits("run-ended")
        troubles = [
            item.hit
            for item in self.summary.tracebacks
            if item.type and not self.is_harmless(item) and not self._stopped_after_end(item.hit)
        ]
        for name, signature in self.signatures.items():
            if signature.role in (Role.CAUSE, Role.SYMPTOM) and self.has(name):
                late = name in _AT_SHUTDOWN or self._stopped_after_end(self.first(name))
                hits = [*self.hits(name), self.last(name)]
                troubles.extend(
                    hit
                    for hit in hits
                    if hit is not None and not (late and any(self._shut_down(end, hit) for end in ends))
                )
        return troubles

    def _stopped_after_end(self, hit: Hit | None) -> bool:
        """Whether somebody stopped the program just after it had said that its run was over."""
        if hit is None or not _STOPPED.search(hit.text):
            return False
        ends = [self.last("run-ended"), *self.hits("run-ended")]
        return any(end and end.file == hit.file and 0 < hit.line - end.line <= _SOON for end in ends)

    def follows_failed_task(self, hit: Hit) -> bool:
        """Whether Slurm cancelled the step after a task had failed, waited in vain or could not start: it is no cause then."""
        if not re.search(r"CANCELLED AT|Force Terminated", hit.text) or "DUE TO" in hit.text:
            return False
        failed = [item for item in self.hits("mpi-abort", "sigkill") if _TASK_FAILED.search(item.text)]
        failed += self.hits("watchdog-timeout", "watchdog-down", "monitored-barrier")
        failed += [item for item in self.hits("step-not-launched", "credential-refused") if "srun" in item.text]
        return any(item.file == hit.file and item.line < hit.line for item in failed)

    def beside_the_job(self, hit: Hit) -> bool:
        """Whether a listing tells of a port that no process of the job uses: NCCL names those it uses."""
        used = " ".join(line.groups["devices"] for line in self.hits("net-ib-using"))
        named = _PORT.findall(hit.text) if used and hit.signature == "port-state-down" else []
        return bool(named) and not any(f"{device}:" in used for device in named)

    def outlived(self, hit: Hit, lines: int = _LINES_AFTER) -> bool:
        """Whether the work visibly went on after this line: its file tells the run's end, or steps, further down."""
        step = self.last("progress")
        ends = [self.last(name) for name in _ENDS]
        return (
            any(
                end is not None and end.file == hit.file and end.line > hit.line and end.file not in self.failed_files
                for end in ends
            )
            or (
                step is not None
                and step.file == hit.file
                and step.line >= hit.line + (1 if _ANSWER in step.text else lines)
            )
            or (lines <= _LINES_AFTER and self._stepped_on(hit))
        )

    def _stepped_on(self, hit: Hit) -> bool:
        """Whether a rank went a whole step further: after this line two reports of one shape, or a step and a good end."""
        steps = self.signatures["progress"]
        shapes = [
            _shape(item.text)
            for item in self.summary.tails.get(hit.file, ())
            if item.line > hit.line and steps.match(item.text) is not None
        ]
        file, worked = self._last_step_before("ended-well")
        return len(set(shapes)) < len(shapes) or (hit.file == file and hit.line < worked)

    @functools.cache  # noqa: B019 - a case lives as long as its explanation
    def _last_step_before(self, end: str) -> tuple[str, int]:
        """File and line of the last step, if this kind of end follows it there."""
        last, step = self.last(end), self.last("progress")
        told = last is not None and step is not None and last.file == step.file and last.line > step.line
        return (step.file, step.line) if told and step is not None else ("", 0)

    def overcome(self, name: str) -> bool:
        """Whether this signature's lines did no harm: retries that the work outlived, or the shutdown after its end."""
        last = self.last(name)
        if last is None:
            return False
        if name in _RETRIES:
            return self.outlived(last)
        if name in _RESTARTED and (self.outlived(last, _MANY_LINES) or self._resumed_after(last)):
            return True
        ends = (
            *_ENDS,
            "exit-zero",
            *(("ended-well",) if name == "nccl-abort" else ()),
        )  # destroying a group aborts communicators, too
        return name in _AT_SHUTDOWN and any(self._shut_down(end, last) for name in ends for end in self.hits(name))

    def _shut_down(self, end: Hit, hit: Hit) -> bool:
        """Whether this end was the end of what ``hit`` tells of: no work was done between the two."""
        step = self.last("progress")
        went_on = step is not None and step.file == end.file and end.line + _SOON < step.line < hit.line
        return end.file == hit.file and not went_on

    def _resumed_after(self, hit: Hit) -> bool:
        """Whether the program went on from a checkpoint after this line, and made steps."""
        step = self.last("progress")
        return step is not None and any(
            step.file == one.file == hit.file and hit.line < one.line < step.line for one in self.hits("resumed")
        )

    def _only_logged(self, item: Traceback) -> bool:
        """Whether an exception was caught: the work outlived it, its rank spoke on, and no symptom came after it."""
        hit = item.hit
        spoke = self.summary.last_of_rank.get(hit.rank, hit) if hit.rank is not None else None
        # Between a search's trials nothing else runs: the next trial's result is enough.
        if not self.outlived(hit, 1 if self.has("trial-failed") else _LINES_AFTER) or (
            spoke is not None and spoke.line <= hit.line
        ):
            return False
        symptoms = [self.last(name) for name, signature in self.signatures.items() if signature.role is Role.SYMPTOM]
        return not any(
            late is not None and (late.file != hit.file or late.line > hit.line) and not self.outlived(late)
            for late in symptoms
        )

    @functools.cached_property
    def caught(self) -> set[tuple[str, int]]:
        """File and line of the exceptions that were caught, or that Python ignored, whatever they mean: they did no harm."""
        return {
            (hit.file, hit.line)
            for item in self.summary.tracebacks
            if item.type and (self.is_harmless(item) or self._only_logged(item))
            for hit in (item.hit, *item.more)
        }

    @functools.cached_property
    def more(self) -> dict[tuple[str, int], tuple[Hit, ...]]:
        """The further lines of exceptions' messages, by file and line of the first."""
        return {(item.hit.file, item.hit.line): item.more for item in self.summary.tracebacks if item.more}

    def after(self, one: Hit, other: Hit) -> bool | None:
        """Whether ``one`` is later than ``other``; None if that cannot be told."""
        if one.seconds is not None and other.seconds is not None and abs(one.seconds - other.seconds) > 2:
            return one.seconds > other.seconds
        if one.file == other.file:
            return one.line > other.line
        return None

    def signature(self, name: str) -> Signature:
        """A signature by its name."""
        return self.signatures[name]


_CTRL_C = re.compile(r"(?:^|\s)\^C(?:[\s^\\\"]|$)")
_SLOWED = 1.6  # no noise of a step's time, and less than what half of the links, or a throttled GPU, costs
_STEP_TIME = re.compile(r"\d+(?:\.\d+)?(?= ?m?s(?:ec)?/(?:step|it))|(?<=per iteration \(ms\): )\d+(?:\.\d+)?")
_STEP_RATE = re.compile(r"\d+(?:\.\d+)?(?= ?(?:it|steps?|samples|tokens|tok|im(?:age|g)s?)/s)")
_STEADY = 6  # so many steps at a log's end were slow
_NUMBERS = re.compile(r"[\d.,:]+")
_FAILED_EXIT = re.compile(r"\b(?:exit|return)(?:ed with)?[ _](?:code|status)\W{0,3}-?[1-9]|\brc=-?[1-9]", re.IGNORECASE)
_PID = re.compile(r"(?:\(pid: |by PID |process |\(RayTrainWorker pid=)(\d+)")
_PORT = re.compile(r"\b(?:link|device|CA|hca_id:?) '?([a-z]\w+)")  # rdma link, ibstatus and the like
_TASK_FAILED = re.compile(r"Terminating StepId=|tasks? [\d,-]+: (?:Exited with exit code|Killed|Seg|Abort|Bus|Out Of)")
_ENDS = ("run-ended", "nccl-tests-ok", "busbw-average")
_RETRIES = frozenset(
    (
        "master-refused",
        "connect-retry",
        "connect-refused",
        "gloo-closed",
        "probe-failed",
        "resources-missing",
        "serving-watchdog",
        "volume-not-mounted",
        "sandbox-failed",
        "adapters-not-handed-out",
        "ended-with-error",
    )
)
_RESTARTED = frozenset(
    ("child-terminated", "torchrun-exit", "sigterm-workers", "signal-exit", "proxy-failed", "nccl-trail")
)  # ended, and perhaps started again
_AT_SHUTDOWN = frozenset(
    (
        "store-closed",
        "dump-flag",
        "gloo-closed",
        "peer-closed",
        "rdzv-consequence",
        "proxy-failed",
        "nccl-abort",
        "nccl-trail",
        "rdzv-timeout",
        "rdzv-connection",
        "keep-alive-failed",
    )
)
_ASSIGNED = re.compile(r"\b((?:TORCH_NCCL|NCCL|GLOO|CUDA|MASTER)_[A-Z0-9_]{2,50})\s?[=:]\s?([^\s'\",;]{1,120})")
_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+), "
    r"(?P<shape>(?:NumelIn=\d+, NumelOut=\d+|TensorShape=\[[^\]]{0,80}\]))?"
    r"(?:, Timeout\(ms\)=(?P<timeout>\d+))?"
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\w+)(?: PG GUID (?P<name>[^\s\]]+))?")


def _pace(text: str) -> float:
    """How long a step took, in the line's own unit; zero where it does not tell. A rate may be a server's load."""
    time = _STEP_TIME.search(text)
    return float(time.group()) if time else 0.0


def _shape(text: str) -> str:
    return _NUMBERS.sub("", text)


def _group_of(text: str) -> str:
    found = _GROUP.search(text)
    return (found.group("name") or found.group("id")) if found else ""


def nccl_release(text: str) -> str:
    """A release of NCCL: torch before 1.13 prints the code 21003 of 2.10.3 as 21.0.3, in the manner of the codes before 2.9."""
    old = re.fullmatch(r"(2\d)\.(\d)\.(\d{1,2})", text)
    if old is None:
        return text
    code = int(old.group(1)) * 1000 + int(old.group(2)) * 100 + int(old.group(3))
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


_BODY_RANK = re.compile(r"Rank (\d+)\]")


def _rank_of(hit: Hit) -> int | None:
    found = _BODY_RANK.search(hit.text)
    return int(found.group(1)) if found else hit.rank


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None
