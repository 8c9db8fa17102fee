"""The keeper: open episodes go on without the store, exactly; calls are closed by who may; new ones wait for room."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url, text

from dragoman.addons import keeper as keeper_module
from dragoman.addons.errors import Overloaded
from dragoman.addons.keeper import Keeper
from dragoman.addons.settings import Settings
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, find_by_token, open_episode
from dragoman.store.errors import StoreUnavailable
from dragoman.store.packing import digest
from dragoman.store.records import Blob, CallInfo, EpisodeInfo, EpisodeSpec
from tests.addons.test_recorder import answered, arrival

HASH = "0" * 64


class Switch:
    """Lets nobody into a PostgreSQL database, and lets them in again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._name = make_url(url).database
        admin = make_url(url).set(drivername="postgresql+psycopg", database="postgres")
        self._admin = create_engine(admin, isolation_level="AUTOCOMMIT")

    def off(self) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false"))
            connection.execute(
                text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'")
            )

    def on(self) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true"))

    def close(self) -> None:
        self._admin.dispose()


@pytest.fixture
def switch(postgres_url: str) -> Iterator[Switch]:
    made = Switch(postgres_url)
    yield made
    made.close()


@asynccontextmanager
async def keeping(store: str, tmp_path: Path, name: str = "o.db", **more: Any) -> AsyncIterator[Keeper]:
    keeper = Keeper.open(Settings(store=store, operator_key="k", outbox=tmp_path / name, **more))
    try:
        yield keeper
    finally:
        await keeper.close(grace=more.get("grace", 0.3))


def open_one(keeper: Keeper, episode_id: str = "e1", token_hash: str = HASH) -> EpisodeInfo:
    with keeper.database.session() as session:
        episode = open_episode(
            session, EpisodeSpec(), episode_id=episode_id, token_hash=token_hash, now=1.0, expires_at=1e12
        )
    keeper.opened(token_hash, episode)
    return episode


async def drained(keeper: Keeper) -> None:
    while keeper.waiting:
        await asyncio.sleep(0.001)


def names(calls: list[CallInfo]) -> dict[str, str | None]:
    return {call.arrival.id: call.outcome.status if call.outcome else None for call in calls}


async def test_records_reach_postgresql_through_the_outbox(switch: Switch, tmp_path: Path) -> None:
    async with keeping(switch.url, tmp_path) as keeper:
        open_one(keeper)
        await keeper.recorder.arrive(arrival("c1"))
        await keeper.recorder.finish(answered("c1"))
        await drained(keeper)
        with keeper.database.reading() as session:
            assert names(read_calls(session, "e1")) == {"c1": "answered"}
        status = keeper.status()
    assert status["full"] is None
    assert status["outbox"]["error"] is None
    assert (status["queue"]["records"], status["outbox"]["records"]) == (0, 0)
    assert status["outbox"]["kept_bytes"] > 0


async def test_an_open_episode_goes_on_without_the_store(switch: Switch, tmp_path: Path) -> None:
    async with keeping(switch.url, tmp_path) as keeper:
        episode = open_one(keeper)
        await keeper.recorder.arrive(arrival("c1"))
        await keeper.recorder.finish(answered("c1"))
        await drained(keeper)
        switch.off()
        assert keeper.find_episode(HASH) == episode
        with pytest.raises(StoreUnavailable):
            keeper.find_episode("1" * 64)
        await keeper.recorder.arrive(arrival("c2", 11.0))
        await keeper.recorder.finish(answered("c2", parent_id="c1", shared_len=3))
        assert names(keeper.read_calls("e1", others=False)) == {"c1": "answered", "c2": "answered"}
        with pytest.raises(StoreUnavailable):
            keeper.read_calls("e1", others=True)
        assert keeper.waiting >= 1
        switch.on()
        await drained(keeper)
        assert names(keeper.read_calls("e1", others=True)) == {"c1": "answered", "c2": "answered"}
        with keeper.database.reading() as session:
            assert names(read_calls(session, "e1")) == {"c1": "answered", "c2": "answered"}


async def test_a_gateway_starts_while_its_store_is_away_and_catches_up(switch: Switch, tmp_path: Path) -> None:
    async with keeping(switch.url, tmp_path) as keeper:
        episode = open_one(keeper)
        await keeper.recorder.arrive(arrival("c1"))
        await keeper.recorder.finish(answered("c1"))
        await drained(keeper)
        switch.off()
        await keeper.recorder.arrive(arrival("c2", 11.0))
        await keeper.recorder.finish(answered("c2", parent_id="c1", shared_len=3))
        await keeper.recorder.arrive(arrival("c3", 12.0))
    async with keeping(switch.url, tmp_path) as keeper:
        assert keeper.closed_calls == 1
        assert keeper.find_episode(HASH) == episode
        found = keeper.read_calls("e1", others=False)
        assert names(found) == {"c1": "answered", "c2": "answered", "c3": "aborted"}
        assert found[1].outcome is not None
        assert found[1].outcome.completion_ids is not None
        assert found[1].outcome.completion_ids.tolist() == [3]
        switch.on()
        await drained(keeper)
        with keeper.database.reading() as session:
            assert names(read_calls(session, "e1")) == {"c1": "answered", "c2": "answered", "c3": "aborted"}


async def test_what_waits_is_found_beside_what_the_store_has(switch: Switch, tmp_path: Path) -> None:
    async with keeping(switch.url, tmp_path, "a.db") as first:
        open_one(first)
        await first.recorder.arrive(arrival("c1"))
        await first.recorder.finish(answered("c1"))
        await drained(first)
    async with keeping(switch.url, tmp_path, "b.db") as second:  # another gateway, which did not open the episode
        assert second.find_episode(HASH) is not None
        await drained(second)
        second.database.close()
        outbox = second.outbox
        assert outbox is not None
        outbox.commit([arrival("c2", 11.0), answered("c2", parent_id="c1", shared_len=3)])
        assert names(second.read_calls("e1", others=False)) == {"c1": "answered", "c2": "answered"}


async def test_a_store_that_was_never_reached_is_an_error_at_the_start(switch: Switch, tmp_path: Path) -> None:
    switch.off()
    with pytest.raises(StoreUnavailable):
        Keeper.open(Settings(store=switch.url, operator_key="k", outbox=tmp_path / "o.db"))
    switch.on()
    async with keeping(switch.url, tmp_path):
        pass


async def test_the_open_calls_of_a_living_gateway_are_left_alone(switch: Switch, tmp_path: Path) -> None:
    async with keeping(switch.url, tmp_path, "a.db") as living:
        open_one(living)
        await living.recorder.arrive(arrival("c1"))
        await drained(living)
        async with keeping(switch.url, tmp_path, "b.db") as other:
            assert other.closed_calls == 0
            assert names(other.read_calls("e1", others=True)) == {"c1": None}
        await living.recorder.finish(answered("c1"))
        await drained(living)
        assert names(living.read_calls("e1", others=True)) == {"c1": "answered"}


async def test_only_a_gateway_that_is_alone_on_a_sqlite_file_closes_calls(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/d.db"
    async with keeping(store, tmp_path) as first:
        open_one(first)
        await first.recorder.arrive(arrival("c1", 1e11))  # by a clock that was ahead
        async with keeping(store, tmp_path) as second:
            assert second.closed_calls == 0
        await first.recorder.finish(answered("c1"))
        await first.recorder.arrive(arrival("c2", 1e11))
    async with keeping(store, tmp_path) as third:
        assert third.closed_calls == 1
        assert names(third.read_calls("e1", others=False)) == {"c1": "answered", "c2": "aborted"}


async def test_an_episode_that_has_ended_is_forgotten(switch: Switch, tmp_path: Path) -> None:
    async with keeping(switch.url, tmp_path) as keeper:
        open_one(keeper)
        with keeper.database.session() as session:  # by another process
            end_episode(session, "e1", "completed", reason=None, now=9.0)
        found = keeper.find_episode(HASH)
        assert found is not None
        assert found.ended_at == 9.0
        switch.off()
        with pytest.raises(StoreUnavailable):
            keeper.find_episode(HASH)
        switch.on()


async def test_the_reply_that_an_id_stands_for(switch: Switch, tmp_path: Path) -> None:
    def blob(words: str) -> Blob:
        data = b'{"role":"user","parts":[{"type":"text","text":"%s"}]}' % words.encode()
        return Blob(digest(data), data)

    state = {"kept": True, "instructions": False, "tools": []}
    one = answered("c1", messages=(blob("a"), blob("b")), state=state)
    two = answered("c2", parent_id="c1", shared_len=3, messages=(blob("c"),), messages_kept=2, state=state)
    three = answered("c3", parent_id="c2", shared_len=6, messages=(blob("d"),), messages_kept=3, state=state)
    async with keeping(switch.url, tmp_path, "a.db") as keeper:
        open_one(keeper)
        for n, outcome in enumerate((one, two, three)):
            await keeper.recorder.arrive(arrival(outcome.id, 10.0 + n))
            await keeper.recorder.finish(outcome)
        await drained(keeper)
        switch.off()
        here = keeper.kept("e1", "c3")
        assert keeper.kept("e1", "c9") is None
        switch.on()
        assert keeper.kept("e2", "c3") is None
    async with keeping(switch.url, tmp_path, "b.db") as keeper:  # it has none of them
        assert keeper.kept("e1", "c3") == here
        outbox = keeper.outbox
        assert outbox is not None
        four = replace(three, id="c4", parent_id="c3", shared_len=9, prompt_len=11, messages_kept=4)
        outbox.commit([arrival("c4", 14.0), four])  # and of this one the parents are elsewhere
        mixed = keeper.kept("e1", "c4")
    assert here is not None
    assert [message.parts[0].text for message in here.earlier.messages] == list("abcd")  # type: ignore[union-attr]
    assert mixed is not None
    assert len(mixed.earlier.messages) == 5


async def test_new_calls_wait_for_room_and_are_refused_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with keeping(f"sqlite:///{tmp_path}/d.db", tmp_path) as keeper:
        open_one(keeper)
        await keeper.room()
        monkeypatch.setattr(keeper_module, "QUEUE_LIMIT", 1500)
        with keeper.database.session():  # nobody else writes now
            futures = [keeper.recorder.arrive(arrival(f"c{n}")) for n in range(3)]
            waiting = asyncio.create_task(keeper.room())
            await asyncio.sleep(0)  # it begins to wait
            monkeypatch.setattr(keeper_module, "ROOM_SECONDS", 0.0)
            with pytest.raises(Overloaded, match="bytes of records wait in memory"):
                await keeper.room()
            assert "bytes of records wait in memory" in keeper.status()["full"]
        await asyncio.gather(*futures)
        await waiting
        await keeper.room()
    assert "new calls wait" in caplog.text


async def test_an_outbox_that_is_too_large_holds_new_calls_back(
    switch: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "ROOM_SECONDS", 0.0)
    async with keeping(switch.url, tmp_path, outbox_limit=3000) as keeper:
        open_one(keeper)
        switch.off()
        for n in range(50):
            await keeper.recorder.arrive(arrival(f"c{n}"))  # what is begun is recorded all the same
            await keeper.recorder.finish(
                replace(answered(f"c{n}"), error_message=str(np.random.default_rng(n).bytes(50)))
            )
        with pytest.raises(Overloaded, match="wait in the outbox for the store, more than 3000"):
            await keeper.room()
        switch.on()
        await drained(keeper)
        await keeper.room()


async def test_a_store_that_hangs_keeps_nobody_waiting_for_what_is_here(
    switch: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "STORE_SECONDS", 0.05)
    async with keeping(switch.url, tmp_path) as keeper:
        episode = open_one(keeper)
        holder = Database.later(switch.url)
        with holder.session() as session:
            session.execute(text("LOCK TABLE episodes, calls IN ACCESS EXCLUSIVE MODE"))
            assert keeper.find_episode(HASH) == episode
            with pytest.raises(StoreUnavailable, match="has not answered"):
                Keeper._ask(replace_silence(keeper), lambda session: find_by_token(session, HASH))
            with pytest.raises(StoreUnavailable, match="does not answer"):
                keeper.find_episode("1" * 64)
            assert keeper.read_calls("e1", others=False) == []
        holder.close()


def replace_silence(keeper: Keeper) -> Keeper:
    keeper._silent_until = 0.0
    return keeper
