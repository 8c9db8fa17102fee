"""What changes between requests, which ids come back, what names a session."""

import base64
from typing import Any

from dragoman.rollout.probe.compare import changes, extra_headers, id_places, session_places
from dragoman.rollout.probe.records import SeenRequest

USER = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}


def _request(body: dict[str, Any], **headers: str) -> SeenRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return SeenRequest(1.0, "anthropic", "base-url", "127.0.0.1", 200, None, named, body)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    return changes(_request(before), _request(after))


def test_a_conversation_that_only_grows_changes_nothing() -> None:
    more = {"role": "assistant", "content": "yes"}

    assert _changes({"messages": [USER], "stream": True}, {"messages": [USER, more], "stream": False}) == ()


def test_what_is_changed_is_named_by_its_place() -> None:
    plain = {"role": "user", "content": [{"type": "text", "text": "hi"}]}

    assert _changes({"messages": [USER]}, {"messages": [plain]}) == ("messages.content.cache_control taken away",)
    assert _changes({"messages": [plain]}, {"messages": [USER]}) == ("messages.content.cache_control added",)
    assert _changes({"messages": [USER]}, {"messages": [{"role": "user", "content": "hi"}]}) == (
        "messages.content: a list became a text",
    )
    assert _changes({"input": [USER, USER]}, {"input": [USER]}) == ("input: 2 items became 1",)
    assert _changes({"messages": [{"content": "a"}]}, {"messages": [{"content": "b"}]}) == ("messages.content changed",)
    assert _changes({"messages": [], "system": "a"}, {"messages": [], "system": "b"}) == ("system changed",)
    assert _changes({"messages": [], "tools": [1]}, {"messages": [], "tools": [1, 2]}) == ("tools: 1 items became 2",)
    assert _changes({"messages": []}, {}) == ("messages is gone",)


def test_a_request_that_goes_on_by_an_id_repeats_nothing() -> None:
    assert _changes({"input": [USER, USER]}, {"input": [USER], "previous_response_id": "resp_1"}) == ()


def test_ids_are_found_where_they_come_back_also_in_signatures() -> None:
    name = "abcdefghij0123456789"
    call = {"type": "tool_use", "id": f"toolu_{name}_0", "input": {}}
    thought = {"type": "thinking", "signature": base64.b64encode(f"dgm:{name}".encode()).decode()}
    body = {"messages": [{"content": [thought, call]}, {"content": [{"tool_use_id": f"toolu_{name}_0"}]}]}

    assert id_places(_request(body), [name]) == (
        "messages.content.id",
        "messages.content.signature",
        "messages.content.tool_use_id",
    )
    assert id_places(_request(body), ["zzzzzzzzzz0123456789"]) == ()


def test_a_session_is_what_stays_within_a_run_and_differs_between_runs() -> None:
    def asked(session: str, request: str) -> SeenRequest:
        body = {
            "prompt_cache_key": session,
            "model": "gpt-5000",
            "messages": [],
            "metadata": {"user_id": f"u{session}"},
        }
        headers = {"session_id": session, "x_request": request, "x_install": "install-0001", "host": "127.0.0.1:4242"}
        return _request(body, **headers)

    first = [asked("session-1111", "request-0001"), asked("session-1111", "request-0002")]
    second = [asked("session-2222", "request-0003")]

    assert session_places(first, second) == ("body: metadata.user_id", "body: prompt_cache_key", "session-id")
    assert session_places(first, first) == ()
    assert session_places(first, []) == ()


def test_headers_of_a_request_alone() -> None:
    assert extra_headers(_request({}, a="1", b="2"), [_request({}, a="3")]) == ("b",)
