"""A finished (or broken off) benchmark as one document: what ``--format json`` prints and ``--save`` keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec

from nccl_doctor import __version__
from nccl_doctor.bench.ceiling import Ceiling, find_ceiling
from nccl_doctor.bench.model import BenchPlan, Results
from nccl_doctor.bench.path import Path, find_path, path_findings
from nccl_doctor.bench.statistics import Fit, fit
from nccl_doctor.bench.verdict import Ground, SizeChange, Verdict, changes, verdict_findings, verdicts
from nccl_doctor.bench.world import Prepared, World
from nccl_doctor.facts import files
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.redaction import redact_environment, redact_text
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Finding
from nccl_doctor.rules.collective_failures import failures
from nccl_doctor.rules.collective_rates import slow_hosts, wrong_results
from nccl_doctor.rules.rank_ends import RankOnHost, ranks_of

SCHEMA = "nccl-doctor/bench/1"
INTERRUPTED = "interrupted by "  # so begins the note of a run that was: Ctrl-C, or a signal's name


class FitOf(msgspec.Struct, frozen=True):
    """The latency and bandwidth fit of one collective in one mode."""

    collective: str
    mode: str
    fit: Fit


class RankTail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a rank that did not finish."""

    rank: int
    host: str
    where: str
    exit: int | None
    signal: str
    killed: str
    output: str
    stack: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document. Bandwidths GB/s (1e9 bytes), times microseconds unless the name says seconds, sizes bytes."""

    schema: str
    tool: str
    created: str
    seconds: float
    command: str
    complete: bool  # every rank finished
    plan: BenchPlan
    world: World
    results: Results
    path: Path
    ceiling: Ceiling | None
    fits: tuple[FitOf, ...]
    changes: tuple[SizeChange, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    ranks: tuple[RankTail, ...] = ()
    min_busbw: float = 0.0

    def exit_code(self, fail_on: str | None, *, compared: bool = False) -> ExitCode:
        """Interrupted, failed, wrong or (if asked) slow; what cannot be judged is only a failure for who gates on it.

        Who names a bandwidth (``--min-busbw``) or a run (``--baseline``: ``compared``) and no ``--fail-on`` asks for what that
        had, and for nothing else.
        """
        if any(note.startswith(INTERRUPTED) for note in self.notes):
            return ExitCode.INTERRUPTED
        if not self.complete or any(item.kind == "wrong" for item in self.verdicts):
            return ExitCode.FINDINGS
        if any(item.severity.value == "fail" for item in self.findings):
            return ExitCode.FINDINGS
        if not self.results.measurements and not self.results.gemm:
            return ExitCode.NOTHING_CHECKED  # every size was left out, each with its reason
        if fail_on == "slow" and self.findings:  # a slow collective, host or pair, or a path worse than the hosts offer
            return ExitCode.FINDINGS
        gated = fail_on == "slow" or (fail_on is None and (self.min_busbw > 0 or compared))
        if gated and any(item.kind == "slow" for item in self.verdicts):
            return ExitCode.FINDINGS
        if gated and any(item.kind == "cannot-judge" for item in self.verdicts):
            return ExitCode.INCOMPLETE
        return ExitCode.HEALTHY


class Asked(msgspec.Struct, frozen=True):
    """What the user asked of the result: by which command, and what the bandwidths are held against."""

    command: str = ""
    min_busbw: float = 0.0  # GB/s; 0: none is asked for
    baseline: Outcome | None = None


NOTHING_ASKED = Asked()


MOST_BYTES = 256 << 20  # of a saved run: what is larger is none


class BaselineError(ValueError):
    """A baseline that cannot be read; the message says which file and why."""


def read(path: FilePath) -> Outcome:
    """Read a saved run; raises :class:`BaselineError`."""
    try:
        found = files.from_json(files.content(path, MOST_BYTES), Outcome)
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise BaselineError(f"{path}: not a run that bench saved: {error}") from error
    if found.schema != SCHEMA:
        raise BaselineError(f"{path}: schema {found.schema!r}, expected {SCHEMA!r}")
    return found


def write(outcome: Outcome, path: FilePath) -> None:
    """Keep a run; ``OSError`` passes through."""
    files.write(path, encode(outcome))


def encode(outcome: Outcome) -> bytes:
    """JSON with sorted keys; the same outcome gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(outcome, order="sorted"), indent=1) + b"\n"


def misfit(now: World, results: Results, plan: BenchPlan, before: Outcome) -> str:
    """Why two runs cannot be compared, or empty: another world, backend, data type, operation or GPU."""
    pairs = (
        ("ranks", now.size, before.world.size),
        ("hosts", len(now.per_host), len(before.world.per_host)),
        ("backend", now.backend, before.world.backend),
        ("data type", plan.dtype, before.plan.dtype),
        ("operation", plan.op, before.plan.op),
        ("GPU", _devices(results), _devices(before.results)),
    )
    return "; ".join(f"{what} {mine}, in the baseline {theirs}" for what, mine, theirs in pairs if mine != theirs)


def _devices(results: Results) -> str:
    return ", ".join(sorted({record.device_name or "CPU" for record in results.ranks})) or "unknown"


def fits(results: Results) -> tuple[FitOf, ...]:
    """A fit for every collective and mode that has three sizes or more; medians, so that outliers count little."""
    found = []
    for collective, mode in dict.fromkeys((item.collective, item.mode) for item in results.measurements):
        own = [item for item in results.measurements if (item.collective, item.mode) == (collective, mode)]
        line = fit([item.size for item in own], [item.spread.median_us for item in own])
        if line is not None:
            found.append(FitOf(collective, mode, line))
    return tuple(found)


def conclude(
    *,
    plan: BenchPlan,
    world: World,
    results: Results,
    facts: Mapping[str, Collectives],
    prepared: Mapping[str, Prepared],
    created: str,
    seconds: float,
    asked: Asked = NOTHING_ASKED,
    notes: tuple[str, ...] = (),
    lost: Mapping[str, str] | None = None,
) -> Outcome:
    """Put a run's results together and judge them. Pure."""
    path = find_path(world, facts)
    ceiling = find_ceiling(world, path, results, prepared)
    baseline = asked.baseline
    before = baseline.results.measurements if baseline else None
    trouble = misfit(world, results, plan, baseline) if baseline else ""
    largest = max(plan.sizes, default=0)
    ground = Ground(results, world, path, ceiling, prepared, asked.min_busbw, before, trouble, largest)
    found = verdicts(ground, plan.collectives)
    hosts = tuple(sorted(world.per_host))
    findings = [
        *failures(facts, lost, {name: host.addresses for name, host in prepared.items()}),
        *wrong_results(facts),
        *slow_hosts(facts, _lone_link(baseline) if not trouble else 0.0),
        *(path_findings(path, world, prepared) if path.proved else ()),
        *verdict_findings(found, hosts),
    ]
    ranks = ranks_of(facts)
    return Outcome(
        schema=SCHEMA,
        tool=__version__,
        created=created,
        seconds=round(seconds, 3),
        command=redact_text(asked.command),
        complete=len(ranks) == world.size and all(rank.end.finished for rank in ranks),
        plan=msgspec.structs.replace(plan, env=redact_environment(plan.env)),
        world=world,
        results=results,
        path=path,
        ceiling=ceiling,
        fits=fits(results),
        changes=changes(results.measurements, before) if before is not None and not trouble else (),
        verdicts=found,
        findings=tuple(findings),
        notes=notes,
        ranks=tuple(_tail(rank) for rank in ranks if not rank.end.finished),
        min_busbw=asked.min_busbw,
    )


def _lone_link(baseline: Outcome | None) -> float:
    """What the only pair of hosts moved in the baseline, GB/s; 0 where there was none, or more."""
    links = baseline.results.links if baseline else ()
    return links[0].gbs if len(links) == 1 else 0.0


def _tail(rank: RankOnHost) -> RankTail:
    end = rank.end
    return RankTail(
        end.rank,
        rank.host,
        end.where.words,
        end.exit,
        end.signal,
        end.killed,
        redact_text(end.output[-20000:]),
        end.stack,
    )
