"""The evaluation table, and two policy versions task by task. Pure.

Rules of this module, the same for every figure:

- An episode *counts* when it has ended other than by infrastructure. ``abandoned`` ones, and ``failed`` ones without a
  reward (they could not be started or judged), are infrastructure; open ones are not over. Both are counted apart.
- It is *scored* when it has a reward, or was stopped by its time limit. It *passes* with a reward of at least
  ``pass_at``, unless it was stopped by its time limit.
- Rates and the mean reward are means over tasks. An episode without a task is a task of its own.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from dragoman.monitor.episode_facts import EpisodeFacts, version_order
from dragoman.monitor.estimates import Estimate, mcnemar, mean_over_tasks, pass_rate
from dragoman.monitor.tool_errors import NO_ERRORS, ToolErrors

Dimension = Literal["harness", "version", "split", "task", "run"]
Key = TypeVar("Key", bound=Hashable)
Labels = tuple[tuple[Dimension, str | None], ...]
"""What the episodes of a row have in common; ``None``: not known."""


@dataclass(frozen=True, slots=True)
class PassRate:
    k: int
    estimate: Estimate | None
    """``None``: no task has ``k`` scored episodes."""
    tasks: int
    """Tasks that have."""


@dataclass(frozen=True, slots=True)
class EvalRow:
    """The episodes that have their labels in common. Means are over episodes where nothing else is said."""

    labels: Labels
    episodes: int
    """Those that count."""
    tasks: int
    """Of those."""
    scored: int
    passed: int
    timed_out: int
    infrastructure: int
    """Not in ``episodes``, as ``open``."""
    open: int
    passes: tuple[PassRate, ...]
    """In the order of ``k``."""
    reward: Estimate | None
    """Over the tasks that have rewards."""
    turns: float | None
    """``None``, as in the other means: no episode counts."""
    prompt_tokens: float | None
    completion_tokens: float | None
    tool_calls: float | None
    tool_errors: float | None
    """Each episode's; ``errors`` has their sums by kind."""
    errors: ToolErrors
    exact: float | None
    """Share of the turns with a history that continued it exactly; ``None``: there are none."""
    seconds: float | None
    """From opening to end."""


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task under two versions."""

    task: str
    first: tuple[int, int]
    """Scored episodes, and how many of them passed."""
    second: tuple[int, int]

    @property
    def outcome(self) -> Literal["win", "loss", "tie"]:
        """``win``: the second version passes a greater share of its episodes."""
        # cross-multiplied, so that 1 of 3 and 2 of 6 are a tie
        ahead = self.second[1] * self.first[0] - self.first[1] * self.second[0]
        return "win" if ahead > 0 else "loss" if ahead < 0 else "tie"

    @property
    def difference(self) -> float:
        return self.second[1] / self.second[0] - self.first[1] / self.first[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    labels: Labels
    """Of the episodes that are compared, without the version."""
    first: str
    second: str
    pairs: tuple[TaskPair, ...]
    """Tasks that both have scored episodes of, by name."""
    unpaired: int
    """Tasks that only one of them has."""
    difference: Estimate | None
    """In pass@1, second minus first; ``None``: there are no pairs."""
    reward_difference: Estimate | None
    """Over the tasks in which both have rewards."""

    def count(self, outcome: Literal["win", "loss", "tie"]) -> int:
        return sum(pair.outcome == outcome for pair in self.pairs)

    @property
    def p_value(self) -> float:
        """McNemar's exact test of the tasks won against those lost; with several episodes a task, the sign test."""
        return mcnemar(self.count("win"), self.count("loss"))


def is_infrastructure(episode: EpisodeFacts) -> bool:
    return episode.end == "abandoned" or (episode.end == "failed" and episode.reward is None)


def is_scored(episode: EpisodeFacts) -> bool:
    if episode.end is None or is_infrastructure(episode):
        return False
    return episode.reward is not None or episode.end == "timed_out"


def is_passed(episode: EpisodeFacts, pass_at: float) -> bool:
    return is_scored(episode) and episode.end != "timed_out" and (episode.reward or 0.0) >= pass_at


def table(
    episodes: Iterable[EpisodeFacts], *, by: Sequence[Dimension], ks: Sequence[int], pass_at: float, seed: int
) -> tuple[EvalRow, ...]:
    """A row for each combination of what ``by`` names, in its order, versions as they were published.

    ``seed``: of the bootstraps. Each interval begins with it anew, so a row does not depend on the others.
    """
    groups = _grouped(episodes, lambda episode: _labels(episode, by))
    return tuple(_row(labels, groups[labels], ks, pass_at, seed) for labels in sorted(groups, key=_label_order))


def compare(
    episodes: Iterable[EpisodeFacts],
    first: str,
    second: str,
    *,
    by: Sequence[Dimension],
    pass_at: float,
    seed: int,
) -> tuple[Comparison, ...]:
    """Two versions on the tasks that both were asked, for each combination of what ``by`` names besides the version."""
    rest = [dimension for dimension in by if dimension not in ("version", "task", "run")]
    known = [one for one in episodes if one.version in (first, second) and is_scored(one) and one.task is not None]
    groups = _grouped(known, lambda episode: _labels(episode, rest))
    return tuple(
        _comparison(labels, groups[labels], first, second, pass_at, seed) for labels in sorted(groups, key=_label_order)
    )


def _row(labels: Labels, every: Sequence[EpisodeFacts], ks: Sequence[int], pass_at: float, seed: int) -> EvalRow:
    ended = [episode for episode in every if episode.end is not None]
    counted = [episode for episode in ended if not is_infrastructure(episode)]
    scored = [episode for episode in counted if is_scored(episode)]
    tallies = [_tally(task, pass_at) for task in _grouped(scored, _task).values()]
    rewards = [_rewards(task) for task in _grouped(scored, _task).values()]
    errors = sum((episode.tools for episode in counted), NO_ERRORS)
    histories = sum(episode.histories for episode in counted)
    return EvalRow(
        labels=labels,
        episodes=len(counted),
        tasks=len(_grouped(counted, _task)),
        scored=len(scored),
        passed=sum(is_passed(episode, pass_at) for episode in scored),
        timed_out=sum(episode.end == "timed_out" for episode in counted),
        infrastructure=len(ended) - len(counted),
        open=len(every) - len(ended),
        passes=tuple(
            PassRate(k, pass_rate(tallies, k, _rng(seed)), sum(count >= k for count, _ in tallies))
            for k in sorted(set(ks))
        ),
        reward=mean_over_tasks([values for values in rewards if values], _rng(seed)),
        turns=_mean([episode.turns for episode in counted]),
        prompt_tokens=_mean([episode.prompt_tokens for episode in counted]),
        completion_tokens=_mean([episode.completion_tokens for episode in counted]),
        tool_calls=_mean([episode.tools.calls for episode in counted]),
        tool_errors=_mean([episode.tools.errors for episode in counted]),
        errors=errors,
        exact=sum(episode.continued for episode in counted) / histories if histories else None,
        seconds=_mean([episode.seconds for episode in counted if episode.seconds is not None]),
    )


def _comparison(
    labels: Labels, episodes: Sequence[EpisodeFacts], first: str, second: str, pass_at: float, seed: int
) -> Comparison:
    tasks = _grouped(episodes, lambda episode: episode.task or "")
    pairs: list[TaskPair] = []
    rewards: list[float] = []
    for task, of_task in sorted(tasks.items()):
        one = [episode for episode in of_task if episode.version == first]
        other = [episode for episode in of_task if episode.version == second]
        if not one or not other:
            continue
        pairs.append(TaskPair(task, _tally(one, pass_at), _tally(other, pass_at)))
        before, after = _mean(_rewards(one)), _mean(_rewards(other))
        if before is not None and after is not None:
            rewards.append(after - before)
    differences = [[pair.difference] for pair in pairs]
    return Comparison(
        labels,
        first,
        second,
        tuple(pairs),
        len(tasks) - len(pairs),
        mean_over_tasks(differences, _rng(seed)),
        mean_over_tasks([[value] for value in rewards], _rng(seed)),
    )


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _grouped(episodes: Iterable[EpisodeFacts], key: Callable[[EpisodeFacts], Key]) -> dict[Key, list[EpisodeFacts]]:
    groups: dict[Key, list[EpisodeFacts]] = {}
    for episode in episodes:
        groups.setdefault(key(episode), []).append(episode)
    return groups


def _task(episode: EpisodeFacts) -> tuple[str | None, str | None]:
    return (episode.task, None) if episode.task is not None else (None, episode.id)


def _tally(episodes: Sequence[EpisodeFacts], pass_at: float) -> tuple[int, int]:
    return len(episodes), sum(is_passed(episode, pass_at) for episode in episodes)


def _rewards(episodes: Sequence[EpisodeFacts]) -> list[float]:
    return [episode.reward for episode in episodes if episode.reward is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _labels(episode: EpisodeFacts, by: Sequence[Dimension]) -> Labels:
    return tuple((dimension, getattr(episode, dimension)) for dimension in by)


def _label_order(labels: Labels) -> list[tuple[bool, tuple[int, str]]]:
    """Known before unknown, versions by number, all else by name."""
    return [
        (value is None, version_order(value or "") if dimension == "version" else (0, value or ""))
        for dimension, value in labels
    ]
