"""The Responses API over a WebSocket, as Codex and OpenAI's SDK speak it: messages in, events out.

Rules of this module: each ``response.create`` is a call like any other. It walks through ``answer.answer_call``, and
its reply is told by ``respond.told``; here is only the transport. As OpenAI's guide to the WebSocket mode says it, and
as Codex 0.171.0 was seen to do it:

- Messages are answered one after another, in order, those of several ``stream_id`` lanes too; their events name the
  lane. So what comes during a reply waits, up to ``WAITING`` messages.
- A refusal is an event of type ``error`` with the HTTP status beside it, and the socket stays open.
- Who calls is decided at the handshake and checked again for each message, since an episode may end meanwhile. Thread
  and kind of call are each message's own (``client_metadata``).
- A client that leaves during a reply is only detached, as over HTTP. A socket without a message for ``socket_idle``
  seconds is closed; clients then open a new one and send everything again.
- Not supported: binary messages and ``response.steer``, each answered by an error.
"""

import asyncio
from contextlib import aclosing

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from dragoman.addons import respond
from dragoman.addons.answer import (
    Answering,
    Asked,
    Body,
    OwnReplies,
    Refused,
    WarmedUp,
    answer_call,
    load_body,
)
from dragoman.addons.earlier import earlier_of
from dragoman.addons.errors import DragomanError, InvalidRequest, NotFound
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import Hop, read_target
from dragoman.addons.identity import message_headers, read_credentials, read_harness
from dragoman.addons.messages import Reply, ReplyFinished, ReplyStarted, Usage
from dragoman.addons.providers import find_provider, provider_for_path
from dragoman.addons.providers.base import Route
from dragoman.addons.providers.openai_responses import ON_SOCKET, OPENAI_RESPONSES, socket_error

WAITING = 16
"""Messages that may wait while one is answered."""
TOO_MANY = 1013
"""Close code "try again later"."""


async def serve(gateway: Gateway, websocket: WebSocket) -> None:
    """A socket from its handshake to its end."""
    sent_path, sent_query = read_target(websocket.scope)
    provider = provider_for_path(sent_path)
    try:
        hop = gateway.hop(websocket)
        _, path, query = read_credentials({}, sent_path, sent_query, None)
        found = find_provider(host=hop.host, method="POST", path=path, query=query, headers=websocket.headers)
        if found is None or found[0] is not OPENAI_RESPONSES or found[1] != Route("generate", query=query):
            raise NotFound(f"{path} takes no WebSockets")
        provider = OPENAI_RESPONSES
        if not gateway.settings.websockets:
            # Codex takes HTTP at once on this status, and on any other only after seven tries.
            refusal = b'{"error":{"type":"invalid_request_error","message":"no WebSockets here; use HTTP"}}'
            await websocket.send_denial_response(Response(refusal, 426, media_type="application/json"))
            return
        await gateway.identify(hop, read_harness(websocket.headers).thread)
    except Exception as error:
        await websocket.send_denial_response(respond.error_response(provider, gateway.shown(error), None))
        return
    await websocket.accept()
    await _Socket(gateway, websocket, hop, path).run()


class _Socket:
    """One open socket."""

    def __init__(self, gateway: Gateway, websocket: WebSocket, hop: Hop, path: str) -> None:
        self._gateway = gateway
        self._websocket = websocket
        self._hop = hop
        self._path = path
        self._waiting: asyncio.Queue[str] = asyncio.Queue(WAITING)
        self._own = OwnReplies()

    async def run(self) -> None:
        """Read and answer until the client leaves, or nothing comes any more."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._answer_all())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if (error := task.exception()) is not None and not isinstance(error, WebSocketDisconnect):
                raise error

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                self._waiting.put_nowait(message.get("text") or "")
            except asyncio.QueueFull:
                await self._websocket.close(TOO_MANY, f"more than {WAITING} messages are waiting")
                return

    async def _answer_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._gateway.settings.socket_idle):
                    text = await self._waiting.get()
            except TimeoutError:
                await self._websocket.close(1000, "idle")
                return
            try:
                await self._answer(text)
            except WebSocketDisconnect:
                return
            except Exception as error:
                await self._refuse(self._gateway.shown(error), None, None)

    async def _answer(self, text: str) -> None:
        """One message: a call, or an error."""
        headers = dict(self._websocket.headers)
        lane: str | None = None
        broken: DragomanError | None = None
        body = Body({}, 0)
        try:
            body = await load_body(text.encode())
        except DragomanError as error:
            broken = error
        else:
            lane = body.value.get("stream_id") if isinstance(body.value.get("stream_id"), str) else None
            if (kind := body.value.get("type")) != "response.create":
                wrong = InvalidRequest(f"type: messages of type {kind!r} are not supported", field="type")
                await self._refuse(wrong, None, lane)
                return
            headers = message_headers(headers, body.value.get("client_metadata"))
        harness = read_harness(headers)
        try:
            episode = await self._gateway.identify(self._hop, harness.thread)
        except DragomanError as error:
            await self._refuse(error, None, lane)
            return

        async def read() -> Body:
            if broken is not None:
                raise broken
            return body

        asked = Asked(OPENAI_RESPONSES, ON_SOCKET, self._path, episode, harness, read, self._own)
        match await answer_call(self._gateway, asked):
            case Refused() as refused:
                await self._refuse(refused.error, refused.call_id, lane)
            case WarmedUp() as warm:
                await self._warm_up(warm)
            case Answering() as answering:
                await self._tell(answering, lane)

    async def _tell(self, answering: Answering, lane: str | None) -> None:
        call, generation = answering.call, answering.generation
        try:
            error = await respond.failed_at_once(generation)
        except asyncio.CancelledError:
            generation.detach(delivered=False)
            raise
        if error is not None:
            await self._refuse(error, call.id, lane)
            return
        async with aclosing(respond.told(self._gateway, call, generation)) as chunks:
            async for chunk in chunks:
                await self._send(chunk)
        if isinstance(closing := generation.events[-1], ReplyFinished):
            self._own.add(call.arrival, earlier_of(call.request, closing.reply.parts))

    async def _warm_up(self, warm: WarmedUp) -> None:
        """Created and completed at once, with nothing in it."""
        arrival, request = warm.arrival, warm.request
        created = int(arrival.arrived_at)
        encoder = OPENAI_RESPONSES.encoder(request)
        reply = Reply(arrival.id, request.model, created, (), "stop", Usage(0, 0))
        started = ReplyStarted(arrival.id, request.model, created, prompt_tokens=0)
        self._own.add(arrival, earlier_of(request, ()))
        await self._send(encoder.encode(started) + encoder.encode(ReplyFinished(reply)))

    async def _refuse(self, error: DragomanError, call_id: str | None, lane: str | None) -> None:
        await self._send(socket_error(error, call_id, lane))

    async def _send(self, events: bytes) -> None:
        for event in events.splitlines():
            if self._websocket.application_state is WebSocketState.DISCONNECTED:  # closed by ``_read``
                raise WebSocketDisconnect
            await self._websocket.send_text(event.decode())
