"""Episodes: opening, ending, rewards, groups with deadlines, and what a list shows."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import (
    abandon_overdue_groups,
    end_episode,
    find_by_token,
    get_episode,
    list_episodes,
    open_episode,
    set_reward,
    sum_calls,
)
from dragoman.store.errors import EpisodeEnded, EpisodeNotFound, GroupMismatch
from dragoman.store.models import Group, Reward
from dragoman.store.records import CallArrival, CallOutcome, CallSums, EpisodeInfo, EpisodeSpec


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def opened(session: Session, episode_id: str, now: float = 1000.0, **spec: Any) -> EpisodeInfo:
    return open_episode(
        session,
        EpisodeSpec(**spec),
        episode_id=episode_id,
        token_hash=token_hash(episode_id),
        now=now,
        expires_at=now + 3600,
    )


def test_an_opened_episode_is_found_by_id_and_by_token(database: Database) -> None:
    spec = EpisodeSpec(
        task="fix the bug",
        group="g1",
        expected=4,
        deadline=5000.0,
        profile="as_asked",
        temperature=0.7,
        metadata={"repo": "a/b", "tries": [1, 2], "nul": "\0", "none": None},
    )
    with database.session() as session:
        info = open_episode(
            session, spec, episode_id="e1", token_hash=token_hash("secret"), now=1000.5, expires_at=2000.25
        )
    assert info == EpisodeInfo("e1", spec, 1000.5, 2000.25, None, None, None, None)
    with database.reading() as session:
        assert get_episode(session, "e1") == info
        assert find_by_token(session, token_hash("secret")) == info  # the caller looks at expires_at
        assert find_by_token(session, token_hash("other")) is None
        with pytest.raises(EpisodeNotFound, match="'e2'"):
            get_episode(session, "e2")


def test_an_ad_hoc_episode_has_no_task(database: Database) -> None:
    with database.session() as session:
        assert opened(session, "e1").spec == EpisodeSpec()
        assert session.scalars(select(Group)).all() == []


def test_episodes_of_one_group_share_it(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1", task="t", group="g", expected=2)
        opened(session, "e2", task="t", group="g")
        opened(session, "e3", task="other", group="g", expected=5)
        assert len(session.scalars(select(Group)).all()) == 2
        assert get_episode(session, "e2").spec.expected == 2


def test_episodes_that_name_no_group_each_have_their_own(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1", task="t", expected=1)
        opened(session, "e2", task="t", expected=3)
        assert len(session.scalars(select(Group)).all()) == 2
        assert get_episode(session, "e1").spec == EpisodeSpec(task="t", expected=1)


def test_expected_may_be_said_later_but_not_changed(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1", task="t", group="g")
        opened(session, "e2", task="t", group="g", expected=4)
        assert get_episode(session, "e1").spec.expected == 4
        with pytest.raises(GroupMismatch, match="'g' of task 't' was opened for 4 episodes, not 8"):
            opened(session, "e3", task="t", group="g", expected=8)


def test_the_latest_deadline_of_a_group_holds(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1", task="t", group="g")
        opened(session, "e2", task="t", group="g", deadline=1500.0)
        opened(session, "e3", task="t", group="g", deadline=1200.0)
        assert get_episode(session, "e1").spec.deadline == 1500.0
        with pytest.raises(GroupMismatch, match="deadline of group 'g' of task 't' has passed"):
            opened(session, "e4", now=1500.0, task="t", group="g")
        assert opened(session, "e5", now=1500.0, task="t", group="g", deadline=1600.0).spec.deadline == 1600.0
        with pytest.raises(GroupMismatch, match="has passed"):
            opened(session, "e6", task="t", deadline=999.0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param({"group": "g"}, "need a task", id="group without task"),
        pytest.param({"expected": 2}, "need a task", id="expected without task"),
        pytest.param({"deadline": 2e9}, "need a task", id="deadline without task"),
        pytest.param({"task": ""}, "task '' is empty", id="empty task"),
        pytest.param({"task": "a\0b"}, "NUL", id="NUL in task"),
        pytest.param({"task": "t", "expected": 0}, "expected is 0", id="expected 0"),
        pytest.param({"task": "t", "deadline": math.inf}, "deadline is inf", id="deadline inf"),
        pytest.param({"profile": "greedy"}, "profile 'greedy' is not one of train, as_asked", id="profile"),
        pytest.param({"temperature": -0.1}, "temperature is -0.1", id="negative temperature"),
        pytest.param({"temperature": math.nan}, "temperature is nan", id="temperature nan"),
        pytest.param({"metadata": {"x": math.nan}}, "metadata cannot be stored as JSON", id="NaN in metadata"),
        pytest.param({"metadata": {"x": {1, 2}}}, "metadata cannot be stored as JSON", id="set in metadata"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(database: Database, spec: dict[str, Any], says: str) -> None:
    with database.session() as session, pytest.raises(ValueError, match=says):
        opened(session, "e1", **spec)


def test_an_id_or_token_is_used_once(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1")
        with pytest.raises(ValueError, match="episode id 'e1' is already used"):
            open_episode(session, EpisodeSpec(), episode_id="e1", token_hash=token_hash("x"), now=1, expires_at=2)
        with pytest.raises(ValueError, match="token of episode 'e2' is already used"):
            open_episode(session, EpisodeSpec(), episode_id="e2", token_hash=token_hash("e1"), now=1, expires_at=2)
        with pytest.raises(ValueError, match="not a SHA-256"):
            open_episode(session, EpisodeSpec(), episode_id="e3", token_hash="dgm_secret", now=1, expires_at=2)


def test_an_episode_ends_once(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1")
        info = end_episode(session, "e1", "failed", reason="exit code 1\0", now=1100.0)
        assert (info.end, info.end_reason, info.ended_at) == ("failed", "exit code 1\\x00", 1100.0)
        assert end_episode(session, "e1", "failed", reason="again", now=1200.0) == info
        with pytest.raises(EpisodeEnded, match="'e1' has already ended as 'failed'; it cannot become 'completed'"):
            end_episode(session, "e1", "completed", reason=None, now=1300.0)
        assert get_episode(session, "e1") == info
        assert find_by_token(session, token_hash("e1")) == info
        with pytest.raises(EpisodeNotFound):
            end_episode(session, "e2", "completed", reason=None, now=1.0)
        with pytest.raises(ValueError, match="'done' is no end"):
            end_episode(session, "e1", "done", reason=None, now=1.0)  # type: ignore[arg-type]


def test_the_last_reward_counts_and_all_are_kept(database: Database) -> None:
    with database.session() as session:
        opened(session, "e1")
        assert set_reward(session, "e1", 1, components={"tests": 0.75, "style": -0.5}, now=1100.0).reward == 1.0
        end_episode(session, "e1", "completed", reason=None, now=1150.0)
        assert set_reward(session, "e1", 0.25, components=None, now=1200.0).reward == 0.25
    with database.reading() as session:
        assert get_episode(session, "e1").reward == 0.25
        kept = session.scalars(select(Reward).order_by(Reward.row)).all()
        assert [(r.reward, r.components, r.set_at) for r in kept] == [
            (1.0, {"tests": 0.75, "style": -0.5}, 1100.0),
            (0.25, {}, 1200.0),
        ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, True])
def test_a_reward_is_a_finite_number(database: Database, bad: float) -> None:
    with database.session() as session:
        opened(session, "e1")
        with pytest.raises(ValueError, match=r"reward is .* a finite number is needed"):
            set_reward(session, "e1", bad, components=None, now=1.0)
        with pytest.raises(ValueError, match="reward component 'tests' is"):
            set_reward(session, "e1", 1.0, components={"tests": bad}, now=1.0)
        with pytest.raises(EpisodeNotFound):
            set_reward(session, "e2", 1.0, components=None, now=1.0)
        assert session.scalars(select(Reward)).all() == []


def test_at_its_deadline_the_open_episodes_of_a_group_are_abandoned(database: Database) -> None:
    with database.session() as session:
        opened(session, "late1", task="t", group="g", deadline=1500.0)
        opened(session, "late2", task="t", group="g")
        opened(session, "done", task="t", group="g")
        opened(session, "other", task="t", group="h", deadline=1600.0)
        opened(session, "never", task="t", group="i")
        opened(session, "adhoc")
        end_episode(session, "done", "completed", reason=None, now=1100.0)
        assert abandon_overdue_groups(session, 1499.0) == []
        assert sorted(abandon_overdue_groups(session, 1500.0)) == ["late1", "late2"]
        assert abandon_overdue_groups(session, 1501.0) == []
    with database.reading() as session:
        ends = {name: get_episode(session, name) for name in ("late1", "late2", "done", "other", "never", "adhoc")}
    assert [info.end for info in ends.values()] == ["abandoned", "abandoned", "completed", None, None, None]
    assert ends["late1"].ended_at == 1500.0
    assert ends["late1"].end_reason == "the deadline of its group has passed"


def test_the_list_adds_up_the_calls_of_each_episode_in_one_query(database: Database) -> None:
    with database.session() as session:
        for n in range(5):
            opened(session, f"e{n}", now=1000.0 + n, **({"task": "t"} if n % 2 else {}))
        arrivals = [
            CallArrival(id=f"c{n}{k}", episode_id=f"e{n}", provider="anthropic", path="/", arrived_at=1.0)
            for n in (1, 3)
            for k in range(n)
        ]
        assert write_arrivals(session, arrivals) == [None] * 4
        outcomes = [
            CallOutcome(
                id=call_id,
                status="answered",
                http_status=200,
                finished_at=2.0,
                prompt_len=prompt,
                prompt_ids=np.arange(prompt, dtype=np.int32),
                completion_ids=np.arange(completion, dtype=np.int32),
                logprobs=np.zeros(completion, np.float32),
            )
            for call_id, prompt, completion in [("c10", 7, 3), ("c30", 10, 2), ("c31", 20, 4)]
        ]
        assert write_outcomes(session, outcomes) == [None] * 3
    with database.reading() as session:
        queries: list[str] = []
        session.connection()  # its BEGIN is not counted
        event.listen(database._engine, "before_cursor_execute", lambda *args: queries.append(args[2]))
        rows = [(s.episode.id, s.calls, s.prompt_tokens, s.completion_tokens) for s in list_episodes(session, limit=4)]
        assert len(queries) == 1
        assert rows == [("e4", 0, 0, 0), ("e3", 3, 30, 6), ("e2", 0, 0, 0), ("e1", 1, 7, 3)]
        assert [s.episode.id for s in list_episodes(session, limit=9, task="t")] == ["e3", "e1"]
        assert list_episodes(session, limit=1)[0].episode == get_episode(session, "e4")
        assert list_episodes(session, limit=9, task="unknown") == []
        assert sum_calls(session, "e3") == CallSums({"answered": 2, "arrived": 1}, 30, 6)
        assert (sum_calls(session, "e3").calls, sum_calls(session, "e2")) == (3, CallSums({}, 0, 0))
