"""Whether a job stands still: NCCL that never comes to work, hangs that somebody interrupted, stacks that were taken of them."""

from __future__ import annotations

import functools
import itertools

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.course import MANY_LINES, STOPPED, ZONES, Course
from nccl_doctor.explain.lines import later
from nccl_doctor.explain.logs import Logs
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.readers.pace import SERVES

SIGINT = re.compile(r"KeyboardInterrupt|SIGINT|(?:Received|signal:) 2\b")
_TIME_LIMIT = re.compile(r"(?:DUE TO|due to) (?:TIME|time) (?:LIMIT|limit)|TERM_RUNLIMIT|[Ww]alltime|DeadlineExceeded")
_COLLECTIVE = re.compile(
    r"distributed_c10d|init_process_group|all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|rendezvous|all_?to_?all|"
    r"ncclComm|store_based|synchronize"
)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # of the sizes of nccl-tests, as powers of two
_LONG = 300.0  # seconds without a step
_ZONES_APART = 14 * 3600.0  # seconds: time zones differ by no more
_SLURMS_TIME = "CANCELLED AT "
_CTRL_C = re.compile(r"(?:^|\s)\^C(?:[\s^\\\"]|$)")
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
CRASHED = ("segfault", "sigabrt-exit", "bus-error", "crash-handler")
WORK = ("progress", "busbw-row", "own-result", "ended-well", "nccl-tests-ok", "busbw-average")
# Releases before 2.18 do not say "Init START": that they chose a network, or connect channels, is the beginning.
BEGINNINGS = (
    "nccl-init-start",
    "nccl-init-complete",
    "channel-net",
    "channel-p2p",
    "channel-shm",
    "network-used",
    "net-socket-using",
)
# vLLM's reports: of requests at work, and of such that neither a prompt's nor an answer's token came of
_AT_WORK = re.compile(r"tokens/s, Running: [1-9]")
_STANDS = re.compile(r"prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s, Running: [1-9]")


class Hang:
    """What tells that the job of one case stands still, or stood still until it was ended."""

    def __init__(self, logs: Logs, course: Course) -> None:
        self._logs = logs
        self._course = course

    @functools.cached_property
    def unfinished(self) -> bool:
        """Whether NCCL began to initialise and no work followed: the logs end there, or somebody interrupted it."""
        connecting = not self._logs.has("nccl-init-complete")
        return self._began and not self._worked and (connecting or bool(self._ctrl_c))

    @functools.cached_property
    def only_began(self) -> bool:
        """Whether the last that is told is that NCCL was initialised, or what it would use: a job that hangs in its first
        collective says no more, and neither does one whose own output is elsewhere."""
        return self._began and not self._worked and not self._logs.has("run-ended", "exit-zero")

    @functools.cached_property
    def _worked(self) -> bool:
        """Whether work was done, apart from what stands above NCCL's beginning in its file: a download, prepared data."""
        begun = {hit.file: hit.line for hit in reversed(self._logs.hits(*BEGINNINGS))}
        lasts = [work for name in WORK for work in self._logs.lasts(name)]
        if not lasts:
            return self._logs.has(*WORK)  # seen in a sample of a large file, where lines have no numbers
        return any(work.line > begun.get(work.file, -1) for work in lasts)

    @property
    def _began(self) -> bool:
        """Whether NCCL began to initialise, or an engine whose next step it is."""
        engine = self._logs.has("engine-names-its-nccl") and not self._logs.has("engine-went-on")
        return engine or self._logs.has(*BEGINNINGS)

    @functools.cached_property
    def _ctrl_c(self) -> list[Hit]:
        """Where somebody pressed Ctrl-C, or sent the same signal."""
        told = [hit for hit in self._logs.hits("signal-exception", "cancelled") if SIGINT.search(hit.text)]
        return told + [hit for hit in self._logs.tail if "^C" in hit.text and _CTRL_C.search(hit.text)]

    def ended_by(self, hit: Hit) -> bool:
        """Whether this line is how a job ended that stood still, by Ctrl-C or a time limit: the hang has a cause of its own."""
        if SIGINT.search(hit.text):
            return bool(self.interrupted)
        if STOPPED.search(hit.text) and self._logs.has("own-time-limit") and not self._logs.has(*WORK):
            return True  # the command had a limit of its own, and did nothing
        return self._out_of_time and (STOPPED.search(hit.text) or _TIME_LIMIT.search(hit.text)) is not None

    @functools.cached_property
    def _out_of_time(self) -> bool:
        """Whether a scheduler's time limit ended a job that stood still, or in which NCCL never came to the end of its
        initialisation."""
        connecting = self.unfinished and not self._logs.has("nccl-init-complete")
        return bool(self._limits and connecting) or any(hit in self._limits for hit in self.interrupted)

    @functools.cached_property
    def _limits(self) -> list[Hit]:
        """Where a scheduler ended the job because its time was over."""
        return [hit for hit in self._logs.hits("cancelled") if _TIME_LIMIT.search(hit.text)]

    @functools.cached_property
    def interrupted(self) -> list[Hit]:
        """Ctrl-C, or a scheduler's time limit, where nothing was done before it: no step after NCCL's start, inside of a
        collective, for long, after a time-out, or in the middle of a table of nccl-tests."""
        return self._by_hand or [
            hit for hit in self._limits if self._silence(hit) or self._only_nccl_before(hit) or self.stopped_tables
        ]

    @property
    def _by_hand(self) -> list[Hit]:
        if self.stopped_tables:
            return self._ctrl_c
        if any(self._worked_before(hit) for hit in self._ctrl_c):
            return [hit for hit in self._ctrl_c if self._silence(hit) or self._timed_out_before(hit)]
        waits = [item for item in self._logs.summary.tracebacks if item.type == "KeyboardInterrupt"]
        inside = any(_COLLECTIVE.search(" ".join((item.function, *item.frames))) for item in waits)
        return self._ctrl_c if self._began or inside else []

    def _worked_before(self, hit: Hit) -> bool:
        """Whether work was done before this line, as far as the order is known: what a later run does says nothing of this one."""
        return any(not later(work, hit) for work in self._logs.hits(*WORK))

    def _timed_out_before(self, hit: Hit) -> bool:
        """Whether somebody gave up waiting before this line, and the work did not go on."""
        return any(
            later(hit, last) and not self._course.outlived(last) for name in GAVE_UP for last in self._logs.lasts(name)
        )

    def _silence(self, hit: Hit) -> bool:
        """Whether the last step before this line is many times older than the steps were apart."""
        told = [*self._logs.hits("progress"), *self._course.last_steps.get(hit.file, [])]
        steps = [step for step in told if later(hit, step)]
        times = sorted({step.seconds for step in steps if step.seconds is not None})
        ended = self._logs.has("run-ended", "ended-well") or any(SERVES.search(step.text) for step in steps[-1:])
        slurms = prefix.parse(hit.text.partition(_SLURMS_TIME)[2]).seconds
        stopped = hit.seconds if hit.seconds is not None else slurms
        if ended or stopped is None or len(times) < 3:
            return False
        apart = max(later - earlier for earlier, later in itertools.pairwise(times[-3:]))
        silent = stopped - times[-1]
        if hit.seconds is None:
            silent = silent if silent > _ZONES_APART else silent % ZONES  # clocks of a host and a container differ so
        return silent > max(_LONG, 10 * apart)

    def _only_nccl_before(self, hit: Hit) -> bool:
        """Whether NCCL's INFO lines are the last that was said before this line, and no work was done."""
        before = [line for line in self._logs.summary.tails.get(hit.file, ()) if line.line < hit.line]
        return bool(before) and "NCCL INFO" in before[-1].text and not self._logs.has(*WORK)

    @functools.cached_property
    def stopped_tables(self) -> list[Hit]:
        """Where a table of nccl-tests ends long before the largest size that was asked for: its last row, or its heading."""
        logs, stopped = self._logs, []
        for head in logs.lasts("tests-range") or logs.lasts("tests-command"):
            row, closed = (logs.last(name, head.file) for name in ("busbw-row", "busbw-average"))
            if closed is not None and closed.line > head.line:
                continue
            asked = head.groups.get("number")  # of a command line; else the range that the test itself told
            largest = int(asked) << _UNITS[head.groups["unit"].upper()] if asked else int(head.groups["largest"])
            if row is None or row.line < head.line:
                if not asked:
                    stopped.append(head)
            elif 2 * int(row.groups["size"]) <= largest:  # sizes are rounded down
                stopped.append(row)
        return stopped

    @functools.cached_property
    def stacks(self) -> list[Hit]:
        """Where somebody took the stacks of processes: unless work went on, because they hang."""
        taken = ("stack-process", "stack-main", "stack-debugger")
        lasts = [last for name in taken for last in self._logs.lasts(name)]
        return [] if all(self._course.outlived(last, MANY_LINES) for last in lasts) else self._logs.hits(*taken)

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
        ended = {hit.file for hit in self._logs.lasts("engine-ends-its-workers")}
        return any(_AT_WORK.search(self._engine_reports[file][-1].text) for file in ended & self._engine_reports.keys())

    @functools.cached_property
    def _engine_reports(self) -> dict[str, list[Hit]]:
        """What a serving engine reports of its throughput in each file's last lines."""
        told = {
            file: [hit for hit in hits if "generation throughput: " in hit.text]
            for file, hits in self._logs.summary.tails.items()
        }
        return {file: hits for file, hits in told.items() if hits}
