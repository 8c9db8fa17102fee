"""Steps from a real store: leased, dropped with reasons, waited for, consumed with a checkpoint."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from dragoman.store.leases import count_groups
from dragoman.store.models import Call, Group, Lease
from dragoman.store.packing import pack_logprobs
from dragoman.trainer import source as source_module
from dragoman.trainer.batch import Taken, plan_step
from dragoman.trainer.checkpoints import MARKER, TrainedGroup, read_marker
from dragoman.trainer.samples import Rules
from dragoman.trainer.source import GroupSource
from tests.trainer.made_groups import Maker, flat, store_group

MAKE = Maker(lambda tokens: [-1.0] * (len(tokens) - 1))


@pytest.fixture
def said() -> list[str]:
    return []


def source(database: Database, said: list[str], **more: Any) -> GroupSource:
    options: dict[str, Any] = {"consumer": "c", "holder": "h", "groups_per_step": 2, "rules": Rules(), **more}
    plan = partial(plan_step, loss="cispo", world=1, rows=4, max_tokens=None)
    return GroupSource(database, plan=plan, say=said.append, sleep=lambda seconds: None, **options)


def fill(database: Database, *rows: int, rewards: tuple[float, ...] = (1.0, 0.0), **more: Any) -> None:
    with database.session() as session:
        for row in rows:
            store_group(session, flat(MAKE, row, rewards, **more), at=100.0 * row)


def numbers(database: Database) -> dict[int, int]:
    """Row of each group → the number that it was made with. (PostgreSQL leaves rows out.)"""
    with database.reading() as session:
        return {row: int(str(name)[1:]) for row, name in session.execute(select(Group.row, Group.name))}


def states(database: Database) -> dict[int, tuple[str, int | None, str | None]]:
    with database.reading() as session:
        found = session.execute(select(Lease.group_row, Lease.state, Lease.step, Lease.reason)).all()
    return {numbers(database)[row.group_row]: (row.state, row.step, row.reason) for row in found}


def rows_of(database: Database, taken: Any) -> list[int]:
    assert isinstance(taken, Taken)
    rows = {one.group for rank in taken.step.ranks for micro in rank for one in micro if one is not None}
    return sorted(numbers(database)[row] for row in rows)


def marked(database: Database, folder: Path) -> list[tuple[int, int]]:
    return [(numbers(database)[group.row], group.step) for group in read_marker(folder)]


def row(database: Database, number: int) -> int:
    return next(row for row, found in numbers(database).items() if found == number)


def test_groups_are_consumed_with_a_checkpoint_and_not_before(
    database: Database, said: list[str], tmp_path: Path
) -> None:
    fill(database, 1, 2, 3, 4)
    mine = source(database, said)
    assert mine.start(()) == 0
    for step in (1, 2):
        assert rows_of(database, mine.take()) == [2 * step - 1, 2 * step]
        mine.trained(step)
    assert {state for state, _, _ in states(database).values()} == {"leased"}
    mine.checkpoint(tmp_path)
    assert marked(database, tmp_path) == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert states(database) == {one: ("consumed", (one + 1) // 2, None) for one in (1, 2, 3, 4)}
    mine.checkpoint(tmp_path)
    assert read_marker(tmp_path) == []


def test_a_new_process_goes_on_from_the_marker(database: Database, said: list[str]) -> None:
    fill(database, 1, 2, 3, 4, 5)
    killed = source(database, said)
    for step in (1, 2):
        killed.take()
        killed.trained(step)
    mine = source(database, said)
    assert mine.start([TrainedGroup(row(database, one), 1) for one in (1, 2)]) == 2
    assert rows_of(database, mine.take()) == [3, 4]


def test_what_is_dropped_is_set_aside_counted_and_replaced(database: Database, said: list[str]) -> None:
    fill(database, 1, rewards=(1.0, 1.0))
    fill(database, 2)
    fill(database, 3, version="policy-v9")
    fill(database, 4, 5)
    with database.session() as session:
        damaged = session.scalars(select(Call).where(Call.episode_id == "e00004000000")).first()
        assert damaged is not None
        assert damaged.completion_len is not None
        session.execute(
            update(Call)
            .where(Call.row == damaged.row)
            .values(logprobs=pack_logprobs(np.full(damaged.completion_len, 0.5, np.float32)))
        )
    mine = source(database, said)
    taken = mine.take()
    assert rows_of(database, taken) == [2, 5]
    assert isinstance(taken, Taken)
    assert {name: taken.metrics[f"dropped/{name}"] for name in ("zero_variance", "unknown_version", "corrupt")} == {
        "zero_variance": 1.0,
        "unknown_version": 1.0,
        "corrupt": 1.0,
    }
    found = states(database)
    assert {one: state for one, (state, _, _) in found.items()} == {
        1: "set_aside",
        2: "leased",
        3: "set_aside",
        4: "set_aside",
        5: "leased",
    }
    assert str(found[4][2]).startswith("corrupt: episode e00004000000")
    assert len([line for line in said if "set aside" in line]) == 2
    mine.trained(1)
    totals = mine.totals
    assert totals.groups == {"trained": 2, "zero_variance": 1, "unknown_version": 1, "corrupt": 1}
    assert totals.sampled == totals.trained + sum(totals.excluded.values())


def test_an_empty_store_is_waited_for_and_that_is_said_once(database: Database, said: list[str]) -> None:
    mine = source(database, said)
    assert [mine.take() for _ in range(3)] == ["wait"] * 3
    assert len(said) == 1
    assert "waiting for groups: 0 of 2 in hand" in said[0]
    fill(database, 1)
    assert mine.take() == "wait"
    assert "1 of 2 in hand" in said[-1]
    fill(database, 2)
    assert rows_of(database, mine.take()) == [1, 2]


def test_it_ends_when_told_to(database: Database, said: list[str]) -> None:
    fill(database, 1, 2)
    assert source(database, said, groups_per_step=3, stop_after_waiting=0.0).take() == "end"
    mine = source(database, said, consumer="other")
    mine.stopping = True
    assert mine.take() == "end"


def test_what_was_not_trained_is_given_back(database: Database, said: list[str]) -> None:
    fill(database, 1, 2, 3)
    mine = source(database, said)
    mine.take()
    mine.close()
    with database.reading() as session:
        assert count_groups(session, "c", time.time()).ready == 3


def test_a_failed_step_sets_its_suspects_aside_and_keeps_the_others(database: Database, said: list[str]) -> None:
    fill(database, 1, 2, 3)
    mine = source(database, said)
    mine.take()
    mine.failed((row(database, 1),), "the loss was not finite at step 1")
    assert states(database)[1] == ("set_aside", None, "not_finite: the loss was not finite at step 1")
    assert rows_of(database, mine.take()) == [2, 3]
    assert mine.totals.sampled == sum(mine.totals.excluded.values())


def test_two_runs_have_each_group_once_each(database: Database, said: list[str]) -> None:
    fill(database, 1, 2)
    one, other = source(database, said), source(database, said, consumer="other", holder="other")
    assert rows_of(database, one.take()) == rows_of(database, other.take()) == [1, 2]
    third = source(database, said, holder="another process of the first")
    assert third.take() == "wait"


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """``[True]``: leasing and consuming fail."""
    away = [False]

    def failing(real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if away[0]:
                raise StoreUnavailable("the store is away")
            return real(*arguments, **more)

        return call

    for name in ("lease_groups", "consume"):
        monkeypatch.setattr(source_module, name, failing(getattr(source_module, name)))
    return away


def test_a_store_that_is_away_is_waited_for(
    database: Database, said: list[str], tmp_path: Path, outage: list[bool]
) -> None:
    fill(database, 1, 2)
    mine = source(database, said)
    outage[0] = True
    assert [mine.take(), mine.take()] == ["wait", "wait"]
    assert said == ["waiting for the store: the store is away"]
    outage[0] = False
    mine.take()
    mine.trained(1)
    outage[0] = True
    mine.checkpoint(tmp_path)
    assert (tmp_path / MARKER).exists()
    assert states(database)[1][0] == "leased"
    outage[0] = False
    mine.checkpoint(tmp_path)
    assert len(read_marker(tmp_path)) == 2
    assert states(database)[1][0] == "consumed"
