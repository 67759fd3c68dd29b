"""How a worker tells what it does: one JSON object a line, and a watchdog that lets no step wait without limit."""

import faulthandler
import json
import os
import threading
import time
from typing import Any, Callable, Dict, Optional, Set

from .sockets import dialling

STUCK_EXIT = 70
DIALLING_AFTER_S = 2.0  # in a step that long it is looked whom this process is trying to connect to
Sink = Callable[[Dict[str, Any]], None]


def pipe_sink() -> Sink:
    """Send events to the launcher over what is now stdout, and everything else that is printed to stderr.

    Libraries (NCCL prints its log to stdout) must not be able to write into the stream of events.
    """
    events = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(event: Dict[str, Any]) -> None:
        line = (json.dumps(event) + "\n").encode()
        with lock:
            while line:
                line = line[os.write(events, line) :]

    return send


class _Step:
    """Where a rank is: made anew for each step, so that the watchdog never sees one's time with another's limit."""

    def __init__(self, stage: str, detail: str, limit_s: float, done: Optional[Callable[[], int]] = None) -> None:
        self.stage, self.detail, self.limit_s, self.done = stage, detail, limit_s, done
        self.since = time.monotonic()
        self.dialled: Set[str] = set()  # connections that were seen unanswered

    def where(self) -> Dict[str, Any]:
        where: Dict[str, Any] = {
            "stage": self.stage,
            "detail": self.detail,
            "step_s": round(time.monotonic() - self.since, 3),
        }
        if self.done is not None:
            try:
                where["iterations"] = self.done()
            except Exception:  # noqa: BLE001 - a broken device must not silence the watchdog
                self.done = None
        return where


class Progress:
    """The stage and step this rank is in, told to the sink and watched.

    A step that outlives its limit ends this process: stacks of all threads to stderr, a ``stuck`` event, exit 70. A
    call that hangs with the interpreter lock held silences this thread as well: then the launcher ends the process, or,
    with ``backstop_s`` (where no launcher of ours watches), a timer of the C library that long after a stage's limit.
    """

    def __init__(self, rank: int, sink: Sink, beat_s: float = 1.0, backstop_s: float = 0.0) -> None:
        self.rank = rank
        self.sink = sink
        self._step = _Step("spawn", "", 0.0)
        self._beat_s, self._backstop_s = beat_s, backstop_s
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="nccl-doctor-watchdog").start()

    @property
    def done(self) -> Optional[Callable[[], int]]:
        """Tells the iterations finished in the timed loop; None outside of one."""
        return self._step.done

    def tell(self, event: str, **fields: Any) -> None:
        """Send one event of this rank."""
        self.sink(dict(fields, event=event, rank=self.rank))

    def stage(self, name: str, limit_s: float, detail: str = "") -> None:
        """Enter a stage, with the seconds it may take."""
        self._step = _Step(name, detail, limit_s)
        self.tell("stage", stage=name, detail=detail, limit_s=limit_s)
        if self._backstop_s:
            # By stage, not by step: the timer is a thread, and starting one disturbs what is timed right after.
            faulthandler.dump_traceback_later(limit_s + self._backstop_s, exit=True, file=2)

    def step(self, detail: str, limit_s: float, done: Optional[Callable[[], int]] = None) -> None:
        """A step within the stage: restarts the limit, costs no event (the next beat tells)."""
        step = _Step(self._step.stage, detail, limit_s, done)
        step.dialled = self._step.dialled  # of the whole stage
        self._step = step

    def finish(self) -> None:
        """No more limits: the work is over."""
        self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def where(self) -> Dict[str, Any]:
        """Stage, step, iterations done and seconds in this step."""
        return self._step.where()

    def _watch(self) -> None:
        while not self._over.wait(self._beat_s):
            step = self._step
            where = step.where()
            try:
                self.tell("beat", **where)
            except OSError:
                os._exit(STUCK_EXIT)  # nobody listens any more
            if step.done is None and where["step_s"] > DIALLING_AFTER_S:  # never while something is timed
                step.dialled.update(dialling())
            if step.limit_s and where["step_s"] > step.limit_s and step is self._step and not self._over.is_set():
                faulthandler.dump_traceback(file=2, all_threads=True)
                self.tell("stuck", limit_s=step.limit_s, dialling=sorted(step.dialled), **where)
                os._exit(STUCK_EXIT)
