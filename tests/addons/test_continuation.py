"""Whole conversations through the app: what the engine is asked is the last stream and what is new, to the token."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.addons.identity import new_token
from dragoman.store.calls import full_prompt, read_calls, read_messages
from dragoman.store.ledger import audit
from dragoman.store.records import CallInfo, EpisodeSpec
from tests.addons.test_app import Served, anthropic, serve
from tests.scripted import Scripted, scripted_engine

CALL = {"name": "write", "arguments": {"path": "a"}}
STEPS: list[dict[str, Any]] = [
    {"match": "HOLD", "text": "one two three", "hold": "last", "repeat": True},
    {"match": "TEXT", "unless": "PARALLEL", "text": " Hm, <é> 你好 \n", "repeat": True},
    {"match": "PARALLEL", "text": "Both.", "tool_calls": [CALL, CALL], "repeat": True},
    {"match": "BROKEN", "raw": '<tool_call>\n{"name": "write", "arguments": {"path": \n</tool_call>', "repeat": True},
    {"match": "CUT", "text": "this goes on and on", "end": False, "repeat": True},
    {"match": "EMPTY", "text": "", "repeat": True},
    {"text": "I write.", "tool_calls": [CALL], "repeat": True},
]
TOOL = {"name": "write", "description": "writes", "input_schema": {"type": "object"}}
OTHER_TOOL = {"name": "read", "description": "reads", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine(STEPS) as running:
        yield running


async def turn(served: Served, said: list[Any], tools: Any = (TOOL,), system: str = "Be an agent.") -> dict[str, Any]:
    body = {"model": "m", "max_tokens": 50, "system": system, "messages": said, "tools": list(tools)}
    response = await served.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def echo(reply: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": reply["content"]}


def results(reply: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "done"}
        for block in reply["content"]
        if block["type"] == "tool_use"
    ]
    return {"role": "user", "content": [*blocks, *more]}


def stored(served: Served) -> list[CallInfo]:
    with served.gateway.database.session() as session:
        return read_calls(session, served.episode_id)


def assert_exact(served: Served, engine: Scripted, first: int) -> None:
    """Each call from ``first`` on was asked exactly the stream of the one before it, and more."""
    asked = engine.requests()
    by_id = {request["request_id"]: request["prompt_ids"] for request in asked}
    calls = stored(served)
    for previous, call in zip(calls[first - 1 :], calls[first:], strict=False):
        assert previous.outcome
        assert call.outcome
        assert previous.outcome.completion_ids is not None
        stream = by_id[previous.outcome.id] + previous.outcome.completion_ids.tolist()
        assert by_id[call.outcome.id][: len(stream)] == stream
        assert call.outcome.parent_id == previous.outcome.id
        assert call.outcome.shared_len == len(stream)
        assert call.outcome.fork_reason is None
    with served.gateway.database.session() as session:
        for call in calls:
            assert full_prompt(session, call.arrival.id).tolist() == by_id[call.arrival.id]


async def test_turns_of_every_kind_continue_exactly_and_nothing_is_stored_twice(
    tmp_path: Path, engine: Scripted
) -> None:
    async with serve(tmp_path, engine.address) as served:
        said: list[Any] = [{"role": "user", "content": "start"}]
        for new in ("", "TEXT", "PARALLEL", "", "more"):
            reply = await turn(served, said)
            said += [echo(reply), results(reply, {"type": "text", "text": new or "go on"})]
        assert_exact(served, engine, 1)
        calls = stored(served)
        # tool result + text is a `tool` and a `user` message here; each call stores the echo before it and what is new
        assert [len(call.outcome.messages) if call.outcome else None for call in calls] == [2, 3, 3, 2, 3]
        assert all(
            len(call.outcome.prompt_ids) < 120
            for call in calls[1:]
            if call.outcome and call.outcome.prompt_ids is not None
        )
        with served.gateway.database.session() as session:
            assert len(read_messages(session, calls[-1].arrival.id)) == 2 + sum(n + 1 for n in (1, 1, 1, 1)) + 3


@pytest.mark.parametrize("kind", ["BROKEN", "CUT", "TEXT", "EMPTY"])
async def test_a_defective_reply_is_continued_on_its_sampled_ids(tmp_path: Path, engine: Scripted, kind: str) -> None:
    async with serve(tmp_path, engine.address) as served:
        said: list[Any] = [{"role": "user", "content": f"start {kind}"}]
        reply = await turn(served, said)
        repaired = [block | {"input": {}} if block["type"] == "tool_use" else block for block in reply["content"]]
        said += [{"role": "assistant", "content": repaired}, results(reply, {"type": "text", "text": "again"})]
        await turn(served, said)
        assert_exact(served, engine, 1)
        (_, call) = stored(served)
        assert call.outcome
        assert call.outcome.echo_changed == (1 if kind == "BROKEN" else 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tools": (TOOL, OTHER_TOOL)}, "tools_changed"),
        ({"system": "Be brief."}, "system_changed"),
        ({"edit": True}, "history_edited"),
    ],
)
async def test_a_real_change_is_a_fork_with_its_reason(
    tmp_path: Path, engine: Scripted, changes: dict[str, Any], reason: str
) -> None:
    async with serve(tmp_path, engine.address) as served:
        said: list[Any] = [{"role": "user", "content": "start"}]
        reply = await turn(served, said)
        if changes.pop("edit", False):
            said = [{"role": "user", "content": "start, and a reminder"}]
        await turn(served, [*said, echo(reply), results(reply)], **changes)
        first, second = stored(served)
        assert second.outcome
        assert second.outcome.fork_reason == reason
        assert second.outcome.parent_id == first.arrival.id
        with served.gateway.database.session() as session:
            asked = engine.requests()[-1]["prompt_ids"]
            assert full_prompt(session, second.arrival.id).tolist() == asked


async def test_the_store_alone_is_enough_to_go_on_after_a_restart(tmp_path: Path, engine: Scripted) -> None:
    said: list[Any] = [{"role": "user", "content": "start"}]
    async with serve(tmp_path, engine.address) as served:
        for _ in range(2):
            reply = await turn(served, said)
            said += [echo(reply), results(reply)]
        served.gateway.lineages.clear()
        reply = await turn(served, said)
        assert_exact(served, engine, 1)
        first_key = served.http.headers["x-api-key"]
        episode_id = served.episode_id
    async with serve(tmp_path, engine.address) as served:
        served.http.headers["x-api-key"] = first_key
        served.episode_id = episode_id
        await turn(served, [*said, echo(reply), results(reply)])
        assert_exact(served, engine, 1)
        assert len(stored(served)) == 4


async def test_two_episodes_with_the_same_words_never_meet(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        said: list[Any] = [{"role": "user", "content": "start"}]
        reply = await turn(served, said)
        token = new_token()
        other = served.gateway.open_episode(EpisodeSpec(), token, 1000)
        served.http.headers["x-api-key"] = f"dgm_{token}"
        await turn(served, [*said, echo(reply), results(reply)])
        with served.gateway.database.session() as session:
            (call,) = read_calls(session, other.id)
        assert call.outcome
        assert (call.outcome.parent_id, call.outcome.fork_reason) == (None, "unknown_parent")


# -- the same request again ------------------------------------------------------------------------------------------


async def until_first_delta(served: Served, body: dict[str, Any]) -> bytes:
    """Read a stream up to its first text, and leave."""
    seen = b""
    async with served.http.stream("POST", "/v1/messages", json=body) as response:
        async for chunk in response.aiter_bytes():
            seen += chunk
            if b"text_delta" in seen:
                break
    return seen


async def test_a_retry_gets_the_same_generation_from_its_first_event(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        body = anthropic("HOLD", stream=True)
        before = len(engine.requests())
        seen = await until_first_delta(served, body)
        (running,) = served.gateway.running.values()
        while running.generation.clients:
            await asyncio.sleep(0.01)
        again = asyncio.create_task(served.http.post("/v1/messages", json=body))
        while not running.generation.clients:
            await asyncio.sleep(0.01)
        engine.release()
        reply = await again
        assert len(engine.requests()) == before + 1
        assert reply.content.startswith(seen.split(b"event: content_block_delta")[0])
        assert reply.content.endswith(b'data: {"type":"message_stop"}\n\n')
        first, second = stored(served)
        assert first.outcome
        assert second.outcome
        assert (first.outcome.status, second.outcome.status) == ("answered", "answered")
        assert second.outcome.retry_of == first.arrival.id
        assert second.outcome.completion_ids is None


async def test_a_retry_whose_client_leaves_too_is_aborted_as_the_first_is(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, grace=0.2) as served:
        body = anthropic("HOLD", stream=True)
        await until_first_delta(served, body)
        (running,) = served.gateway.running.values()
        while running.generation.clients:
            await asyncio.sleep(0.01)
        await until_first_delta(served, body)
        while served.gateway.running:
            await asyncio.sleep(0.01)
        first, second = (call.outcome for call in stored(served))
        assert first
        assert second
        assert (first.retry_of, second.retry_of) == (None, first.id)
        for outcome in (first, second):
            assert (outcome.status, outcome.error_code, outcome.http_status) == ("aborted", "client_left", 499)
        assert audit(stored(served)).problems == ()


async def test_what_another_gateway_on_the_store_answered_is_continued(tmp_path: Path, engine: Scripted) -> None:
    said: list[Any] = [{"role": "user", "content": "start TEXT"}]
    async with serve(tmp_path, engine.address) as one, serve(tmp_path, engine.address) as other:
        other.http.headers["x-api-key"] = one.http.headers["x-api-key"]
        for number, served in enumerate((one, other, one, other, other, one)):
            reply = await turn(served, said)
            said += [echo(reply), {"role": "user", "content": f"and {number}, TEXT?"}]
        assert_exact(one, engine, 1)


async def test_an_identical_request_of_a_client_that_is_still_there_is_another_sample(
    tmp_path: Path, engine: Scripted
) -> None:
    async with serve(tmp_path, engine.address) as served:
        before = len(engine.requests())
        both = [asyncio.create_task(served.http.post("/v1/messages", json=anthropic("HOLD"))) for _ in range(2)]
        while len(engine.requests()) < before + 2:
            await asyncio.sleep(0.01)
        engine.release()
        engine.release()
        ids = {reply.json()["id"] for reply in await asyncio.gather(*both)}
        assert len(ids) == 2
        assert [call.outcome and call.outcome.retry_of for call in stored(served)] == [None, None]


async def test_after_the_reply_was_delivered_the_same_request_is_another_sample(
    tmp_path: Path, engine: Scripted
) -> None:
    async with serve(tmp_path, engine.address) as served:
        ids = {(await served.http.post("/v1/messages", json=anthropic("TEXT"))).json()["id"] for _ in range(2)}
        assert len(ids) == 2
        assert served.gateway.running == {}


async def test_a_different_request_does_not_take_over_what_a_lost_client_left(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address, grace=0.2) as served:
        await until_first_delta(served, anthropic("HOLD", stream=True))
        body = anthropic("HOLD", stream=True, system="another question")
        await until_first_delta(served, body)
        while served.gateway.running:
            await asyncio.sleep(0.01)
        assert [call.outcome and call.outcome.retry_of for call in stored(served)] == [None, None]
