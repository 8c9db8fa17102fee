"""What a proxy saw against what is stored: calls meet at the id in the reply."""

from dataclasses import replace
from typing import Any

import pytest

from dragoman.store.call_facts import CallFacts
from dragoman.store.flow_calls import FlowCall, SocketMessage, compare_with_flows, find_call_id, socket_calls

ID = "abcdefghij0123456789"
OTHER = "zzzzzzzzzzzzzzzzzzz0"


@pytest.mark.parametrize(
    "reply",
    [
        f'{{"id":"msg_{ID}","type":"message","role":"assistant"}}',
        f'event: message_start\ndata: {{"type":"message_start","message":{{"id":"msg_{ID}","type":"message"}}}}\n\n',
        f'data: {{"id":"chatcmpl-{ID}","object":"chat.completion.chunk"}}\n\n',
        f'{{"id":"cmpl-{ID}","object":"text_completion"}}',
        f'   {{"id": "resp_{ID}", "object": "response"}}',
        f'{{"candidates":[],"responseId":"{ID}"}}',
        f'{{"type":"error","error":{{"type":"api_error"}},"request_id":"req_{ID}"}}',
        f'{{"id":"msg_{ID}","content":[{{"id":"toolu_{OTHER}_0"}},{{"text":"{{\\"id\\":\\"msg_{OTHER}\\"}}"}}]}}',
        f'{{"candidates":[{{"text":"{{\\"id\\":\\"msg_{OTHER}\\"}}"}}],"responseId":"{ID}"}}',
    ],
)
def test_the_id_in_a_reply(reply: str) -> None:
    assert find_call_id(reply.encode()) == ID


@pytest.mark.parametrize("reply", ["", '{"error":{"message":"no"}}', '{"request_id":null}', '{"id":"msg_short"}'])
def test_a_reply_without_one(reply: str) -> None:
    assert find_call_id(reply.encode()) is None


def call(call_id: str, status: str = "answered", http_status: int | None = 200, **more: Any) -> CallFacts:
    facts = CallFacts(call_id, "e1", "/v1/messages", 10.0, "main", None, "answered")
    return replace(facts, status=status, http_status=http_status, **more)  # type: ignore[arg-type]


def flow(call_id: str | None, status: int | None = 200, path: str = "/v1/messages") -> FlowCall:
    return FlowCall(path, 10.0, status, call_id)


STORED = [
    call("a"),
    call("b"),
    call("b2", retry_of="b"),
    call("long", "refused", 400),
    call("gone", "aborted", 499),
    call("killed", "aborted", None),
    call("open", "arrived", None),
]
SEEN = [flow("a"), flow("b"), flow("b"), flow(None, 400), flow(None, None)]


def test_both_agree() -> None:
    assert compare_with_flows(STORED, SEEN) == ()
    assert compare_with_flows([], []) == ()


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ([*SEEN, flow("c")], "a flow of /v1/messages with status 200 was answered as call 'c', which is not stored"),
        (
            [*SEEN, flow("a")],
            "a flow of /v1/messages with status 200 has the reply of call 'a' once more than is stored",
        ),
        ([*SEEN, flow(None, 500)], "a flow of /v1/messages with status 500 is not stored"),
        ([*SEEN, flow(None, 400)], "a flow of /v1/messages with status 400 is not stored"),
        (
            [*SEEN[:3], flow(None, 400, "/v1/responses"), SEEN[4]],
            "a flow of /v1/responses with status 400 is not stored",
        ),
        (SEEN[1:], "call 'a' was answered, but is in no flow"),
        ([SEEN[0], *SEEN[2:-1]], "call 'b2' was answered, but is in no flow"),
    ],
)
def test_they_differ(seen: list[FlowCall], problem: str) -> None:
    assert compare_with_flows(STORED, seen) == (problem,)


def test_a_client_that_left_before_any_reply_and_came_again() -> None:
    """The first flow of the retried call holds nothing, the second names the first call."""
    assert compare_with_flows([call("b"), call("b2", retry_of="b")], [flow(None, None), flow("b")]) == ()


def test_a_flow_that_could_be_any_call_takes_none_that_another_flow_needs() -> None:
    assert (
        compare_with_flows([call("x", "refused", 400), call("y", "aborted", 499)], [flow(None, None), flow(None, 400)])
        == ()
    )
    left = compare_with_flows([call("x", "refused", 400)], [flow(None, None), flow(None, 400)])
    assert left == ("a flow of /v1/messages without a reply is not stored",)


def test_an_observed_reply_carries_its_providers_id() -> None:
    """Which may look like one of ours, where the provider is a gateway like this one."""
    stored = [call("a", "observed"), call("b", "observed")]
    assert compare_with_flows(stored, [flow("theirs1"), flow(None)]) == ()
    assert len(compare_with_flows(stored, [flow("theirs1")])) == 1
    assert len(compare_with_flows(stored, [flow("theirs1"), flow("theirs2"), flow("theirs3")])) == 1


def test_requests_that_never_became_calls() -> None:
    assert compare_with_flows([], [flow(None, status) for status in (401, 403, 404, 407)]) == ()
    assert compare_with_flows([call("x", "refused", 404)], [flow(None, 404)]) == ()


# -- WebSockets ------------------------------------------------------------------------------------------------------


def asks(at: float, text: str = '{"type": "response.create", "input": []}') -> SocketMessage:
    return SocketMessage(True, at, text.encode())


def says(text: str) -> SocketMessage:
    return SocketMessage(False, 99.0, text.encode())


def replies(call_id: str) -> list[SocketMessage]:
    """Begun, an item, and ended."""
    events = [f'{{"type":"response.{kind}","response":{{"id":"resp_{call_id}"}}}}' for kind in ("created", "completed")]
    item = f'{{"type":"response.output_item.added","item":{{"id":"msg_{call_id}_0"}}}}'
    return [says(events[0]), says(item), says(events[1])]


def test_the_calls_of_a_socket_are_its_requests_in_order() -> None:
    messages = [asks(1.0), *replies(ID), asks(2.0), asks(3.0), *replies(OTHER), says('{"type":"error","status":400}')]

    assert list(socket_calls("/v1/responses", messages)) == [
        FlowCall("/v1/responses", 1.0, 200, ID),
        FlowCall("/v1/responses", 2.0, 200, OTHER),
        FlowCall("/v1/responses", 3.0, 400, None),
    ]


def test_a_refusal_on_a_socket_may_name_its_call() -> None:
    refusal = says(f'{{"type":"error","status":400,"error":{{}},"headers":{{"x-request-id":"req_{ID}"}}}}')

    assert list(socket_calls("/p", [asks(1.0, "{no json"), refusal, asks(2.0), *replies(OTHER)])) == [
        FlowCall("/p", 1.0, 400, ID),
        FlowCall("/p", 2.0, 200, OTHER),
    ]


def test_what_is_no_request_on_a_socket_is_no_call() -> None:
    steer = asks(1.0, '{"type": "response.steer"}')

    assert list(socket_calls("/p", [steer, says('{"type":"error","status":400}'), asks(2.0), *replies(ID)])) == [
        FlowCall("/p", 2.0, 200, ID)
    ]


def test_what_a_socket_never_answered_is_left_out() -> None:
    assert list(socket_calls("/p", [asks(1.0), *replies(ID), asks(2.0), asks(3.0)])) == [FlowCall("/p", 1.0, 200, ID)]
