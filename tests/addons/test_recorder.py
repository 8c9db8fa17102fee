"""The recorder: a future resolves when its row is durable, and nothing queued is lost or reordered."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.orm import Session

from dragoman.addons.delivery import deliver
from dragoman.addons.recorder import Recorder
from dragoman.store import database as database_module
from dragoman.store.calls import read_call, read_calls
from dragoman.store.database import Database
from dragoman.store.episodes import open_episode
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallOutcome, EpisodeSpec


def arrival(call_id: str, at: float = 10.0, episode_id: str = "e1") -> CallArrival:
    return CallArrival(id=call_id, episode_id=episode_id, provider="anthropic", path="/v1/messages", arrived_at=at)


def answered(call_id: str, **more: Any) -> CallOutcome:
    return CallOutcome(
        id=call_id,
        status="answered",
        http_status=200,
        finished_at=20.0,
        prompt_ids=np.array([1, 2], np.int32),
        prompt_len=2 + more.get("shared_len", 0),
        completion_ids=np.array([3], np.int32),
        logprobs=np.array([-0.5], np.float32),
        **more,
    )


def open_one(database: Database) -> None:
    with database.session() as session:
        open_episode(session, EpisodeSpec(), episode_id="e1", token_hash="0" * 64, now=1.0, expires_at=9.0)


def stored(database: Database) -> dict[str, str]:
    """Call id → status, in the order of arrival."""
    with database.reading() as session:
        calls = read_calls(session, "e1")
    return {call.arrival.id: call.outcome.status if call.outcome else "arrived" for call in calls}


async def wait_until_unhealthy(recorder: Recorder) -> None:
    while recorder.healthy:  # the recorder has no event for this, and nothing but tests would need one
        await asyncio.sleep(0)


@pytest.fixture
async def recorder(database: Database) -> AsyncIterator[Recorder]:
    """A started recorder on a store with the episode ``e1``."""
    open_one(database)
    recorder = Recorder(partial(deliver, database))
    recorder.start()
    yield recorder
    await recorder.close()


class Gate:
    """Stands before ``Database.session``: holds transactions back while it is shut, and can make them fail."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._session: Callable[[], AbstractContextManager[Session]] = database.session
        self._open = threading.Event()
        self._open.set()
        self.entered = threading.Event()
        """Set when a transaction has come to the gate."""
        self.failures: list[Exception] = []
        """What the next transactions fail with, in order."""
        self.transactions = 0
        monkeypatch.setattr(database, "session", self.session)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    @contextmanager
    def session(self) -> Iterator[Session]:
        self.entered.set()
        self._open.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.transactions += 1
        with self._session() as session:
            yield session


async def test_a_call_is_stored_when_its_future_resolves(recorder: Recorder, database: Database) -> None:
    await recorder.arrive(arrival("c1"))
    assert stored(database) == {"c1": "arrived"}
    await recorder.finish(answered("c1"))
    assert stored(database) == {"c1": "answered"}
    assert (recorder.depth, recorder.healthy, recorder.last_error) == (0, True, None)


async def test_everything_queued_is_committed_at_once_and_in_order(
    recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database, monkeypatch)
    gate.shut()
    first = recorder.arrive(arrival("c0"))
    await asyncio.to_thread(gate.entered.wait)  # the writer has taken the first record and no other
    futures = [first]
    for n in range(50):
        futures.append(recorder.finish(answered(f"c{n}", **({"parent_id": f"c{n - 1}", "shared_len": 3} if n else {}))))
        futures.append(recorder.arrive(arrival(f"c{n + 1}", 11.0 + n)))
    assert recorder.depth == 101
    assert not any(future.done() for future in futures)
    gate.open()
    await asyncio.gather(*futures)
    assert gate.transactions == 2
    assert stored(database) == {f"c{n}": "answered" if n < 50 else "arrived" for n in range(51)}


async def test_a_batch_has_a_limit(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_one(database)
    gate = Gate(database, monkeypatch)
    gate.shut()
    recorder = Recorder(partial(deliver, database), max_batch=10)
    recorder.start()
    futures = [recorder.arrive(arrival("c0"))]
    await asyncio.to_thread(gate.entered.wait)
    futures += [recorder.arrive(arrival(f"c{n}")) for n in range(1, 31)]
    gate.open()
    await asyncio.gather(*futures)
    assert gate.transactions == 4
    await recorder.close()


async def test_a_batch_wakes_the_loop_once(
    recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database, monkeypatch)
    gate.shut()
    futures = [recorder.arrive(arrival("c0"))]
    await asyncio.to_thread(gate.entered.wait)
    futures += [recorder.arrive(arrival(f"c{n}")) for n in range(1, 40)]
    loop = asyncio.get_running_loop()
    wake_ups: list[object] = []
    real = loop.call_soon_threadsafe

    def counting(callback: Callable[..., object], *args: Any, **more: Any) -> asyncio.Handle:
        wake_ups.append(callback)
        return real(callback, *args, **more)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    gate.open()
    await asyncio.gather(*futures)
    assert len(wake_ups) == 2


async def test_a_bad_record_fails_only_its_own_future(
    recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database, monkeypatch)
    gate.shut()
    futures = {
        "good 1": recorder.arrive(arrival("c1")),
        "no episode": recorder.arrive(arrival("c2", episode_id="e9")),
        "no such kind": recorder.arrive(replace(arrival("c3"), kind="odd")),  # type: ignore[arg-type]
        "not arrived": recorder.finish(answered("c9")),
        "nan": recorder.finish(replace(answered("c1"), logprobs=np.array([np.nan], np.float32))),
        "good 2": recorder.finish(answered("c1")),
        "good 3": recorder.arrive(arrival("c4")),
    }
    gate.open()
    answers = await asyncio.gather(*futures.values(), return_exceptions=True)
    found = {name: str(answer) if answer else None for name, answer in zip(futures, answers, strict=True)}
    assert found == {
        "good 1": None,
        "no episode": "call 'c2': there is no episode 'e9'",
        "no such kind": "call 'c3': kind 'odd' is not one of main, subagent, side, compaction, warm_up",
        "not arrived": "call 'c9': it has not arrived",
        "nan": "call 'c1': logprob 0 is nan; every logprob must be finite",
        "good 2": None,
        "good 3": None,
    }
    assert all(isinstance(answer, ValueError) for answer in answers if answer)
    assert stored(database) == {"c1": "answered", "c4": "arrived"}
    assert recorder.healthy


async def test_a_record_that_no_check_foresaw_stops_only_itself(
    recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database, monkeypatch)
    gate.shut()
    futures = [
        recorder.arrive(arrival("c1")),
        recorder.finish(answered("c1", messages=(None,))),  # an AttributeError inside the transaction
        recorder.arrive(arrival("c2")),
    ]
    gate.open()
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), AttributeError, type(None)]
    assert stored(database) == {"c1": "arrived", "c2": "arrived"}
    await recorder.finish(answered("c1"))


async def test_an_outage_is_waited_out(recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(database, monkeypatch)
    gate.failures = [StoreUnavailable("the disk is full")] * 3
    gate.shut()
    first = recorder.arrive(arrival("c1"))
    gate.open()
    await wait_until_unhealthy(recorder)
    assert recorder.last_error == "the disk is full"
    assert not first.done()
    second = recorder.finish(answered("c1"))
    await asyncio.gather(first, second)
    assert gate.failures == []
    assert recorder.healthy
    assert recorder.depth == 0
    assert stored(database) == {"c1": "answered"}


async def test_a_locked_sqlite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.01)
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    open_one(database)
    recorder = Recorder(partial(deliver, database))
    recorder.start()
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    future = recorder.arrive(arrival("c1"))
    await wait_until_unhealthy(recorder)
    assert not future.done()
    assert recorder.last_error is not None
    assert "locked" in recorder.last_error
    holder.close()
    await future
    assert stored(database) == {"c1": "arrived"}
    await recorder.close()
    database.close()


async def test_a_full_disk(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    open_one(database)
    limit = 1

    def set_limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {limit}")  # SQLite's own way to be full

    event.listen(database._engine, "begin", set_limit)
    recorder = Recorder(partial(deliver, database))
    recorder.start()
    futures = [recorder.arrive(replace(arrival(f"c{n}"), path="/" + "x" * 9000)) for n in range(20)]
    await wait_until_unhealthy(recorder)
    assert "full" in str(recorder.last_error)
    limit = 1_000_000
    await asyncio.gather(*futures)
    assert list(stored(database)) == [f"c{n}" for n in range(20)]
    await recorder.close()
    database.close()


async def test_a_postgresql_that_goes_away(postgres: str, postgres_url: str) -> None:
    database = Database.open(postgres_url)
    open_one(database)
    recorder = Recorder(partial(deliver, database))
    recorder.start()
    await recorder.arrive(arrival("c1"))
    name = make_url(postgres_url).database
    admin = create_engine(
        make_url(postgres).set(drivername="postgresql+psycopg", database="postgres"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))
        future = recorder.finish(answered("c1"))
        await wait_until_unhealthy(recorder)
        assert not future.done()
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
    admin.dispose()
    await future
    assert stored(database) == {"c1": "answered"}
    await recorder.close()
    database.close()


async def test_close_commits_what_is_queued(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_one(database)
    gate = Gate(database, monkeypatch)
    gate.shut()
    recorder = Recorder(partial(deliver, database), max_batch=7)
    recorder.start()
    futures = [recorder.arrive(arrival(f"c{n}")) for n in range(40)]
    closing = asyncio.create_task(recorder.close())
    await asyncio.sleep(0)
    gate.open()
    await closing
    assert all(future.done() and future.exception() is None for future in futures)
    assert len(stored(database)) == 40
    with pytest.raises(RuntimeError, match="'c99' cannot be recorded: the recorder is closed"):
        recorder.arrive(arrival("c99"))


async def test_close_gives_up_on_a_store_that_stays_away(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_one(database)
    gate = Gate(database, monkeypatch)
    gate.failures = [StoreUnavailable("no store")] * 10_000
    recorder = Recorder(partial(deliver, database))
    recorder.start()
    futures = [recorder.arrive(arrival(f"c{n}")) for n in range(3)]
    with pytest.raises(StoreUnavailable, match="no store"):
        await recorder.close(grace=0)
    for future in futures:
        with pytest.raises(StoreUnavailable, match="no store"):
            await future


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_nobody_waits_for_a_writer_that_broke(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(partial(deliver, database))
    monkeypatch.setattr(recorder, "_commit", lambda records: [])  # a bug: no answer for a record
    recorder.start()
    with pytest.raises(StoreUnavailable, match="the recorder broke: ValueError"):
        await recorder.arrive(arrival("c1"))
    assert not recorder.healthy
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        recorder.arrive(arrival("c2"))
    with pytest.raises(StoreUnavailable, match="the recorder broke"):
        await recorder.close()


async def test_a_recorder_that_was_not_started_takes_nothing(database: Database) -> None:
    recorder = Recorder(partial(deliver, database))
    with pytest.raises(RuntimeError, match="not started"):
        recorder.arrive(arrival("c1"))
    await recorder.close()


async def test_a_caller_that_was_cancelled_disturbs_nobody(
    recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database, monkeypatch)
    gate.shut()
    gone, stays = recorder.arrive(arrival("c1")), recorder.arrive(arrival("c2"))
    gone.cancel()
    gate.open()
    await stays
    assert stored(database) == {"c1": "arrived", "c2": "arrived"}


async def test_futures_resolve_on_the_loop_that_asked(recorder: Recorder, database: Database) -> None:
    async def record(name: str) -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)  # refuses a call from another thread
        for n in range(20):
            await recorder.arrive(arrival(f"{name}{n}"))
            await recorder.finish(answered(f"{name}{n}"))

    threads = [asyncio.to_thread(asyncio.run, record(name)) for name in ("a", "b")]
    await asyncio.gather(record("c"), *threads)
    assert list(stored(database).values()) == ["answered"] * 60


async def test_a_loop_that_has_closed_meanwhile_does_not_stop_the_writer(
    recorder: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave() -> None:
        recorder.arrive(arrival("c1"))

    gate = Gate(database, monkeypatch)
    gate.shut()
    await asyncio.to_thread(asyncio.run, leave())
    gate.open()
    await recorder.arrive(arrival("c2"))
    assert stored(database) == {"c1": "arrived", "c2": "arrived"}


async def test_two_recorders_on_one_store(store_url: str) -> None:
    databases = [Database.open(store_url) for _ in range(2)]
    open_one(databases[0])
    recorders = [Recorder(partial(deliver, database)) for database in databases]
    for recorder in recorders:
        recorder.start()

    async def record(recorder: Recorder, name: str) -> None:
        await recorder.arrive(arrival(name))
        await recorder.finish(answered(name))

    await asyncio.gather(*(record(recorders[n % 2], f"c{n}") for n in range(400)))
    assert list(stored(databases[0]).values()) == ["answered"] * 400
    for recorder, database in zip(recorders, databases, strict=True):
        assert recorder.healthy
        await recorder.close()
        database.close()


VICTIM = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[2])
from test_recorder import Database, Recorder, answered, arrival, deliver, open_one, partial

async def main():
    database = Database.open(sys.argv[1])
    open_one(database)
    recorder = Recorder(partial(deliver, database))
    recorder.start()
    await recorder.arrive(arrival("c1"))
    await recorder.finish(answered("c1"))
    await recorder.arrive(arrival("c2"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_resolved_future_survives_kill_9(store_url: str) -> None:
    victim = subprocess.run([sys.executable, "-c", VICTIM, store_url, os.path.dirname(__file__)])
    assert victim.returncode == -signal.SIGKILL
    database = Database.open(store_url)
    assert stored(database) == {"c1": "answered", "c2": "arrived"}
    with database.reading() as session:
        call = read_call(session, "c1")
    assert call is not None
    assert call.outcome is not None
    assert call.outcome.logprobs is not None
    assert call.outcome.logprobs.tolist() == [-0.5]
    database.close()
