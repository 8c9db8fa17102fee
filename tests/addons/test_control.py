"""The control API through the app; and the reading of what an operator asks, as a pure function."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench import asgi
from bench.mutations import Request
from dragoman.addons.app import create_app
from dragoman.addons.control import read_spec
from dragoman.addons.errors import InvalidRequest
from dragoman.store.artefacts import read_artefact
from dragoman.store.records import Artefact, EpisodeSpec
from tests.addons.test_app import Served, serve
from tests.scripted import scripted_engine

NO_ENGINE = "http://127.0.0.1:9"
OPERATOR = {"authorization": "Bearer dgo_test"}


def test_nothing_asked_is_an_ad_hoc_episode() -> None:
    assert read_spec({}, 100.0) == (EpisodeSpec(), None)


def test_everything_asked_is_taken() -> None:
    body = {
        "task": "t",
        "group": "g",
        "expected": 8,
        "deadline_seconds": 60,
        "profile": "as_asked",
        "temperature": 0.7,
        "metadata": {"a": 1},
        "ttl_seconds": 30,
    }
    assert read_spec(body, 100.0) == (EpisodeSpec("t", "g", 8, 160.0, "as_asked", 0.7, {"a": 1}), 30.0)


@pytest.mark.parametrize(
    "body",
    [
        {"taks": "t"},
        {"task": ""},
        {"task": 3},
        {"group": "g"},
        {"expected": 0, "task": "t"},
        {"expected": 1.5, "task": "t"},
        {"expected": True, "task": "t"},
        {"deadline_seconds": "soon"},
        {"profile": "fast"},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"metadata": []},
        {"ttl_seconds": 0},
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_spec(body, 100.0)
    assert caught.value.field in {*body}
    assert repr(caught.value.field) in caught.value.message


async def ask(served: Served, method: str, path: str, body: Any = None, headers: Any = OPERATOR) -> tuple[int, Any]:
    response = await served.http.request(method, f"/dragoman{path}", json=body, headers=headers)
    return response.status_code, response.json()


async def test_an_episodes_whole_life(tmp_path: Path) -> None:
    async with serve(tmp_path, NO_ENGINE) as served:
        status, opened = await ask(served, "POST", "/episodes", {"task": "t", "group": "g", "expected": 2})
        assert status == 201
        assert opened["api_key"] == f"dgm_{opened['token']}"
        assert opened["token"] in opened["environment"]["proxy"]["HTTPS_PROXY"]
        path = f"/episodes/{opened['id']}"
        assert (await ask(served, "POST", f"{path}/end", {"end": "timed_out", "reason": "slow"}))[0] == 200
        assert (await ask(served, "POST", f"{path}/end", {"end": "timed_out", "reason": "slow"}))[0] == 200
        assert (await ask(served, "POST", f"{path}/end", {"end": "completed"}))[0] == 409
        status, _ = await ask(served, "POST", f"{path}/reward", {"reward": 0.5, "components": {"tests": 0.5}})
        assert status == 200
        status, read = await ask(served, "GET", path)
        assert (status, read["end"], read["end_reason"], read["reward"]) == (200, "timed_out", "slow", 0.5)
        assert "token" not in read


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/episodes", {"profile": "x"}, 400),
        ("POST", "/episodes", [], 400),
        ("POST", "/episodes/none/end", {}, 404),
        ("POST", "/episodes/none/reward", {"reward": 1}, 404),
        ("GET", "/episodes/none", None, 404),
        ("GET", "/nothing", None, 404),
        ("POST", "/episodes/none/artefacts", {"artefacts": []}, 404),
        ("POST", "/episodes/ID/artefacts", {}, 400),
        ("POST", "/episodes", {"expected": 2}, 400),
        ("POST", "/episodes/ID/end", {"end": "finished"}, 400),
        ("POST", "/episodes/ID/end", {"end": []}, 400),
        ("POST", "/episodes/ID/reward", {}, 400),
        ("POST", "/episodes/ID/reward", {"reward": "high"}, 400),
        ("POST", "/episodes/ID/reward", {"reward": 1, "components": {"a": None}}, 400),
        ("POST", "/episodes/ID/reward", {"reward": 1, "components": {"a": "b"}}, 400),
    ],
)
async def test_bad_input_is_an_error_that_says_so(
    tmp_path: Path, method: str, path: str, body: Any, status: int
) -> None:
    async with serve(tmp_path, NO_ENGINE) as served:
        got, answer = await ask(served, method, path.replace("ID", served.episode_id), body)
        assert got == status
        assert answer["error"]["message"]


@pytest.mark.parametrize("key", ["x", "dgo_wrong", "dgm_" + "0" * 32, "own"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/status"),
        ("POST", "/episodes"),
        ("POST", "/episodes/ID/end"),
        ("POST", "/episodes/ID/reward"),
        ("POST", "/episodes/ID/artefacts"),
    ],
)
async def test_only_the_operator_may(tmp_path: Path, key: str, method: str, path: str) -> None:
    async with serve(tmp_path, NO_ENGINE) as served:
        headers = {} if key == "own" else {"authorization": f"Bearer {key}"}
        status, _ = await ask(served, method, path.replace("ID", served.episode_id), {"reward": 1}, headers)
        assert status == 401
        status, read = await ask(served, "GET", f"/episodes/{served.episode_id}")
        assert (read["end"], read["reward"]) == (None, None)


async def test_a_group_has_one_size(tmp_path: Path) -> None:
    async with serve(tmp_path, NO_ENGINE) as served:
        group = {"task": "t", "group": "g"}
        assert (await ask(served, "POST", "/episodes", {**group, "expected": 2}))[0] == 201
        status, answer = await ask(served, "POST", "/episodes", {**group, "expected": 3})
        assert (status, answer["error"]["code"]) == (409, "conflict")


async def test_an_episode_past_its_groups_deadline_is_abandoned_by_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.addons.gateway.DEADLINES_EVERY", 0.02)
    async with serve(tmp_path, NO_ENGINE) as served:
        body = {"task": "t", "group": "g", "expected": 1, "deadline_seconds": 0.05}
        _, opened = await ask(served, "POST", "/episodes", body)
        while (await ask(served, "GET", f"/episodes/{opened['id']}"))[1]["end"] is None:
            await asyncio.sleep(0.01)
        assert (await ask(served, "GET", f"/episodes/{opened['id']}"))[1]["end"] == "abandoned"


async def test_status_works_without_an_engine(tmp_path: Path) -> None:
    async with serve(tmp_path, NO_ENGINE) as served:
        status, answer = await ask(served, "GET", "/status")
        assert status == 200
        assert (answer["engine"], answer["model"], answer["outbox_depth"]) == (NO_ENGINE, None, 0)
        assert answer["bridges"] is None


async def test_status_says_which_turns_are_exact_once_the_model_is_known(tmp_path: Path) -> None:
    with scripted_engine([{"text": "x"}]) as engine:
        async with serve(tmp_path, engine.address) as served:
            await served.gateway.model.get()
            _, answer = await ask(served, "GET", "/status")
            assert answer["bridges"]["parallel tool results"] == "exact"
            assert set(answer["bridges"].values()) == {"exact"}, "our own template keeps everything"


async def test_artefacts_and_what_the_calls_add_up_to(tmp_path: Path) -> None:
    entry = {"name": "changes.diff", "content_type": "text/x-diff", "data": "/wA=", "omitted": 7}
    async with serve(tmp_path, NO_ENGINE) as served:
        path = f"/episodes/{served.episode_id}"
        status, _ = await ask(served, "POST", f"{path}/artefacts", {"artefacts": [entry]})
        _, episode = await ask(served, "GET", path)
        with served.gateway.database.reading() as session:
            stored = read_artefact(session, served.episode_id, "changes.diff")
        refused, answer = await ask(served, "POST", f"{path}/artefacts", {"artefacts": [entry | {"name": "a/b"}]})

    assert status == 200
    assert stored == Artefact("changes.diff", "text/x-diff", b"\xff\0", 7)
    (shown,) = episode["artefacts"]
    assert (shown["name"], shown["size"], shown["omitted"]) == ("changes.diff", 2, 7)
    assert (episode["calls"], episode["prompt_tokens"], episode["completion_tokens"]) == ({}, 0, 0)
    assert (refused, "no name of an artefact" in answer["error"]["message"]) == (400, True)


async def test_an_operator_that_leaves_is_no_error_of_ours(tmp_path: Path) -> None:
    async with serve(tmp_path, NO_ENGINE) as served:
        headers = tuple((name.encode(), value.encode()) for name, value in OPERATOR.items())
        request = Request("control", "POST", "/dragoman/episodes", "", headers, b"{}", "sending", (), frozenset())
        assert (await asgi.ask(create_app(served.gateway), request)).status == 499
        assert served.gateway.unexpected == 0
