"""The control API's client: bodies as the API wants them, refusals in words that say what to do."""

from collections.abc import Callable
from typing import Any

import pytest

from dragoman.gateway_client import EpisodeState, GatewayClient, GatewayError
from dragoman.store.records import Artefact

OPENED = {
    "id": "abc",
    "token": "t" * 32,
    "api_key": "dgm_" + "t" * 32,
    "expires_at": 12.5,
    "environment": {"proxy": {"HTTPS_PROXY": "http://t:x@h"}, "base_url": {"OPENAI_BASE_URL": "http://h/v1"}},
}
STATUS = {"version": "0.1.0", "engine": "http://e", "store": "sqlite:///x.db", "outbox_depth": 0}


def test_open_sends_only_what_was_said(serve_stub: Callable[..., Any]) -> None:
    stub = serve_stub(lambda method, path, body: (201, OPENED))
    with GatewayClient(stub.address + "/", "dgo_key") as client:
        opened = client.open_episode(task="t", temperature=0.0, deadline_seconds=60.0)
    assert stub.requests == [
        ("POST", "/dragoman/episodes", {"task": "t", "temperature": 0.0, "deadline_seconds": 60.0})
    ]
    assert stub.headers[0]["authorization"] == "Bearer dgo_key"
    assert (opened.id, opened.expires_at, opened.proxy["HTTPS_PROXY"]) == ("abc", 12.5, "http://t:x@h")


def test_end_and_reward(serve_stub: Callable[..., Any]) -> None:
    stub = serve_stub(lambda method, path, body: (200, {}))
    with GatewayClient(stub.address, "k") as client:
        client.end_episode("abc", "failed", "exit 1")
        client.end_episode("abc", "completed")
        client.set_reward("abc", 0.5, {"tests": 1.0})
        client.set_reward("abc", -1.0)
    assert stub.requests == [
        ("POST", "/dragoman/episodes/abc/end", {"end": "failed", "reason": "exit 1"}),
        ("POST", "/dragoman/episodes/abc/end", {"end": "completed"}),
        ("POST", "/dragoman/episodes/abc/reward", {"reward": 0.5, "components": {"tests": 1.0}}),
        ("POST", "/dragoman/episodes/abc/reward", {"reward": -1.0}),
    ]


def test_artefacts_travel_as_base64(serve_stub: Callable[..., Any]) -> None:
    stub = serve_stub(lambda method, path, body: (200, {"artefacts": []}))
    with GatewayClient(stub.address, "k") as client:
        client.add_artefacts("abc", [Artefact("stdout.txt", "text/plain", b"\xff\0", omitted=3)])
    entry = {"name": "stdout.txt", "content_type": "text/plain", "data": "/wA=", "omitted": 3}
    assert stub.requests == [("POST", "/dragoman/episodes/abc/artefacts", {"artefacts": [entry]})]


def test_an_episode_says_how_it_stands(serve_stub: Callable[..., Any]) -> None:
    reply = {"end": None, "end_reason": None, "calls": {"answered": 2}, "prompt_tokens": 9, "completion_tokens": 4}
    stub = serve_stub(lambda method, path, body: (200, reply))
    with GatewayClient(stub.address, "k") as client:
        assert client.episode("abc") == EpisodeState(None, None, {"answered": 2}, 9, 4)
    assert stub.requests == [("GET", "/dragoman/episodes/abc", None)]


def test_status_leaves_unknown_facts_none(serve_stub: Callable[..., Any]) -> None:
    stub = serve_stub(lambda method, path, body: (200, STATUS))
    with GatewayClient(stub.address, "k") as client:
        status = client.status()
    assert (status.engine, status.model, status.outbox_depth) == ("http://e", None, 0)


def test_nobody_there(nobody: str) -> None:
    with GatewayClient(nobody, "k") as client, pytest.raises(GatewayError, match="dragoman serve") as caught:
        client.status()
    assert nobody in str(caught.value)
    assert caught.value.code is None


def test_a_proxy_of_the_shell_is_not_used(
    serve_stub: Callable[..., Any], nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", nobody)
    monkeypatch.setenv("http_proxy", nobody)
    stub = serve_stub(lambda method, path, body: (200, STATUS))
    with GatewayClient(stub.address, "k") as client:
        assert client.status().version == "0.1.0"


@pytest.mark.parametrize(
    ("status", "value", "code", "says"),
    [
        pytest.param(401, {"error": {"code": "unauthorized", "message": "bad key"}}, "unauthorized", "operator.key"),
        pytest.param(404, {"error": {"code": "not_found", "message": "no such episode"}}, "not_found", "no such"),
        pytest.param(404, {"detail": "Not Found"}, None, "is it a Dragoman gateway"),
        pytest.param(200, b"<html>", None, "without JSON"),
        pytest.param(200, [1], None, "is it a Dragoman gateway"),
    ],
)
def test_refusals(serve_stub: Callable[..., Any], status: int, value: Any, code: str | None, says: str) -> None:
    stub = serve_stub(lambda method, path, body: (status, value))
    with GatewayClient(stub.address, "k") as client, pytest.raises(GatewayError, match=says) as caught:
        client.end_episode("abc", "completed")
    assert caught.value.code == code
