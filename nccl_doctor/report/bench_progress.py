"""Progress of a benchmark on stderr: a live table on a terminal, one plain line per size elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group

from nccl_doctor.bench.model import Collector
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import percent
from nccl_doctor.bench.verdict import rate
from nccl_doctor.bench.world import World
from nccl_doctor.report.bench_console import live, microseconds
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import LiveDisplay


class BenchProgress(LiveDisplay):
    """Shows events as they come. ``total`` is the number of sizes to measure over all collectives."""

    def __init__(self, console: Console, world: World, collector: Collector, total: int) -> None:
        self._world, self._collector, self._total = world, collector, max(1, total)
        self._now = "starting"
        self._started = time.monotonic()
        self._measuring_since: float | None = None
        self._told = {"measure", "end"}  # stages that have had their line; ranks pass them at different times
        super().__init__(console)

    def event(self, host: str, event: dict[str, Any]) -> None:
        """Take in one event, already collected, and show it."""
        kind = event.get("event")
        if kind == "stage":
            self._stage(str(event["stage"]), str(event.get("detail", "")))
        elif kind == "size" and not self._live:
            self._line()
        elif kind == "skip" and not self._live:
            size = format_size(event["size"]) if event["size"] else "all sizes"
            self._say(f"{event['collective']} {size}: not measured: {visible(event['reason'])}")
        elif kind in ("error", "stuck", "stopped"):
            what = visible(str(event.get("text") or f"stuck in {event.get('stage')}").split("\n")[0][:200])
            self._say(f"rank {event['rank']} on {visible(host)}: {what}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def _picture(self) -> Group:  # 8,000 ranks tell some ten things each, and a picture takes 4 ms
        return live(self._world, self._collector.results(), self._status(), *self._console.size)

    def _stage(self, stage: str, detail: str) -> None:
        if stage == "measure" and self._measuring_since is None:
            self._measuring_since = time.monotonic()
        self._now = f"{stage} {detail}".strip()
        if not self._live and stage not in self._told:
            self._told.add(stage)
            self._say(f"{stage}: {visible(detail)}" if detail else stage)

    def _line(self) -> None:
        item = self._collector.measurements[-1]
        wrong = "" if not item.wrong else f"  {item.wrong} WRONG"
        self._say(
            f"{item.collective} {format_size(item.size):>8}  {microseconds(item.time_us):>9}  "
            f"busbw {rate(item.busbw_gbs):>10}  cv {percent(item.spread.cv)}{wrong}"
        )

    def _status(self) -> str:
        done = len(self._collector.measurements) + len(self._collector.skips)
        text = f"{visible(self._now)}  {done}/{self._total} sizes, {time.monotonic() - self._started:.0f} s"
        if self._measuring_since is not None and done:
            each = (time.monotonic() - self._measuring_since) / done
            text += f", about {each * max(0, self._total - done):.0f} s left"
        return text
