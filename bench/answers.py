"""What every answer of the gateway must be like, whatever was asked. Pure.

An error has the dialect's own shape, a message, and names what is wrong: a 400 begins with a field that the request
has or its dialect knows, or says that the body as such cannot be read. A reply is JSON, or a stream that ends as its
dialect ends one.
"""

import json
import re
from typing import Any

from bench.asgi import Answer
from bench.mutations import Dialect, Request

# Of a body that is no JSON object at all there is no field to name, nor of a call that is too long or a refused path.
_UNREAD = re.compile(
    r"the request body (is not valid JSON|must be a JSON object)|the body is not valid \w+ data|"
    r"unsupported Content-Encoding|prompt is too long: \d+|This model's maximum context length is \d+|"
    r"The input token count \(\d+\)|Your input exceeds the context window of this model"
)
_FIELD = re.compile(r"'?([\w$-]+)'?")


def problems(request: Request, answer: Answer, known: frozenset[str]) -> list[str]:
    """What is wrong with an answer; empty: nothing. ``known``: the fields that the request's dialect has."""
    if answer.status in (0, 499) and request.leaves is not None:
        return []
    if answer.status >= 500 or answer.status < 200:
        return [f"status {answer.status}: {answer.body[:300]!r}"]
    if answer.status >= 400:
        return _refusal(request, answer, known)
    if request.method in ("HEAD", "OPTIONS"):
        return []
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return [] if request.leaves is not None else _stream(request, answer.body)
    try:
        value = json.loads(answer.body)
    except ValueError:
        return [] if request.leaves is not None else [f"a {answer.status} whose body is no JSON: {answer.body[:100]!r}"]
    last = value[-1] if isinstance(value, list) and value else value
    if not isinstance(last, dict) or last.get("error") is not None:
        return [f"a {answer.status} that holds an error: {answer.body[:300]!r}"]
    return []


def dialect_of(answer: Answer) -> Dialect | None:
    """Whose shape an error has; ``None``: nobody's."""
    try:
        match json.loads(answer.body):
            case {"type": "error", "error": {"type": str(), "message": str()}}:
                return "anthropic"
            case {"error": {"message": str(), "type": str(), "param": _, "code": _}}:
                return "openai_chat"
            case {"error": {"code": int() as code, "message": str(), "status": str()}} if code == answer.status:
                return "google"
            case {"error": {"code": str(), "message": str(), "field": _}}:
                return "control"
    except ValueError:
        pass
    return None


def _refusal(request: Request, answer: Answer, known: frozenset[str]) -> list[str]:
    shape = dialect_of(answer)
    if shape is None:
        if request.method == "HEAD" or answer.body == b"{}":  # the table of side answers
            return []
        return [f"a {answer.status} in no dialect's shape: {answer.body[:300]!r}"]
    error = json.loads(answer.body)["error"]
    message = error["message"]
    if not message.strip():
        return [f"a {answer.status} without a message"]
    if answer.status in (400, 422) and not names_a_field(
        message, error.get("param", error.get("field")), request.fields | known
    ):
        return [f"a {answer.status} that names no field: {message[:300]!r}"]
    return []


def names_a_field(message: str, at: str | None, fields: frozenset[str]) -> bool:
    """``at``: where the error says beside its message; ``None``: its dialect has no place for that."""
    if _UNREAD.match(message) or (at is not None and at in fields):  # a field's name may well be empty
        return True
    found = _FIELD.match(at or message)
    return found is not None and found[1] in fields


def _stream(request: Request, body: bytes) -> list[str]:
    if not body.endswith(b"\n\n"):
        return [f"a stream that ends in the middle of an event: {body[-100:]!r}"]
    events: list[Any] = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        data = "\n".join(line[6:] for line in block.split("\n") if line.startswith("data: "))
        try:
            events.append("[DONE]" if data == "[DONE]" else json.loads(data))
        except ValueError:
            return [f"an event that is no JSON: {block[:200]!r}"]
    broken = [event for event in events if isinstance(event, dict) and (event.get("error") or _failed(event))]
    if broken:
        return [f"an error in a stream: {str(broken[0])[:300]}"]
    last = events[-1]
    match request.dialect if not request.path.endswith("completions") else "openai_chat":
        case "anthropic":
            ended = last == {"type": "message_stop"}
        case "openai_chat":
            ended = last == "[DONE]"
        case "openai_responses":
            ended = isinstance(last, dict) and last.get("type") in ("response.completed", "response.incomplete")
        case _:
            ended = isinstance(last, dict) and "finishReason" in (last.get("candidates") or [{}])[0]
    return [] if ended else [f"a stream that ends with {str(last)[:200]}"]


def _failed(event: dict[str, Any]) -> bool:
    return event.get("type") in ("error", "response.failed")
