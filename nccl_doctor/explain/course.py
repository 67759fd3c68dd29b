"""The course of the work: whether it went on after a line, got over a trouble, or came to its end."""

from __future__ import annotations

import functools
import math

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.lines import by_file, came_after, just_below, later, place, shape
from nccl_doctor.explain.logs import Logs
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import bystanders

# Only a distributed job says these.
DISTRIBUTED = (
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
    "jax-coordinator",
)
_DAY = 86400.0  # seconds: no time zone makes up for so much
_HALF_A_YEAR = 183 * _DAY  # times have no year: what seems to be longer ago was after New Year
_SOON = 8  # lines: what a program that has come to its end still prints, and the traceback of an interrupt
STOPPED = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|signal: (?:2|15)\b")
_ANSWER = 'HTTP/1.1" 200'  # a server answers requests one by one: the next answer shows that it lives
# Ray tells what several workers say alike once, seconds later: within so many lines it proves nothing of what came first.
_REPEATED, _HELD_BACK = "x across cluster]", 100
ZONES = 1800.0  # seconds: time zones differ by multiples of this
_CLOCKS_APART = 10.0  # seconds: what clocks of two hosts may differ
_PASTED = 5.0  # seconds: more than a job's streams lie behind one another
LINES_AFTER = 3  # one rank's step may be printed just after another rank's last line
MANY_LINES = 21  # of other ranks of a job that stands still, no more than this is printed
_FAILED_EXIT = re.compile(
    r"\b(?:exit|return)(?:ed with)?[ _](?:code|status)\W{0,3}-?[1-9]|\brc=-?[1-9]|"
    r" (?:FAILED|TIMEOUT|NODE_FAIL|OUT_OF_ME\w*\+?|CANCELLED\+?) +\d+:\d+\b|"  # sacct, of any of the job's steps
    # or of several jobs, of which nobody says whose the log is: sacct's, and kubectl's with state and age alone
    r" (?:RUNNING|PENDING) +0:0\b| (?:Failed|Running|Pending|Created|Restarting|Suspended) +(?:\d+[dhms])+\s*$",
    re.IGNORECASE,
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
        "no-capacity",
        "not-scheduled",
        "ray-too-small",
        "waiting-for-placement",
        "serving-watchdog",
        "engine-waits-for-nodes",
        "grpc-unavailable",
        "server-awaited",
        "paddle-peers-awaited",
        "inference-server-awaited",
        "build-lock",
        "horovod-stall",
        "torchft-goes-on",
        "torchft-waits",
        "xla-rendezvous",
        "connect-attempt-lost",
        "mooncake-master",
        "tensorflow-session-lost",
        "volume-not-mounted",
        "sandbox-failed",
        "adapters-not-handed-out",
        "ended-with-error",
        "pod-not-running",
        "ray-node-not-registered",
        "amdgpu-firmware-silent",
        # another transport or library takes its place
        "ucx-lacks",
        "openib-no-scheme",
        "open-mpi-ofi",
        "mpi-collectives-library",
    )
)
_RESTARTED = frozenset(
    (
        "child-terminated",
        "torchrun-exit",
        "sigterm-workers",
        "signal-exit",
        "proxy-failed",
        "nccl-trail",
        "mpi-cannot-start",
    )
)  # ended, and perhaps started again
# Nothing can start: if a job ran afterwards, it was mended.
_STARTS_NOTHING = frozenset(("no-such-kind", "slurm-not-there", "slurm-daemon-fatal", "tool-missing"))
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
        "rpc-peer-lost",
    )
)


class Course:
    """What became of the work of one case."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @property
    def no_end_told(self) -> bool:
        """Whether steps are the last that is told of the work: it may go on, and it may stand still since."""
        return self._logs.has("progress") and not self._logs.has(*_ENDS, "exit-zero", "ended-well")

    @functools.cached_property
    def recovered(self) -> bool:
        """Whether all trouble was followed, in the same file, by the end of the whole run: it was overcome.

        What is said of a store or peer that is gone after that end is the shutdown of a job that had finished.
        """
        logs, worst = self._logs, {hit.file: hit.line for hit in sorted(self.troubles, key=place)}
        ends = {file: max(end.line for end in told) for file, told in self._run_ended.items()}
        for end in logs.lasts("exit-zero"):
            worked = self._last_step_before("exit-zero", end.file)
            if worked >= worst.get(end.file, 0) + LINES_AFTER:
                ends[end.file] = worked  # the job exited with 0, and had worked on after all that went wrong
        ends = {file: line for file, line in ends.items() if file not in self.failed_files}
        return bool(ends) and all(line < ends.get(file, -1) for file, line in worst.items()) and not self.left_out

    @functools.cached_property
    def _run_ended(self) -> dict[str, list[Hit]]:
        """Where the run is said to be over, by file."""
        told = (*self._logs.hits("run-ended"), *self._logs.lasts("run-ended"))
        return by_file(end for end in told if place(end) not in self._of_another)

    @functools.cached_property
    def _of_another(self) -> set[tuple[str, int]]:
        """Good ends that stand below a trouble and are older than it, by the clock: of another job, whose log was pasted below."""
        logs = self._logs
        told = by_file(hit for signature in logs.seen(Role.CAUSE, Role.SYMPTOM) for hit in logs.hits(signature.name))

        def below_a_younger(end: Hit) -> bool:
            above = (hit for hit in told.get(end.file, ()) if hit.line < end.line and hit.host in ("", end.host))
            return any(_after(hit, end, _PASTED) for hit in above)

        return {place(end) for end in (*logs.hits("run-ended"), *logs.lasts("run-ended")) if below_a_younger(end)}

    @functools.cached_property
    def left_out(self) -> set[str]:
        """Hosts with a trouble that, by its time, came after the end that others tell of, whatever stands first in their file."""
        ends = self._run_ended
        return {hit.host for hit in self.troubles if hit.file in ends and _after_all(hit, ends[hit.file])}

    @functools.cached_property
    def failed_files(self) -> set[str]:
        """Files whose last lines name an exit status that is not 0: what they say of a good end is not true of the job."""
        return {hit.file for hit in self._logs.tail if _FAILED_EXIT.search(hit.text) and not self._stepped_on(hit)}

    @functools.cached_property
    def troubles(self) -> list[Hit]:
        """The lines that speak of a failure, apart from what is said of the store and peers in a file that ended well."""
        logs = self._logs
        troubles = [
            item.hit
            for item in logs.summary.tracebacks
            if not logs.known_as(item, Role.HARMLESS) and not self._stopped_after_end(item.hit)
        ]
        for signature in logs.seen(Role.CAUSE, Role.SYMPTOM):
            name = signature.name
            late = name in _AT_SHUTDOWN or self._stopped_after_end(logs.first(name))
            troubles.extend(
                hit
                for hit in [*logs.hits(name), *logs.lasts(name)]
                if not (late and any(self._shut_down(end, hit) for end in self._run_ended.get(hit.file, ())))
            )
        return troubles

    # after one line --------------------------------------------------------------------------------------------------

    def outlived(self, hit: Hit, lines: int = LINES_AFTER) -> bool:
        """Whether the work visibly went on after this line: its file tells the run's end, or steps, further down."""
        ends = [self._logs.last(name, hit.file) for name in _ENDS]
        if (
            any(end and end.line > hit.line and place(end) not in self._of_another for end in ends)
            and hit.file not in self.failed_files
        ):
            return True
        step = self._logs.last("progress", hit.file)
        behind = 1 if step is not None and _ANSWER in step.text else lines
        if step is not None and step.line >= hit.line + (_HELD_BACK if _REPEATED in step.text else behind):
            return True
        return lines <= LINES_AFTER and self._stepped_on(hit)

    def stepped_after(self, hit: Hit) -> bool:
        """Whether two steps are reported after this line, of which the second needed every rank.

        What the kernel says is often pasted above a log: there only times tell the order.
        """
        step = self._logs.summary.stepped.get(hit.file)
        if step is None or not later(step, hit) or came_after(step, hit) is False:
            return False
        timed = hit.seconds is not None and step.seconds is not None
        return timed or not bystanders.is_of_the_kernel(hit.text)

    def began_after(self, seconds: float | None) -> bool:
        """Whether all that the job says is a day or more younger than this moment: it began afterwards."""
        return seconds is not None and _DAY < self._first_word - seconds < _HALF_A_YEAR

    @functools.cached_property
    def _first_word(self) -> float:
        """The earliest time that a line of a rank, or a step, tells; minus infinity where none does."""
        said = (hit for group in self._logs.summary.groups.values() for hit in (*group.hits, *group.lasts.values()))
        its = (hit for hit in said if hit.rank is not None or hit.signature == "progress")
        return min((hit.seconds for hit in its if hit.seconds is not None), default=-math.inf)

    def overcome(self, name: str) -> bool:
        """Whether this signature's lines did no harm: retries that the work outlived, or the shutdown after its end."""
        lasts = self._logs.lasts(name)
        return bool(lasts) and all(self._overcome(name, last) for last in lasts)

    def _overcome(self, name: str, last: Hit) -> bool:
        if name == "master-refused" and any(later(one, last) for one in self._logs.hits("watchdog-timeout")):
            return True  # a collective comes after the rendezvous
        if name == "imex" and any(came_after(one, last) for one in self._logs.lasts("nccl-init-complete")):
            return True  # without it no communicator over NVLink would have formed
        if name in _STARTS_NOTHING:
            ran = (one for kind in (*DISTRIBUTED, "progress") for one in self._logs.lasts(kind))
            return any(came_after(one, last) for one in ran)
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
        good = self._logs.hits(*_ENDS, "exit-zero", "ended-well")
        return by_file(hit for hit in good if place(hit) not in self._of_another)

    def resumed_after(self, hit: Hit) -> bool:
        """Whether the program went on from a checkpoint after this line, and made steps."""
        step = self._logs.last("progress", hit.file)
        return step is not None and any(later(one, hit) and later(step, one) for one in self._logs.hits("resumed"))

    def _stopped_after_end(self, hit: Hit | None) -> bool:
        """Whether somebody stopped the program just after it had said that its run was over."""
        if hit is None or not STOPPED.search(hit.text):
            return False
        return any(just_below(hit, end, _SOON) for end in self._run_ended.get(hit.file, ()))

    def _shut_down(self, end: Hit, hit: Hit) -> bool:
        """Whether this end, in the file of ``hit``, was the end of what that tells of: no work was done between the two."""
        step = self._logs.last("progress", hit.file)
        return step is None or not end.line + _SOON < step.line < hit.line

    def _stepped_on(self, hit: Hit) -> bool:
        """Whether a rank went a whole step further: after this line two reports of one shape, or a step and a good end."""
        shapes = [(step.rank, shape(step.text)) for step in self.last_steps.get(hit.file, ()) if step.line > hit.line]
        return len(set(shapes)) < len(shapes) or hit.line < self._last_step_before("ended-well", hit.file)

    @functools.cached_property
    def last_steps(self) -> dict[str, list[Hit]]:
        """Of each file's last lines those that report a step."""
        steps = self._logs.signatures["progress"]
        return {
            file: [hit for hit in hits if steps.match(hit.text) is not None]
            for file, hits in self._logs.summary.tails.items()
        }

    def _last_step_before(self, name: str, file: str) -> int:
        """The line of the last step in this file, if this kind of end follows it; else 0."""
        end, step = self._logs.last(name, file), self._logs.last("progress", file)
        return step.line if end is not None and step is not None and end.line > step.line else 0


def _after_all(hit: Hit, ends: list[Hit]) -> bool:
    """Whether a host's line came shortly after these ends of its file, all of them told by other hosts."""
    return all(_after(hit, end, _CLOCKS_APART) and "" != hit.host != end.host != "" for end in ends)


def _after(hit: Hit, end: Hit, least: float) -> bool:
    """Whether a line was printed after another by at least so many seconds, and not merely in another time zone."""
    if hit.seconds is None or end.seconds is None:
        return False
    return least < hit.seconds - end.seconds < ZONES - _CLOCKS_APART
