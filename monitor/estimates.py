"""Pass rates, means and their intervals, and how two versions differ. Pure.

Rules of this module: plain numbers in and out, randomness only from the generator that is passed in. Episodes of one
task are no independent trials, so intervals are made over tasks, not over episodes: a task is drawn whole. Every task
weighs the same, however many episodes it has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

RESAMPLES = 5000
Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution: all intervals here are 95 % ones."""
_DRAWS = 1 << 22
"""Draws that are held in memory at once."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its 95 % interval."""

    value: float
    low: float | None
    """``None``, as ``high``: there is too little for an interval."""
    high: float | None
    method: Literal["bootstrap", "wilson"] | None
    """How the interval was made; ``None``: there is none."""


def pass_at_k(episodes: int, passed: int, k: int) -> float | None:
    """The unbiased estimate of the chance that at least one of ``k`` episodes of a task passes.

    It is the share of all choices of ``k`` of the ``episodes`` that hold one of the ``passed``:
    ``1 - C(episodes - passed, k) / C(episodes, k)``. ``None``: there are fewer than ``k`` episodes.
    Raises ``ValueError`` for counts that make no sense.
    """
    if k < 1 or not 0 <= passed <= episodes:
        raise ValueError(f"pass@{k} of {passed} passed in {episodes} episodes makes no sense")
    if episodes < k:
        return None
    return 1 - math.comb(episodes - passed, k) / math.comb(episodes, k)


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate. Raises ``ValueError`` without a trial, or with more successes than trials."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials have no rate")
    rate, square = successes / trials, Z95 * Z95
    middle = (rate + square / (2 * trials)) / (1 + square / trials)
    half = Z95 * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(
    values: Sequence[float], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval of the mean of ``values``, one for each task (or other unit).

    Each resample draws as many values as there are, with replacement; the interval goes from the 2.5 % to the 97.5 %
    quantile of their means. ``None``: of fewer than two values there is none.
    """
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return None
    at_once = max(1, _DRAWS // len(array))
    means = [
        array[rng.integers(0, len(array), (min(at_once, resamples - done), len(array)))].mean(axis=1)
        for done in range(0, resamples, at_once)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def mean_over_tasks(tasks: Sequence[Sequence[float]], rng: np.random.Generator) -> Estimate | None:
    """The mean of the means of each task's values. ``None``: there is no task. No task may be empty.

    The interval is bootstrapped over tasks; of one task alone it is bootstrapped over its values, and then says
    nothing of other tasks.
    """
    if not tasks:
        return None
    means = [math.fsum(values) / len(values) for values in tasks]
    interval = bootstrap(tasks[0] if len(tasks) == 1 else means, rng)
    return _estimate(math.fsum(means) / len(means), interval, "bootstrap")


def pass_rate(tasks: Sequence[tuple[int, int]], k: int, rng: np.random.Generator) -> Estimate | None:
    """The mean of pass@k over the tasks that have at least ``k`` episodes. ``None``: no task has.

    ``tasks``: episodes and how many of them passed, for each task. The interval is bootstrapped over tasks. Where
    every task's own value is 0 or 1 the tasks are plain trials, and it is Wilson's: a bootstrap of tasks that all pass
    would have no width. So it is for pass@1 of a single task, with its episodes as trials.
    """
    counted = [(task, value) for task in tasks if (value := pass_at_k(*task, k)) is not None]
    if not counted:
        return None
    values = [value for _, value in counted]
    mean = math.fsum(values) / len(values)
    if len(counted) == 1:
        episodes, passed = counted[0][0]
        return _estimate(mean, wilson(passed, episodes) if k == 1 else None, "wilson")
    if set(values) <= {0.0, 1.0}:
        return _estimate(mean, wilson(sum(values), len(values)), "wilson")
    return _estimate(mean, bootstrap(values, rng), "bootstrap")


def mcnemar(wins: int, losses: int) -> float:
    """The exact two-sided p-value of McNemar's test: how likely ``wins`` and ``losses`` are at least as uneven as
    these, when each of them could as well have been the other. 1 when there are none."""
    if wins < 0 or losses < 0:
        raise ValueError(f"{wins} wins and {losses} losses make no sense")
    both = wins + losses
    tail = ways = 1  # the ways in which none of them, then one, two, … is the rarer kind
    for count in range(min(wins, losses)):
        ways = ways * (both - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << both))


def _estimate(value: float, interval: tuple[float, float] | None, method: Literal["bootstrap", "wilson"]) -> Estimate:
    if interval is None:
        return Estimate(value, None, None, None)
    return Estimate(value, *interval, method)
