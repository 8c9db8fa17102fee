"""The tokens that new messages add behind a sampled reply, without rendering anything before them again.

Rules of this module: what was sampled stays as it is, to the token. A hand-written renderer's own bridge is asked
first. Where it has none, the new messages are rendered behind a made-up question and reply, and what follows the
reply's end is taken. The same rendering shows whether the template would still show what was sampled: where it drops
reasoning that the stream holds, or changes what stands before the reply, there is no bridge, and the caller forks with
the reason.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jinja2.exceptions import TemplateError

from dragoman.addons.messages import (
    Message,
    ReasoningPart,
    ReplyPart,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.addons.template_messages import template_messages, template_tools
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import ForkReason, JsonObject, TokenIds

Thinking = Literal["template", "keep"]
"""What to do where a template drops earlier reasoning: as it says (fork), or keep the sampled stream all the same."""

_QUESTION = "question zq6"
_REPLY = "reply zq7"
_REASONING = "reasoning zq8"
# An empty thinking block says nothing: some templates write one into the generation prompt only, others into the last
# reply only.
_EMPTY_THINKING = re.compile(r"<think>\s*</think>\s*")


@dataclass(frozen=True, slots=True)
class Behind:
    """The reply that new messages come behind."""

    prompt_ids: TokenIds
    completion_ids: TokenIds
    reply: tuple[ReplyPart, ...]
    has_reasoning: bool
    """Whether this reply, or one in the stream before it, holds reasoning."""


def bridge(
    codec: TokenCodec, behind: Behind, new: tuple[Message, ...], tools: tuple[Tool, ...], thinking: Thinking
) -> TokenIds | ForkReason:
    """The whole next prompt, which begins with the stream so far, shape (P + C + new,); or why there is none.

    ``new`` holds no assistant message. Raises ``Unsupported`` when the model cannot be shown ``new``.
    """
    stream = np.concatenate([behind.prompt_ids, behind.completion_ids])
    # The reply goes along so that a tool result finds the name of its call.
    named = Message("assistant", tuple(part for part in behind.reply if isinstance(part, ToolCallPart)))
    shown = template_messages((named, *new))[1:]
    if (
        native := codec.native_bridge(behind.prompt_ids, behind.completion_ids, shown, template_tools(tools))
    ) is not None:
        if not np.array_equal(native[: len(stream)], stream):
            return "template"
        return native
    try:
        closing = _closing(codec, behind)
        suffix = _suffix(codec, behind, shown, template_tools(tools), thinking)
    except _NoBridge as reason:
        return reason.reason
    except TemplateError:
        return "template"  # the full render meets the same error and says what the template refused
    return np.concatenate([stream, closing, codec.encode(suffix)])


class _NoBridge(Exception):
    def __init__(self, reason: ForkReason) -> None:
        self.reason = reason


def _closing(codec: TokenCodec, behind: Behind) -> TokenIds:
    """What must follow the completion so that the reply is closed as the template closes it."""
    ids = behind.completion_ids
    if codec.close_id is None:
        raise _NoBridge("no_close")
    if len(ids) and ids[-1] == codec.close_id:
        return np.empty(0, dtype=np.int32)
    if len(ids) and ids[-1] in codec.stop_ids:
        raise _NoBridge("no_close")  # another stop id, which the template would not have written here
    if codec.thinking_is_open(behind.prompt_ids, ids):
        raise _NoBridge("no_close")
    return np.array([codec.close_id], dtype=np.int32)


def _suffix(
    codec: TokenCodec, behind: Behind, shown: list[JsonObject], tools: list[JsonObject], thinking: Thinking
) -> str:
    """Text of everything behind the reply's close, generation prompt included."""
    question: JsonObject = {"role": "user", "content": _QUESTION}
    reply: JsonObject = {"role": "assistant", "content": _REPLY}
    if behind.has_reasoning:
        reply["reasoning_content"] = _REASONING
    if calls := [part for part in behind.reply if isinstance(part, ToolCallPart)]:
        reply["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": {}}} for call in calls
        ]
    before = codec.render_text([question], tools)
    text = codec.render_text([question, reply, *shown], tools)
    head, found, tail = text.partition(_REPLY)
    _, closed, suffix = tail.partition(codec.decode([codec.close_id] if codec.close_id is not None else []))
    if not found or not closed:
        raise _NoBridge("template")
    if thinking == "template":
        if behind.has_reasoning and _REASONING not in head:
            raise _NoBridge("thinking_policy")
        if not _EMPTY_THINKING.sub("", head).startswith(_asked(before, behind)):
            raise _NoBridge("template")
    return suffix


def _asked(before: str, behind: Behind) -> str:
    """The prompt as a later rendering must begin with it: a thinking block opened for a reply without any is empty."""
    if before.rstrip().endswith("<think>") and not behind.has_reasoning:
        before = before.rstrip().removesuffix("<think>")
    return _EMPTY_THINKING.sub("", before)


def holds_reasoning(reply: tuple[ReplyPart, ...]) -> bool:
    return any(isinstance(part, ReasoningPart) for part in reply)


_PROBES: dict[str, tuple[Message, ...]] = {
    "text": (Message("user", (TextPart("And then?"),)),),
    "tool result": (Message("tool", (ToolResultPart("c_0", (TextPart("out"),)),)),),
    "parallel tool results": (
        Message("tool", (ToolResultPart("c_0", (TextPart("out"),)), ToolResultPart("c_1", (TextPart("two"),)))),
    ),
    "tool result and text": (
        Message("tool", (ToolResultPart("c_0", (TextPart("out"),)),)),
        Message("user", (TextPart("Go on."),)),
    ),
}


def probe(codec: TokenCodec, thinking: Thinking = "template") -> dict[str, str]:
    """Try a bridge for each usual kind of new message, without reasoning in play, once per model.

    The reply is sampled as the template itself would write it, so the bridged prompt must be the template's own text.

    Returns:
        Kind → ``exact``, ``differs`` (bridged, but not to the template's text), or the fork reason.
    """
    question = Message("user", (TextPart("A question."),))
    tools = tuple(Tool(name, "", {"type": "object", "properties": {}}) for name in ("one", "two"))
    results: dict[str, str] = {}
    for kind, new in _PROBES.items():
        calls = tuple(
            ToolCallPart(part.call_id, tools[int(part.call_id[-1])].name, "{}")
            for message in new
            for part in message.parts
            if isinstance(part, ToolResultPart)
        )
        reply: tuple[ReplyPart, ...] = (TextPart("An answer."), *calls)
        before = codec.render_text(template_messages((question,)), template_tools(tools))
        whole = codec.render_text(
            template_messages((question, Message("assistant", reply), *new)), template_tools(tools)
        )
        close = codec.decode([codec.close_id]) if codec.close_id is not None else ""
        end = whole.find(close, whole.find("An answer.")) + len(close)
        if not close or not _EMPTY_THINKING.sub("", whole).startswith(_EMPTY_THINKING.sub("", before)):
            results[kind] = "no_close" if not close else "template"
            continue
        sampled = codec.encode(whole[len(_common(before, whole)) : end])
        bridged = bridge(codec, Behind(codec.encode(before), sampled, reply, False), new, tools, thinking)
        if isinstance(bridged, str):
            results[kind] = bridged
        else:
            same = _EMPTY_THINKING.sub("", codec.decode(bridged)) == _EMPTY_THINKING.sub("", whole)
            results[kind] = "exact" if same else "differs"
    return results


def _common(before: str, whole: str) -> str:
    """The longest beginning of ``before`` that ``whole`` has too (an empty thinking block may be missing there)."""
    return before if whole.startswith(before) else _EMPTY_THINKING.sub("", before)
