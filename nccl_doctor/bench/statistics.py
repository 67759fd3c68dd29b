"""Statistics of measured times: their spread, Student's t, the latency + size/bandwidth fit, a comparison of two runs."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from nccl_doctor.facts.fold import counted

NOISY = 0.25  # above this coefficient of variation nothing is decided
FEWEST = 5  # times below which nothing is
POOR_FIT = 0.5
_NORMAL = statistics.NormalDist()


class Spread(msgspec.Struct, frozen=True):
    """Times of one size over its iterations, in microseconds; ``cv`` is standard deviation over mean, None of one time
    alone, which tells no noise."""

    n: int
    min_us: float
    median_us: float
    mean_us: float
    p95_us: float
    p99_us: float
    max_us: float
    cv: float | None

    @property
    def doubt(self) -> str:
        """Why nothing is decided by these times alone; empty where something can be."""
        if self.cv is None or self.n < FEWEST:
            return f"{counted(self.n, 'time')} only"
        return f"cv {percent(self.cv)}" if self.cv > NOISY else ""


def percent(cv: float | None) -> str:
    """A coefficient of variation for people."""
    return "-" if cv is None else f"{cv * 100:.0f} %"


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the closest ranks of an ascending sequence, not an empty one; ``fraction`` from 0 to 1."""
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values_us: Sequence[float]) -> Spread:
    """The spread of a series of times; ``ValueError`` if it is empty."""
    ordered = sorted(values_us)
    if not ordered:
        raise ValueError("no iteration was timed")
    mean = sum(ordered) / len(ordered)
    cv = statistics.stdev(ordered, mean) / mean if len(ordered) > 1 and mean else None
    return Spread(
        n=len(ordered),
        min_us=ordered[0],
        median_us=percentile(ordered, 0.5),
        mean_us=mean,
        p95_us=percentile(ordered, 0.95),
        p99_us=percentile(ordered, 0.99),
        max_us=ordered[-1],
        cv=cv,
    )


def turn(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The number from which on ``holds`` is true, between these two, found by halving."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low


@functools.lru_cache(256)
def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution: bisection on its exact distribution function for whole ``freedom``."""
    high = 1.0
    while _t_below(high, freedom) < probability:
        high *= 2
    return turn(lambda t: _t_below(t, freedom) >= probability, 0.0, high)


def _t_below(t: float, freedom: int) -> float:
    """P(T < t) for t >= 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for step in range(3 if odd else 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (step - 1) / step
    central = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + central / 2


class Fit(msgspec.Struct, frozen=True):
    """``time = alpha + size / beta``: latency in microseconds, bandwidth in GB/s (1e9 bytes), and how well it holds.

    ``error`` is the root mean square of the relative deviation; ``half_size`` the bytes at which half of ``beta`` is
    reached. ``alpha_us`` can come out as 0 where the smallest size is no longer bound by latency.
    """

    alpha_us: float
    beta_gbs: float
    error: float
    half_size: int
    points: int

    @property
    def poor(self) -> bool:
        """Whether it misses the points by more than half, and so says nothing of them."""
        return self.error > POOR_FIT


def fit(sizes: Sequence[int], times_us: Sequence[float]) -> Fit | None:
    """Least squares on relative errors (each size counts alike, not only the largest); None below three sizes.

    Minimises sum(((a + b*size) / time - 1)^2) over a >= 0, b > 0.
    """
    if len(sizes) < 3 or min(times_us) <= 0:
        return None
    # With u = 1/t and v = s/t: minimise sum((a*u + b*v - 1)^2), a linear problem of two unknowns.
    u = [1.0 / time for time in times_us]
    v = [size / time for size, time in zip(sizes, times_us, strict=True)]
    uu, vv = sum(x * x for x in u), sum(x * x for x in v)
    uv, u1, v1 = sum(x * y for x, y in zip(u, v, strict=True)), sum(u), sum(v)
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        return None
    a, b = (u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant
    if a < 0:
        a, b = 0.0, v1 / vv
    if b <= 0:
        return None  # time does not grow with size: nothing to fit
    squares = [(a * x + b * y - 1.0) ** 2 for x, y in zip(u, v, strict=True)]
    error = math.sqrt(sum(squares) / len(squares))
    return Fit(alpha_us=a, beta_gbs=1.0 / b / 1e3, error=error, half_size=round(a / b), points=len(sizes))


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change against a baseline: ``change`` is the relative difference of bandwidth (-0.12: 12 % slower),
    ``margin`` its uncertainty (95 %), ``decided`` whether the change is larger than the noise allows to doubt."""

    change: float
    margin: float
    decided: bool
    noise: float  # the larger coefficient of variation of the two runs
    doubt: str = ""  # why it is not decided

    def margin_of(self, tried: int) -> float:
        """The margin with which ``tried`` such comparisons hold together at 95 % (Bonferroni)."""
        return self.margin * _NORMAL.inv_cdf(1 - 0.025 / tried) / _NORMAL.inv_cdf(0.975)


def compare(now: Spread, before: Spread) -> Comparison:
    """Compare medians of two runs of one size.

    The margin is that of the medians (1.2533 standard errors of the mean each, times 1.96), and never less than 2 %:
    two runs of the same machine differ by that without any cause.
    """
    change = before.median_us / now.median_us - 1.0
    errors = [1.2533 * (item.cv or 0.0) / math.sqrt(item.n) for item in (now, before)]
    margin = max(0.02, 1.96 * math.sqrt(sum(error * error for error in errors)) * (1.0 + change))
    noise = max(now.cv or 0.0, before.cv or 0.0)
    doubt = min(now, before, key=lambda item: item.n).doubt if min(now.n, before.n) < FEWEST else ""
    if not doubt and noise > NOISY and abs(change) <= 3 * margin:
        doubt = f"cv {percent(noise)}"
    return Comparison(change, margin, not doubt, noise, doubt)
