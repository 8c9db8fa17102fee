"""Each rule of the table holds for the shape it was read from, and for no other harness's."""

from dataclasses import replace

import pytest

from dragoman.addons.classify import classify
from dragoman.addons.identity import Harness
from dragoman.addons.messages import ChatRequest, Message, ResponseFormat, ResponsesDetails, TextPart, Tool
from dragoman.store.records import CallKind

TOOL = Tool("bash", "", {"type": "object"})


def request(roles: str, *, tools: bool = False, schema: bool = False, last: str = "x") -> ChatRequest:
    """``roles``: one letter a message; s, u or a."""
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [Message(names[role], (TextPart("x"),)) for role in roles]  # type: ignore[arg-type]
    messages[-1] = replace(messages[-1], parts=(TextPart(last),))
    return ChatRequest(
        provider="openai_responses",
        model="m",
        messages=tuple(messages),
        tools=(TOOL,) if tools else (),
        response_format=ResponseFormat("json_schema", {}) if schema else None,
    )


def with_system(asked: ChatRequest, text: str) -> ChatRequest:
    """``asked``, with another first system message."""
    return replace(asked, messages=(Message("system", (TextPart(text),)), *asked.messages[1:]))


MEMORY = "You are now acting as the managed memory extraction subagent for an AI coding assistant.\n"
COMMIT = "You are an expert software engineer that generates concise, one-line Git commit messages based on …"
SUMMARY = "Your task is to create a detailed summary of the conversation so far, …"


@pytest.mark.parametrize(
    ("harness", "asked", "kind"),
    [
        ("claude", request("su", tools=True), "main"),
        ("claude", request("su", schema=True), "side"),
        ("claude", request("su"), "side"),
        ("claude", request("suau", tools=True, last=SUMMARY), "compaction"),
        ("claude", request("suau", last=SUMMARY), "compaction"),
        ("gemini", request("uu", schema=True), "side"),
        ("gemini", request("su", tools=True), "main"),
        ("opencode", request("suu"), "side"),
        ("opencode", replace(request("u"), messages=(Message("user", (TextPart("x"), TextPart("y"))),)), "side"),
        ("opencode", request("su"), "compaction"),
        ("opencode", request("su", tools=True), "main"),
        ("qwen", request("suau"), "compaction"),
        ("qwen", request("su"), "side"),
        ("qwen", request("suau", tools=True), "main"),
        ("qwen", with_system(request("suau", tools=True), MEMORY), "side"),
        ("codex", request("suau"), "compaction"),
        ("codex", request("su"), "main"),
        ("pi", request("su"), "main"),
        ("litellm", request("su"), "main"),
        (None, with_system(request("su"), COMMIT), "side"),
        (None, request("su", last=COMMIT), "main"),
        (None, request("su", schema=True), "main"),
    ],
)
def test_kinds(harness: str | None, asked: ChatRequest, kind: CallKind) -> None:
    assert classify(Harness(harness), asked) == kind


@pytest.mark.parametrize("kind", ["subagent", "side", "compaction"])
def test_what_the_headers_say_goes_first(kind: CallKind) -> None:
    assert classify(Harness("claude", kind=kind), request("su", tools=True)) == kind


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        (ResponsesDetails(warm_up=True), "warm_up"),
        (ResponsesDetails(compaction="item"), "compaction"),
        (ResponsesDetails(compaction="list"), "compaction"),
        (ResponsesDetails(), "subagent"),
    ],
)
def test_what_the_dialect_has_a_word_for_is_that_whoever_sent_it(details: ResponsesDetails, kind: CallKind) -> None:
    asked = replace(request("su", tools=True), responses=details)
    assert classify(Harness(name="codex", kind="subagent"), asked) == kind
