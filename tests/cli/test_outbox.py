"""``dragoman outbox``, and what ``dragoman doctor`` says of one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.addons.outbox import Outbox
from dragoman.cli.checks import check_outbox
from dragoman.cli.outbox import lines
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from tests.addons.test_outbox import STORE, answered, arrival, put
from tests.addons.test_recorder import open_one


def filled(state: Path) -> Path:
    """An outbox with a call that waits, and one that was set aside, and no gateway."""
    state.mkdir(exist_ok=True)
    outbox = Outbox(state / "outbox.db", STORE)
    put(outbox, arrival("c1"), answered("c1"), arrival("c2", episode_id="e9"))
    outbox.set_aside(3, "there is no episode 'e9'", 5.0)
    outbox.close()
    return state / "outbox.db"


def test_what_waits_and_what_was_set_aside(run: Callable[..., Any], state: Path) -> None:
    path = filled(state)
    shown = run("outbox")
    assert shown.code == 0
    assert f"{path}, for {STORE}: 2 records wait (0.0 MB), the oldest for " in shown.out
    assert "  arrival of call c2 (episode e9): there is no episode 'e9'" in shown.out
    assert "dragoman outbox --retry" in shown.out
    found = json.loads(run("outbox", "--json").out)
    assert (found["records"], found["store"], [one["call_id"] for one in found["set_aside"]]) == (2, STORE, ["c2"])


def test_trying_again(run: Callable[..., Any], state: Path) -> None:
    path = filled(state)
    result = run("outbox", "--retry")
    assert "1 records wait for the store again" in result.err
    assert "3 records wait" in result.out
    holder = Outbox(path, STORE)
    refused = run("outbox", "--retry")
    assert refused.code == 1
    assert "belongs to another gateway that runs" in refused.err
    assert run("outbox").code == 0  # looking disturbs nobody
    holder.close()


def test_delivering_without_a_gateway(run: Callable[..., Any], state: Path, postgres_url: str) -> None:
    filled(state)
    assert "--deliver needs the store's URL" in run("outbox", "--deliver").err
    database = Database.open(postgres_url)
    open_one(database)
    result = run("outbox", "--deliver", "--store", postgres_url)
    assert result.code == 0, result.err
    assert "nothing waits" in result.out
    with database.reading() as session:
        (call,) = read_calls(session, "e1")
    assert call.outcome is not None
    assert call.outcome.status == "answered"
    database.close()


def test_there_is_none(run: Callable[..., Any]) -> None:
    result = run("outbox")
    assert result.code == 1
    assert "a gateway makes one when its store is PostgreSQL" in result.err


def test_a_long_list_is_cut(state: Path) -> None:
    state.mkdir()
    outbox = Outbox(state / "outbox.db", STORE)
    put(outbox, *(arrival(f"c{n}") for n in range(25)))
    for n in range(25):
        outbox.set_aside(n + 1, "no", 5.0)
    said = lines(outbox.state(), outbox.set_asides(), STORE, 10.0)
    assert "  and 5 more (--json lists them)" in said
    outbox.close()


def test_doctor(run: Callable[..., Any], state: Path) -> None:
    assert check_outbox(state / "outbox.db", 10.0) == []
    state.mkdir()
    outbox = Outbox(state / "outbox.db", STORE)
    (check,) = check_outbox(state / "outbox.db", 10.0)
    assert check.ok is True
    assert "nothing waits" in check.found
    put(outbox, arrival("c1"))
    oldest = outbox.state().oldest_at
    assert oldest is not None
    (young,), (old,) = (check_outbox(state / "outbox.db", oldest + age) for age in (5.0, 100.0))
    assert young.ok is True
    assert old.ok is False
    assert "1 records wait (0.0 MB), the oldest for 100 s" in old.found
    outbox.set_aside(1, "no", 5.0)
    (refused,) = check_outbox(state / "outbox.db", oldest)
    assert refused.ok is False
    assert "1 were set aside, the first of call c1: no" in refused.found
    outbox.close()
    (state / "outbox.db").write_bytes(b"something else" * 100)
    (broken,) = check_outbox(state / "outbox.db", oldest)
    assert broken.ok is False
