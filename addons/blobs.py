"""Messages, tools and replies as canonical JSON with a digest, for storing each once. Pure.

Rules of this module: the JSON is ours, not a provider's: one ``type`` word a part, keys in a fixed order. The same
message gives the same bytes on every machine, so its digest identifies it.
"""

import hashlib

import orjson

from dragoman.addons.messages import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    ReplyPart,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.store.records import Blob, JsonObject


def _part(part: Part) -> JsonObject:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ImagePart(media_type=media_type, data=data, url=url):
            return {"type": "image", "media_type": media_type, "data": data, "url": url}
        case ReasoningPart(text=text, signature=signature):
            return {"type": "reasoning", "text": text, "signature": signature}
        case ToolCallPart(id=call_id, name=name, arguments=arguments):
            return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}
        case ToolResultPart(call_id=call_id, parts=parts, is_error=is_error):
            return {"type": "tool_result", "id": call_id, "is_error": is_error, "parts": [_part(p) for p in parts]}


def read_message(data: bytes) -> Message:
    """The message of a ``message_blob`` or a ``reply_blob``. Raises ``ValueError`` when it is not one."""
    try:
        value = orjson.loads(data)
        return Message(value["role"], tuple(_read_part(part) for part in value["parts"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no stored message: {error!r}") from error


def _read_part(part: JsonObject) -> Part:
    match part["type"]:
        case "text":
            return TextPart(part["text"])
        case "image":
            return ImagePart(part["media_type"], part["data"], part["url"])
        case "reasoning":
            return ReasoningPart(part["text"], part["signature"])
        case "tool_call":
            return ToolCallPart(part["id"], part["name"], part["arguments"])
        case "tool_result":
            parts = tuple(p for p in map(_read_part, part["parts"]) if isinstance(p, TextPart | ImagePart))
            return ToolResultPart(part["id"], parts, part["is_error"])
    raise ValueError(f"this is no stored message: it has a part of type {part['type']!r}")


def _blob(value: object) -> Blob:
    data = orjson.dumps(value)
    return Blob(hashlib.sha256(data).digest()[:16], data)


def message_blob(message: Message) -> Blob:
    return _blob({"role": message.role, "parts": [_part(part) for part in message.parts]})


def tools_blob(tools: tuple[Tool, ...]) -> Blob | None:
    """``None`` when there are no tools."""
    if not tools:
        return None
    return _blob([{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools])


def read_tools(blob: Blob | None) -> tuple[Tool, ...]:
    """The tools of a ``tools_blob``, as functions: in which form a dialect has them is not in it."""
    if blob is None:
        return ()
    return tuple(Tool(tool["name"], tool["description"], tool["parameters"]) for tool in orjson.loads(blob.data))


def reply_blob(parts: tuple[ReplyPart, ...]) -> Blob:
    return _blob({"role": "assistant", "parts": [_part(part) for part in parts]})
