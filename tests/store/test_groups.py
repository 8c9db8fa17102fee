"""When a group is complete."""

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, get_episode, open_episode, set_reward
from dragoman.store.errors import GroupMismatch
from dragoman.store.groups import settle_groups
from dragoman.store.models import Group
from dragoman.store.records import EpisodeEnd, EpisodeSpec


def opened(session: Session, episode_id: str, now: float = 100.0, **spec: Any) -> None:
    open_episode(
        session,
        EpisodeSpec(task="t", **spec),
        episode_id=episode_id,
        token_hash=episode_id.encode().hex().rjust(64, "0"),
        now=now,
        expires_at=now + 10,
    )


def ended(session: Session, episode_id: str, end: EpisodeEnd, reward: float | None = None) -> None:
    if reward is not None:
        set_reward(session, episode_id, reward, components=None, now=110.0)
    end_episode(session, episode_id, end, reason=None, now=111.0)


def completed_at(session: Session) -> dict[str | None, float | None]:
    return {row.name: row.completed_at for row in session.execute(select(Group.name, Group.completed_at))}


def test_a_group_is_complete_when_its_expected_episodes_have_ended_and_are_scored(database: Database) -> None:
    with database.session() as session:
        for episode_id in ("a", "b"):
            opened(session, episode_id, group="g", expected=2)
        assert settle_groups(session, 101.0) == []
        ended(session, "a", "completed", 1.0)
        assert settle_groups(session, 102.0) == []
        ended(session, "b", "completed")
        assert settle_groups(session, 103.0) == []  # not scored yet
        set_reward(session, "b", 0.0, components=None, now=104.0)
        (row,) = settle_groups(session, 105.0)
        assert session.get_one(Group, row).name == "g"
        assert settle_groups(session, 106.0) == []
        assert completed_at(session) == {"g": 105.0}


@pytest.mark.parametrize("end", ["failed", "timed_out"])
def test_these_ends_need_no_reward(database: Database, end: EpisodeEnd) -> None:
    with database.session() as session:
        opened(session, "a", group="g", expected=1)
        ended(session, "a", end)
        assert len(settle_groups(session, 102.0)) == 1


def test_an_abandoned_episode_leaves_its_place_free_until_the_deadline(database: Database) -> None:
    """Its sample may be run again: after Ctrl-C, or when the engine was gone."""
    with database.session() as session:
        opened(session, "a", group="g", expected=1, deadline=200.0)
        ended(session, "a", "abandoned")
        assert settle_groups(session, 102.0) == []
        opened(session, "b", group="g", expected=1, deadline=300.0)
        ended(session, "b", "abandoned")
        assert settle_groups(session, 299.0) == []
        assert len(settle_groups(session, 300.0)) == 1


def test_a_group_waits_for_episodes_beyond_the_expected_ones(database: Database) -> None:
    """A sample that was begun anew after its runner had gone."""
    with database.session() as session:
        opened(session, "a", group="g", expected=1)
        opened(session, "b", group="g")
        ended(session, "a", "abandoned")
        assert settle_groups(session, 102.0) == []
        ended(session, "b", "completed", 1.0)
        assert len(settle_groups(session, 103.0)) == 1


def test_at_its_deadline_a_group_is_complete_with_what_there_is(database: Database) -> None:
    with database.session() as session:
        opened(session, "a", group="g", expected=4, deadline=200.0)
        opened(session, "b", group="g")
        ended(session, "b", "completed")
        assert settle_groups(session, 199.0) == []
        assert len(settle_groups(session, 200.0)) == 1
        assert get_episode(session, "a").end == "abandoned"


def test_a_group_of_unknown_size_without_a_deadline_is_never_complete(database: Database) -> None:
    with database.session() as session:
        opened(session, "a", group="g")
        opened(session, "b")
        for episode_id in ("a", "b"):
            ended(session, episode_id, "completed", 1.0)
        assert settle_groups(session, 1e9) == []
        assert completed_at(session) == {"g": None, None: None}


def test_a_complete_group_takes_no_more_episodes(database: Database) -> None:
    with database.session() as session:
        opened(session, "a", group="g", expected=1)
        ended(session, "a", "failed")
        settle_groups(session, 102.0)
        with pytest.raises(GroupMismatch, match="group 'g' of task 't' is complete and takes no more; name another"):
            opened(session, "b", group="g")
