"""Requests held against each other: what of the history changes, which ids come back, what names the session. Pure.

Rules of this module: it reads the bodies as the harness sent them, before anything is made equal, and knows no dialect
but for the names under which each has its history. Places are told without numbers: ``messages.content.cache_control``.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dragoman.rollout.probe.records import SeenRequest

__all__ = ["changes", "extra_headers", "id_places", "session_places"]

_HISTORY = ("messages", "input", "contents")
_BESIDE = ("system", "instructions", "systemInstruction", "tools")
MOST = 6
"""Changes that are told of one request."""
_NO_ID = re.compile(
    r"(?i)^(host|user-agent|accept.*|content-.*|connection|date|origin|referer|cookie|x-stainless-.*|.*authorization"
    r"|.*api-key|key|tools|metadata|model)$"
)
_ID = re.compile(r"[A-Za-z0-9]+[-_]?[A-Za-z0-9]{3,}")


def changes(before: SeenRequest, after: SeenRequest) -> tuple[str, ...]:
    """What a later request of a conversation changes of what the earlier one said; empty: it only adds to it.

    Each is a place and what became of it. A request that names the earlier one by its id repeats nothing: empty.
    """
    name = next((name for name in _HISTORY if isinstance(before.body.get(name), list)), None)
    if name is None or "previous_response_id" in after.body:
        return ()
    old, new = before.body[name], after.body.get(name)
    if not isinstance(new, list):
        return (f"{name} is gone",)
    found = [] if len(new) >= len(old) else [f"{name}: {len(old)} items became {len(new)}"]
    for one, other in zip(old, new, strict=False):
        found += _differences(one, other, name)
    for beside in _BESIDE:
        found += _differences(before.body.get(beside), after.body.get(beside), beside)
    return tuple(dict.fromkeys(found))[:MOST]


def _differences(old: Any, new: Any, place: str) -> Iterator[str]:
    match old, new:
        case dict(), dict():
            for key in old.keys() | new.keys():
                if key not in new:
                    yield f"{place}.{key} taken away"
                elif key not in old:
                    yield f"{place}.{key} added"
                else:
                    yield from _differences(old[key], new[key], f"{place}.{key}")
        case list(), list():
            if len(old) != len(new):
                yield f"{place}: {len(old)} items became {len(new)}"
            for one, other in zip(old, new, strict=False):
                yield from _differences(one, other, place)
        case list(), str():
            yield f"{place}: a list became a text"
        case str(), list():
            yield f"{place}: a text became a list"
        case _:
            if old != new:
                yield f"{place} changed"


def id_places(request: SeenRequest, call_ids: Sequence[str]) -> tuple[str, ...]:
    """Where a request's body holds ids of earlier replies, the reasoning's signatures included; sorted."""
    found = set()
    for place, text in _texts(request.body, ""):
        if any(call_id in text or call_id in _decoded(text) for call_id in call_ids):
            found.add(place)
    return tuple(sorted(found))


def session_places(first: Sequence[SeenRequest], second: Sequence[SeenRequest]) -> tuple[str, ...]:
    """The headers and body fields that name the session: alike in all requests of a run, and not in another run.

    ``first``, ``second``: the agent's own requests of two runs in the same home folder. A run of several requests tells
    more than two of one each.
    """
    if not first or not second:
        return ()
    one, other = _constants(first), _constants(second)
    return tuple(sorted(name for name in one.keys() & other.keys() if one[name] != other[name]))


def extra_headers(some: SeenRequest, others: Sequence[SeenRequest]) -> tuple[str, ...]:
    """The headers that ``some`` has and none of ``others``; sorted."""
    return tuple(sorted(set(some.headers) - {name for other in others for name in other.headers}))


def _constants(requests: Sequence[SeenRequest]) -> dict[str, str]:
    """What may be an id and is alike in all of them: header, or ``body: field``."""
    found = dict(_named_values(requests[0]))
    for request in requests[1:]:
        values = dict(_named_values(request))
        found = {name: value for name, value in found.items() if values.get(name) == value}
    return found


def _named_values(request: SeenRequest) -> Iterator[tuple[str, str]]:
    for name, value in request.headers.items():
        if not _NO_ID.match(name) and _may_be_id(value):
            yield name, value
    for name, value in request.body.items():
        if _NO_ID.match(name) and name != "metadata":
            continue
        if isinstance(value, str) and name not in _BESIDE and _may_be_id(value):
            yield f"body: {name}", value
        if isinstance(value, dict) and name not in _BESIDE:
            for inner, text in value.items():
                if isinstance(text, str) and _may_be_id(text):
                    yield f"body: {name}.{inner}", text


def _may_be_id(value: str) -> bool:
    return 8 <= len(value) <= 4000 and any(sign.isdigit() for sign in value) and _ID.search(value) is not None


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every string of a JSON value that is no key, with its place."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from _texts(inner, f"{place}.{key}" if place else key)
        case list():
            for inner in value:
                yield from _texts(inner, place)
        case str():
            yield place, value


def _decoded(text: str) -> str:
    """What base64 stands for, as far as it is text; empty for what is none."""
    if len(text) > 400 or not text.strip():
        return ""
    try:
        return base64.b64decode(text, validate=True).decode("ascii", errors="replace")
    except (binascii.Error, ValueError):
        return ""
