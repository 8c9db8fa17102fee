"""What a tool-call block says: its name, and its arguments as the model wrote them. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Any

from dragoman.store.records import JsonObject

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One attempt of the model to call a tool, well formed or not."""

    name: str | None
    """``None``: no name can be read in ``raw``."""
    arguments: str
    """JSON text as sampled, where the format is JSON and it is well formed; else what stands in its place."""
    raw: str
    """The block between the markers, decoded and stripped."""
    status: str
    """``ok``, or what was wrong in the words of the ``renderers`` package: ``invalid_json``, ``unclosed_block``, …"""


def json_call(raw: str, status: str) -> ParsedCall:
    """Read a block that should be ``{"name": …, "arguments": {…}}``, keeping the arguments' own spelling."""
    members = raw_members(raw)
    name = _loaded(members.get("name", ""))
    arguments = members.get("arguments", "{}" if status == "ok" else "")
    if isinstance(text := _loaded(arguments), str):
        arguments = text  # some models write the object as a string that holds JSON
    return ParsedCall(name if isinstance(name, str) and name else None, arguments, raw, status)


def object_call(name: str | None, arguments: JsonObject | str | None, raw: str, status: str) -> ParsedCall:
    """A call in another format than JSON, as its parser understood it."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ParsedCall(name or None, text, raw, status)


def raw_members(text: str) -> dict[str, str]:
    """The members of a JSON object as their own source text, as far as it can be read.

    A member whose value breaks off holds all the rest of the text, and is the last one.
    """
    members: dict[str, str] = {}
    at = _after_space(text, 0)
    if text[at : at + 1] != "{":
        return members
    while True:
        try:
            key, end = _DECODER.raw_decode(text, _after_space(text, at + 1))
        except ValueError:
            return members
        colon = _after_space(text, end)
        if not isinstance(key, str) or text[colon : colon + 1] != ":":
            return members
        start = _after_space(text, colon + 1)
        try:
            _, end = _DECODER.raw_decode(text, start)
        except ValueError:
            members[key] = text[start:]
            return members
        members[key] = text[start:end]
        at = _after_space(text, end)
        if text[at : at + 1] != ",":
            return members


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
