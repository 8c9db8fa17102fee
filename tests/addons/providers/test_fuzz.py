"""A body that is wrong anywhere is refused with a 4xx that can be shown; it never breaks the parser."""

import copy
import json
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.addons.errors import DragomanError
from dragoman.addons.messages import ChatRequest
from dragoman.addons.providers import find_provider

CASES = sorted((Path(__file__).parent / "cases").glob("*/*/request.json"))
KEYS = sorted({key for path in CASES for key in json.loads(path.read_text())})


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(
        [
            *("", "text", "tool_result", "image_url", "custom", "function", "data:x", "assistant", "json_schema"),
            *("namespace", "local_shell", "allowed_tools", "additional_tools", "tool_search_output", "compaction"),
        ]
    ),
    st.sampled_from(["model", "ANY", "image/png", "application/json", "OBJECT", "AAAA", "9" * 5000]),
    st.sampled_from([{"text": "a"}, {"functionCall": {"name": "a"}}, {"functionResponse": {"name": "a"}}]),
    st.sampled_from([deep(300), [], {}, [[]], [None], [{}], {"type": None}, {"type": []}, {"type": {}}]),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    path = draw(st.sampled_from(CASES))
    body = json.loads(path.read_text())
    for _ in range(draw(st.integers(1, 4))):
        container, key = draw(st.sampled_from(places(body)))
        match draw(st.sampled_from(["replace", "remove", "repeat", "add"])):
            case "replace":
                container[key] = copy.deepcopy(draw(junk))
            case "remove":
                del container[key]
            case "repeat" if isinstance(container, list):
                container.append(container[key])
            case _:
                body[draw(st.sampled_from(KEYS))] = copy.deepcopy(draw(junk))
        if not body:
            break
    if path.parent.parent.name == "anthropic":
        return draw(st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"])), body
    if path.parent.parent.name == "openai_responses":
        return "/v1/responses", body
    if path.parent.parent.name == "google":
        verb = draw(st.sampled_from(["generateContent", "streamGenerateContent", "countTokens"]))
        return f"/v1beta/models/m:{verb}", body
    return draw(st.sampled_from(["/v1/chat/completions", "/v1/completions"])), body


@settings(max_examples=1000, deadline=None)
@given(bodies())
def test_only_a_shown_error_or_a_request_comes_out(case: tuple[str, dict[str, Any]]) -> None:
    path, body = case
    found = find_provider(host=None, method="POST", path=path, headers={})
    assert found is not None
    provider, route = found
    result: ChatRequest | DragomanError
    try:
        result = provider.parse_request(body, route)
    except DragomanError as error:
        result = error
    if isinstance(result, ChatRequest):
        orjson.dumps(result)  # it can be stored
        return
    assert 400 <= provider.error_status(result) < 500
    assert result.field is not None
    assert result.message.startswith(result.field)
    orjson.dumps(provider.error_body(result, "0123456789abcdefghij"))
