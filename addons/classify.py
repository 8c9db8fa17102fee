"""Which calls are the agent's own, and which are made beside it: titles, routers, probes, summaries. Pure.

Rules of this module: one table, the first rule that holds decides, and each names its evidence. A harness's own headers
go first (``identity.read_harness``). A rule names the harness whose requests it was read from, since the same shape can
be another one's main loop: aider's has no tools at all.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.addons.identity import Harness
from dragoman.addons.messages import ChatRequest, TextPart
from dragoman.store.records import CallKind

# What Claude Code puts behind a conversation to have it compacted; the request is otherwise a usual one.
_CLAUDE_SUMMARY = re.compile(r"Your task is to create a detailed summary of ")
# How the system prompts begin of Qwen Code's memory extraction, which has tools and the conversation before it and runs
# at the end of some runs (recorded for 0.24.4), and of aider's request for a commit message (recorded for 0.86.2).
_QWEN_MEMORY = re.compile(r"You are now acting as the managed memory ")
_AIDER_COMMIT = re.compile(r"You are an expert software engineer that generates concise, one-line Git commit messages")


@dataclass(frozen=True, slots=True)
class _Rule:
    harness: str | None
    """``None``: one whose headers do not name it."""
    kind: CallKind
    holds: Callable[[ChatRequest], bool]


def _without_tools(request: ChatRequest) -> bool:
    return not request.tools


def _has_history(request: ChatRequest) -> bool:
    return any(message.role == "assistant" for message in request.messages)


def _user_texts(request: ChatRequest) -> int:
    users = (message for message in request.messages if message.role == "user")
    return sum(isinstance(part, TextPart) for message in users for part in message.parts)


def _first_system(request: ChatRequest) -> str:
    systems = (message for message in request.messages if message.role == "system")
    return next((part.text for message in systems for part in message.parts if isinstance(part, TextPart)), "")


def _last_text(request: ChatRequest) -> str:
    parts = request.messages[-1].parts if request.messages else ()
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


_RULES = (
    # A title, by structured output {"title": …} and without tools; its main loop always has tools.
    _Rule("claude", "side", lambda request: _without_tools(request) and request.response_format is not None),
    # Its compaction asks in the conversation itself, tools and all.
    _Rule("claude", "compaction", lambda request: bool(_CLAUDE_SUMMARY.search(_last_text(request)))),
    _Rule("claude", "side", _without_tools),
    # The router that chooses a model, once per session and sub-agent; and next-speaker checks: JSON without tools.
    _Rule("gemini", "side", _without_tools),
    # A title: two user texts (the instruction and the conversation's first), as two messages or, in the Anthropic
    # dialect, as two blocks of one; a compaction has one text, which holds the whole conversation.
    _Rule("opencode", "side", lambda request: _without_tools(request) and _user_texts(request) > 1),
    _Rule("opencode", "compaction", _without_tools),
    # A summary is asked for behind the history, without tools.
    _Rule("qwen", "compaction", lambda request: _without_tools(request) and _has_history(request)),
    _Rule("qwen", "side", _without_tools),
    _Rule("qwen", "side", lambda request: bool(_QWEN_MEMORY.match(_first_system(request)))),
    # aider asks as OpenAI's Python SDK does, without a name of its own; its main loop has no tools either.
    _Rule(None, "side", lambda request: bool(_AIDER_COMMIT.match(_first_system(request)))),
    # Local compaction (custom providers); the built-in provider says so in a header.
    _Rule(
        "codex",
        "compaction",
        lambda request: request.provider == "openai_responses" and _without_tools(request) and _has_history(request),
    ),
)


def classify(harness: Harness, request: ChatRequest) -> CallKind:
    """The kind of a call, from who sent it and what it asks. What a dialect has a word for needs no rule."""
    if request.details.warm_up:
        return "warm_up"
    if request.details.compaction is not None:
        return "compaction"
    if harness.kind != "main":
        return harness.kind
    for rule in _RULES:
        if rule.harness == harness.name and rule.holds(request):
            return rule.kind
    return "main"
