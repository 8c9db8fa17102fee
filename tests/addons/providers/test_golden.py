"""Every folder in ``cases/<provider>/``: one request and one reply in a dialect, in all their forms.

``request.json`` is the body as the official SDK sends it, ``reply.json`` describes the reply (or the error) in our own
words. ``pytest tests/addons/providers --update-golden`` writes the other files; look at the diff.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import numpy as np
import openai
import pytest
from anthropic.types import Message as AnthropicMessage
from google import genai
from google.genai import errors as google_errors
from google.genai.types import GenerateContentResponse, HttpOptions
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion as LegacyCompletion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from dragoman.addons.errors import ContextTooLong
from dragoman.addons.messages import (
    ChatRequest,
    Completion,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyEvent,
    ReplyFinished,
    ReplyPart,
    ReplyStarted,
    TextDelta,
    TextPart,
    ToolCallPart,
    Usage,
)
from dragoman.addons.providers import PROVIDERS, find_provider
from dragoman.addons.providers.base import Provider
from dragoman.addons.sse import SseEvent, SseSplitter

CASES = Path(__file__).parent / "cases"
NAMES = {
    *("text", "system", "system_midlist", "tool_call", "parallel_tool_calls", "tool_result", "tool_error", "image"),
    *("thinking", "json_schema", "max_tokens", "stop_sequence", "empty", "malformed_args", "unknown_tool"),
    "context_too_long",
}
MISSING: dict[tuple[str, str], str] = {
    ("openai_responses", "stop_sequence"): "the dialect has no stop strings",
    ("google", "system_midlist"): "the dialect has no system message among the contents",
}
"""(provider, case) -> why a dialect has no such case."""
NOT_ACCUMULATED = {
    ("anthropic", "malformed_args"): "the SDK's own accumulator raises on tool arguments that are not JSON",
}
"""(provider, case) -> why the SDK's accumulated stream cannot be compared with the whole reply."""

CALL_ID = "0123456789abcdefghij"
CREATED = 1_790_000_000
JsonObject = dict[str, Any]
folders = sorted(folder for folder in CASES.glob("*/*") if folder.is_dir())
every_case = pytest.mark.parametrize("folder", folders, ids=[f"{f.parent.name}/{f.name}" for f in folders])
replied = [folder for folder in folders if "error" not in json.loads((folder / "reply.json").read_text())]
every_reply = pytest.mark.parametrize("folder", replied, ids=[f"{f.parent.name}/{f.name}" for f in replied])


def load(folder: Path, name: str) -> JsonObject:
    value: JsonObject = json.loads((folder / name).read_text())
    return value


def provider_of(folder: Path) -> Provider:
    return next(provider for provider in PROVIDERS if provider.name == folder.parent.name)


def path_of(folder: Path) -> str:
    if folder.parent.name == "anthropic":
        return "/v1/messages"
    if folder.parent.name == "openai_responses":
        return "/v1/responses"
    if folder.parent.name == "google":
        return "/v1/models/gemini-3.8-flash:generateContent"
    return "/v1/completions" if folder.name.startswith("legacy") else "/v1/chat/completions"


def parse(folder: Path, body: JsonObject) -> ChatRequest:
    found = find_provider(host=None, method="POST", path=path_of(folder), headers={})
    assert found is not None
    assert found[0] is provider_of(folder)
    return found[0].parse_request(body, found[1])


def streaming(folder: Path) -> JsonObject:
    """The case's body as it asks for a stream."""
    if folder.parent.name == "google":
        return load(folder, "request.json")
    options = {"stream_options": {"include_usage": True}} if folder.parent.name == "openai_chat" else {}
    return {**load(folder, "request.json"), "stream": True, **options}


def dump(value: Any) -> Any:
    """A dataclass as JSON: fields in their order less those with their default, and the class name of a part."""
    if is_dataclass(value):
        kind = {"part": type(value).__name__} if type(value).__name__.endswith("Part") else {}
        said = [field for field in fields(value) if getattr(value, field.name) != field.default]
        return kind | {field.name: dump(getattr(value, field.name)) for field in said}
    if isinstance(value, tuple):
        return [dump(item) for item in value]
    return value


def build_reply(folder: Path, model: str) -> Reply:
    described = load(folder, "reply.json")
    parts: list[ReplyPart] = []
    calls = 0
    for part in described["parts"]:
        match part["type"]:
            case "reasoning":
                parts.append(ReasoningPart(part["text"]))
            case "text":
                parts.append(TextPart(part["text"]))
            case "tool_call":
                call_id = f"{provider_of(folder).tool_call_prefix}{CALL_ID}_{calls}"
                parts.append(ToolCallPart(call_id, part["name"], part["arguments"]))
                calls += 1
    completion = None
    if sampled := described.get("completion"):
        completion = Completion(
            prompt_ids=np.array(sampled["prompt_ids"], np.int32),
            completion_ids=np.array(sampled["completion_ids"], np.int32),
            logprobs=np.array(sampled["logprobs"], np.float32),
            finish_reason="stop",
            policy_spans=(),
        )
    return Reply(
        id=CALL_ID,
        model=model,
        created=CREATED,
        parts=tuple(parts),
        finish_reason=described["finish_reason"],
        usage=Usage(**described["usage"]),
        stop_sequence=described.get("stop_sequence"),
        completion=completion,
    )


def events_of(reply: Reply) -> Iterator[ReplyEvent]:
    """The events by which a stream tells this reply: text comes in pieces of seven characters."""
    yield ReplyStarted(reply.id, reply.model, reply.created, reply.usage.prompt_tokens)
    for part in reply.parts:
        if not isinstance(part, ToolCallPart):
            delta = ReasoningDelta if isinstance(part, ReasoningPart) else TextDelta
            yield from (delta(part.text[i : i + 7]) for i in range(0, len(part.text), 7))
    yield ReplyFinished(reply)


def rendered(folder: Path, body: JsonObject) -> bytes:
    """The whole reply, or the error, as bytes."""
    request = parse(folder, body)
    described = load(folder, "reply.json")
    if error := described.get("error"):
        return json.dumps(provider_of(folder).error_body(ContextTooLong(**error), CALL_ID)).encode()
    return json.dumps(provider_of(folder).render_reply(build_reply(folder, request.model), request)).encode()


def streamed(folder: Path, body: JsonObject) -> bytes:
    request = parse(folder, body)
    encoder = provider_of(folder).encoder(request)
    return b"".join(encoder.encode(event) for event in events_of(build_reply(folder, request.model)))


def check(path: Path, value: str, update: bool) -> None:
    if update:
        path.write_text(value)
    assert path.read_text() == value


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("provider", [provider.name for provider in PROVIDERS])
def test_every_provider_has_every_case(provider: str) -> None:
    names = {folder.name for folder in folders if folder.parent.name == provider}
    missing = {name for (of, name) in MISSING if of == provider}
    assert not missing & names
    assert not NAMES - names - missing


@every_case
def test_request_is_parsed(folder: Path, update_golden: bool) -> None:
    body = load(folder, "request.json")
    check(folder / "parsed.json", pretty(dump(parse(folder, body))), update_golden)


@every_case
def test_reply_is_rendered(folder: Path, update_golden: bool) -> None:
    value = json.loads(rendered(folder, load(folder, "request.json")))
    check(folder / "response.json", pretty(value), update_golden)


@every_reply
def test_reply_is_streamed(folder: Path, update_golden: bool) -> None:
    check(folder / "response.sse", streamed(folder, streaming(folder)).decode(), update_golden)


@every_reply
def test_stream_is_the_same_for_any_chunks(folder: Path) -> None:
    stream = (folder / "response.sse").read_bytes()
    whole = split(stream)
    assert len(whole) == stream.count(b"\n\n") > 0
    assert split(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    draw = random.Random(folder.name)
    cuts = sorted(draw.randrange(len(stream)) for _ in range(20))
    assert split(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))) == whole


def split(*chunks: bytes) -> list[SseEvent]:
    splitter = SseSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)]


# -- the official SDKs as clients ------------------------------------------------------------------------------------


def answering(folder: Path) -> httpx2.Client:
    """An HTTP client whose server checks that the SDK sent the case's body, and answers as the gateway would."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        found = find_provider(host=None, method=request.method, path=request.url.path, headers=request.headers)
        assert found is not None
        assert found[0] is provider_of(folder)
        assert found[1].kind == "generate"
        body = json.loads(request.content)
        if body.get("stream") or found[1].stream:
            assert body == streaming(folder)
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, content=(folder / "response.sse").read_bytes())
        assert body == load(folder, "request.json")
        status = 400 if "error" in load(folder, "reply.json") else 200
        return httpx2.Response(status, content=(folder / "response.json").read_bytes())

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def anthropic_client(folder: Path) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="dgm_x", base_url="http://gateway", http_client=answering(folder), max_retries=0)


def openai_client(folder: Path) -> openai.OpenAI:
    return openai.OpenAI(api_key="dgm_x", base_url="http://gateway/v1", http_client=answering(folder), max_retries=0)


def google_client(folder: Path) -> genai.Client:
    options = HttpOptions(base_url="http://gateway", httpx_client=answering(folder))
    return genai.Client(api_key="dgm_x", http_options=options)


def without(body: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in body.items() if name not in names}


EXTRA_FIELDS = {
    "anthropic": ("temperature", "top_p", "top_k"),
    "openai_chat": ("return_token_ids", "top_k", "min_p", "repetition_penalty"),
    "openai_responses": ("client_metadata",),
}
"""Fields that an SDK has no name for, or no longer: they go into its ``extra_body``."""


def sdk_arguments(folder: Path, body: JsonObject) -> JsonObject:
    names = EXTRA_FIELDS[folder.parent.name]
    return {**without(body, *names), "extra_body": {name: body[name] for name in names if name in body}}


def google_arguments(body: JsonObject) -> JsonObject:
    config = {**body.get("generationConfig", {}), **without(body, "contents", "generationConfig")}
    return {"model": "gemini-3.8-flash", "contents": body["contents"], "config": config}


def google_json(response: GenerateContentResponse) -> JsonObject:
    fields = response.model_dump(mode="json", by_alias=True, exclude_none=True)
    return without(fields, "sdkHttpResponse", "parsed", "automaticFunctionCallingHistory")


def whole_by_sdk(folder: Path) -> JsonObject:
    body = load(folder, "request.json")
    if folder.parent.name == "google":
        return google_json(google_client(folder).models.generate_content(**google_arguments(body)))
    if folder.parent.name == "anthropic":
        return anthropic_client(folder).messages.create(**sdk_arguments(folder, body)).to_dict()
    client = openai_client(folder)
    if folder.parent.name == "openai_responses":
        return client.responses.create(**sdk_arguments(folder, body)).to_dict()
    create: Callable[..., Any] = client.chat.completions.create
    if folder.name.startswith("legacy"):
        create = client.completions.create
    reply: JsonObject = create(**sdk_arguments(folder, body)).to_dict()
    return reply


def accumulated_by_sdk(folder: Path) -> JsonObject:
    """The stream, put together by the SDK, in the shape of the whole reply."""
    body = streaming(folder)
    if folder.parent.name == "anthropic":
        arguments = sdk_arguments(folder, without(body, "stream"))
        with anthropic_client(folder).messages.stream(**arguments) as stream:
            return without(stream.get_final_message().to_dict(), "stop_details")
    if folder.parent.name == "google":
        return accumulated_google(google_client(folder).models.generate_content_stream(**google_arguments(body)))
    client: Any = openai_client(folder)
    if folder.parent.name == "openai_responses":
        return accumulated_response(client, sdk_arguments(folder, without(body, "stream")))
    if folder.name.startswith("legacy"):
        return accumulated_completion(client.completions.create(**sdk_arguments(folder, body)))
    state: Any = ChatCompletionStreamState()
    more: JsonObject = {}
    for chunk in client.chat.completions.create(**sdk_arguments(folder, body)):
        state.handle_chunk(chunk)
        # The SDK's accumulator keeps none of vLLM's fields.
        more |= {name: value for name, value in (chunk.model_extra or {}).items() if name == "prompt_token_ids"}
        for choice in chunk.choices:
            more |= {name: value for name, value in (choice.model_extra or {}).items() if name == "token_ids"}
    reply: JsonObject = state.current_completion_snapshot.to_dict()
    choice = reply["choices"][0]
    choice["message"] = without(choice["message"], "parsed")
    for call in choice["message"].get("tool_calls") or []:
        del call["index"]
        call["function"].pop("parsed_arguments", None)
    if "token_ids" in more:
        choice["token_ids"] = more.pop("token_ids")
    return reply | more


def accumulated_response(client: Any, arguments: JsonObject) -> JsonObject:
    """The SDK's own last word, but with the output that its other events added up to before it."""
    output: list[JsonObject] = []
    spelt_out: dict[int, str] = {}
    numbers = []
    with client.responses.stream(**arguments) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type.endswith(".delta"):
                spelt_out[event.output_index] = spelt_out.get(event.output_index, "") + event.delta
            elif event.type == "response.output_item.done":
                assert event.output_index == len(output)
                output.append(without(event.item.to_dict(), "parsed_arguments"))
        final: JsonObject = stream.get_final_response().to_dict()
    assert numbers == list(range(len(numbers)))
    for index, text in spelt_out.items():
        item = output[index]
        parts = item.get("content") or item.get("summary")
        assert text == (parts[0]["text"] if parts else item.get("arguments", item.get("input")))
    return {**final, "output": output}


def accumulated_google(chunks: Iterator[GenerateContentResponse]) -> JsonObject:
    """The SDK has no accumulator: neighbouring texts of one kind are joined, the last value of all else stands."""
    reply: JsonObject = {}
    parts: list[JsonObject] = []
    for chunk in chunks:
        reply = google_json(chunk)
        for part in reply["candidates"][0]["content"]["parts"]:
            if parts and "text" in part and "text" in parts[-1] and part.get("thought") == parts[-1].get("thought"):
                parts[-1] = {**part, **parts[-1], "text": parts[-1]["text"] + part["text"]}
            elif part != {"text": ""}:
                parts.append(part)
    reply["candidates"][0]["content"]["parts"] = parts or [{"text": ""}]
    return reply


def accumulated_completion(chunks: Any) -> JsonObject:
    """Legacy completions: the SDK has no accumulator; texts are joined, the last value of all else stands."""
    reply: JsonObject = {}
    choice: JsonObject = {"text": ""}
    for chunk in chunks:
        part = chunk.to_dict()
        for piece in part.pop("choices"):
            text = choice["text"] + piece["text"]
            choice |= piece
            choice["text"] = text
        reply |= part
    return {**reply, "choices": [choice]}


OFFICIAL: dict[str, type[BaseModel]] = {
    "/v1/messages": AnthropicMessage,
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": LegacyCompletion,
    "/v1/responses": Response,
    "/v1/models/gemini-3.8-flash:generateContent": GenerateContentResponse,
}


@every_reply
def test_sdk_accepts_the_whole_reply(folder: Path) -> None:
    response = load(folder, "response.json")
    OFFICIAL[path_of(folder)].model_validate_json(json.dumps(response), strict=True)
    assert whole_by_sdk(folder) == response


@every_reply
def test_sdk_accumulates_the_stream_to_the_whole_reply(folder: Path) -> None:
    if (folder.parent.name, folder.name) in NOT_ACCUMULATED:
        with pytest.raises(ValueError, match="Unable to parse tool parameter JSON"):
            accumulated_by_sdk(folder)
        return
    assert comparable(accumulated_by_sdk(folder)) == comparable(load(folder, "response.json"))


def comparable(reply: JsonObject) -> JsonObject:
    """Less nulls, which the SDK's accumulators keep or drop as they like, and the word for the kind of object."""
    cleaned: JsonObject = json.loads(
        json.dumps(reply), object_hook=lambda o: {k: v for k, v in o.items() if v is not None}
    )
    return without(cleaned, "object")


def test_anthropic_stream_carries_malformed_arguments_as_sampled() -> None:
    folder = CASES / "anthropic" / "malformed_args"
    events = [json.loads(event.data) for event in split((folder / "response.sse").read_bytes())]
    deltas = [e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"]
    assert deltas == ["{'command': 'ls'}"]


@pytest.mark.parametrize("provider", [provider.name for provider in PROVIDERS])
def test_sdk_raises_what_context_too_long_is(provider: str) -> None:
    refusals = (anthropic.BadRequestError, openai.BadRequestError, google_errors.ClientError)
    with pytest.raises(refusals) as caught:
        whole_by_sdk(CASES / provider / "context_too_long")
    if isinstance(caught.value, openai.BadRequestError):
        assert caught.value.code == "context_length_exceeded"
    elif isinstance(caught.value, google_errors.ClientError):
        assert caught.value.status == "INVALID_ARGUMENT"
        assert "(9001) exceeds the maximum number of tokens allowed (8192)" in str(caught.value)
    else:
        assert "prompt is too long: 9001 tokens > 8192 maximum" in str(caught.value)
