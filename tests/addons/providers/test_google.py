"""``providers/google.py``: what the golden cases do not show."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors, types

from dragoman.addons.errors import ContextTooLong, DragomanError, EngineFailed, InvalidRequest, Overloaded, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
    ImagePart,
    Message,
    Part,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyStarted,
    ResponseFormat,
    Sampling,
    TextDelta,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    Usage,
)
from dragoman.addons.providers import find_provider
from dragoman.addons.providers.base import Route, issue_signature
from dragoman.addons.providers.google import GOOGLE
from dragoman.addons.sse import SseSplitter

JsonObject = dict[str, Any]
CALL_ID = "0123456789abcdefghij"
GENERATE = Route("generate", model="m", stream=False)
STREAM = Route("generate", model="m", stream=True, query="alt=sse")
HELLO = [{"role": "user", "parts": [{"text": "Hello"}]}]
LS: JsonObject = {"name": "ls", "description": "List.", "parametersJsonSchema": {"type": "object"}}
CAT: JsonObject = {**LS, "name": "cat"}


def parse(body: JsonObject, route: Route = GENERATE) -> ChatRequest:
    return GOOGLE.parse_request({"contents": HELLO, **body}, route)


# -- routes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1beta/models/gemini-3.8-flash:generateContent", ("generate", "gemini-3.8-flash", False)),
        ("POST", "/v1/models/m:streamGenerateContent", ("generate", "m", True)),
        ("POST", "/v1/models/m:countTokens", ("count_tokens", "m", False)),
        ("POST", "/v1beta/models/models/m:generateContent", ("generate", "m", False)),
        ("POST", "/v1beta/models/m%3AgenerateContent", ("generate", "m", False)),
        ("POST", "/v1beta/models/Qwen/Qwen3:4b:generateContent", ("generate", "Qwen/Qwen3:4b", False)),
        ("POST", "/v1beta/tunedModels/mine-1:generateContent", ("generate", "tunedModels/mine-1", False)),
        ("GET", "/v1beta/models", ("models", None, None)),
        ("GET", "/v1/models", ("models", None, None)),
        ("GET", "/v1beta/models/Qwen/Qwen3:4b", ("model", "Qwen/Qwen3:4b", None)),
        ("GET", "/v1beta/models/models%2Fm", ("model", "m", None)),
    ],
)
def test_route(method: str, path: str, route: tuple[str, str | None, bool | None]) -> None:
    found = GOOGLE.route(method, path)
    assert found is not None
    assert (found.kind, found.model, found.stream) == route


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1beta/models/"),
        ("POST", "/v1beta/models"),
        ("POST", "/v1beta/models/m"),
        ("POST", "/v1beta/models/:generateContent"),
        ("POST", "/v1beta/models/m:embedContent"),
        ("PUT", "/v1beta/models/m:generateContent"),
        ("POST", "/v2/models/m:generateContent"),
        ("POST", "/x/v1beta/models/m:generateContent"),
    ],
)
def test_no_route(method: str, path: str) -> None:
    assert GOOGLE.route(method, path) is None


@pytest.mark.parametrize(
    ("stream", "query", "form"),
    [
        (True, "alt=sse", "sse"),
        (True, "key=x&alt=sse", "sse"),
        (True, "", "json_array"),
        (True, "alt=json", "json_array"),
        (False, "", "sse"),
    ],
)
def test_the_query_decides_the_form_of_the_stream(stream: bool, query: str, form: str) -> None:
    request = parse({}, Route("generate", model="m", stream=stream, query=query))
    assert (request.stream, request.stream_form) == (stream, form)


# -- the request ------------------------------------------------------------------------------------------------------


def test_model_comes_from_the_path_alone() -> None:
    assert parse({"model": "models/other"}).model == "m"


def test_top_p_of_nothing_is_one_that_the_engine_takes() -> None:
    (asked,) = {parse({"generationConfig": {"topP": zero}}).sampling.top_p for zero in (0, 0.0)}
    assert asked is not None
    assert 0 < asked < 1e-3


def test_every_knob_in_either_spelling() -> None:
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=64,
        presence_penalty=-1,
        frequency_penalty=2,
        seed=-7,
        max_tokens=5,
        stop=("a", "b"),
    )
    camel = {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 64.0,
        "presencePenalty": -1,
        "frequencyPenalty": 2,
        "seed": -7,
        "maxOutputTokens": 5,
        "stopSequences": ["a", "b"],
        "candidateCount": 1,
        "responseModalities": ["TEXT"],
        "speechConfig": {},
        "mediaResolution": "MEDIA_RESOLUTION_LOW",
        "logprobs": None,
    }
    snake = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 64,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "seed": -7,
        "max_output_tokens": 5,
        "stop_sequences": ["a", "b"],
        "candidate_count": 1,
    }
    assert parse({"generationConfig": camel}).sampling == sampling
    assert parse({"generation_config": snake}).sampling == sampling
    assert parse({"generationConfig": None}).sampling == Sampling()


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({}, ToolChoice()),
        ({"mode": "AUTO"}, ToolChoice()),
        ({"mode": "VALIDATED"}, ToolChoice()),
        ({"mode": "NONE", "allowedFunctionNames": ["ls"]}, ToolChoice("none")),
        ({"mode": "ANY"}, ToolChoice("required")),
        ({"mode": "ANY", "allowedFunctionNames": ["cat"]}, ToolChoice("required", "cat")),
        ({"mode": "ANY", "allowed_function_names": ["cat", "ls"]}, ToolChoice("required")),
        ({"allowedFunctionNames": ["cat", "ls"]}, ToolChoice()),
    ],
)
def test_tool_choice(config: JsonObject, choice: ToolChoice) -> None:
    body = {"tools": [{"functionDeclarations": [LS, CAT]}], "toolConfig": {"functionCallingConfig": config}}
    assert parse(body).tool_choice == choice


def test_tools_of_several_lists_and_without_parameters() -> None:
    tools = parse({"tools": [{"functionDeclarations": {"name": "a"}}, {}, {"function_declarations": [LS]}]}).tools
    assert [tool.name for tool in tools] == ["a", "ls"]
    assert tools[0].parameters == {"type": "object", "properties": {}}


def test_hosted_tools_beside_functions_are_left_out() -> None:
    tools = parse({"tools": [{"functionDeclarations": [LS], "googleSearch": {}}, {"code_execution": {}}]}).tools
    assert [tool.name for tool in tools] == ["ls"]


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, ResponseFormat("json_object")),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "STRING", "nullable": True}},
            ResponseFormat("json_schema", {"type": ["string", "null"]}),
        ),
        (
            {"response_mime_type": "application/json", "response_json_schema": {"type": "STRING", "nullable": True}},
            ResponseFormat("json_schema", {"type": "string", "nullable": True}),
        ),
        (
            {"responseMimeType": "application/json", "_responseJsonSchema": {"type": "object"}},
            ResponseFormat("json_schema", {"type": "object"}),
        ),
    ],
)
def test_response_format(config: JsonObject, form: ResponseFormat | None) -> None:
    assert parse({"generationConfig": config}).response_format == form


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"cachedContent": "cachedContents/x"}, "cachedContent: nothing is kept here"),
        ({"continuation_token": "x"}, "continuationToken: nothing is kept here"),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount: one request gives one"),
        ({"generationConfig": {"responseLogprobs": True}}, "generationConfig.responseLogprobs: not supported"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig.responseModalities: the model"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType: 'text/x.enum'"),
        ({"tools": [{"googleSearch": {}}]}, "tools: googleSearch runs at the provider and is not supported"),
        ({"tools": [{"url_context": {}}, {"codeExecution": {}}]}, "tools: urlContext, codeExecution runs at the"),
        ({"tools": [{"computerUse": {}, "functionDeclarations": [LS]}]}, "tools[0]: tools of kind 'computerUse'"),
        (
            {
                "tools": [{"functionDeclarations": [LS, CAT, {"name": "rm"}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["ls", "cat"]}},
            },
            "toolConfig.functionCallingConfig.allowedFunctionNames: may name all functions",
        ),
        ({"contents": [*HELLO, {"role": "model", "parts": [{"text": "Hi"}]}]}, "contents: must end with a user's"),
    ],
)
def test_unsupported(body: JsonObject, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.message.startswith(message)
    assert isinstance(caught.value, Unsupported) == ("candidateCount" not in message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"contents": []}, "contents: at least one content"),
        ({"contents": None}, "contents: at least one content"),
        ({"contents": "Hello"}, "contents: expected an array, got 'Hello'"),
        ({"generationConfig": []}, "generationConfig: expected an object, got []"),
        (
            {"generationConfig": {"temperature": 3}},
            "generationConfig.temperature: expected a number from 0 to 2, got 3",
        ),
        ({"generationConfig": {"topK": 1.5}}, "generationConfig.topK: expected a whole number"),
        ({"generationConfig": {"thinkingConfig": 1}}, "generationConfig.thinkingConfig: expected an object, got 1"),
        ({"generationConfig": {"topK": 1, "top_k": 1}}, "generationConfig: a field is given both"),
        ({"generationConfig": {"responseSchema": {}}}, "generationConfig.responseSchema: needs responseMimeType"),
        (
            {
                "generationConfig": {
                    "responseMimeType": "application/json",
                    "responseSchema": {},
                    "responseJsonSchema": {},
                }
            },
            "generationConfig.responseSchema: cannot stand beside responseJsonSchema",
        ),
        ({"tools": [{"functionDeclarations": [LS, LS]}]}, "tools: Duplicate function declaration found: 'ls'"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name: expected a string"),
        (
            {"tools": [{"functionDeclarations": [{**LS, "parameters": {}}]}]},
            "tools[0].functionDeclarations[0]: give parameters or parametersJsonSchema, not both",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "toolConfig.functionCallingConfig.mode: 'ANY' needs functionDeclarations",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "any"}}},
            "toolConfig.functionCallingConfig.mode: expected 'AUTO', 'ANY', 'NONE' or 'VALIDATED', got 'any'",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["rm"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames: no function is named 'rm'",
        ),
    ],
)
def test_invalid(body: JsonObject, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.message.startswith(message)
    assert caught.value.field is not None
    assert not isinstance(caught.value, Unsupported)


def test_count_tokens_reads_both_forms() -> None:
    route = Route("count_tokens", model="m")
    full = {"model": "models/m", "contents": HELLO, "systemInstruction": "Be kind.", "tools": []}
    assert GOOGLE.parse_request({"contents": HELLO}, route).messages == (Message("user", (TextPart("Hello"),)),)
    assert GOOGLE.parse_request({"generateContentRequest": full}, route).messages == (
        Message("system", (TextPart("Be kind."),)),
        Message("user", (TextPart("Hello"),)),
    )
    with pytest.raises(InvalidRequest, match=r"^contents: cannot stand beside generateContentRequest"):
        GOOGLE.parse_request({"contents": HELLO, "generateContentRequest": full}, route)
    GOOGLE.parse_request({"contents": [*HELLO, {"role": "model", "parts": [{"text": "Hi"}]}]}, route)
    assert GOOGLE.render_count(7) == {"totalTokens": 7}


# -- the reply --------------------------------------------------------------------------------------------------------


def reply(*parts: ReasoningPart | TextPart | ToolCallPart, reasoning_tokens: int = 0) -> Reply:
    return Reply(
        id=CALL_ID,
        model="m",
        created=0,
        parts=parts,
        finish_reason="tool_calls" if any(isinstance(part, ToolCallPart) for part in parts) else "stop",
        usage=Usage(10, 5, reasoning_tokens),
    )


def call(arguments: str, n: int = 0) -> ToolCallPart:
    return ToolCallPart(f"{GOOGLE.tool_call_prefix}{CALL_ID}_{n}", "ls", arguments)


FULL = reply(ReasoningPart("Let me see."), TextPart("I look."), call("{}"), call('{"a":1}', 1), reasoning_tokens=2)
SHOWING = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}


def events(of: Reply) -> list[ReplyEvent]:
    deltas: list[ReplyEvent] = []
    for part in of.parts:
        if not isinstance(part, ToolCallPart):
            delta = ReasoningDelta if isinstance(part, ReasoningPart) else TextDelta
            deltas += [delta(part.text[:4]), delta(part.text[4:])]
    return [ReplyStarted(of.id, of.model, of.created, of.usage.prompt_tokens), *deltas, ReplyFinished(of)]


def parts_of(value: JsonObject) -> list[JsonObject]:
    parts: list[JsonObject] = value["candidates"][0]["content"]["parts"]
    return parts


def split(stream: bytes) -> list[JsonObject]:
    return [json.loads(event.data) for event in SseSplitter().feed(stream)]


def test_thoughts_are_shown_to_those_who_asked() -> None:
    shown = parts_of(GOOGLE.render_reply(FULL, parse(SHOWING)))
    assert shown[0] == {"text": "Let me see.", "thought": True, "thoughtSignature": issue_signature(CALL_ID)}
    assert parts_of(GOOGLE.render_reply(FULL, parse({}))) == shown[1:]
    assert "thoughtSignature" in shown[2]
    assert "thoughtSignature" not in shown[3]


def test_hidden_thoughts_stream_as_keep_alives() -> None:
    encoder = GOOGLE.encoder(parse({}, STREAM))
    encoder.encode(ReplyStarted(CALL_ID, "m", 0, 10))
    assert encoder.encode(ReasoningDelta("Let")) == encoder.keep_alive()
    assert parts_of(split(encoder.keep_alive())[0]) == [{"text": ""}]


def test_usage_in_every_chunk() -> None:
    encoder = GOOGLE.encoder(parse(SHOWING, STREAM))
    chunks = split(b"".join(encoder.encode(event) for event in events(FULL)))
    assert [chunk["usageMetadata"] for chunk in chunks] == [
        *[{"promptTokenCount": 10, "totalTokenCount": 10}] * 4,
        {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 15},
    ]


@pytest.mark.parametrize("arguments", ["{'a': 1}", '{"a": ', "[1]", '"x"', "{" * 2000, '{"a":' * 300 + "1" + "}" * 300])
def test_arguments_that_are_no_object(arguments: str) -> None:
    rendered = GOOGLE.render_reply(reply(call(arguments)), parse({}))
    args = parts_of(rendered)[0]["functionCall"]["args"]
    assert args == {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}


def test_array_stream_is_one_json_array() -> None:
    request = parse(SHOWING, Route("generate", model="m", stream=True))
    encoder = GOOGLE.encoder(request)
    pieces = [encoder.encode(event) for event in events(FULL)]
    assert pieces[0] == b"["
    pieces.insert(3, encoder.keep_alive())
    assert pieces[2].startswith(b",\n{")
    as_events = GOOGLE.encoder(parse(SHOWING, STREAM))
    chunks = split(b"".join(as_events.encode(event) for event in events(FULL)))
    array = json.loads(b"".join(pieces))
    assert parts_of(array.pop(2)) == [{"text": ""}]
    assert array == chunks


def test_array_stream_of_a_reply_without_text() -> None:
    encoder = GOOGLE.encoder(parse({}, Route("generate", model="m", stream=True)))
    array = json.loads(b"".join(encoder.encode(event) for event in events(reply())))
    assert [parts_of(chunk) for chunk in array] == [[{"text": ""}]]
    assert array[0]["candidates"][0]["finishReason"] == "STOP"


def test_error_in_an_array_stream() -> None:
    encoder = GOOGLE.encoder(parse({}, Route("generate", model="m", stream=True)))
    failed: list[ReplyEvent] = [
        ReplyStarted(CALL_ID, "m", 0, 10),
        TextDelta("Hi"),
        ReplyFailed(EngineFailed("the engine died")),
    ]
    array = json.loads(b"".join(encoder.encode(event) for event in failed))
    assert array[1] == {"error": {"code": 500, "message": "the engine died", "status": "INTERNAL"}}


# -- the official SDK -------------------------------------------------------------------------------------------------


def client(answer: Any) -> genai.Client:
    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return genai.Client(
        api_key="dgm_x", http_options=types.HttpOptions(base_url="http://gateway", httpx_client=transport)
    )


def streaming(*told: ReplyEvent, keep_alive: bool = False) -> Any:
    """An answer of the gateway: this stream, in answer to whatever is asked."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        route = GOOGLE.route(request.method, request.url.path)
        assert route is not None
        encoder = GOOGLE.encoder(GOOGLE.parse_request(json.loads(request.content), STREAM))
        pieces = [encoder.encode(event) + (encoder.keep_alive() if keep_alive else b"") for event in told[:-1]]
        return httpx2.Response(200, content=b"".join([*pieces, encoder.encode(told[-1])]))

    return answer


def test_sdk_chat_sends_a_streamed_turn_back_and_it_is_read_as_one_reply() -> None:
    sent: list[JsonObject] = []
    streams = [streaming(*events(FULL), keep_alive=True), streaming(*events(reply(TextPart("Done now"))))]

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        response: httpx2.Response = streams[len(sent) - 1](request)
        return response

    config: Any = {
        "thinking_config": {"include_thoughts": True},
        "tools": [{"function_declarations": [LS]}],
        "automatic_function_calling": {"disable": True},
    }
    chat = client(answer).chats.create(model="m", config=config)
    assert [chunk.text for chunk in chat.send_message_stream("Hello")][-2] == ""
    result = types.Part.from_function_response(name="ls", response={"output": "a.txt"})
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream([result, result])) == "Done now"
    history = parse(sent[1]).messages
    assert history[1] == Message(
        "assistant",
        (
            ReasoningPart("Let me see.", issue_signature(CALL_ID)),
            TextPart("I look."),
            call("{}"),
            call('{"a":1}', 1),
        ),
    )
    assert [part.call_id for part in history[2].parts if not isinstance(part, TextPart)] == [  # type: ignore[union-attr]
        call("", 0).id,
        call("", 1).id,
    ]


def test_sdk_raises_on_an_error_in_a_stream() -> None:
    answer = streaming(
        ReplyStarted(CALL_ID, "m", 0, 10), TextDelta("Hi"), ReplyFailed(Overloaded("the engine is full"))
    )
    stream = client(answer).models.generate_content_stream(model="m", contents="Hello")
    assert next(stream).text == "Hi"
    with pytest.raises(errors.ServerError) as caught:
        next(stream)
    assert (caught.value.code, caught.value.status, caught.value.message) == (503, "UNAVAILABLE", "the engine is full")


def test_error_in_an_sse_stream_is_no_event() -> None:
    """Gemini CLI's SDK reads an object only where it comes without ``data:``, pi's only where no blank line follows."""
    stream = GOOGLE.encoder(parse({}, STREAM)).encode(ReplyFailed(ValueError("secret")))
    message = "the gateway failed while making this reply"
    assert json.loads(stream) == {"error": {"code": 500, "message": message, "status": "INTERNAL"}}
    assert stream.endswith(b"}\n")


def test_sdk_lists_and_gets_models() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        route = GOOGLE.route(request.method, request.url.path)
        assert route is not None
        if route.kind == "models":
            return httpx2.Response(200, json=GOOGLE.render_models(["Qwen/Qwen3", "policy-v1"], 0))
        return httpx2.Response(200, json=GOOGLE.render_model(route.model or "", 0))

    models = client(answer).models
    assert [model.name for model in models.list()] == ["models/Qwen/Qwen3", "models/policy-v1"]
    got = models.get(model="Qwen/Qwen3")
    assert (got.name, got.display_name) == ("models/Qwen/Qwen3", "Qwen/Qwen3")
    assert got.supported_actions == ["generateContent", "countTokens"]


def test_sdk_counts_tokens() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        route = GOOGLE.route(request.method, request.url.path)
        assert route is not None
        assert route.kind == "count_tokens"
        chat = GOOGLE.parse_request(json.loads(request.content), route)
        return httpx2.Response(200, json=GOOGLE.render_count(len(chat.messages)))

    assert client(answer).models.count_tokens(model="m", contents=["Hello", "again"]).total_tokens == 1


# -- errors -----------------------------------------------------------------------------------------------------------


def test_context_too_long_in_googles_own_words() -> None:
    assert GOOGLE.error_body(ContextTooLong(9001, 8192), None)["error"] == {
        "code": 400,
        "message": "The input token count (9001) exceeds the maximum number of tokens allowed (8192).",
        "status": "INVALID_ARGUMENT",
    }


def test_overload_says_when_to_come_again() -> None:
    assert GOOGLE.error_body(Overloaded("later", retry_after=7), CALL_ID)["error"] == {
        "code": 503,
        "message": "later",
        "status": "UNAVAILABLE",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}],
    }


@pytest.mark.parametrize("code", ["invalid_request", "unauthorized", "not_found", "engine_failed", "timeout"])
def test_the_status_in_the_body_is_the_status_of_the_response(code: Any) -> None:
    error = DragomanError("x")
    error.code = code
    assert GOOGLE.error_body(error, None)["error"]["code"] == GOOGLE.error_status(error)


# -- recorded requests ------------------------------------------------------------------------------------------------

WIRE = os.environ.get("DRAGOMAN_WIRE")
REFUSED = {"gemini-websearch-3.json": "tools: googleSearch runs at the provider and is not supported"}
"""Recordings that are refused -> the reason that the harness is given."""
needs_wire = pytest.mark.skipif(WIRE is None, reason="DRAGOMAN_WIRE names no folder of recorded requests")


def recordings() -> list[Any]:
    found = []
    for path in sorted(Path(WIRE or "/nowhere").glob("*.json")):
        record = json.loads(path.read_text())
        route, _, query = (record.get("path") or "").partition("?")
        if record.get("method") == "POST" and GOOGLE.route("POST", route):
            found.append(pytest.param(route, query, record["body"], id=path.name))
    return found


def raw_part(part: JsonObject) -> Iterator[str]:
    """Every text in a part of the raw body, in order; signatures stand beside calls only, and say nothing here."""
    assert len(part.keys() - {"thoughtSignature"}) == 1
    match part:
        case {"text": text}:
            yield text
        case {"functionCall": {"id": id, "name": name, "args": args}}:
            yield from (id, name, json.dumps(args, ensure_ascii=False, separators=(",", ":")))
        case {"functionResponse": {"id": id, "name": _, "response": {"output": output}}}:
            yield from (id, output)
        case {"inlineData": {"mimeType": mime_type, "data": data}}:
            yield from (mime_type, data)
        case _:
            raise AssertionError(f"no recording holds {part}")


def kept(part: Part) -> Iterator[str | None]:
    """Every text in a parsed part, in the same order as ``raw_part``."""
    match part:
        case TextPart(text=text):
            yield text
        case ImagePart(media_type=media_type, data=data):
            yield from (media_type, data)
        case ToolCallPart(id=id, name=name, arguments=arguments):
            yield from (id, name, arguments)
        case ToolResultPart(call_id=call_id, parts=parts):
            yield call_id
            for inner in parts:
                yield from kept(inner)
        case ReasoningPart():
            raise AssertionError("Gemini CLI sends no thoughts back")


@needs_wire
@pytest.mark.parametrize(("path", "query", "body"), recordings())
def test_recorded_request(path: str, query: str, body: JsonObject, request: pytest.FixtureRequest) -> None:
    found = find_provider(host=None, method="POST", path=path, query=query, headers={})
    assert found is not None
    assert found[0] is GOOGLE
    name = request.node.callspec.id
    if name in REFUSED:
        with pytest.raises(Unsupported) as caught:
            GOOGLE.parse_request(body, found[1])
        assert caught.value.message == REFUSED[name]
        return
    chat = GOOGLE.parse_request(body, found[1])
    contents = [body["systemInstruction"]] if "systemInstruction" in body else []
    contents += body["contents"]
    said = [text for content in contents for part in content["parts"] for text in raw_part(part)]
    assert [text for message in chat.messages for part in message.parts for text in kept(part)] == said
    roles = {"model": "assistant", "user": "user"}
    told = [
        "tool" if "functionResponse" in content["parts"][0] else roles[content["role"]] for content in body["contents"]
    ]
    assert [message.role for message in chat.messages] == (["system"] if "systemInstruction" in body else []) + told
    functions = [tool for tools in body.get("tools", []) for tool in tools["functionDeclarations"]]
    assert [(t.name, t.description, t.parameters) for t in chat.tools] == [
        (function["name"], function["description"], function["parametersJsonSchema"]) for function in functions
    ]
    config = body.get("generationConfig", {})
    assert chat.sampling == Sampling(config.get("temperature"), config.get("topP"), config.get("topK"))
    assert (chat.response_format is not None) == ("responseJsonSchema" in config)
    assert chat.show_reasoning == config.get("thinkingConfig", {}).get("includeThoughts", False)
    assert chat.model == path.rpartition("/")[2].partition(":")[0]
    assert (chat.stream, chat.stream_form) == ("streamGenerateContent" in path, "sse")


@needs_wire
def test_the_router_of_gemini_cli_gets_its_schema() -> None:
    body = next(recording.values[2] for recording in recordings() if recording.id == "gemini-1.json")
    schema = GOOGLE.parse_request(body, GENERATE).response_format
    assert schema is not None
    assert json.dumps(schema.schema) == json.dumps(body["generationConfig"]["responseJsonSchema"]).replace(
        "OBJECT", "object"
    ).replace("STRING", "string").replace("INTEGER", "integer")


@needs_wire
def test_the_recordings_are_there() -> None:
    assert len(recordings()) >= 27
    assert set(REFUSED) <= {recording.id for recording in recordings()}
