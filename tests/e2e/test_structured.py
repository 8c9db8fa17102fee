"""Forced tools and schemas: official SDKs, a real gateway, and a real vLLM whose model can do neither by itself."""

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import anthropic
import jsonschema
import numpy as np
import openai
import pytest
from google import genai

from dragoman.addons.engine import Engine
from dragoman.addons.errors import InvalidRequest
from dragoman.addons.messages import ChatRequest, Message, ResponseFormat, Sampling, TextPart, Tool, ToolChoice
from dragoman.addons.structured import Limits, read_limits
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import CallOutcome, JsonObject, ProviderName
from tests.gateway import RunningGateway, running_gateway
from tests.models import real_engine, smollm2_folder
from tests.random_schemas import bounded_schema

pytestmark = pytest.mark.engine

MOST = 480
"""Tokens of a reply. Reasoning may take half of them, and what is left is more than any forced value has bytes (a
token has at least one): three fields of 14 bytes around a value of at most 12 characters of 4 bytes in quotes, or one
title of 30. So none is cut, whatever the model samples."""
PROMPT = "What will the weather be?"
WEATHER: JsonObject = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK: JsonObject = {"type": "object", "properties": {}}
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}
TITLE: JsonObject = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 30}, "kind": {"enum": ["a", "b"]}},
    "required": ["title", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_engine(smollm2_folder(), tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[RunningGateway]:
    settings = {"dragoman_max_reply_tokens": str(MOST)}
    with running_gateway(tmp_path_factory.mktemp("structured") / "home", address, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    return TokenCodec.load(str(smollm2_folder()))


# -- the same in each dialect, by its own SDK; a call is its name and its arguments ------------------------------------

Asked = dict[str, Any]


def ask_anthropic(
    gateway: RunningGateway, key: str, stream: bool, force: str | None, schema: JsonObject | None
) -> Asked:
    client = anthropic.Anthropic(base_url=gateway.address, api_key=key, max_retries=0)
    fields: dict[str, Any] = {"model": "m", "max_tokens": 4000, "messages": [{"role": "user", "content": PROMPT}]}
    if schema is not None:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if force is not None:
        fields["tools"] = [{"name": name, "description": name, "input_schema": one} for name, one in SCHEMAS.items()]
        fields["tool_choice"] = {"type": "tool", "name": force}
        if force == "any":
            fields["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    if stream:
        with client.messages.stream(**fields) as events:
            reply = events.get_final_message()
    else:
        reply = client.messages.create(**fields)
    return {
        "text": "".join(block.text for block in reply.content if block.type == "text"),
        "calls": [(block.name, block.input) for block in reply.content if block.type == "tool_use"],
        "end": reply.stop_reason,
    }


def ask_chat(gateway: RunningGateway, key: str, stream: bool, force: str | None, schema: JsonObject | None) -> Asked:
    client = openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=key, max_retries=0)
    fields: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    if schema is not None:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    if force is not None:
        fields["tools"] = [
            {"type": "function", "function": {"name": name, "description": name, "parameters": one}}
            for name, one in SCHEMAS.items()
        ]
        fields["tool_choice"] = "required" if force == "any" else {"type": "function", "function": {"name": force}}
        fields["parallel_tool_calls"] = False
    if stream:
        with client.chat.completions.stream(**fields) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**fields).choices[0]
    calls = [(one.function.name, json.loads(one.function.arguments)) for one in choice.message.tool_calls or []]
    return {"text": choice.message.content or "", "calls": calls, "end": choice.finish_reason}


def ask_responses(
    gateway: RunningGateway, key: str, stream: bool, force: str | None, schema: JsonObject | None
) -> Asked:
    client = openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=key, max_retries=0)
    fields: dict[str, Any] = {"model": "m", "input": PROMPT}
    if schema is not None:
        fields["text"] = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    if force is not None:
        fields["tools"] = [
            {"type": "function", "name": name, "description": name, "parameters": one, "strict": False}
            for name, one in SCHEMAS.items()
        ]
        fields["tool_choice"] = "required" if force == "any" else {"type": "function", "name": force}
        fields["parallel_tool_calls"] = False
    if stream:
        with client.responses.stream(**fields) as events:
            reply: Any = events.get_final_response()
    else:
        reply = client.responses.create(**fields)
    calls = [(item.name, json.loads(item.arguments)) for item in reply.output if item.type == "function_call"]
    return {"text": reply.output_text, "calls": calls, "end": reply.status}


def ask_google(gateway: RunningGateway, key: str, stream: bool, force: str | None, schema: JsonObject | None) -> Asked:
    client = genai.Client(api_key=key, http_options={"base_url": gateway.address})
    config: dict[str, Any] = {}
    if schema is not None:
        config = {"response_mime_type": "application/json", "response_json_schema": schema}
    if force is not None:
        declared = [{"name": name, "description": name, "parameters_json_schema": one} for name, one in SCHEMAS.items()]
        calling = {"mode": "ANY"} if force == "any" else {"mode": "ANY", "allowed_function_names": [force]}
        config = {"tools": [{"function_declarations": declared}], "tool_config": {"function_calling_config": calling}}
    models: Any = client.models
    if stream:
        replies = list(models.generate_content_stream(model="m", contents=PROMPT, config=config))
    else:
        replies = [models.generate_content(model="m", contents=PROMPT, config=config)]
    parts = [part for reply in replies for part in reply.candidates[0].content.parts]
    return {
        "text": "".join(part.text or "" for part in parts),
        "calls": [(part.function_call.name, part.function_call.args) for part in parts if part.function_call],
        "end": str(replies[-1].candidates[0].finish_reason),
    }


DIALECTS: dict[ProviderName, Any] = {
    "anthropic": ask_anthropic,
    "openai_chat": ask_chat,
    "openai_responses": ask_responses,
    "google": ask_google,
}


Case = tuple[ProviderName, str | None, bool]
CASES: list[Case] = [
    (dialect, force, stream)
    for dialect in get_args(ProviderName)
    for force in ("weather", "any", None)
    for stream in (False, True)
]
"""Dialect, the tool that is forced (``None``: a schema instead), and whether the reply is streamed."""


@pytest.fixture(scope="module")
def said(gateway: RunningGateway) -> dict[Case, tuple[Asked, CallOutcome]]:
    """What each case got, eight asked at once, and its row."""

    def ask(case: Case) -> tuple[Asked, CallOutcome]:
        dialect, force, stream = case
        episode = gateway.open()
        got = DIALECTS[dialect](gateway, episode.api_key, stream, force, TITLE if force is None else None)
        (call,) = gateway.calls(episode.id)
        assert call.outcome is not None
        return got, call.outcome

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(CASES, pool.map(ask, CASES), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(one) for one in case))
def test_what_is_forced_comes_and_is_valid(
    said: dict[Case, tuple[Asked, CallOutcome]], codec: TokenCodec, case: Case
) -> None:
    dialect, force, _ = case
    got, outcome = said[case]
    assert (outcome.status, outcome.constrained) == ("answered", True)
    assert outcome.completion_ids is not None
    if force is None:
        assert got["calls"] == []
        jsonschema.validate(json.loads(got["text"]), TITLE)
        return
    assert got["text"] == ""
    assert codec.grammar.tool in outcome.completion_ids.tolist(), "the marker as one token, which the parser looks for"
    calls = list(got["calls"])
    several = (dialect, force) == ("google", "any")  # this dialect cannot ask for one call
    if several and outcome.finish_reason == "length":
        calls.pop()
    assert calls
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    assert several or len(calls) == 1
    assert force in ("any", calls[0][0])


def test_every_token_has_a_logprob_of_what_was_sampled_from(said: dict[Case, tuple[Asked, CallOutcome]]) -> None:
    """Under a grammar too: masked tokens are reported as -9999, sampled ones never are."""
    for _, outcome in said.values():
        assert outcome.logprobs is not None
        assert outcome.completion_ids is not None
        assert len(outcome.logprobs) == len(outcome.completion_ids)
        assert np.isfinite(outcome.logprobs).all()
        assert outcome.logprobs.max() <= 1e-3
        assert -100 < outcome.logprobs.min() < -1e-3, "not all of it was forced"


def test_twenty_random_schemas_give_valid_json(gateway: RunningGateway) -> None:
    chance = random.Random(20)
    schemas = [bounded_schema(chance) for _ in range(20)]
    episode = gateway.open()
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda schema: ask_chat(gateway, episode.api_key, False, None, schema), schemas))
    for schema, said in zip(schemas, replies, strict=True):
        assert said["end"] == "stop", said
        jsonschema.validate(json.loads(said["text"]), schema)
    assert all(call.outcome is not None and call.outcome.constrained for call in gateway.calls(episode.id))


def test_without_calls_the_prompt_is_the_same_and_no_call_begins(gateway: RunningGateway, codec: TokenCodec) -> None:
    client_fields: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": PROMPT}],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": CLOCK}}],
        "max_tokens": 40,
    }
    episode = gateway.open()
    with openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=episode.api_key, max_retries=0) as client:
        for choice in ("none", "auto"):
            reply = client.chat.completions.create(**client_fields, tool_choice=choice).choices[0].message
            assert choice == "auto" or not reply.tool_calls
    forbidden, free = (call.outcome for call in gateway.calls(episode.id))
    assert forbidden is not None
    assert free is not None
    assert (forbidden.constrained, free.constrained) == (True, False)
    assert forbidden.prompt_len == free.prompt_len
    assert forbidden.completion_ids is not None
    assert codec.grammar.tool not in forbidden.completion_ids.tolist()


# -- straight at the engine --------------------------------------------------------------------------------------------


SAMPLING = Sampling(temperature=1.0, max_tokens=MOST)


async def sample(
    address: str, codec: TokenCodec, held: Limits, text: str, sampling: Sampling = SAMPLING
) -> tuple[list[int], str | None]:
    engine = Engine(address)
    try:
        ids: list[int] = []
        reason = None
        async for chunk in engine.generate(
            prompt_ids=codec.encode(text),
            sampling=sampling,
            stop_ids=codec.stop_ids + held.stop_ids,
            request_id=f"test-{random.getrandbits(60)}",
            structured=held.structured,
        ):
            ids += chunk.token_ids
            reason = chunk.finish_reason
        return ids, reason
    finally:
        await engine.close()


def required(parallel: bool = True) -> ChatRequest:
    tools = (Tool("clock", "", {"type": "object", "properties": {}, "additionalProperties": False}),)
    choice = ToolChoice("required", parallel=parallel)
    return ChatRequest("openai_chat", "m", (Message("user", (TextPart(PROMPT),)),), tools=tools, tool_choice=choice)


async def test_a_stop_id_of_ours_ends_the_reply_and_is_part_of_it(address: str, codec: TokenCodec) -> None:
    """By which at most one call is had without a grammar: here with a word that the model does say."""
    prompt = "<|im_start|>user\nCount to ten.<|im_end|>\n<|im_start|>assistant\n1, 2, 3, 4"
    (stop,) = codec.encode(",").tolist()
    ids, reason = await sample(address, codec, Limits(stop_ids=(stop,)), prompt, Sampling(temperature=0.0))
    assert (ids[-1], ids.count(stop), reason) == (stop, 1, "stop")


async def test_reasoning_that_the_prompt_opened_is_closed_before_the_call(address: str, codec: TokenCodec) -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    held = read_limits(required(parallel=False), codec, codec.encode(prompt), SAMPLING)
    ids, reason = await sample(address, codec, held, prompt)
    assert codec.grammar.think_end is not None
    thinking = ids[: ids.index(codec.grammar.think_end)]
    assert 0 < len(thinking) <= MOST // 2
    assert codec.grammar.tool not in thinking
    assert reason == "stop"
    parsed = codec.parse(codec.encode(prompt), ids, required().tools)
    assert parsed.reasoning
    assert [call.name for call in parsed.tool_calls] == ["clock"]


@pytest.mark.parametrize("form", [{"type": "no_such_format"}, {"type": "json_schema", "json_schema": {"type": "x"}}])
async def test_what_the_engine_does_not_take_is_a_400(address: str, codec: TokenCodec, form: JsonObject) -> None:
    structured = {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}
    with pytest.raises(InvalidRequest, match="the engine refused the request"):
        await sample(address, codec, Limits(structured=structured), "Hi")


async def test_after_a_refused_grammar_others_are_still_enforced(address: str, codec: TokenCodec) -> None:
    """vLLM keeps the first library that it used; a refused one must not have brought in another."""
    request = ChatRequest("openai_chat", "m", (), response_format=ResponseFormat("json_schema", TITLE), prompt="Hi")
    held = read_limits(request, codec, codec.encode("Hi"), SAMPLING)
    replies = await asyncio.gather(*(sample(address, codec, held, "Hi") for _ in range(4)))
    for ids, reason in replies:
        assert reason == "stop"
        jsonschema.validate(json.loads(codec.decode([one for one in ids if one not in codec.stop_ids])), TITLE)
