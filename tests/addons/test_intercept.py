"""The addon in a real mitmdump, driven by official SDKs and plain clients, with a scripted engine behind it."""

import base64
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_socket

from dragoman.gateway_client import OpenedEpisode
from tests.gateway import RunningGateway, running_gateway
from tests.scripted import Scripted, scripted_engine

STEPS: list[dict[str, Any]] = [
    {"match": "HOLD-LAST", "text": "one two three four", "hold": "last", "repeat": True},
    {"match": "CALL", "text": "Now.", "tool_calls": [{"name": "write", "arguments": {"path": "a"}}], "repeat": True},
    {"text": "Hello there.", "repeat": True},
]
PROVIDER = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine(STEPS) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: Scripted) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway") / "home", engine.address) as running:
        yield running


@pytest.fixture(scope="module")
def gateway_without(tmp_path_factory: pytest.TempPathFactory, engine: Scripted) -> Iterator[RunningGateway]:
    """Takes no WebSockets."""
    home = tmp_path_factory.mktemp("gateway") / "home"
    with running_gateway(home, engine.address, settings={"dragoman_websockets": "false"}) as running:
        yield running


def proxied(gateway: RunningGateway, token: str) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(gateway.ca))
    return httpx.Client(proxy=gateway.proxy(token), verify=context, trust_env=False, timeout=30)


def said(gateway: RunningGateway, dialect: str, mode: str, stream: bool, prompt: str = "Hi") -> tuple[str, str]:
    """One call by an official SDK; the episode's id and the text that came."""
    episode = gateway.open(task="t")
    key = episode.api_key if mode == "base-url" else "sk-not-used"
    sdk = anthropic if dialect == "anthropic" else openai
    trust = ssl.create_default_context(cafile=str(gateway.ca))
    http: Any = sdk.DefaultHttpxClient(proxy=gateway.proxy(episode.token), verify=trust) if mode == "proxy" else None
    messages: Any = [{"role": "user", "content": prompt}]
    if dialect == "anthropic":
        base = gateway.address if mode == "base-url" else PROVIDER["anthropic"]
        client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, http_client=http)
        with client.messages.stream(model="m", max_tokens=50, messages=messages) as events:
            reply = events.get_final_message()
        if not stream:
            reply = client.messages.create(model="m", max_tokens=50, messages=messages)  # type: ignore[assignment]
        return episode.id, "".join(block.text for block in reply.content if block.type == "text")
    base = f"{gateway.address}/v1" if mode == "base-url" else PROVIDER["openai"]
    chat = openai.OpenAI(base_url=base, api_key=key, max_retries=0, http_client=http).chat.completions
    if stream:
        chunks = chat.create(model="m", messages=messages, stream=True)
        return episode.id, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return episode.id, chat.create(model="m", messages=messages).choices[0].message.content or ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["proxy", "base-url"])
@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_official_sdks_get_their_reply_on_one_port(
    gateway: RunningGateway, dialect: str, mode: str, stream: bool
) -> None:
    episode_id, text = said(gateway, dialect, mode, stream)
    assert text == "Hello there."
    calls = gateway.calls(episode_id)
    assert {call.outcome and call.outcome.status for call in calls} == {"answered"}


@pytest.mark.parametrize(
    ("host", "path", "prefix"),
    [
        ("openrouter.ai", "/api/v1/chat/completions", "call_"),
        ("api.openai.com", "/v1/chat/completions", "call_"),
        ("api.anthropic.com", "/v1/messages?beta=true", "toolu_"),
    ],
)
def test_provider_hosts_are_answered_in_their_dialect(
    gateway: RunningGateway, host: str, path: str, prefix: str
) -> None:
    episode = gateway.open()
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "CALL"}]}
    with proxied(gateway, episode.token) as client:
        response = client.post(f"https://{host}{path}", json=body, headers={"authorization": "Bearer sk-own"})
    assert response.status_code == 200, response.text
    assert f'"id":"{prefix}' in response.text
    assert "uvicorn" not in str(response.headers)


def test_the_first_delta_passes_the_proxy_before_the_engines_last_token(
    gateway: RunningGateway, engine: Scripted
) -> None:
    episode = gateway.open()
    body = {"model": "m", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "HOLD-LAST"}]}
    with (
        proxied(gateway, episode.token) as client,
        client.stream("POST", "https://api.anthropic.com/v1/messages", json=body) as response,
    ):
        chunks = response.iter_bytes()
        seen = b""
        while b"text_delta" not in seen:
            seen += next(chunks)
        assert engine.requests()[-1]["state"] == "running"
        engine.release()
        assert b"message_stop" in seen + b"".join(chunks)


SOCKETS = [
    "wss://api.openai.com/v1/responses",
    "wss://chatgpt.com/backend-api/codex/responses",
    "{address}/v1/responses",
    "{address}/e/{token}/v1/responses",
    "{address}/e/{token}/backend-api/codex/responses",
]


def open_socket(gateway: RunningGateway, episode: OpenedEpisode, url: str) -> ClientConnection:
    """With compression, as Codex offers it."""
    address = gateway.address.replace("http://", "ws://")
    by_proxy = url.startswith("wss")
    key = "sk-of-a-provider" if by_proxy or "/e/" in url else episode.api_key
    trust = ssl.create_default_context(cafile=str(gateway.ca)) if by_proxy else None
    return connect_socket(
        url.format(address=address, token=episode.token),
        additional_headers={"authorization": f"Bearer {key}"},
        proxy=gateway.proxy(episode.token) if by_proxy else None,
        ssl=trust,
        max_size=None,
    )


def reply_on(socket: ClientConnection, **body: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": "response.create", "model": "m", **body}))
    while (event := json.loads(socket.recv(timeout=30)))["type"] not in ("response.completed", "error"):
        pass
    return dict(event)


@pytest.mark.parametrize("url", SOCKETS)
def test_a_websocket_takes_turns_and_its_flow_is_saved_as_the_harness_meant_it(
    tmp_path: Path, engine: Scripted, url: str
) -> None:
    flows = tmp_path / "flows"
    with running_gateway(tmp_path / "home", engine.address, "-w", str(flows)) as gateway:
        episode = gateway.open(task="t")
        large = "x" * 300_000
        with open_socket(gateway, episode, url) as socket:
            first = reply_on(socket, input="Hi", store=False, metadata={"large": large})["response"]
            second = reply_on(socket, input="Öl ☀", store=False, previous_response_id=first["id"])["response"]
        assert second["output"][0]["content"][0]["text"] == "Hello there."
        _, call = gateway.calls(episode.id)
        assert call.outcome is not None
        assert (call.outcome.parent_id, call.outcome.fork_reason) == (first["id"].removeprefix("resp_"), None)
    with flows.open("rb") as file:
        saved = [f for f in FlowReader(file).stream() if isinstance(f, HTTPFlow) and f.websocket is not None]
    (flow,) = saved
    assert flow.websocket is not None
    wanted = url.format(address=gateway.address, token=episode.token).replace("wss://", "https://")
    assert flow.request.pretty_url == wanted.replace(f"/e/{episode.token}", "")
    assert {"authorization", "x-dragoman-ticket"}.isdisjoint(flow.request.headers)
    asked = [json.loads(message.content) for message in flow.websocket.messages if message.from_client]
    assert [body["input"] for body in asked] == ["Hi", "Öl ☀"]
    assert asked[0]["metadata"]["large"] == large
    said = [json.loads(message.content)["type"] for message in flow.websocket.messages if not message.from_client]
    assert said.count("response.completed") == 2
    assert episode.token.encode() not in flows.read_bytes()


def test_a_websocket_needs_a_credential(gateway: RunningGateway) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect_socket(gateway.address.replace("http://", "ws://") + "/v1/responses", proxy=None)
    assert caught.value.response.status_code == 401


def test_a_message_that_is_too_large_closes_the_socket(gateway: RunningGateway) -> None:
    episode = gateway.open()
    with open_socket(gateway, episode, "{address}/v1/responses") as socket:
        with pytest.raises(ConnectionClosed) as caught:
            reply_on(socket, input="x" * (65 * 1024 * 1024))
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


@pytest.mark.parametrize("url", SOCKETS)
def test_websockets_can_be_refused(gateway_without: RunningGateway, url: str) -> None:
    episode = gateway_without.open()
    with pytest.raises(InvalidStatus) as caught:
        open_socket(gateway_without, episode, url)
    assert caught.value.response.status_code == 426
    assert b"use HTTP" in (caught.value.response.body or b"")
    assert gateway_without.calls(episode.id) == []


# -- who may ---------------------------------------------------------------------------------------------------------


def connect(gateway: RunningGateway, authorization: str | None) -> bytes:
    """The answer to a CONNECT, as bytes."""
    host, port = gateway.address.removeprefix("http://").split(":")
    header = f"Proxy-Authorization: {authorization}\r\n" if authorization else ""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            f"CONNECT api.anthropic.com:443 HTTP/1.1\r\nHost: api.anthropic.com:443\r\n{header}\r\n".encode()
        )
        return connection.recv(4096)


@pytest.mark.parametrize("user", [None, "nobody", "0" * 32, "dgm_" + "0" * 32])
def test_a_tunnel_without_a_known_token_is_407_with_a_challenge(gateway: RunningGateway, user: str | None) -> None:
    credentials = None if user is None else "Basic " + base64.b64encode(f"{user}:x".encode()).decode()
    answer = connect(gateway, credentials).lower()
    assert answer.startswith(b"http/1.1 407")
    assert b"proxy-authenticate: basic" in answer


def test_a_tunnel_with_a_token_opens(gateway: RunningGateway) -> None:
    credentials = base64.b64encode(f"{gateway.open().token}:x".encode()).decode()
    assert connect(gateway, f"Basic {credentials}").startswith(b"HTTP/1.1 200")


def test_base_url_traffic_without_a_token_is_401(gateway: RunningGateway) -> None:
    for headers in ({}, {"x-api-key": "sk-ant-own"}, {"x-api-key": "dgm_" + "0" * 32}):
        response = httpx.post(f"{gateway.address}/v1/messages", json={}, headers=headers, trust_env=False)
        assert response.status_code == 401


def test_credentials_that_disagree_are_refused_and_nothing_is_stored(gateway: RunningGateway) -> None:
    one, other = gateway.open(), gateway.open()
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with proxied(gateway, one.token) as client:
        headers = {"x-api-key": other.api_key}
        response = client.post("https://api.anthropic.com/v1/messages", json=body, headers=headers)
    assert response.status_code == 401
    assert gateway.calls(one.id) == gateway.calls(other.id) == []


def test_the_internal_headers_cannot_be_sent_from_outside(gateway: RunningGateway) -> None:
    headers = {"x-dragoman-ticket": "0" * 32, "X-Dragoman-Other": "x"}
    response = httpx.post(f"{gateway.address}/v1/messages", json={}, headers=headers, trust_env=False)
    assert response.status_code == 401


def test_a_host_that_is_no_provider_is_404_at_once(gateway: RunningGateway) -> None:
    with proxied(gateway, gateway.open().token) as client:
        assert client.get("https://example.com/anything").status_code == 404
        assert client.get("http://example.com/anything").status_code == 404


def test_plain_http_through_the_proxy_needs_a_token_too(gateway: RunningGateway) -> None:
    with httpx.Client(proxy=gateway.address, trust_env=False) as client:
        assert client.get("http://example.com/").status_code == 407


def test_the_control_api_is_not_reachable_under_a_providers_name(gateway: RunningGateway) -> None:
    from dragoman.home import operator_key

    headers = {"authorization": f"Bearer {operator_key(gateway.home)}"}
    with proxied(gateway, gateway.open().token) as client:
        response = client.get("https://api.anthropic.com/dragoman/status", headers=headers)
    assert response.status_code in (401, 403)


# -- saved flows -----------------------------------------------------------------------------------------------------


def read_flows(path: Path) -> list[HTTPFlow]:
    with path.open("rb") as file:
        return [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]


def test_saved_flows_name_the_real_origin_hold_no_secret_and_replay_after_a_restart(
    tmp_path: Path, engine: Scripted
) -> None:
    saved, again = tmp_path / "saved.flow", tmp_path / "again.flow"
    home = tmp_path / "home"
    heard: list[bytes] = []
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "CALL"}]}
    with running_gateway(home, engine.address, "-w", str(saved)) as gateway:
        episode = gateway.open(task="saved")
        own = {"authorization": "Bearer sk-secret-own", "cookie": "secret-cookie=1", "x-api-key": "sk-secret-two"}
        with proxied(gateway, episode.token) as client:
            for stream in (False, True):
                url = "https://api.anthropic.com/v1/messages?beta=true"
                response = client.post(url, json={**body, "stream": stream}, headers=own)
                heard.append(response.content)
        for url in (
            f"{gateway.address}/e/{episode.token}/v1/messages",
            f"{gateway.address}/v1/messages?key={episode.api_key}",
        ):
            heard.append(httpx.post(url, json=body, trust_env=False).content)
        first_calls = [call.arrival for call in gateway.calls(episode.id)]
    assert len(first_calls) == 4

    raw = saved.read_bytes()
    for secret in (episode.token, "sk-secret-own", "sk-secret-two", "secret-cookie", "dgo_"):
        assert secret.encode() not in raw
    calls = [flow for flow in read_flows(saved) if flow.request.path.startswith("/v1/messages")]
    assert [flow.request.pretty_host for flow in calls[:2]] == ["api.anthropic.com"] * 2
    assert [(flow.request.scheme, flow.request.port) for flow in calls[:2]] == [("https", 443)] * 2
    assert calls[0].request.path == "/v1/messages?beta=true"
    assert [flow.request.path for flow in calls[2:]] == ["/v1/messages", "/v1/messages"]
    assert [flow.response.raw_content if flow.response else None for flow in calls] == heard

    with running_gateway(home, engine.address) as gateway:
        replayed = gateway.open(task="replayed")
    settings = {"dragoman_replay_token": replayed.token}
    arguments = ("-C", str(saved), "-w", str(again), "--set", "keepserving=true")
    with running_gateway(home, engine.address, *arguments, settings=settings) as gateway:
        while len([call for call in gateway.calls(replayed.id) if call.outcome]) < 4:
            assert gateway.child.returncode() is None
        assert [call.arrival for call in gateway.calls(episode.id)] == first_calls
    answers = [flow for flow in read_flows(again) if flow.request.path.startswith("/v1/messages")]
    assert [flow.response.status_code if flow.response else None for flow in answers] == [200] * 4
    assert [flow.request.content for flow in answers] == [flow.request.content for flow in calls]
    assert answers[0].response is not None
    assert json.loads(answers[0].response.content or b"")["content"][1]["name"] == "write"


def test_a_cut_stream_keeps_the_bytes_it_got(tmp_path: Path, engine: Scripted) -> None:
    saved = tmp_path / "cut.flow"
    body = {"model": "m", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "HOLD-LAST"}]}
    with running_gateway(tmp_path / "home", engine.address, "-w", str(saved)) as gateway:
        episode = gateway.open()
        with (
            proxied(gateway, episode.token) as client,
            client.stream("POST", "https://api.anthropic.com/v1/messages", json=body) as response,
        ):
            seen = b""
            for chunk in response.iter_bytes():
                seen += chunk
                if b"text_delta" in seen:
                    break
    (flow,) = [flow for flow in read_flows(saved) if flow.request.path == "/v1/messages"]
    assert flow.request.pretty_host == "api.anthropic.com"
    assert flow.response is not None
    assert flow.response.raw_content is not None
    assert flow.response.raw_content.startswith(seen)
    assert b"message_stop" not in flow.response.raw_content


# -- kill -9 ---------------------------------------------------------------------------------------------------------

KILLER = """
import os, signal
from dragoman.addons.recorder import Recorder

finish = Recorder.finish

async def finish_and_die(self, outcome):
    await finish(self, outcome)
    os.kill(os.getpid(), signal.SIGKILL)

Recorder.finish = finish_and_die
"""


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_kill_9_between_the_commit_and_the_closing_event_keeps_the_row(
    tmp_path: Path, engine: Scripted, dialect: str
) -> None:
    killer = tmp_path / "killer.py"
    killer.write_text(KILLER)
    with running_gateway(tmp_path / "home", engine.address, "-s", str(killer)) as gateway:
        episode = gateway.open()
        path = "/v1/messages" if dialect == "anthropic" else "/v1/chat/completions"
        body = {"model": "m", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        heard: list[bytes] = []

        def listen() -> None:
            headers = {"authorization": f"Bearer {episode.api_key}"}
            with httpx.stream("POST", gateway.address + path, json=body, headers=headers, trust_env=False) as response:
                for chunk in response.iter_bytes():
                    heard.append(chunk)

        with pytest.raises(httpx.TransportError):
            listen()
        seen = b"".join(heard)
        gateway.child.process.wait()
        assert b"message_stop" not in seen
        assert b'finish_reason":"' not in seen
        (call,) = gateway.calls(episode.id)
        assert call.outcome is not None
        assert call.outcome.status == "answered"
        assert call.outcome.completion_ids is not None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dragoman_egress": "sometimes"}, "dragoman_egress"),
        ({"dragoman_max_reply_tokens": "0"}, "dragoman_max_reply_tokens"),
        ({"dragoman_store": "sqlite:////proc/none/d.db"}, "/proc/none"),
        ({"dragoman_fsink": "true"}, "dragoman_fsink is no option"),
    ],
)
def test_a_bad_option_ends_the_start_with_a_plain_reason(tmp_path: Path, setting: dict[str, str], message: str) -> None:
    with (
        pytest.raises(AssertionError, match=message),
        running_gateway(tmp_path / "home", "http://127.0.0.1:9", settings=setting),
    ):
        pass
