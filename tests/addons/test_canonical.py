"""Each carriage rule and each echo rule: what it forgives, and what it must not."""

import pytest

from dragoman.addons.canonical import carried, compare_echo, digest, echoed_call_ids
from dragoman.addons.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

BILLING = "x-anthropic-billing-header: cc_version=2.1.332.fa9; cch=%s; cc_turn_index=%d\n"


def system(*texts: str) -> Message:
    return Message("system", tuple(map(TextPart, texts)))


def test_the_billing_line_does_not_count() -> None:
    one = (system(BILLING % ("aa", 1), "You are an agent."),)
    two = (system(BILLING % ("bb", 2), "You are an agent."),)
    assert carried(one) == carried(two) == (system("You are an agent."),)


def test_what_follows_the_billing_line_counts() -> None:
    assert carried((system(BILLING % ("aa", 1) + "Be kind."),)) == (system("Be kind."),)


@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
def test_a_billing_line_elsewhere_is_somebodys_words(role: str) -> None:
    message = Message(role, (TextPart(BILLING % ("aa", 1)),))  # type: ignore[arg-type]
    assert carried((message,)) == (message,)


def test_neighbouring_assistant_messages_are_one_and_others_are_not() -> None:
    text, call = Message("assistant", (TextPart("a"),)), Message("assistant", (ToolCallPart("c", "x", "{}"),))
    user = Message("user", (TextPart("u"),))
    assert carried((text, call, user, user)) == (Message("assistant", text.parts + call.parts), user, user)


def test_a_message_without_parts_says_nothing() -> None:
    assert carried((Message("user", ()), Message("tool", ()))) == ()


def test_an_assistants_message_without_parts_is_kept_as_it_may_echo_an_empty_reply() -> None:
    empty, text = Message("assistant", ()), Message("assistant", (TextPart("a"),))
    assert carried((empty,)) == (empty,)
    assert carried((empty, text, empty)) == (text,)


CALL = ToolCallPart("toolu_x_0", "bash", '{"command": "ls", "n": 1}')
BROKEN = ToolCallPart("toolu_x_0", "bash", '{"command": "ls')


@pytest.mark.parametrize(
    ("issued", "echoed", "expected"),
    [
        ((TextPart("hi"),), (TextPart("hi"),), "same"),
        ((TextPart("hi "),), (TextPart("hi"),), "changed"),
        ((TextPart("\n\nhi"),), (TextPart("hi\n"),), "changed"),
        ((TextPart("h i"),), (TextPart("hi"),), None),
        ((TextPart("hi"),), (TextPart("Hi"),), None),
        ((TextPart("hi"),), (), None),
        ((ReasoningPart("why", "s"), TextPart("hi")), (TextPart("hi"),), "changed"),
        ((ReasoningPart("why", "s"), TextPart("hi")), (ReasoningPart("why"), TextPart("hi")), "changed"),
        ((TextPart("hi"), CALL), (TextPart("hi"), CALL), "same"),
        ((CALL,), (ToolCallPart("bash__toolu_x_0", "bash", '{"n":1,"command":"ls"}'),), "changed"),
        ((CALL,), (ToolCallPart("toolu_x_0", "bash", '{"command": "rm", "n": 1}'),), None),
        ((CALL,), (ToolCallPart("toolu_x_0", "sh", CALL.arguments),), None),
        ((CALL,), (CALL, CALL), None),
        ((CALL, CALL), (CALL,), None),
        ((BROKEN,), (ToolCallPart("toolu_x_0", "bash", "{}"),), "changed"),
        ((BROKEN,), (ToolCallPart("toolu_x_0", "bash", '{"__unparsedToolInput": {"raw": "x"}}'),), "changed"),
        ((BROKEN,), (ToolCallPart("toolu_x_0", "invalid", '{"tool": "bash"}'),), "changed"),
        ((CALL,), (ToolCallPart("toolu_x_0", "invalid", '{"tool": "bash"}'),), "changed"),
        ((ToolCallPart("a", "bash", ""),), (ToolCallPart("a", "bash", "{}"),), "changed"),
        ((ToolCallPart("a", "exec", '{"x": 1}'),), (ToolCallPart("a", "exec", '{"input":"{\\"x\\": 1}"}'),), "changed"),
        ((ToolCallPart("a", "exec", '{"x": 1}'),), (ToolCallPart("a", "exec", '{"input":"{\\"x\\": 2}"}'),), None),
        ((), (), "same"),
    ],
)
def test_echoes(issued: tuple[Part, ...], echoed: tuple[Part, ...], expected: str | None) -> None:
    assert compare_echo(issued, echoed) == expected


def test_ids_and_digests() -> None:
    message = Message("assistant", (TextPart("x"), CALL, BROKEN))
    assert echoed_call_ids(message) == ("toolu_x_0", "toolu_x_0")
    assert digest(message) != digest(Message("user", message.parts))
    result = Message("tool", (ToolResultPart("a", (TextPart("x"),)),))
    assert digest(result) != digest(Message("tool", (ToolResultPart("b", (TextPart("x"),)),)))
