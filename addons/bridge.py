"""The tokens that new messages add behind a sampled reply, without rendering anything before them again. Pure.

Rules of this module: what was sampled stays as it is, to the token. What follows it is the template's own text, found
in renderings of the conversation's *outline*: its messages and tools with other words in them. Three are made: up to
the reply, with the reply, and with the new messages too, which keep their words. Where the third begins with the first,
the template still shows what stood before the reply; where the second ends, the new messages begin. Otherwise the
template drops or moves something that the stream holds: there is no bridge, and the caller forks with the reason. An
outline costs little however long the texts are, and it asks about the conversation's own shape.

A hand-written renderer's own bridge is not asked. Where this one bridges, it gives the same tokens or none; elsewhere
it goes on where its full rendering would drop or move what was sampled. The tests compare the two.
"""

import json
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.addons.errors import Unsupported
from dragoman.addons.messages import Message, Part, ReasoningPart, TextPart, Tool, ToolCallPart, ToolResultPart
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import ForkReason, TokenIds

Thinking = Literal["template", "keep"]
"""What to do where a template drops earlier reasoning: as it says (fork), or keep the sampled stream all the same."""

# An empty thinking block says nothing. Some templates write one into the prompt or the last reply only, and GLM-5's
# leaves only its end in earlier replies.
EMPTY_THINKING = re.compile(r"(?:<think>\s*)?</think>\s*|<\|channel>thought\s*<channel\|>")
_OPEN_THINKING = re.compile(r"<think>\s*$")
_TOOL = "zq tool zq"


@dataclass(frozen=True, slots=True)
class Behind:
    """The stream that new messages come behind, and what it says."""

    prompt_ids: TokenIds
    completion_ids: TokenIds
    history: tuple[Message, ...]
    """Every message in it, with the reasoning that it holds; the reply is the last."""


@dataclass(frozen=True, slots=True)
class _Seam:
    """How the template goes on behind the reply's last word, as text."""

    gap: str
    """Up to the close."""
    close: str
    """A token that ends the reply; empty: the template writes none here."""
    rest: str
    """Behind the close, up to where the next reply begins."""


class _NoBridge(Exception):
    def __init__(self, reason: ForkReason) -> None:
        self.reason = reason


def bridge(
    codec: TokenCodec, behind: Behind, new: tuple[Message, ...], tools: tuple[Tool, ...], thinking: Thinking
) -> TokenIds | ForkReason:
    """The whole next prompt, which begins with the stream so far, shape (P + C + new,); or why there is none.

    ``new`` holds no assistant message.
    """
    try:
        seam = _find_seam(codec, behind.history, new, tools, thinking)
        following = _following(codec, behind, seam)
    except _NoBridge as no_bridge:
        return no_bridge.reason
    except Unsupported:
        return "template"  # the full render meets the same error and says what cannot be shown
    return np.concatenate([behind.prompt_ids, behind.completion_ids, following])


def _following(codec: TokenCodec, behind: Behind, seam: _Seam) -> TokenIds:
    """What comes behind the completion: the close, unless it was sampled, and the rest."""
    ids = behind.completion_ids
    # The close goes along to be encoded: some tokenizers treat the start of a text in their own way.
    following = codec.encode(seam.close + seam.rest)
    if len(ids) and ids[-1] in codec.stop_ids:
        if not seam.close or ids[-1] != following[0]:
            raise _NoBridge("no_close")  # another end, which the template would not have written here
        return following[1:]
    said = codec.parse(behind.prompt_ids, ids, ())
    if not said.text.strip() and not said.tool_calls:
        raise _NoBridge("no_close")  # cut inside its reasoning, or before its first word
    if any(isinstance(part, ToolCallPart) for part in behind.history[-1].parts):
        return following  # the gap is the end of the call, and the call stays as it was sampled
    return np.concatenate([codec.encode(seam.gap), following])


def _find_seam(
    codec: TokenCodec,
    history: tuple[Message, ...],
    new: tuple[Message, ...],
    tools: tuple[Tool, ...],
    thinking: Thinking,
) -> _Seam:
    outline = tuple(_outline(message, at, reasoning=thinking == "template") for at, message in enumerate(history))
    named = tuple(Tool(tool.name, _TOOL, {"type": "object", "properties": {}}) for tool in tools)
    asked = codec.render_text(outline[:-1], named)
    answered = codec.render_text(outline, named, add_generation_prompt=False)
    text = codec.render_text((*outline, *new), named)
    thoughts, words = _marks(outline[-1])
    shown_before = [mark for message in outline[:-1] for mark in _marks(message)[0] if mark in asked]
    if any(mark not in text for mark in (*shown_before, *thoughts)):
        raise _NoBridge("thinking_policy")
    start, end = _span(text, [*thoughts, *words])
    if not thoughts:
        asked = _OPEN_THINKING.sub("", asked)
    if not EMPTY_THINKING.sub("", text[:start]).startswith(EMPTY_THINKING.sub("", asked)):
        raise _NoBridge("template")
    if _TOOL in text[end:]:
        raise _NoBridge("template")  # it shows the tools again, which are other words here
    return _split(codec, answered[_span(answered, words)[1] :], text[end:])


def _span(text: str, marks: list[str]) -> tuple[int, int]:
    """Where the first of ``marks`` begins and the last ends. The template must write them in the order of sampling."""
    found: list[int] = []
    for mark in marks:
        found.append(text.find(mark, found[-1] if found else 0))
        if found[-1] < 0:
            raise _NoBridge("template")
    return found[0], found[-1] + len(marks[-1])


def _split(codec: TokenCodec, alone: str, followed: str) -> _Seam:
    """The seam, from what the template writes behind the reply's last word alone, and with the new messages."""
    closes = [close for token in codec.stop_ids if (close := codec.decode([token]))]
    found = [(at, close) for close in closes if (at := alone.find(close)) >= 0]
    if found:
        at, close = min(found)
        gap = alone[:at]
    else:  # whoever speaks next closes it (GLM), or nobody does
        gap = alone
        close = next((close for close in closes if followed.startswith(gap + close)), "")
    if not followed.startswith(gap + close):
        raise _NoBridge("template")
    return _Seam(gap, close, followed[len(gap + close) :])


def _outline(message: Message, at: int, *, reasoning: bool) -> Message:
    """The same parts with words that can be found again; a reply always says something."""
    parts: list[Part] = []
    for number, part in enumerate(message.parts):
        mark = f"zq {at} {number} zq"
        match part:
            case ReasoningPart():
                if reasoning:
                    parts.append(ReasoningPart(mark))
            case TextPart(text=text):
                parts.append(TextPart(mark) if text.strip() else part)
            case ToolCallPart(id=call_id, name=name):
                parts.append(ToolCallPart(call_id, name, json.dumps({"value": mark})))
            case ToolResultPart(call_id=call_id):
                parts.append(ToolResultPart(call_id, (TextPart(mark),)))
    outlined = Message(message.role, tuple(parts))
    if message.role == "assistant" and not _marks(outlined)[1]:
        return Message("assistant", (*parts, TextPart(f"zq {at} zq")))
    return outlined


def _marks(outlined: Message) -> tuple[list[str], list[str]]:
    """The words of a reply's reasoning, and of its text and its calls, in the order of sampling."""
    thoughts = [part.text for part in outlined.parts if isinstance(part, ReasoningPart)]
    texts = [part.text for part in outlined.parts if isinstance(part, TextPart) and part.text.strip()]
    calls = [json.loads(part.arguments)["value"] for part in outlined.parts if isinstance(part, ToolCallPart)]
    return thoughts, [*texts, *calls]


_CALLS = (ToolCallPart("c_0", "one", "{}"), ToolCallPart("c_1", "two", "{}"))
_RESULTS = (ToolResultPart("c_0", (TextPart("out"),)), ToolResultPart("c_1", (TextPart("two"),)))
_RESULT = Message("tool", _RESULTS[:1])
_TEXT = Message("user", (TextPart("And then?"),))
_PROBES: dict[str, tuple[tuple[Part, ...], tuple[Message, ...]]] = {
    "text": ((TextPart("So."),), (_TEXT,)),
    "tool result": (_CALLS[:1], (_RESULT,)),
    "tool result after text and call": ((TextPart("So."), _CALLS[0]), (_RESULT,)),
    "parallel tool results": (_CALLS, (Message("tool", _RESULTS),)),
    "tool result and text": (_CALLS[:1], (_RESULT, _TEXT)),
    "text after truncated reply": ((TextPart("So"),), (_TEXT,)),
    "system message": ((TextPart("So."),), (Message("system", (TextPart("A rule."),)), _TEXT)),
    "text after reasoning": ((ReasoningPart("Hm."), TextPart("So.")), (_TEXT,)),
    "tool result after reasoning": ((ReasoningPart("Hm."), _CALLS[0]), (_RESULT,)),
}


def probe(codec: TokenCodec, thinking: Thinking) -> dict[str, str]:
    """Try a bridge for each usual kind of new message. Once per model: it takes as long as some thirty short prompts.

    Returns:
        Kind → ``exact``, or why such a call is rendered in full: the fork reason, ``differs`` (what the bridge adds is
        not what the template writes) or ``refused`` (the template cannot show such a conversation at all).
    """
    return {kind: _try(codec, thinking, reply, new, cut="truncated" in kind) for kind, (reply, new) in _PROBES.items()}


def _try(codec: TokenCodec, thinking: Thinking, reply: tuple[Part, ...], new: tuple[Message, ...], *, cut: bool) -> str:
    history = (Message("user", (TextPart("A question."),)), Message("assistant", reply))
    tools = tuple(Tool(name, "A tool.", {"type": "object", "properties": {}}) for name in ("one", "two"))
    try:
        whole = codec.render_text((*history, *new), tools)
        seam = _find_seam(codec, history, new, tools, thinking)
    except _NoBridge as no_bridge:
        return no_bridge.reason
    except Unsupported:
        return "refused"
    if not seam.close and not cut:
        return "no_close"
    return "exact" if whole.endswith(seam.close + seam.rest) else "differs"
