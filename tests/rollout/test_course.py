"""What a continuous run does next: never too far ahead of the trainer, nothing twice, the same order when resumed."""

from collections.abc import Iterator
from itertools import islice

import pytest

from dragoman.rollout.course import Plan, Standing, Stop, evaluation_samples, train_samples
from dragoman.rollout.samples import Sample
from dragoman.rollout.tasks import Task

Key = tuple[str, str, int, int | None]
TASKS = tuple(Task(id=f"t{number}", prompt="x") for number in range(4))
PLAN = Plan(TASKS, ("pi",), samples=2, seed=7)


class Trainer:
    """How far the trainer is, as a test says."""

    def __init__(self) -> None:
        self.standing = Standing(0, 0, 0)
        self.over = False
        self.done: set[Key] = set()

    def supply(self, *, ahead: int = 2, per_step: int = 1) -> Iterator[Sample | None]:
        begun = {(task, harness, round_ or 0) for task, harness, _, round_ in self.done}
        return train_samples(
            PLAN,
            done=self.done,
            begun=begun,
            standing=lambda: self.standing,
            over=lambda _: self.over,
            ahead=ahead,
            groups_per_step=per_step,
        )


def groups(samples: list[Sample | None]) -> list[tuple[str, int | None]]:
    return list(dict.fromkeys((sample.task.id, sample.round) for sample in samples if sample is not None))


def test_it_is_never_more_groups_ahead_than_allowed() -> None:
    trainer = Trainer()
    supply = trainer.supply()
    first = list(islice(supply, 6))
    assert [sample is None for sample in first] == [False] * 4 + [True] * 2
    trainer.standing = Standing(1, 1, 0)
    assert [sample is None for sample in islice(supply, 3)] == [False, False, True]
    trainer.standing = Standing(1, 1, dropped=2)
    assert [sample is None for sample in islice(supply, 5)] == [False] * 4 + [True]


def test_a_step_of_several_groups_uses_up_as_many() -> None:
    trainer = Trainer()
    supply = trainer.supply(per_step=2)
    assert next(islice(supply, 4, None)) is None
    trainer.standing = Standing(1, 1, 0)
    assert [sample is None for sample in islice(supply, 5)] == [False] * 4 + [True]


def test_every_round_has_all_tasks_in_an_order_of_its_own() -> None:
    trainer = Trainer()
    trainer.standing = Standing(0, 1000, 0)
    samples = list(islice(trainer.supply(), 3 * 4 * 2))
    rounds = [[task for task, number in groups(samples) if number == at] for at in range(3)]
    assert [sorted(names) for names in rounds] == [["t0", "t1", "t2", "t3"]] * 3
    assert rounds[0] != rounds[1] or rounds[1] != rounds[2]
    assert list(islice(trainer.supply(), 24)) == samples


def test_resumed_it_runs_what_is_missing_and_nothing_twice() -> None:
    trainer = Trainer()
    trainer.standing = Standing(0, 1000, 0)
    order = [sample for sample in islice(trainer.supply(), 8) if sample is not None]
    trainer.done = {order[0].key, order[2].key, order[3].key}
    resumed = list(islice(trainer.supply(), 5))
    assert resumed == [order[1], *order[4:8]]


def test_what_is_missing_of_groups_that_are_begun_comes_even_when_it_is_far_enough_ahead() -> None:
    trainer = Trainer()
    order = [sample for sample in islice(trainer.supply(), 4) if sample is not None]
    trainer.done = {order[0].key, order[2].key}
    supply = trainer.supply()
    assert [next(supply), next(supply), next(supply)] == [order[1], order[3], None]


def test_it_ends_when_the_run_is_over_but_not_in_the_middle_of_a_group() -> None:
    trainer = Trainer()
    supply = trainer.supply()
    next(supply)
    trainer.over = True
    assert len(list(supply)) == 1


def test_an_evaluation_has_a_round_of_its_own() -> None:
    samples = evaluation_samples(TASKS[:1], ("pi", "codex"), 2, 5)
    assert [sample.key for sample in samples] == [("t0", name, n, 5) for name in ("pi", "codex") for n in (0, 1)]


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (Stop(versions=3), "version 3 of 3"),
        (Stop(versions=4), None),
        (Stop(reward=0.5), "mean reward of 0.500"),
        (Stop(reward=0.6), None),
        (Stop(hours=1.0), "1.50 hours"),
        (Stop(hours=2.0), None),
        (Stop(), None),
    ],
)
def test_when_it_is_over(stop: Stop, why: str | None) -> None:
    reached = stop.reached(version=3, reward=0.5, hours=1.5)
    assert (why is None and reached is None) or (why is not None and why in (reached or ""))
    assert Stop(reward=0.5).reached(version=3, reward=None, hours=0.0) is None
