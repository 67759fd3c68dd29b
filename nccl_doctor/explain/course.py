"""The course of the work: whether it went on after a line, got over a trouble, slowed down, or came to its end."""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import TYPE_CHECKING

from nccl_doctor.explain.lines import by_file, later, place
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.readers.pace import SERVES
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.signatures.facts import BUSBW_ROW

if TYPE_CHECKING:
    from nccl_doctor.explain.case import Case

_DAY = 86400.0  # seconds: no time zone makes up for so much
_HALF_A_YEAR = 183 * _DAY  # times have no year: what seems to be longer ago was after New Year
_SOON = 8  # lines: what a program that has come to its end still prints, and the traceback of an interrupt
_STOPPED = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|signal: (?:2|15)\b")
_TIME_LIMIT = re.compile(r"(?:DUE TO|due to) (?:TIME|time) (?:LIMIT|limit)|TERM_RUNLIMIT|[Ww]alltime|DeadlineExceeded")
_ANSWER = 'HTTP/1.1" 200'  # a server answers requests one by one: the next answer shows that it lives
SIGINT = re.compile(r"KeyboardInterrupt|SIGINT|(?:Received|signal:) 2\b")
_COLLECTIVE = re.compile(
    r"distributed_c10d|init_process_group|all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|rendezvous|all_?to_?all|"
    r"ncclComm|store_based|synchronize"
)
_LONG = 300.0  # seconds without a step
_SLURMS_TIME = "CANCELLED AT "
_ZONES, _ZONES_APART = 1800.0, 14 * 3600.0  # seconds: time zones differ by multiples of the first, up to the second
_CLOCKS_APART = 10.0  # seconds: what clocks of two hosts may differ
_PASTED = 5.0  # seconds: more than a job's streams lie behind one another
LINES_AFTER = 3  # one rank's step may be printed just after another rank's last line
MANY_LINES = 21  # of other ranks of a job that stands still, no more than this is printed
_CTRL_C = re.compile(r"(?:^|\s)\^C(?:[\s^\\\"]|$)")
_FAILED_EXIT = re.compile(r"\b(?:exit|return)(?:ed with)?[ _](?:code|status)\W{0,3}-?[1-9]|\brc=-?[1-9]", re.IGNORECASE)
GAVE_UP = (  # waiting in vain
    "serving-watchdog",
    "watchdog-timeout",
    "watchdog-down",
    "heartbeat",
    "monitored-barrier",
    "socket-timeout",
    "deepep-timeout",
    "symmetric-signal-timeout",
)
_WORK = ("progress", "busbw-row", "ended-well", "nccl-tests-ok", "busbw-average")
# Releases before 2.18 do not say "Init START": that they chose a network, or connect channels, is the beginning.
_BEGINNINGS = (
    "nccl-init-start",
    "nccl-init-complete",
    "channel-net",
    "channel-p2p",
    "channel-shm",
    "network-used",
    "net-socket-using",
)
_ENDS = ("run-ended", "nccl-tests-ok", "busbw-average")
_RETRIES = frozenset(
    (
        "no-step-seen",
        "master-refused",
        "connect-retry",
        "connect-refused",
        "gloo-closed",
        "probe-failed",
        "resources-missing",
        "not-scheduled",
        "waiting-for-placement",
        "serving-watchdog",
        "grpc-unavailable",
        "server-awaited",
        "horovod-stall",
        "torchft-goes-on",
        "torchft-waits",
        "xla-rendezvous",
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
        "ras-peer-dead",
        "ras-peer-silent",
    )
)
_SLOWED = 1.6  # no noise of a step's time, and less than what half of the links, or a throttled GPU, costs
_STEP_TIME = re.compile(r"(?<!\d)\d+(?:\.\d+)?(?= ?m?s(?:ec)?/(?:step|it))|(?<=per iteration \(ms\): )\d+(?:\.\d+)?")
_STEP_RATE = re.compile(r"(?<!\d)\d+(?:\.\d+)?(?= ?(?:it|steps?|samples|tokens|tok|im(?:age|g)s?)/s)")
_STEADY = 6  # so many steps at a log's end were slow
# vLLM's reports: of requests at work, and of such that neither a prompt's nor an answer's token came of
_AT_WORK = re.compile(r"tokens/s, Running: [1-9]")
_STANDS = re.compile(r"prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s, Running: [1-9]")
_NUMBERS = re.compile(r"[\d.,:]+")


class Course:
    """What became of the work of one case."""

    def __init__(self, case: Case) -> None:
        self._case = case

    @functools.cached_property
    def unfinished(self) -> bool:
        """Whether NCCL began to initialise and no work followed: the logs end there, or somebody interrupted it."""
        case = self._case
        if not self._began or any(not self._before_nccl(hit) for name in _WORK for hit in case.lasts(name)):
            return False
        return not case.has("nccl-init-complete") or bool(self._interrupted)

    @functools.cached_property
    def only_began(self) -> bool:
        """Whether the last that is told is that NCCL was initialised, or what it would use: a job that hangs in its first
        collective says no more, and neither does one whose own output is elsewhere."""
        return self._began and not self._case.has(*_WORK, "run-ended", "exit-zero")

    @property
    def no_end_told(self) -> bool:
        """Whether steps are the last that is told of the work: it may go on, and it may stand still since."""
        return self._case.has("progress") and not self._case.has(*_ENDS, "exit-zero", "ended-well")

    def _before_nccl(self, work: Hit) -> bool:
        """Whether work was done before NCCL began in its file: a download, the preparation of data."""
        begun = [hit for hit in self._case.hits(*_BEGINNINGS) if hit.file == work.file]
        return bool(begun) and work.line < min(hit.line for hit in begun)

    @property
    def _began(self) -> bool:
        """Whether NCCL began to initialise, or an engine whose next step it is."""
        engine = self._case.has("engine-names-its-nccl") and not self._case.has("engine-went-on")
        return engine or self._case.has(*_BEGINNINGS)

    @functools.cached_property
    def _interrupted(self) -> list[Hit]:
        """Where somebody pressed Ctrl-C, or sent the same signal."""
        told = [hit for hit in self._case.hits("signal-exception", "cancelled") if SIGINT.search(hit.text)]
        return told + [hit for hit in self._case.tail if "^C" in hit.text and _CTRL_C.search(hit.text)]

    def ended_a_hang(self, hit: Hit) -> bool:
        """Whether this line is how a job ended that stood still, by Ctrl-C or a time limit: the hang has a cause of its own."""
        if SIGINT.search(hit.text):
            return bool(self.interrupted_hang)
        if _STOPPED.search(hit.text) and self._case.has("own-time-limit") and not self._case.has(*_WORK):
            return True  # the command had a limit of its own, and did nothing
        return self._out_of_time and (_STOPPED.search(hit.text) or _TIME_LIMIT.search(hit.text)) is not None

    @functools.cached_property
    def _out_of_time(self) -> bool:
        """Whether a scheduler's time limit ended a job that stood still, or in which NCCL never came to the end of its
        initialisation."""
        connecting = self.unfinished and not self._case.has("nccl-init-complete")
        return bool(self._limits and connecting) or any(hit in self._limits for hit in self.interrupted_hang)

    @functools.cached_property
    def _limits(self) -> list[Hit]:
        """Where a scheduler ended the job because its time was over."""
        return [hit for hit in self._case.hits("cancelled") if _TIME_LIMIT.search(hit.text)]

    @functools.cached_property
    def interrupted_hang(self) -> list[Hit]:
        """Ctrl-C, or a scheduler's time limit, where nothing was done before it: no step after NCCL's start, inside of a
        collective, for long, after a time-out, or in the middle of a table of nccl-tests."""
        return self._interrupted_by_hand or [
            hit for hit in self._limits if self._silence(hit) or self._only_nccl_before(hit) or self.stopped_tables
        ]

    @property
    def _interrupted_by_hand(self) -> list[Hit]:
        if self.stopped_tables:
            return self._interrupted
        if any(self._worked_before(hit) for hit in self._interrupted):
            return [hit for hit in self._interrupted if self._silence(hit) or self._timed_out_before(hit)]
        waits = [item for item in self._case.summary.tracebacks if item.type == "KeyboardInterrupt"]
        inside = any(_COLLECTIVE.search(" ".join((item.function, *item.frames))) for item in waits)
        return self._interrupted if self._began or inside else []

    def _worked_before(self, hit: Hit) -> bool:
        """Whether work was done before this line, as far as the order is known: what a later run does says nothing of this one."""
        return any(not later(work, hit) for work in self._case.hits(*_WORK))

    def _timed_out_before(self, hit: Hit) -> bool:
        """Whether somebody gave up waiting before this line, and the work did not go on."""
        return any(later(hit, last) and not self.outlived(last) for name in GAVE_UP for last in self._case.lasts(name))

    def _silence(self, hit: Hit) -> bool:
        """Whether the last step before this line is many times older than the steps were apart."""
        told = [*self._case.hits("progress"), *self._last_steps.get(hit.file, [])]
        steps = [step for step in told if step.file == hit.file and step.line < hit.line]
        times = sorted({step.seconds for step in steps if step.seconds is not None})
        ended = self._case.has("run-ended", "ended-well") or any(SERVES.search(step.text) for step in steps[-1:])
        slurms = prefix.parse(hit.text.partition(_SLURMS_TIME)[2]).seconds
        stopped = hit.seconds if hit.seconds is not None else slurms
        if ended or stopped is None or len(times) < 3:
            return False
        apart = max(later - earlier for earlier, later in itertools.pairwise(times[-3:]))
        silent = stopped - times[-1]
        if hit.seconds is None:
            silent = silent if silent > _ZONES_APART else silent % _ZONES  # clocks of a host and a container differ so
        return silent > max(_LONG, 10 * apart)

    def _only_nccl_before(self, hit: Hit) -> bool:
        """Whether NCCL's INFO lines are the last that was said before this line, and no work was done."""
        before = [line for line in self._case.summary.tails.get(hit.file, ()) if line.line < hit.line]
        return bool(before) and "NCCL INFO" in before[-1].text and not self._case.has(*_WORK)

    @functools.cached_property
    def stopped_tables(self) -> list[Hit]:
        """Where a table of nccl-tests ends long before the largest size that was asked for: its last row, or its heading."""
        case, stopped = self._case, []
        for head in case.lasts("tests-range"):
            row, closed = (case.last(name, head.file) for name in ("busbw-row", "busbw-average"))
            if closed is not None and closed.line > head.line:
                continue
            size = BUSBW_ROW.search(row.text) if row is not None and row.line > head.line else None
            if row is None or size is None:
                stopped.append(head)
            elif 2 * int(size["size"]) <= int(head.groups["largest"]):  # sizes are rounded down
                stopped.append(row)
        return stopped

    @functools.cached_property
    def recovered(self) -> bool:
        """Whether all trouble was followed, in the same file, by the end of the whole run: it was overcome.

        What is said of a store or peer that is gone after that end is the shutdown of a job that had finished.
        """
        case, worst = self._case, {hit.file: hit.line for hit in sorted(self.troubles, key=place)}
        ends = {
            hit.file: hit.line
            for hit in (*self._run_ended, *case.lasts("run-ended"))
            if place(hit) not in self._of_another
        }
        for end in case.lasts("exit-zero"):
            worked = self._last_step_before("exit-zero", end.file)
            if worked >= worst.get(end.file, 0) + LINES_AFTER:
                ends[end.file] = worked  # the job exited with 0, and had worked on after all that went wrong
        ends = {file: line for file, line in ends.items() if file not in self.failed_files}
        return bool(ends) and all(line < ends.get(file, -1) for file, line in worst.items()) and not self.left_out

    @functools.cached_property
    def _run_ended(self) -> list[Hit]:
        return [end for end in self._case.hits("run-ended") if place(end) not in self._of_another]

    @functools.cached_property
    def _of_another(self) -> set[tuple[str, int]]:
        """Good ends that stand below a trouble and are older than it, by the clock: of another job, whose log was pasted below."""
        case = self._case
        told = [hit for signature in case.seen(Role.CAUSE, Role.SYMPTOM) for hit in case.hits(signature.name)]
        return {
            place(end)
            for end in (*case.hits("run-ended"), *case.lasts("run-ended"))
            if any(later(end, hit) and hit.host in ("", end.host) and _after(hit, end, _PASTED) for hit in told)
        }

    @functools.cached_property
    def left_out(self) -> set[str]:
        """Hosts with a trouble that, by its time, came after the end that others tell of, whatever stands first in their file."""
        ends = by_file(self._case.hits("run-ended"))
        return {hit.host for hit in self.troubles if hit.file in ends and _after_all(hit, ends[hit.file])}

    @functools.cached_property
    def failed_files(self) -> set[str]:
        """Files whose last lines name an exit status that is not 0: what they say of a good end is not true of the job."""
        return {hit.file for hit in self._case.tail if _FAILED_EXIT.search(hit.text) and not self._stepped_on(hit)}

    @functools.cached_property
    def troubles(self) -> list[Hit]:
        """The lines that speak of a failure, apart from what is said of the store and peers in a file that ended well."""
        case, ends = self._case, self._run_ended
        troubles = [
            item.hit
            for item in case.summary.tracebacks
            if item.type and not case.exceptions.is_harmless(item) and not self._stopped_after_end(item.hit)
        ]
        for signature in case.seen(Role.CAUSE, Role.SYMPTOM):
            name = signature.name
            late = name in _AT_SHUTDOWN or self._stopped_after_end(case.first(name))
            troubles.extend(
                hit
                for hit in [*case.hits(name), *case.lasts(name)]
                if not (late and any(self._shut_down(end, hit) for end in ends))
            )
        return troubles

    @property
    def stands(self) -> list[Hit]:
        """Where somebody took the stacks of processes: unless work went on, because they hang."""
        taken = ("stack-process", "stack-main", "stack-debugger")
        lasts = [last for name in taken for last in self._case.lasts(name)]
        return [] if all(self.outlived(last, MANY_LINES) for last in lasts) else self._case.hits(*taken)

    @functools.cached_property
    def idle_engine(self) -> list[Hit]:
        """A log's last reports of a serving engine that has requests at work and neither reads nor writes a token, three
        times in a row."""
        for last in (reports[-3:] for reports in self._engine_reports.values()):
            if len(last) == 3 and all(_STANDS.search(hit.text) for hit in last):
                return last
        return []

    @functools.cached_property
    def ended_engine(self) -> bool:
        """Whether a serving engine's workers were ended by SIGTERM when it had just told of requests at work."""
        ended = {hit.file for hit in self._case.lasts("engine-ends-its-workers")}
        return any(_AT_WORK.search(self._engine_reports[file][-1].text) for file in ended & self._engine_reports.keys())

    @functools.cached_property
    def _engine_reports(self) -> dict[str, list[Hit]]:
        """What a serving engine reports of its throughput in each file's last lines."""
        told = {
            file: [hit for hit in hits if "generation throughput: " in hit.text]
            for file, hits in self._case.summary.tails.items()
        }
        return {file: hits for file, hits in told.items() if hits}

    # after one line --------------------------------------------------------------------------------------------------

    def outlived(self, hit: Hit, lines: int = LINES_AFTER) -> bool:
        """Whether the work visibly went on after this line: its file tells the run's end, or steps, further down."""
        ends = [self._case.last(name, hit.file) for name in _ENDS]
        if (
            any(end and end.line > hit.line and place(end) not in self._of_another for end in ends)
            and hit.file not in self.failed_files
        ):
            return True
        step = self._case.last("progress", hit.file)
        if step is not None and step.line >= hit.line + (1 if _ANSWER in step.text else lines):
            return True
        return lines <= LINES_AFTER and self._stepped_on(hit)

    def began_after(self, seconds: float | None) -> bool:
        """Whether all that the job says is a day or more younger than this moment: it began afterwards."""
        return seconds is not None and _DAY < self._first_word - seconds < _HALF_A_YEAR

    @functools.cached_property
    def _first_word(self) -> float:
        """The earliest time that a line of a rank, or a step, tells; minus infinity where none does."""
        said = (hit for group in self._case.summary.groups.values() for hit in (*group.hits, *group.lasts.values()))
        its = (hit for hit in said if hit.rank is not None or hit.signature == "progress")
        return min((hit.seconds for hit in its if hit.seconds is not None), default=-math.inf)

    def overcome(self, name: str) -> bool:
        """Whether this signature's lines did no harm: retries that the work outlived, or the shutdown after its end."""
        lasts = self._case.lasts(name)
        return bool(lasts) and all(self._overcome(name, last) for last in lasts)

    def _overcome(self, name: str, last: Hit) -> bool:
        if name == "master-refused" and any(
            last.file == one.file and last.line < one.line for one in self._case.hits("watchdog-timeout")
        ):
            return True  # a collective comes after the rendezvous
        if name in _RETRIES:
            return self.outlived(last)
        if name in _RESTARTED and (self.outlived(last, MANY_LINES) or self.resumed_after(last)):
            return True
        ends = self._ends.get(last.file, ()) if name in _AT_SHUTDOWN else ()
        return any(  # destroying a group aborts communicators, too
            self._shut_down(end, last) for end in ends if end.signature != "ended-well" or name == "nccl-abort"
        )

    @functools.cached_property
    def _ends(self) -> dict[str, list[Hit]]:
        """The lines that tell of a good end, by file."""
        good = self._case.hits(*_ENDS, "exit-zero", "ended-well")
        return by_file(hit for hit in good if place(hit) not in self._of_another)

    def resumed_after(self, hit: Hit) -> bool:
        """Whether the program went on from a checkpoint after this line, and made steps."""
        step = self._case.last("progress")
        return step is not None and any(
            step.file == one.file == hit.file and hit.line < one.line < step.line for one in self._case.hits("resumed")
        )

    def _stopped_after_end(self, hit: Hit | None) -> bool:
        """Whether somebody stopped the program just after it had said that its run was over."""
        if hit is None or not _STOPPED.search(hit.text):
            return False
        ends = [self._case.last("run-ended"), *self._case.hits("run-ended")]
        return any(end and end.file == hit.file and 0 < hit.line - end.line <= _SOON for end in ends)

    def _shut_down(self, end: Hit, hit: Hit) -> bool:
        """Whether this end was the end of what ``hit`` tells of: no work was done between the two."""
        step = self._case.last("progress")
        went_on = step is not None and step.file == end.file and end.line + _SOON < step.line < hit.line
        return end.file == hit.file and not went_on

    def _stepped_on(self, hit: Hit) -> bool:
        """Whether a rank went a whole step further: after this line two reports of one shape, or a step and a good end."""
        shapes = [shape(step.text) for step in self._last_steps.get(hit.file, ()) if step.line > hit.line]
        return len(set(shapes)) < len(shapes) or hit.line < self._last_step_before("ended-well", hit.file)

    @functools.cached_property
    def _last_steps(self) -> dict[str, list[Hit]]:
        """Of each file's last lines those that report a step."""
        steps = self._case.signatures["progress"]
        return {
            file: [hit for hit in hits if steps.match(hit.text) is not None]
            for file, hits in self._case.summary.tails.items()
        }

    def _last_step_before(self, name: str, file: str) -> int:
        """The line of the last step in this file, if this kind of end follows it; else 0."""
        end, step = self._case.last(name, file), self._case.last("progress", file)
        return step.line if end is not None and step is not None and end.line > step.line else 0

    # its pace --------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def slowed(self) -> bool:
        """Whether the last step that was reported took far longer than the first one."""
        if self._case.has(PACE_LEFT):
            return True
        told = by_file((*self._case.hits("progress"), *self._case.tail)).values()
        return any(_slower("\n".join(hit.text for hit in hits)) for hits in told)

    @functools.cached_property
    def slower_steps(self) -> list[Hit]:
        """A first step and the last ones, of one shape, where all of the last took far longer, and about the same time."""
        for first in self._case.hits("progress"):
            pace, tail = _pace(first.text), self._case.summary.tails.get(first.file, [])
            if not pace or not tail or first.line >= tail[0].line:
                continue
            alike = shape(first.text)
            last = [hit for hit in tail if shape(hit.text) == alike]
            paces = [_pace(hit.text) for hit in last]
            if len(last) >= _STEADY and _SLOWED * max(pace, max(paces) / _SLOWED**2) < min(paces):
                return [first, *last]
        return []


def _after_all(hit: Hit, ends: list[Hit]) -> bool:
    """Whether a host's line came shortly after these ends of its file, all of them told by other hosts."""
    return all(_after(hit, end, _CLOCKS_APART) and "" != hit.host != end.host != "" for end in ends)


def _after(hit: Hit, end: Hit, least: float) -> bool:
    """Whether a line was printed after another by at least so many seconds, and not merely in another time zone."""
    if hit.seconds is None or end.seconds is None:
        return False
    return least < hit.seconds - end.seconds < _ZONES - _CLOCKS_APART


def _slower(steps: str) -> bool:
    times = [float(found) for found in _STEP_TIME.findall(steps)]
    rates = [float(found) for found in _STEP_RATE.findall(steps)]
    return (bool(times) and times[-1] > _SLOWED * times[0]) or (bool(rates) and rates[0] > _SLOWED * rates[-1])


def _pace(text: str) -> float:
    """How long a step took, in the line's own unit; zero where it does not tell. A rate may be a server's load."""
    time = _STEP_TIME.search(text)
    return float(time.group()) if time else 0.0


def shape(text: str) -> str:
    """A line without its numbers: reports of the same kind look alike."""
    return _NUMBERS.sub("", text)
