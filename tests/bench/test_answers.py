"""The rules for answers, each with an answer that breaks it."""

import json
from typing import Any

import pytest

from bench.answers import dialect_of, names_a_field, problems
from bench.asgi import Answer
from bench.mutations import Dialect, Request

KNOWN = frozenset({"messages"})
JSON = {"content-type": "application/json"}
STREAM = {"content-type": "text/event-stream"}


def asked(dialect: Dialect = "anthropic", *, leaves: Any = None) -> Request:
    return Request(dialect, "POST", "/v1/x", "", (), b"{}", leaves, (), frozenset({"tools"}))


def refusal(message: str, status: int = 400) -> Answer:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return Answer(status, JSON, json.dumps(body).encode())


@pytest.mark.parametrize("message", ["messages: no", "tools[0].name: no", "the request body is not valid JSON: no"])
def test_a_refusal_names_what_is_wrong(message: str) -> None:
    assert problems(asked(), refusal(message), KNOWN) == []


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (refusal("something is wrong"), "names no field"),
        (refusal("contents: of another dialect"), "names no field"),
        (refusal(" "), "without a message"),
        (refusal("messages: no", 500), "status 500"),
        (Answer(400, {}, b"Bad Request"), "no dialect's shape"),
        (Answer(400, JSON, b'{"error": "no"}'), "no dialect's shape"),
        (Answer(0, {}, b""), "status 0"),
        (Answer(200, JSON, b'{"a":'), "no JSON"),
        (Answer(200, JSON, b'{"error":{}}'), "holds an error"),
        (Answer(200, STREAM, b"data: {}\n"), "in the middle of an event"),
        (Answer(200, STREAM, b"data: {\n\n"), "an event that is no JSON"),
        (Answer(200, STREAM, b'data: {"type":"error","error":{}}\n\n'), "an error in a stream"),
        (Answer(200, STREAM, b'data: {"type":"ping"}\n\n'), "a stream that ends with"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(answer: Answer, word: str) -> None:
    (problem,) = problems(asked(), answer, KNOWN)
    assert word in problem


@pytest.mark.parametrize(
    ("dialect", "end"),
    [
        ("anthropic", '{"type": "message_stop"}'),
        ("openai_chat", "[DONE]"),
        ("openai_responses", '{"type": "response.completed"}'),
        ("google", '{"candidates": [{"finishReason": "STOP"}]}'),
    ],
)
def test_each_dialects_stream_has_an_end_of_its_own(dialect: Dialect, end: str) -> None:
    answer = Answer(200, STREAM, f'data: {{"a": 1}}\n\ndata: {end}\n\n'.encode())
    assert problems(asked(dialect), answer, KNOWN) == []
    others: tuple[Dialect, ...] = ("anthropic", "openai_chat", "openai_responses", "google")
    assert all(problems(asked(other), answer, KNOWN) for other in others if other != dialect)


def test_a_client_that_left_has_no_claim_to_an_answer() -> None:
    assert problems(asked(leaves="reading"), Answer(499, {}, b""), KNOWN) == []
    assert problems(asked(leaves="reading"), Answer(500, {}, b""), KNOWN) != []


def test_googles_error_repeats_its_status() -> None:
    body = b'{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}'
    assert dialect_of(Answer(400, JSON, body)) == "google"
    assert dialect_of(Answer(404, JSON, body)) is None


def test_where_a_dialect_has_a_place_for_the_field_it_counts() -> None:
    assert names_a_field("no such thing", "messages[0].content", KNOWN)
    assert not names_a_field("messages: no", "prompt", KNOWN)
    assert not names_a_field("unknown field ''", "", KNOWN)
    assert names_a_field("unknown field ''", "", KNOWN | {""})
