"""What a harness changes without meaning to: the rules by which two messages count as the same. Pure.

Rules of this module: they only decide equality; nothing that is shown to the model or stored goes through them. Two
sets. *Carriage rules* hold for every message: how a harness carries its own words may change, the words may not. *Echo
rules* hold only for what we issued and get back: there the sampled ids are the truth, and the echo must only be
recognisable. What a harness wrote itself must be equal, else the model would miss an edit. Each rule names its
evidence. A change of any rule raises ``CANONICAL_VERSION``, which is stored with every call.

Already equal before these rules, since a dialect's parser makes no difference between them: a one-text list and a plain
string, ``cache_control`` wherever it stands, repeated functionResponse parts of one id.
"""

import json
import re
from dataclasses import replace
from typing import Literal

from dragoman.addons.blobs import message_blob
from dragoman.addons.messages import (
    Message,
    Part,
    TextPart,
    ToolCallPart,
)

CANONICAL_VERSION = 3

Echo = Literal["same", "changed"]

# Claude Code puts this line first in its system prompt. On api.anthropic.com it differs in every request (``cch=``,
# ``cc_prev_req=``, ``cc_turn_index``), elsewhere in every sub-agent and after compaction.
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")

# OpenCode replays a call that it could not run under this tool name (seen for broken JSON and unknown tools).
_RENAMED = "invalid"


def carried(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages under the carriage rules.

    - Claude Code's billing line is taken off system messages.
    - Neighbouring assistant messages are one: Codex replays a reply's text and its tool calls as separate items.
    - A message without parts says nothing. An assistant's is kept, since it may be the echo of an empty reply.
    """
    result: list[Message] = []
    for message in messages:
        if message.role == "system":
            message = _without_billing(message)
        if not message.parts and message.role != "assistant":
            continue
        if message.role == "assistant" and result and result[-1].role == "assistant":
            result[-1] = replace(result[-1], parts=result[-1].parts + message.parts)
        else:
            result.append(message)
    return tuple(result)


def digest(message: Message) -> bytes:
    """16 bytes that are equal for messages that are equal to the letter."""
    return message_blob(message).digest


def compare_echo(issued: tuple[Part, ...], echoed: tuple[Part, ...]) -> Echo | None:
    """Whether ``echoed`` is what a harness makes of our own ``issued`` reply.

    ``None``: it is not, or its words were edited. ``changed``: under these rules only:

    - White space at the ends of the text may differ. (Claude Code and Gemini keep it, others were not all seen.)
    - Reasoning may be missing, trimmed or without its signature (Gemini drops it, Qwen trims it).
    - Arguments may be serialised anew: ``{"a":1}`` (Qwen, OpenCode, Pi).
    - A call whose arguments are no JSON object may come back repaired or emptied: ``{}`` (Pi),
      ``{"__unparsedToolInput": …}`` (Claude Code), repaired (Qwen); under the tool name ``invalid`` (OpenCode).
    - Arguments that a freeform tool does not have come back as that tool's input, to the letter (Codex's ``exec``).
    """
    if issued == echoed:
        return "same"
    if _text(issued) != _text(echoed):
        return None
    ours, theirs = _calls(issued), _calls(echoed)
    if len(ours) != len(theirs):
        return None
    return "changed" if all(map(_same_call, ours, theirs)) else None


def echoed_call_ids(message: Message) -> tuple[str, ...]:
    """The tool-call ids in a message, in order. Ours are *searched for* in them: Gemini replays ``tool__<id>``."""
    return tuple(part.id for part in _calls(message.parts))


def _without_billing(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, TextPart) and (match := _BILLING.match(part.text)):
            rest = part.text[match.end() :]
            if rest:
                parts.append(TextPart(rest))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


def _text(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart)).strip()


def _calls(parts: tuple[Part, ...]) -> list[ToolCallPart]:
    return [part for part in parts if isinstance(part, ToolCallPart)]


def _same_call(issued: ToolCallPart, echoed: ToolCallPart) -> bool:
    arguments = read_arguments(issued.arguments)
    if echoed.name != issued.name and echoed.name != _RENAMED:
        return False
    if arguments is None or echoed.name == _RENAMED:
        return True
    return read_arguments(echoed.arguments) in (arguments, {"input": issued.arguments})


def read_arguments(text: str) -> dict[str, object] | None:
    """Arguments as an object, none at all being the empty one; ``None``: they are not the JSON text of an object."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
