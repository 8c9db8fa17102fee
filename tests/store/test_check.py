"""A whole store is found whole, and every sort of damage is found and named by its call."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text

from dragoman.store.artefacts import write_artefacts
from dragoman.store.check import check
from dragoman.store.database import Database
from dragoman.store.packing import digest, pack_ids, pack_logprobs, pack_text
from dragoman.store.records import Artefact, Blob
from tests.store_calls import Episode, write_episode

FIRST, SECOND, REPLY = (Blob(digest(data), data) for data in (b'{"m":1}', b'{"m":2}', b'{"r":1}'))


@pytest.fixture
def filled(database: Database) -> Database:
    """Episode ``e1`` with the calls ``a``, ``b`` (goes on from ``a``) and ``no``; ``e2`` with the call ``x``."""
    one, two = Episode("e1"), Episode("e2")
    one.add("a", [1, 2, 3], [11, 12], messages=(FIRST,), reply=REPLY)
    more: dict[str, Any] = {"messages": (SECOND,), "messages_kept": 1, "sampling_asked": {"top_p": 1}}
    one.add("b", [*one.stream("a"), 4], [13, 14, 15], parent="a", **more)
    one.end("no", "refused", messages=(FIRST,))
    two.add("x", [7], [8], tools=REPLY)
    with database.session() as session:
        write_episode(session, one)
        write_episode(session, two, opened_at=2.0)
        write_artefacts(session, "e1", [Artefact("out", "text/plain", b"hello")], now=3.0)
    return database


def damage(database: Database, statement: str, **values: object) -> None:
    """Run a statement with foreign keys unenforced, as a tool that knows nothing of them would."""
    with database.outside_transactions() as connection:
        enforce(connection, False)
        connection.execute(text(statement), values)
        enforce(connection, True)


def enforce(connection: Connection, on: bool) -> None:
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}"))
    else:
        connection.execute(text(f"SET session_replication_role = {'origin' if on else 'replica'}"))


def problems(database: Database) -> list[str]:
    with database.reading() as session:
        return list(check(session).problems)


def test_a_whole_store(filled: Database) -> None:
    with filled.reading() as session:
        found = check(session)

    assert found.problems == ()
    assert (found.episodes, found.calls, found.blobs) == (2, 4, 3)


def test_an_empty_store(database: Database) -> None:
    assert problems(database) == []


@pytest.mark.parametrize(
    ("statement", "values", "said"),
    [
        pytest.param("DELETE FROM blobs WHERE digest = :d", {"d": SECOND.digest}, "call 'b' has no blob", id="message"),
        pytest.param("DELETE FROM blobs WHERE digest = :d", {"d": REPLY.digest}, "call 'x' has no blob", id="tools"),
        pytest.param(
            "UPDATE blobs SET data = :v WHERE digest = :d",
            {"v": pack_text(b"other"), "d": FIRST.digest},
            "call 'no' needs blob",
            id="another blob",
        ),
        pytest.param(
            "UPDATE blobs SET data = :v WHERE digest = :d",
            {"v": b"\1junk", "d": FIRST.digest},
            f"blob {FIRST.digest.hex()} cannot be read: packed value is damaged",
            id="blob that is no blob",
        ),
        pytest.param(
            "UPDATE calls SET messages = :v WHERE id = 'b'", {"v": b"x" * 17}, "call 'b' has 17 bytes", id="digests"
        ),
        pytest.param(
            "UPDATE calls SET messages_kept = 3 WHERE id = 'b'", {}, "call 'b' keeps 3 messages", id="messages_kept"
        ),
        pytest.param(
            "UPDATE calls SET prompt_ids = :v WHERE id = 'a'",
            {"v": b"\1junk"},
            "call 'a' cannot be read: packed value is damaged",
            id="prompt_ids",
        ),
        pytest.param(
            "UPDATE calls SET completion_ids = :v WHERE id = 'b'",
            {"v": pack_ids([13])},
            "call 'b' cannot be read: completion_ids holds 1 values instead of 3",
            id="fewer ids",
        ),
        pytest.param(
            "UPDATE calls SET logprobs = :v WHERE id = 'x'",
            {"v": pack_logprobs([-1.0, -2.0])},
            "call 'x' cannot be read: logprobs holds 2 values instead of 1",
            id="more logprobs",
        ),
        pytest.param(
            "UPDATE calls SET parent_id = 'gone' WHERE id = 'b'",
            {},
            "call 'b' has the parent_id 'gone', which is not in calls",
            id="no parent",
        ),
        pytest.param(
            "UPDATE calls SET parent_id = 'x' WHERE id = 'b'",
            {},
            "call 'b': its parent 'x' is not among the calls of its episode",
            id="parent elsewhere",
        ),
        pytest.param(
            "UPDATE calls SET episode_id = 'e9' WHERE id = 'x'",
            {},
            "call 'x' has the episode_id 'e9', which is not in episodes",
            id="no episode",
        ),
        pytest.param(
            "UPDATE calls SET shared_len = 4, prompt_len = 5 WHERE id = 'b'",
            {},
            "call 'b' keeps 4 of the 5 tokens of its parent 'a', but names no fork reason",
            id="ledger",
        ),
        pytest.param("UPDATE calls SET status = 'lost' WHERE id = 'no'", {}, "4 calls", id="status"),
        pytest.param("DELETE FROM credentials WHERE episode_id = 'e2'", {}, "episode 'e2' has no credential", id="key"),
        pytest.param(
            "UPDATE artefacts SET size = 4", {}, "artefact 'out' of episode 'e1' has 5 bytes instead of 4", id="size"
        ),
        pytest.param(
            "UPDATE artefacts SET data = :v",
            {"v": b"\2"},
            "artefact 'out' of episode 'e1' cannot be read: packed value has format 2",
            id="artefact",
        ),
    ],
)
def test_damage_is_named(filled: Database, statement: str, values: dict[str, object], said: str) -> None:
    damage(filled, statement, **values)

    found = problems(filled)

    if said == "4 calls":
        assert found == ["3 calls arrived, but 2 have ended in a known way and 0 are open"]
    else:
        assert any(problem.startswith(said) for problem in found), found


def test_one_damaged_row_hides_no_other(filled: Database, store_url: str) -> None:
    if make_url(store_url).get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL stores no JSON that is none")
    damage(filled, "UPDATE calls SET sampling_asked = '{' WHERE id = 'b'")
    damage(filled, "UPDATE calls SET logprobs = :v WHERE id IN ('a', 'x')", v=b"")

    found = problems(filled)

    names = {name: [problem for problem in found if problem.startswith(f"call '{name}' cannot")] for name in "abx"}
    assert {name: len(of_call) for name, of_call in names.items()} == {"a": 1, "b": 1, "x": 1}
    assert len(found) == 3


def test_sqlite_says_what_it_finds_wrong_with_its_file(filled: Database, store_url: str) -> None:
    url = make_url(store_url)
    if url.get_backend_name() != "sqlite" or url.database is None:
        pytest.skip("only SQLite is asked")
    with filled.reading() as session:
        page = session.scalar(text("SELECT rootpage FROM sqlite_schema WHERE name = 'ix_episodes_opened_at'"))
        size = session.scalar(text("PRAGMA page_size"))
    filled.close()  # which writes the log into the file
    with Path(url.database).open("r+b") as file:
        file.seek((page - 1) * size + 3)  # how many entries the index has: one is lost
        file.write(b"\0\1")
    again = Database.open(store_url)

    found = problems(again)

    again.close()
    assert any(problem.startswith("SQLite's integrity check says: ") for problem in found), found
