"""A provider's reply read back: the golden replies of every dialect, whole and streamed, say what they were made of."""

import json
from pathlib import Path

import pytest

from dragoman.addons.errors import InvalidRequest
from dragoman.addons.messages import ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.observed_reply import read_reply
from dragoman.addons.providers import PROVIDERS
from dragoman.addons.providers.base import Route

CASES = Path(__file__).parent / "providers" / "cases"
BY_NAME = {provider.name: provider for provider in PROVIDERS}
FORMS = {"response.json": "application/json", "response.sse": "text/event-stream; charset=utf-8"}
CHANGED = {
    ("anthropic", "malformed_args"): "the dialect has arguments as an object, so the text comes wrapped",
    ("google", "malformed_args"): "as above",
    ("openai_responses", "custom_tool"): "free text is shown to the model as the one argument of a function",
}
"""(provider, case) -> why what is read back differs from what was sampled."""


def compact(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


def described(parts: tuple[object, ...]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for part in parts:
        match part:
            case ReasoningPart(text=text):
                found.append(("reasoning", text))
            case TextPart(text=text):
                found.append(("text", text))
            case ToolCallPart(name=name, arguments=arguments):
                found.append(("tool_call", name, compact(arguments)))
    return found


def expected(folder: Path) -> list[tuple[str, ...]]:
    parts = json.loads((folder / "reply.json").read_text())["parts"]
    words = {"reasoning": ("text",), "text": ("text",), "tool_call": ("name", "arguments")}
    found = []
    for part in parts:
        values = [part[word] for word in words[part["type"]]]
        if part["type"] == "tool_call":
            values[1] = compact(values[1])
        found.append((part["type"], *values))
    return found


def folders() -> list[Path]:
    return [
        folder
        for folder in sorted(CASES.glob("*/*"))
        if (folder.parent.name, folder.name) not in CHANGED
        and all((folder / form).exists() for form in FORMS)
        and "parts" in json.loads((folder / "reply.json").read_text())
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("folder", folders(), ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_golden_replies_say_what_they_were_made_of(folder: Path, form: str) -> None:
    provider = BY_NAME[folder.parent.name]  # type: ignore[index]
    parts = read_reply(provider, Route("generate", model="m"), FORMS[form], (folder / form).read_bytes())
    assert described(parts) == expected(folder)


def test_every_dialect_is_there() -> None:
    assert {folder.parent.name for folder in folders()} == set(BY_NAME)
    assert len(folders()) > 30


def test_a_json_array_is_a_stream() -> None:
    chunks = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("Hel", "lo")]
    parts = read_reply(BY_NAME["google"], Route("generate", model="m"), "application/json", json.dumps(chunks).encode())
    assert parts == (TextPart("Hello"),)


@pytest.mark.parametrize("provider", BY_NAME)
@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"7", b"{}", b'{"choices":[]}', b'{"output":7}'])
def test_what_cannot_be_read_says_so(provider: str, body: bytes) -> None:
    if (provider, body) in {("google", b"{}"), ("google", b'{"choices":[]}'), ("google", b'{"output":7}')}:
        return  # a reply of Google's may have no candidates
    with pytest.raises(InvalidRequest, match=r"."):
        read_reply(BY_NAME[provider], Route("generate", model="m"), "application/json", body)  # type: ignore[index]


def test_a_cut_stream_gives_what_came() -> None:
    body = (
        b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\ndata: {"choices":[{"delta":{"content":"lo"}}]}\n\ndata: {'
    )
    route = Route("generate")
    with pytest.raises(InvalidRequest):
        read_reply(BY_NAME["openai_chat"], route, "text/event-stream", body)
    assert read_reply(BY_NAME["openai_chat"], route, "text/event-stream", body[: body.rindex(b"data")]) == (
        TextPart("Hello"),
    )
