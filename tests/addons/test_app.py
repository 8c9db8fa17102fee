"""The call coroutine, served by uvicorn in the test's own loop, with a scripted engine behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from dragoman.addons import answer, control, keeper, respond
from dragoman.addons.app import create_app
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import TICKET_HEADER, Hop, Tickets
from dragoman.addons.identity import Credentials, new_token
from dragoman.addons.providers.anthropic import ANTHROPIC
from dragoman.addons.settings import Settings
from dragoman.store.calls import read_calls
from dragoman.store.records import CallOutcome, EpisodeSpec
from tests.scripted import Scripted, scripted_engine

STEPS: list[dict[str, Any]] = [
    {"match": "HOLD-FIRST", "text": "one two three", "hold": "first", "repeat": True},
    {"match": "HOLD-LAST", "text": "one two three four", "hold": "last", "repeat": True},
    {"match": "FAIL-503", "fail": 503, "repeat": True},
    {"match": "FAIL-LATER", "text": "one two three four", "error_after": 2, "repeat": True},
    {"match": "NO-EVIDENCE", "text": "one two", "flaw": "no_evidence", "repeat": True},
    {"match": "CALL", "tool_calls": [{"name": "write", "arguments": {"path": "a"}}], "text": "Now.", "repeat": True},
    {"text": "Hello there.", "repeat": True},
]
TOOL = {"name": "write", "description": "writes", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine(STEPS) as running:
        yield running


class Served:
    """A gateway being served, one open episode, and a client that has its key."""

    def __init__(self, gateway: Gateway, address: str, episode_id: str, token: str) -> None:
        self.gateway, self.address, self.episode_id = gateway, address, episode_id
        self.http = httpx.AsyncClient(
            base_url=address, headers={"x-api-key": f"dgm_{token}"}, trust_env=False, timeout=30
        )

    def outcomes(self) -> list[CallOutcome | None]:
        with self.gateway.database.session() as session:
            return [call.outcome for call in read_calls(session, self.episode_id)]

    async def last_outcome(self) -> CallOutcome:
        """The outcome of the newest call, once it has one."""
        while not (outcomes := self.outcomes()) or outcomes[-1] is None:
            await asyncio.sleep(0.01)
        return outcomes[-1]


@asynccontextmanager
async def serve(
    tmp_path: Path, engine: str, *, tickets: Tickets | None = None, **settings: Any
) -> AsyncIterator[Served]:
    values = Settings(
        store=f"sqlite:///{tmp_path / 'd.db'}", operator_key="dgo_test", engine=engine, max_reply_tokens=64
    )
    gateway = Gateway(replace(values, **settings), tickets)
    await gateway.start()
    server = uvicorn.Server(
        uvicorn.Config(create_app(gateway), port=0, lifespan="off", log_level="warning", ws="wsproto")
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    token = new_token()
    episode = gateway.open_episode(EpisodeSpec(task="t"), token, 1000)
    served = Served(gateway, f"http://127.0.0.1:{port}", episode.id, token)
    try:
        yield served
    finally:
        await served.http.aclose()
        server.should_exit = True
        await gateway.stop()
        await task


def anthropic(text: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 50, "stream": stream, "messages": [{"role": "user", "content": text}], **more}


async def test_a_whole_reply_and_its_row(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        reply = (await served.http.post("/v1/messages", json=anthropic("CALL", tools=[TOOL]))).json()
        assert [block["type"] for block in reply["content"]] == ["text", "tool_use"]
        assert reply["content"][1]["input"] == {"path": "a"}
        assert reply["stop_reason"] == "tool_use"
        (outcome,) = served.outcomes()
        assert outcome is not None
        assert (outcome.status, outcome.finish_reason) == ("answered", "tool_calls")
        assert outcome.completion_ids is not None
        assert reply["usage"]["output_tokens"] == len(outcome.completion_ids)
        assert reply["usage"]["input_tokens"] == outcome.prompt_len
        assert outcome.prompt_ids is not None
        assert engine.requests()[-1]["prompt_ids"] == outcome.prompt_ids.tolist()
        assert outcome.policy_spans[0].version == "base"
        assert reply["content"][1]["id"].startswith(f"toolu_{outcome.id}_")


async def test_the_first_delta_arrives_before_the_engines_last_token(tmp_path: Path, engine: Scripted) -> None:
    async with (
        serve(tmp_path, engine.address) as served,
        served.http.stream("POST", "/v1/messages", json=anthropic("HOLD-LAST", stream=True)) as response,
    ):
        seen = b""
        chunks = response.aiter_bytes()
        async for chunk in chunks:
            seen += chunk
            if b"text_delta" in seen:
                break
        assert engine.requests()[-1]["state"] == "running"
        assert served.outcomes() == [None]
        engine.release()
        async for chunk in chunks:
            seen += chunk
        assert seen.endswith(b'data: {"type":"message_stop"}\n\n')
        assert (await served.last_outcome()).status == "answered"


async def test_the_row_is_there_when_the_closing_event_arrives(tmp_path: Path, engine: Scripted) -> None:
    async with (
        serve(tmp_path, engine.address) as served,
        served.http.stream("POST", "/v1/messages", json=anthropic("CALL", stream=True, tools=[TOOL])) as response,
    ):
        async for chunk in response.aiter_bytes():
            if b"tool_use" in chunk:
                (outcome,) = served.outcomes()
                assert outcome is not None
                break
        else:
            pytest.fail("no tool call came")


async def test_silence_is_filled_with_keep_alives_in_the_dialects_form(tmp_path: Path, engine: Scripted) -> None:
    async with (
        serve(tmp_path, engine.address, keep_alive=0.05) as served,
        served.http.stream("POST", "/v1/messages", json=anthropic("HOLD-FIRST", stream=True)) as response,
    ):
        seen = b""
        released = False
        async for chunk in response.aiter_bytes():
            seen += chunk
            if seen.count(b'{"type":"ping"}') >= 2 and not released:
                released = True
                engine.release()
        assert seen.endswith(b'data: {"type":"message_stop"}\n\n')


async def test_a_slow_whole_reply_starts_with_white_space(tmp_path: Path, engine: Scripted) -> None:
    async with (
        serve(tmp_path, engine.address, patience=0.05, keep_alive=0.05) as served,
        served.http.stream("POST", "/v1/messages", json=anthropic("HOLD-FIRST")) as response,
    ):
        assert response.status_code == 200
        seen = b""
        released = False
        async for chunk in response.aiter_bytes():
            seen += chunk
            if len(seen) >= 3 and not released:
                released = True
                engine.release()
        assert seen.startswith(b"   ")
        assert json.loads(seen)["content"][0]["text"] == "one two three"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_refuses_is_an_error_status(tmp_path: Path, engine: Scripted, stream: bool) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.post("/v1/messages", json=anthropic("FAIL-503", stream=stream))
        assert response.status_code == 529
        assert response.json()["error"]["type"] == "overloaded_error"
        assert response.headers["retry-after"] == "5"
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.error_code) == ("failed", "overloaded")


async def test_a_dead_engine_is_an_error_status(tmp_path: Path) -> None:
    async with serve(tmp_path, "http://127.0.0.1:9") as served:
        response = await served.http.post("/v1/messages", json=anthropic("x", stream=True))
        assert response.status_code == 529
        assert "127.0.0.1:9" in response.json()["error"]["message"]
        assert (await served.last_outcome()).status == "failed"


async def test_a_failure_after_the_headers_is_an_in_stream_error(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.post("/v1/messages", json=anthropic("FAIL-LATER", stream=True))
        assert response.status_code == 200
        assert b"event: error" in response.content
        assert b"message_stop" not in response.content
        outcome = await served.last_outcome()
        assert outcome.status == "failed"
        assert outcome.completion_ids is not None
        assert len(outcome.completion_ids) == 2


async def test_a_logprob_without_evidence_is_not_stored_as_data(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.post("/v1/messages", json=anthropic("NO-EVIDENCE"))
        assert response.status_code == 502
        outcome = await served.last_outcome()
        assert outcome.status == "failed"
        assert outcome.logprobs is None or -9999.0 not in outcome.logprobs.tolist()


async def test_a_client_that_leaves_is_recorded_as_aborted_and_the_engine_is_told(
    tmp_path: Path, engine: Scripted
) -> None:
    async with serve(tmp_path, engine.address, grace=0.0) as served:
        async with served.http.stream("POST", "/v1/messages", json=anthropic("HOLD-LAST", stream=True)) as response:
            async for chunk in response.aiter_bytes():
                if b"text_delta" in chunk:
                    break
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.error_code, outcome.finish_reason) == ("aborted", "client_left", "abort")
        assert outcome.completion_ids is not None
        assert len(outcome.completion_ids) > 0
        while engine.requests()[-1]["state"] == "running":
            await asyncio.sleep(0.01)
        assert engine.requests()[-1]["state"] == "aborted"


async def test_a_client_of_a_whole_reply_that_leaves_is_noticed_too(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, grace=0.0) as served:
        with pytest.raises(httpx.ReadTimeout):
            await served.http.post("/v1/messages", json=anthropic("HOLD-FIRST"), timeout=0.5)
        assert (await served.last_outcome()).status == "aborted"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b'{"model": "m", "messages": []}', 400, "invalid_request"),
        (json.dumps(anthropic("x" * 400_000)).encode(), 400, "context_too_long"),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_stored(
    tmp_path: Path, engine: Scripted, body: bytes, status: int, code: str
) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.post("/v1/messages", content=body)
        assert response.status_code == status
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.http_status, outcome.error_code) == ("refused", status, code)


async def test_a_body_over_the_limit_is_refused(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, request_limit=1000) as served:
        response = await served.http.post("/v1/messages", json=anthropic("x" * 2000))
        assert response.status_code == 413


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/models"])
async def test_without_a_known_token_nothing_is_answered_or_stored(tmp_path: Path, engine: Scripted, path: str) -> None:
    async with serve(tmp_path, engine.address) as served:
        method = "GET" if path.endswith("models") else "POST"
        for key in ("sk-ant-real", f"dgm_{'0' * 32}", "dgm_short", "dgo_test"):
            response = await served.http.request(method, path, headers={"x-api-key": key}, json=anthropic("x"))
            assert response.status_code == 401, key
        assert served.outcomes() == []


async def test_an_ended_and_an_expired_episode_take_no_more_calls(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        operator = {"authorization": "Bearer dgo_test"}
        ended = await served.http.post(f"/dragoman/episodes/{served.episode_id}/end", json={}, headers=operator)
        assert ended.status_code == 200
        assert (await served.http.post("/v1/messages", json=anthropic("x"))).status_code == 401
        token = new_token()
        served.gateway.open_episode(EpisodeSpec(), token, -1)
        late = await served.http.post("/v1/messages", json=anthropic("x"), headers={"x-api-key": f"dgm_{token}"})
        assert late.status_code == 401


async def test_count_tokens_counts_the_real_prompt_and_samples_nothing(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        before = len(engine.requests())
        body = anthropic("How long is this?", tools=[TOOL])
        counted = (await served.http.post("/v1/messages/count_tokens", json=body)).json()
        assert len(engine.requests()) == before
        assert served.outcomes() == []
        reply = (await served.http.post("/v1/messages", json=body)).json()
        assert counted == {"input_tokens": reply["usage"]["input_tokens"]}


async def test_models_are_listed_in_each_dialect(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        listed = (await served.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        assert listed["data"][0]["type"] == "model"


async def test_unknown_paths_are_404_in_the_dialects_shape(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.post("/v1/embeddings", json={})
        assert response.status_code == 404
        assert "/v1/embeddings" in response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/embed%0Adings"), ("TRACE", "/v1/messages")])
async def test_what_the_router_does_not_take_is_404_in_the_dialects_shape(
    tmp_path: Path, engine: Scripted, method: str, path: str
) -> None:
    async with serve(tmp_path, engine.address) as served:
        response = await served.http.request(method, path)
        assert response.status_code == 404
        assert response.json()["error"]["message"].startswith(method)


async def test_a_model_name_may_hold_what_ends_a_path(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        body = {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
        response = await served.http.post("/v1beta/models/a%3Fb%23c:generateContent", json=body)
        assert response.status_code == 200, response.text
        assert (await served.last_outcome()).model == "a?b#c"


@pytest.mark.parametrize("path", ["/v1/messages", "/dragoman/status"])
async def test_a_host_header_that_is_none_disturbs_nothing(tmp_path: Path, engine: Scripted, path: str) -> None:
    async with serve(tmp_path, engine.address) as served:
        method, key = ("POST", {}) if path == "/v1/messages" else ("GET", {"authorization": "Bearer dgo_test"})
        for host in ("[", "a b", "a/b?c#d"):
            response = await served.http.request(method, path, json=anthropic("x"), headers={"host": host, **key})
            assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_what_the_model_cannot_be_shown_names_the_field(tmp_path: Path, engine: Scripted, path: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    async with serve(tmp_path, engine.address) as served:
        body = anthropic("x") | {"messages": [{"role": "user", "content": [image]}]}
        response = await served.http.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "messages: the model cannot see images"


async def test_with_tickets_only_a_ticket_opens_the_port(tmp_path: Path, engine: Scripted) -> None:
    tickets = Tickets()
    async with serve(tmp_path, engine.address, tickets=tickets) as served:
        assert (await served.http.post("/v1/messages", json=anthropic("x"))).status_code == 401
        assert (
            await served.http.get("/dragoman/status", headers={"authorization": "Bearer dgo_test"})
        ).status_code == 401
        token = new_token()
        served.gateway.open_episode(EpisodeSpec(), token, 1000)
        ticket = tickets.issue(Hop(Credentials(frozenset({token})), "api.anthropic.com", "http://x"))
        headers = {TICKET_HEADER: ticket}
        assert (await served.http.post("/v1/messages", json=anthropic("x"), headers=headers)).status_code == 200
        assert (await served.http.post("/v1/messages", json=anthropic("x"), headers=headers)).status_code == 401


async def test_in_open_mode_each_harness_session_gets_an_episode_of_its_own(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, open_mode=True) as served:
        for session in ("a", "a", "b"):
            headers = {"x-api-key": "sk-ant-own", "x-claude-code-session-id": session}
            assert (await served.http.post("/v1/messages", json=anthropic("x"), headers=headers)).status_code == 200
        assert set(served.gateway.opened_by_itself) == {"a", "b"}


async def test_a_legacy_completion_takes_text_or_ids(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        for prompt in ("Once upon", [5, 6, 7]):
            response = await served.http.post("/v1/completions", json={"model": "m", "prompt": prompt, "max_tokens": 4})
            assert response.status_code == 200, response.text
            assert response.json()["object"] == "text_completion"
        assert engine.requests()[-1]["prompt_ids"] == [5, 6, 7]


BUG = ZeroDivisionError("a bug")


def buggy(*_: Any, **__: Any) -> Any:
    raise BUG


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1beta/models/m:generateContent"])
@pytest.mark.parametrize("place", ["_parse", "_prepare", "_generation"])
async def test_a_bug_before_the_reply_is_the_providers_500_counted_and_recorded(
    tmp_path: Path,
    engine: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
    place: str,
) -> None:
    body = anthropic("x") | {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    async with serve(tmp_path, engine.address) as served:
        monkeypatch.setattr(answer, place, buggy)
        response = await served.http.post(path, json=body)
        assert response.status_code == 500
        assert "gateway failed" in response.json()["error"]["message"]
        assert "a bug" not in response.text
        assert served.gateway.unexpected == 1
        assert "ZeroDivisionError: a bug" in caplog.text
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.http_status, outcome.error_code) == ("failed", 500, "internal")


@pytest.mark.parametrize("patience", [20.0, 0.0])
async def test_a_bug_in_writing_a_whole_reply_is_counted(
    tmp_path: Path, engine: Scripted, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    async with serve(tmp_path, engine.address, patience=patience) as served:
        monkeypatch.setattr(type(ANTHROPIC), "render_reply", buggy)
        response = await served.http.post("/v1/messages", json=anthropic("x"))
        assert response.json()["error"]["type"] == "api_error"
        assert served.gateway.unexpected == 1
        assert not served.gateway.running


async def test_a_bug_in_the_middle_of_a_stream_is_its_in_stream_error(
    tmp_path: Path, engine: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, engine.address) as served:
        monkeypatch.setattr(respond, "merge_deltas", buggy)
        response = await served.http.post("/v1/messages", json=anthropic("x", stream=True))
        assert response.status_code == 200
        assert b'event: error\ndata: {"type":"error","error":{"type":"api_error"' in response.content
        assert served.gateway.unexpected == 1


async def test_a_bug_while_sampling_is_counted(
    tmp_path: Path, engine: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, engine.address) as served:
        monkeypatch.setattr(answer, "build_reply", buggy)
        assert (await served.http.post("/v1/messages", json=anthropic("x"))).status_code == 500
        assert (await served.last_outcome()).status == "failed"
        assert served.gateway.unexpected == 1


async def test_a_bug_in_the_control_api_is_counted(
    tmp_path: Path, engine: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, engine.address) as served:
        monkeypatch.setattr(control, "read_spec", buggy)
        operator = {"authorization": "Bearer dgo_test"}
        response = await served.http.post("/dragoman/episodes", json={}, headers=operator)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
        assert served.gateway.unexpected == 1


async def test_eight_at_once_do_not_wait_for_each_other(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        held = [asyncio.create_task(served.http.post("/v1/messages", json=anthropic("HOLD-FIRST"))) for _ in range(8)]
        while sum(asked["state"] == "running" for asked in engine.requests()) < 8:
            await asyncio.sleep(0.01)
        assert (await served.http.post("/v1/messages", json=anthropic("x"))).status_code == 200
        for _ in held:
            engine.release()
        assert [reply.status_code for reply in await asyncio.gather(*held)] == [200] * 8
        assert len(served.outcomes()) == 9


async def test_a_call_that_cannot_be_recorded_now_is_refused_and_recorded_later(
    tmp_path: Path, engine: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, engine.address) as served:
        monkeypatch.setattr(keeper, "ROOM_SECONDS", 0.0)
        monkeypatch.setattr(keeper, "QUEUE_LIMIT", -1)
        with served.gateway.database.session():  # nobody else can write: the answer does not wait for its record
            reply = await served.http.post("/v1/messages", json=anthropic("TEXT"))
        assert reply.status_code == 529
        assert "calls cannot be recorded now" in reply.text
        assert reply.headers["retry-after"] == "5"
        monkeypatch.setattr(keeper, "QUEUE_LIMIT", 10**9)
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.http_status, outcome.error_code) == ("failed", 529, "overloaded")
