"""A host over time, while a job runs: does it answer, does its memory last, is its network full, do its ranks live?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import StatisticsError, correlation, linear_regression

import msgspec

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.watch import NicSeries, Points, RankSeries, Watch
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import WATCH, Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.job_words import KILLED, places
from nccl_doctor.rules.ranks import Rank
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration, size

_QUOTED = 3
_WHO = Fix("see who has the memory", "ps -eo pid,user,rss,comm --sort=-rss | head; df -h /dev/shm")
_NIC_ERRORS = ("rx_errors", "tx_errors")
_PORT_ERRORS = ("symbol_error", "port_rcv_errors", "link_error_recovery", "port_xmit_discards")


@host_rule(WATCH, "host.cut-off.while-watched")
def answers(host: Host, plan: Plan) -> Iterator[Finding]:
    """The host answers all the time. One that is silent at the end is a fault, one that came back a warning."""
    watch = host.need(Watch)
    for gap in watch.gaps[-_QUOTED:]:
        lasted = duration(gap.to_s - gap.from_s)
        yield host.finding(
            "host.cut-off.while-watched",
            Severity.FAIL if gap.open else Severity.WARN,
            f"the host fell silent for {lasted}" + (", and does not answer" if gap.open else ", and came back"),
            (f"no sample from {gap.from_s:.0f} s to {gap.to_s:.0f} s of the watch: {gap.why}", "watch"),
            Fix(
                "look for a reboot, an out-of-memory kill, an sshd restart or a flapping link",
                f"ssh {host.name} 'uptime; sudo dmesg -T | tail -50'",
            ),
        )
    if watch.gaps:
        unseen = sum(gap.to_s - gap.from_s for gap in watch.gaps)
        raise MissingFact("the host's silent times", f"no sample in {duration(unseen)} of {duration(watch.seconds)}")
    if why := too_few(watch, watch.samples):
        raise MissingFact("the host over time", why)


def too_few(watch: Watch, samples: int) -> str:
    """Why so many samples do not tell what happened in the time that was watched; empty where they do."""
    if samples < value("watch.samples"):
        return f"only {samples} sample{'' if samples == 1 else 's'}: watch longer"
    due = watch.seconds / watch.every_s
    return "" if samples >= value("watch.samples.share") * due else f"{samples} of {due:.0f} samples came"


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
            own = [(rank, series) for rank in ranks if rank.host == host and (series := _series(watches, rank))]
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
                    for rank, points, trend in growing[:_QUOTED]
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
            fixes=(msgspec.structs.replace(_WHO, host=host),),
            confidence=0.7,
        )


def _pace(speed: float, left: float) -> str:
    return f"{size(3600 * speed)} an hour: the host's memory is full in about {duration(left / speed)}"


@host_rule(WATCH, "sys.host-oom.killed-now", "sys.host-oom.swapping")
def memory_lasts(host: Host, plan: Plan) -> Iterator[Finding]:
    """The kernel kills nothing for want of memory while the host is watched, and does not swap."""
    watch = host.need(Watch)
    log = host.want(KernelLogFact)
    killed = [line for line in (log.lines if log else ()) if any(word in line.text for word in KILLED)]
    left = watch.memory_available_bytes[-1:]
    where = f", {size(left[0][1])} available at the end" if left else ""
    if watch.killed:
        yield host.finding(
            "sys.host-oom.killed-now",
            Severity.FAIL,
            f"the kernel killed {watch.killed} process{'' if watch.killed == 1 else 'es'} for want of memory in "
            f"{duration(watch.seconds)}",
            [
                *(Evidence(line.text, log.source if log else "", host=host.name) for line in killed[-_QUOTED:]),
                Evidence(f"oom_kill +{watch.killed}{where}", "/proc/vmstat", host=host.name),
            ],
            Fix("see which", "sudo dmesg -T | grep -i 'killed process'"),
            explains=("hang.rank-gone",),
        )
    pages = watch.swapped_pages or 0
    if pages > value("watch.swapped") * max(1.0, watch.seconds):
        yield host.finding(
            "sys.host-oom.swapping",
            Severity.WARN,
            f"the host swaps: {pages} pages in {duration(watch.seconds)}",
            (f"pswpin, pswpout +{pages} pages{where}", "/proc/vmstat"),
            _WHO,
        )
    if watch.killed is None or watch.swapped_pages is None:
        raise MissingFact("kills for want of memory, swapping", "/proc/vmstat does not tell (Linux before 4.13)")


@host_rule(WATCH, "net.link-flapping", "ib.link-flapping", "ib.errors.rising", "net.interface-errors")
def links(host: Host, plan: Plan) -> Iterator[Finding]:
    """No link goes down, and no error counter of an interface or RDMA port rises, as far as its driver counts them."""
    watch = host.need(Watch)
    for nic in watch.nics:
        yield from _nic(host, nic, max(1.0, watch.seconds))
    if not watch.nics:
        raise MissingFact("network interfaces over time", "none was seen")
    for nic in watch.nics:
        names = {*_PORT_ERRORS, "link_downed"} if nic.rdma else {*_NIC_ERRORS, "losses"}
        if nic.rises.keys() & names and (lacking := names - nic.rises.keys()):
            raise MissingFact("error counters over time", f"{nic.name}: {', '.join(sorted(lacking))} not readable")


def _nic(host: Host, nic: NicSeries, seconds: float) -> Iterator[Finding]:
    place = [Place(host=host.name, nic=nic.name)]
    device, _, port = nic.name.partition("/")
    base = f"/sys/class/infiniband/{device}/ports/{port}/counters" if nic.rdma else f"/sys/class/net/{nic.name}"
    downs = nic.rises.get("link_downed", 0) + nic.rises.get("losses", 0)
    cable = Fix(
        "check cable, transceiver and the switch port at the other end; look for what took it down",
        f"sudo dmesg -T | grep -i {device} | tail -20",
    )
    moved = sum(level.mean for level in (nic.received_bytes_per_s, nic.sent_bytes_per_s) if level)
    used = nic.rdma or moved >= value("watch.network.used")
    if downs:
        yield host.finding(
            "ib.link-flapping" if nic.rdma else "net.link-flapping",
            Severity.FAIL if used else Severity.WARN,
            f"the link of {nic.name}{'' if used else ', which carries next to nothing,'} went down {downs} "
            f"time{'s' if downs > 1 else ''} while it was watched",
            (f"+{downs} in {duration(seconds)}", f"{base}/{'link_downed' if nic.rdma else 'carrier_down_count'}"),
            cable,
            places=place,
            explains=("ib.errors", "net.interface-errors"),
        )
    names = _PORT_ERRORS if nic.rdma else _NIC_ERRORS
    limit = value("ib.errors.rate" if nic.rdma else "watch.network.errors") * seconds
    rises = {name: rise for name in names if (rise := nic.rises.get(name, 0)) and rise >= limit}
    if rises:
        yield host.finding(
            "ib.errors.rising" if nic.rdma else "net.interface-errors",
            Severity.FAIL if nic.rdma and set(rises) - {"port_xmit_discards"} else Severity.WARN,
            f"errors of {nic.name} rise while it is watched",
            [(f"{name} +{rise} in {duration(seconds)}", base) for name, rise in rises.items()],
            cable,
            places=place,
        )


@host_rule(WATCH, "watch.network-full")
def network(host: Host, plan: Plan) -> Iterator[Finding]:
    """Tells which interfaces and ports are at their rate for much of the time: the job waits for the network then."""
    watch = host.need(Watch)
    for nic in watch.nics:
        received, sent, rate = nic.received_bytes_per_s, nic.sent_bytes_per_s, nic.rate_bytes_per_s
        if received and sent and rate and nic.full >= max(1.0, value("watch.network.share") * received.samples):
            most = max(received.mean, sent.mean)
            yield host.finding(
                "watch.network-full",
                Severity.INFO,
                f"{nic.name} is at its rate for {nic.full / received.samples:.0%} of the time",
                (
                    f"mean {8 * most / 1e9:.3g} of {8 * rate / 1e9:.3g} Gb/s, at nine tenths of it in {nic.full} of "
                    f"{received.samples} samples",
                    "/sys/class/infiniband" if nic.rdma else "/sys/class/net",
                ),
                places=[Place(host=host.name, nic=nic.name)],
            )


@fleet_rule(WATCH, "hang.rank-gone.ended")
def ranks_live(fleet: Fleet) -> Iterator[Finding]:
    """No rank ended while others of its job went on. Ranks of a job that ends do so together."""
    watches, jobs = fleet.every(Watch), jobs_of(fleet)
    for host, fact in fleet.every(Job).items():
        if fact.refused.count and not any(host in job.hosts for job in jobs):
            why = f"not permitted: {fact.refused.count} Python processes of others may not be read (log in as the job's user)"
            fleet.lack("ranks of others", why, host)
    if not jobs and any(gpu.busy for watch in watches.values() for gpu in watch.gpus):
        raise SkipRule("no rank of a job was seen")
    if not jobs:
        fleet.lack("a job at work", "no rank and no busy GPU was seen: is the job running?", *watches)
    for job in jobs:
        seen = {number: series for number, rank in job.ranks.items() if (series := _series(watches, rank))}
        last_s = max((series.last_s for series in seen.values()), default=0.0)
        for number, series in seen.items():
            rank = job.ranks[number]
            late = value("watch.rank-ended") + 3 * watches[rank.host].every_s
            if series.ended_s is None or last_s < series.ended_s + late:
                continue
            alive = sum(other.ended_s is None for other in seen.values())
            yield finding(
                "hang.rank-gone.ended",
                Severity.FAIL,
                f"{rank.label} of {rank.process.script or 'the job'} ended; {alive} other ranks went on",
                Evidence(
                    f"pid {series.pid} is gone since {series.ended_s:.0f} s of the watch; others live at {last_s:.0f} s",
                    f"/proc/{series.pid}/stat",
                    host=rank.host,
                ),
                places=places([rank]),
                fixes=(
                    Fix("was it killed?", "sudo dmesg -T | grep -iE 'killed process|oom|segfault'", rank.host),
                    Fix("its last words: that rank's log", "nccl-doctor explain logs/"),
                ),
            )


def _series(watches: dict[str, Watch], rank: Rank) -> RankSeries | None:
    known = watches.get(rank.host)
    return next((one for one in known.ranks if one.pid == rank.process.pid), None) if known else None


@host_rule(WATCH)
def kernel_log_read(host: Host, plan: Plan) -> Iterator[Finding]:
    """All of the kernel log could be read while the host was watched (what it says is other rules' business)."""
    log = host.need(KernelLogFact)
    if log.left_off:
        raise MissingFact("kernel log over time", f"{log.left_off} of its lines were too many to keep")
    yield from ()
