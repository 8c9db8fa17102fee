"""A socket of the Responses API: OpenAI's own SDK, and the protocol by hand where that goes too far for it."""

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.addons.providers.openai_items import SUMMARISE, read_summary
from dragoman.addons.responses_socket import WAITING
from dragoman.store.calls import read_calls
from dragoman.store.records import CallInfo
from tests.addons.test_app import STEPS, Served, serve
from tests.scripted import Scripted, scripted_engine

Json = dict[str, Any]
TOOL: Json = {"type": "function", "name": "write", "parameters": {"type": "object"}}
SUMMARY = "We wrote a file."


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    asked = SUMMARISE.parts[0].text[:40]  # type: ignore[union-attr]
    with scripted_engine([{"match": asked, "text": SUMMARY, "repeat": True}, *STEPS]) as running:
        yield running


def key(served: Served) -> str:
    return str(served.http.headers["x-api-key"])


@asynccontextmanager
async def opened(served: Served, path: str = "/v1/responses", **headers: str) -> AsyncIterator[ClientConnection]:
    address = served.address.replace("http://", "ws://") + path
    said = {"authorization": f"Bearer {key(served)}", **headers}
    async with connect(address, additional_headers=said, proxy=None, max_size=None) as socket:
        yield socket


def create(text: str | list[Json] | None = "Hi", **more: Any) -> Json:
    said = [{"role": "user", "content": text}] if isinstance(text, str) else text
    return {"type": "response.create", "model": "m", "input": said, **more}


async def reply_to(socket: ClientConnection, message: Json) -> list[Json]:
    """All events of the reply, to its last."""
    await socket.send(json.dumps(message))
    return await next_reply(socket)


async def next_reply(socket: ClientConnection) -> list[Json]:
    events: list[Json] = []
    while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
        events.append(json.loads(await socket.recv()))
        if events[-1]["type"] == "error" and "status" not in events[-1]:
            events.append(json.loads(await socket.recv()))
    return events


async def final(socket: ClientConnection, message: Json) -> Json:
    """The response that the last event holds."""
    last = (await reply_to(socket, message))[-1]
    assert last["type"] == "response.completed", last
    response: Json = last["response"]
    return response


async def refusal(socket: ClientConnection, message: Json) -> tuple[int, str | None]:
    """Status and code of the one event that answers."""
    (event,) = await reply_to(socket, message)
    assert event["type"] == "error"
    assert event["error"]["message"]
    return event["status"], event["error"]["code"]


def stored(served: Served) -> list[CallInfo]:
    with served.gateway.database.reading() as session:
        return read_calls(session, served.episode_id)


# -- turns -----------------------------------------------------------------------------------------------------------


async def test_the_sdk_takes_turns_on_one_socket(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        client = openai.AsyncOpenAI(api_key=key(served), base_url=f"{served.address}/v1")
        async with client.responses.connect() as connection:
            warm: Any = {"type": "response.create", "model": "m", "input": "CALL", "tools": [TOOL], "store": False}
            warm["generate"] = False
            await connection.send(warm)
            assert [(await connection.recv()).type for _ in range(3)] == [
                *("response.created", "response.in_progress", "response.completed"),
            ]
            turn: Any = {"type": "response.create", "model": "m", "store": False, "tools": [TOOL]}
            warmed = stored(served)[0].arrival.id
            turn |= {"previous_response_id": f"resp_{warmed}", "input": []}
            await connection.send(turn)
            async for event in connection:
                if event.type == "response.completed":
                    first = event.response
                    break
            assert [item.type for item in first.output] == ["message", "function_call"]
            call: Any = first.output[1]
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "written"}
            turn |= {"previous_response_id": first.id, "input": [output]}
            await connection.send(turn)
            text = ""
            async for event in connection:
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type == "response.completed":
                    assert event.response.previous_response_id == first.id
                    assert event.response.output_text == text
                    break
        kinds = [(one.arrival.kind, one.outcome and one.outcome.status) for one in stored(served)]
        assert kinds == [("warm_up", "answered"), ("main", "answered"), ("main", "answered")]
        _, one, two = (info.outcome for info in stored(served))
        assert one is not None
        assert two is not None
        assert (two.parent_id, two.fork_reason, two.echo_changed) == (one.id, None, 0)
        assert one.completion_ids is not None
        assert two.shared_len == (one.prompt_len or 0) + len(one.completion_ids)


async def test_a_socket_says_what_a_stream_says(tmp_path: Path, engine: Scripted) -> None:
    """But for ids, times and the ``stream_id``; and both leave the same rows."""

    def plain(events: list[Json], call_id: str) -> Json:
        return json.loads(json.dumps(events).replace(call_id, "ID").replace("created_at", "at"))  # type: ignore[no-any-return]

    async with serve(tmp_path, engine.address) as served:
        message = create("CALL", tools=[TOOL], store=False, stream_id="lane")
        async with opened(served) as socket:
            over_socket = await reply_to(socket, message)
        assert {event.pop("stream_id") for event in over_socket} == {"lane"}
        response = await served.http.post("/v1/responses", json={**message, "stream": True})
        over_http = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        first, second = stored(served)
        for events in (over_socket, over_http):
            for event in events:
                event.get("response", {}).pop("created_at", None)
        both = (over_socket, over_http)  # how many deltas there are is a matter of time
        merged = [[event for event in events if not event["type"].endswith("delta")] for events in both]
        for events in merged:
            for event in events:
                event.pop("sequence_number")
        assert plain(merged[0], first.arrival.id) == plain(merged[1], second.arrival.id)
        assert first.outcome is not None
        assert second.outcome is not None
        assert first.outcome.messages == second.outcome.messages
        assert (first.arrival.path, first.outcome.stream) == (second.arrival.path, second.outcome.stream)


async def test_what_comes_during_a_reply_waits_its_turn(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served, opened(served) as socket:
        await socket.send(json.dumps(create("HOLD-LAST", stream_id="a")))
        await socket.send(json.dumps(create("Hi", stream_id="b")))
        before = len(engine.requests())
        while len(engine.requests()) == before or engine.requests()[-1]["state"] != "running":
            await asyncio.sleep(0.01)
        engine.release()
        first, second = await next_reply(socket), await next_reply(socket)
        assert {event["stream_id"] for event in first} == {"a"}
        assert {event["stream_id"] for event in second} == {"b"}


async def test_thread_and_kind_are_each_messages_own(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        headers = {"user-agent": "codex_exec/0.171.0 (x)", "thread-id": "t0", "x-codex-turn-metadata": "{}"}
        async with opened(served, **headers) as socket:
            await final(socket, create())
            metadata = {"thread_id": "t1", "x-codex-turn-metadata": '{"request_kind":"compaction"}', "other": "x"}
            await final(socket, create(client_metadata=metadata))
            await final(socket, create(client_metadata={"thread_id": "t2", "x-openai-subagent": "collab_spawn"}))
        found = [(one.arrival.harness, one.arrival.thread, one.arrival.kind) for one in stored(served)]
        assert found == [("codex", "t0", "main"), ("codex", "t1", "compaction"), ("codex", "t2", "subagent")]


# -- replies by their ids --------------------------------------------------------------------------------------------


async def test_an_unkept_reply_can_be_named_on_its_own_socket_only(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        async with opened(served) as socket:
            first = await final(socket, create("one", store=False))
            second = await final(socket, create("two", store=False, previous_response_id=first["id"]))
            # not the newest any more, so it comes from the store
            again = await final(socket, create("three", store=False, previous_response_id=first["id"]))
            assert (first["store"], second["previous_response_id"]) == (False, first["id"])
            again_call, first_call = stored(served)[2].outcome, stored(served)[0].outcome
            assert again_call is not None
            assert first_call is not None
            assert (again_call.parent_id, again_call.fork_reason) == (first_call.id, None)
        async with opened(served) as socket:
            named = create("x", previous_response_id=again["id"])
            assert await refusal(socket, named) == (400, "previous_response_not_found")
            assert (await final(socket, create("y")))["status"] == "completed"
        answer = await served.http.post("/v1/responses", json={"model": "m", "previous_response_id": first["id"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_kept_reply_can_be_named_over_http_after_a_restart_and_in_its_own_episode_only(
    tmp_path: Path, engine: Scripted
) -> None:
    tool: Json = {"type": "additional_tools", "tools": [{"type": "custom", "name": "patch"}]}
    async with serve(tmp_path, engine.address) as served, opened(served) as socket:
        said = [tool, {"role": "user", "content": "one"}]
        first = await final(socket, create(said, instructions="Be brief.", tools=[TOOL]))
        token = key(served)
    async with serve(tmp_path, engine.address) as other:
        body = {"model": "m", "input": "two", "previous_response_id": first["id"], "instructions": "Be long."}
        unknown = await other.http.post("/v1/responses", json=body)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")
        answer = await other.http.post("/v1/responses", json={**body, "tools": [TOOL]}, headers={"x-api-key": token})
        assert answer.json()["previous_response_id"] == first["id"]
        prompt = other.gateway.model.peek().codec.decode(engine.requests()[-1]["prompt_ids"])  # type: ignore[union-attr]
        for text in ("Be long.", '"write"', '"patch"', "one", "Hello there.", "two"):
            assert text in prompt
        assert "Be brief." not in prompt


# -- compaction ------------------------------------------------------------------------------------------------------


async def test_a_compaction_is_one_item_and_goes_on_as_the_summary(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served, opened(served) as socket:
        first = await final(socket, create("one", tools=[TOOL]))
        trigger = [{"type": "compaction_trigger"}]
        compacted = await final(socket, create(trigger, tools=[TOOL], previous_response_id=first["id"]))
        (item,) = compacted["output"]
        assert (item["type"], read_summary(item["encrypted_content"])) == ("compaction", SUMMARY)
        await final(socket, create([{"role": "user", "content": "one"}, item], tools=[TOOL]))
        _, compaction, after = stored(served)
        assert compaction.outcome is not None
        assert after.outcome is not None
        assert (compaction.arrival.kind, after.arrival.kind) == ("compaction", "main")
        assert (compaction.outcome.fork_reason, compaction.outcome.constrained) == (None, False)
        assert compaction.outcome.parent_id == stored(served)[0].arrival.id
        assert after.outcome.parent_id is None
        assert SUMMARY.encode() in after.outcome.messages[-1].data


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/backend-api/codex/responses/compact"])
async def test_the_compact_paths(tmp_path: Path, engine: Scripted, path: str) -> None:
    async with serve(tmp_path, engine.address) as served:
        answer = await served.http.post(path, json={"model": "m", "input": "one"})
        assert answer.json()["object"] == "response.compaction"
        assert read_summary(answer.json()["output"][0]["encrypted_content"]) == SUMMARY
        assert stored(served)[0].arrival.kind == "compaction"


# -- clients that leave ----------------------------------------------------------------------------------------------


async def test_a_cut_socket_is_gone_on_from_without_a_second_sample(tmp_path: Path, engine: Scripted) -> None:
    """The client comes back on a new socket with the whole input, so the same request has other bytes."""
    async with serve(tmp_path, engine.address) as served:
        asked = len(engine.requests())
        async with opened(served) as socket:
            first = await final(socket, create("one", store=False))
            await socket.send(json.dumps(create("HOLD-LAST", store=False, previous_response_id=first["id"])))
            while len(engine.requests()) < asked + 2 or engine.requests()[-1]["state"] != "running":
                await asyncio.sleep(0.01)
            socket.transport.abort()
        while served.gateway.running and next(iter(served.gateway.running.values())).generation.clients:
            await asyncio.sleep(0.01)
        engine.release()
        async with opened(served) as socket:
            whole = [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": first["output"][0]["content"]},
                {"role": "user", "content": "HOLD-LAST"},
            ]
            again = await final(socket, create(whole, store=False))
            assert again["output"][0]["content"][0]["text"] == "one two three four"
            # and by the id that it was given (the engine holds this one, too: it sees the same words)
            engine.release()
            third = await final(socket, create("three", store=False, previous_response_id=again["id"]))
        assert len(engine.requests()) == asked + 3
        _, cut, retry, last = stored(served)
        assert retry.outcome is not None
        assert last.outcome is not None
        assert retry.outcome.retry_of == cut.arrival.id == again["id"].removeprefix("resp_")
        assert (last.outcome.parent_id, last.outcome.fork_reason) == (cut.arrival.id, None)
        assert third["status"] == "completed"


async def test_a_client_that_stays_away_ends_the_sampling(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, grace=0.0) as served:
        async with opened(served) as socket:
            await socket.send(json.dumps(create("HOLD-FIRST")))
            while not any(asked["state"] == "running" for asked in engine.requests()):
                await asyncio.sleep(0.01)
        assert (await served.last_outcome()).status == "aborted"


async def test_an_idle_socket_is_closed(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, socket_idle=0.0) as served, opened(served) as socket:
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1000, "idle")


async def test_more_messages_than_may_wait_close_the_socket(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, grace=0.0) as served, opened(served) as socket:
        for _ in range(WAITING + 2):
            await socket.send(json.dumps(create("HOLD-FIRST")))
        await socket.wait_closed()
        assert socket.close_code == 1013
    assert len(stored_after(tmp_path, served)) == 1


def stored_after(tmp_path: Path, served: Served) -> list[CallInfo]:
    from dragoman.store.database import Database

    database = Database.open(f"sqlite:///{tmp_path / 'd.db'}")
    try:
        with database.reading() as session:
            return read_calls(session, served.episode_id)
    finally:
        database.close()


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_refusals_are_events_and_the_socket_stays_open(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served, opened(served) as socket:
        assert await refusal(socket, {"type": "response.create", "model": "m"}) == (400, None)
        assert await refusal(socket, create(previous_response_id="resp_x")) == (400, "previous_response_not_found")
        assert await refusal(socket, {"type": "response.steer", "input": "x"}) == (400, None)
        await socket.send("{no json")
        assert (await next_reply(socket))[0]["status"] == 400
        await socket.send(b"\x00")
        assert (await next_reply(socket))[0]["status"] == 400
        (event,) = await reply_to(socket, create("FAIL-503", stream_id="lane"))
        assert (event["status"], event["stream_id"], event["headers"]["retry-after"]) == (503, "lane", "5")
        assert event["headers"]["x-request-id"].startswith("req_")
        failed = await reply_to(socket, create("FAIL-LATER"))
        assert [one["type"] for one in failed[-2:]] == ["error", "response.failed"]
        assert (await final(socket, create()))["status"] == "completed"
        # What is no `response.create` is no call. What is none because it cannot be read might have been one.
        statuses = [one.outcome and one.outcome.http_status for one in stored(served)]
        assert statuses == [400, 400, 400, 400, 503, 502, 200]


async def test_an_episode_that_ends_meanwhile_takes_no_more_messages(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served, opened(served) as socket:
        await final(socket, create())
        operator = {"authorization": "Bearer dgo_test"}
        ended = f"/dragoman/episodes/{served.episode_id}/end"
        async with httpx.AsyncClient(base_url=served.address, headers=operator, trust_env=False) as client:
            (await client.post(ended, json={"end": "completed"})).raise_for_status()
        assert (await refusal(socket, create()))[0] == 401


@pytest.mark.parametrize(
    ("path", "headers", "settings", "status"),
    [
        ("/v1/responses", {"authorization": "Bearer nobody"}, {}, 401),
        ("/v1/responses", {}, {"websockets": False}, 426),
        ("/backend-api/codex/responses", {}, {"websockets": False}, 426),
        ("/v1/responses/compact", {}, {}, 404),
        ("/v1/chat/completions", {}, {}, 404),
        ("/v1/x", {}, {}, 404),
    ],
)
async def test_handshakes_that_are_refused(
    tmp_path: Path, engine: Scripted, path: str, headers: dict[str, str], settings: Json, status: int
) -> None:
    async with serve(tmp_path, engine.address, **settings) as served:
        with pytest.raises(InvalidStatus) as caught:
            async with opened(served, path, **headers):
                pass
        assert caught.value.response.status_code == status
        assert json.loads(caught.value.response.body or b"")["error"]["message"]
        assert stored(served) == []


@pytest.mark.parametrize("path", ["/backend-api/codex/responses", "/e/{token}/v1/responses", "/api/v1/responses"])
async def test_every_path_of_the_dialect_takes_sockets(tmp_path: Path, engine: Scripted, path: str) -> None:
    async with serve(tmp_path, engine.address) as served:
        path = path.format(token=key(served).removeprefix("dgm_"))
        theirs = {"authorization": "Bearer sk-of-a-provider"} if "/e/" in path else {}
        async with opened(served, path, **theirs) as socket:
            assert (await final(socket, create()))["status"] == "completed"


# -- frames ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def by_hand(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A socket without compression on which any bytes can be sent."""
    host, _, port = served.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    nonce = base64.b64encode(os.urandom(16)).decode()
    head = f"GET /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key(served)}\r\nConnection: Upgrade\r\n"
    head += f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n"
    writer.write(head.encode())
    assert b" 101 " in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
    try:
        yield reader, writer
    finally:
        writer.close()


def frame(data: bytes, *, first: bool = True, last: bool = True) -> bytes:
    """A client's text frame, or a continuation of one, masked with zeros. At most 64 KiB."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([(0x80 if last else 0) | (0x01 if first else 0x00)]) + length + bytes(4) + data


async def read_event(reader: asyncio.StreamReader) -> Json:
    _, length = await reader.readexactly(2)
    size = int.from_bytes(await reader.readexactly(2), "big") if length == 126 else length
    event: Json = json.loads(await reader.readexactly(size))
    return event


MESSAGE = json.dumps(create([], model="Öl ☀ 🦑", generate=False), ensure_ascii=False).encode()


@pytest.mark.parametrize("how", ["two frames", "two writes", "frames of one byte"])
async def test_frames_may_be_split_anywhere(tmp_path: Path, engine: Scripted, how: str) -> None:
    async with serve(tmp_path, engine.address) as served, by_hand(served) as (reader, writer):
        whole = frame(MESSAGE)
        if how == "two frames":
            pieces = [[frame(MESSAGE[:at], last=False), frame(MESSAGE[at:], first=False)] for at in range(len(MESSAGE))]
        elif how == "two writes":
            pieces = [[whole[:at], whole[at:]] for at in range(1, len(whole))]
        else:
            last = len(MESSAGE) - 1
            pieces = [[frame(MESSAGE[at : at + 1], first=at == 0, last=at == last) for at in range(len(MESSAGE))]]
        for parts in pieces:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            events = [await read_event(reader) for _ in range(3)]
            assert [event["type"] for event in events] == [
                *("response.created", "response.in_progress", "response.completed"),
            ]
            assert events[2]["response"]["model"] == "Öl ☀ 🦑"
        assert len(stored(served)) == len(pieces)


# -- recorded messages -----------------------------------------------------------------------------------------------

WIRE = os.environ.get("DRAGOMAN_WIRE")
CODEX = {"codex-ws": 4, "codex-custom-ws": 3, "codex-chatgpt-ws": 3, "codex-ws-compact": 8}
"""Recorded session of the real Codex → how many messages it has."""


def recorded(session: str) -> list[Json]:
    numbered = re.compile(rf"{session}-(\d+)\.json")
    found = ((numbered.fullmatch(path.name), path) for path in Path(WIRE or "").iterdir())
    records = [json.loads(path.read_text()) for _, path in sorted((int(m[1]), path) for m, path in found if m)]
    return [record["body"] for record in records if record.get("ws_msg")]


@pytest.mark.skipif(WIRE is None, reason="DRAGOMAN_WIRE names no folder of recorded requests")
@pytest.mark.parametrize("session", CODEX)
async def test_every_recorded_message_is_answered(tmp_path: Path, session: str) -> None:
    """The replies of the recording were another server's, so their ids are put in place of its; so are call ids."""
    messages = recorded(session)
    assert len(messages) == CODEX[session]
    call = {"name": "functions__exec", "arguments": {"input": "1"}}
    if session == "codex-custom-ws":
        call = {"name": "exec_command", "arguments": {"cmd": "ls"}}
    asked = SUMMARISE.parts[0].text[:40]  # type: ignore[union-attr]
    script = [{"match": asked, "text": SUMMARY}, {"text": "I look.", "tool_calls": [call], "repeat": True}]
    with scripted_engine(script, max_model_len=131072) as engine:
        async with serve(tmp_path, engine.address) as served, opened(served) as socket:
            last: Json = {}
            for message in messages:
                calls = [item["call_id"] for item in last.get("output", []) if "call_id" in item]
                for item in message["input"]:
                    if str(item["type"]).endswith("_output"):
                        item["call_id"] = calls.pop(0)
                if "previous_response_id" in message:
                    message["previous_response_id"] = last["id"]
                last = await final(socket, message)
                if message["input"] and message["input"][-1]["type"] == "compaction_trigger":
                    assert [item["type"] for item in last["output"]] == ["compaction"]
        rows = stored_after(tmp_path, served)
    assert [row.arrival.kind for row in rows][:2] == ["warm_up", "main"]
    for row in rows:
        assert row.outcome is not None
        assert (row.outcome.status, row.outcome.fork_reason) == ("answered", None)
    turns = [row for row in rows if row.arrival.kind != "warm_up"]
    fresh = 1 + session.endswith("compact")  # nothing of a conversation that was compacted stands before its summary
    assert sum(row.outcome is not None and row.outcome.parent_id is None for row in turns) == fresh
