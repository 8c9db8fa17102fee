"""Estimates against references that are written from the definitions, and properties that hold for any data."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitor.estimates import (
    RESAMPLES,
    Z95,
    bootstrap,
    mcnemar,
    mean_over_tasks,
    pass_at_k,
    pass_rate,
    wilson,
)

TALLIES = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
RATES = st.floats(-10, 10, allow_nan=False)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def brute_pass_at_k(episodes: int, passed: int, k: int) -> Fraction:
    """Every choice of k episodes, one by one: the share of those with one that passed."""
    outcomes = [index < passed for index in range(episodes)]
    choices = list(itertools.combinations(outcomes, k))
    return Fraction(sum(any(choice) for choice in choices), len(choices))


def reference_quantile(values: list[float], share: float) -> float:
    """Linear interpolation between the two order statistics around ``share``."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def reference_bootstrap(values: list[float], generator: np.random.Generator) -> tuple[float, float]:
    """One resample after another, with the draws of the same generator."""
    means = []
    for places in generator.integers(0, len(values), (RESAMPLES, len(values))).tolist():
        means.append(sum(values[place] for place in places) / len(places))
    return reference_quantile(means, 0.025), reference_quantile(means, 0.975)


def reference_wilson(successes: int, trials: int) -> tuple[float, float]:
    """The rates that the score test does not reject, by bisection on ``|share - rate| = z sqrt(rate (1-rate) / n)``."""
    share = successes / trials

    def kept(rate: float) -> bool:
        return abs(share - rate) <= Z95 * math.sqrt(rate * (1 - rate) / trials)

    def edge(outside: float) -> float:
        inside = share
        if kept(outside):
            return outside
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if kept(middle) else (inside, middle)
        return inside

    return edge(0.0), edge(1.0)


def reference_mcnemar(wins: int, losses: int) -> float:
    """All ways in which the discordant tasks could have fallen."""
    both = wins + losses
    ways = [sum(way) for way in itertools.product((0, 1), repeat=both)]
    return sum(abs(2 * way - both) >= abs(wins - losses) for way in ways) / len(ways)


@given(TALLIES, st.integers(1, 9))
def test_pass_at_k_is_the_share_of_all_choices(tally: tuple[int, int], k: int) -> None:
    episodes, passed = tally
    found = pass_at_k(episodes, passed, k)

    if k > episodes:
        assert found is None
    else:
        assert found == pytest.approx(float(brute_pass_at_k(episodes, passed, k)), abs=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of 6 episodes that each pass with chance p, its mean is the chance that one of k passes."""
    chance, episodes = 0.3, 6
    for k in range(1, episodes + 1):
        expected = sum(
            math.comb(episodes, passed)
            * chance**passed
            * (1 - chance) ** (episodes - passed)
            * (pass_at_k(episodes, passed, k) or 0.0)
            for passed in range(episodes + 1)
        )
        assert expected == pytest.approx(1 - (1 - chance) ** k)


@given(TALLIES)
def test_pass_at_k_grows_with_k(tally: tuple[int, int]) -> None:
    values = [value for k in range(1, tally[0] + 1) if (value := pass_at_k(*tally, k)) is not None]

    assert values == sorted(values)
    assert values[-1] == (1.0 if tally[1] else 0.0)


@pytest.mark.parametrize(("episodes", "passed", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_impossible_counts(episodes: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        pass_at_k(episodes, passed, k)


@pytest.mark.parametrize("seed", range(4))
def test_bootstrap_equals_the_reference(seed: int) -> None:
    values = [float(value) for value in rng(100 + seed).normal(size=3 + 5 * seed)]

    found = bootstrap(values, rng(seed))

    assert found == pytest.approx(reference_bootstrap(values, rng(seed)), abs=1e-12)


def test_bootstrap_holds_what_all_resamples_say() -> None:
    """Of five values all 3,125 resamples can be made: the interval cuts 2.5 % of them off at each side."""
    values = [0.0, 0.13, 0.4, 0.77, 1.0]
    exact = [sum(drawn) / 5 for drawn in itertools.product(values, repeat=5)]
    low, high = bootstrap(values, rng(), resamples=40_000) or (math.nan, math.nan)

    def share(few: list[bool]) -> float:
        return sum(few) / len(few)

    # many resamples have one and the same mean, so the quantile lies on one of them
    assert share([mean < low - 1e-9 for mean in exact]) <= 0.025 + 0.003
    assert share([mean <= low + 1e-9 for mean in exact]) >= 0.025 - 0.003
    assert share([mean > high + 1e-9 for mean in exact]) <= 0.025 + 0.003
    assert share([mean >= high - 1e-9 for mean in exact]) >= 0.025 - 0.003


def test_bootstrap_in_several_pieces_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [float(value) for value in rng(5).normal(size=50)]
    whole = bootstrap(values, rng(1))
    monkeypatch.setattr("dragoman.monitor.estimates._DRAWS", 50 * 7)

    assert bootstrap(values, rng(1)) == whole


@settings(max_examples=30)
@given(st.lists(RATES, min_size=2, max_size=12), st.floats(-5, 5))
def test_bootstrap_moves_and_stays_within_the_values(values: list[float], by: float) -> None:
    low, high = bootstrap(values, rng(), resamples=200) or (math.nan, math.nan)
    moved = bootstrap([value + by for value in values], rng(), resamples=200)

    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert moved == pytest.approx((low + by, high + by), abs=1e-9)


def test_one_value_has_no_interval() -> None:
    assert bootstrap([1.0], rng()) is None
    assert bootstrap([], rng()) is None


@pytest.mark.parametrize("trials", [1, 2, 7, 40, 1000])
def test_wilson_equals_the_reference(trials: int) -> None:
    for successes in sorted({0, 1, trials // 3, trials - 1, trials}):
        assert wilson(successes, trials) == pytest.approx(reference_wilson(successes, trials), abs=1e-9)


def test_wilson_without_trials() -> None:
    with pytest.raises(ValueError, match="0 successes in 0 trials"):
        wilson(0, 0)


@pytest.mark.parametrize("wins", range(8))
@pytest.mark.parametrize("losses", range(6))
def test_mcnemar_counts_all_ways(wins: int, losses: int) -> None:
    assert mcnemar(wins, losses) == pytest.approx(reference_mcnemar(wins, losses), abs=1e-12)


def test_mcnemar_of_very_many() -> None:
    assert mcnemar(5000, 5000) == 1.0
    assert 0 <= mcnemar(6000, 4000) < 1e-60


def test_the_interval_is_over_tasks() -> None:
    """Four episodes that always agree are one trial: the interval is that of single episodes, not a narrower one."""
    outcomes = [float(value) for value in rng(3).normal(size=20)]

    alone = mean_over_tasks([[value] for value in outcomes], rng(9))
    copied = mean_over_tasks([[value] * 4 for value in outcomes], rng(9))

    assert copied == alone


def test_every_task_weighs_the_same() -> None:
    found = mean_over_tasks([[1.0] * 9, [0.0]], rng())
    rate = pass_rate([(9, 9), (1, 0)], 1, rng())

    assert (found and found.value) == 0.5
    assert (rate and rate.value) == 0.5


def test_one_task_alone_is_bootstrapped_over_its_values() -> None:
    values = [0.0, 1.0, 0.5, 0.25]
    found = mean_over_tasks([values], rng(2))

    assert found is not None
    assert (found.low, found.high) == pytest.approx(reference_bootstrap(values, rng(2)))


@settings(max_examples=30)
@given(st.lists(TALLIES, min_size=1, max_size=8), st.integers(1, 4))
def test_pass_rate_is_the_mean_of_the_tasks_that_have_k(tallies: list[tuple[int, int]], k: int) -> None:
    values = [float(brute_pass_at_k(n, c, k)) for n, c in tallies if n >= k]
    found = pass_rate(tallies, k, rng())

    if not values:
        assert found is None
        return
    assert found is not None
    assert found.value == pytest.approx(sum(values) / len(values))
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.value + 1e-9
        assert found.value - 1e-9 <= found.high <= 1


def test_intervals_of_rates() -> None:
    spread = [(4, 1), (4, 3), (4, 2), (4, 4), (4, 0)]
    over_tasks, plain, alone = (pass_rate(some, 1, rng(4)) for some in (spread, [(1, 1), (2, 2), (1, 0)], [(8, 3)]))
    of_one_task = pass_rate([(8, 3)], 2, rng(4))

    assert over_tasks is not None
    assert plain is not None
    assert alone is not None
    assert of_one_task is not None
    assert over_tasks.method == "bootstrap"
    values = [0.25, 0.75, 0.5, 1.0, 0.0]
    assert (over_tasks.low, over_tasks.high) == pytest.approx(reference_bootstrap(values, rng(4)))
    assert (plain.method, alone.method) == ("wilson", "wilson")
    assert (plain.low, plain.high) == pytest.approx(reference_wilson(2, 3))
    assert (alone.low, alone.high) == pytest.approx(reference_wilson(3, 8))
    assert (of_one_task.low, of_one_task.high, of_one_task.method) == (None, None, None)


def test_of_nothing() -> None:
    assert mean_over_tasks([], rng()) is None
    assert pass_rate([], 1, rng()) is None
