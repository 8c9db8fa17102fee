"""The drain: everything arrives once and in order, whatever the store and the outbox do meanwhile."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.addons import drain as drain_module
from dragoman.addons.delivery import deliver
from dragoman.addons.drain import Drain, drain_now
from dragoman.addons.outbox import Outbox
from dragoman.addons.record_bytes import Record
from dragoman.store.calls import read_call
from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallInfo
from tests.addons.test_outbox import STORE, damage, put
from tests.addons.test_recorder import answered, arrival, open_one, stored


class Switch:
    """Stands before ``deliver``: fails as often as it is told, and tells what was delivered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.failed = threading.Event()
        self.after_commit: Callable[[], None] = lambda: None
        self.seen: list[list[str]] = []
        monkeypatch.setattr(drain_module, "deliver", self.deliver)
        monkeypatch.setattr(drain_module, "FIRST_DELAY", 0.001)
        monkeypatch.setattr(drain_module, "LONGEST_DELAY", 0.001)

    def deliver(self, database: Database, records: Sequence[Record]) -> list[Exception | None]:
        if self.failures:
            self.failures -= 1
            self.failed.set()
            raise StoreUnavailable("the store is away")
        answers = deliver(database, records)
        self.seen.append([record.id for record in records])
        self.after_commit()
        return answers


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "o.db", STORE)
    yield opened
    opened.close()


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    return Switch(monkeypatch)


def drained(outbox: Outbox, database: Database, url: str | None = None) -> Drain:
    drain = Drain(outbox, database, url)
    drain.start()
    drain.close(grace=30)
    return drain


def reading(database: Database, call_id: str) -> CallInfo:
    with database.reading() as session:
        found = read_call(session, call_id)
    assert found is not None
    return found


def test_everything_arrives_once_and_in_order(outbox: Outbox, database: Database) -> None:
    open_one(database)
    for n in range(60):
        parent = {"parent_id": f"c{n - 1}", "shared_len": 3} if n else {}
        put(outbox, arrival(f"c{n}", 10.0 + n), answered(f"c{n}", **parent))
    drained(outbox, database)
    assert stored(database) == {f"c{n}": "answered" for n in range(60)}
    assert (outbox.rows, outbox.bytes, outbox.reached) == (0, 0, True)


def test_an_outage_is_waited_out_and_order_kept(
    outbox: Outbox, database: Database, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one(database)
    monkeypatch.setattr(drain_module, "ROWS", 4)
    switch.failures = 5
    drain = Drain(outbox, database, None)
    drain.start()
    put(outbox, arrival("c1"), answered("c1"))
    switch.failed.wait()
    put(outbox, *(arrival(f"d{n}") for n in range(10)))
    drain.close(grace=30)
    assert drain.last_error is None
    assert [name for batch in switch.seen for name in batch] == ["c1", "c1", *(f"d{n}" for n in range(10))]
    assert len(stored(database)) == 11


def test_closing_leaves_what_the_store_does_not_take(outbox: Outbox, database: Database, switch: Switch) -> None:
    switch.failures = 10**9
    put(outbox, arrival("c1"))
    drain = Drain(outbox, database, None)
    drain.start()
    switch.failed.wait()
    drain.close(grace=0)
    assert drain.last_error == "the store is away"
    assert outbox.rows == 1


def test_a_record_delivered_twice_is_stored_once(
    outbox: Outbox, database: Database, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one(database)
    put(outbox, arrival("c1"), answered("c1"))
    real, times = outbox.delivered, 0

    def delivered(numbers: Sequence[int]) -> None:
        nonlocal times
        times += 1
        if times <= 2:
            raise StoreUnavailable("the outbox's disk is full")
        real(numbers)

    monkeypatch.setattr(outbox, "delivered", delivered)
    drained(outbox, database)
    assert len(switch.seen) == 3
    assert stored(database) == {"c1": "answered"}
    assert outbox.rows == 0


def test_a_record_that_the_store_refuses_is_set_aside_and_its_call_ended(
    outbox: Outbox, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    open_one(database)
    put(outbox, arrival("c1"), arrival("c2"), arrival("c3", episode_id="e9"))
    put(outbox, answered("c1", parent_id="c0", shared_len=1), answered("c3"), answered("c2"))
    drained(outbox, database)
    assert stored(database) == {"c1": "failed", "c2": "answered"}
    outcome = reading(database, "c1").outcome
    assert outcome is not None
    assert (outcome.error_code, outcome.http_status) == ("set_aside", None)
    assert outcome.error_message == "call 'c1': its parent 'c0' is not in its episode"
    assert [(one.call_id, one.what) for one in outbox.set_asides()] == [
        ("c3", "arrival"),
        ("c1", "outcome"),
        ("c3", "outcome"),
    ]
    assert outbox.rows == 0
    assert "the outcome of call c1 cannot be stored and is set aside" in caplog.text


def test_a_damaged_record_is_set_aside_and_what_follows_it_says_why(tmp_path: Path, database: Database) -> None:
    open_one(database)
    outbox = Outbox(tmp_path / "o.db", STORE)
    put(outbox, arrival("c1"), answered("c1"), arrival("c2"), answered("c2", parent_id="c1", shared_len=3))
    put(outbox, arrival("c3"), answered("c3"))
    outbox.close()
    damage(tmp_path / "o.db", 2)
    outbox = Outbox(tmp_path / "o.db", STORE)
    drained(outbox, database)
    assert stored(database) == {"c1": "failed", "c2": "failed", "c3": "answered"}
    reasons = {one.call_id: one.reason for one in outbox.set_asides()}
    assert "damaged" in reasons["c1"]
    assert reasons["c2"] == "call 'c2': shared_len is 3, but its parent 'c1' has 0 tokens"
    outbox.close()


def test_what_was_set_aside_replaces_its_stand_in_when_the_store_takes_it(outbox: Outbox, database: Database) -> None:
    open_one(database)
    put(outbox, arrival("c0"), arrival("c1"), answered("c1", parent_id="c0", shared_len=2))
    drained(outbox, database)
    assert stored(database) == {"c0": "arrived", "c1": "failed"}
    put(outbox, answered("c0"))
    drained(outbox, database)
    assert outbox.retry() == 1
    waiting: list[int] = []
    drain_now(outbox, database, waiting.append)
    assert waiting == [0]
    assert stored(database) == {"c0": "answered", "c1": "answered"}


def test_a_store_that_was_never_opened_is_migrated_first(outbox: Outbox, postgres_url: str) -> None:
    database = Database.later(postgres_url)
    put(outbox, arrival("c1"))
    drained(outbox, database, postgres_url)
    assert [one.reason for one in outbox.set_asides()] == ["call 'c1': there is no episode 'e1'"]
    database.close()


def test_a_defect_does_not_stop_it(outbox: Outbox, database: Database, switch: Switch) -> None:
    open_one(database)

    def fail_once() -> None:
        switch.after_commit = lambda: None
        raise ZeroDivisionError

    switch.after_commit = fail_once
    drain = Drain(outbox, database, None)
    put(outbox, arrival("c1"))
    drain.start()
    put(outbox, replace(answered("c1"), logprobs=np.array([-1.0], np.float32)))
    while outbox.rows:
        threading.Event().wait(0.001)  # it has no event for this, and nothing but tests would need one
    drain.close(grace=30)
    assert stored(database) == {"c1": "answered"}
