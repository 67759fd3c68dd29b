"""Python's exceptions in a case: which are the program's own, which were caught, which only wrap what others report."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.course import Course
from nccl_doctor.explain.lines import just_below, place
from nccl_doctor.explain.logs import Logs
from nccl_doctor.explain.model import Hit, Role, Traceback

# Of launchers, and of frameworks that wrap any error of their own or another process so (EnforceNotMet: Paddle; Py4JJavaError: Spark).
LAUNCHER = re.compile(
    r"(?:ChildFailedError|SignalException|ProcessExitedException|ProcessRaisedException|CalledProcessError|SystemExit|"
    r"RayTaskError|RayActorError|ActorDiedError|RendezvousGracefulExitError|WorkerCrashedError|"
    r"WorkerGroupError|ControllerError|TrainingFailedError|WorkerGroupStartup\w+Error|WorkerHealthCheckFailedError|"
    r"GetTimeoutError|RayGetError|EnforceNotMet|Py4JJavaError)"
)
_LAUNCHERS_FILE = re.compile(
    r"/bin/(?:torchrun|accelerate|deepspeed)\b|torch/distributed/(?:run|launch|launcher|elastic)\b|accelerate/commands/|"
    r"deepspeed/launcher/|<frozen runpy>|/runpy\.py"
)
# Exceptions that only wrap what NCCL, Gloo, the store or the fabric reported.
_STACK_OF_A_NODE = 60  # lines, of several ranks
_WRAPPED = re.compile(
    r"gloo/transport|ProcessGroup(?:NCCL|Gloo|MPI|UCC|Wrapper)|\b(?:NCCL (?:error|operation|Error)|Nccl error,|NCCL_ERROR)|"
    r"\bnccl[A-Z]\w* failed: |nccl(?:Unhandled|System|Internal|Remote|Invalid)\w+Error|"
    r"monitoredBarrier|"
    r"coordination service|DEADLINE_EXCEEDED|UNAVAILABLE: |Worker failed with error|Engine core|See stack trace above|"
    r"see above|"
    r"Failed core proc|The actor died|Training failed due to (?:worker|controller) error|failed to start|unhandled (?:cuda|system) error|"
    r"Horovod has been shut down|process group watchdog|\bc10d\b|\bHCCL\b|\bHccl[A-Z]"
)
# What is raised where a process of the program finds that its parent, or a child, has gone: their pipe is closed or empty.
_PIPES = re.compile(
    r"(?:(?:EOF|Unpickling|Permission)Error \S*multiprocessing[/\\](?:spawn|reduction)|"
    r"(?:EOF|BrokenPipe|ConnectionReset)Error \S*multiprocessing[/\\](?:connection|queues|reduction|resource_sharer))\.py:"
)
_GLOO_WAIT = "Timed out waiting"
_ACTOR = re.compile(r"\W{0,6}(?:\d{1,2}m)?\((\w{1,60}) pid=\d")  # who speaks through Ray, in a colour or without
_WELL_BEHIND = 100  # lines: what a failing actor's neighbours still say, and Ray's own account, are fewer
_BEHIND = 6  # lines: torchrun tells of a worker's exit, then its traceback begins
# torch's compiler warns of what it could not take from its caches, with the exception, and compiles anew.
_WARNED = re.compile(r"W\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ +(?:\S*/)?torch/_(?:inductor|dynamo|functorch)/\S+:\d+\] ")
_TIMEOUT = re.compile(r"(?:^|\.)(?:TimeoutError|Empty)$")


class Exceptions:
    """The exceptions of one case."""

    def __init__(self, logs: Logs, course: Course) -> None:
        self._logs = logs
        self._course = course

    @functools.cached_property
    def ordinary(self) -> list[Traceback]:
        """Exceptions that no signature knows: the program's own errors, without launchers and wrappers."""
        kept = []
        for item in self._logs.summary.tracebacks:
            if not item.type or LAUNCHER.search(item.type) or self.is_known(item) or _is_of_a_pipe(item):
                continue
            if (
                _WRAPPED.search(item.message[:400])
                or (item.message.endswith(":") and any(self._tells(hit) for hit in item.more))
                or self._of_a_graph(item)
                or self._passes_on(item)
                or self._restated(item)
                or self._only_logged(item)
                or self._waited_for_worker(item)
            ):
                continue
            kept.append(msgspec.structs.replace(item, hit=self._logs.ranked(item.hit)))
        return kept

    def _tells(self, hit: Hit) -> bool:
        """Whether a further line of an exception's message is others' report, or a message that a signature knows."""
        return _WRAPPED.search(hit.text) is not None or place(hit) in self._meant

    def _of_a_graph(self, item: Traceback) -> bool:
        """Whether TensorFlow raised it for a node of its graph, and tells what the node met below the node's own stack."""
        below = range(item.hit.line + 1, item.hit.line + _STACK_OF_A_NODE)
        return item.message == "Graph execution error:" and any((item.hit.file, line) in self._meant for line in below)

    @functools.cached_property
    def _meant(self) -> set[tuple[str, int]]:
        """File and line of the messages that point to a cause."""
        logs = self._logs
        return {place(hit) for one in logs.seen(Role.CAUSE, Role.SYMPTOM) if one.cause for hit in logs.hits(one.name)}

    def _passes_on(self, item: Traceback) -> bool:
        """Whether torch's distributed checkpoint, which raises on every rank what some raised, tells theirs behind it."""
        return item.type.endswith("CheckpointException") and any(self._behind(item))

    def _restated(self, item: Traceback) -> bool:
        """Whether a launcher raised it in its own code, and then, in words that a signature knows, what it means."""
        of_launcher = bool(item.frames) and all(map(_LAUNCHERS_FILE.search, item.frames))
        return of_launcher and any(map(self.is_known, self._behind(item)))

    def _behind(self, item: Traceback) -> Iterator[Traceback]:
        """The tracebacks that begin just behind this one."""
        later = range(item.hit.line + 1, item.hit.line + _BEHIND)
        for other in self._logs.summary.tracebacks:
            if other.type and other.hit.file == item.hit.file and other.first_line in later:
                yield other

    def _waited_for_worker(self, item: Traceback) -> bool:
        """Whether a serving engine waited for a worker in vain: the link of the chain that says so is another one."""
        return not item.message and _TIMEOUT.search(item.type) is not None and self._logs.has("serving-watchdog")

    def is_of_launcher(self, item: Traceback) -> bool:
        """Whether a launcher's own traceback: its type says so, or it is cut, has only a launcher's frames, and follows its report."""
        if item.type:
            return LAUNCHER.search(item.type) is not None
        told = self._logs.hits("torchrun-exit", "torchrun-failed")
        follows = any(just_below(item.hit, hit, _BEHIND) for hit in told)
        return follows and all(map(_LAUNCHERS_FILE.search, item.frames))

    @functools.cached_property
    def waited_with_gloo(self) -> list[Traceback]:
        """Where a rank ran into Gloo's time-out of a send or receive: it was there, and waited."""
        told = [item for item in self._logs.summary.tracebacks if "socket-timeout" in item.known]
        return [item for item in told if _GLOO_WAIT in item.message + item.hit.text]

    @functools.cached_property
    def of_pipes(self) -> list[Traceback]:
        """Where a process of the program found that another one of it had gone: an effect, whatever that died of."""
        told = [item for item in self._logs.summary.tracebacks if _is_of_a_pipe(item)]
        return [item for item in told if not self.is_harmless(item) and not self._only_logged(item)]

    def is_known(self, item: Traceback) -> bool:
        """Whether a signature knows the exception's line: it then says what it means."""
        return self._logs.known_as(item, Role.CAUSE, Role.SYMPTOM, Role.HARMLESS)

    def is_harmless(self, item: Traceback) -> bool:
        """Whether Python itself said that it goes on after this exception."""
        return self._logs.known_as(item, Role.HARMLESS)

    @functools.cached_property
    def caught(self) -> set[tuple[str, int]]:
        """File and line of the exceptions that were caught, or that Python ignored, whatever they mean: they did no harm."""
        return {
            place(hit)
            for item in self._logs.summary.tracebacks
            if item.type and (self.is_harmless(item) or self._only_logged(item))
            for hit in (item.hit, *item.more)
        }

    @functools.cached_property
    def uncaught(self) -> list[Traceback]:
        """Exceptions, launchers' and wrappers' too, and tracebacks cut before theirs: of what no signature knows, all that
        the work did not outlive."""
        told = self._logs.summary.tracebacks
        return [item for item in told if not self.is_known(item) and place(item.hit) not in self.caught]

    @functools.cached_property
    def more(self) -> dict[tuple[str, int], tuple[Hit, ...]]:
        """The further lines of exceptions' messages, by file and line of the first."""
        return {place(item.hit): item.more for item in self._logs.summary.tracebacks if item.more}

    @functools.cached_property
    def _actors_at_the_end(self) -> dict[str, dict[str, int]]:
        """By file, the kinds of Ray's actors that speak in its last lines, and the last line of each."""
        found: dict[str, dict[str, int]] = {}
        for hit in self._logs.tail:
            if hit.pid and (actor := _ACTOR.match(hit.text)):
                found.setdefault(hit.file, {})[actor[1]] = hit.line
        return found

    def _of_an_actor_that_works_on(self, item: Traceback) -> bool:
        """Whether actors of that kind speak to the log's end, well behind the first that they raised, and Ray told the program of
        no failed call: whoever calls them handles what they raise."""
        actor = _ACTOR.match(item.hit.text) if item.hit.pid and item.hit.rank is None else None
        last = self._actors_at_the_end.get(item.hit.file, {}).get(actor[1], 0) if actor else 0
        if not actor or not last:
            return False
        first = self._first_of_actors[item.hit.file, actor[1]]
        return last > first + _WELL_BEHIND and not self._call_failed and not self._open_symptoms

    @functools.cached_property
    def _first_of_actors(self) -> dict[tuple[str, str], int]:
        """By file and kind of actor, the line of the first exception that one raised."""
        found: dict[tuple[str, str], int] = {}
        for item in self._logs.summary.tracebacks:
            if actor := _ACTOR.match(item.hit.text):
                key = item.hit.file, actor[1]
                found[key] = min(found.get(key, item.hit.line), item.hit.line)
        return found

    @functools.cached_property
    def _call_failed(self) -> bool:
        """Whether Ray told a program that a call of its failed."""
        told = self._logs.summary.tracebacks
        return any("RayTaskError" in item.type or "ActorDied" in item.type for item in told)

    def _only_logged(self, item: Traceback) -> bool:
        """Whether an exception was caught: the work outlived it, its rank spoke on, and no symptom came after it."""
        course, hit = self._course, item.hit
        if _WARNED.search(hit.text) or self._of_an_actor_that_works_on(item):
            return True
        spoke = self._logs.summary.last_of_rank.get(hit.rank, hit) if hit.rank is not None else None
        if spoke is not None and spoke.line <= hit.line:
            return False
        # Between a search's trials nothing else runs: the next trial's result is enough.
        outlived = course.outlived(hit, 1) if self._logs.has("trial-failed") else course.outlived(hit)
        if not outlived:
            return False
        return not any(late.file != hit.file or late.line > hit.line for late in self._open_symptoms)

    @functools.cached_property
    def _open_symptoms(self) -> list[Hit]:
        """The last line of each symptom in each file, where the work did not outlive it."""
        lasts = [last for symptom in self._logs.seen(Role.SYMPTOM) for last in self._logs.lasts(symptom.name)]
        return [last for last in lasts if not self._course.outlived(last)]


def _is_of_a_pipe(item: Traceback) -> bool:
    where = item.frames[-1] if item.frames else ""
    return _PIPES.match(f"{item.type.rsplit('.', 1)[-1]} {where}") is not None
