"""Following the newest policy, with a scripted engine and a real store: loading, holding, failing, coming back."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.addons import engine_weights
from dragoman.addons.engine import Engine
from dragoman.addons.errors import Overloaded, WeightsRefused
from dragoman.addons.policy import PolicyFollower
from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.store.policies import LoadInfo, PolicyInfo, PolicyKind
from tests.scripted import Scripted, scripted_engine

RELOAD = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(f"sqlite:///{tmp_path}/dragoman.db")
    yield opened
    opened.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with scripted_engine([{"text": "x"}]) as engine:
        yield engine


@asynccontextmanager
async def follower(database: Database, address: str) -> AsyncIterator[PolicyFollower]:
    engine = Engine(address)
    yield PolicyFollower(database, engine)
    await engine.close()


def publish(database: Database, path: Path, kind: PolicyKind, *, there: bool = True) -> PolicyInfo:
    if there:
        path.mkdir(exist_ok=True)
    with database.session() as session:
        return policies.add_policy(
            session, kind=kind, path=path, parent=None, run=None, step=None, metrics={}, now=time.time()
        )


def load_of(database: Database, number: int) -> LoadInfo:
    with database.reading() as session:
        (load,) = policies.list_loads(session, number)
    return load


async def test_without_a_policy_the_engines_own_weights_are_asked_for(database: Database, scripted: Scripted) -> None:
    async with follower(database, scripted.address) as policy:
        assert await policy.model() is None
        assert policy.version == "base"
    assert scripted.told() == []


async def test_weights_of_another_store_are_warned_of(
    database: Database, scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    async with follower(database, scripted.address) as policy:
        await engine_weights._ask(policy.engine, "POST", "/update_weight_version", {"new_version": "policy-v9"})
        assert await policy.model() is None
    assert "labelled policy-v9, and this store has no policy" in caplog.text


async def test_an_adapter_is_loaded_under_its_version_and_only_once(
    database: Database, scripted: Scripted, tmp_path: Path
) -> None:
    async with follower(database, scripted.address) as policy:
        assert await policy.model() is None
        publish(database, tmp_path / "one", "lora")
        await policy.follow()
        assert await policy.model() == policy.version == "policy-v1"
        await policy.follow()
        publish(database, tmp_path / "two", "lora")
        await policy.follow()
        assert await policy.model() == "policy-v2"
        assert await engine_weights.adapter_paths(policy.engine) == {
            "policy-v1": str(tmp_path / "one"),
            "policy-v2": str(tmp_path / "two"),
        }
    assert scripted.told() == ["/v1/load_lora_adapter"] * 2
    assert (load_of(database, 1).status, load_of(database, 2).status) == ("serving", "serving")


async def test_full_weights_are_put_in_while_the_engine_is_paused_and_then_labelled(
    database: Database, scripted: Scripted, tmp_path: Path
) -> None:
    publish(database, tmp_path / "one", "full")
    async with follower(database, scripted.address) as policy:
        assert await policy.model() is None
        assert policy.version == "policy-v1"
        assert await engine_weights.weight_version(policy.engine) == "policy-v1"
    assert scripted.told() == RELOAD


@pytest.mark.parametrize("kind", ["lora", "full"])
async def test_a_policy_that_the_engine_does_not_take_leaves_the_one_before(
    kind: PolicyKind, database: Database, scripted: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(database, tmp_path / "good", kind)
    async with follower(database, scripted.address) as policy:
        before = await policy.model()
        publish(database, tmp_path / "missing", kind, there=False)
        with caplog.at_level(logging.ERROR):
            await policy.follow()
        assert await policy.model() == before
        assert policy.version == "policy-v1"
        assert policy.error is not None
        assert "missing" in policy.error
        assert "so policy-v1 goes on" in caplog.text
        if kind == "full":  # what may be in place already is overwritten by what was there before
            assert scripted.told()[len(RELOAD) :] == [
                *("/pause", "/collective_rpc", "/collective_rpc", "/reset_prefix_cache", "/resume")
            ]
            assert await engine_weights.weight_version(policy.engine) == "policy-v1"
        publish(database, tmp_path / "better", kind)
        await policy.follow()
        assert policy.version == "policy-v3"
        assert policy.error is None
    assert load_of(database, 2).status == "failed"
    assert "missing" in (load_of(database, 2).reason or "")


@pytest.mark.parametrize("kind", ["lora", "full"])
async def test_an_engine_that_was_restarted_is_given_its_weights_before_the_next_call(
    kind: PolicyKind, database: Database, tmp_path: Path
) -> None:
    publish(database, tmp_path / "one", kind)
    with scripted_engine([{"text": "x"}]) as first:
        async with follower(database, first.address) as policy:
            model = await policy.model()
            first.forget_weights()
            policy.suspect()
            assert policy.holding
            assert await policy.model() == model
            told = ["/v1/load_lora_adapter"] if kind == "lora" else RELOAD
            assert first.told() == told * 2


async def test_a_restart_between_two_calls_is_noticed_too(
    database: Database, scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.addons.policy.POLL", 0.01)
    monkeypatch.setattr("dragoman.addons.policy.CHECK", 0.0)
    publish(database, tmp_path / "one", "full")
    async with follower(database, scripted.address) as policy:
        await policy.model()
        scripted.forget_weights()
        watching = asyncio.create_task(policy.watch())
        try:
            async with asyncio.timeout(30):
                while await engine_weights.weight_version(policy.engine) != "policy-v1":
                    await asyncio.sleep(0.01)
        finally:
            watching.cancel()


async def test_an_engine_that_is_away_between_two_calls_is_not_trusted_when_it_is_back(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.addons.policy.POLL", 0.01)
    monkeypatch.setattr("dragoman.addons.policy.CHECK", 0.0)
    publish(database, tmp_path / "one", "full")
    with scripted_engine([{"text": "x"}]) as engine:
        async with follower(database, engine.address) as policy:
            await policy.model()
            policy.engine = Engine("http://127.0.0.1:9")
            watching = asyncio.create_task(policy.watch())
            try:
                async with asyncio.timeout(30):
                    while not policy.holding:
                        await asyncio.sleep(0.01)
            finally:
                watching.cancel()


async def test_one_that_came_back_unable_to_take_them_answers_nothing_else(
    database: Database, scripted: Scripted, tmp_path: Path
) -> None:
    publish(database, tmp_path / "older", "lora")
    publish(database, tmp_path / "one", "lora")
    async with follower(database, scripted.address) as policy:
        await policy.model()
        scripted.forget_weights()
        (tmp_path / "one").rmdir()
        policy.suspect()
        with pytest.raises(WeightsRefused, match="no folder"):
            await policy.model()
        (tmp_path / "one").mkdir()
        assert await policy.model() == "policy-v2"


async def test_an_adapter_of_the_same_name_from_elsewhere_is_replaced(
    database: Database, scripted: Scripted, tmp_path: Path
) -> None:
    (tmp_path / "other run").mkdir()
    async with follower(database, scripted.address) as policy:
        await engine_weights.load_adapter(policy.engine, "policy-v1", str(tmp_path / "other run"))
        publish(database, tmp_path / "one", "lora")
        await policy.model()
        assert (await engine_weights.adapter_paths(policy.engine))["policy-v1"] == str(tmp_path / "one")
    assert scripted.told()[1:] == ["/v1/unload_lora_adapter", "/v1/load_lora_adapter"]


async def test_while_the_engine_is_away_calls_are_told_so_and_the_claim_is_given_back(
    database: Database, tmp_path: Path
) -> None:
    publish(database, tmp_path / "one", "lora")
    async with follower(database, "http://127.0.0.1:9") as policy:
        with pytest.raises(Overloaded, match="cannot be reached"):
            await policy.model()
    with database.reading() as session:
        assert policies.list_loads(session, 1) == ()


async def test_while_another_gateway_loads_new_calls_go_on_with_the_old_and_first_ones_wait(
    database: Database, scripted: Scripted, tmp_path: Path
) -> None:
    async with follower(database, scripted.address) as policy:
        await policy.model()
        number = publish(database, tmp_path / "one", "lora").number
        with database.session() as session:
            assert policies.claim_load(session, number, scripted.address, now=time.time())
        await policy.follow()
        assert await policy.model() is None

        async with follower(database, scripted.address) as starting:
            waiting = asyncio.create_task(starting.model())
            await asyncio.sleep(0)
            with database.session() as session:
                policies.finish_load(session, number, scripted.address, "serving", reason=None, now=time.time())
            assert await waiting == "policy-v1"


async def test_without_a_store_what_is_served_goes_on_and_a_restarted_engine_gets_it_again(
    scripted: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/dragoman.db")
    publish(database, tmp_path / "one", "lora")
    async with follower(database, scripted.address) as policy:
        assert await policy.model() == "policy-v1"
        database.close()
        (tmp_path / "dragoman.db").rename(tmp_path / "away")
        (tmp_path / "dragoman.db").mkdir()
        assert await policy.model() == "policy-v1"
        scripted.forget_weights()
        policy.suspect()
        assert await policy.model() == "policy-v1"
    assert "the store cannot be asked" in caplog.text
    assert scripted.told() == ["/v1/load_lora_adapter"] * 2


async def test_a_store_that_hangs_counts_as_away(
    database: Database, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.addons.policy.PATIENCE", 0.01)
    answering = threading.Event()

    class Hanging(PolicyFollower):
        def _newest(self) -> PolicyInfo | None:
            answering.wait(30)
            return None

    engine = Engine(scripted.address)
    try:
        assert await Hanging(database, engine).model() is None
    finally:
        answering.set()
        await engine.close()
    assert "does not answer" in caplog.text
