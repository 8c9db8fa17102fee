"""A real provider's reply, read back into the parts of a message. Pure.

Rules of this module: it is for looking at, never for training: a provider shows no tokens. What cannot be read is an
error with the reason, and never a guess. A streamed reply is put together as the dialect's own SDK does it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import orjson

from dragoman.addons.errors import InvalidRequest
from dragoman.addons.messages import ReasoningPart, ReplyPart, TextPart, ToolCallPart
from dragoman.addons.providers.base import Provider, Route
from dragoman.addons.sse import SseSplitter
from dragoman.store.records import JsonObject, ProviderName

Events = Iterable[JsonObject]


def read_reply(provider: Provider, route: Route, content_type: str, body: bytes) -> tuple[ReplyPart, ...]:
    """The parts of the reply whose body is ``body``, whole or as a stream (``text/event-stream`` or a JSON array).

    Raises ``InvalidRequest`` naming what cannot be read.
    """
    try:
        if content_type.startswith("text/event-stream"):
            splitter = SseSplitter()
            events = splitter.feed(body) + splitter.feed(b"\n\n")
            said = [orjson.loads(event.data) for event in events if event.data != b"[DONE]"]
            request = _STREAMED[provider.name](said)
        else:
            reply = orjson.loads(body)
            request = _STREAMED["google"](reply) if isinstance(reply, list) else _WHOLE[provider.name](reply)
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"the provider's reply cannot be read: {error!r}") from error
    chat = provider.parse_request(request, replace(route, variant=""))
    parts = (part for message in chat.messages if message.role == "assistant" for part in message.parts)
    return tuple(part for part in parts if isinstance(part, ReasoningPart | TextPart | ToolCallPart))


# -- each dialect: the reply as the request that would send it back ----------------------------------------------------

_ANSWER = {"role": "user", "content": "-"}
"""No dialect takes a request that ends with the assistant."""


def _anthropic(reply: JsonObject) -> JsonObject:
    return {"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": reply["content"]}, _ANSWER]}


def _anthropic_stream(events: Events) -> JsonObject:
    blocks: dict[int, JsonObject] = {}
    arguments: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] = block.get(name, "") + delta[name]
                if "partial_json" in delta:
                    arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
    for index, text in arguments.items():
        blocks[index]["input"] = orjson.loads(text) if text else {}
    return _anthropic({"content": [blocks[index] for index in sorted(blocks)]})


def _chat(reply: JsonObject) -> JsonObject:
    choice = reply["choices"][0]
    if "message" not in choice:  # legacy completions
        return {"model": "m", "messages": [{"role": "assistant", "content": choice["text"]}, _ANSWER]}
    return {"model": "m", "messages": [choice["message"], _ANSWER]}


def _chat_stream(events: Events) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": ""}
    calls: dict[int, JsonObject] = {}
    for event in events:
        for choice in event["choices"][:1]:
            delta = choice.get("delta", choice)
            message["content"] += delta.get("content") or delta.get("text") or ""
            if reasoning := delta.get("reasoning_content"):
                message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
            for piece in delta.get("tool_calls") or ():
                new: JsonObject = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(piece["index"], new)
                call["id"] = piece.get("id") or call["id"]
                for name, text in (piece.get("function") or {}).items():
                    call["function"][name] += text or ""
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"model": "m", "messages": [message, _ANSWER]}


def _responses(reply: JsonObject) -> JsonObject:
    return {"model": "m", "input": [*reply["output"], _ANSWER]}


def _responses_stream(events: Events) -> JsonObject:
    return _responses({"output": [event["item"] for event in events if event["type"] == "response.output_item.done"]})


def _google(reply: JsonObject) -> JsonObject:
    return _google_stream([reply])


def _google_stream(events: Events) -> JsonObject:
    parts: list[Any] = []
    for event in events:
        for candidate in event.get("candidates", [])[:1]:
            for part in candidate.get("content", {}).get("parts", []):
                last = parts[-1] if parts else {}
                if set(part) <= {"text", "thought"} and "text" in last and last.get("thought") == part.get("thought"):
                    parts[-1] = last | {"text": last["text"] + part["text"]}
                else:
                    parts.append(part)
    said = [part for part in parts if part.get("text") != ""]
    contents = [{"role": "model", "parts": said}] if said else []
    return {"contents": [*contents, {"role": "user", "parts": [{"text": "-"}]}]}


_WHOLE: dict[ProviderName, Callable[[JsonObject], JsonObject]] = {
    "anthropic": _anthropic,
    "openai_chat": _chat,
    "openai_responses": _responses,
    "google": _google,
}
_STREAMED: dict[ProviderName, Callable[[Events], JsonObject]] = {
    "anthropic": _anthropic_stream,
    "openai_chat": _chat_stream,
    "openai_responses": _responses_stream,
    "google": _google_stream,
}
