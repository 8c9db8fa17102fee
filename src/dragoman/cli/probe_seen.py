"""What the store and the saved flows know of a probe's runs, as the probe's own records."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.rollout.probe.records import Echo, Mark, SeenCall, SeenRequest
from dragoman.rollout.probe.tools import OfferedTool
from dragoman.store.records import CallInfo, JsonObject

if TYPE_CHECKING:
    from mitmproxy.http import HTTPFlow
    from sqlalchemy.orm import Session

    from dragoman.addons.messages import Message, Part

_MARK = re.compile(rb"ran-(\d+)")
OBJECTS = ("anthropic", "google")
"""Dialects in which a call's arguments are an object, so that their text is nobody's."""


def seen_calls(session: "Session", episode_id: str) -> tuple[SeenCall, ...]:
    """An episode's calls in the order in which they arrived."""
    from dragoman.addons.blobs import read_message
    from dragoman.addons.canonical import carried
    from dragoman.store.calls import read_calls, read_messages

    calls = read_calls(session, episode_id)
    said: dict[str, tuple[Message, ...]] = {}
    replayed: set[str] = set()
    found = []
    for call in calls:
        data = read_messages(session, call.arrival.id)
        said[call.arrival.id] = messages = carried(tuple(read_message(one) for one in data))
        echoes = []
        for at, message in enumerate(messages):
            if message.role != "assistant":
                continue
            origin = _origin(call, at, message, calls, said)
            if origin is not None and origin.arrival.id not in replayed:
                replayed.add(origin.arrival.id)
                echoes.append(echo_of(origin, message))
        found.append(_seen(call, frozenset(int(one) for one in _MARK.findall(b"\n".join(data))), tuple(echoes)))
    return tuple(found)


def _origin(
    call: CallInfo, at: int, message: "Message", calls: Sequence[CallInfo], said: "dict[str, tuple[Message, ...]]"
) -> CallInfo | None:
    """Which call's reply an assistant's message replays: by its tool-call ids, else by its place behind the parent."""
    from dragoman.addons.canonical import echoed_call_ids

    ids = " ".join(echoed_call_ids(message))
    parent = None if call.outcome is None else call.outcome.parent_id
    for earlier in calls:
        name = earlier.arrival.id
        if earlier.outcome is None or earlier.outcome.reply is None or name == call.arrival.id:
            continue
        if name in ids or (name == parent and not ids and at == len(said.get(name, ()))):
            return earlier
    return None


def echo_of(origin: CallInfo, echoed: "Message") -> Echo:
    """How ``echoed`` replays the reply of ``origin``, which has one."""
    from dragoman.addons.blobs import read_message
    from dragoman.addons.messages import ReasoningPart, ToolCallPart
    from dragoman.addons.providers.base import read_signature

    assert origin.outcome is not None
    assert origin.outcome.reply is not None
    ours = read_message(origin.outcome.reply.data).parts
    calls = [[part for part in parts if isinstance(part, ToolCallPart)] for parts in (ours, echoed.parts)]
    thoughts = [[part for part in parts if isinstance(part, ReasoningPart)] for parts in (ours, echoed.parts)]
    pairs = list(zip(*calls, strict=False))
    arguments: list[Mark] = []
    ids: list[Mark] = []
    for one, other in pairs:
        same = one.arguments == other.arguments
        if origin.arrival.provider in OBJECTS:
            same = _json(one.arguments) == _json(other.arguments)
        arguments.append("same" if same else "changed")
        ids.append("same" if one.id == other.id else "changed" if origin.arrival.id in other.id else "missing")
    if len(calls[1]) < len(calls[0]):
        arguments.append("missing")
        ids.append("missing")
    signature: Mark = "none"
    if thoughts[0] and origin.arrival.provider in ("anthropic", "openai_responses"):
        signed = any(read_signature(part.signature or "") == origin.arrival.id for part in thoughts[1])
        signature = "same" if signed else "missing"
    return Echo(
        text=_text_mark(_text(ours), _text(echoed.parts)),
        arguments=_worst(arguments),
        reasoning=_text_mark("".join(p.text for p in thoughts[0]), "".join(p.text for p in thoughts[1])),
        signature=signature,
        tool_ids=_worst(ids),
        call=f"{calls[1][0].name} {calls[1][0].arguments}" if calls[1] else "",
    )


def _worst(marks: Sequence[Mark]) -> Mark:
    order: tuple[Mark, ...] = ("none", "same", "changed", "missing")
    return max(marks, key=order.index, default="none")


def _text_mark(ours: str, echoed: str) -> Mark:
    if not ours:
        return "none"
    return "same" if ours == echoed else "changed" if echoed.strip() else "missing"


def _text(parts: "Sequence[Part]") -> str:
    from dragoman.addons.messages import TextPart

    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _json(text: str) -> object:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def _seen(call: CallInfo, marks: frozenset[int], echoes: tuple[Echo, ...]) -> SeenCall:
    from dragoman.addons.blobs import read_message, read_tools

    arrival, outcome = call.arrival, call.outcome
    seen = SeenCall(
        id=arrival.id,
        kind=arrival.kind,
        status="arrived",
        error=None,
        provider=arrival.provider,
        harness=arrival.harness,
        thread=arrival.thread,
        stream=None,
        parent_id=None,
        turn="open",
        tools=(),
        said="",
        marks=marks,
    )
    if outcome is None:
        return seen
    turn = outcome.fork_reason or ("start" if outcome.parent_id is None else "exact")
    return replace(
        seen,
        status=outcome.status,
        error=outcome.error_message,
        stream=outcome.stream,
        parent_id=outcome.parent_id,
        turn=turn,
        tools=tuple(OfferedTool(tool.name, tool.description, tool.parameters) for tool in read_tools(outcome.tools)),
        said="" if outcome.reply is None else _text(read_message(outcome.reply.data).parts),
        echoes=echoes,
    )


def seen_requests(file: Path) -> Iterator[SeenRequest]:
    """The requests for replies in a file of saved flows, in the order in which they ended."""
    from mitmproxy.http import HTTPFlow
    from mitmproxy.io import FlowReader

    with file.open("rb") as stream:
        for flow in FlowReader(stream).stream():
            if isinstance(flow, HTTPFlow) and flow.request.timestamp_end is not None:
                yield from _requests(flow)


def _requests(flow: "HTTPFlow") -> Iterator[SeenRequest]:
    from dragoman.addons.providers import find_provider, provider_for_host
    from dragoman.store.flow_calls import SocketMessage, find_call_id, socket_calls

    request, response = flow.request, flow.response
    path, _, query = request.path.partition("?")
    own = provider_for_host(request.host) is None
    if own and request.scheme != "http":
        return  # base-URL mode is plain HTTP; this went to somebody else
    method = request.method if flow.websocket is None else "POST"
    host = None if own else request.host
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers.fields}
    found = find_provider(host=host, method=method, path=path, query=query, headers=headers)
    if found is None or found[1].kind != "generate":
        return
    reply = b"" if response is None else response.get_content(strict=False) or b""
    whole = SeenRequest(
        at=request.timestamp_start,
        provider=found[0].name,
        way="base-url" if own else "proxy",
        host=request.host,
        status=None if response is None else response.status_code,
        call_id=find_call_id(reply),
        headers=headers,
        body=_object(request.get_content(strict=False) or b""),
    )
    if flow.websocket is None:
        yield whole
        return
    messages = [SocketMessage(m.from_client, m.timestamp, m.content) for m in flow.websocket.messages]
    bodies = {message.at: _object(message.content) for message in messages if message.from_client}
    for call in socket_calls(path, messages):
        body = bodies.get(call.started_at, {})
        yield replace(whole, at=call.started_at, status=call.status, call_id=call.call_id, body=body, socket=True)


def _object(data: bytes) -> JsonObject:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
