"""From a generation to what is sent: the events of a stream, for any transport, and HTTP responses.

Rules of this module: a reply is only ever read from the generation's events, so streamed and whole replies agree. A
client that leaves is only detached. The error of a call becomes an HTTP response here and nowhere else; on a socket it
is a message (``openai_responses.socket_error``).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.addons.call import Call
from dragoman.addons.errors import DragomanError
from dragoman.addons.gateway import Gateway
from dragoman.addons.generation import Generation
from dragoman.addons.messages import ReplyFailed, ReplyFinished, ReplyStarted
from dragoman.addons.providers.base import Provider, to_dragoman_error
from dragoman.addons.stream import merge_deltas

FIRST_SIGN = 1.0
"""Seconds to wait for the engine's first sign before the headers of a stream: a dead one says so at once, and a status
is clearer to a harness than an error inside a stream."""


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


def request_id(provider: Provider, call_id: str | None) -> dict[str, str]:
    """The header by which the provider names a request, for a call that has an id."""
    name = provider.request_id_header
    return {} if name is None or call_id is None else {name: f"req_{call_id}"}


def error_response(provider: Provider, error: DragomanError, call_id: str | None) -> Response:
    headers = {"retry-after": str(error.retry_after)} if error.retry_after is not None else {}
    headers |= request_id(provider, call_id)
    body = orjson.dumps(provider.error_body(error, call_id))
    return Response(body, provider.error_status(error), headers, media_type="application/json")


async def failed_at_once(generation: Generation) -> DragomanError | None:
    """The error of an engine that refuses at its first sign, which is waited for; the caller is then detached."""
    events = await generation.next_events(0, FIRST_SIGN)
    if events and isinstance(events[0], ReplyFailed):
        generation.detach(delivered=True)
        return to_dragoman_error(events[0].error)
    return None


async def told(gateway: Gateway, call: Call, generation: Generation) -> AsyncGenerator[bytes]:
    """The events of a reply in the dialect's words, as they come, with keep-alives. At the end it detaches."""
    encoder = call.provider.encoder(call.request)
    started = ReplyStarted(call.id, call.request.model, call.created, prompt_tokens=len(call.prompt.ids))
    seen = 0
    delivered = False
    try:
        yield encoder.encode(started)
        while True:
            events = await generation.next_events(seen, gateway.settings.keep_alive)
            seen += len(events)
            data = b"".join(encoder.encode(event) for event in merge_deltas(events))
            if data:
                yield data
            elif not events:
                yield encoder.keep_alive()
            if events and isinstance(events[-1], ReplyFinished | ReplyFailed):
                delivered = True
                return
            await generation.wait_finished(gateway.settings.coalesce)
    except Exception as error:
        yield encoder.encode(ReplyFailed(gateway.shown(error)))
        delivered = True
    finally:
        generation.detach(delivered=delivered)


async def streamed(gateway: Gateway, call: Call, generation: Generation) -> Response:
    """Headers at once, then events as they come. The caller has attached to ``generation``."""
    if error := await failed_at_once(generation):
        return error_response(call.provider, error, call.id)
    media_type = "text/event-stream" if call.request.stream_form == "sse" else "application/json"
    headers = {"cache-control": "no-cache", **request_id(call.provider, call.id)}
    return StreamingResponse(told(gateway, call, generation), media_type=media_type, headers=headers)


async def whole(gateway: Gateway, request: Request, call: Call, generation: Generation) -> Response:
    """One JSON body. After ``patience`` seconds the headers go out, and white space until the body is there.

    The caller has attached to ``generation``.
    """
    left = asyncio.create_task(_until_left(request))
    waiting = asyncio.create_task(generation.wait_finished(gateway.settings.patience))
    await asyncio.wait((left, waiting), return_when=asyncio.FIRST_COMPLETED)
    gone = left.done()
    left.cancel()
    waiting.cancel()
    if generation.finished or gone:
        generation.detach(delivered=not gone)
    if generation.finished:
        return _rendered(gateway, call, generation)
    if gone:
        return Response(status_code=499)

    async def late() -> AsyncIterator[bytes]:
        delivered = False
        try:
            yield b" "
            while not await generation.wait_finished(gateway.settings.keep_alive):
                yield b" "
            yield bytes(_rendered(gateway, call, generation).body)
            delivered = True
        finally:
            generation.detach(delivered=delivered)

    return StreamingResponse(late(), media_type="application/json", headers=request_id(call.provider, call.id))


def _rendered(gateway: Gateway, call: Call, generation: Generation) -> Response:
    closing = generation.events[-1]
    if isinstance(closing, ReplyFailed):
        return error_response(call.provider, to_dragoman_error(closing.error), call.id)
    assert isinstance(closing, ReplyFinished), "a finished generation ends in a closing event"
    try:
        body = call.provider.render_reply(closing.reply, call.request)
        return json_response(body, request_id(call.provider, call.id))
    except Exception as error:
        return error_response(call.provider, gateway.shown(error), call.id)


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
