"""A/B tuning: beyond the noise or not at all."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from typing_in import typed

from nccl_doctor.bench import tune as tuning
from nccl_doctor.bench import tune_fleet
from nccl_doctor.bench.fleet import Fleet
from nccl_doctor.bench.model import BenchPlan
from nccl_doctor.bench.outcome import INTERRUPTED, Outcome
from nccl_doctor.bench.path import Path
from nccl_doctor.bench.statistics import t_quantile
from nccl_doctor.bench.tune import (
    Candidate,
    Failed,
    Times,
    Tuning,
    Verdict,
    interval,
    schedule,
    tune,
    usual_candidates,
)
from nccl_doctor.bench.tune_fleet import BadCandidate, read_candidates
from nccl_doctor.bench.world import World
from nccl_doctor.facts.collectives import Collectives, RankEnd, RankError, Where
from nccl_doctor.report.env.tuning import tuning_json, tuning_text
from nccl_doctor.transport.base import ConnectOptions

KEYS = [("allreduce", 1 << size) for size in range(16, 24)]


def machine(
    factors: dict[str, float], noise: float = 0.02, drift: float = 0.0, seed: int = 7
) -> Callable[[Candidate], Times]:
    """A cluster whose times follow known factors, with noise per run and a drift over the session."""
    dice = random.Random(seed)
    runs = [0]

    def measure(candidate: Candidate) -> Times:
        runs[0] += 1
        run = math.exp(dice.gauss(0, noise)) * (1 + drift * runs[0])
        return {key: 100 * run * math.exp(dice.gauss(0, noise)) * factors.get(candidate.label, 1.0) for key in KEYS}

    return measure


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 4, 2.776), (0.975, 9, 2.262), (0.95, 5, 2.015), (0.995, 4, 4.604)],
)
def test_student_s_quantiles(probability: float, freedom: int, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=6e-4)


def test_a_real_gain_is_found() -> None:
    candidates = [Candidate({"A": "1"}), Candidate({"B": "1"})]
    result = tune(candidates, machine({"A=1": 0.85}), rounds=6)
    assert result.trusted and result.best is not None and result.best.candidate.label == "A=1"
    assert result.best.overall is not None
    assert result.best.overall.low < -0.15 + 0.03 and result.best.overall.high < 0


def test_without_a_gain_defaults_are_best() -> None:
    wins = sum(
        tune([Candidate({"A": "1"}), Candidate({"B": "1"})], machine({}, seed=seed), rounds=5).best is not None
        for seed in range(60)
    )
    assert wins <= 4  # 5 % would be 3


def test_a_gain_within_the_noise_is_not_claimed() -> None:
    result = tune([Candidate({"A": "1"})], machine({"A=1": 0.97}, noise=0.10), rounds=4)
    assert result.best is None and result.trials[0].verdict is Verdict.CANNOT_TELL


def test_a_gain_that_the_noise_may_hide_does_not_make_the_default_best(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tune([Candidate({"OMP_NUM_THREADS": "2"})], machine({}, noise=0.4), rounds=3)
    assert result.trusted and result.best is None and tuning_json(result)["decided"] is False
    monkeypatch.setattr(tune_fleet, "tune_over", lambda *_, **__: result)
    done = typed("env tune allreduce")
    assert done.exit_code == 4 and "may hide in the noise" in done.output and "best" not in done.output


def test_a_drifting_cluster_favours_nobody() -> None:
    wins = sum(
        tune([Candidate({"A": "1"})], machine({}, noise=0.01, drift=0.02, seed=seed), rounds=6).best is not None
        for seed in range(40)
    )
    assert wins <= 4


@pytest.mark.parametrize(("rounds", "tails"), [(3, True), (6, False)], ids=["outliers", "even noise"])
def test_a_thousand_runs_without_any_difference_seldom_find_one(rounds: int, tails: bool) -> None:
    """What the intervals claim: at most 5 % of all sessions of three useless candidates recommend one of them."""
    dice = random.Random(rounds + tails)
    keys = KEYS[:3]

    def measure(_: Candidate) -> Times:
        noise = 0.04
        run = math.exp(dice.gauss(0, noise)) * (1.5 if tails and dice.random() < 0.05 else 1.0)
        return {key: 100 * run * math.exp(dice.gauss(0, noise / 2)) for key in keys}

    candidates = [Candidate({name: "1"}) for name in "ABC"]
    results = [tune(candidates, measure, rounds, seed=session) for session in range(1000)]
    assert sum(result.best is not None for result in results) <= 50
    assert sum(trial.verdict is Verdict.BETTER for result in results for trial in result.trials) <= 50
    assert (
        sum(not result.trusted for result in results) <= 120
    )  # the control is judged overall and at each size, 5 % each


def test_a_gain_within_what_the_default_differs_from_itself_is_not_claimed() -> None:
    """A default that was slow by chance makes all that stands beside it look fast: the control tells (2 of 500, else 8)."""
    noise = functools.partial(machine, {}, noise=0.04)
    found = [tune([Candidate({"A": "1"})], noise(seed=seed), rounds=5, seed=seed) for seed in range(500)]
    assert sum(result.best is not None for result in found) <= 4


@pytest.mark.parametrize(("gain", "least"), [(0.10, 0.95), (0.05, 0.6)])
def test_a_real_gain_is_seldom_missed(gain: float, least: float) -> None:
    results = [
        tune([Candidate({"A": "1"})], machine({"A=1": 1 - gain}, noise=0.02, seed=seed), rounds=8)
        for seed in range(100)
    ]
    found = [result for result in results if result.best is not None]
    assert len(found) >= least * len(results)
    held = [result.trials[0].overall for result in results if result.trials[0].overall]
    assert sum(item.low <= -gain <= item.high for item in held) >= 90


def test_a_candidate_that_leaves_a_size_out_is_not_judged_on_the_rest() -> None:
    whole: list[Times] = [dict.fromkeys(KEYS, 100.0 + n) for n in range(5)]
    part: list[Times] = [dict.fromkeys(KEYS[:-1], 50.0 + n) for n in range(5)]
    trial = tuning.judge(Candidate({"A": "1"}), whole, part, 0.95)
    assert trial.verdict is Verdict.FAILED and str(KEYS[-1][1]) in trial.failure
    nothing: list[Times] = [{}] * 5
    assert tuning.judge(Candidate({"A": "1"}), nothing, whole, 0.95).verdict is Verdict.FAILED


def test_a_loss_and_a_mixture_are_told() -> None:
    result = tune([Candidate({"A": "1"})], machine({"A=1": 1.3}), rounds=5)
    assert result.trials[0].verdict is Verdict.WORSE and result.best is None
    base: list[Times] = [dict.fromkeys(KEYS, 100.0 + n) for n in range(5)]
    mixed: list[Times] = [
        {key: (150.0 if key == KEYS[0] else 80.0) + n + place / 10 for place, key in enumerate(KEYS)} for n in range(5)
    ]
    trial = tuning.judge(Candidate({"A": "1"}), base, mixed, 0.95)
    assert trial.verdict is Verdict.MIXED and trial.overall is not None and trial.overall.faster
    told = tuning_text(msgspec.structs.replace(result, trials=(trial,)))
    assert "defaults are best: no candidate is faster beyond the noise and slower at no size" in told


def test_a_failing_candidate_is_not_run_again() -> None:
    calls: list[str] = []
    measure = machine({})

    def failing(candidate: Candidate) -> Times:
        calls.append(candidate.label)
        if candidate.label == "A=1":
            raise Failed("rank 0 died")
        return measure(candidate)

    result = tune([Candidate({"A": "1"})], failing, rounds=4)
    assert calls.count("A=1") == 1 and result.trials[0].failure == "rank 0 died"


def test_a_failing_default_ends_it() -> None:
    def failing(candidate: Candidate) -> Times:
        raise Failed("no host")

    with pytest.raises(Failed):
        tune([Candidate({"A": "1"})], failing, rounds=3)


@pytest.mark.parametrize(("runs", "rounds"), [(8, 0), (9, 3), (14, 4)])
def test_what_was_measured_until_an_interruption_is_judged(
    monkeypatch: pytest.MonkeyPatch, runs: int, rounds: int
) -> None:
    usual, left = machine({"OMP_NUM_THREADS=2": 0.5}), iter(range(runs))

    def measure(candidate: Candidate) -> Times:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return usual(candidate)

    def over(*_: object) -> Tuning:
        return tune([Candidate({"OMP_NUM_THREADS": "2"})], measure, rounds=9)

    monkeypatch.setattr(tune_fleet, "tune_over", over)
    done = typed("env tune allreduce")
    assert done.exit_code == 130 and "interrupted by Ctrl-C" in done.output
    assert ("✓ export OMP_NUM_THREADS=2" in done.output) == (rounds > 0)
    assert not rounds or f"{rounds} paired rounds" in done.output


def test_a_default_that_differs_from_itself_proves_nothing() -> None:
    count = [0]

    def cheating(candidate: Candidate) -> Times:
        count[0] += 1
        slow = not candidate.env and candidate is not seen.setdefault("first", candidate)
        return dict.fromkeys(KEYS, (200 if slow else 100) + count[0] / 100)

    seen: dict[str, Candidate] = {}
    result = tune([Candidate({"A": "1"})], cheating, rounds=4, seed=3)
    assert not result.trusted and result.best is None


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds"):
        tune([Candidate({"A": "1"})], machine({}), rounds=2)


def test_every_round_runs_everyone_once() -> None:
    orders = schedule(4, 6, 1)
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len({tuple(order) for order in orders}) > 1 and orders == schedule(4, 6, 1)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(5)
    held = 0
    for _ in range(400):
        change = interval([dice.gauss(-0.1, 0.05) for _ in range(5)], 0.95)
        held += change.low <= math.expm1(-0.1) <= change.high
    assert 365 <= held <= 395


@pytest.mark.parametrize(
    "text", ["", "NCCL_DEBUG", "1A=2", "NCCL_TIMEOUT=1800", "NCCL_TREE_THRESHOLD=0", "NCCL_DEBUGG=x"]
)
def test_candidates_that_cannot_change_anything_are_refused(text: str) -> None:
    with pytest.raises(BadCandidate):
        read_candidates([text])


def test_candidates_may_set_several_variables() -> None:
    found = read_candidates(["NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4", "OMP_NUM_THREADS=1"])
    assert [candidate.label for candidate in found] == [
        "NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4",
        "OMP_NUM_THREADS=1",
    ]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("network", ["IB", "Socket", "", "AWS Libfabric"])
def test_the_usual_candidates_pass_their_own_lint(backend: str, network: str) -> None:
    usual = usual_candidates(backend, network)
    assert usual and read_candidates([candidate.label for candidate in usual]) == usual


def test_the_report_says_what_was_found() -> None:
    won = tune([Candidate({"A": "1"})], machine({"A=1": 0.7}), rounds=5)
    text = tuning_text(won)
    assert "export A=1" in text and "paired rounds" in text
    assert tuning_json(won)["recommended"] == {"A": "1"}
    lost = tune([Candidate({"A": "1"})], machine({}), rounds=5)
    assert "defaults are best" in tuning_text(lost) and tuning_json(lost)["recommended"] is None


def test_where_no_candidate_could_be_measured_nothing_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = machine({})

    def measure(candidate: Candidate) -> Times:
        if candidate.env:
            raise Failed("rank 1 died")
        return usual(candidate)

    result = tune([Candidate({"OMP_NUM_THREADS": "2"})], measure, rounds=5)
    monkeypatch.setattr(tune_fleet, "tune_over", lambda *_, **__: result)
    done = typed("env tune allreduce")
    assert done.exit_code == 4 and "no candidate could be measured" in done.output and "rank 1 died" in done.output


def stand_in(
    monkeypatch: pytest.MonkeyPatch, network: str, factors: dict[str, float], backend: str = "nccl", **read: str
) -> list[str]:
    """``env tune`` over a bench that only claims to run NCCL on ``network``; gives the settings of each run."""
    from tests.unit import test_bench_judge as bench

    runs: list[str] = []
    dice = random.Random(3)

    def run_fleet(fleet: object, plan: BenchPlan, placed: Callable[[World], None]) -> Outcome:
        world = msgspec.structs.replace(bench.outcome().world, backend=backend)
        placed(world)
        label = Candidate(plan.env).label
        runs.append(label)
        busbw = 100.0 / factors.get(label, 1.0) * math.exp(dice.gauss(0, 0.005))
        told = {name: value for name, value in plan.env.items() if name not in read}
        networks = (network,) if network else ()
        found = bench.outcome(results=bench.results(bench.measured(busbw)))
        nccl = bench.nccl_path(networks=networks, env=told)
        return msgspec.structs.replace(
            found,
            complete=True,
            ranks=(),
            path=Path("nccl", f"NCCL over {network}", True, nccl=nccl),
            world=world,
        )

    monkeypatch.setattr(tune_fleet, "run_fleet", run_fleet)
    return runs


def tuned(candidates: tuple[Candidate, ...] = ()) -> Tuning:
    plan = BenchPlan(("allreduce",), (1 << 33,))
    return tune_fleet.tune_over(Fleet((), ConnectOptions()), plan, candidates, 4, lambda _: None)


@pytest.mark.parametrize(("network", "names"), [("IB", "NCCL_IB_"), ("Socket", "NCCL_SOCKET_"), ("", "NCCL_ALGO")])
def test_with_nccl_the_candidates_follow_the_network_that_was_used(
    monkeypatch: pytest.MonkeyPatch, network: str, names: str
) -> None:
    runs = stand_in(monkeypatch, network, {})
    result = tuned()
    assert runs[0] == "default" and any(label.startswith(names) for label in runs)
    assert len(runs) == 1 + 4 * (len(result.trials) + 2)
    assert result.best is None and result.path == f"NCCL over {network}" and not result.notes


def test_with_nccl_a_gain_is_found_and_what_nccl_did_not_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "Socket", {"NCCL_SOCKET_NTHREADS=4": 0.7}, NCCL_NSOCKS_PERTHREAD="")
    result = tuned(read_candidates(["NCCL_SOCKET_NTHREADS=4", "NCCL_NSOCKS_PERTHREAD=4"]))
    assert result.best and result.best.candidate.env == {"NCCL_SOCKET_NTHREADS": "4"}
    assert result.best.overall and result.best.overall.low < -0.3 < result.best.overall.high
    assert result.notes == ("NCCL_NSOCKS_PERTHREAD=4: NCCL's log does not show that NCCL_NSOCKS_PERTHREAD was read",)


def test_the_path_of_an_interrupted_run_is_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "Socket", {})
    whole, left = tune_fleet.run_fleet, iter(range(15))

    def run_fleet(*words: Any, **more: Any) -> Outcome:
        outcome = whole(*words, **more)
        if next(left, None) is not None:
            return outcome
        path = msgspec.structs.replace(outcome.path, words="interfaces unknown")
        return msgspec.structs.replace(outcome, notes=(f"{INTERRUPTED}Ctrl-C",), path=path)

    monkeypatch.setattr(tune_fleet, "run_fleet", run_fleet)
    result = tuned((Candidate({"NCCL_ALGO": "Ring"}),) * 2)
    assert result.interrupted and result.rounds == 3 and not result.notes


def test_with_gloo_a_variable_of_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "No difference" would be a statement about nothing."""
    runs = stand_in(monkeypatch, "", {}, backend="gloo")
    done = typed("env tune allreduce --set NCCL_ALGO=Ring")
    assert done.exit_code == 2 and not runs, "it is refused before anything is run, or said to be"
    assert done.output == "nccl-doctor: --set 'NCCL_ALGO=Ring': NCCL reads NCCL_ALGO, and here gloo is measured\n"
    assert tuned(read_candidates(["OMP_NUM_THREADS=2"])).trials


def test_a_candidate_that_fails_is_told_with_the_reason_and_not_only_where_it_stopped() -> None:
    from tests.unit import test_bench_judge as bench

    lost = RankEnd(
        1,
        exit=1,
        where=Where("process-group"),
        error=RankError("error", "RuntimeError", "Unable to find address for: nosuch0"),
    )
    waits = RankEnd(0, exit=1, where=Where("process-group"))
    broken = bench.outcome(facts={"a": Collectives("a", ranks=(waits, lost))})
    assert not broken.complete
    with pytest.raises(Failed, match="Unable to find address"):
        tune_fleet.times_of(broken)
