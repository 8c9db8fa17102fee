"""How a reply comes back, by dialect; the whole of it is seen in tests/e2e/test_probe.py."""

from typing import Any

import pytest

from dragoman.addons.blobs import reply_blob
from dragoman.addons.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.providers.base import issue_signature
from dragoman.cli.probe_seen import echo_of
from dragoman.rollout.probe.records import Echo
from dragoman.store.records import CallArrival, CallInfo, CallOutcome, ProviderName

CALL = "abcdefghij0123456789"
ID = f"call_{CALL}_0"
SAID = (ReasoningPart("hm"), TextPart("I will."), ToolCallPart(ID, "bash", '{"a": 1}'))


def _origin(provider: ProviderName) -> CallInfo:
    arrival = CallArrival(CALL, "e", provider, "/", 1.0)
    return CallInfo(arrival, CallOutcome(CALL, "answered", 200, 2.0, reply=reply_blob(SAID)))


def _echo(*parts: Part, provider: ProviderName = "openai_chat") -> Echo:
    return echo_of(_origin(provider), Message("assistant", parts))


def test_to_the_letter() -> None:
    assert _echo(*SAID) == Echo("same", "same", "same", "none", "same", 'bash {"a": 1}')


@pytest.mark.parametrize(
    ("part", "field", "mark"),
    [
        (TextPart("I will. "), "text", "changed"),
        (TextPart(""), "text", "missing"),
        (ReasoningPart("h"), "reasoning", "changed"),
        (ReasoningPart(""), "reasoning", "missing"),
        (ToolCallPart(ID, "bash", '{"a":1}'), "arguments", "changed"),
        (ToolCallPart(f"bash__{ID}", "bash", '{"a": 1}'), "tool_ids", "changed"),
        (ToolCallPart("mine", "bash", '{"a": 1}'), "tool_ids", "missing"),
    ],
    ids=str,
)
def test_what_is_changed(part: Any, field: str, mark: str) -> None:
    parts = [part if type(one) is type(part) else one for one in SAID]

    assert getattr(_echo(*parts), field) == mark


def test_calls_that_are_left_out() -> None:
    echo = _echo(TextPart("I will."))

    assert (echo.arguments, echo.tool_ids, echo.reasoning) == ("missing", "missing", "missing")


def test_arguments_that_are_an_object_have_no_text_of_their_own() -> None:
    compact = ToolCallPart(ID, "bash", '{"a":1}')

    assert _echo(compact, provider="google").arguments == "same"
    assert _echo(ToolCallPart(ID, "bash", '{"a":2}'), provider="google").arguments == "changed"


@pytest.mark.parametrize("provider", ["anthropic", "openai_responses"])
def test_signatures_where_the_dialect_has_them(provider: ProviderName) -> None:
    assert _echo(ReasoningPart("hm", issue_signature(CALL)), provider=provider).signature == "same"
    assert _echo(ReasoningPart("hm", issue_signature("zzzzzzzzzz0123456789")), provider=provider).signature == "missing"
    assert _echo(TextPart("I will."), provider=provider).signature == "missing"
