"""Health: outages are waited for, told once, and remembered."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.gateway_client import GatewayClient, GatewayError, GatewayStatus
from dragoman.rollout import health
from dragoman.rollout.health import Health, PatientClient
from dragoman.rollout.process import Stopped

UP = SimpleNamespace(engine="http://e", engine_up=True, started_at=1.0)


@dataclass
class Client(GatewayClient):
    """Says what it is told to, the last thing for ever."""

    says: list[Any]
    asked: int = 0

    def status(self) -> GatewayStatus:
        self.asked += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, GatewayError):
            raise said
        return cast(GatewayStatus, said)


@dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class World:
    clock: Clock
    told: list[str] = field(default_factory=list)

    def health(self, *says: Any) -> Health:
        return Health(Client(list(says)), self.told.append)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    clock = Clock()
    monkeypatch.setattr(health, "time", clock)
    return World(clock)


def _status(**changes: Any) -> GatewayStatus:
    return cast(GatewayStatus, SimpleNamespace(**{**vars(UP), **changes}))


AWAY = GatewayError("no gateway answers")


def test_it_waits_and_tells_it_once(world: World) -> None:
    world.health(AWAY, AWAY, _status(engine_up=False), UP).wait(lambda: False)
    assert world.told == ["paused: no gateway answers", "it is back; going on"]


def test_all_is_well_without_a_word(world: World) -> None:
    world.health(UP).wait(lambda: False)
    assert world.told == []


def test_a_stop_ends_the_waiting(world: World) -> None:
    with pytest.raises(Stopped):
        world.health(AWAY).wait(lambda: world.clock.now > 110)


def test_one_look_serves_everybody_for_a_moment(world: World) -> None:
    client = Client([UP])
    one = Health(client, world.told.append)
    for _ in range(5):
        one.look()
    assert client.asked == 1
    one.look(fresh=True)
    world.clock.sleep(2)
    one.look()
    assert client.asked == 3


def test_outages_are_remembered(world: World) -> None:
    one = world.health(UP, _status(engine_up=False), UP)
    assert one.trouble_since(world.clock.now) is None
    world.clock.sleep(5)
    began = world.clock.now
    assert one.look() == "the engine at http://e does not answer"
    world.clock.sleep(5)
    assert one.trouble_since(began) == "the engine at http://e does not answer"
    assert one.trouble_since(world.clock.now) is None


def test_a_gateway_that_was_started_anew_was_away(world: World) -> None:
    one = world.health(UP, _status(started_at=2.0))
    one.look()
    world.clock.sleep(5)
    assert one.trouble_since(world.clock.now - 1) == "the gateway was started anew"


def test_a_gateway_that_does_not_say_how_the_engine_is_counts_as_well(world: World) -> None:
    world.health(_status(engine_up=None, started_at=None)).wait(lambda: False)
    assert world.told == []


def test_a_patient_client_asks_until_it_is_answered_or_told_to_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [AWAY, GatewayError("the store is down", "overloaded"), {"end": None}]

    def ask(self: GatewayClient, method: str, path: str, body: Any) -> Any:
        said = answers.pop(0)
        if isinstance(said, GatewayError):
            raise said
        return said

    monkeypatch.setattr(GatewayClient, "_ask", ask)
    with PatientClient("http://127.0.0.1:1", "k", world.health(UP), lambda: False) as client:
        assert client._ask("GET", "/", None) == {"end": None}
        answers[:] = [GatewayError("there is no such episode", "not_found")]
        with pytest.raises(GatewayError, match="no such episode"):
            client._ask("GET", "/", None)
    answers[:] = [AWAY]
    with (
        PatientClient("http://127.0.0.1:1", "k", world.health(UP), lambda: True) as client,
        pytest.raises(GatewayError, match="no gateway"),
    ):
        client._ask("GET", "/", None)
