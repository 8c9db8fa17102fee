import pytest

from dragoman.addons.errors import Unsupported
from dragoman.addons.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.addons.template_messages import (
    IMAGE_PLACEHOLDER,
    TOOL_ERROR_PREFIX,
    system_first,
    template_messages,
    template_tools,
    with_argument_objects,
    with_argument_text,
)

IMAGE = ImagePart("image/png", "aGk=")


def test_order_and_roles_stay() -> None:
    messages = (
        Message("system", (TextPart("a"), TextPart(""), TextPart("b"))),
        Message("user", (TextPart(" c\n"),)),
        Message("system", (TextPart("d"),)),
        Message("user", ()),
    )
    assert template_messages(messages) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": " c\n"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": ""},
    ]


def test_an_assistants_parts() -> None:
    parts = (
        ReasoningPart("hm", "sig"),
        TextPart("Let me."),
        ToolCallPart("c1", "f", '{"a": 1.0}'),
        TextPart("And."),
        ToolCallPart("c2", "g", '{"a": '),
        ToolCallPart("c3", "h", "[1]"),
    )
    assert template_messages((Message("assistant", parts),)) == [
        {
            "role": "assistant",
            "content": "Let me.\n\nAnd.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1.0}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": '{"a": '}},
                {"id": "c3", "type": "function", "function": {"name": "h", "arguments": "[1]"}},
            ],
        }
    ]
    assert template_messages((Message("assistant", (TextPart("x"),)),)) == [{"role": "assistant", "content": "x"}]


def test_tool_results_come_before_the_text_beside_them() -> None:
    messages = (
        Message("assistant", (ToolCallPart("c1", "f", "{}"), ToolCallPart("c2", "g", "{}"))),
        Message(
            "user",
            (
                TextPart("first"),
                ToolResultPart("c2", (TextPart("x"), IMAGE, TextPart("y"))),
                ToolResultPart("c1", (TextPart("no such file"),), is_error=True),
                TextPart("last"),
            ),
        ),
        Message("tool", (ToolResultPart("unknown", ()),)),
    )
    assert template_messages(messages)[1:] == [
        {"role": "tool", "tool_call_id": "c2", "name": "g", "content": f"x\n\n{IMAGE_PLACEHOLDER}\n\ny"},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": f"{TOOL_ERROR_PREFIX}no such file"},
        {"role": "user", "content": "first\n\nlast"},
        {"role": "tool", "tool_call_id": "unknown", "content": ""},
    ]


@pytest.mark.parametrize(
    "message",
    [
        Message("user", (TextPart("look"), IMAGE)),
        Message("system", (IMAGE,)),
        Message("assistant", (IMAGE,)),
        Message("assistant", (ToolResultPart("c", ()),)),
        Message("user", (ToolCallPart("c", "f", "{}"),)),
        Message("system", (ReasoningPart("x"),)),
    ],
)
def test_what_the_model_cannot_be_shown_is_refused(message: Message) -> None:
    with pytest.raises(Unsupported) as raised:
        template_messages((Message("user", (TextPart("x"),)), message))
    assert raised.value.field == "messages[1]"


def test_a_tools_image_may_come_in_a_user_message_behind_the_result() -> None:
    """Pi 1.6.0 to Gemini 2.5, recorded: a content of its own, ``Tool result image:`` and the image."""
    said = (Message("user", (TextPart("x"),)), Message("assistant", (ToolCallPart("c", "read", "{}"),)))
    result = Message("tool", (ToolResultPart("c", (TextPart("Read image file"),)),))
    carried = Message("user", (TextPart("Tool result image:"), IMAGE))

    assert template_messages((*said, result, carried))[2:] == [
        {"role": "tool", "tool_call_id": "c", "name": "read", "content": "Read image file"},
        {"role": "user", "content": f"Tool result image:\n\n{IMAGE_PLACEHOLDER}"},
    ]
    # Behind the next reply it is a user's image, which the model would not see.
    with pytest.raises(Unsupported):
        template_messages((*said, result, Message("assistant", (TextPart("A red dot."),)), carried))


def test_tools() -> None:
    schema = {"type": "object", "properties": {}}
    assert template_tools((Tool("f", "does", schema),)) == [
        {"type": "function", "function": {"name": "f", "description": "does", "parameters": schema}}
    ]


def test_neighbouring_assistant_messages_are_one_reply() -> None:
    parts = (ReasoningPart("hm"), TextPart("I look."), ToolCallPart("c1", "f", "{}"))
    user = Message("user", (TextPart("x"),))
    apart = tuple(Message("assistant", (part,)) for part in parts)
    assert template_messages((user, *apart, user)) == template_messages((user, Message("assistant", parts), user))


def test_system_messages_for_templates_that_take_one() -> None:
    a, b, c = (Message("system", (TextPart(text),)) for text in "abc")
    x = Message("user", (TextPart("x"),))
    assert system_first(template_messages((a, b, x, c))) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "x"},
        {"role": "user", "content": "c"},
    ]
    assert system_first(template_messages((x, c))) == [{"role": "user", "content": text} for text in "xc"]
    assert system_first([]) == []


def test_arguments_as_text() -> None:
    calls = (ToolCallPart("c1", "f", '{"a":  "é"}'), ToolCallPart("c2", "f", "broken"))
    shown = template_messages((Message("user", (TextPart("x"),)), Message("assistant", calls)))
    first, second = with_argument_text(shown)
    assert first == shown[0]
    assert [call["function"]["arguments"] for call in second["tool_calls"]] == ['{"a": "é"}', "broken"]
    assert shown[1]["tool_calls"][0]["function"]["arguments"] == {"a": "é"}


def test_arguments_as_objects() -> None:
    calls = (ToolCallPart("c1", "f", '{"a": 1}'), ToolCallPart("c2", "f", '{"a": '), ToolCallPart("c3", "f", "[1]"))
    (shown,) = with_argument_objects(template_messages((Message("assistant", calls),)))
    arguments = [call["function"]["arguments"] for call in shown["tool_calls"]]
    assert arguments == [{"a": 1}, {"malformed": '{"a": '}, {"malformed": "[1]"}]
