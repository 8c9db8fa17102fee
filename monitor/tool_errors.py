"""What is wrong with the tool calls of one reply. Pure.

Rules of this module: it reads stored replies (``{"role", "parts"}`` with one ``type`` word a part) and stored tool
lists (``[{"name", …}]``) as they are in ``blobs``. A tool call is counted as one error at most.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

_LOOKS_LIKE_A_CALL = re.compile(
    r"</?tool_call\b|<\|tool_call|\[TOOL_CALLS\]|<function=|<invoke\b|</?function_calls?\b"
    r'|\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"\s*:|"arguments"\s*:\s*\{'
)
"""Markup of tool calls in the formats of common models, and the JSON inside it."""


@dataclass(frozen=True, slots=True)
class ToolErrors:
    """Counts."""

    calls: int = 0
    """Tool calls, good and bad."""
    malformed: int = 0
    """Their arguments are no JSON object."""
    unknown: int = 0
    """They name a tool that was not offered."""
    missing: int = 0
    """Replies without a tool call whose text holds what looks like one, though tools were offered: the model wrote it
    wrongly, or the gateway reads calls in another form than this model writes."""
    ignored: int = 0
    """Replies with good tool calls that no later call of the episode goes on from, though later calls came."""

    @property
    def errors(self) -> int:
        return self.malformed + self.unknown + self.missing + self.ignored

    def __add__(self, other: "ToolErrors") -> "ToolErrors":
        return ToolErrors(
            self.calls + other.calls,
            self.malformed + other.malformed,
            self.unknown + other.unknown,
            self.missing + other.missing,
            self.ignored + other.ignored,
        )


NO_ERRORS = ToolErrors()


def tool_names(tools: bytes) -> frozenset[str]:
    """Names in a stored tool list. Raises ``ValueError`` when it is none."""
    try:
        return frozenset(tool["name"] for tool in json.loads(tools))
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no stored tool list: {error!r}") from error


def find_errors(reply: bytes, offered: frozenset[str]) -> ToolErrors:
    """What a reply alone shows, so everything but ``ignored``. ``offered``: names of the request's tools.

    Raises ``ValueError`` when ``reply`` is no stored reply.
    """
    calls = malformed = unknown = 0
    texts: list[str] = []
    try:
        for part in json.loads(reply)["parts"]:
            if part["type"] == "text":
                texts.append(part["text"])
            elif part["type"] == "tool_call":
                calls += 1
                if part["name"] not in offered:
                    unknown += 1
                elif not _is_object(part["arguments"]):
                    malformed += 1
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no stored reply: {error!r}") from error
    missing = bool(offered) and not calls and any(map(_LOOKS_LIKE_A_CALL.search, texts))
    return ToolErrors(calls, malformed, unknown, int(missing))


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, TypeError, RecursionError):
        return False
