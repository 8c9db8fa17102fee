"""What the golden cases do not show: refusals, server tools, errors, keep-alives, model lists."""

import json
from typing import Any

import anthropic
import httpx2
import orjson
import pytest
from anthropic.types import MessageTokensCount, ModelInfo

from dragoman.addons.errors import (
    DragomanError,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unsupported,
)
from dragoman.addons.messages import (
    ChatRequest,
    Message,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyFailed,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from dragoman.addons.providers.anthropic import ANTHROPIC
from dragoman.addons.providers.base import Route
from dragoman.addons.sse import SseEvent, SseSplitter

GENERATE = Route("generate")
TOOL = {"name": "bash", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}], **changes}


def user(*blocks: Any) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": list(blocks)}])


def assistant(*blocks: Any) -> dict[str, Any]:
    return body(messages=[{"role": "assistant", "content": list(blocks)}, {"role": "user", "content": "Go on."}])


def parse(value: dict[str, Any], route: Route = GENERATE) -> ChatRequest:
    return ANTHROPIC.parse_request(value, route)


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", **fields}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (body(thread={"type": "create"}), "thread: Extra inputs are not permitted"),
        (body(model=None), "model: Field required"),
        (body(model=""), "model: expected a string that is not empty, got ''"),
        (body(max_tokens=None), "max_tokens: Field required"),
        (body(max_tokens=0), "max_tokens: expected a whole number from 1 to 2147483647, got 0"),
        (body(messages=None), "messages: expected an array, got None"),
        (body(messages=[]), "messages: at least one message is required"),
        (body(messages=["a"]), "messages.0: expected an object, got 'a'"),
        (
            body(messages=[{"role": "tool", "content": ""}]),
            "messages.0.role: expected 'user', 'assistant' or 'system', got 'tool'",
        ),
        (
            body(messages=[{"role": "user"}]),
            "messages.0.content: expected a string or an array of content blocks, got None",
        ),
        (user(3), "messages.0.content.0: expected an object, got 3"),
        (user({"type": "text"}), "messages.0.content.0.text: expected a string, got None"),
        (user({"type": "image", "source": 1}), "messages.0.content.0.source: expected an object, got 1"),
        (
            user(result(tool_use_id=None)),
            "messages.0.content.0.tool_use_id: expected a string that is not empty, got None",
        ),
        (user(result(is_error="no")), "messages.0.content.0.is_error: expected true or false, got 'no'"),
        (
            user({"type": "text", "text": "a"}, result(content=[{"type": "text", "text": 1}])),
            "messages.0.content.1.content.0.text: expected a string, got 1",
        ),
        (
            assistant({"type": "tool_use", "id": "t", "name": "bash", "input": "{}"}),
            "messages.0.content.0.input: expected an object, got '{}'",
        ),
        (body(system=5), "system: expected a string or an array of content blocks, got 5"),
        (body(tools=[{"name": "bash"}]), "tools.0.input_schema: expected an object, got None"),
        (body(tools=[TOOL, TOOL]), "tools: Tool names must be unique."),
        (body(tool_choice={"type": "any"}), "tool_choice.type: 'any' needs tools"),
        (
            body(tool_choice={"type": "maybe"}),
            "tool_choice.type: expected 'auto', 'any', 'tool' or 'none', got 'maybe'",
        ),
        (body(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}), "tool_choice.name: no tool is named 'x'"),
        (body(temperature=1.5), "temperature: expected a number from 0 to 1, got 1.5"),
        (body(stop_sequences=["a", ""]), "stop_sequences.1: expected a string that is not empty, got ''"),
        (body(stream="yes"), "stream: expected true or false, got 'yes'"),
        (
            body(output_config={"format": {"type": "json_schema"}}),
            "output_config.format.schema: expected an object, got None",
        ),
    ],
)
def test_invalid(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(value)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.message == message
    assert caught.value.field is not None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (body(mcp_servers=[{"url": "x"}]), "mcp_servers: these run at the provider; run them in the client"),
        (
            body(messages=[{"role": "assistant", "content": "{"}]),
            "messages: the last one must not be the assistant's (no prefill)",
        ),
        (
            body(messages=[{"role": "system", "content": [{"type": "image"}]}]),
            "messages.0.content.0: only text can stand here, not 'image'",
        ),
        (
            user({"type": "document", "source": PDF}),
            "messages.0.content.0.source: only text documents are supported, not 'base64'",
        ),
        (
            user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages.0.content.0.source: an image source of type 'file' is not supported",
        ),
        (user({"type": "video"}), "messages.0.content.0: content of type 'video' is not supported here"),
        (user({"text": "a"}), "messages.0.content.0: content of type None is not supported here"),
        (
            user(result(content=[{"type": "search_result"}])),
            "messages.0.content.0.content.0: content of type 'search_result' is not supported here",
        ),
        (
            assistant({"type": "server_tool_use"}),
            "messages.0.content.0: content of type 'server_tool_use' is not supported here",
        ),
        (assistant({"type": "image"}), "messages.0.content.0: content of type 'image' is not supported here"),
        (body(tools=[SEARCH]), "tools: web_search_20250305 runs at the provider and is not supported"),
        (
            body(tools=[TOOL, {"type": "bash_20250124", "name": "bash"}]),
            "tools.1.type: tools of type 'bash_20250124' are not supported",
        ),
        (
            body(output_format={"type": "grammar"}),
            "output_format.type: only 'json_schema' is supported, not 'grammar'",
        ),
    ],
)
def test_unsupported(value: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        parse(value)
    assert caught.value.message == message


def test_server_tools_beside_others_are_left_out() -> None:
    assert [tool.name for tool in parse(body(tools=[SEARCH, TOOL])).tools] == ["bash"]


def test_counting_needs_no_max_tokens_and_allows_prefill() -> None:
    value = {"model": "m", "messages": [{"role": "assistant", "content": "{"}]}
    assert parse(value, Route("count_tokens")).messages == (Message("assistant", (TextPart("{"),)),)


def test_user_content_is_split_into_runs_in_order() -> None:
    text = {"type": "text", "text": "a"}
    (first, second, third) = parse(user(text, result(content="1"), result(tool_use_id="u"), text)).messages
    assert first == Message("user", (TextPart("a"),))
    assert second == Message("tool", (ToolResultPart("t", (TextPart("1"),)), ToolResultPart("u", ())))
    assert third == first


def test_one_text_block_and_a_string_are_the_same() -> None:
    assert parse(user({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}})) == parse(body())
    assert parse(body(system=[{"type": "text", "text": "S"}])) == parse(body(system="S"))


def test_empty_texts_make_no_part() -> None:
    empty = {"type": "text", "text": ""}
    request = parse(assistant(empty, {"type": "thinking", "thinking": "", "signature": ""}))
    assert request.messages[0] == Message("assistant", (ReasoningPart("", ""),))
    assert parse(user(empty)).messages == (Message("user", ()),)
    assert parse(body(system="")).messages == parse(body(system=[empty])).messages == parse(body()).messages


def test_a_text_document_is_its_title_context_and_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "body\n"}
    request = parse(user({"type": "document", "source": source, "title": "T", "context": "C"}))
    assert request.messages[0].parts == (TextPart("T\nC\nbody\n"),)


def test_output_format_is_the_earlier_name() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert parse(body(output_format=form)) == parse(body(output_config={"effort": "low", "format": form}))
    assert parse(body(output_config={"effort": "low"})).response_format is None


# -- replies ---------------------------------------------------------------------------------------------------------


def reply_of(*parts: ReasoningPart | TextPart | ToolCallPart, **changes: Any) -> Reply:
    fields: dict[str, Any] = {"finish_reason": "stop", "usage": Usage(3, 4), **changes}
    return Reply(id="0123456789abcdefghij", model="m", created=0, parts=parts, **fields)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {"__unparsedToolInput": {"raw": "[1]", "len": 3}}),
        ("null", {"__unparsedToolInput": {"raw": "null", "len": 4}}),
        ('{"a": "\N{FOX FACE}', {"__unparsedToolInput": {"raw": '{"a": "\N{FOX FACE}', "len": 9}}),
    ],
)
def test_arguments_in_a_whole_reply(arguments: str, value: Any) -> None:
    reply = ANTHROPIC.render_reply(reply_of(ToolCallPart("t", "bash", arguments)), parse(body()))
    assert reply["content"][0]["input"] == value


@pytest.mark.parametrize(("levels", "parsed"), [(246, True), (247, False), (2000, False)])
def test_a_reply_can_be_written_however_deep_its_arguments_are(levels: int, parsed: bool) -> None:
    arguments = '{"a":' * levels + "1" + "}" * levels
    reply = ANTHROPIC.render_reply(reply_of(ToolCallPart("t", "bash", arguments)), parse(body()))
    assert ("a" in reply["content"][0]["input"]) == parsed
    assert orjson.dumps(reply)


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, "end_turn"),
        ("stop", "x", "stop_sequence"),
        ("length", None, "max_tokens"),
        ("abort", None, "max_tokens"),
        ("tool_calls", None, "tool_use"),
    ],
)
def test_stop_reasons(finish: str, stop: str | None, reason: str) -> None:
    reply = ANTHROPIC.render_reply(reply_of(finish_reason=finish, stop_sequence=stop), parse(body()))
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, stop)


def client(content: bytes, status: int = 200, content_type: str = "application/json") -> anthropic.Anthropic:
    """The official SDK, for a server that always answers this."""
    answer = httpx2.Response(status, headers={"content-type": content_type}, content=content)
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    return anthropic.Anthropic(api_key="dgm_x", base_url="http://gateway", http_client=http, max_retries=0)


def ask(to: anthropic.Anthropic, **options: Any) -> Any:
    return to.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "Hi"}], **options)


STARTED = ReplyStarted("0123456789abcdefghij", "m", 0, prompt_tokens=3)


def test_keep_alives_change_nothing_for_the_sdk() -> None:
    encoder = ANTHROPIC.encoder(parse(body(stream=True)))
    reply = reply_of(ReasoningPart("r"), TextPart("ab"))
    events = (STARTED, ReasoningDelta("r"), TextDelta("a"), TextDelta("b"), ReplyFinished(reply))
    stream = b"".join(encoder.encode(event) + encoder.keep_alive() for event in events)
    assert SseSplitter().feed(encoder.keep_alive()) == [SseEvent("ping", b'{"type":"ping"}')]
    text = [
        event.delta.text
        for event in ask(client(stream, content_type="text/event-stream"), stream=True)
        if event.type == "content_block_delta" and event.delta.type == "text_delta"
    ]
    assert text == ["a", "b"]


def test_nothing_to_act_on_leaves_before_the_end() -> None:
    encoder = ANTHROPIC.encoder(parse(body(stream=True)))
    before = encoder.encode(STARTED) + encoder.encode(TextDelta("a"))
    reply = reply_of(TextPart("a"), ToolCallPart("t", "bash", "{}"), finish_reason="tool_calls")
    after = encoder.encode(ReplyFinished(reply))
    for mark in (b'"tool_use"', b'"message_delta"', b"content_block_stop", b"message_stop"):
        assert mark not in before
        assert mark in after


def test_an_error_in_the_stream_reaches_the_sdk() -> None:
    encoder = ANTHROPIC.encoder(parse(body(stream=True)))
    error = ReplyFailed(EngineFailed("the engine is gone"))
    stream = encoder.encode(STARTED) + encoder.encode(TextDelta("a")) + encoder.encode(error)
    with pytest.raises(anthropic.APIStatusError, match="the engine is gone") as caught:
        list(ask(client(stream, content_type="text/event-stream"), stream=True))
    assert json.loads(json.dumps(caught.value.body))["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("x: wrong"), anthropic.BadRequestError),
        (Unauthorized("unknown key"), anthropic.AuthenticationError),
        (TooLarge("too large"), anthropic.APIStatusError),
        (Overloaded("later"), anthropic.InternalServerError),
        (EngineFailed("gone"), anthropic.InternalServerError),
    ],
)
def test_errors_by_the_sdk(error: DragomanError, expected: type[anthropic.APIStatusError]) -> None:
    content = json.dumps(ANTHROPIC.error_body(error, "0123456789abcdefghij")).encode()
    with pytest.raises(expected) as caught:
        ask(client(content, ANTHROPIC.error_status(error)))
    assert error.message in caught.value.message
    assert caught.value.status_code == (529 if isinstance(error, Overloaded) else error.status)


def test_counts_and_models_by_the_sdk() -> None:
    count = ANTHROPIC.render_count(7)
    MessageTokensCount.model_validate(count, strict=True)
    counted = client(json.dumps(count).encode()).messages.count_tokens(model="m", messages=[])
    assert counted.input_tokens == 7
    models = ANTHROPIC.render_models(["a", "b"], 1_790_000_000)
    listed = client(json.dumps(models).encode()).models.list().data
    assert [(model.id, model.created_at.year) for model in listed] == [("a", 2026), ("b", 2026)]
    ModelInfo.model_validate(ANTHROPIC.render_model("a", 0))
    assert ANTHROPIC.render_models([], 0) == {"data": [], "has_more": False, "first_id": None, "last_id": None}
