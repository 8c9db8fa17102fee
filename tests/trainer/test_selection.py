"""Which episodes are copied."""

import pytest

from dragoman.store.records import EpisodeEnd, EpisodeInfo, EpisodeSpec
from dragoman.trainer.selection import Candidate, Selection, select_episodes


def candidate(
    name: str,
    reward: float | None = 1.0,
    *,
    group: int | None = None,
    harness: str = "pi",
    end: EpisodeEnd = "completed",
    task: str | None = None,
) -> Candidate:
    info = EpisodeInfo(name, EpisodeSpec(task=task), 1.0, 9.0, 2.0, end, None, reward)
    return Candidate(info, group, harness)


def select(
    *candidates: Candidate, best: int | None = None, balance: bool = False, share: float = 0.0, least: float = 1.0
) -> Selection:
    return select_episodes(
        candidates, min_reward=least, best_of_group=best, balance_harnesses=balance, eval_share=share
    )


def names(candidates: tuple[Candidate, ...]) -> str:
    return "".join(one.info.id for one in candidates)


def test_rejected_by_reason() -> None:
    found = select(
        candidate("a"),
        candidate("b", 0.5),
        candidate("c", None),
        candidate("d", end="timed_out"),
        candidate("e", end="failed"),
    )
    assert names(found.train) == "a"
    assert found.rejected == {"low_reward": 1, "no_reward": 1, "not_completed": 2}


def test_best_of_group() -> None:
    members = [candidate("a", 0.5, group=1), candidate("b", 0.9, group=1), candidate("c", 0.9, group=1)]
    found = select(*members, candidate("d", 0.5, group=2), candidate("e", 0.5), candidate("f", 0.5), best=1, least=0.5)
    assert names(found.train) == "bdef"
    assert found.rejected == {"not_best_of_group": 2}


def test_balance_takes_as_many_of_each_harness() -> None:
    many = [candidate(f"p{n}", harness="pi") for n in range(5)]
    few = [candidate(f"c{n}", harness="claude") for n in range(2)]
    found = select(*many, *few, balance=True)
    assert len(found.train) == 4
    assert found.rejected == {"balance": 3}
    assert names(found.train) == names(select(*many, *few, balance=True).train)


def test_all_episodes_of_a_task_are_on_one_side() -> None:
    every = [candidate(f"{task}-{n}", task=f"task {task}") for task in range(200) for n in range(2)]
    found = select(*every, share=0.1)
    sides = [{one.info.spec.task for one in side} for side in (found.train, found.held_out)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 200
    assert len(sides[1]) == pytest.approx(20, abs=12)
