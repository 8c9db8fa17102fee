"""What an outbox keeps of open episodes, and for how long."""

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.addons import outbox_episodes
from dragoman.addons.outbox import Outbox
from dragoman.addons.outbox_episodes import Here
from dragoman.store.records import CallInfo, EpisodeSpec
from tests.addons.test_outbox import STORE, answered, arrival, damage, episode, put


def deliver_all(outbox: Outbox) -> None:
    outbox.delivered([one.number for one in outbox.next_batch(1000, 10**9)])


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "o.db", STORE)


def test_an_open_episode_keeps_its_records_when_the_store_has_them(outbox: Outbox) -> None:
    outbox.episodes.remember("hash", episode(), opened=True)
    put(outbox, arrival("c1"), answered("c1"), arrival("c2"), arrival("x1", episode_id="e2"))
    deliver_all(outbox)
    here = outbox.episodes.read("e1")
    assert here.whole
    assert set(here.arrivals) == {"c1", "c2"}
    assert set(here.outcomes) == {"c1"}
    assert outbox.episodes.read("e2") == Here()
    outbox.close()


def test_an_episode_that_came_from_the_store_is_not_whole(outbox: Outbox, tmp_path: Path) -> None:
    outbox.episodes.remember("hash", episode())
    put(outbox, arrival("c1"))
    assert not outbox.episodes.read("e1").whole
    outbox.close()


def test_whole_or_not_is_remembered(outbox: Outbox, tmp_path: Path) -> None:
    outbox.episodes.remember("hash", episode(), opened=True)
    outbox.close()
    again = Outbox(tmp_path / "o.db", STORE)
    again.episodes.remember("hash", replace(episode(), reward=1.0))  # asked of the store again
    assert again.episodes.read("e1").whole
    again.close()


def test_an_ended_episode_leaves_nothing_but_what_waits(outbox: Outbox) -> None:
    outbox.episodes.remember("hash", episode(), opened=True)
    put(outbox, arrival("c1"), answered("c1"))
    deliver_all(outbox)
    put(outbox, arrival("c2"))
    outbox.episodes.forget("e1")
    assert outbox.episodes.find("hash") is None
    assert outbox.episodes.untidy
    outbox.episodes.tidy(5.0)
    assert not outbox.episodes.untidy
    assert outbox.state().kept_bytes == 0
    assert outbox.rows == 1
    put(outbox, answered("c2"))
    deliver_all(outbox)
    assert outbox.episodes.read("e1") == Here()
    outbox.episodes.remember("hash", replace(episode(), ended_at=5.0))
    assert outbox.episodes.find("hash") is None
    outbox.close()


def test_an_expired_episode_is_forgotten(outbox: Outbox) -> None:
    outbox.episodes.remember("hash", episode(expires_at=100.0), opened=True)
    put(outbox, arrival("c1"))
    deliver_all(outbox)
    outbox.episodes.tidy(99.0)
    assert outbox.episodes.find("hash") is not None
    outbox.episodes.tidy(100.0)
    assert outbox.episodes.find("hash") is None
    assert outbox.state().kept_bytes == 0
    outbox.close()


def test_the_quietest_episodes_give_way(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("e1", "e2", "e3"):
        outbox.episodes.remember(name * 8, episode(name), opened=True)
        put(outbox, arrival(f"{name}c", episode_id=name), answered(f"{name}c"))
    put(outbox, arrival("e1d", episode_id="e1"))
    deliver_all(outbox)
    put(outbox, arrival("e2d", episode_id="e2"))  # waits, and stays
    size = outbox.state().kept_bytes
    monkeypatch.setattr(outbox_episodes, "KEPT_LIMIT", size - 1)
    outbox.episodes.tidy(5.0)
    second = outbox.episodes.read("e2")
    assert (second.whole, set(second.arrivals), set(second.outcomes)) == (False, {"e2d"}, set())
    assert outbox.episodes.read("e1").whole
    assert outbox.episodes.read("e3").whole
    assert outbox.episodes.find("e2" * 8) is not None  # its identity is still known
    outbox.close()


def test_too_many_episodes(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_episodes, "EPISODES_KEPT", 2)
    for name in ("e1", "e2", "e3"):
        outbox.episodes.remember(name, episode(name))
    outbox.episodes.tidy(5.0)
    assert [outbox.episodes.find(name) is not None for name in ("e1", "e2", "e3")] == [False, True, True]
    outbox.close()


def test_a_damaged_record_makes_an_episode_less_than_whole(outbox: Outbox, tmp_path: Path) -> None:
    outbox.episodes.remember("hash", episode(), opened=True)
    put(outbox, arrival("c1"), answered("c1"))
    outbox.close()
    damage(tmp_path / "o.db", 2)
    again = Outbox(tmp_path / "o.db", STORE)
    here = again.episodes.read("e1")
    assert (here.whole, set(here.arrivals), set(here.outcomes)) == (False, {"c1"}, set())
    again.close()


def test_an_identity_of_another_version_is_passed_over(outbox: Outbox, tmp_path: Path) -> None:
    outbox.episodes.remember("hash", replace(episode(), spec=EpisodeSpec(task="t")))
    with outbox._file.writing() as db:
        db.execute("UPDATE episodes SET info = replace(info, 'task', 'colour')")
    outbox.close()
    again = Outbox(tmp_path / "o.db", STORE)
    assert again.episodes.find("hash") is None
    again.close()


def test_what_is_here_goes_over_what_is_stored() -> None:
    here = Here({"c2": arrival("c2", 11.0), "c3": arrival("c3", 12.0)}, {"c1": answered("c1"), "c2": answered("c2")})
    stored = [CallInfo(arrival("c1"), None), CallInfo(arrival("c2", 11.0), None)]
    merged = here.over(stored)
    assert [call.arrival.id for call in merged] == ["c1", "c2", "c3"]
    assert [call.outcome is not None for call in merged] == [True, True, False]
