"""What the golden cases do not show: refusals, the order of items, failures in a stream, and the recorded requests."""

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses.compacted_response import CompactedResponse

from dragoman.addons.errors import ContextTooLong, DragomanError, EngineFailed, InvalidRequest, Overloaded, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
    Earlier,
    ImagePart,
    Message,
    Part,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyPart,
    ReplyStarted,
    ResponseFormat,
    ResponsesDetails,
    Sampling,
    TextDelta,
    TextPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    Usage,
)
from dragoman.addons.providers.base import Route, issue_signature
from dragoman.addons.providers.openai_items import OPAQUE_SUMMARY, SUMMARISE, issue_summary, read_summary
from dragoman.addons.providers.openai_responses import ON_SOCKET, OPENAI_RESPONSES
from dragoman.addons.sse import SseSplitter

GENERATE = Route("generate")
COMPACT = Route("generate", variant="compact")
CALL_ID = "0123456789abcdefghij"
CASES = Path(__file__).parent / "cases" / "openai_responses"
TOOL = {"type": "function", "name": "bash"}
WIRE = os.environ.get("DRAGOMAN_WIRE")

Json = dict[str, Any]


def body(*items: Any, **changes: Any) -> Json:
    return {"model": "m", "input": list(items) or "Hi", **changes}


def user(*parts: Any) -> Json:
    return body({"role": "user", "content": list(parts)})


def parse(value: Json) -> ChatRequest:
    return OPENAI_RESPONSES.parse_request(value, GENERATE)


def reply(*parts: ReplyPart) -> Reply:
    return Reply(CALL_ID, "m", 1, parts, "stop", Usage(3, 2))


def streamed(chat: ChatRequest, *events: ReplyEvent) -> list[Json]:
    encoder = OPENAI_RESPONSES.encoder(chat)
    return events_in(b"".join(encoder.encode(event) for event in (ReplyStarted(CALL_ID, "m", 1, 3), *events)))


def messages(*items: Any) -> tuple[Message, ...]:
    return parse(body(*items)).messages


# -- routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/responses", GENERATE),
        ("POST", "/api/v1/responses", GENERATE),
        ("POST", "/backend-api/codex/responses", GENERATE),
        ("POST", "/v1/responses/input_tokens", Route("count_tokens")),
        ("GET", "/v1/responses", None),
        ("GET", "/backend-api/codex/responses", None),
        ("POST", "/responses", None),
        ("POST", "/v1/responses/compact", COMPACT),
        ("POST", "/backend-api/codex/responses/compact", COMPACT),
        ("GET", "/v1/responses/resp_1", None),
        ("GET", "/v1/models", None),
    ],
)
def test_route(method: str, path: str, route: Route | None) -> None:
    assert OPENAI_RESPONSES.route(method, path) == route


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (body(model=None), "model: expected a string that is not empty, got None"),
        ({"model": "m"}, "input: expected an array, got None"),
        ({"model": "m", "input": []}, "input: at least one message is required"),
        (body("Hi"), "input[0]: expected an object, got 'Hi'"),
        (
            body({"role": "tool", "content": "x"}),
            "input[0].role: expected 'system', 'developer', 'user' or 'assistant', got 'tool'",
        ),
        (body({"role": "user"}), "input[0].content: expected a string or an array of content parts, got None"),
        (user({"type": "input_text"}), "input[0].content[0].text: expected a string, got None"),
        (
            user({"type": "input_image", "image_url": "data:image/svg+xml,<svg>"}),
            "input[0].content[0].image_url: a data URL must hold base64 ('data:image/png;base64,…')",
        ),
        (
            body({"type": "function_call", "name": "x", "arguments": "{}"}),
            "input[0].call_id: expected a string that is not empty, got None",
        ),
        (
            body({"type": "function_call", "call_id": "c", "name": "x", "arguments": {}}),
            "input[0].arguments: expected a string, got {}",
        ),
        (
            body({"type": "function_call_output", "id": "c", "output": "x"}),
            "input[0].call_id: expected a string that is not empty, got None",
        ),
        (
            body({"type": "function_call_output", "call_id": "c", "output": None}),
            "input[0].output: expected a string or an array of content parts, got None",
        ),
        (body({"type": "additional_tools", "tools": {}}), "input[0].tools: expected an array, got {}"),
        (body(n=2), "n: one request gives one sample; send several requests"),
        (
            body(previous_response_id="resp_1"),
            "Previous response with id 'resp_1' not found.",
        ),
        (body(tool_choice="required"), "tool_choice: 'required' needs tools"),
        (
            body(tools=[TOOL], tool_choice={"type": "function", "name": "x"}),
            "tool_choice: no function tool is named 'x'",
        ),
        (
            body(tools=[TOOL], tool_choice={"type": "custom", "name": "bash"}),
            "tool_choice: no custom tool is named 'bash'",
        ),
        (
            body(tools=[TOOL], tool_choice={"type": "allowed_tools", "tools": [TOOL]}),
            "tool_choice.mode: expected 'auto' or 'required', got None",
        ),
        (body(tool_choice=1), "tool_choice: expected 'auto', 'none', 'required' or a tool, got 1"),
        (
            body(
                tools=[{**TOOL, "name": "a__b"}, {"type": "namespace", "name": "a", "tools": [{**TOOL, "name": "b"}]}]
            ),
            "tools: two tools would be shown as 'a__b'; rename one",
        ),
        (
            body(text={"format": {"type": "json_schema", "name": "x"}}),
            "text.format.schema: expected an object, got None",
        ),
        (body(max_output_tokens=0), "max_output_tokens: expected a whole number from 1 to 2147483647, got 0"),
        (body(include="x"), "include: expected an array, got 'x'"),
    ],
)
def test_invalid(value: Json, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(value)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.message == message
    assert OPENAI_RESPONSES.error_body(caught.value, None)["error"]["param"] == caught.value.field is not None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (user({"type": "input_file"}), "input[0].content[0]: content of type 'input_file' is not supported here"),
        (user({"type": "input_audio"}), "input[0].content[0]: content of type 'input_audio' is not supported here"),
        (
            user({"type": "input_image", "file_id": "f"}),
            "input[0].content[0]: an image must come as image_url, not as file_id",
        ),
        (
            body({"role": "developer", "content": [{"type": "input_image", "image_url": "https://x"}]}),
            "input[0].content[0]: content of type 'input_image' is not supported here",
        ),
        (body({"type": "item_reference"}), "input[0]: items of type 'item_reference' are not supported"),
        (body({"type": "shell_call"}), "input[0]: items of type 'shell_call' are not supported"),
        (
            body({"type": "configuration_update", "text": {"format": {"type": "text"}}}),
            "input[0]: items of type 'configuration_update' are not supported",
        ),
        (body(tools=[{"type": "apply_patch"}]), "tools[0].type: tools of type 'apply_patch' are not supported"),
        (
            body(tools=[{"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}]),
            "tools[0].tools[0].type: tools of type 'web_search' are not supported",
        ),
        (
            body(tools=[{"type": "web_search_2025_08_26"}, {"type": "tool_search"}]),
            "tools: web_search_2025_08_26, tool_search runs at the provider and is not supported",
        ),
        (
            body(tools=[{"type": "custom", "name": "x", "format": {"type": "json"}}]),
            "tools[0].format.type: 'json' is not supported",
        ),
        (body(tools=[TOOL], tool_choice={"type": "mcp"}), "tool_choice.type: 'mcp' is not supported"),
        (
            body(tools=[TOOL], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}),
            "tool_choice.tools: none of these tools is supported",
        ),
        (body(text={"format": {"type": "grammar"}}), "text.format.type: 'grammar' is not supported"),
        (body(background=True), "background: True is not supported"),
        (body(conversation="conv_1"), "conversation: 'conv_1' is not supported"),
        (body(include=["message.output_text.logprobs"]), "include: 'message.output_text.logprobs' is not supported"),
        (body(top_logprobs=2), "top_logprobs: logprobs are not supported here"),
    ],
)
def test_unsupported(value: Json, message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        parse(value)
    assert caught.value.message == message
    assert caught.value.field


def test_an_earlier_response_is_not_found_in_openais_words() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body(previous_response_id="resp_1"))
    error = OPENAI_RESPONSES.error_body(caught.value, None)["error"]
    assert (error["code"], error["type"]) == ("previous_response_not_found", "invalid_request_error")
    assert OPENAI_RESPONSES.error_status(caught.value) == 400


# -- an earlier reply, warm-up, compaction ---------------------------------------------------------------------------

READ = Tool("files__read", "Reads.", {"type": "object"}, "custom", "files")
EARLIER = Earlier(
    (Message("user", (TextPart("Hi"),)), Message("assistant", (ToolCallPart("c1", "bash", "{}"),))), (READ,)
)


@pytest.mark.parametrize(
    ("named", "call_id"),
    [(None, None), (f"resp_{CALL_ID}", CALL_ID), ("resp_1", ""), (f"msg_{CALL_ID}", ""), (f"resp_{CALL_ID}_x", "")],
)
def test_which_earlier_reply_is_named(named: str | None, call_id: str | None) -> None:
    assert OPENAI_RESPONSES.previous({"previous_response_id": named}) == call_id


def test_an_earlier_reply_stands_for_its_messages_and_the_tools_of_its_input() -> None:
    value = body(
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]},
        instructions="Be brief.",
        tools=[TOOL],
        previous_response_id=f"resp_{CALL_ID}",
        store=False,
    )
    chat = OPENAI_RESPONSES.parse_request(value, replace(GENERATE, earlier=EARLIER))
    assert [message.role for message in chat.messages] == ["system", "user", "assistant", "tool"]
    assert chat.messages[1:3] == EARLIER.messages
    assert [tool.name for tool in chat.tools] == ["bash", "files__read", "late"]
    assert chat.tools[1] is READ
    assert chat.responses == ResponsesDetails(
        previous=f"resp_{CALL_ID}", kept=False, instructions=True, input_tools=("files__read", "late")
    )
    shown = OPENAI_RESPONSES.render_reply(reply(), chat)
    assert (shown["previous_response_id"], shown["store"]) == (f"resp_{CALL_ID}", False)


def test_a_request_may_say_nothing_new() -> None:
    value = {"model": "m", "previous_response_id": f"resp_{CALL_ID}"}
    assert OPENAI_RESPONSES.parse_request(value, replace(GENERATE, earlier=EARLIER)).messages == EARLIER.messages
    with pytest.raises(InvalidRequest, match="input: "):
        parse({"model": "m"})


def test_a_warm_up_may_be_empty_and_exists_on_sockets_only() -> None:
    value = {"type": "response.create", "model": "m", "input": [], "generate": False}
    chat = OPENAI_RESPONSES.parse_request(value, ON_SOCKET)
    assert chat.messages == ()
    assert chat.responses is not None
    assert chat.responses.warm_up
    assert (chat.stream, chat.stream_form) == (True, "messages")
    answered = parse(body(generate=False)).responses
    assert answered is not None
    assert not answered.warm_up


@pytest.mark.parametrize(
    ("value", "route", "form"),
    [
        (body({"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}, stream=True), GENERATE, "item"),
        (body({"role": "user", "content": "Hi"}, stream=True), COMPACT, "list"),
        (body({"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}), COMPACT, "list"),
    ],
)
def test_a_compaction_asks_the_model_for_a_summary_behind_the_conversation(
    value: Json, route: Route, form: str
) -> None:
    chat = OPENAI_RESPONSES.parse_request(value, route)
    assert chat.messages == (Message("user", (TextPart("Hi"),)), SUMMARISE)
    assert chat.responses is not None
    assert chat.responses.compaction == form
    assert chat.stream == (form == "item")


def test_a_compaction_is_one_item_that_is_read_back_as_the_summary() -> None:
    chat = parse(body({"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}, stream=True))
    said = reply(ReasoningPart("Hm."), TextPart("We wrote Öl.txt."))
    item = {"id": f"cmp_{CALL_ID}", "type": "compaction", "encrypted_content": issue_summary("We wrote Öl.txt.")}
    assert OPENAI_RESPONSES.render_reply(said, chat)["output"] == [item]
    assert messages(item) == (Message("user", (TextPart("We wrote Öl.txt."),)),)
    deltas: list[ReplyEvent] = [ReasoningDelta("Hm."), TextDelta("We wrote "), TextDelta("Öl.txt.")]
    told = streamed(chat, *deltas, ReplyFinished(said))
    assert [event["type"] for event in told] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.output_item.done"),
        "response.completed",
    ]
    assert told[3]["item"] == item
    assert told[4]["response"]["output"] == [item]


def test_the_compact_paths_answer_a_list() -> None:
    chat = OPENAI_RESPONSES.parse_request(body({"role": "user", "content": "Hi"}), COMPACT)
    shown = OPENAI_RESPONSES.render_reply(reply(TextPart("Short.")), chat)
    assert CompactedResponse.model_validate(shown).output[0].type == "compaction"
    assert shown["object"] == "response.compaction"


def test_on_a_socket_every_event_is_one_line_of_the_same_words() -> None:
    value = body(tools=[TOOL], stream=True)
    events: list[ReplyEvent] = [TextDelta("a\nb"), ReplyFinished(reply(TextPart("a\nb")))]
    encoder = OPENAI_RESPONSES.encoder(OPENAI_RESPONSES.parse_request(value, ON_SOCKET))
    start = ReplyStarted(CALL_ID, "m", 1, 3)
    lines = b"".join([encoder.encode(start), encoder.keep_alive(), *map(encoder.encode, events)]).splitlines()
    sse = OPENAI_RESPONSES.encoder(parse(value))
    whole = b"".join([sse.encode(start), sse.keep_alive(), *map(sse.encode, events)])
    assert [json.loads(line) for line in lines] == [json.loads(event.data) for event in SseSplitter().feed(whole)]


# -- items -----------------------------------------------------------------------------------------------------------


def reasoning(**fields: Any) -> Json:
    return {"type": "reasoning", "summary": [], **fields}


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": "{}"}


def output(call_id: str, text: str = "ok") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_the_items_of_one_reply_are_one_message() -> None:
    thought = reasoning(summary=[{"type": "summary_text", "text": "Hm."}])
    assert messages(thought, said("I look."), call("c1"), call("c2"), output("c1"), output("c2"), said("Done.")) == (
        Message(
            "assistant",
            (
                ReasoningPart("Hm."),
                TextPart("I look."),
                ToolCallPart("c1", "bash", "{}"),
                ToolCallPart("c2", "bash", "{}"),
            ),
        ),
        Message("tool", (ToolResultPart("c1", (TextPart("ok"),)),)),
        Message("tool", (ToolResultPart("c2", (TextPart("ok"),)),)),
        Message("assistant", (TextPart("Done."),)),
    )


@pytest.mark.parametrize(
    ("items", "kinds"),
    [
        ([said("a"), said("b")], ["t", "t"]),
        ([call("c"), said("b")], ["c", "t"]),
        ([call("c"), reasoning(encrypted_content="x")], ["c", "r"]),
        ([said("a"), reasoning(encrypted_content="x"), said("b")], ["t", "rt"]),
        ([said(""), said("b")], ["t"]),
        ([reasoning(), said("b")], ["t"]),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], ["t", "t"]),
    ],
)
def test_what_no_reply_of_ours_could_be_starts_a_message_of_its_own(items: list[Json], kinds: list[str]) -> None:
    letters = {ReasoningPart: "r", TextPart: "t", ToolCallPart: "c"}
    parsed = messages(*items)
    assert ["".join(letters[type(part)] for part in message.parts) for message in parsed] == kinds


def test_reasoning_is_its_content_before_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    content = [{"type": "reasoning_text", "text": "c"}]
    for fields, expected in (
        ({"summary": summary, "content": None, "encrypted_content": "x"}, ReasoningPart("a\n\nb", "x")),
        ({"summary": summary, "content": content}, ReasoningPart("c")),
        ({"encrypted_content": "x"}, ReasoningPart("", "x")),
    ):
        assert messages(reasoning(**fields), said("d"))[0].parts[0] == expected


def test_an_agents_message_names_both_ends() -> None:
    content = [{"type": "input_text", "text": "Look."}, {"type": "encrypted_content", "encrypted_content": "Now."}]
    item = {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": content}
    (message,) = messages(item)
    assert message == Message("user", (TextPart("Message from /root to /root/a:"), TextPart("Look."), TextPart("Now.")))


def ours(text: str) -> str:
    return base64.b64encode(f"dgm-summary:{text}".encode()).decode()


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
def test_a_summary_of_ours_is_read_and_that_of_another_is_not(kind: str) -> None:
    assert messages({"type": kind, "encrypted_content": ours("Été")}) == (Message("user", (TextPart("Été"),)),)
    for foreign in ("U1VNTUFSWSBmYWtl", "not base64", "é", base64.b64encode(b"\xff").decode()):
        assert read_summary(foreign) is None
        opaque = messages({"type": kind, "encrypted_content": foreign})
        assert opaque == (Message("user", (TextPart(OPAQUE_SUMMARY),)),)


def test_a_call_that_ran_elsewhere_is_told_as_text() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "é"}}
    server = {"type": "tool_search_call", "execution": "server", "arguments": {}}
    assert messages(search, server) == (
        Message("assistant", (TextPart('[web_search_call] {"action":{"query":"é"}}'),)),
        Message("assistant", (TextPart('[tool_search_call] {"execution":"server","arguments":{}}'),)),
    )


def test_a_tool_search_that_found_nothing() -> None:
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []}
    assert messages(found) == (Message("tool", (ToolResultPart("c", (TextPart("No tools found."),)),)),)


def test_items_that_say_nothing() -> None:
    assert messages({"type": "configuration_update", "reasoning": {"effort": "low"}}, {"role": "user", "content": "a"})
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": ""}]}
    assert messages(refusal) == (Message("assistant", (TextPart("No."),)),)
    image = {"type": "input_image", "image_url": "data:;base64,AAAA"}
    assert parse(user(image)).messages == (Message("user", (ImagePart(None, "AAAA"),)),)


def test_what_sampling_and_format_were_asked() -> None:
    chat = parse(body(temperature=0, top_p=0.5, max_output_tokens=9, text={"format": {"type": "json_object"}}))
    assert chat.sampling == Sampling(temperature=0.0, top_p=0.5, max_tokens=9)
    assert chat.response_format == ResponseFormat("json_object")
    assert parse(body(text={"format": {"type": "text"}, "verbosity": "low"})).response_format is None


# -- tools -----------------------------------------------------------------------------------------------------------


def test_tool_choices() -> None:
    space = {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "x"}]}
    tools = [TOOL, {**TOOL, "name": "read"}, space, {"type": "web_search"}]
    chosen = parse(body(tools=tools, tool_choice={"type": "custom", "name": "x", "namespace": "n"}))
    assert chosen.tool_choice == ToolChoice("required", "n__x")
    assert response(chosen)["tool_choice"] == {"type": "custom", "name": "x"}
    assert parse(body(tools=tools, tool_choice="none")).tool_choice == ToolChoice("none")
    assert parse(body(tools=tools, tool_choice="required")).tool_choice == ToolChoice("required")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{**TOOL, "name": "read"}, {"type": "web_search"}]}
    some = parse(body(tools=tools, tool_choice=allowed, parallel_tool_calls=False))
    assert [tool.name for tool in some.tools] == ["read"]
    assert some.tool_choice == ToolChoice("required", parallel=False)
    assert parse(body(tools=tools, tool_choice={**allowed, "mode": "auto"})).tool_choice == ToolChoice("auto")


def test_a_tool_that_comes_again_takes_the_first_ones_place() -> None:
    more = {"type": "additional_tools", "role": "developer", "tools": [{**TOOL, "description": "new"}]}
    chat = parse(body(more, {"role": "user", "content": "a"}, tools=[TOOL, {**TOOL, "name": "read"}]))
    assert [(tool.name, tool.description) for tool in chat.tools] == [("bash", "new"), ("read", "")]


def response(chat: ChatRequest, *calls: tuple[str, str]) -> Json:
    parts = tuple(ToolCallPart(f"call_{CALL_ID}_{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    reply = Reply(CALL_ID, chat.model, 1, parts, "tool_calls", Usage(1, 1))
    return OPENAI_RESPONSES.render_reply(reply, chat)


@pytest.mark.parametrize(
    ("tool", "arguments", "item"),
    [
        ("custom", '{"input": "a", "more": 1}', {"input": '{"input": "a", "more": 1}'}),
        ("custom", '{"input": 1}', {"input": '{"input": 1}'}),
        ("custom", "", {"input": ""}),
        ("local_shell", '{"command": []}', {"type": "function_call", "arguments": '{"command": []}'}),
        ("local_shell", '{"command": ["a", 1]}', {"type": "function_call"}),
        ("local_shell", '{"command": ["a"], "timeout_ms": "1"}', {"type": "function_call"}),
        ("local_shell", '{"command": ["a"], "timeout_ms": true}', {"type": "function_call"}),
        ("local_shell", '{"command": ["a"], "working_directory": 1}', {"type": "function_call"}),
        ("local_shell", '{"command": ["a"], "type": "x"}', {"type": "function_call"}),
        ("local_shell", '{"command"', {"type": "function_call"}),
        ("tool_search", '{"query"', {"arguments": '{"query"'}),
        ("tool_search", "[1]", {"arguments": "[1]"}),
        ("tool_search", '{"a":' * 300 + "1" + "}" * 300, {"type": "tool_search_call"}),
    ],
)
def test_arguments_that_a_kind_cannot_hold_go_back_as_they_are(tool: str, arguments: str, item: Json) -> None:
    lists = {
        "custom": {"type": "custom", "name": "custom"},
        "local_shell": {"type": "local_shell"},
        "tool_search": {"type": "tool_search", "execution": "client"},
    }
    chat = parse(body(tools=[lists[tool]]))
    (made,) = response(chat, (tool, arguments))["output"]
    assert {"type": f"{tool}_tool_call" if tool == "custom" else f"{tool}_call", **item}.items() <= made.items()
    json.dumps(made)


def test_arguments_as_deep_as_json_can_be_written_break_no_stream() -> None:
    chat = parse(body(tools=[{"type": "tool_search", "execution": "client"}]))
    for levels in range(240, 260):
        call = ToolCallPart(f"call_{CALL_ID}_0", "tool_search", '{"a":' * levels + "1" + "}" * levels)
        encoder = OPENAI_RESPONSES.encoder(chat)
        encoder.encode(STARTED)
        assert encoder.encode(ReplyFinished(Reply(CALL_ID, "m", 1, (call,), "tool_calls", Usage(1, 1))))


@pytest.mark.parametrize("folder", sorted(CASES.iterdir()), ids=lambda folder: folder.name)
def test_a_reply_that_is_sent_back_says_what_was_sampled(folder: Path) -> None:
    described = json.loads((folder / "reply.json").read_text())
    if "error" in described or not described["parts"]:
        pytest.skip("there is nothing to send back")
    request = json.loads((folder / "request.json").read_text())
    items = [{"role": "user", "content": "?"}, *json.loads((folder / "response.json").read_text())["output"]]
    message = parse({**request, "input": items}).messages[-1]
    assert message.role == "assistant"
    for part, sampled in zip(message.parts, described["parts"], strict=True):
        match part:
            case ReasoningPart(text=text, signature=signature):
                assert (text, signature) == (sampled["text"], issue_signature(CALL_ID))
            case TextPart(text=text):
                assert text == sampled["text"]
            case ToolCallPart(id=call_id, name=name, arguments=arguments):
                assert call_id.startswith(f"call_{CALL_ID}_")
                assert name == sampled["name"]
                assert loaded(arguments) in (loaded(sampled["arguments"]), {"input": sampled["arguments"]})
            case _:
                pytest.fail(f"a reply holds {part}")


def loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# -- the stream ------------------------------------------------------------------------------------------------------

STARTED = ReplyStarted(CALL_ID, "m", 1, 12)


def stream(*events: ReplyEvent | None) -> bytes:
    """``None``: a keep-alive."""
    encoder = OPENAI_RESPONSES.encoder(parse(body()))
    return b"".join(encoder.keep_alive() if event is None else encoder.encode(event) for event in events)


def sdk(content: bytes, status: int = 200) -> openai.OpenAI:
    kind = "text/event-stream" if content.startswith(b"event:") else "application/json"

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind}, content=content)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="dgm_x", base_url="http://gateway/v1", http_client=http, max_retries=0)


def events_in(content: bytes) -> list[Json]:
    split = SseSplitter().feed(content)
    events = [json.loads(event.data) for event in split]
    assert [event.event for event in split] == [event["type"] for event in events]
    return events


def test_keep_alives_change_nothing() -> None:
    reply = Reply(CALL_ID, "m", 1, (ReasoningPart("ab"), TextPart("cd")), "stop", Usage(12, 4, 2))
    content = stream(
        *(STARTED, None, ReasoningDelta("a"), None, ReasoningDelta("b"), None, TextDelta("c"), None, TextDelta("d")),
        *(None, ReplyFinished(reply)),
    )
    events = events_in(content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert sum(event["type"] == "response.in_progress" for event in events) == 6
    with sdk(content).responses.stream(model="m", input="Hi") as accumulated:
        final = accumulated.get_final_response()
    assert final.output_text == "cd"
    assert final.usage is not None
    assert final.usage.total_tokens == 16


def test_an_event_before_the_start_is_a_mistake_of_ours() -> None:
    with pytest.raises(RuntimeError, match="before ReplyStarted"):
        stream(None)


def test_a_cut_reply_says_so_and_still_completes() -> None:
    reply = Reply(CALL_ID, "m", 1, (TextPart("ab"),), "length", Usage(12, 4))
    events = events_in(stream(STARTED, TextDelta("ab"), ReplyFinished(reply)))
    assert [event["item"]["status"] for event in events if "item" in event] == ["in_progress", "incomplete"]
    assert events[-1]["type"] == "response.completed"  # at response.incomplete Codex's run fails
    assert events[-1]["response"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineFailed("the engine died"), "server_error", "Internal server error: the engine died"),
        (Overloaded("later"), "server_error", "Overloaded: later"),
        (ValueError("secret"), "server_error", "Internal server error: the gateway failed while making this reply"),
        (InvalidRequest("input: bad", field="input"), "invalid_prompt", "input: bad"),
        (
            ContextTooLong(9, 8),
            "context_length_exceeded",
            "Your input exceeds the context window of this model. Please adjust your input and try again. "
            "(9 tokens; the limit is 8)",
        ),
    ],
)
def test_a_failure_in_the_stream(error: Exception, code: str, message: str) -> None:
    content = stream(STARTED, TextDelta("half"), ReplyFailed(error))
    *_, first, last = events_in(content)
    assert (first["type"], first["code"], first["message"]) == ("error", code, message)
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": code, "message": message}
    assert last["response"]["status"] == "failed"
    assert last["response"]["id"] == f"resp_{CALL_ID}"
    with pytest.raises(openai.APIError, match=message.replace("(", r"\(").replace(")", r"\)")):
        list(sdk(content).responses.create(model="m", input="Hi", stream=True))


@pytest.mark.parametrize("error", [Overloaded("later"), EngineFailed("died")])
def test_codex_may_try_again(error: DragomanError) -> None:
    # It gives up at once on these two.
    assert OPENAI_RESPONSES.error_body(error, None)["error"]["code"] not in ("server_is_overloaded", "slow_down")


def test_tokens_are_counted_in_the_sdks_form() -> None:
    content = json.dumps(OPENAI_RESPONSES.render_count(7)).encode()
    assert sdk(content).responses.input_tokens.count(model="m", input="Hi").to_dict() == json.loads(content)


# -- recorded requests -----------------------------------------------------------------------------------------------

LEFT_OUT = {"web_search"}
needs_wire = pytest.mark.skipif(WIRE is None, reason="DRAGOMAN_WIRE names no folder of recorded requests")


def recordings() -> list[Any]:
    found = []
    for path in sorted(Path(WIRE or "/nowhere").glob("*.json")):
        record = json.loads(path.read_text())
        if record.get("method") == "POST" and (record.get("path") or "").endswith("/responses"):
            found.append(pytest.param(record["path"], record["body"], id=path.name))
    return found


def wire_texts(content: Any) -> list[str]:
    """Texts of a raw content or output."""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def wire_name(item: Json) -> str:
    return f"{item['namespace']}__{item['name']}" if "namespace" in item else str(item["name"])


def raw_item(item: Json) -> list[str]:
    """Everything that a raw item says, in the notation of ``kept``."""
    match item.get("type", "message"):
        case "message":
            return wire_texts(item["content"])
        case "reasoning":
            return [*wire_texts(item["summary"]), item["encrypted_content"]]
        case "function_call":
            return [item["call_id"], wire_name(item), item["arguments"]]
        case "custom_tool_call":
            return [item["call_id"], wire_name(item), "input", item["input"]]
        case "function_call_output" | "custom_tool_call_output":
            return [item["call_id"], *wire_texts(item["output"])]
        case "compaction":
            return [OPAQUE_SUMMARY]
        case "compaction_trigger":
            return [part.text for part in SUMMARISE.parts if isinstance(part, TextPart)]
        case "additional_tools":
            return []
    raise AssertionError(f"a recording has an item that this test does not know: {item}")


def kept(part: Part, custom: set[str]) -> Iterator[str]:
    match part:
        case TextPart(text=text):
            yield text
        case ReasoningPart(text=text, signature=signature):
            yield from (text, signature or "")
        case ToolCallPart(id=call_id, name=name, arguments=arguments):
            yield from (call_id, name)
            if name in custom:
                ((key, text),) = json.loads(arguments).items()
                yield from (key, text)
            else:
                yield arguments
        case ToolResultPart(call_id=call_id, parts=parts):
            yield call_id
            for inner in parts:
                yield from kept(inner, custom)
        case ImagePart():
            raise AssertionError("no recording holds an image")


def raw_tools(listed: list[Json], namespace: Json | None = None) -> Iterator[tuple[str, list[str], Json | None]]:
    """Of every tool that is to be shown: its name, the texts in its description, its parameters."""
    before = [namespace["description"]] if namespace else []
    for tool in listed:
        match tool["type"]:
            case "namespace":
                yield from raw_tools(tool["tools"], tool)
            case "function" | "custom" | "tool_search":
                named = {"name": tool["type"], **tool, **({"namespace": namespace["name"]} if namespace else {})}
                grammar = [tool["format"]["definition"]] if "format" in tool else []
                yield wire_name(named), [*before, tool["description"], *grammar], tool.get("parameters")
                before = []
            case kind:
                assert kind in LEFT_OUT


@needs_wire
@pytest.mark.parametrize(("path", "value"), recordings())
def test_recorded_request(path: str, value: Json) -> None:
    route = OPENAI_RESPONSES.route("POST", path)
    assert route is not None
    chat = OPENAI_RESPONSES.parse_request(value, route)
    said = value["input"]
    items: list[Json] = [{"role": "user", "content": said}] if isinstance(said, str) else said
    brought = [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
    expected = list(raw_tools([*value.get("tools", []), *brought]))
    assert [tool.name for tool in chat.tools] == [tool for tool, _, _ in expected]
    for tool, (_, texts, parameters) in zip(chat.tools, expected, strict=True):
        assert all(text in tool.description for text in texts)
        assert parameters is None or tool.parameters == parameters
    custom = {tool.name for tool in chat.tools if tool.kind == "custom"}
    in_order = [text for message in chat.messages for part in message.parts for text in kept(part, custom)]
    assert in_order == [text for item in items for text in raw_item(item)]
    roles = Counter(message.role for message in chat.messages)
    raw = Counter(item.get("role") for item in items if item.get("type") in (None, "message"))
    assert roles["system"] == raw["developer"] + raw["system"]
    assert roles["user"] == raw["user"] + sum(str(item.get("type")).startswith("compaction") for item in items)
    assert roles["tool"] == sum(str(item.get("type")).endswith("_output") for item in items)
    assert chat.model == value["model"]
    assert chat.stream == value.get("stream", False)
    assert chat.sampling.max_tokens == value.get("max_output_tokens")
    assert chat.tool_choice.parallel == value.get("parallel_tool_calls", True)


@needs_wire
def test_the_recordings_are_there() -> None:
    assert len(recordings()) >= 38
