"""What a reply is held to: the tags, what they let through (by the engine's Python), and their way to the engine."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest

from dragoman.addons.errors import ContextTooLong, EngineFailed, InvalidRequest, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
    Message,
    ResponseFormat,
    ResponsesDetails,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
)
from dragoman.addons.structured import FREE, SUMMARY, Limits, read_limits, reading
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import JsonObject, ProviderName, TokenIds
from tests.addons.test_app import serve
from tests.grammar_walk import walk_grammars
from tests.models import tiny_model_folder
from tests.scripted import Scripted, scripted_engine

THINK, THINK_END, BEGIN, END, CLOSE = 7162, 7163, 7164, 7165, 2
READ = Tool("read", "reads", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
COUNT = Tool("count", "counts", {"properties": {"n": {"type": "integer", "uniqueItems": True}}, "required": ["n"]})
TOOLS = (READ, COUNT)
TITLE: JsonObject = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 9}},
    "required": ["title"],
}
PLAIN: JsonObject = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
REQUIRED = ToolChoice("required")


@cache
def codec(renderer: str = "template") -> TokenCodec:
    return TokenCodec.load(str(tiny_model_folder()), renderer=renderer)


def request(provider: ProviderName = "openai_chat", **fields: Any) -> ChatRequest:
    return ChatRequest(provider, "m", (Message("user", (TextPart("Hi"),)),), **fields)


def json_of(schema: JsonObject | None) -> ResponseFormat:
    return ResponseFormat("json_object") if schema is None else ResponseFormat("json_schema", schema)


def limits(used: TokenCodec | None = None, prompt_ids: TokenIds | None = None, **fields: Any) -> Limits:
    used = used or codec()
    asked = request(**fields)
    if prompt_ids is None:
        prompt_ids = used.render(asked.messages, asked.tools)
    return read_limits(asked, used, prompt_ids, Sampling(max_tokens=100))


def tag(held: Limits) -> JsonObject:
    assert held.structured is not None
    assert set(held.structured) == {"structural_tag"}, "a bare schema may go to another library than xgrammar"
    parsed: JsonObject = json.loads(held.structured["structural_tag"])
    assert parsed["type"] == "structural_tag"
    inner: JsonObject = parsed["format"]
    return inner


def behind_reasoning(held: Limits) -> JsonObject:
    """The format behind the optional reasoning of the template renderer."""
    first, body = tag(held)["elements"]
    assert first["type"] == "optional"
    inner: JsonObject = body
    return inner


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tool_choice": ToolChoice(parallel=False)},
        {"tool_choice": ToolChoice("none")},
        {"tool_choice": ToolChoice("required")},
        {"prompt": "Once"},
    ],
)
def test_what_asks_for_nothing_is_sampled_freely(fields: dict[str, Any]) -> None:
    assert limits(prompt_ids=np.array([5], dtype=np.int32), **fields) is FREE


def test_a_forced_call_is_in_the_models_own_form_with_markers_as_single_tokens() -> None:
    held = limits(tools=TOOLS, tool_choice=ToolChoice("required", "read"))
    assert (held.field, held.stop_ids, held.calls) == ("tool_choice", (), True)
    begin, before, arguments, after, end = behind_reasoning(held)["elements"]
    assert (begin, end) == ({"type": "token", "token": BEGIN}, {"type": "token", "token": END})
    assert before == {"type": "const_string", "value": '\n{"name": "read", "arguments": '}
    assert after == {"type": "const_string", "value": "}\n"}
    assert arguments["json_schema"] == {**READ.parameters, "additionalProperties": False}
    assert arguments["excludes"] == ["</tool_call>"]


def test_any_tool_may_be_required_and_several_calls_unless_one_is_asked_for() -> None:
    one = behind_reasoning(limits(tools=TOOLS, tool_choice=ToolChoice("required", parallel=False)))
    assert one["type"] == "or"
    assert ['"read"' in json.dumps(call) or "read" in json.dumps(call) for call in one["elements"]] == [True, False]
    several = behind_reasoning(limits(tools=TOOLS, tool_choice=REQUIRED))
    assert several["elements"][0] == one
    assert several["elements"][1]["content"]["elements"] == [{"type": "const_string", "value": "\n"}, one]


def test_what_cannot_be_enforced_of_a_tools_schema_is_left_to_the_harness() -> None:
    text = json.dumps(tag(limits(tools=(COUNT,), tool_choice=REQUIRED)))
    assert '"integer"' in text
    assert "uniqueItems" not in text


def test_at_most_one_call_ends_the_reply_and_masks_nothing() -> None:
    held = limits(tools=TOOLS, tool_choice=ToolChoice(parallel=False))
    assert held == Limits(stop_ids=(END,))


def test_without_calls_the_token_that_opens_one_is_masked_and_the_tools_stay_in_the_prompt() -> None:
    held = limits(tools=TOOLS, tool_choice=ToolChoice("none"))
    assert tag(held) == {"type": "any_tokens", "exclude_tokens": [BEGIN]}
    held = limits(codec("prime-qwen3"), tools=TOOLS, tool_choice=ToolChoice("none"))
    assert tag(held) == {"type": "any_tokens", "exclude_tokens": [BEGIN]}


@pytest.mark.parametrize("schema", [None, TITLE])
def test_json_alone_takes_a_marker_for_text(schema: JsonObject | None) -> None:
    hidden: dict[str, Any] = {"tools": TOOLS, "tool_choice": ToolChoice("none")}
    for fields in ({}, hidden):
        held = limits(response_format=json_of(schema), **fields)
        body = behind_reasoning(held)
        assert (body["type"], body["excludes"]) == ("json_schema", [])
        assert body["json_schema"]["type"] == "object"
        assert not held.calls
        assert reading(codec(), held).grammar.tool is None
    assert reading(codec(), FREE) is codec()


def test_json_or_calls() -> None:
    held = limits(response_format=json_of(PLAIN), tools=TOOLS)
    value, calls = behind_reasoning(held)["elements"]
    assert value["excludes"] == ["<tool_call>"]
    assert calls["elements"][1]["type"] == "star"
    assert held.calls
    with pytest.raises(Unsupported, match="where tools may be called too") as raised:
        limits(response_format=json_of(TITLE), tools=TOOLS)
    assert raised.value.field == "response_format.json_schema.schema.properties.title.pattern"


def test_reasoning_comes_first_and_cannot_end_the_reply_or_open_a_call() -> None:
    thought = {"type": "any_tokens", "exclude_tokens": sorted((THINK, THINK_END, BEGIN, CLOSE)), "max_tokens": 50}
    first = tag(limits(response_format=json_of(None)))["elements"][0]["content"]["elements"]
    assert first[:3] == [{"type": "token", "token": THINK}, thought, {"type": "token", "token": THINK_END}]
    opened = codec().encode("<|im_start|>assistant\n<think>\n")
    must = tag(limits(prompt_ids=opened, response_format=json_of(None)))["elements"]
    assert must[:2] == [thought, {"type": "token", "token": THINK_END}]
    closed = codec().encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert tag(limits(prompt_ids=closed, response_format=json_of(None)))["elements"][0]["type"] == "optional"


def test_a_legacy_completion_has_no_reasoning() -> None:
    held = limits(prompt="Once", prompt_ids=codec().encode("Once"), response_format=json_of(None))
    assert tag(held)["type"] == "json_schema"


# -- what cannot be enforced -------------------------------------------------------------------------------------------


@pytest.fixture
def formless(tmp_path: Path) -> TokenCodec:
    """A model whose template writes no calls."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("for call in message.tool_calls or []", "for call in []"))
    return TokenCodec.load(str(folder))


@pytest.mark.parametrize("provider", get_args(ProviderName))
def test_a_form_that_is_not_known_is_refused_by_the_dialects_field(
    formless: TokenCodec, provider: ProviderName
) -> None:
    asked: tuple[dict[str, Any], ...] = ({"tool_choice": REQUIRED}, {"response_format": json_of(PLAIN)})
    for fields in asked:
        with pytest.raises(Unsupported, match="renderer 'template'") as raised:
            limits(formless, provider=provider, tools=TOOLS, **fields)
        assert raised.value.field is not None
        assert raised.value.message.startswith(raised.value.field)
        assert ("choice" in raised.value.field or "Calling" in raised.value.field) == ("tool_choice" in fields)


def test_at_most_one_call_of_an_unknown_form_is_not_enforced_and_said(formless: TokenCodec) -> None:
    held = limits(formless, tools=TOOLS, tool_choice=ToolChoice(parallel=False))
    assert replace(held, unenforced=None) == FREE
    assert held.unenforced is not None
    assert "at most one tool call" in held.unenforced


def test_calls_of_an_unknown_form_cannot_be_forbidden(formless: TokenCodec) -> None:
    tools_shown: dict[str, Any] = {"tools": TOOLS, "tool_choice": ToolChoice("none")}
    assert tag(limits(formless, **tools_shown))["exclude_tokens"] == [BEGIN], "its marker is known"
    without = replace(formless, grammar=replace(formless.grammar, tool=None))
    assert limits(without, **tools_shown) is FREE, "a model that has no calls"
    with pytest.raises(Unsupported, match="no known token that opens a tool call"):
        limits(replace(without, streams=False), **tools_shown)


def test_where_a_reply_does_not_begin_at_once_nothing_is_enforced(tmp_path: Path) -> None:
    plain = replace(codec(), streams=False, grammar=replace(codec().grammar, think=None, think_end=None))
    assert tag(limits(plain, response_format=json_of(None)))["type"] == "json_schema"
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("        {{- content }}", "        {{- 'final:' + content }}"))
    channels = TokenCodec.load(str(folder))
    channels = replace(channels, streams=False, grammar=replace(channels.grammar, think=None, think_end=None))
    with pytest.raises(Unsupported, match="how a reply of this model begins"):
        limits(channels, response_format=json_of(None))


@pytest.mark.parametrize(
    ("provider", "field"),
    [
        ("anthropic", "output_config.format.schema"),
        ("openai_chat", "response_format.json_schema.schema"),
        ("openai_responses", "text.format.schema"),
        ("google", "generationConfig.responseJsonSchema"),
    ],
)
def test_a_schema_that_is_none_is_refused_by_the_dialects_field(provider: ProviderName, field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        limits(provider=provider, response_format=json_of({"properties": {"a": {"type": "txt"}}}))
    assert raised.value.field == f"{field}.properties.a.type"
    tool = Tool("broken", "", {"type": "txt"})
    with pytest.raises(InvalidRequest, match="tools\\['broken'\\]"):
        limits(provider=provider, tools=(tool,), tool_choice=REQUIRED)
    assert limits(provider=provider, tools=(tool,)) is FREE, "a tool that is only offered is not looked at"


def test_what_the_engine_refuses_is_about_the_field() -> None:
    held = limits(response_format=json_of(None))
    named = held.named(InvalidRequest("the engine refused the request: no"))
    assert isinstance(named, InvalidRequest)
    assert (named.field, named.message) == (held.field, f"{held.field}: the engine refused the request: no")
    for other in (ContextTooLong(9, 8), EngineFailed("no")):
        assert held.named(other) is other
    error = InvalidRequest("no")
    assert FREE.named(error) is error


# -- what the tags let through -----------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("renderer", ["template", "prime-qwen3"])
def test_the_grammar_takes_the_models_own_calls_and_nothing_else(renderer: str) -> None:
    used = codec(renderer)
    xml = renderer == "prime-qwen3"

    def call(name: str, key: str, value: str) -> str:
        if xml:
            return (
                f"<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
            )
        value = value if value.isdecimal() else json.dumps(value)
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{"{key}": {value}}}}}\n</tool_call>'

    def reply(text: str) -> list[int]:
        return [*used.encode(text).tolist(), CLOSE]

    read, count = call("read", "path", 'a "b"\t\n`' if not xml else "a b"), call("count", "n", "12")
    spelled = [*used.encode("<").tolist(), *used.encode(read.removeprefix("<")).tolist(), CLOSE]
    assert spelled[0] != BEGIN
    thinking = "<think>\nWhy { not?\n</think>\n\n"
    jobs = [
        {
            "structured": limits(used, tools=TOOLS, tool_choice=choice).structured,
            "stop_ids": [CLOSE],
            "walks": 30,
            "accept": [
                reply(read),
                reply(f"{read}\n{count}"),
                reply(thinking + read),
                reply(count),
                spelled,
                reply(f"Now: {read}"),
                reply(read.replace("read", "write")),
                reply(call("count", "n", "twelve")),
                reply("<think>\nWhy?"),
                [THINK, BEGIN],
                reply(""),
            ],
        }
        for choice in (REQUIRED, ToolChoice("required", "read"))
    ]
    several, one = walk_grammars(tiny_model_folder(), jobs)
    assert several["accepted"] == [True, True, True, True, *[False] * 7]
    assert one["accepted"] == [True, False, True, False, *[False] * 7]
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    walked = 0
    for answer in (several, one):
        for ids in answer["walks"]:
            calls = used.parse([1], ids, TOOLS).tool_calls
            assert calls
            assert {found.status for found in calls} == {"ok"}
            for found in calls:
                assert found.name is not None
                jsonschema.validate(json.loads(found.arguments), schemas[found.name])
            walked += 1
    assert walked > 4


@pytest.mark.engine
def test_the_grammar_of_json_or_calls_and_of_no_calls() -> None:
    used = codec()
    value, marker = '{"title": "x"}', '{"title": "<tool_call>"}'
    call = '<tool_call>\n{"name": "count", "arguments": {"n": 1}}\n</tool_call>'
    held = (
        limits(response_format=json_of(PLAIN), tools=TOOLS),
        limits(response_format=json_of(PLAIN)),
        limits(tools=TOOLS, tool_choice=ToolChoice("none")),
    )
    texts = (value, call, marker, f"<think>\n\n</think>\n{value}", f"{value}\n{call}", "text")
    replies = [[*used.encode(text).tolist(), CLOSE] for text in texts]
    jobs = [{"structured": one.structured, "stop_ids": [CLOSE], "walks": 10, "accept": replies} for one in held]
    both, alone, none = walk_grammars(tiny_model_folder(), jobs)
    assert both["accepted"] == [True, True, False, True, False, False]
    assert alone["accepted"] == [True, False, True, True, False, False]
    assert none["accepted"] == [True, False, False, True, False, True]
    for ids in alone["walks"]:
        parsed = reading(used, held[1]).parse([1], ids, ())
        assert parsed.tool_calls == ()
        jsonschema.validate(json.loads(parsed.text), PLAIN)
    assert all(BEGIN not in ids for ids in none["walks"])
    assert any(none["walks"])


@pytest.mark.engine
def test_a_reply_cannot_be_spent_on_white_space() -> None:
    """One character of it between two marks, in JSON and in the arguments of either form of call."""
    held = limits(response_format=json_of({"properties": {"a": {"items": {"type": "null"}, "type": "array"}}}))
    pairs = (
        ('{"a": [null, null]}', '{"a":  [null, null]}'),
        ('{\n"a" :[ null\n,\tnull ] }', '{\n  "a": [null]}'),
        ("{ }", "{  }"),
    )
    jobs = [job(codec(), held, pairs)]
    for renderer, pair in (
        ("template", ('{"name": "count", "arguments": {"n": 1}}', '{"name": "count", "arguments": {"n":  1}}')),
        (
            "prime-qwen3",
            (
                "<function=count>\n<parameter=n>\n1\n</parameter>\n</function>",
                "<function=count>\n<parameter=n>\n1\n\n</parameter>\n</function>",
            ),
        ),
    ):
        used = codec(renderer)
        forced = limits(used, tools=TOOLS, tool_choice=ToolChoice("required", "count"))
        good, bad = (f"<tool_call>\n{text}\n</tool_call>" for text in pair)
        jobs.append(job(used, forced, ((good, bad),)))
    for answer in walk_grammars(tiny_model_folder(), jobs):
        assert answer["accepted"] == [True, False] * (len(answer["accepted"]) // 2)


def job(used: TokenCodec, held: Limits, pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """For ``walk_grammars``: is the first of each pair taken, and the second not?"""
    replies = [[*used.encode(text).tolist(), CLOSE] for pair in pairs for text in pair]
    return {"structured": held.structured, "stop_ids": [CLOSE], "walks": 0, "accept": replies}


@pytest.mark.engine
def test_a_prompt_that_opened_reasoning_must_close_it() -> None:
    used = codec("nemotron-3")
    held = limits(used, response_format=json_of(PLAIN))
    texts = ('Hm.\n</think>\n{"title": "x"}', '</think>{"title": "x"}', '{"title": "x"}', "Hm.")
    accept = [[*used.encode(text).tolist(), CLOSE] for text in texts]
    (answer,) = walk_grammars(
        tiny_model_folder(), [{"structured": held.structured, "stop_ids": [CLOSE], "walks": 0, "accept": accept}]
    )
    assert answer["accepted"] == [True, True, False, False]


# -- through the app ---------------------------------------------------------------------------------------------------

TWO = [{"name": "read", "arguments": {"path": "a"}}, {"name": "count", "arguments": {"n": 1}}]
STEPS: list[dict[str, Any]] = [
    {"match": "TWO", "unless": "tool_response", "tool_calls": TWO, "repeat": True},
    {"match": "MARKER", "raw": '{"title": "<tool_call>"}', "repeat": True},
    {"match": "REFUSE", "fail": 400, "message": "Invalid structural tag specification.", "repeat": True},
    {"text": "Done.", "repeat": True},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine(STEPS) as running:
        yield running


def chat(text: str, **fields: Any) -> dict[str, Any]:
    functions = [
        {"type": "function", "function": {"name": tool.name, "description": "", "parameters": tool.parameters}}
        for tool in TOOLS
    ]
    return {"model": "m", "messages": [{"role": "user", "content": text}], "tools": functions, **fields}


async def test_the_engine_gets_the_grammar_and_the_row_is_marked(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        for fields, constrained in (
            ({}, False),
            ({"tool_choice": "required"}, True),
            ({"tool_choice": "none"}, True),
            ({"response_format": {"type": "json_object"}}, True),
            ({"parallel_tool_calls": False}, False),
        ):
            response = await served.http.post("/v1/chat/completions", json=chat("Hi", **fields))
            assert response.status_code == 200, response.text
            params = engine.requests()[-1]["sampling_params"]
            assert ("structured_outputs" in params) == constrained
            assert (END in params["stop_token_ids"]) == (fields == {"parallel_tool_calls": False})
            assert (await served.last_outcome()).constrained == constrained


async def test_at_most_one_call_is_shown_and_the_next_turn_goes_on_exactly(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        body = chat("TWO", parallel_tool_calls=False)
        reply = (await served.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert [call["function"]["name"] for call in reply["message"]["tool_calls"]] == ["read"]
        assert reply["finish_reason"] == "tool_calls"
        first = await served.last_outcome()
        assert first.completion_ids is not None
        assert first.completion_ids[-1] == END
        result = {"role": "tool", "tool_call_id": reply["message"]["tool_calls"][0]["id"], "content": "text"}
        body["messages"] += [reply["message"], result]
        assert (await served.http.post("/v1/chat/completions", json=body)).status_code == 200
        before = [*engine.requests()[-2]["prompt_ids"], *first.completion_ids.tolist()]
        assert engine.requests()[-1]["prompt_ids"][: len(before) + 1] == [*before, CLOSE]
        assert (await served.last_outcome()).fork_reason is None


async def test_a_marker_in_json_is_text(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        body = {**chat("MARKER", response_format={"type": "json_object"}), "tool_choice": "none"}
        message = (await served.http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        assert json.loads(message["content"]) == {"title": "<tool_call>"}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_enforced_is_a_400_that_names_the_field(
    tmp_path: Path, engine: Scripted, stream: bool
) -> None:
    async with serve(tmp_path, engine.address) as served:
        asked = len(engine.requests())
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
        response = await served.http.post("/v1/chat/completions", json=chat("x", response_format=form, stream=stream))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "response_format.json_schema.schema.not"
        assert len(engine.requests()) == asked
        assert (await served.last_outcome()).status == "refused"
        response = await served.http.post(
            "/v1/chat/completions", json=chat("REFUSE", tool_choice="required", stream=stream)
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tool_choice"
        assert "Invalid structural tag" in response.json()["error"]["message"]
        outcome = await served.last_outcome()
        assert (outcome.status, outcome.constrained) == ("refused", True)


def test_a_compaction_is_sampled_freely_and_what_looks_like_a_call_is_a_part_of_its_text() -> None:
    details = ResponsesDetails(compaction="item")
    asked = replace(request("openai_responses", tools=TOOLS, tool_choice=REQUIRED), responses=details)
    limits = read_limits(asked, codec(), np.array([1], dtype=np.int32), Sampling(max_tokens=9))
    assert limits == SUMMARY
    assert limits.structured is None
    stream = reading(codec(), limits).text_stream(np.array([1], dtype=np.int32), TOOLS, stop=())
    text = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    stream.feed(codec().encode(text).tolist())
    _, parsed, _ = stream.finish()
    assert (parsed.tool_calls, parsed.text) == ((), text)
