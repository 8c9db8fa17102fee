"""Looking on: official SDKs through a real mitmdump to a stand-in for the provider, and what is recorded of it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import anthropic
import httpx
import openai
import pytest
from google import genai
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader

from dragoman.addons.blobs import read_message
from dragoman.addons.messages import TextPart, ToolCallPart
from dragoman.store.database import Database
from dragoman.store.ledger import audit
from dragoman.store.records import CallInfo
from tests.gateway import RunningGateway, running_gateway

CASES = Path(__file__).parent / "providers" / "cases"
KEY = "sk-real-provider-key-1234567890"
NOWHERE = "http://127.0.0.1:9"
PATHS = {
    "/v1/messages": "anthropic",
    "/v1/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
}


class Provider(BaseHTTPRequestHandler):
    """Answers every dialect with its golden tool call; ``REFUSE`` in a body gets a 400 that quotes the key."""

    seen: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        dialect = PATHS.get(self.path.partition("?")[0], "google")
        stream = json.loads(body).get("stream") or "stream" in self.path
        name = "response.sse" if stream else "response.json"
        answer, status = (CASES / dialect / "tool_call" / name).read_bytes(), 200
        if b"REFUSE" in body:
            answer, status = json.dumps({"error": {"message": f"your key {KEY} is no good"}}).encode(), 400
        self.send_response(status)
        kind = "text/event-stream" if stream and status == 200 else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, provider: str) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("observed")
    settings = {"dragoman_observe": provider}
    with running_gateway(folder / "home", NOWHERE, "-w", str(folder / "saved.flow"), settings=settings) as running:
        yield running


def ask(gateway: RunningGateway, dialect: str, stream: bool, prompt: str = "Hi") -> tuple[str, CallInfo]:
    """One call by an official SDK with a key of the provider's, and what was stored of it."""
    episode = gateway.open(task="t")
    base = f"{gateway.address}/e/{episode.token}"
    messages: Any = [{"role": "user", "content": prompt}]
    said: Any
    if dialect == "anthropic":
        client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0)
        if stream:
            with client.messages.stream(model="m", max_tokens=50, messages=messages) as events:
                said = events.get_final_message()
        else:
            said = client.messages.create(model="m", max_tokens=50, messages=messages)
    elif dialect == "google":
        google = genai.Client(api_key=KEY, http_options={"base_url": base})
        if stream:
            streamed = google.models.generate_content_stream(model="m", contents=prompt)
            said = [reply.model_dump_json() for reply in streamed]
        else:
            said = google.models.generate_content(model="m", contents=prompt)
    else:
        sdk = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0)
        call: Any = sdk.responses if dialect == "openai_responses" else sdk.chat.completions
        prompted = {"input": prompt} if dialect == "openai_responses" else {"messages": messages}
        said = call.create(model="m", stream=stream, **prompted)
        said = list(said) if stream else said
    return str(said), only_call(gateway, episode.id)


def only_call(gateway: RunningGateway, episode_id: str) -> CallInfo:
    """An episode's one call, when it has ended: its reply passes before it is recorded."""
    while True:
        (call,) = gateway.calls(episode_id)
        if call.outcome is not None:
            return call
        assert gateway.child.returncode() is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["anthropic", "openai_chat", "openai_responses", "google"])
def test_the_provider_answers_and_its_reply_is_recorded(gateway: RunningGateway, dialect: str, stream: bool) -> None:
    expected = json.loads((CASES / dialect / "tool_call" / "reply.json").read_text())["parts"]
    (name,) = [part["name"] for part in expected if part["type"] == "tool_call"]
    said, stored = ask(gateway, dialect, stream)
    assert name in said
    outcome = stored.outcome
    assert outcome is not None
    assert (outcome.status, outcome.error_code, outcome.error_message) == ("observed", None, None)
    assert (stored.arrival.provider, stored.arrival.kind, outcome.stream) == (dialect, "main", stream)
    assert [read_message(blob.data).parts for blob in outcome.messages] == [(TextPart("Hi"),)]
    assert outcome.reply is not None
    assert [part.name for part in read_message(outcome.reply.data).parts if isinstance(part, ToolCallPart)] == [name]
    assert (outcome.completion_ids, outcome.prompt_ids, outcome.logprobs) == (None, None, None)
    ledger = audit([stored])
    assert ledger.balances
    assert set(ledger.excluded_calls) == {"observed"}


def test_the_provider_gets_what_was_sent_and_its_own_key_but_none_of_ours(gateway: RunningGateway) -> None:
    episode = gateway.open()
    body = b'{"model":"m", "max_tokens":50,"messages":[{"role":"user","content":"as it is"}]}'
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "x-dragoman-ticket": "1", "x-own": "kept"}
    proxied = httpx.Client(proxy=gateway.proxy(episode.token), trust_env=False)
    with proxied as client:
        reply = client.post("http://api.anthropic.com/v1/messages?beta=true", content=body, headers=headers)
    assert reply.content == (CASES / "anthropic" / "tool_call" / "response.json").read_bytes()
    path, sent, content = Provider.seen[-1]
    assert (path, content) == ("/v1/messages?beta=true", body)
    assert (sent["x-api-key"], sent["x-own"]) == (KEY, "kept")
    assert not {"proxy-authorization", "x-dragoman-ticket"} & set(sent)
    assert episode.token not in str(sent)


def test_a_refusal_is_recorded_without_the_key_that_it_quotes(gateway: RunningGateway) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(gateway, "openai_chat", False, "REFUSE")
    episode = gateway.open()
    url = f"{gateway.address}/e/{episode.token}/v1/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "REFUSE"}]}
    assert httpx.post(url, json=body, headers={"authorization": f"Bearer {KEY}"}, trust_env=False).status_code == 400
    outcome = only_call(gateway, episode.id).outcome
    assert outcome is not None
    assert (outcome.status, outcome.http_status) == ("refused", 400)
    assert outcome.error_message == "your key redacted is no good"


def test_what_we_cannot_read_is_passed_on_and_recorded(gateway: RunningGateway) -> None:
    episode = gateway.open()
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "hologram"}]}]}
    url = f"{gateway.address}/e/{episode.token}/v1/chat/completions"
    assert httpx.post(url, json=body, headers={"authorization": f"Bearer {KEY}"}, trust_env=False).status_code == 200
    call = only_call(gateway, episode.id)
    assert call.outcome is not None
    assert call.outcome.status == "observed"
    assert call.outcome.reply is not None
    assert "hologram" in (call.outcome.error_message or "")


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"x-api-key": "dgm_{token}"}, 401, "a key of its own"),
        ({}, 401, "a key of its own"),
        ({"x-api-key": KEY, "upgrade": "websocket", "connection": "upgrade"}, 426, "use HTTP"),
    ],
)
def test_what_goes_nowhere_says_why(gateway: RunningGateway, headers: dict[str, str], status: int, says: str) -> None:
    episode = gateway.open()
    before = len(Provider.seen)
    filled = {name: value.format(token=episode.token) for name, value in headers.items()}
    reply = httpx.post(f"{gateway.address}/e/{episode.token}/v1/messages", json={}, headers=filled, trust_env=False)
    assert reply.status_code == status
    assert says in reply.json()["error"]["message"]
    assert len(Provider.seen) == before
    assert gateway.calls(episode.id) == []


def test_without_a_token_nothing_passes(gateway: RunningGateway) -> None:
    before = len(Provider.seen)
    for path in ("/v1/messages", f"/e/{'0' * 32}/v1/messages"):
        reply = httpx.post(gateway.address + path, json={}, headers={"x-api-key": KEY}, trust_env=False)
        assert reply.status_code == 401
    assert len(Provider.seen) == before


def test_no_key_is_written_anywhere(gateway: RunningGateway) -> None:
    ask(gateway, "anthropic", True)
    database = Database.open(gateway.store_url)
    database.close()
    folder = gateway.home.parent
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(b"redacted" in data for path, data in written.items() if path.name == "saved.flow")
    assert [path for path, data in written.items() if KEY.encode() in data] == []
    with (folder / "saved.flow").open("rb") as file:
        flows = [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]
    assert any(flow.response is not None and b"tool_use" in (flow.response.content or b"") for flow in flows)
