"""Input items as messages: what is special about their order, summaries and an earlier conversation.

Each kind of item is looked at in ``test_openai_responses``, with the fields of the requests that bring it.
"""

from typing import Any

import pytest

from dragoman.addons.errors import InvalidRequest
from dragoman.addons.messages import Message, ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.providers.openai_items import (
    OPAQUE_SUMMARY,
    SUMMARISE,
    compaction_message,
    issue_summary,
    read_input,
    read_summary,
)

USER = Message("user", (TextPart("Hi"),))


@pytest.mark.parametrize("summary", ["", "We wrote a file.", "Öl ☀ \n\n <|im_end|>", "dgm-summary:twice"])
def test_a_summary_is_read_back_as_it_was(summary: str) -> None:
    assert read_summary(issue_summary(summary)) == summary


@pytest.mark.parametrize("foreign", ["", "gAAAAABk", "not base64!", "ü", "U1VNTUFSWSBmYWtl", "ZGdtOng="])
def test_a_foreign_summary_is_not_ours(foreign: str) -> None:
    assert read_summary(foreign) is None
    item = {"type": "compaction", "encrypted_content": foreign}
    assert read_input({"input": [item]}, ()) == (compaction_message(OPAQUE_SUMMARY),)


def test_the_trigger_is_a_request_for_a_summary_in_its_place() -> None:
    said = read_input({"input": [{"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}]}, ())
    assert said == (USER, SUMMARISE)


def test_what_is_new_stands_behind_the_earlier_conversation_and_before_both_the_instructions() -> None:
    reply = Message("assistant", (TextPart("Now."), ToolCallPart("c1", "bash", "{}")))
    value: dict[str, Any] = {
        "instructions": "Be brief.",
        "input": [{"type": "function_call_output", "call_id": "c1", "output": "done"}],
    }
    said = read_input(value, (USER, reply))
    assert said[0] == Message("system", (TextPart("Be brief."),))
    assert said[1:3] == (USER, reply)
    assert [message.role for message in said] == ["system", "user", "assistant", "tool"]


def test_a_string_goes_on_with_an_earlier_conversation_too() -> None:
    assert read_input({"input": "Hi"}, (USER,)) == (USER, USER)


def test_items_of_one_reply_are_one_message_even_where_an_earlier_one_holds_its_beginning() -> None:
    thought = Message("assistant", (ReasoningPart("Hm.", "s"),))
    value = {"input": [{"role": "assistant", "content": "Now."}]}
    assert read_input(value, (USER, thought)) == (
        USER,
        Message("assistant", (ReasoningPart("Hm.", "s"), TextPart("Now."))),
    )


def test_nothing_at_all_is_refused_but_for_a_warm_up() -> None:
    assert read_input({"input": [], "generate": False}, ()) == ()
    with pytest.raises(InvalidRequest, match="at least one message"):
        read_input({"input": []}, ())
