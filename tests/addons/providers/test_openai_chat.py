"""What the golden cases do not show: refusals, errors, keep-alives, usage, model lists."""

import json
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Model

from dragoman.addons.errors import (
    Conflict,
    DragomanError,
    EngineFailed,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthorized,
    Unsupported,
)
from dragoman.addons.messages import (
    ChatRequest,
    ImagePart,
    Message,
    ReasoningPart,
    Reply,
    ReplyFailed,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    Usage,
)
from dragoman.addons.providers.base import Route
from dragoman.addons.providers.openai_chat import OPENAI_CHAT

CHAT = Route("generate", variant="chat")
COMPLETIONS = Route("generate", variant="completions")
TOOL = {"type": "function", "function": {"name": "bash"}}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **changes}


def message(**fields: Any) -> dict[str, Any]:
    return body(messages=[fields])


def user(*parts: Any) -> dict[str, Any]:
    return message(role="user", content=list(parts))


def call(**fields: Any) -> dict[str, Any]:
    function = {"name": "bash", "arguments": "{}"}
    return message(role="assistant", tool_calls=[{"id": "c", "type": "function", "function": function, **fields}])


def parse(value: dict[str, Any]) -> ChatRequest:
    return OPENAI_CHAT.parse_request(value, CHAT)


def parse_legacy(**fields: Any) -> ChatRequest:
    return OPENAI_CHAT.parse_request({"model": "m", **fields}, COMPLETIONS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (body(model=None), "model: expected a string that is not empty, got None"),
        (body(messages=[]), "messages: at least one message is required"),
        (body(messages={}), "messages: expected an array, got {}"),
        (message(role="user"), "messages[0].content: expected a string or an array of content parts, got None"),
        (
            message(role="critic", content=""),
            "messages[0].role: expected 'system', 'developer', 'user', 'assistant' or 'tool', got 'critic'",
        ),
        (
            message(role="tool", content="x"),
            "messages[0].tool_call_id: expected a string that is not empty, got None",
        ),
        (user({"type": "text"}), "messages[0].content[0].text: expected a string, got None"),
        (
            user({"type": "image_url", "image_url": "https://x"}),
            "messages[0].content[0].image_url: expected an object, got 'https://x'",
        ),
        (
            user({"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg>"}}),
            "messages[0].content[0]: a data URL must hold base64 ('data:image/png;base64,…')",
        ),
        (call(function={"name": "bash"}), "messages[0].tool_calls[0].function.arguments: expected a string, got None"),
        (
            message(role="assistant", content="", reasoning="a", reasoning_content="b"),
            "messages[0]: reasoning_content and reasoning differ; send one of them",
        ),
        (body(n=2), "n: one request gives one sample; send several requests"),
        (body(tool_choice="required"), "tool_choice: 'required' needs tools"),
        (
            body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}}),
            "tool_choice: no tool is named 'x'",
        ),
        (body(tool_choice="maybe"), "tool_choice: expected 'auto', 'none', 'required' or a function, got 'maybe'"),
        (
            body(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
            "response_format.json_schema.schema: expected an object, got None",
        ),
        (body(temperature=2.5), "temperature: expected a number from 0 to 2, got 2.5"),
        (body(top_p=0), "top_p: expected a number above 0, got 0"),
        (body(stop=["a", 1]), "stop[1]: expected a string that is not empty, got 1"),
        (body(max_completion_tokens=0), "max_completion_tokens: expected a whole number from 1 to 2147483647, got 0"),
        (body(top_logprobs=1), "top_logprobs: needs logprobs to be true"),
        (body(logprobs=True, top_logprobs=21), "top_logprobs: expected a whole number from 0 to 20, got 21"),
        (body(stream_options=[]), "stream_options: expected an object, got []"),
    ],
)
def test_invalid(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(value)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.message == message
    assert OPENAI_CHAT.error_body(caught.value, None)["error"]["param"] == caught.value.field is not None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            user({"type": "input_audio", "input_audio": {}}),
            "messages[0].content[0]: content of type 'input_audio' is not supported here",
        ),
        (user({"type": "file", "file": {}}), "messages[0].content[0]: content of type 'file' is not supported here"),
        (user({}), "messages[0].content[0]: content of type None is not supported here"),
        (
            message(role="system", content=[{"type": "image_url"}]),
            "messages[0].content[0]: only text can stand here, not 'image_url'",
        ),
        (message(role="function", content="x"), "messages[0].role: 'function' is not supported; use 'tool'"),
        (
            message(role="assistant", content=None, function_call={"name": "x"}),
            "messages[0].function_call: not supported",
        ),
        (message(role="assistant", audio={"id": "a"}), "messages[0].audio: not supported"),
        (call(type="custom"), "messages[0].tool_calls[0].type: calls of type 'custom' are not supported"),
        (body(tools=[{"type": "custom"}]), "tools[0].type: only 'function' is supported, not 'custom'"),
        (body(functions=[{}]), "functions: [{}] is not supported"),
        (body(guided_regex="a+"), "guided_regex: 'a+' is not supported"),
        (
            body(tools=[TOOL], tool_choice={"type": "allowed_tools"}),
            "tool_choice.type: 'allowed_tools' is not supported",
        ),
        (body(response_format={"type": "grammar"}), "response_format.type: 'grammar' is not supported"),
        (
            body(logprobs=True, top_logprobs=5),
            "top_logprobs: 5 alternatives were asked for; only sampled tokens can be shown (0)",
        ),
    ],
)
def test_unsupported(value: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        parse(value)
    assert caught.value.message == message


def test_texts_of_an_assistant() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}, {"type": "text", "text": ""}]
    (parsed,) = parse(message(role="assistant", content=parts, refusal="never")).messages
    assert parsed == Message("assistant", (TextPart("a"), TextPart("no"), TextPart("never")))
    (parsed,) = parse(message(role="assistant", content=None)).messages
    assert parsed == Message("assistant", ())


def test_reasoning_said_twice_is_one_part() -> None:
    (parsed,) = parse(message(role="assistant", content="b", reasoning="a", reasoning_content="a")).messages
    assert parsed == Message("assistant", (ReasoningPart("a"), TextPart("b")))


def test_a_tool_result_can_hold_an_image() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}
    (parsed,) = parse(message(role="tool", tool_call_id="c", content=[image])).messages
    assert parsed == Message("tool", (ToolResultPart("c", (ImagePart(None, "AAAA"),)),))


def test_a_call_without_a_type_is_a_function_call() -> None:
    value = call()
    del value["messages"][0]["tool_calls"][0]["type"]
    assert parse(value).messages[0].parts == (ToolCallPart("c", "bash", "{}"),)


def test_a_tool_without_parameters_takes_none() -> None:
    assert parse(body(tools=[TOOL])).tools[0].parameters == {"type": "object", "properties": {}}


def test_tool_choices() -> None:
    assert parse(body(tool_choice="none")).tool_choice == ToolChoice("none")
    assert parse(body(tools=[TOOL], tool_choice="required")).tool_choice == ToolChoice("required")
    named = {"type": "function", "function": {"name": "bash"}}
    assert parse(body(tools=[TOOL], tool_choice=named)).tool_choice == ToolChoice("required", "bash")
    assert parse(body(parallel_tool_calls=False)).tool_choice == ToolChoice("auto", parallel=False)


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert parse(body(max_tokens=5)).sampling.max_tokens == 5
    assert parse(body(max_tokens=5, max_completion_tokens=7)).sampling.max_tokens == 7


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))],
)
def test_legacy_prompts(prompt: Any, read: Any) -> None:
    request = parse_legacy(prompt=prompt)
    assert request.prompt == read
    assert request.messages == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "prompt: expected a string or a list of token ids that is not empty, got None"),
        ({"prompt": ""}, "prompt: expected a string or a list of token ids that is not empty, got ''"),
        ({"prompt": [[]]}, "prompt: expected a string or a list of token ids that is not empty, got []"),
        ({"prompt": ["a", "b"]}, "prompt: 2 prompts in one request; send one request each"),
        ({"prompt": [1, -1]}, "prompt[1]: expected a whole number from 0 to 2147483647, got -1"),
        ({"prompt": [1, None]}, "prompt: expected token ids, got [1, None]"),
        ({"prompt": "a", "best_of": 3}, "best_of: one request gives one sample; send several requests"),
        ({"prompt": "a", "echo": True}, "echo: the prompt cannot be part of the reply"),
        ({"prompt": "a", "suffix": "b"}, "suffix: 'b' is not supported"),
        (
            {"prompt": "a", "logprobs": 1},
            "logprobs: 1 alternatives were asked for; only sampled tokens can be shown (0)",
        ),
    ],
)
def test_legacy_refusals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_legacy(**fields)
    assert caught.value.message == message


# -- replies ---------------------------------------------------------------------------------------------------------

STARTED = ReplyStarted("0123456789abcdefghij", "m", 0, prompt_tokens=3)


def reply_of(*parts: ReasoningPart | TextPart | ToolCallPart, **changes: Any) -> Reply:
    fields: dict[str, Any] = {"finish_reason": "stop", "usage": Usage(3, 4), **changes}
    return Reply(id="0123456789abcdefghij", model="m", created=0, parts=parts, **fields)


def client(content: bytes, status: int = 200, content_type: str = "application/json") -> openai.OpenAI:
    """The official SDK, for a server that always answers this."""
    answer = httpx2.Response(status, headers={"content-type": content_type}, content=content)
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    return openai.OpenAI(api_key="dgm_x", base_url="http://gateway/v1", http_client=http, max_retries=0)


def ask(to: openai.OpenAI, **options: Any) -> Any:
    return to.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], **options)


def test_keep_alives_change_nothing_for_the_sdk() -> None:
    encoder = OPENAI_CHAT.encoder(parse(body(stream=True)))
    events = (STARTED, TextDelta("a"), TextDelta("b"))
    stream = b"".join(encoder.encode(event) + encoder.keep_alive() for event in events)
    stream += encoder.encode(ReplyFinished(reply_of(TextPart("ab"))))
    chunks = list(ask(client(stream, content_type="text/event-stream"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]


def test_usage_is_streamed_only_when_asked_for() -> None:
    for options, expected in (({}, False), ({"stream_options": {"include_usage": True}}, True)):
        encoder = OPENAI_CHAT.encoder(parse(body(stream=True, **options)))
        stream = encoder.encode(STARTED) + encoder.encode(ReplyFinished(reply_of()))
        assert (b'"usage"' in stream) == expected
        assert stream.endswith(b"data: [DONE]\n\n")


def test_nothing_to_act_on_leaves_before_the_end() -> None:
    encoder = OPENAI_CHAT.encoder(parse(body(stream=True)))
    before = encoder.encode(STARTED) + encoder.encode(TextDelta("a"))
    reply = reply_of(TextPart("a"), ToolCallPart("c", "bash", "{}"), finish_reason="tool_calls")
    after = encoder.encode(ReplyFinished(reply))
    for mark in (b'"tool_calls"', b'"finish_reason":"tool_calls"', b"[DONE]"):
        assert mark not in before
        assert mark in after


def test_a_chunk_needs_a_start() -> None:
    with pytest.raises(RuntimeError, match="before ReplyStarted"):
        OPENAI_CHAT.encoder(parse(body(stream=True))).keep_alive()


def test_an_error_in_the_stream_reaches_the_sdk_and_ends_it() -> None:
    encoder = OPENAI_CHAT.encoder(parse(body(stream=True)))
    stream = encoder.encode(STARTED) + encoder.encode(ReplyFailed(EngineFailed("the engine is gone")))
    assert b"[DONE]" not in stream
    with pytest.raises(openai.APIError, match="the engine is gone") as caught:
        list(ask(client(stream, content_type="text/event-stream"), stream=True))
    assert caught.value.type == "server_error"


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (InvalidRequest("x: wrong", field="x"), openai.BadRequestError, None),
        (Unauthorized("unknown key"), openai.AuthenticationError, "invalid_api_key"),
        (NotFound("no such path"), openai.NotFoundError, "not_found"),
        (Overloaded("later"), openai.InternalServerError, "overloaded"),
        (Conflict("the episode has ended"), openai.BadRequestError, "conflict"),
    ],
)
def test_errors_by_the_sdk(error: DragomanError, expected: type[openai.APIStatusError], code: str | None) -> None:
    content = json.dumps(OPENAI_CHAT.error_body(error, "0123456789abcdefghij")).encode()
    with pytest.raises(expected) as caught:
        ask(client(content, OPENAI_CHAT.error_status(error)))
    assert error.message in caught.value.message
    assert (caught.value.code, caught.value.param) == (code, error.field)


def test_a_reply_that_was_broken_off_is_cut() -> None:
    reply = OPENAI_CHAT.render_reply(reply_of(TextPart("a"), finish_reason="abort"), parse(body()))
    assert reply["choices"][0]["finish_reason"] == "length"


def test_ids_and_logprobs_need_a_completion() -> None:
    for asked in ({"return_token_ids": True}, {"logprobs": True}):
        with pytest.raises(ValueError, match="no completion"):
            OPENAI_CHAT.render_reply(reply_of(TextPart("a")), parse(body(**asked)))


def test_a_legacy_reply_is_all_text() -> None:
    request = parse_legacy(prompt="a")
    reply = OPENAI_CHAT.render_reply(reply_of(ReasoningPart("r"), TextPart("t")), request)
    assert reply["choices"][0]["text"] == "rt"
    calls = reply_of(ToolCallPart("c", "bash", "{}"))
    encoder = OPENAI_CHAT.encoder(request)
    encoder.encode(STARTED)
    for show in (lambda: OPENAI_CHAT.render_reply(calls, request), lambda: encoder.encode(ReplyFinished(calls))):
        with pytest.raises(ValueError, match="call of 'bash'"):
            show()


def test_models_by_the_sdk() -> None:
    listed = client(json.dumps(OPENAI_CHAT.render_models(["a", "b"], 5)).encode()).models.list().data
    assert [(model.id, model.created) for model in listed] == [("a", 5), ("b", 5)]
    Model.model_validate(OPENAI_CHAT.render_model("a", 0), strict=True)
    assert OPENAI_CHAT.render_count(7) == {"prompt_tokens": 7}
