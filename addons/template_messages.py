"""From our messages to the ones that chat templates and renderers take. Pure.

Rules, since a template's ``content`` is one string and ours is a list of parts:

- The text parts of one message, or of one tool result, are joined by a blank line. Empty ones are left out.
- Tool results become ``tool`` messages, in order; text beside them in the same message becomes a ``user`` message after
  the last of them.
- A failed tool result starts with ``TOOL_ERROR_PREFIX``.
- An image in a tool result becomes ``IMAGE_PLACEHOLDER``; so does one in a user message between a tool result and the
  next reply, which is how Pi and OpenCode carry a tool's image to an API whose results hold text only. Anywhere else an
  image is refused: the model would not see it.
- Arguments are handed over as an object when they are the JSON text of one, and as the text itself otherwise.
- Neighbouring assistant messages are one reply: Codex replays a reply's text and its calls as separate items.
- Nothing moves otherwise: a system message in mid-list stays there. ``system_first`` is for templates that refuse it.
"""

import json
from collections.abc import Iterable
from typing import Any

from dragoman.addons.errors import Unsupported
from dragoman.addons.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.store.records import JsonObject

IMAGE_PLACEHOLDER = "[image: this model cannot see images]"
TOOL_ERROR_PREFIX = "[the tool failed]\n"
_SEPARATOR = "\n\n"


def template_messages(messages: tuple[Message, ...]) -> list[JsonObject]:
    """The conversation as a template takes it. Raises ``Unsupported`` naming the part that cannot be shown."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    converted: list[JsonObject] = []
    behind_result = False
    for index, message in enumerate(messages):
        if message.role == "assistant":
            behind_result = False
            after_reply = index > 0 and messages[index - 1].role == "assistant"
            if not after_reply:
                converted.append(_assistant(_whole_reply(messages, index), index))
            continue
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        converted.extend(_tool_result(result, names.get(result.call_id)) for result in results)
        behind_result = behind_result or bool(results)
        others = [part for part in message.parts if not isinstance(part, ToolResultPart)]
        if others or not results:
            role = "system" if message.role == "system" else "user"
            texts = _texts(others, message, index, of_tool=behind_result and role == "user")
            converted.append({"role": role, "content": _joined(texts)})
    return converted


def template_tools(tools: tuple[Tool, ...]) -> list[JsonObject]:
    """The tools in the form that templates were written for."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def system_first(shown: list[JsonObject]) -> list[JsonObject]:
    """For a template that takes one system message, and only as the first.

    Those at the beginning become one, joined by a blank line; later ones become user messages where they stand.
    """
    leading = next((at for at, message in enumerate(shown) if message["role"] != "system"), len(shown))
    first = [{"role": "system", "content": _joined(m["content"] for m in shown[:leading])}] if leading else []
    return first + [{**m, "role": "user"} if m["role"] == "system" else m for m in shown[leading:]]


def with_argument_text(shown: list[JsonObject]) -> list[JsonObject]:
    """The same with every call's arguments as JSON text."""
    return [
        {**m, "tool_calls": [_argument_text(call) for call in m["tool_calls"]]} if "tool_calls" in m else m
        for m in shown
    ]


def with_argument_objects(shown: list[JsonObject]) -> list[JsonObject]:
    """The same with every call's arguments as an object; a text that is none stands in one as ``malformed``."""
    return [
        {**m, "tool_calls": [_argument_object(call) for call in m["tool_calls"]]} if "tool_calls" in m else m
        for m in shown
    ]


def _argument_object(call: JsonObject) -> JsonObject:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        return call
    return {**call, "function": {**call["function"], "arguments": {"malformed": arguments}}}


def _argument_text(call: JsonObject) -> JsonObject:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    return {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}


def _whole_reply(messages: tuple[Message, ...], start: int) -> Message:
    """The assistant message at ``start`` together with those that follow it directly."""
    end = next((at for at in range(start, len(messages)) if messages[at].role != "assistant"), len(messages))
    if end == start + 1:
        return messages[start]
    return Message("assistant", tuple(part for message in messages[start:end] for part in message.parts))


def _assistant(message: Message, index: int) -> JsonObject:
    shown = [part for part in message.parts if not isinstance(part, ReasoningPart | ToolCallPart)]
    converted: JsonObject = {"role": "assistant", "content": _joined(_texts(shown, message, index))}
    reasoning = _joined(part.text for part in message.parts if isinstance(part, ReasoningPart))
    if reasoning:
        converted["reasoning_content"] = reasoning
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    if calls:
        converted["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in calls
        ]
    return converted


def _tool_result(result: ToolResultPart, name: str | None) -> JsonObject:
    texts = (part.text if isinstance(part, TextPart) else IMAGE_PLACEHOLDER for part in result.parts)
    content = (TOOL_ERROR_PREFIX if result.is_error else "") + _joined(texts)
    converted: JsonObject = {"role": "tool", "tool_call_id": result.call_id, "content": content}
    if name is not None:
        converted["name"] = name
    return converted


def _texts(parts: Iterable[Any], message: Message, index: int, *, of_tool: bool = False) -> Iterable[str]:
    """``of_tool``: an image among them is a tool's."""
    for part in parts:
        if isinstance(part, ImagePart) and of_tool:
            yield IMAGE_PLACEHOLDER
            continue
        if isinstance(part, ImagePart):
            raise Unsupported("the model cannot see images", field=f"messages[{index}]")
        if not isinstance(part, TextPart):
            raise Unsupported(
                f"a {message.role} message cannot hold a {type(part).__name__!r}", field=f"messages[{index}]"
            )
        yield part.text


def _joined(texts: Iterable[str]) -> str:
    return _SEPARATOR.join(text for text in texts if text)


def _arguments(text: str) -> JsonObject | str:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text
