"""``providers/google_contents.py``."""

from typing import Any

import pytest

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import ImagePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from dragoman.addons.providers.base import issue_signature
from dragoman.addons.providers.google_contents import TOOL_CALL_PREFIX, fields_of, items_of, read_messages, read_system

JsonObject = dict[str, Any]
OURS = "0123456789abcdefghij"
SIGNATURE = issue_signature(OURS)
FOREIGN = "skip_thought_signature_validator"
PNG = {"inlineData": {"mimeType": "image/png", "data": "+/+/"}}
IMAGE = ImagePart("image/png", "+/+/")


def user(*parts: str | JsonObject) -> JsonObject:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def model(*parts: str | JsonObject) -> JsonObject:
    return {**user(*parts), "role": "model"}


def call(name: str, id: str | None = None, **more: Any) -> JsonObject:
    return {"functionCall": {"name": name, "args": {}} | ({} if id is None else {"id": id}), **more}


def result(name: str, id: str | None = None, response: Any = None, **more: Any) -> JsonObject:
    answer = {"output": "ok"} if response is None else response
    return {"functionResponse": {"name": name, "response": answer, **more} | ({} if id is None else {"id": id})}


def roles(*contents: JsonObject) -> list[tuple[str, int]]:
    """Role and number of parts of each message."""
    return [(message.role, len(message.parts)) for message in read_messages(list(contents))]


def call_ids(*contents: JsonObject) -> list[str]:
    parts = [part for message in read_messages(list(contents)) for part in message.parts]
    return [part.id for part in parts if isinstance(part, ToolCallPart)]


def answered(*contents: JsonObject) -> list[str]:
    parts = [part for message in read_messages(list(contents)) for part in message.parts]
    return [part.call_id for part in parts if isinstance(part, ToolResultPart)]


# -- fields -----------------------------------------------------------------------------------------------------------


def test_fields_in_both_spellings_without_nulls() -> None:
    assert fields_of({"inline_data": 1, "mimeType": 2, "gone": None}, "x") == {"inlineData": 1, "mimeType": 2}
    with pytest.raises(InvalidRequest, match=r"^x: a field is given both"):
        fields_of({"inline_data": 1, "inlineData": None}, "x")


def test_items_name_their_place() -> None:
    assert items_of([{"a": 1}, {}], "x") == [({"a": 1}, "x[0]"), ({}, "x[1]")]
    assert items_of({"a": 1}, "x") == [({"a": 1}, "x")]
    assert items_of(None, "x") == []
    with pytest.raises(InvalidRequest, match=r"^x\[1\]: expected an object"):
        items_of([{}, 1], "x")


# -- system -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (None, []),
        ("Be kind.", ["Be kind."]),
        ("", []),
        ({"parts": [{"text": "a"}, {"text": ""}, {"text": "b"}]}, ["a", "b"]),
        ({"role": "user", "parts": {"text": "a"}}, ["a"]),
        ({"role": "system", "parts": [{"text": "a"}]}, ["a"]),
    ],
)
def test_system(value: Any, texts: list[str]) -> None:
    expected = (Message("system", tuple(TextPart(text) for text in texts)),) if texts else ()
    assert read_system(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"parts": [PNG]}, "systemInstruction.parts[0]: a part of kind 'inlineData' is not supported in a system"),
        ({"text": "a"}, "systemInstruction.parts: must hold at least one part"),
        ([{"text": "a"}], "systemInstruction: expected an object"),
    ],
)
def test_system_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_system(value)
    assert caught.value.message.startswith(message)


# -- contents ---------------------------------------------------------------------------------------------------------


def test_order_and_neighbours_are_kept() -> None:
    assert read_messages([user("a", "b"), user("c"), model("d"), {"parts": {"text": "e"}}]) == (
        Message("user", (TextPart("a"), TextPart("b"))),
        Message("user", (TextPart("c"),)),
        Message("assistant", (TextPart("d"),)),
        Message("user", (TextPart("e"),)),
    )


def test_an_empty_text_makes_no_part_but_its_content_stays() -> None:
    assert read_messages([user(""), model(""), user("a", "")]) == (
        Message("user", ()),
        Message("assistant", ()),
        Message("user", (TextPart("a"),)),
    )


def test_contents_of_the_model_that_follow_each_other_are_one_message() -> None:
    thought = {"text": "I ", "thought": True, "thoughtSignature": SIGNATURE}
    more = {"text": "think", "thought": True}
    foreign = {"text": "Hm", "thought": True, "thoughtSignature": FOREIGN}
    empty = {"text": "", "thought": True, "thoughtSignature": "b3BhcXVl"}
    contents = [
        user("a"),
        model(thought),
        model(""),
        model(more, foreign, empty),
        model("He"),
        model("llo", call("ls")),
    ]
    assert read_messages(contents)[1].parts == (
        ReasoningPart("I think", SIGNATURE),
        ReasoningPart("Hm", FOREIGN),
        ReasoningPart("", "b3BhcXVl"),
        TextPart("Hello"),
        ToolCallPart(f"{TOOL_CALL_PREFIX}{OURS}_0", "ls", "{}"),
    )


def test_a_thought_signed_at_its_end_is_one_thought() -> None:
    parts = [{"text": "a", "thought": True}, {"text": "b", "thought": True, "thoughtSignature": FOREIGN}]
    assert read_messages([user("x"), model(*parts)])[1].parts == (ReasoningPart("ab", FOREIGN),)


def test_results_and_other_parts_become_messages_in_order() -> None:
    contents = [
        user("a"),
        model(call("ls", "1"), call("cat", "2")),
        user("b", result("ls", "1"), result("cat", "2"), "c"),
    ]
    assert roles(*contents)[2:] == [("user", 1), ("tool", 2), ("user", 1)]


def test_the_function_role_is_a_users() -> None:
    contents = [user("a"), model(call("ls", "1")), {"role": "function", "parts": [result("ls", "1")]}]
    assert roles(*contents)[2:] == [("tool", 1)]


def test_arguments_are_compact_json_in_the_order_sent() -> None:
    part = {"function_call": {"name": "ls", "id": "1", "args": {"b": {"snake_case": 1}, "a": "é"}}}
    assert read_messages([user("x"), model(part)])[1].parts == (
        ToolCallPart("1", "ls", '{"b":{"snake_case":1},"a":"é"}'),
    )


# -- ids --------------------------------------------------------------------------------------------------------------


def test_ids_that_the_harness_gives_stay() -> None:
    history = [model(call("ls", "x"), call("ls", "y")), user(result("ls", "y"), result("ls", "x"))]
    assert call_ids(user("a"), *history) == ["x", "y"]
    assert answered(user("a"), *history) == ["y", "x"]


def test_calls_without_ids_get_ours_back_from_the_signature() -> None:
    other = issue_signature("b" * 20)
    history = [
        model("a", call("ls", thoughtSignature=SIGNATURE), call("ls"), call("cat")),
        user(result("cat"), result("ls"), result("ls")),
        model(call("ls", thoughtSignature=other)),
        user(result("ls")),
    ]
    ours = [f"{TOOL_CALL_PREFIX}{OURS}_{n}" for n in range(3)] + [f"{TOOL_CALL_PREFIX}{'b' * 20}_0"]
    assert call_ids(user("x"), *history) == ours
    assert answered(user("x"), *history) == [ours[2], ours[0], ours[1], ours[3]]


def test_two_replies_that_follow_each_other_keep_their_own_ids() -> None:
    other = issue_signature("b" * 20)
    turns = [model(call("ls", thoughtSignature=SIGNATURE), call("ls")), model(call("ls", thoughtSignature=other))]
    assert call_ids(user("x"), *turns) == [
        f"{TOOL_CALL_PREFIX}{id}" for id in (f"{OURS}_0", f"{OURS}_1", f"{'b' * 20}_0")
    ]


def test_an_id_used_again_is_answered_again() -> None:
    assert answered(user("x"), *[model(call("ls", "1")), user(result("ls"))] * 2) == ["1", "1"]


def test_calls_of_others_without_ids_are_told_apart_by_name_and_order() -> None:
    history = [
        model(call("ls", thoughtSignature=FOREIGN), call("cat"), call("ls")),
        user(result("ls"), result("ls"), result("cat")),
        model(call("ls")),
        user(result("ls")),
    ]
    ids = call_ids(user("x"), *history)
    assert len(set(ids)) == 4
    assert answered(user("x"), *history) == [ids[0], ids[2], ids[1], ids[3]]


def test_an_interrupted_call_takes_no_later_result() -> None:
    history = [model(call("ls")), user("stop"), model(call("ls")), user(result("ls"))]
    assert answered(user("x"), *history) == call_ids(user("x"), *history)[1:]


def test_gemini_clis_own_form_of_an_id() -> None:
    assert answered(user("x"), model(call("ls", "fc_1")), user(result("ls", "ls__fc_1"))) == ["fc_1"]
    assert answered(user(result("ls", "ls__fc_1"))) == ["ls__fc_1"]  # countTokens sends a result alone


def test_an_id_that_the_harness_made_up_for_a_call_of_ours() -> None:
    history = [model(call("ls", thoughtSignature=SIGNATURE), call("ls")), user(result("ls", "p"), result("ls", "q"))]
    assert answered(user("x"), *history) == call_ids(user("x"), *history)
    assert answered(user("x"), model(call("ls", "1")), user(result("ls", "2"))) == ["2"]


def test_a_result_without_id_and_without_call() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages([user("x"), model(call("ls")), user(result("ls"), result("ls"))])
    assert caught.value.message == (
        "contents[2].parts[1].functionResponse: no function call of the name 'ls' waits for a response"
    )


def test_repeated_results_are_left_out() -> None:
    """As ``gemini --resume`` sends them: every result of a turn, and then all of them again."""
    once = [result("ls", "1"), PNG, result("cat", "2", {"error": "no"})]
    history = read_messages([user("x"), model(call("ls", "1"), call("cat", "2")), user(*once, *once), user("y")])
    assert history[2:] == (
        Message(
            "tool",
            (ToolResultPart("1", (TextPart("ok"), IMAGE)), ToolResultPart("2", (TextPart("no"),), is_error=True)),
        ),
        Message("user", (TextPart("y"),)),
    )
    alone = [user("x"), model(call("ls", "1")), user(result("ls", "1")), user(result("ls", "1"))]
    assert roles(*alone) == [("user", 1), ("assistant", 1), ("tool", 1)]


def test_results_that_differ_or_answer_a_new_call_stay() -> None:
    differ = [user("x"), model(call("ls", "1")), user(result("ls", "1"), result("ls", "1", {"output": "other"}))]
    assert roles(*differ)[2:] == [("tool", 2)]
    again = [user("x"), *[model(call("ls", "1")), user(result("ls", "1"))] * 2]
    assert roles(*again)[3:] == [("assistant", 1), ("tool", 1)]


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "text", "is_error"),
    [
        ({"output": "a\nb"}, "a\nb", False),
        ({"output": ""}, None, False),
        ({"output": {"a": 1}}, '{"a":1}', False),
        ({"output": None}, "null", False),
        ({"error": "no such file"}, "no such file", True),
        ({"error": ""}, None, True),
        ({"output": "a", "error": "b"}, '{"output":"a","error":"b"}', True),
        ({"output": "a", "error": None}, '{"output":"a","error":null}', False),
        ({"result": "a"}, '{"result":"a"}', False),
        ({"snake_case": 1}, '{"snake_case":1}', False),
        ({}, None, False),
    ],
)
def test_response(response: JsonObject, text: str | None, is_error: bool) -> None:
    [message] = read_messages([user(result("ls", "1", response))])
    parts = () if text is None else (TextPart(text),)
    assert message == Message("tool", (ToolResultPart("1", parts, is_error),))


def test_media_of_results() -> None:
    nested = result("ls", "1", parts=[{"inline_data": {"mime_type": "image/png", "data": "-_-_"}}])
    assert read_messages([user(nested, PNG, PNG, "text", PNG)]) == (
        Message("tool", (ToolResultPart("1", (TextPart("ok"), IMAGE, IMAGE, IMAGE)),)),
        Message("user", (TextPart("text"), IMAGE)),
    )


@pytest.mark.parametrize(("data", "kept"), [("-_-_", "+/+/"), ("AA", "AA=="), ("AAA=", "AAA=")])
def test_base64_of_either_alphabet(data: str, kept: str) -> None:
    [message] = read_messages([user({"inlineData": {"mimeType": "image/png", "data": data}})])
    assert message.parts == (ImagePart("image/png", kept),)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            user({"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}),
            "contents[0].parts[0].inlineData.mimeType: 'audio/wav' cannot be shown to the model",
        ),
        (
            user({"fileData": {"fileUri": "https://x", "mimeType": "image/png"}}),
            "contents[0].parts[0]: a part of kind 'fileData' is not supported in a user's content",
        ),
        (user({"executable_code": {}}), "contents[0].parts[0]: a part of kind 'executableCode'"),
        (model({"codeExecutionResult": {}}), "contents[0].parts[0]: a part of kind 'codeExecutionResult'"),
        (model(PNG), "contents[0].parts[0]: a part of kind 'inlineData' is not supported in a content of the model"),
        (model(result("ls", "1")), "contents[0].parts[0]: a part of kind 'functionResponse'"),
        (user(call("ls")), "contents[0].parts[0]: a part of kind 'functionCall'"),
        (
            user(result("ls", "1", parts=[{"fileData": {}}])),
            "contents[0].parts[0].functionResponse.parts[0]: a part of kind 'fileData'",
        ),
        (
            model({"functionCall": {"name": "ls", "partialArgs": []}}),
            "contents[0].parts[0].functionCall.partialArgs: send the arguments whole",
        ),
    ],
)
def test_unsupported(content: JsonObject, message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read_messages([content])
    assert caught.value.message.startswith(message)
    assert message.startswith(str(caught.value.field))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"role": "user"}, "contents[0].parts: must hold at least one part"),
        ({"role": "user", "parts": []}, "contents[0].parts: must hold at least one part"),
        ({"role": "user", "parts": "a"}, "contents[0].parts: expected an array, got 'a'"),
        ({"role": "system", "parts": [{"text": "a"}]}, "contents[0].role: expected 'user', 'model' or 'function'"),
        (user({}), "contents[0].parts[0]: a part must be of exactly one kind, got []"),
        (user({"thoughtSignature": FOREIGN}), "contents[0].parts[0]: a part must be of exactly one kind, got []"),
        (user({"text": "a", **PNG}), "contents[0].parts[0]: a part must be of exactly one kind, got ['text', "),
        (user({"text": 1}), "contents[0].parts[0].text: expected a string, got 1"),
        (model({"text": "a", "thought": 1}), "contents[0].parts[0].thought: expected true or false, got 1"),
        (model({"text": "a", "thoughtSignature": 1}), "contents[0].parts[0].thoughtSignature: expected a string"),
        (model({"functionCall": {}}), "contents[0].parts[0].functionCall.name: expected a string that is not empty"),
        (model(call("ls", 1)), "contents[0].parts[0].functionCall.id: expected a string, got 1"),  # type: ignore[arg-type]
        (
            model({"functionCall": {"name": "ls", "args": "{}"}}),
            "contents[0].parts[0].functionCall.args: expected an object, got '{}'",
        ),
        (
            user(result("ls", "1", "ok")),
            "contents[0].parts[0].functionResponse.response: expected an object, got 'ok'",
        ),
        (user({"inlineData": {"data": "AAAA"}}), "contents[0].parts[0].inlineData.mimeType: expected a string"),
        (
            user({"inlineData": {"mimeType": "image/png", "data": "é!"}}),
            "contents[0].parts[0].inlineData.data: expected base64, got 'é!'",
        ),
    ],
)
def test_invalid(content: JsonObject, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages([content])
    assert caught.value.message.startswith(message)
    assert message.startswith(str(caught.value.field))
    assert not isinstance(caught.value, Unsupported)
