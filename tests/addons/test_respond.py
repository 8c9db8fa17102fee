"""How a reply leaves, in every dialect: through the real app, with a scripted engine behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.addons.reply import EMPTY
from dragoman.store.records import CallOutcome
from tests.addons.test_app import Served, serve
from tests.scripted import Scripted, scripted_engine

STEPS: list[dict[str, Any]] = [
    {"match": "HOLD-FIRST", "text": "one two three", "hold": "first", "repeat": True},
    {"match": "HOLD-FAIL", "text": "one two three", "hold": "first", "error_after": 2, "repeat": True},
    {"match": "FAIL-503", "fail": 503, "repeat": True},
    {"match": "FAIL-400", "fail": 400, "message": "no such thing", "repeat": True},
    {"match": "FAIL-LATER", "text": "one two three four", "error_after": 2, "repeat": True},
    {"match": "EMPTY", "text": "", "repeat": True},
    {"match": "BLANK", "text": " \n", "repeat": True},
    {"match": "THINK", "reasoning": "Hm.", "text": "", "repeat": True},
    {"text": "Hello there.", "repeat": True},
]


@dataclass(frozen=True)
class Dialect:
    name: str
    stream: str
    """Path of a streamed reply."""
    whole: str
    body: Callable[[str, bool], dict[str, Any]]
    """From a prompt, and whether to stream."""
    started: bytes
    """Somewhere in every stream."""
    keep_alive: bytes
    error: bytes
    """In a stream that broke."""
    end: bytes
    """Last bytes of a stream that did not."""
    text: Callable[[dict[str, Any]], str]
    """Of a whole reply."""
    busy: int
    """Status while the engine cannot take the call."""


def _chat(prompt: str, stream: bool) -> dict[str, Any]:
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": prompt}]}


DIALECTS = (
    Dialect(
        name="anthropic",
        stream="/v1/messages",
        whole="/v1/messages",
        body=lambda prompt, stream: {**_chat(prompt, stream), "max_tokens": 50},
        started=b"event: message_start\n",
        keep_alive=b'event: ping\ndata: {"type":"ping"}\n\n',
        error=b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Internal server error: ',
        end=b'data: {"type":"message_stop"}\n\n',
        text=lambda reply: str(reply["content"][0]["text"]),
        busy=529,
    ),
    Dialect(
        name="chat",
        stream="/v1/chat/completions",
        whole="/v1/chat/completions",
        body=_chat,
        started=b'"role":"assistant"',
        keep_alive=b'"delta":{"content":""}',
        error=b'data: {"error":{"message":"Internal server error: ',
        end=b"data: [DONE]\n\n",
        text=lambda reply: str(reply["choices"][0]["message"]["content"]),
        busy=503,
    ),
    Dialect(
        name="responses",
        stream="/v1/responses",
        whole="/v1/responses",
        body=lambda prompt, stream: {"model": "m", "stream": stream, "input": prompt},
        started=b"event: response.created\n",
        keep_alive=b"event: response.in_progress\n",
        error=b"event: response.failed\n",
        end=b"}}\n\n",
        text=lambda reply: str(reply["output"][0]["content"][0]["text"]),
        busy=503,
    ),
    Dialect(
        name="google",
        stream="/v1beta/models/m:streamGenerateContent?alt=sse",
        whole="/v1beta/models/m:generateContent",
        body=lambda prompt, _: {"contents": [{"role": "user", "parts": [{"text": prompt}]}]},
        started=b'"modelVersion":"m"',
        keep_alive=b'"parts":[{"text":""}]',
        error=b'{"error":{"code":500,"message":"the engine answered 500: ',
        end=b"}\n\n",
        text=lambda reply: str(reply["candidates"][0]["content"]["parts"][0]["text"]),
        busy=503,
    ),
    Dialect(
        name="google array",
        stream="/v1beta/models/m:streamGenerateContent",
        whole="/v1/models/m:generateContent",
        body=lambda prompt, _: {"contents": [{"role": "user", "parts": [{"text": prompt}]}]},
        started=b'"modelVersion":"m"',
        keep_alive=b'"parts":[{"text":""}]',
        error=b'{"error":{"code":500,"message":"the engine answered 500: ',
        end=b"}]",
        text=lambda reply: str(reply["candidates"][0]["content"]["parts"][0]["text"]),
        busy=503,
    ),
)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine(STEPS) as running:
        yield running


async def _released_after(
    chunks: AsyncIterator[bytes], engine: Scripted, seen_enough: Callable[[bytes], bool]
) -> bytes:
    """All bytes of a reply that is held until enough of it was seen."""
    seen, held = b"", True
    try:
        async with asyncio.timeout(20):
            async for chunk in chunks:
                seen += chunk
                if held and seen_enough(seen):
                    held = False
                    engine.release()
    finally:
        if held:
            engine.release()
    return seen


@every_dialect
async def test_silence_is_filled_with_keep_alives(tmp_path: Path, engine: Scripted, dialect: Dialect) -> None:
    async with (
        serve(tmp_path, engine.address, keep_alive=0.05) as served,
        served.http.stream("POST", dialect.stream, json=dialect.body("HOLD-FIRST", True)) as response,
    ):
        assert response.status_code == 200
        # four, since the start of a stream may hold the same
        seen = await _released_after(response.aiter_bytes(), engine, lambda seen: seen.count(dialect.keep_alive) >= 4)
        assert dialect.started in seen
        assert seen.endswith(dialect.end)
        assert b"\n:" not in seen, "comments break Gemini CLI"
        assert not seen.startswith(b":")


@every_dialect
async def test_a_slow_whole_reply_begins_with_white_space(tmp_path: Path, engine: Scripted, dialect: Dialect) -> None:
    async with (
        serve(tmp_path, engine.address, patience=0.05, keep_alive=0.05) as served,
        served.http.stream("POST", dialect.whole, json=dialect.body("HOLD-FIRST", False)) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        seen = await _released_after(response.aiter_bytes(), engine, lambda seen: len(seen) >= 3)
        assert seen.startswith(b"   ")
        assert dialect.text(json.loads(seen)) == "one two three"


@every_dialect
async def test_a_slow_whole_reply_that_fails_is_the_dialects_error(
    tmp_path: Path, engine: Scripted, dialect: Dialect
) -> None:
    async with serve(tmp_path, engine.address, patience=0.05, keep_alive=0.05) as served:
        async with served.http.stream("POST", dialect.whole, json=dialect.body("HOLD-FAIL", False)) as response:
            seen = await _released_after(response.aiter_bytes(), engine, lambda seen: len(seen) >= 2)
        assert seen.startswith(b" ")
        assert "scripted failure" in json.loads(seen)["error"]["message"]
        assert (await served.last_outcome()).status == "failed"


@every_dialect
async def test_a_failure_in_a_stream_is_the_dialects_error(tmp_path: Path, engine: Scripted, dialect: Dialect) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.post(dialect.stream, json=dialect.body("FAIL-LATER", True))
        assert response.status_code == 200
        assert dialect.error in response.content
        if dialect.name == "responses":
            assert b"Internal server error: the engine answered 500: scripted failure" in response.content
            assert b"event: response.completed" not in response.content
        elif not dialect.name.startswith("google"):
            assert dialect.end not in response.content
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.error_code) == ("failed", "engine_failed")
        assert outcome.completion_ids is not None
        assert len(outcome.completion_ids) == 2


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_busy_is_a_status(
    tmp_path: Path, engine: Scripted, dialect: Dialect, stream: bool
) -> None:
    async with serve(tmp_path, engine.address) as served:
        path = dialect.stream if stream else dialect.whole
        response = await served.http.post(path, json=dialect.body("FAIL-503", stream))
        assert response.status_code == dialect.busy
        assert response.headers["retry-after"] == "5"
        assert "scripted failure" in response.json()["error"]["message"]


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_is_refused(
    tmp_path: Path, engine: Scripted, dialect: Dialect, stream: bool
) -> None:
    async with serve(tmp_path, engine.address) as served:
        path = dialect.stream if stream else dialect.whole
        response = await served.http.post(path, json=dialect.body("FAIL-400", stream))
        assert response.status_code == 400
        assert "no such thing" in response.json()["error"]["message"]
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.http_status) == ("refused", 400)


REQUEST_ID = {"anthropic": "request-id", "chat": "x-request-id", "responses": "x-request-id"}


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Hi", "FAIL-LATER", "FAIL-503"])
async def test_a_reply_names_its_request_as_the_provider_does(
    tmp_path: Path, engine: Scripted, dialect: Dialect, stream: bool, prompt: str
) -> None:
    async with serve(tmp_path, engine.address) as served:
        path = dialect.stream if stream else dialect.whole
        response = await served.http.post(path, json=dialect.body(prompt, stream))
        outcome = await served.last_outcome()
        said = {name: response.headers.get(name) for name in ("request-id", "x-request-id")}
        wanted = REQUEST_ID.get(dialect.name)
        assert said == {name: f"req_{outcome.id}" if name == wanted else None for name in said}


# -- what a harness cannot take ----------------------------------------------------------------------------------------


async def _said(served: Served, agent: str, prompt: str, stream: bool) -> tuple[str, CallOutcome]:
    """The text that a harness is shown, and the row."""
    body = _chat(prompt, stream)
    response = await served.http.post("/v1/chat/completions", json=body, headers={"user-agent": agent})
    outcome = await served.last_outcome()
    if not stream:
        return response.json()["choices"][0]["message"]["content"] or "", outcome
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]), outcome


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "shown"), [("EMPTY", EMPTY), ("BLANK", f" \n{EMPTY}"), ("THINK", EMPTY)])
async def test_qwen_code_is_never_shown_nothing(
    tmp_path: Path, engine: Scripted, prompt: str, shown: str, stream: bool
) -> None:
    async with serve(tmp_path, engine.address) as served:
        text, qwen = await _said(served, "QwenCode/0.24.4 (linux; x64)", prompt, stream)
        assert text == shown
        other_text, other = await _said(served, "opencode/1.18.33", prompt, stream)
        assert other_text == shown.removesuffix(EMPTY)
        assert qwen.completion_ids is not None
        assert other.completion_ids is not None
        assert qwen.completion_ids.tolist() == other.completion_ids.tolist(), "what was sampled stays as it is"
        assert qwen.reply is not None
        assert EMPTY.encode() in qwen.reply.data, "what was shown is on record"
        assert other.reply is None or EMPTY.encode() not in other.reply.data


async def test_qwen_code_gets_a_reply_that_says_something_as_it_is(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        assert (await _said(served, "QwenCode/0.24.4 (linux; x64)", "Hi", True))[0] == "Hello there."


async def test_a_reply_that_was_cut_is_complete_to_codex_and_incomplete_to_the_sdk(
    tmp_path: Path, engine: Scripted
) -> None:
    async with (
        serve(tmp_path, engine.address) as served,
        openai.AsyncOpenAI(
            base_url=f"{served.address}/v1", api_key=served.http.headers["x-api-key"], max_retries=0
        ) as client,
    ):
        async with client.responses.stream(model="m", input="Hi", max_output_tokens=1) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert "response.incomplete" not in kinds
        assert final.status == "incomplete"
        assert final.incomplete_details is not None
        assert final.incomplete_details.reason == "max_output_tokens"
        whole = await client.responses.create(model="m", input="Hi", max_output_tokens=1)
        assert (whole.status, whole.output_text) == ("incomplete", final.output_text)
        assert (await served.last_outcome()).finish_reason == "length"


def test_the_table_has_every_dialect() -> None:
    from dragoman.addons.providers import PROVIDERS, find_provider

    found = set()
    for dialect in DIALECTS:
        url = httpx.URL(dialect.stream)
        provider = find_provider(host=None, method="POST", path=url.path, query=url.query.decode(), headers={})
        assert provider is not None
        found.add(provider[0].name)
    assert found == {provider.name for provider in PROVIDERS}
