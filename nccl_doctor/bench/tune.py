"""A/B of environment settings: interleaved runs, paired by round, recommended only beyond the noise.

Each round runs the default, every candidate and the default once more, in an order of its own. A candidate is
compared with the default of the same round, so that a cluster that grows slower over the hour favours nobody. The
second default is the control: if the default "beats" itself, nothing is concluded.
"""

from __future__ import annotations

import enum
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nccl_doctor.bench.statistics import t_quantile

# A gain below this is not worth a setting that somebody has to maintain.
WORTH = 0.02
# Where the noise may hide a gain of this much, "no difference" would be a statement about the noise.
HIDDEN = 0.10
# Fewer rounds give no usable interval.
FEWEST_ROUNDS = 3
CONFIDENCE = 0.95

# (collective, size in bytes) -> median time per call in microseconds
Times = Mapping[tuple[str, int], float]


class Candidate(msgspec.Struct, frozen=True):
    """Variables to try together. Empty: the default."""

    env: dict[str, str] = {}

    @property
    def label(self) -> str:
        """``NAME=value NAME2=value``, or ``default``."""
        return " ".join(f"{name}={value}" for name, value in self.env.items()) or "default"


class Verdict(enum.Enum):
    """What the runs say of a candidate."""

    BETTER = "better"
    WORSE = "worse"
    MIXED = "mixed"  # better on the whole, worse at some size
    NO_DIFFERENCE = "no-difference"
    CANNOT_TELL = "cannot-tell"  # not faster beyond the noise, in which a gain worth having may hide
    FAILED = "failed"


class Change(msgspec.Struct, frozen=True):
    """Relative change of the time per call against the default (-0.10: a tenth faster), with its interval."""

    mean: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Faster beyond the noise."""
        return self.high < 0

    @property
    def slower(self) -> bool:
        """Slower beyond the noise."""
        return self.low > 0


class SizeChange(msgspec.Struct, frozen=True):
    """The change at one size."""

    collective: str
    size: int
    change: Change


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """One candidate's result. ``overall`` weighs every size alike; ``failure`` is why it could not be measured."""

    candidate: Candidate
    verdict: Verdict
    overall: Change | None = None
    sizes: tuple[SizeChange, ...] = ()
    failure: str = ""


class Tuning(msgspec.Struct, frozen=True):
    """All trials. ``trusted`` is False where the default differed from itself; ``best`` is None where none is recommended.

    ``interrupted``: it was ended before its last round, and ``rounds`` are those until then.
    """

    rounds: int
    control: Trial
    trials: tuple[Trial, ...]
    trusted: bool
    best: Trial | None
    confidence: float
    path: str = ""
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def compared(self) -> bool:
        """Whether any candidate was measured beside the default."""
        return any(trial.overall for trial in self.trials)

    @property
    def hidden(self) -> float:
        """The largest gain that the noise may hide in a candidate (0.5: half of the time per call); 0 where none is hidden."""
        unclear = (trial.overall for trial in self.trials if trial.verdict is Verdict.CANNOT_TELL)
        return max((-change.low for change in unclear if change), default=0.0)

    @property
    def decided(self) -> bool:
        """Whether there is an answer: a candidate, or that the default is as good as all that were measured."""
        return self.trusted and self.compared and (self.best is not None or not self.hidden)


class Failed(Exception):
    """A run that gave no usable times; the message says why."""


def tune(
    candidates: Sequence[Candidate],
    measure: Callable[[Candidate], Times],
    rounds: int,
    *,
    seed: int = 1,
    told: Callable[[int, Candidate, str], None] = lambda number, candidate, text: None,
) -> Tuning:
    """Measure all candidates in interleaved rounds. A candidate that fails once is not run again.

    ``Failed`` passes through where the default itself fails; ``ValueError`` for too few rounds. An interruption ends it with
    the rounds until then, and passes through where they are too few.
    """
    if rounds < FEWEST_ROUNDS:
        raise ValueError(f"{rounds} rounds give no interval: at least {FEWEST_ROUNDS}")
    default, control = Candidate(), Candidate()
    series: dict[int, list[Times]] = {}
    failures: dict[int, str] = {}
    everyone = [default, *candidates, control]
    interrupted = False
    try:
        for number, order in enumerate(schedule(len(everyone), rounds, seed), start=1):
            for place in order:
                if place in failures:
                    continue
                candidate = everyone[place]
                try:
                    times = measure(candidate)
                except Failed as reason:
                    if not candidate.env:
                        raise
                    failures[place] = str(reason)
                    told(number, candidate, f"failed: {reason}")
                else:
                    series.setdefault(place, []).append(times)
                    told(number, candidate, "measured")
    except KeyboardInterrupt:
        rounds = min(len(series.get(place, ())) for place in range(len(everyone)) if place not in failures)
        if rounds < FEWEST_ROUNDS:
            raise
        interrupted = True
    base = series[0]
    compared = len(candidates) - len(failures)
    confidence = 1 - (1 - CONFIDENCE) / max(1, compared)  # each further candidate is a further chance to be fooled
    trials = tuple(
        Trial(candidate, Verdict.FAILED, failure=failures[place])
        if place in failures
        else judge(candidate, base, series[place], confidence)
        for place, candidate in enumerate(candidates, start=1)
    )
    check = judge(control, base, series[len(everyone) - 1], CONFIDENCE)
    trials = tuple(beside(trial, check) for trial in trials)
    trusted = check.verdict in (Verdict.NO_DIFFERENCE, Verdict.CANNOT_TELL)
    winners = [trial for trial in trials if trial.verdict is Verdict.BETTER and trial.overall is not None]
    best = min(winners, key=lambda trial: trial.overall.mean if trial.overall else 0.0) if winners and trusted else None
    return Tuning(rounds, check, trials, trusted, best, confidence, interrupted=interrupted)


def beside(trial: Trial, control: Trial) -> Trial:
    """The trial, judged beside what the default gained over itself in the same rounds.

    Both are compared with one series of the default: where that was slow by chance, whatever stands beside it looks fast.
    """
    own, noise = trial.overall, control.overall
    if trial.verdict is not Verdict.BETTER or own is None or noise is None or own.mean < noise.low:
        return trial
    verdict = Verdict.CANNOT_TELL if own.low < -HIDDEN else Verdict.NO_DIFFERENCE
    return msgspec.structs.replace(trial, verdict=verdict)


def schedule(count: int, rounds: int, seed: int) -> list[list[int]]:
    """The order of runs in each round: shuffled, the same for the same seed."""
    dice = random.Random(seed)
    orders = []
    for _ in range(rounds):
        order = list(range(count))
        dice.shuffle(order)
        orders.append(order)
    return orders


def judge(candidate: Candidate, base: Sequence[Times], series: Sequence[Times], confidence: float) -> Trial:
    """Compare paired rounds. A candidate must have measured every size that the default did: none may be left out."""
    rounds = min(len(base), len(series))
    keys = sorted(set.intersection(*(set(times) for times in base)))
    missed = [key for key in keys if any(key not in times for times in series)]
    if not keys or missed or rounds < FEWEST_ROUNDS:
        why = f"no time for {missed[0][0]} of {missed[0][1]} B" if missed else "too few complete runs to compare"
        return Trial(candidate, Verdict.FAILED, failure=why)
    logs = {key: [math.log(series[n][key] / base[n][key]) for n in range(rounds)] for key in keys}
    # Several sizes are several chances to see a difference where there is none.
    strict = 1 - (1 - confidence) / len(keys)
    sizes = tuple(SizeChange(name, size, interval(logs[name, size], strict)) for name, size in keys)
    overall = interval([statistics.fmean(logs[key][n] for key in keys) for n in range(rounds)], confidence)
    return Trial(candidate, _verdict(overall, sizes), overall, sizes)


def _verdict(overall: Change, sizes: Sequence[SizeChange]) -> Verdict:
    worse = any(item.change.slower and item.change.mean > WORTH for item in sizes)
    if overall.faster and overall.mean < -WORTH:
        return Verdict.MIXED if worse else Verdict.BETTER
    if overall.slower and overall.mean > WORTH:
        return Verdict.WORSE
    if worse:
        return Verdict.MIXED
    return Verdict.CANNOT_TELL if overall.low < -HIDDEN else Verdict.NO_DIFFERENCE


def interval(logs: Sequence[float], confidence: float) -> Change:
    """Mean and Student interval of log ratios, as relative changes."""
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = t_quantile(0.5 + confidence / 2, len(logs) - 1) * error
    return Change(math.expm1(mean), math.expm1(mean - reach), math.expm1(mean + reach))


_USUAL: dict[str, tuple[dict[str, str], ...]] = {  # by how the data travels
    "gloo": ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "4"}),
    "ib": (
        {"NCCL_IB_QPS_PER_CONNECTION": "2"},
        {"NCCL_IB_QPS_PER_CONNECTION": "4"},
        {"NCCL_CROSS_NIC": "0"},
        {"NCCL_NET_GDR_LEVEL": "PHB"},
    ),
    "socket": (
        {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4"},
        {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    ),
    "": ({"NCCL_ALGO": "^NVLS"}, {"NCCL_MIN_CTAS": "32"}),
}


def usual_candidates(backend: str, network: str) -> tuple[Candidate, ...]:
    """What is worth trying where the user names nothing; ``network`` is how NCCL's data travelled (IB, Socket, ...)."""
    used = "gloo" if backend == "gloo" else network.casefold()
    return tuple(map(Candidate, next(rows for kind, rows in _USUAL.items() if used.startswith(kind))))
