"""Progress on stderr: one live line per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import fold
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import LiveDisplay


class ConsoleProgress(LiveDisplay):
    """Shows each stage's hosts as they finish, and the troubled ones by name."""

    def __init__(self, console: Console) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._stages: dict[str, tuple[int, int]] = {}
        self._trouble: dict[str, list[str]] = {}
        super().__init__(console)

    def begin(self, stage: str, total: int) -> None:
        """A stage starts on ``total`` hosts."""
        with self._lock:
            self._stages[stage] = (0, total)

    def advance(self, stage: str, host: str, trouble: str = "") -> None:
        """A host is through."""
        with self._lock:
            done, total = self._stages.get(stage, (0, 0))
            self._stages[stage] = (done + 1, total)
            if trouble:
                self._trouble.setdefault(f"{stage}: {trouble}", []).append(host)

    def end(self, stage: str) -> None:
        """The stage is over: elsewhere than on a terminal, one line says how it went."""
        if self._live:
            return
        with self._lock:
            done, total = self._stages.get(stage, (0, 0))
            elapsed = time.monotonic() - self._started
            self._console.print(Text(f"[{elapsed:5.1f} s] {stage} {done}/{total}"), soft_wrap=True)
            for what in [what for what in self._trouble if what.startswith(f"{stage}: ")]:
                told = f"          {visible(what)} on {visible(fold(self._trouble.pop(what)))}"
                self._console.print(Text(told), soft_wrap=True)

    def _picture(self) -> Text:  # to fold the names of 1,000 troubled hosts takes 45 ms
        with self._lock:
            stages, troubles = dict(self._stages), {what: tuple(hosts) for what, hosts in self._trouble.items()}
        line = Text("  ")
        for stage, (done, total) in stages.items():
            if done < total:
                filled = round(6 * done / total)
                line.append(f"{stage} ", "bold")
                line.append("█" * filled, "green").append("░" * (6 - filled), "dim").append(f" {done}/{total}   ")
        line.append(f"{time.monotonic() - self._started:.1f} s", "dim")
        if over := [stage for stage, (done, total) in stages.items() if done >= total]:
            line.append(f"\n  done: {', '.join(over)}", "dim")
        for what, hosts in troubles.items():
            line.append(f"\n  {visible(what)} on {visible(fold(hosts))}", "yellow")
        return line
