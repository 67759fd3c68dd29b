"""A host over time, while a job runs: does it answer, do its links hold, is its network full, do its ranks live?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from nccl_doctor.facts.fold import counted, few, ranges
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.watch import NicSeries, Watch
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding, shell_word
from nccl_doctor.rules.engine import WATCH, Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.host_memory import was_it_killed
from nccl_doctor.rules.job_processes import YOUNG_S, missing
from nccl_doctor.rules.job_words import LAST_WORDS, places
from nccl_doctor.rules.names import of_one_machine
from nccl_doctor.rules.ranks import RunningJob
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration
from nccl_doctor.rules.watch_samples import series_of, silence, too_few

_NIC_ERRORS = ("rx_errors", "tx_errors")
_PORT_ERRORS = ("symbol_error", "port_rcv_errors", "link_error_recovery", "port_xmit_discards")


@host_rule(WATCH, "host.cut-off.while-watched")
def answers(host: Host, plan: Plan) -> Iterator[Finding]:
    """The host answers all the time. One that is silent at the end is a fault, one that came back a warning.

    What it did while a sample came that cannot be read is unknown.
    """
    watch = host.need(Watch)
    if watch.gaps:
        severity, words, proof = silence(watch.gaps)
        yield host.finding(
            "host.cut-off.while-watched",
            severity,
            f"the host was silent {words}",
            [(text, "watch") for text in proof],
            Fix(
                "look for a reboot, an out-of-memory kill, an sshd restart or a flapping link",
                "uptime; sudo dmesg -T | tail -50",
            ),
        )
        unseen = sum(gap.to_s - gap.from_s for gap in watch.gaps)
        raise MissingFact("the host's silent times", f"no sample in {duration(unseen)} of {duration(watch.seconds)}")
    if watch.unread:
        count = f"{watch.unread} of {watch.unread + watch.samples}"
        raise MissingFact("the host over time", f"{count} samples cannot be read: {watch.unread_why}")
    if why := too_few(watch, watch.samples):
        raise MissingFact("the host over time", why)


@fleet_rule(WATCH, "host.named-twice")
def watched_twice(fleet: Fleet) -> Iterator[Finding]:
    """Two names in the host list lead to one machine: what it does is told, and its ranks and GPUs are counted, under each."""
    fleet.need_several()
    named: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, watch in fleet.every(Watch).items():
        if watch.named is None:
            fleet.lack("whether two names are one machine", "no sample told what the host calls itself", name)
        else:
            named[name] = watch.named.calls_itself, watch.named.addresses
    for item in of_one_machine(fleet, named):
        title = f"{item.title}: what it does is told and counted under each name"
        yield msgspec.structs.replace(item, severity=Severity.WARN, title=title, explains=())


@host_rule(
    WATCH, "net.link-flapping", "ib.link-flapping", "ib.errors.rising", "ib.errors.not-counted", "net.interface-errors",
    "net.link-flapping.moved", "ib.link-flapping.moved",
)  # fmt: skip
def links(host: Host, plan: Plan) -> Iterator[Finding]:
    """No link goes down, no interface that carries data and no RDMA port goes away, and none of their error counters rises.

    Whose device or driver is gone as well is lost; who is seen in another network namespace was moved there (into a pod,
    say): a warning where it carried data until then. What became of any other is unknown.

    Where the driver of an RDMA port has no such counters (EFA's has none), that is told, and is no gap.
    """
    watch = host.need(Watch)
    for nic in watch.nics:
        yield from _nic(host, nic, max(1.0, watch.seconds))
    if not watch.nics:
        raise MissingFact("network interfaces over time", "none was seen")
    if uncounted := [nic.name for nic in watch.nics if nic.rdma and not nic.rises]:
        yield host.finding(
            "ib.errors.not-counted",
            Severity.INFO,
            f"the driver of {few(uncounted)} counts no link errors: whether there were some is not known",
            ("no standard counters", f"/sys/class/infiniband/{uncounted[0].replace('/', '/ports/')}/counters"),
            places=[Place(host=host.name, nic=name) for name in uncounted],
        )
    for nic in watch.nics:
        names = {*_PORT_ERRORS, "link_downed"} if nic.rdma else {*_NIC_ERRORS, "losses"}
        if nic.gaps and nic.gaps[-1].open and nic.gone.state == "unknown" and (nic.rdma or _carried(nic)):
            why = f"{nic.gone.proof}: taken down, or moved to another network namespace"
            raise MissingFact(f"where {nic.name} went", why)
        if nic.name not in uncounted and (lacking := names - nic.rises.keys()):
            raise MissingFact("error counters over time", f"{nic.name}: {', '.join(sorted(lacking))} not readable")


def _carried(nic: NicSeries) -> bool:
    """Whether it carried as much as a job's does."""
    moved = sum(level.mean for level in (nic.received_bytes_per_s, nic.sent_bytes_per_s) if level)
    return moved >= value("watch.network.used")


def _nic(host: Host, nic: NicSeries, seconds: float) -> Iterator[Finding]:
    place = [Place(host=host.name, nic=nic.name)]
    device, _, port = nic.name.partition("/")
    base = f"/sys/class/infiniband/{device}/ports/{port}/counters" if nic.rdma else f"/sys/class/net/{nic.name}"
    downs = nic.rises.get("link_downed", 0) + nic.rises.get("losses", 0)
    cable = Fix(
        "check cable, transceiver and the switch port at the other end; look for what took it down",
        f"sudo dmesg -T | grep -i {shell_word(device)} | tail -20",
    )
    used = nic.rdma or _carried(nic)
    flaps = "ib.link-flapping" if nic.rdma else "net.link-flapping"
    if nic.gaps and used:
        severity, words, proof = silence(nic.gaps)
        quotes = [*((text, base) for text in proof), (nic.gone.proof, base)]
        if nic.gone.state == "moved":
            kept = Severity.WARN if _carried(nic) else Severity.INFO
            title = f"{nic.name} was moved to another network namespace {words}"
            yield host.finding(f"{flaps}.moved", kept, title, quotes, places=place)
        else:
            severity = severity if nic.gone.state == "lost" else Severity.WARN
            yield host.finding(flaps, severity, f"{nic.name} was gone {words}", quotes, cable, places=place)
    if downs:
        yield host.finding(
            flaps,
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
                f"{nic.name} is at its rate for {nic.full / received.samples * 100:.0f} % of the time",
                (
                    f"mean {8 * most / 1e9:.3g} of {8 * rate / 1e9:.3g} Gb/s, at nine tenths of it in {nic.full} of "
                    f"{received.samples} samples",
                    "/sys/class/infiniband" if nic.rdma else "/sys/class/net",
                ),
                places=[Place(host=host.name, nic=nic.name)],
            )


@fleet_rule(WATCH, "hang.rank-gone", "hang.rank-gone.ended")
def ranks_live(fleet: Fleet) -> Iterator[Finding]:
    """No rank ended while others of its job went on, and none was gone before. Ranks of a job that ends do so together.

    Where one is left, or fewer than half, they may still write the last checkpoint: a warning, and unknown where they do
    so at the end. A rank was gone before where the other ranks of its host say that it must be there. Of a job of which
    all ranks have ended nobody saw whether it was done or has failed: unknown.
    """
    watches, jobs = fleet.every(Watch), jobs_of(fleet)
    for host, fact in fleet.every(Job).items():
        if any(host in job.hosts for job in jobs):
            continue
        if fact.refused.count:
            why = f"not permitted: {fact.refused.count} Python processes of others may not be read (log in as the job's user)"
            fleet.lack("ranks of others", why, host)
        if fact.unnumbered:
            why = f"{fact.unnumbered} processes that multiprocessing started may be some: py-spy could not read their numbers"
            fleet.lack("ranks", why, host)
    if not jobs and any(gpu.busy for watch in watches.values() for gpu in watch.gpus):
        raise SkipRule("no rank of a job was seen")
    if not jobs:
        fleet.lack("a job at work", "no rank and no busy GPU was seen: is the job running?", *watches)
    for job in jobs:
        seen = {number: series for number, rank in job.ranks.items() if (series := series_of(watches, rank))}
        lived_s = sorted(series.last_s for series in seen.values())
        left = sum(series.ended_s is None for series in seen.values())
        if seen and not left:
            ended = duration(max(series.ended_s or 0.0 for series in seen.values()))
            why = f"all its ranks had ended after {ended}: its log says why"
            fleet.lack(f"whether job {job.id} was done or has failed", why, *job.hosts)
        for host, numbers in job.gone.items() if left else ():
            if min(rank.process.age_s for rank in job.ranks.values() if rank.host == host) < YOUNG_S:
                fleet.lack(f"ranks {ranges(numbers)} of job {job.id}", "it was just being started", host)
                continue
            told = missing(job, host, numbers, fleet)
            at_end = _at_end(left, left + len(job.missing))
            if at_end:
                fleet.lack(*_why_ended(job), host)
            yield msgspec.structs.replace(told, severity=Severity.WARN if at_end else told.severity)
        for number, series in seen.items():
            rank = job.ranks[number]
            late = value("watch.rank-ended") + 3 * watches[rank.host].every_s
            if series.ended_s is None:
                continue
            went_on = len(lived_s) - bisect_left(lived_s, series.ended_s + late)
            if not went_on:
                continue
            few_left = _at_end(went_on, len(lived_s))
            if few_left and left:
                fleet.lack(*_why_ended(job), rank.host)
            yield finding(
                "hang.rank-gone.ended",
                Severity.WARN if few_left else Severity.FAIL,
                f"{rank.label} of {rank.process.script or 'the job'} ended; {counted(went_on, 'other rank')} went on"
                + (", and the job may be at its end" if few_left else ""),
                Evidence(
                    f"pid {series.pid} is gone since {series.ended_s:.0f} s of the watch; others live at {lived_s[-1]:.0f} s",
                    f"/proc/{series.pid}/stat",
                    host=rank.host,
                ),
                places=places([rank]),
                fixes=(
                    was_it_killed(rank.host),
                    LAST_WORDS,
                ),
            )


def _at_end(left: int, ranks: int) -> bool:
    """Whether so few of the ranks are left that they may be those that write the last checkpoint."""
    return left == 1 or 2 * left < ranks


def _why_ended(job: RunningJob) -> tuple[str, str]:
    return f"why ranks of job {job.id} ended", "it may be at its end: others go on"


@fleet_rule(WATCH, "hang.stopped", "hang.stopped.traced")
def ranks_run(fleet: Fleet) -> Iterator[Finding]:
    """No rank is stopped by a signal or held by a debugger at the end: all others wait for it. For a moment it is a warning."""
    watches = fleet.every(Watch)
    fleet.every(Job)
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            series, reading = series_of(watches, rank), rank.process.readings[-1]
            if series and series.ended_s is None and reading is None:
                fleet.lack(f"whether {rank.label} runs", "its state was not told", rank.host)
            if series is None or reading is None or reading.state not in ("T", "t"):
                continue
            from_s = series.last_s if series.stopped_s is None else series.stopped_s
            lasted, traced = series.last_s - from_s, reading.state == "t"
            yield finding(
                "hang.stopped.traced" if traced else "hang.stopped",
                Severity.FAIL if lasted >= value("watch.rank-ended") else Severity.WARN,
                f"{rank.label} of {rank.process.script or 'the job'} is "
                f"{'held by a debugger' if traced else 'stopped by a signal'}, for {duration(lasted)} so far",
                Evidence(
                    f"state {reading.state} from {from_s:.0f} s to {series.last_s:.0f} s of the watch",
                    f"/proc/{series.pid}/stat",
                    host=rank.host,
                ),
                places=places([rank]),
                fixes=(
                    Fix("see who holds it", f"grep TracerPid /proc/{series.pid}/status", rank.host)
                    if traced
                    else Fix("let it go on", f"kill -CONT {series.pid}", rank.host, risky=True),
                ),
            )


@host_rule(WATCH)
def kernel_log_read(host: Host, plan: Plan) -> Iterator[Finding]:
    """All of the kernel log could be read while the host was watched (what it says is other rules' business)."""
    log = host.need(KernelLogFact)
    if log.left_off:
        raise MissingFact("kernel log over time", f"{log.left_off} of its lines were too many to keep")
    yield from ()
