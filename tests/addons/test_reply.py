from typing import Any

import numpy as np
import pytest

from dragoman.addons.messages import Completion, ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.providers.base import read_signature
from dragoman.addons.reply import build_reply
from dragoman.addons.tokens import ParsedCall, ParsedReply


def completion(finish_reason: Any = "stop") -> Completion:
    return Completion(
        np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32), np.zeros(3, np.float32), finish_reason, ()
    )


def build(parsed: ParsedReply, finish_reason: str = "stop", **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "call_id": "abc",
        "model": "m",
        "created": 1,
        "tool_call_prefix": "toolu_",
        "parsed": parsed,
        "completion": completion(finish_reason),
        "stop_sequence": None,
        "show_completion": False,
    }
    return build_reply(**(arguments | changes))


def call(name: str | None, arguments: str = "{}", raw: str = "", status: str = "ok") -> ParsedCall:
    return ParsedCall(name, arguments, raw, status)


def test_parts_come_in_order_with_ids_that_carry_the_call() -> None:
    nameless, reply = build(ParsedReply("think", "text", (call("a"), call("b", '{"x": 1}'))))
    assert nameless == ""
    reasoning, text, first, second = reply.parts
    assert isinstance(reasoning, ReasoningPart)
    assert read_signature(reasoning.signature or "") == "abc"
    assert text == TextPart("text")
    assert first == ToolCallPart("toolu_abc_0", "a", "{}")
    assert second == ToolCallPart("toolu_abc_1", "b", '{"x": 1}')
    assert reply.finish_reason == "tool_calls"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 3)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_finish_reason_without_calls_is_the_engines(finish: str) -> None:
    assert build(ParsedReply(None, "text", ()), finish)[1].finish_reason == finish


def test_a_cut_call_keeps_length() -> None:
    broken = call("bash", '{"command": "ec', status="unclosed_block")
    reply = build(ParsedReply(None, "", (broken,)), "length")[1]
    assert reply.finish_reason == "length"
    assert reply.parts == (ToolCallPart("toolu_abc_0", "bash", '{"command": "ec'),)


def test_a_broken_call_keeps_its_arguments_as_written() -> None:
    broken = call("bash", '{"command": nope}}', status="invalid_json")
    assert build(ParsedReply(None, "", (broken,)))[1].parts == (
        ToolCallPart("toolu_abc_0", "bash", '{"command": nope}}'),
    )


def test_a_call_without_any_name_stays_text_and_is_still_to_be_sent() -> None:
    nameless, reply = build(ParsedReply(None, "so: ", (call(None, raw="gibberish", status="invalid_json"),)))
    assert nameless == "gibberish"
    assert reply.parts == (TextPart("so: gibberish"),)
    assert reply.finish_reason == "stop"


def test_an_empty_reply_has_no_parts() -> None:
    assert build(ParsedReply(None, "", ()))[1].parts == ()


def test_token_ids_are_shown_only_when_asked() -> None:
    assert build(ParsedReply(None, "x", ()))[1].completion is None
    assert build(ParsedReply(None, "x", ()), show_completion=True)[1].completion is not None
