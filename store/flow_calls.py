"""The calls that a proxy saw, held against the calls that are stored. Pure.

A saved flow says nothing of the store, so each can find the other wrong. They meet at the call id that a reply carries:
in every whole and streamed reply, in Anthropic's errors, and in those on a WebSocket. Other errors carry none, and a
client may leave before a reply has begun: such flows are matched with what is left by path and status.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dragoman.store.call_facts import CallFacts

# The quotes are bare: inside a string of the reply they would follow a backslash, so no text that was sampled matches.
_REPLY_ID = re.compile(
    rb'"(?:id"\s*:\s*"(?:msg|chatcmpl|cmpl|resp)[-_]|(?:request_id|x-request-id)"\s*:\s*"req_|responseId"\s*:\s*")'
    rb'([a-z0-9]{20})[_"]'
)
NO_CALL = frozenset({401, 403, 404, 407})
"""Statuses of requests that never became calls: their credentials or paths were wrong."""

ANSWERED = frozenset({"answered", "observed"})


@dataclass(frozen=True, slots=True)
class FlowCall:
    """A request on a generation route, as a proxy saw it."""

    path: str
    """Without query and credentials."""
    started_at: float
    """Unix seconds at which the request began."""
    status: int | None
    """``None``: the client left before the reply began."""
    call_id: str | None
    """The id in the reply; ``None``: it names none."""


@dataclass(frozen=True, slots=True)
class SocketMessage:
    """A message of a WebSocket, as a proxy saw it."""

    from_client: bool
    at: float
    """Unix seconds."""
    content: bytes


def socket_calls(path: str, messages: Iterable[SocketMessage]) -> Iterator[FlowCall]:
    """The calls that went over one WebSocket of the Responses API and were answered.

    Requests are answered one after another: the next one's answer begins with the first event of another call, or is an
    ``error``. What is not answered when the socket closes may only have waited, and then was no call: it is left out.
    """
    waiting: deque[tuple[float, bool]] = deque()  # when each came, and whether it asks for a reply
    last: str | None = None
    for message in messages:
        kind, status = _read(message.content)
        if message.from_client:
            waiting.append((message.at, kind in ("response.create", None)))
            continue
        call_id = find_call_id(message.content)
        if kind == "error" or call_id not in (None, last):
            at, asks = waiting.popleft() if waiting else (message.at, True)
            if asks:
                yield FlowCall(path, at, status if kind == "error" else 200, call_id)
            last = call_id or last


def _read(content: bytes) -> tuple[str | None, int | None]:
    """Type and status of a message; ``None``: it names none, or is no JSON object."""
    try:
        value = json.loads(content)
    except ValueError:
        return None, None
    return (value.get("type"), value.get("status")) if isinstance(value, dict) else (None, None)


def find_call_id(reply: bytes) -> str | None:
    """The id of the call that a reply answers, whole or streamed, in any dialect."""
    match = _REPLY_ID.search(reply)
    return match[1].decode() if match else None


def compare_with_flows(calls: Sequence[CallFacts], flows: Sequence[FlowCall]) -> tuple[str, ...]:
    """What one side has and the other has not, one sentence each; empty when they agree.

    ``calls``: everything that arrived since the first flow began. Every flow must be a stored call, and every stored
    call that was answered must be a flow. A retry's reply names the call that it was first sampled for; that id may
    stand in as many flows as there are calls with this reply.
    """
    left: dict[str, list[CallFacts]] = defaultdict(list)
    for call in calls:
        left[call.retry_of or call.id].append(call)
    problems: list[str] = []
    nameless: list[FlowCall] = []
    observing = any(call.status == "observed" for call in calls)  # then a reply's id is its provider's, not ours
    for flow in flows:
        if flow.call_id is None or (observing and flow.call_id not in left):
            nameless.append(flow)
        elif flow.call_id not in left:
            problems.append(f"{_say(flow)} was answered as call {flow.call_id!r}, which is not stored")
        elif not left[flow.call_id]:
            problems.append(f"{_say(flow)} has the reply of call {flow.call_id!r} once more than is stored")
        else:
            left[flow.call_id].pop(0)
    rest = [call for remaining in left.values() for call in remaining]
    rest.sort(key=lambda call: call.status != "aborted")  # a client that left is most likely the client of these
    nameless.sort(key=lambda flow: flow.status is None)  # those that could be any call come last
    for flow in nameless:
        fitting = next((c for c in rest if c.path == flow.path and flow.status in (None, c.http_status)), None)
        if fitting is not None:
            rest.remove(fitting)
        elif flow.status not in NO_CALL:
            problems.append(f"{_say(flow)} is not stored")
    problems += [f"call {call.id!r} was answered, but is in no flow" for call in rest if call.status in ANSWERED]
    return tuple(problems)


def _say(flow: FlowCall) -> str:
    ended = "without a reply" if flow.status is None else f"with status {flow.status}"
    return f"a flow of {flow.path} {ended}"
