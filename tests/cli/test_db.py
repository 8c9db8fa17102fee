"""``dragoman db``: what it says of a store, and the exit codes."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command

from dragoman.store import schema
from dragoman.store.database import Database

HEAD = schema.HEAD


def test_upgrade_says_from_which_revision_to_which(run: Callable[..., Any], store_url: str) -> None:
    first = run("db", "upgrade", "--store", store_url)
    again = run("db", "upgrade", "--store", store_url)
    database = Database.open(store_url)
    with database.session() as session:
        command.downgrade(schema.alembic_config(session.connection()), "0001")
    third = run("db", "upgrade", "--store", store_url)

    assert [result.code for result in (first, again, third)] == [0, 0, 0]
    assert first.out == f"{database.url}: schema {HEAD}, new\n"
    assert again.out == f"{database.url}: schema {HEAD} already, which is the newest; nothing to do\n"
    assert third.out == f"{database.url}: schema 0001 → {HEAD}\n"
    with database.reading() as session:
        assert schema.current_revision(session.connection()) == HEAD
    database.close()


def test_upgrade_refuses_the_schema_of_a_newer_dragoman(run: Callable[..., Any], filled_store: str) -> None:
    with sqlite3.connect(filled_store.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()

    result = run("db", "upgrade")

    assert result.code == 1
    assert "has schema '9999', which this Dragoman does not know" in result.err


def test_downgrade_goes_back_or_says_what_would_be_lost(run: Callable[..., Any], filled_store: str) -> None:
    assert run("db", "downgrade", "0003").out == f"schema {HEAD} → 0003\n"
    assert f"schema 0003 → {HEAD}" in run("db", "upgrade").out
    assert json.loads(run("db", "check", "--json").out)["whole"]

    with sqlite3.connect(filled_store.removeprefix("sqlite:///")) as connection:
        connection.execute("INSERT INTO reply_states VALUES ('call0000000000000003', '{}')")
    connection.close()
    lost = run("db", "downgrade", "0001")
    assert (lost.code, "schema 0002 has no place for what is in the table reply_states (1 row)" in lost.err) == (
        1,
        True,
    )
    assert "nothing to do" in run("db", "upgrade").out
    odd = run("db", "downgrade", "0009")
    assert (odd.code, f"'0009' is no schema before '{HEAD}'" in odd.err) == (1, True)


def test_downgrade_makes_no_store(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("db", "downgrade", "0001", "--store", f"sqlite:///{tmp_path}/none.db")
    assert (result.code, "none.db is not there" in result.err, list(tmp_path.glob("none*"))) == (1, True, [])


def test_check_of_a_whole_store(run: Callable[..., Any], filled_store: str) -> None:
    result = run("db", "check")

    assert result.code == 0
    assert result.out == f"{filled_store}: 2 episodes, 4 calls, 3 blobs read\nIt is whole.\n"
    shown = json.loads(run("db", "check", "--json").out)
    whole = {"episodes": 2, "calls": 4, "blobs": 3, "problems": [], "whole": True, "store": filled_store}
    assert shown == whole


def test_check_names_the_call_that_is_damaged(run: Callable[..., Any], filled_store: str) -> None:
    with sqlite3.connect(filled_store.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE calls SET logprobs = x'01' WHERE id = 'call0000000000000003'")
    connection.close()

    result, shown = run("db", "check"), run("db", "check", "--json")

    assert (result.code, shown.code) == (1, 1)
    assert "It is damaged:\n- call 'call0000000000000003' cannot be read: packed value is damaged" in result.out
    assert not json.loads(shown.out)["whole"]


def test_stats(run: Callable[..., Any], filled_store: str) -> None:
    shown = json.loads(run("db", "stats", "--json").out)
    result = run("db", "stats")

    assert {name: table["rows"] for name, table in shown["tables"].items()} == {
        "artefacts": 0,
        "blobs": 3,
        "calls": 4,
        "credentials": 2,
        "episodes": 2,
        "groups": 1,
        "leases": 0,
        "policies": 0,
        "policy_loads": 0,
        "reply_states": 0,
        "rewards": 1,
        "tasks": 1,
    }
    assert (shown["prompt_tokens"], shown["stored_prompt_tokens"], shown["completion_tokens"]) == (6, 6, 4)
    assert shown["bytes_per_token"] == shown["bytes"] / 10
    assert shown["episodes"] == {"open": 1, "completed": 1}
    assert (shown["oldest"], shown["newest"]) == (999.0, 999.0)
    assert result.code == 0
    lines = {line[:13].strip(): line[14:] for line in result.out.splitlines()}
    assert lines["tokens"].startswith("10 stored = 6 of prompts + 4 sampled, in ")
    assert lines["episodes"] == "1 open, 1 completed"
    assert lines["database"] == filled_store


def test_stats_of_an_empty_store(run: Callable[..., Any], store_url: str) -> None:
    run("db", "upgrade", "--store", store_url)

    result = run("db", "stats", "--store", store_url)

    assert result.code == 0
    assert "episodes      none\nopened        -\n" in result.out


@pytest.mark.parametrize("what", ["check", "stats"])
def test_looking_makes_no_store(run: Callable[..., Any], state: Path, what: str) -> None:
    result = run("db", what)

    assert result.code == 1
    assert "there is no database at" in result.err
    assert not (state / "dragoman.db").exists()
