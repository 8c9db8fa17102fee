"""Pruning takes whole episodes and only those, leaves the store whole, and nothing of them behind."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.orm import Session

from dragoman.store.artefacts import write_artefacts
from dragoman.store.calls import read_messages, write_arrivals, write_outcomes
from dragoman.store.check import check
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode, set_reward
from dragoman.store.errors import EpisodeNotFound
from dragoman.store.leases import consume
from dragoman.store.models import Base, Episode, Group, StoredBlob
from dragoman.store.packing import digest
from dragoman.store.prune import (
    Rule,
    delete_episode,
    delete_old,
    delete_orphans,
    describe,
    empty_log,
    find_old,
    give_back_space,
)
from dragoman.store.records import Artefact, Blob, CallArrival, EpisodeSpec
from tests.store_calls import Episode as Calls
from tests.store_calls import write_episode

MARK = "zq7xMARKEDxq7z"


def blob(words: str) -> Blob:
    return Blob(digest(words.encode()), words.encode())


SHARED = blob('"everybody sends this"')


def add(
    database: Database, name: str, *, ended: float | None = None, reward: float | None = None, task: str | None = "t"
) -> None:
    """An episode of two calls and an artefact, with a message of its own and one that all share."""
    calls = Calls(name)
    calls.add(f"{name}a", [1, 2], [3], messages=(SHARED, blob(f'"of {name}"')), state={"of": name})
    calls.add(f"{name}b", [1, 2, 3, 4], [5], parent=f"{name}a", reply=blob(f'"reply to {name}"'))
    with database.session() as session:
        write_episode(session, calls, task=task, group=task and f"group of {name}")
        write_artefacts(session, name, [Artefact("out", "text/plain", b"abc")], now=2.0)
        if reward is not None:
            set_reward(session, name, reward, components=None, now=3.0)
        if ended is not None:
            end_episode(session, name, "completed", reason=None, now=ended)


def found(database: Database, rule: Rule) -> list[str]:
    with database.reading() as session:
        return [doomed.id for doomed in find_old(session, rule)]


def left(database: Database) -> set[str]:
    with database.reading() as session:
        assert check(session).problems == ()
        return set(session.scalars(select(Episode.id)))


def rows(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return {name: session.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in TABLES}


TABLES = tuple(Base.metadata.tables)


def test_only_episodes_that_ended_before_are_old(database: Database) -> None:
    add(database, "new", ended=50.0)
    add(database, "old", ended=20.0)
    add(database, "older", ended=10.0, task=None)
    add(database, "open")

    assert found(database, Rule(ended_before=50.0)) == ["older", "old"]
    assert found(database, Rule(ended_before=10.0)) == []


def test_the_best_of_each_task_are_kept(database: Database) -> None:
    for name, reward, task in (
        ("a1", 0.1, "a"),
        ("a2", 0.9, "a"),
        ("a3", 0.5, "a"),
        ("a4", None, "a"),
        ("b1", -1.0, "b"),
        ("none", 1.0, None),
    ):
        add(database, name, ended=10.0, reward=reward, task=task)
    add(database, "aopen", reward=5.0, task="a")  # an open one is no best one yet, and is kept anyway

    assert set(found(database, Rule(20.0, keep_best=1))) == {"a1", "a3", "a4", "none"}
    assert set(found(database, Rule(20.0, keep_best=2))) == {"a1", "a4", "none"}
    assert set(found(database, Rule(20.0, keep_best=9))) == {"a4", "none"}
    assert len(found(database, Rule(20.0))) == 6
    with pytest.raises(ValueError, match="keep_best is -1"):
        found(database, Rule(20.0, keep_best=-1))


def test_of_two_equally_good_ones_the_newer_is_kept(database: Database) -> None:
    add(database, "second", ended=11.0, reward=1.0)
    add(database, "first", ended=10.0, reward=1.0)

    assert found(database, Rule(20.0, keep_best=1)) == ["first"]


def test_the_best_may_be_a_new_one(database: Database) -> None:
    add(database, "old", ended=10.0, reward=0.5)
    add(database, "new", ended=90.0, reward=1.0)

    assert found(database, Rule(20.0, keep_best=1)) == ["old"]


def test_an_episode_is_described_with_what_it_holds(database: Database) -> None:
    add(database, "e1", ended=10.0, reward=0.5)
    add(database, "e2", task=None)

    with database.reading() as session:
        one, two = describe(session, ["e1", "e2"])
        assert (one.task, one.opened_at, one.end, one.reward, one.calls) == ("t", 1.0, "completed", 0.5, 2)
        assert (two.task, two.end, two.reward) == (None, None, None)
        assert one.bytes == two.bytes > 0
        with pytest.raises(EpisodeNotFound, match="'e9'"):
            describe(session, ["e1", "e9"])


def test_a_deleted_episode_takes_all_of_its_own_and_nothing_else(database: Database) -> None:
    add(database, "stays", ended=10.0)
    before = rows(database)
    add(database, "goes", ended=10.0, reward=1.0, task="other")
    with database.session() as session:
        (group,) = session.scalars(select(Group.row).where(Group.name == "group of goes"))
        consume(session, "run", [group], holder="h", now=11.0, step=1)

    with database.session() as session:
        assert delete_old(session, Rule(20.0), ["goes", "gone already"]) == ["goes"]
    with database.session() as session:
        orphans = delete_orphans(session)

    assert (orphans.blobs, orphans.groups, orphans.tasks) == (2, 1, 1)
    assert rows(database) == before
    assert left(database) == {"stays"}
    with database.reading() as session:
        assert read_messages(session, "staysa") == [SHARED.data, b'"of stays"']


def test_nothing_is_left_of_the_last_one(database: Database) -> None:
    add(database, "e1")

    with database.session() as session:
        assert delete_episode(session, "e1")
        assert not delete_episode(session, "e1")
        delete_orphans(session)

    assert set(rows(database).values()) == {0}


def test_an_episode_that_has_become_good_or_is_open_is_not_deleted_by_a_rule(database: Database) -> None:
    add(database, "better", ended=10.0, reward=0.1)
    add(database, "best", ended=10.0, reward=0.5)
    add(database, "open")
    rule = Rule(20.0, keep_best=1)
    assert found(database, rule) == ["better"]
    with database.session() as session:
        set_reward(session, "better", 1.0, components=None, now=30.0)

    with database.session() as session:
        assert delete_old(session, rule, ["better", "open"]) == []

    assert left(database) == {"better", "best", "open"}


@pytest.mark.parametrize("finished", [True, False])
def test_nothing_of_a_deleted_episode_is_left_in_the_files(database: Database, store_url: str, finished: bool) -> None:
    """Token arrays and long texts are compressed, so the mark stands where text stands as it is."""
    calls = Calls("goes")
    calls.add("goesa", [1], [2], messages=(blob(f'"{MARK} 1"'),), error_message=f"{MARK} 2", state={"is": f"{MARK} 3"})
    calls.add("goesb", [1, 2, 5], [6], parent="goesa", model=f"{MARK} 4", reply=blob(f'"{MARK} 5"' + "x" * 9000))
    add(database, "stays")
    with database.session() as session:
        write_episode(session, calls, task=f"{MARK} 6", group=f"{MARK} 7")
        write_artefacts(session, "goes", [Artefact("out", "text/plain", f"{MARK} 8".encode())], now=2.0)
        end_episode(session, "goes", "failed", reason=f"{MARK} 9", now=3.0)
    assert MARK.encode() in everything(database, store_url)

    with database.session() as session:
        delete_old(session, Rule(10.0), ["goes"])
        delete_orphans(session)
    if finished:
        give_back_space(database)
        assert empty_log(database)

    assert left(database) == {"stays"}
    if finished or make_url(store_url).get_backend_name() != "sqlite":
        assert MARK.encode() not in everything(database, store_url)
    else:  # so the test can fail
        assert MARK.encode() in everything(database, store_url)


def everything(database: Database, store_url: str) -> bytes:
    """The bytes of SQLite's files; of PostgreSQL, every row as text."""
    url = make_url(store_url)
    if url.get_backend_name() == "sqlite" and url.database is not None:
        return b"".join(file.read_bytes() for file in sorted(Path(url.database).parent.iterdir()))
    with database.reading() as session:
        values = [str(row) for name in TABLES for row in session.execute(text(f"SELECT * FROM {name}"))]
    return " ".join(values).encode()


def test_the_file_becomes_smaller(database: Database, store_url: str) -> None:
    file = make_url(store_url).database
    if make_url(store_url).get_backend_name() != "sqlite" or file is None:
        pytest.skip("PostgreSQL keeps the room for new rows")
    calls = Calls("big")
    calls.add("biga", range(50_000), [1])
    add(database, "stays")
    with database.session() as session:
        write_episode(session, calls)
    empty_log(database)
    before = Path(file).stat().st_size

    with database.session() as session:
        delete_episode(session, "big")
    give_back_space(database)
    empty_log(database)

    assert Path(file).stat().st_size < before - 50_000


def test_a_reader_keeps_the_log_from_being_emptied(
    database: Database, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if make_url(store_url).get_backend_name() != "sqlite":
        pytest.skip("only SQLite has such a log")
    monkeypatch.setattr("dragoman.store.database.BUSY_SECONDS", 0.0)
    impatient = Database.open(store_url)
    with database.reading() as reader:
        reader.execute(select(Episode.id)).all()
        add(impatient, "e1")
        assert not empty_log(impatient)
    assert empty_log(impatient)
    impatient.close()


def test_a_writer_that_relies_on_a_row_is_waited_for(database: Database, store_url: str) -> None:
    """Without the lock, the pruner would delete a blob that a call not yet committed refers to."""
    if make_url(store_url).get_backend_name() == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    add(database, "e1")
    add(database, "goes", ended=10.0)
    orphan = blob('"of goes"')
    with database.session() as session:
        delete_old(session, Rule(20.0), ["goes"])  # its messages are orphans now
    calls = Calls("e1")
    calls.add("late", [1], [2], messages=(orphan,))
    pruned = threading.Event()

    def prune() -> None:
        with database.session() as session:
            delete_orphans(session)
        pruned.set()

    thread = threading.Thread(target=prune)
    with database.session() as session:
        write(session, calls)
        thread.start()
        waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        while not session.execute(waiting).scalar() and not pruned.is_set():
            pass
        assert not pruned.is_set()
    thread.join()

    assert left(database) == {"e1"}
    with database.reading() as session:
        assert read_messages(session, "late") == [orphan.data]
        digests: Sequence[bytes] = session.scalars(select(StoredBlob.digest)).all()
        assert blob('"reply to goes"').digest not in digests


def write(session: Session, calls: Calls) -> None:
    assert write_arrivals(session, [call.arrival for call in calls.calls]) == [None]
    assert write_outcomes(session, [call.outcome for call in calls.calls if call.outcome]) == [None]


def test_a_call_for_a_deleted_episode_is_refused_alone(database: Database) -> None:
    add(database, "goes", ended=10.0)
    with database.session() as session:
        delete_episode(session, "goes")
        token_hash = digest(b"next").hex() * 2
        open_episode(session, EpisodeSpec(), episode_id="next", token_hash=token_hash, now=1.0, expires_at=9.0)

    with database.session() as session:
        late, good = (CallArrival(f"x{n}", n, "anthropic", "/v1/messages", 20.0) for n in ("goes", "next"))
        answers = write_arrivals(session, [late, good])

    assert (str(answers[0]), answers[1]) == ("call 'xgoes': there is no episode 'goes'", None)
