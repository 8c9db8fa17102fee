"""Every recorded request of the real harnesses parses, and nothing that a harness said is lost.

``DRAGOMAN_WIRE`` names the folder with the recordings (one JSON file a request: ``method``, ``path``, ``body``).
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.addons.errors import InvalidRequest
from dragoman.addons.messages import ChatRequest, ImagePart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from dragoman.addons.providers import find_provider

WIRE = os.environ.get("DRAGOMAN_WIRE")
THREAD = "thread: Extra inputs are not permitted"
REFUSED = {
    "pi-nothread-1.json": THREAD,
    "pi-threads-1.json": THREAD,
    "pi-threads-2.json": THREAD,
    "claude-toolsearch-4.json": "tools: web_search_20250305 runs at the provider and is not supported",
}
"""Recordings that are refused -> the reason that the harness is given."""
STRUCTURE = {"type", "role", "cache_control", "output_config", "media_type", "is_error"}
"""Keys whose values are not something said."""

pytestmark = pytest.mark.skipif(WIRE is None, reason="DRAGOMAN_WIRE names no folder of recorded requests")


def recordings() -> list[Any]:
    found = []
    for path in sorted(Path(WIRE or "/nowhere").glob("*.json")):
        record = json.loads(path.read_text())
        route = (record.get("path") or "").partition("?")[0]
        if record.get("method") == "POST" and route.endswith(("/messages", "/count_tokens", "/chat/completions")):
            found.append(pytest.param(route, record["body"], id=path.name))
    return found


def parse(path: str, body: dict[str, Any]) -> ChatRequest:
    found = find_provider(host=None, method="POST", path=path, headers={})
    assert found is not None
    return found[0].parse_request(body, found[1])


def said(value: Any) -> Iterator[str]:
    """Every text in a part of the raw body."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from said(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "input":
                yield json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            elif key not in STRUCTURE:
                yield from said(item)


def kept(part: Part) -> Iterator[str]:
    """Every text in a parsed part, in the same notation as ``said``."""
    match part:
        case TextPart(text=text):
            yield text.removeprefix("Tool found: ")
        case ReasoningPart(text=text, signature=signature):
            yield from (text, *([] if signature is None else [signature]))
        case ImagePart(data=data, url=url):
            yield data or url or ""
        case ToolCallPart(id=id, name=name, arguments=arguments):
            yield from (id, name, arguments)
        case ToolResultPart(call_id=call_id, parts=parts):
            yield call_id
            for inner in parts:
                yield from kept(inner)


@pytest.mark.parametrize(("path", "body"), recordings())
def test_recorded_request(path: str, body: dict[str, Any], request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    if name in REFUSED:
        with pytest.raises(InvalidRequest) as caught:
            parse(path, body)
        assert caught.value.message == REFUSED[name]
        return
    chat = parse(path, body)
    raw = Counter([*said(body.get("system")), *said(body["messages"])])
    assert Counter(text for message in chat.messages for part in message.parts for text in kept(part)) == raw
    schemas = [tool.get("function", tool) for tool in body.get("tools") or []]
    assert [tool.name for tool in chat.tools] == [schema["name"] for schema in schemas]
    assert [tool.description for tool in chat.tools] == [schema.get("description", "") for schema in schemas]
    sent = [schema.get("input_schema", schema.get("parameters")) for schema in schemas]
    assert all(theirs is None or tool.parameters == theirs for tool, theirs in zip(chat.tools, sent, strict=True))
    assert chat.model == body["model"]
    assert chat.stream == body.get("stream", False)
    assert chat.sampling.max_tokens == body.get("max_tokens", body.get("max_completion_tokens"))


def test_the_recordings_are_there() -> None:
    assert len(recordings()) > 50
    assert set(REFUSED) <= {recording.id for recording in recordings()}
