"""What a continuous run does next: train groups at a bounded lead, an evaluation when one is due, the end.

Rules of this module: pure. The store says how far the trainer is (``Standing``), the journal what has been run; both
are passed in. Groups that the trainer has not used yet are never more than ``ahead``, so no token that it is given is
older than that many groups' worth of steps.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from dragoman.rollout.samples import Sample
from dragoman.rollout.tasks import Task


@dataclass(frozen=True)
class Standing:
    """How far a training run is."""

    version: int
    """Number of the newest policy that is served; 0: the weights of the beginning."""
    steps: int
    """Optimizer steps until that policy."""
    dropped: int
    """Groups that the trainer has set aside: of equal rewards, too old, …"""


@dataclass(frozen=True)
class Stop:
    """When a run is over; ``None``: not by this."""

    versions: int | None = None
    reward: float | None = None
    """Mean reward of an evaluation on the evaluation split."""
    hours: float | None = None

    def reached(self, *, version: int, reward: float | None, hours: float) -> str | None:
        """Why the run is over; ``None``: it is not."""
        if self.versions is not None and version >= self.versions:
            return f"version {version} of {self.versions} is there"
        if self.reward is not None and reward is not None and reward >= self.reward:
            return f"an evaluation has a mean reward of {reward:.3f}, and {self.reward:.3f} was asked for"
        if self.hours is not None and hours >= self.hours:
            return f"{hours:.2f} hours are over"
        return None


Group = tuple[str, str, int]
"""Task, harness, round."""


@dataclass(frozen=True)
class Plan:
    """The order in which tasks are trained on: rounds, each of all tasks in an order of its own."""

    tasks: tuple[Task, ...]
    harnesses: tuple[str, ...]
    samples: int
    seed: int

    def groups(self) -> Iterator[tuple[Task, str, int]]:
        """Without end. The same for the same plan, so that a run can be resumed."""
        round_ = 0
        while True:
            pairs = [(task, harness) for task in self.tasks for harness in self.harnesses]
            random.Random(f"{self.seed}/{round_}").shuffle(pairs)
            for task, harness in pairs:
                yield task, harness, round_
            round_ += 1


def train_samples(
    plan: Plan,
    *,
    done: Collection[tuple[str, str, int, int | None]],
    begun: Collection[Group],
    standing: Callable[[], Standing],
    over: Callable[[Standing], bool],
    ahead: int,
    groups_per_step: int,
) -> Iterator[Sample | None]:
    """The samples to run, ``None`` while the trainer has enough groups; ends when ``over`` says so.

    ``done``: samples (task, harness, number, round) that need not be run again. ``begun``: groups of which something
    has been run, by this process or an earlier one; those that lack samples come first, and it must grow as samples
    are run.
    """
    started = set(begun)
    for task, harness, round_ in plan.groups():
        group = (task.id, harness, round_)
        missing = [number for number in range(plan.samples) if (task.id, harness, number, round_) not in done]
        if group in started and not missing:
            continue
        if group not in started:
            while True:
                now = standing()
                if over(now):
                    return
                if len(started) - now.dropped - now.steps * groups_per_step < ahead:
                    break
                yield None
            started.add(group)
        for number in missing:
            yield Sample(task, harness, number, round_)


def evaluation_samples(tasks: Sequence[Task], harnesses: Sequence[str], samples: int, version: int) -> list[Sample]:
    """Every sample of the evaluation of one version; its round is the version's number."""
    return [
        Sample(task, harness, number, version) for task in tasks for harness in harnesses for number in range(samples)
    ]
