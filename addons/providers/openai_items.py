"""The input items of the Responses dialect as messages. Pure.

Rules of this module: each item is a message in its place, ``developer`` read as ``system``. But an assistant's
reasoning, text and calls, which come as items of their own, are one message as long as they come in the order in which
a reply has them: reasoning before text before calls. An empty text says nothing and makes no part. And:

- Reasoning is its ``content`` or else its ``summary``; ``encrypted_content`` is its signature.
- ``agent_message`` (Codex's sub-agents) is a user message that names both ends; what it calls ``encrypted_content`` is
  what our own model wrote, verbatim.
- ``compaction`` and ``context_compaction`` are a user message with the summary, if it is ours (``read_summary``); that
  of another provider becomes ``OPAQUE_SUMMARY``. What stands before one is still shown: who compacts leaves it out.
- ``compaction_trigger``, which comes last, asks for such a summary: a user message that says so (``SUMMARISE``).
- Calls that a provider ran itself (web search and the like, from a session that began elsewhere) become a text of the
  assistant's: ``[<type>]`` and the item as JSON.
- Ignored: an item's ``id``, ``status``, ``phase``, annotations and Codex's ``internal_…`` fields; an image's
  ``detail``; a ``configuration_update`` of the reasoning effort; ``additional_tools``, which ``openai_tools`` reads.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    ReplyPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.addons.providers.fields import as_json, as_list, as_name, as_object, as_text, shown, wrong
from dragoman.addons.providers.openai_chat import image_part
from dragoman.addons.providers.openai_tools import read_call, tools_in
from dragoman.store.records import JsonObject

SUMMARISE = Message(
    "user",
    (
        TextPart(
            "The conversation is becoming too long and ends here. Write the summary that takes its place: what was "
            "asked for, what has been done and found out, which files were changed and how, and what is left to do. "
            "Whoever goes on will have nothing but your summary. Write only the summary, and call no tools."
        ),
    ),
)
OPAQUE_SUMMARY = (
    "[Earlier conversation was compacted by another provider; its summary is encrypted and unreadable here.]"
)
_SUMMARY = "dgm-summary:"

_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
_RUN_ELSEWHERE = (
    *("web_search_call", "file_search_call", "code_interpreter_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
)


def issue_summary(text: str) -> str:
    """A compaction's ``encrypted_content``: base64 of ``dgm-summary:`` and the summary, for ``read_summary``."""
    return base64.b64encode(f"{_SUMMARY}{text}".encode()).decode()


def read_summary(encrypted: str) -> str | None:
    """The text in a compaction's ``encrypted_content``; ``None``: it is not one of ours."""
    try:
        plain = base64.b64decode(encrypted, validate=True).decode()
    except (binascii.Error, ValueError):  # ValueError: not ASCII, or not UTF-8
        return None
    return plain.removeprefix(_SUMMARY) if plain.startswith(_SUMMARY) else None


def summary_of(parts: Sequence[ReplyPart]) -> str:
    """The summary that a reply to ``SUMMARISE`` gives: its text, without what the model thought."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def compaction_message(summary: str) -> Message:
    """What the model is shown in place of a conversation that was compacted."""
    return Message("user", (TextPart(summary),))


def read_input(body: JsonObject, earlier: tuple[Message, ...]) -> tuple[Message, ...]:
    """``instructions``, the conversation that the request goes on with, and its ``input``."""
    messages: list[Message] = []
    if (instructions := body.get("instructions")) is not None and as_text(instructions, "instructions"):
        messages.append(Message("system", (TextPart(instructions),)))
    messages += earlier
    said = body.get("input")
    if isinstance(said, str):
        return (*messages, Message("user", (TextPart(said),) if said else ()))
    # Codex warms its socket up with an empty list.
    optional = body.get("generate") is False or earlier
    for i, value in enumerate([] if said is None and optional else as_list(said, "input")):
        at = f"input[{i}]"
        message = _message(as_object(value, at), at)
        if message is not None:
            messages.append(message)
    if not messages and not optional:
        raise InvalidRequest("input: at least one message is required", field="input")
    return _joined(messages)


def _joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The same with what belongs to one reply of the assistant's in one message."""
    joined: list[tuple[Role, list[Part]]] = []
    for message in messages:
        if joined and joined[-1][0] == message.role == "assistant" and _goes_on(joined[-1][1], message.parts):
            joined[-1][1].extend(message.parts)
        else:
            joined.append((message.role, list(message.parts)))
    return tuple(Message(role, tuple(parts)) for role, parts in joined)


def _goes_on(parts: Sequence[Part], more: Sequence[Part]) -> bool:
    if not parts or not more:
        return True
    before, after = _place(parts[-1]), _place(more[0])
    return before < after or before == after == 2


def _place(part: Part) -> int:
    """Where a part stands in a reply: reasoning, the text, the calls."""
    return 0 if isinstance(part, ReasoningPart) else 2 if isinstance(part, ToolCallPart) else 1


def _message(item: JsonObject, at: str) -> Message | None:
    """``None``: the item says nothing here."""
    match item.get("type"):
        case None | "message":
            return _plain_message(item, at)
        case "reasoning":
            parts = _reasoning(item, at)
            return Message("assistant", parts) if parts else None
        case "tool_search_call" | "tool_search_output" if item.get("call_id") is None:
            return _run_elsewhere(item, at)
        case str(kind) if kind in _CALLS:
            return Message("assistant", (read_call(item, at),))
        case str(kind) if kind in _OUTPUTS:
            call_id = item.get("id") if item.get("call_id") is None and kind == _OUTPUTS[2] else item.get("call_id")
            output = _shown_parts(item.get("output"), f"{at}.output")
            return Message("tool", (ToolResultPart(as_name(call_id, f"{at}.call_id"), output),))
        case "tool_search_output":
            names = ", ".join(tool.name for tool in tools_in(item.get("tools"), f"{at}.tools", []))
            found = TextPart(f"Tools found: {names}" if names else "No tools found.")
            return Message("tool", (ToolResultPart(as_name(item.get("call_id"), f"{at}.call_id"), (found,)),))
        case "agent_message":
            ends = [as_text(item.get(end), f"{at}.{end}") for end in ("author", "recipient")]
            said = _shown_parts(item.get("content"), f"{at}.content")
            return Message("user", (TextPart(f"Message from {ends[0]} to {ends[1]}:"), *said))
        case str(kind) if kind in _COMPACTIONS:
            encrypted = item.get("encrypted_content")
            summary = None if encrypted is None else read_summary(as_text(encrypted, f"{at}.encrypted_content"))
            return compaction_message(OPAQUE_SUMMARY if summary is None else summary)
        case "compaction_trigger":
            return SUMMARISE
        case str(kind) if kind in _RUN_ELSEWHERE:
            return _run_elsewhere(item, at)
        case "additional_tools":
            return None
        case "configuration_update" if item.get("text") is None:
            return None
        case kind:
            raise Unsupported(f"{at}: items of type {shown(kind)} are not supported", field=at)


def _plain_message(item: JsonObject, at: str) -> Message:
    content, place = item.get("content"), f"{at}.content"
    match item.get("role"):
        case "system" | "developer":
            return Message("system", _text_parts(content, place))
        case "user":
            return Message("user", _shown_parts(content, place))
        case "assistant":
            return Message("assistant", _text_parts(content, place))
        case role:
            raise wrong(f"{at}.role", "'system', 'developer', 'user' or 'assistant'", role)


def _blocks(content: object, at: str) -> list[tuple[JsonObject, str]]:
    """The content parts, each with its path; a plain string is one text part."""
    if isinstance(content, str):
        return [({"type": "input_text", "text": content}, at)]
    if not isinstance(content, list):
        raise wrong(at, "a string or an array of content parts", content)
    return [(as_object(part, f"{at}[{i}]"), f"{at}[{i}]") for i, part in enumerate(content)]


def _shown_parts(content: object, at: str) -> tuple[TextPart | ImagePart, ...]:
    """Texts and images of a user message, of a call's output or of an agent's message."""
    parts: list[TextPart | ImagePart] = []
    for part, place in _blocks(content, at):
        if part.get("type") == "input_image":
            if part.get("image_url") is None:
                raise Unsupported(f"{place}: an image must come as image_url, not as file_id", field=place)
            url = as_name(part["image_url"], f"{place}.image_url")
            parts.append(image_part(url, f"{place}.image_url"))
        elif text := _text(part, place):
            parts.append(TextPart(text))
    return tuple(parts)


def _text_parts(content: object, at: str) -> tuple[TextPart, ...]:
    """Texts of a system or an assistant message. A refusal is a text too."""
    return tuple(TextPart(text) for part, place in _blocks(content, at) if (text := _text(part, place)))


def _text(part: JsonObject, at: str) -> str:
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return as_text(part.get("text"), f"{at}.text")
        case "refusal":
            return as_text(part.get("refusal"), f"{at}.refusal")
        case "encrypted_content":
            return as_text(part.get("encrypted_content"), f"{at}.encrypted_content")
        case kind:
            raise Unsupported(f"{at}: content of type {shown(kind)} is not supported here", field=at)


def _reasoning(item: JsonObject, at: str) -> tuple[ReasoningPart, ...]:
    content, summary, encrypted = item.get("content"), item.get("summary"), item.get("encrypted_content")
    texts = () if content is None else _text_parts(content, f"{at}.content")
    if not texts and summary is not None:
        texts = _text_parts(summary, f"{at}.summary")
    text = "\n\n".join(part.text for part in texts)
    signature = None if encrypted is None else as_text(encrypted, f"{at}.encrypted_content")
    return (ReasoningPart(text, signature),) if text or signature else ()


def _run_elsewhere(item: JsonObject, at: str) -> Message:
    said = {key: value for key, value in item.items() if key not in ("type", "id", "status")}
    return Message("assistant", (TextPart(f"[{item['type']}] {as_json(said, at)}"),))
