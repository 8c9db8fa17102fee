"""Which episodes are good enough to copy, and which of them are kept for evaluation. Pure.

The rules, in this order: an episode must have completed with at least ``min_reward``; of a group only the best are
taken; no harness gives more than the one that gives fewest, when asked; all episodes of a task are on one side of the
split. Everything is decided by ids and rewards, so the same store gives the same selection.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.store.records import EpisodeInfo

Rejected = Literal["not_completed", "no_reward", "low_reward", "not_best_of_group", "balance"]


@dataclass(frozen=True, slots=True)
class Candidate:
    info: EpisodeInfo
    group: int | None
    """Row of its group; ``None``: it has none."""
    harness: str
    """Names of the harnesses that called in it; empty: unknown."""


@dataclass(frozen=True, slots=True)
class Selection:
    train: tuple[Candidate, ...]
    held_out: tuple[Candidate, ...]
    rejected: Mapping[Rejected, int]


def select_episodes(
    candidates: Sequence[Candidate],
    *,
    min_reward: float,
    best_of_group: int | None,
    balance_harnesses: bool,
    eval_share: float,
) -> Selection:
    """Select among episodes that have ended. ``best_of_group``: how many of a group at most; ``None``: any number.

    ``eval_share``: of tasks, from 0 to 1; an episode without a task counts as a task of its own.
    """
    rejected: Counter[Rejected] = Counter()
    good: list[Candidate] = []
    for one in candidates:
        if reason := _rejection(one.info, min_reward):
            rejected[reason] += 1
        else:
            good.append(one)
    if best_of_group is not None:
        best = _best(good, best_of_group)
        rejected["not_best_of_group"] += len(good) - len(best)
        good = best
    if balance_harnesses:
        even = _balanced(good)
        rejected["balance"] += len(good) - len(even)
        good = even
    held_out = [one for one in good if _share(one.info.spec.task or one.info.id) < eval_share]
    train = [one for one in good if _share(one.info.spec.task or one.info.id) >= eval_share]
    return Selection(tuple(train), tuple(held_out), {reason: count for reason, count in rejected.items() if count})


def _rejection(info: EpisodeInfo, min_reward: float) -> Rejected | None:
    if info.end != "completed":
        return "not_completed"
    if info.reward is None:
        return "no_reward"
    return "low_reward" if info.reward < min_reward else None


def _best(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """In the order of ``candidates``; among equal rewards the ones opened first."""
    kept: set[str] = set()
    groups: dict[int | str, list[Candidate]] = {}
    for one in candidates:
        groups.setdefault(one.info.id if one.group is None else one.group, []).append(one)
    for members in groups.values():
        ranked = sorted(members, key=lambda one: (-(one.info.reward or 0.0), one.info.opened_at, one.info.id))
        kept.update(one.info.id for one in ranked[:count])
    return [one for one in candidates if one.info.id in kept]


def _balanced(candidates: Sequence[Candidate]) -> list[Candidate]:
    """As many of each harness; which ones is decided by the hash of their ids."""
    by_harness: dict[str, list[Candidate]] = {}
    for one in candidates:
        by_harness.setdefault(one.harness, []).append(one)
    fewest = min((len(members) for members in by_harness.values()), default=0)
    kept = {
        one.info.id
        for members in by_harness.values()
        for one in sorted(members, key=lambda one: _share(one.info.id))[:fewest]
    }
    return [one for one in candidates if one.info.id in kept]


def _share(name: str) -> float:
    """A number from 0 to 1 that depends on ``name`` only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
