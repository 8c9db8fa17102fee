"""Every earlier schema, with data in it as that version wrote it, becomes the newest one with nothing changed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, text

from dragoman.store import database as database_module
from dragoman.store import schema
from dragoman.store.artefacts import read_artefact
from dragoman.store.calls import full_prompt, read_calls, read_messages, read_state
from dragoman.store.check import check
from dragoman.store.database import Database, downgrade
from dragoman.store.episodes import find_by_token, get_episode
from dragoman.store.errors import DataWouldBeLost, StoreUnavailable
from dragoman.store.groups import GroupCounts
from dragoman.store.leases import count_groups
from dragoman.store.ledger import audit
from dragoman.store.packing import digest, pack_ids, pack_logprobs, pack_text
from dragoman.store.policies import version_numbers
from dragoman.store.records import EpisodeSpec

REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""A new migration adds its revision, and to ``write`` the rows of its tables. It never changes what stands there."""

Row = dict[str, Any]
MESSAGE = b'{"role":"user","parts":[]}'
REPLY = b'{"role":"assistant","parts":[]}'


def call(call_id: str, row: int, **more: Any) -> Row:
    return {
        "row": row,
        "id": call_id,
        "episode_id": "episode00001",
        "status": "answered",
        "provider": "anthropic",
        "path": "/v1/messages",
        "arrived_at": 10.0 + row,
        "kind": "main",
        "finished_at": 20.0 + row,
        "http_status": 200,
        **more,
    }


def write(revision: str) -> Iterator[tuple[str, Row]]:
    """Table and row, in an order that foreign keys allow: what a Dragoman of that schema may have stored."""
    yield "tasks", {"row": 1, "name": "fix it"}
    completed = {"completed_at": 55.0} if revision >= "0004" else {}
    yield "groups", {"row": 1, "task_row": 1, "name": "g", "expected": 1, "deadline": 9000.0, **completed}
    yield (
        "episodes",
        {
            "row": 1,
            "id": "episode00001",
            "group_row": 1,
            "profile": "train",
            "temperature": 0.75,
            "metadata": json.dumps({"repo": "a"}),
            "opened_at": 10.0,
            "ended_at": 50.0,
            "end": "completed",
            "end_reason": None,
            "reward": 0.5,
        },
    )
    yield "credentials", {"token_hash": "ab" * 32, "episode_id": "episode00001", "expires_at": 9000.0}
    yield "rewards", {"row": 1, "episode_id": "episode00001", "reward": 0.5, "components": '{"a":0.5}', "set_at": 49.0}
    for data in (MESSAGE, REPLY):
        yield "blobs", {"digest": digest(data), "data": pack_text(data)}
    sampled = {
        "completion_ids": pack_ids([7, 8]),
        "completion_len": 2,
        "logprobs": pack_logprobs([-0.5, -1.5]),
        "policy_spans": json.dumps([["base", 0, 2]]),
        "finish_reason": "stop",
        "stream": True,
        "constrained": False,
        "reply": digest(REPLY),
    }
    first = {"prompt_ids": pack_ids([1, 2, 3]), "prompt_len": 3, "shared_len": 0, "messages": digest(MESSAGE)}
    yield "calls", call("first", 1, **first, **sampled)
    second = {"parent_id": "first", "prompt_ids": pack_ids([4]), "prompt_len": 6, "shared_len": 5, "messages_kept": 1}
    yield "calls", call("second", 2, **second, **sampled, messages=digest(REPLY) + digest(MESSAGE))
    yield "calls", call("open", 3, status="arrived", http_status=None, finished_at=None)
    looked_at = {"error_code": "observed"} if revision < "0004" else {"status": "observed"}
    yield "calls", call("looked", 4, messages=digest(MESSAGE), reply=digest(REPLY), **looked_at)
    yield "calls", call("refused", 5, status="refused", http_status=400, error_code="invalid", error_message="no")
    if revision >= "0002":
        yield (
            "artefacts",
            {
                "row": 1,
                "episode_id": "episode00001",
                "name": "out",
                "content_type": "text/plain",
                "size": 3,
                "omitted": 0,
                "stored_at": 50.0,
                "data": pack_text(b"abc"),
            },
        )
    if revision >= "0003":
        yield "reply_states", {"call_id": "first", "state": '{"of":"first"}'}
    if revision >= "0004":
        lease = {"group_row": 1, "consumer": "run", "state": "consumed", "holder": "h", "step": 3, "at": 60.0}
        yield "leases", lease
    if revision >= "0005":
        policy = {"number": 1, "kind": "lora", "path": "/p", "metrics": '{"loss":0.5}', "created_at": 70.0}
        yield "policies", policy
        yield "policy_loads", {"row": 1, "policy": 1, "engine": "http://e", "status": "serving", "at": 71.0}


@contextmanager
def migrating(url: str) -> Iterator[Engine]:
    parsed = database_module._read_url(url)
    if parsed.get_backend_name() == "sqlite":
        database_module._create_file(parsed)
    engine = database_module._make_engine(parsed, fsync=False, migrating=True)
    yield engine
    engine.dispose()


def fill(url: str, revision: str) -> dict[str, list[Row]]:
    """A store of that schema with data in it; what it holds."""
    with migrating(url) as engine, engine.begin() as connection:
        command.upgrade(schema.alembic_config(connection), revision)
        for table, row in write(revision):
            columns, values = ", ".join(f'"{name}"' for name in row), ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)
        if connection.dialect.name == "postgresql":  # the rows above numbered themselves
            for table in {table for table, row in write(revision) if "row" in row}:
                connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'row'), 100)"))
        return dump(connection, sorted({table for table, _ in write(revision)}))


def dump(connection: Connection, tables: list[str]) -> dict[str, list[Row]]:
    return {
        table: [dict(row._mapping) for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1"))]
        for table in tables
    }


def holds(url: str, tables: list[str]) -> dict[str, list[Row]]:
    with migrating(url) as engine, engine.connect() as connection:
        return dump(connection, tables)


def test_every_revision_is_tried(database: Database) -> None:
    assert REVISIONS[-1] == schema.HEAD


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_earlier_store_is_upgraded_with_all_of_its_data(store_url: str, revision: str) -> None:
    before = fill(store_url, revision)
    if revision < "0004":
        for row in before["calls"]:
            if row["error_code"] == "observed":
                row |= {"status": "observed", "error_code": None}

    database = Database.open(store_url)

    after = holds(store_url, list(before))
    for table, rows in before.items():
        assert [{name: row[name] for name in rows[0]} for row in after[table]] == rows, table
    with database.reading() as session:
        assert schema.current_revision(session.connection()) == schema.HEAD
        assert check(session).problems == ()
        episode = get_episode(session, "episode00001")
        assert episode == find_by_token(session, "ab" * 32)
        assert episode.spec == EpisodeSpec("fix it", "g", 1, 9000.0, "train", 0.75, {"repo": "a"})
        assert (episode.end, episode.reward) == ("completed", 0.5)
        calls = read_calls(session, "episode00001")
        assert [call.outcome and call.outcome.status for call in calls] == [
            *("answered", "answered", None, "observed", "refused")
        ]
        assert full_prompt(session, "second").tolist() == [1, 2, 3, 7, 8, 4]
        assert read_messages(session, "second") == [MESSAGE, REPLY, MESSAGE]
        outcome = calls[1].outcome
        assert outcome is not None
        assert outcome.logprobs is not None
        assert outcome.logprobs.tolist() == [-0.5, -1.5]
        assert (audit(calls).traced_tokens, audit(calls).observed) == (4, 1)
        if revision >= "0002":
            assert read_artefact(session, "episode00001", "out").data == b"abc"
        assert read_state(session, "first") == ({"of": "first"} if revision >= "0003" else None)
        consumed = int(revision >= "0004")
        assert count_groups(session, "run", 100.0) == GroupCounts(1 - consumed, 0, 0, consumed, 0)
        assert version_numbers(session) == ({"base": 0, "policy-v1": 1} if revision >= "0005" else {"base": 0})
    with database.session() as session:  # and it can be written: rows number themselves
        session.execute(text("INSERT INTO tasks (name) VALUES ('new')"))
    database.close()


LOST = {"0004": "policies", "0003": "leases", "0002": "reply_states", "0001": "artefacts"}
"""Revision → the table that stands in the way of going back to it from the next one."""


def test_going_back_is_refused_where_data_would_be_lost(store_url: str) -> None:
    before = fill(store_url, schema.HEAD)
    kept = [table for table in before if table not in (*LOST.values(), "policy_loads")]
    last = schema.HEAD
    for revision, table in LOST.items():
        for asked in (revision, "0001"):
            with pytest.raises(DataWouldBeLost, match=f"no place for what is in the table {table} "):
                downgrade(store_url, asked)
            assert holds(store_url, list(before)) == before
        delete(store_url, table)

        assert downgrade(store_url, revision) == last

        before = holds(store_url, [name for name in before if name not in (table, "policy_loads")])
        last = revision
    assert before["calls"][3]["error_code"] == "observed"
    Database.open(store_url).close()
    assert holds(store_url, kept)["episodes"] == before["episodes"]


def delete(url: str, table: str) -> None:
    with migrating(url) as engine, engine.begin() as connection:
        if table == "policies":
            connection.execute(text("DELETE FROM policy_loads"))
        connection.execute(text(f"DELETE FROM {table}"))


def test_the_first_schema_is_not_taken_away_from_episodes(store_url: str) -> None:
    fill(store_url, "0001")
    with (
        migrating(store_url) as engine,
        pytest.raises(DataWouldBeLost, match="table tasks"),
        engine.begin() as connection,
    ):
        command.downgrade(schema.alembic_config(connection), "base")
    Database.open(store_url).close()


def test_there_is_no_way_back_to_a_schema_that_is_not_older(database: Database, store_url: str) -> None:
    for revision in ("0009", schema.HEAD, "base"):
        with pytest.raises(ValueError, match=f"'{revision}' is no schema before '{schema.HEAD}'.*one of 0001, "):
            downgrade(store_url, revision)
    with database.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnavailable, match=r"schema '9999'.*Upgrade Dragoman"):
        downgrade(store_url, "0001")
