"""A host's memory over time, while a job runs: does it last, and what is killed for want of it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import StatisticsError, correlation, linear_regression

import msgspec

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.watch import Points, RankSeries, Watch
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import WATCH, Fleet, Host, MissingFact, fleet_rule, host_rule
from nccl_doctor.rules.host_memory import WHO_HAS_IT, Counts, killed, kills, swapping
from nccl_doctor.rules.job_words import places
from nccl_doctor.rules.ranks import Rank
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration, size
from nccl_doctor.rules.watch_samples import QUOTED, series_of


class _Trend:
    """How a quantity changes with time: bytes per second, and whether that is a steady change."""

    def __init__(self, points: Points) -> None:
        self.slope, self.fit, self.change = 0.0, 0.0, 0.0
        times, amounts = [at for at, _ in points], [amount for _, amount in points]
        try:
            self.slope = linear_regression(times, amounts).slope
            self.fit = correlation(times, amounts) ** 2
        except StatisticsError:  # it does not change, or there is one point
            return
        self.change = self.slope * (times[-1] - times[0])

    def steady(self, total: float) -> bool:
        """Whether it goes one way all the time, by more than noise; ``total``: the host's memory."""
        return self.fit >= value("watch.growth.fit") and abs(self.change) >= value("watch.growth.share") * total


@fleet_rule(WATCH, "sys.host-oom.growing.rank", "sys.host-oom.growing")
def memory_growth(fleet: Fleet) -> Iterator[Finding]:
    """No rank's memory, and no host's, grows so steadily that it would be full within a day.

    A straight line is laid through the samples. What grows at the start of a job (caches, loaders) may stop: a warning.
    """
    watches, least = fleet.every(Watch), value("watch.growth.samples")
    ranks = [rank for job in jobs_of(fleet) for rank in job.ranks.values()]
    for host, watch in watches.items():
        if watch.samples < least:
            fleet.lack("growth of memory", f"fewer than {least:.0f} samples tell no trend: watch longer", host)
        elif not watch.memory_total_bytes or not watch.memory_available_bytes:
            fleet.lack("growth of memory", "/proc/meminfo does not tell", host)
        else:
            own = [(rank, series) for rank in ranks if rank.host == host and (series := series_of(watches, rank))]
            yield from _growth(fleet, host, watch, watch.memory_total_bytes, own)


def _growth(
    fleet: Fleet, host: str, watch: Watch, total: int, ranks: Sequence[tuple[Rank, RankSeries]]
) -> Iterator[Finding]:
    first, last = watch.memory_available_bytes[0], watch.memory_available_bytes[-1]
    whole = _Trend(watch.memory_available_bytes)
    least = value("watch.growth.samples")
    alive = [(rank, series) for rank, series in ranks if series.ended_s is None]
    if young := [rank.label for rank, series in alive if series.samples < least]:
        fleet.lack(f"growth of {few(young)}", f"fewer than {least:.0f} samples tell no trend", host)
    old = [(rank, series.resident_bytes) for rank, series in alive if series.samples >= least]
    trends = [(rank, points, _Trend(points)) for rank, points in old]
    growing = [told for told in trends if told[2].slope > 0 and told[2].steady(total)]
    seconds = last[0] - first[0]
    available = f"MemAvailable {size(first[1])} -> {size(last[1])} in {duration(seconds)}, R squared {whole.fit:.2f}"
    speed = sum(trend.slope for _, _, trend in growing)
    if speed and last[1] / speed <= value("watch.growth.horizon"):
        names = few([rank.label for rank, _, _ in growing])
        look = "see what is kept from step to step: losses with their graph, lists that DataLoader workers copy, caches"
        yield finding(
            "sys.host-oom.growing.rank",
            Severity.WARN,
            f"{names} grow{'s' if len(growing) == 1 else ''} by {_pace(speed, last[1])}",
            [
                *(
                    Evidence(
                        f"resident {size(points[0][1])} -> {size(points[-1][1])} in "
                        f"{duration(points[-1][0] - points[0][0])}, R squared {trend.fit:.2f}",
                        f"/proc/{rank.process.pid}/stat",
                        host=host,
                    )
                    for rank, points, trend in growing[:QUOTED]
                ),
                Evidence(available, "/proc/meminfo", host=host),
            ],
            hosts=(host,),
            places=places(rank for rank, _, _ in growing),
            fixes=(Fix(look, f"sudo py-spy dump --nonblocking --pid {growing[0][0].process.pid}", host),),
            confidence=0.7,
        )
    rest = -whole.slope - speed  # what the ranks do not explain
    if rest > speed and whole.steady(total) and last[1] / rest <= value("watch.growth.horizon"):
        yield finding(
            "sys.host-oom.growing",
            Severity.WARN,
            f"the host's free memory sinks by {_pace(rest, last[1])}"
            + (", beside what its ranks take" if speed else ""),
            Evidence(available, "/proc/meminfo", host=host),
            hosts=(host,),
            fixes=(msgspec.structs.replace(WHO_HAS_IT, host=host),),
            confidence=0.7,
        )


def _pace(speed: float, left: float) -> str:
    return f"{size(3600 * speed)} an hour: the host's memory is full in about {duration(left / speed)}"


@host_rule(WATCH, "sys.host-oom.killed-now", "sys.host-oom.swapping")
def memory_lasts(host: Host, plan: Plan) -> Iterator[Finding]:
    """The kernel kills nothing of the job for want of memory while the host is watched, and does not swap.

    The job's are the ranks, and what is killed in their control groups. What is killed elsewhere on the host is held
    against nobody, unless the host itself had no memory left.
    """
    watch = host.need(Watch)
    left = watch.memory_available_bytes[-1:]
    job = host.want(Job)
    # A rank that ended may have been alone in its group, and the group is gone with its count.
    all_groups = bool(watch.ranks) and all(
        rank.ended_s is None and rank.oom_file in watch.killed_in for rank in watch.ranks
    )
    counts = Counts(watch.seconds, watch.killed or 0, watch.killed_in, all_groups)
    told = list(killed(host, counts, {process.pid for process in job.processes} if job else (), kills(host)))
    yield from told
    where = f", {size(left[0][1])} available at the end" if left else ""
    yield from swapping(host, watch.swapped_pages or 0, watch.seconds, where)
    if watch.killed is None or watch.swapped_pages is None:
        raise MissingFact("kills for want of memory, swapping", "/proc/vmstat does not tell (Linux before 4.13)")
    if not all_groups and any(item.severity is Severity.WARN for item in told):
        raise MissingFact("whose processes the kernel killed", "the ranks' control groups do not tell, or are gone")
