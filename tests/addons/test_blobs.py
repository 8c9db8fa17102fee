import orjson

from dragoman.addons.blobs import message_blob, read_tools, reply_blob, tools_blob
from dragoman.addons.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)

EVERY_PART = Message(
    "user",
    (
        TextPart("é"),
        ImagePart("image/png", "QUJD"),
        ReasoningPart("why", "sig"),
        ToolCallPart("c1", "bash", '{"a":1}'),
        ToolResultPart("c1", (TextPart("out"), ImagePart(None, None, "http://x/y.png")), is_error=True),
    ),
)


def test_every_kind_of_part_is_kept_with_its_type() -> None:
    stored = orjson.loads(message_blob(EVERY_PART).data)
    assert stored["role"] == "user"
    assert [part["type"] for part in stored["parts"]] == ["text", "image", "reasoning", "tool_call", "tool_result"]
    assert stored["parts"][4] == {
        "type": "tool_result",
        "id": "c1",
        "is_error": True,
        "parts": [
            {"type": "text", "text": "out"},
            {"type": "image", "media_type": None, "data": None, "url": "http://x/y.png"},
        ],
    }


def test_equal_messages_have_one_digest_and_others_another() -> None:
    assert message_blob(EVERY_PART) == message_blob(Message("user", EVERY_PART.parts))
    digests = {message_blob(Message(role, EVERY_PART.parts[:n])).digest for role in ("user", "tool") for n in range(6)}
    assert len(digests) == 12
    assert all(len(digest) == 16 for digest in digests)


def test_tools_and_replies() -> None:
    assert tools_blob(()) is None
    tools = tools_blob((Tool("bash", "runs", {"type": "object"}),))
    assert tools is not None
    assert orjson.loads(tools.data)[0]["parameters"] == {"type": "object"}
    assert orjson.loads(reply_blob((TextPart("hi"),)).data) == {
        "role": "assistant",
        "parts": [{"type": "text", "text": "hi"}],
    }


def test_tools_are_read_back_as_functions() -> None:
    tools = (Tool("look", "Looks.", {"type": "object"}), Tool("a__b", "B.", {}, "custom", "a"))
    assert read_tools(tools_blob(tools)) == (tools[0], Tool("a__b", "B.", {}))
    assert read_tools(None) == ()
