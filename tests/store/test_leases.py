"""Leases: each group goes to one holder of a consumer, and is consumed at most once."""

from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from dragoman.store.calls import read_calls, write_arrivals
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, get_episode, open_episode, set_reward
from dragoman.store.errors import LeaseLost
from dragoman.store.groups import GroupCounts
from dragoman.store.leases import LeasedGroup, consume, count_groups, give_back, lease_groups, renew, set_aside
from dragoman.store.models import Call, Lease, table_of
from dragoman.store.records import CallArrival, EpisodeSpec


def add_group(session: Session, name: str, *, task: str = "t", size: int = 2, now: float = 100.0) -> None:
    """A complete group of scored episodes with one call each; episode ids are made of its name."""
    for n in range(size):
        episode_id = f"{name}{n}"
        open_episode(
            session,
            EpisodeSpec(task=task, group=name, expected=size, metadata={"n": n}),
            episode_id=episode_id,
            token_hash=episode_id.encode().hex().rjust(64, "0"),
            now=now + n,
            expires_at=now + 10,
        )
        call = CallArrival(
            id=f"c{episode_id}", episode_id=episode_id, provider="anthropic", path="/v1/messages", arrived_at=now
        )
        assert write_arrivals(session, [call]) == [None]
        set_reward(session, episode_id, float(n), components=None, now=now + n)
        end_episode(session, episode_id, "completed", reason=None, now=now + n)


def lease(session: Session, holder: str = "h", limit: int = 10, now: float = 1000.0, **more: Any) -> list[LeasedGroup]:
    return lease_groups(session, "run", holder=holder, limit=limit, now=now, seconds=60.0, **more)


def names(groups: list[LeasedGroup]) -> list[str | None]:
    return [group.name for group in groups]


def test_a_leased_group_is_read_whole(database: Database) -> None:
    with database.session() as session:
        add_group(session, "a")
        (group,) = lease(session)
    with database.reading() as session:
        assert (group.task, group.name, group.completed_at) == ("t", "a", 1000.0)
        assert [episode.info for episode in group.episodes] == [get_episode(session, id) for id in ("a0", "a1")]
        assert [list(episode.calls) for episode in group.episodes] == [
            read_calls(session, "a0"),
            read_calls(session, "a1"),
        ]
        assert [episode.info.spec.metadata for episode in group.episodes] == [{"n": 0}, {"n": 1}]


def test_groups_go_out_once_and_oldest_first(database: Database) -> None:
    with database.session() as session:
        for n, name in enumerate("bac"):
            add_group(session, name)
            assert lease(session, limit=0, now=1000.0 + n) == []  # it settles
        assert count_groups(session, "run", 1000.0) == GroupCounts(0, 3, 0, 0, 0)
        assert names(lease(session, "h", 2)) == ["b", "a"]
        assert names(lease(session, "other", 2)) == ["c"]
        assert lease(session, "h") == []
        assert count_groups(session, "run", 1000.0) == GroupCounts(0, 0, 3, 0, 0)
        assert count_groups(session, "another run", 1000.0) == GroupCounts(0, 3, 0, 0, 0)


def test_only_groups_of_the_named_tasks(database: Database) -> None:
    with database.session() as session:
        for name, task in (("a", "x"), ("b", "y"), ("c", "z")):
            add_group(session, name, task=task)
        assert names(lease(session, tasks=["y", "z", "unknown"])) == ["b", "c"]
        assert lease(session, tasks=[]) == []
        assert names(lease(session)) == ["a"]


def test_an_expired_lease_is_taken_over_and_its_holder_has_lost_it(database: Database) -> None:
    with database.session() as session:
        add_group(session, "a")
        (group,) = lease(session, now=1000.0)
        assert lease(session, "other", now=1059.0) == []
        assert count_groups(session, "run", 1060.0) == GroupCounts(0, 1, 0, 0, 0)
        assert names(lease(session, "other", now=1060.0)) == ["a"]
        assert renew(session, "run", holder="h", now=1061.0, seconds=60.0) == 0
        with pytest.raises(LeaseLost, match=rf"group {group.row} is no longer leased to 'h' by 'run': it is leased by"):
            consume(session, "run", [group.row], holder="h", now=1061.0, step=1)
        with pytest.raises(LeaseLost):
            set_aside(session, "run", group.row, "bad", holder="h", now=1061.0)
        consume(session, "run", [group.row], holder="other", now=1061.0, step=1)
        with pytest.raises(LeaseLost, match="it is consumed by 'other'"):
            consume(session, "run", [group.row], holder="h", now=1062.0, step=1)


def test_an_expired_lease_that_nobody_took_is_still_its_holders(database: Database) -> None:
    with database.session() as session:
        add_group(session, "a")
        (group,) = lease(session, now=1000.0)
        assert renew(session, "run", holder="h", now=1100.0, seconds=60.0) == 1
        assert lease(session, "other", now=1159.0) == []
        consume(session, "run", [group.row], holder="h", now=1200.0, step=1)


def test_consuming_is_for_good_and_may_be_repeated(database: Database) -> None:
    with database.session() as session:
        add_group(session, "a")
        (group,) = lease(session)
        consume(session, "run", [], holder="h", now=1.0, step=None)
        for now in (1001.0, 1002.0):
            consume(session, "run", [group.row], holder="h", now=now, step=7)
        row = session.execute(select(Lease)).scalar_one()
        assert (row.state, row.step, row.at, row.expires_at) == ("consumed", 7, 1001.0, None)
        assert lease(session, now=1e9) == []
        assert (give_back(session, "run", holder="h"), renew(session, "run", holder="h", now=1e9, seconds=1)) == (0, 0)
        with pytest.raises(LeaseLost):
            set_aside(session, "run", group.row, "bad", holder="h", now=1003.0)
        assert count_groups(session, "run", 1e9) == GroupCounts(0, 0, 0, 1, 0)


def test_all_or_none_of_the_groups_are_consumed(database: Database) -> None:
    with database.session() as session:
        for name in "ab":
            add_group(session, name)
        first, second = (lease(session, holder, 1)[0].row for holder in ("h", "other"))
    with pytest.raises(LeaseLost), database.session() as session:
        consume(session, "run", [first, second], holder="h", now=1001.0, step=1)
    with database.reading() as session:
        assert count_groups(session, "run", 1001.0) == GroupCounts(0, 0, 2, 0, 0)


def test_what_was_given_back_is_ready_again_and_may_still_be_consumed(database: Database) -> None:
    with database.session() as session:
        for name in "ab":
            add_group(session, name)
        trained, other = (group.row for group in lease(session))
        assert give_back(session, "run", holder="h") == 2
        assert count_groups(session, "run", 1000.0) == GroupCounts(0, 2, 0, 0, 0)
        consume(session, "run", [trained], holder="h", now=1001.0, step=3)
        assert [group.row for group in lease(session, "next")] == [other]


def test_a_group_that_cannot_be_read_is_set_aside_and_the_rest_goes_on(database: Database) -> None:
    with database.session() as session:
        for name in "abc":
            add_group(session, name)
        broken = {"status": "answered", "finished_at": 2.0, "completion_ids": b"\x09nonsense"}
        session.execute(update(Call).where(Call.id == "ca0").values(broken))
        missing = {"status": "answered", "finished_at": 2.0, "reply": b"0123456789abcdef"}
        session.execute(update(Call).where(Call.id == "cb1").values(missing))
        assert names(lease(session, limit=1)) == ["c"]
        reasons = session.scalars(select(Lease.reason).where(Lease.state == "set_aside").order_by(Lease.group_row))
        assert list(reasons) == [
            "it cannot be read: packed value has format 9; this Dragoman reads format 1",
            "it cannot be read: the store is damaged: it has no blob 30313233343536373839616263646566, "
            "which a call refers to",
        ]
        assert count_groups(session, "run", 1000.0) == GroupCounts(0, 0, 1, 0, 2)


def test_setting_aside_may_be_repeated(database: Database) -> None:
    with database.session() as session:
        add_group(session, "a")
        (group,) = lease(session)
        for reason in ("bad\0", "worse"):
            set_aside(session, "run", group.row, reason, holder="h", now=1001.0)
        assert session.scalars(select(Lease.reason)).all() == ["bad\\x00"]
        with pytest.raises(LeaseLost, match="it is set_aside by 'h'"):
            consume(session, "run", [group.row], holder="h", now=1002.0, step=1)


def test_a_lease_that_was_committed_after_the_look_up_is_respected(database: Database) -> None:
    """What the condition of the insert is for; on PostgreSQL the look-up may be older than another's commit."""
    from dragoman.store import leases

    with database.session() as session:
        add_group(session, "a")
        lease(session, limit=0)
        (row,) = leases._candidates(session, "run", 9, 1000.0, None)
        session.execute(
            insert(table_of(Lease)).values(
                group_row=row, consumer="run", state="leased", holder="other", expires_at=1060.0, at=1000.0
            )
        )
        assert leases._take(session, "run", [row], holder="h", now=1000.0, until=1060.0) == []
        assert leases._take(session, "run", [row], holder="h", now=1060.0, until=1090.0) == [row]


def test_groups_are_counted_by_task_where_tasks_are_named(database: Database) -> None:
    with database.session() as session:
        add_group(session, "a", task="train")
        add_group(session, "b", task="held out")
        lease(session, tasks=["train"])
    with database.reading() as session:
        assert count_groups(session, "run", 1000.0, tasks=["train"]) == GroupCounts(0, 0, 1, 0, 0)
        assert count_groups(session, "run", 1000.0, tasks=["held out"]) == GroupCounts(0, 1, 0, 0, 0)
        assert count_groups(session, "run", 1000.0) == GroupCounts(0, 1, 1, 0, 0)
