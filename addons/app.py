"""The ASGI app: the one coroutine that a call walks through, top to bottom.

Rules of this module: every 4xx is decided before a byte of the reply leaves; after that a failure is the dialect's
own in-stream error. No event that a harness can act on leaves before the call's record is durable. This is the one
place where a ``DragomanError`` becomes a reply.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from dragoman.addons import control
from dragoman.addons.blobs import message_blob, reply_blob, tools_blob
from dragoman.addons.bodies import decode_body, read_json_object
from dragoman.addons.engine import Engine
from dragoman.addons.errors import DragomanError, NotFound, Overloaded, Unauthorized
from dragoman.addons.generation import Generation, Sampled
from dragoman.addons.hop import TICKET_HEADER, Hop, Tickets
from dragoman.addons.identity import (
    EpisodeCache,
    check_usable,
    hash_token,
    new_id,
    new_token,
    read_credentials,
    read_harness,
)
from dragoman.addons.messages import (
    ChatRequest,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyStarted,
    Sampling,
    TextDelta,
)
from dragoman.addons.providers import find_provider, provider_for_path
from dragoman.addons.providers.base import Provider, ReplyEncoder
from dragoman.addons.providers.base import Route as ProviderRoute
from dragoman.addons.providers.side import find_side_answer
from dragoman.addons.recorder import Recorder
from dragoman.addons.reply import build_reply
from dragoman.addons.sampling import resolve_sampling
from dragoman.addons.served import Served, ServedModel
from dragoman.addons.settings import Settings
from dragoman.addons.stream import merge_deltas
from dragoman.store import calls, episodes
from dragoman.store.database import Database
from dragoman.store.errors import StoreError
from dragoman.store.records import CallArrival, CallOutcome, EpisodeInfo, EpisodeSpec, TokenIds

log = logging.getLogger("dragoman")


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call once its 4xx checks have passed."""

    arrival: CallArrival
    provider: Provider
    request: ChatRequest
    served: Served
    prompt_ids: TokenIds
    sampling: Sampling

    def outcome(self) -> CallOutcome:
        """The outcome's constant part; status and results are put in by ``replace``."""
        return CallOutcome(
            id=self.arrival.id,
            status="failed",
            http_status=200,
            finished_at=time.time(),
            model=self.request.model,
            stream=self.request.stream,
            messages=tuple(message_blob(message) for message in self.request.messages),
            tools=tools_blob(self.request.tools),
            sampling_asked=_sampling_json(self.request.sampling),
            sampling_used=_sampling_json(self.sampling),
            constrained=self.request.response_format is not None,
            prompt_len=len(self.prompt_ids),
            prompt_ids=self.prompt_ids,
            tokenizer_hash=self.served.codec.tokenizer_hash,
            template_hash=self.served.codec.template_hash,
        )


def _sampling_json(sampling: Sampling) -> dict[str, object]:
    fields = {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if value not in (None, ())
    }


@dataclass(slots=True)
class Gateway:
    """Everything a call needs that outlives it. ``start`` and ``stop`` belong to the hosting event loop."""

    settings: Settings
    tickets: Tickets | None = None
    """``None``: served by itself under an ASGI server, and credentials come with the request."""
    database: Database = field(init=False)
    recorder: Recorder = field(init=False)
    engine: Engine = field(init=False)
    model: ServedModel = field(init=False)
    episodes: EpisodeCache = field(init=False)
    generations: set[asyncio.Task[None]] = field(default_factory=set)
    running: dict[str, Generation] = field(default_factory=dict)
    open_episodes: dict[str, str] = field(default_factory=dict)
    """Open mode only: harness session → token."""

    async def start(self) -> None:
        """Open the store and close what a killed gateway left open. Raises ``StoreError``."""
        self.database = await asyncio.to_thread(Database.open, self.settings.store, fsync=self.settings.fsync)
        self.recorder = Recorder(self.database)
        self.recorder.start()
        self.engine = Engine(self.settings.engine)
        self.model = ServedModel(self.engine, self.settings)
        self.episodes = EpisodeCache(self._find_episode)

    async def stop(self) -> None:
        """Stop sampling, record what there is, and close the store."""
        for generation in list(self.running.values()):
            generation.stop()
        if self.generations:
            await asyncio.wait(self.generations, timeout=10)
        await self.recorder.close()
        await self.engine.close()
        self.database.close()

    def _find_episode(self, digest: str) -> EpisodeInfo | None:
        with self.database.session() as session:
            return episodes.find_by_token(session, digest)

    # -- identify ---------------------------------------------------------------------------------------------------

    def hop(self, request: Request) -> Hop:
        """Who sent this. Raises ``Unauthorized`` for a request that did not come through the proxy's own door."""
        if self.tickets is not None:
            hop = self.tickets.redeem(request.headers.get(TICKET_HEADER))
            if hop is None:
                raise Unauthorized("this port is internal to the gateway; use the gateway's own address")
            return hop
        credentials, path, query = read_credentials(request.headers, request.url.path, request.url.query, None)
        request.scope["path"], request.scope["query_string"] = path, query.encode()
        return Hop(credentials, None, f"{request.url.scheme}://{request.url.netloc}")

    async def identify(self, hop: Hop, thread: str | None) -> EpisodeInfo:
        """The open episode that a request belongs to. Raises ``Unauthorized``, or ``Overloaded`` without a store."""
        token = hop.credentials.token()
        if token is None and self.settings.open_mode:
            token = await self._open_by_itself(thread or "default")
        if token is None:
            raise Unauthorized(
                "no episode token: open one with `dragoman episode open`"
                + (" (the key that was sent is not a dgm_ key)" if hop.credentials.foreign else "")
            )
        episode = self.episodes.peek(token)
        if episode is None:
            try:
                episode = await asyncio.to_thread(self.episodes.fetch, token)
            except StoreError as error:
                raise Overloaded(f"the store cannot be read: {error}") from error
        check_usable(episode, time.time())
        return episode

    async def _open_by_itself(self, session_name: str) -> str:
        token = self.open_episodes.get(session_name)
        if token is None:
            token = self.open_episodes[session_name] = new_token()
            spec = EpisodeSpec(profile="as_asked", metadata={"opened": "by itself", "session": session_name})
            await asyncio.to_thread(self.open_episode, spec, token, self.settings.token_ttl)
        return token

    def open_episode(self, spec: EpisodeSpec, token: str, ttl: float) -> EpisodeInfo:
        """Write a new episode. Blocking; raises ``StoreError``."""
        now = time.time()
        with self.database.session() as session:
            return episodes.open_episode(
                session, spec, episode_id=new_id(12), token_hash=hash_token(token), now=now, expires_at=now + ttl
            )

    # -- route ------------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        """Every request that is not for the control API."""
        path = request.url.path
        provider = provider_for_path(path)
        try:
            hop = self.hop(request)
            path = request.url.path
            found = find_provider(host=hop.host, method=request.method, path=path, headers=request.headers)
            if found is None:
                if side := find_side_answer(hop.host, request.method, path):
                    return Response(side.body, side.status, media_type=side.content_type)
                raise NotFound(f"{request.method} {path} is not an endpoint of this gateway")
            provider, route = found
            harness = read_harness(request.headers)
            episode = await self.identify(hop, harness.thread)
            if route.kind == "generate":
                return await self.generate(request, provider, route, episode)
            return await self._answer_plain(request, provider, route)
        except DragomanError as error:
            return error_response(provider, error, None)

    async def _answer_plain(self, request: Request, provider: Provider, route: ProviderRoute) -> Response:
        served = await self.model.get()
        created = int(time.time())
        if route.kind == "models":
            return _json(provider.render_models([served.info.model, *served.info.adapters], created))
        if route.kind == "model":
            return _json(provider.render_model(route.model or served.info.model, created))
        chat = provider.parse_request(await self._read_body(request), route)
        prompt_ids = await asyncio.to_thread(served.codec.render, chat.messages, chat.tools)
        return _json(provider.render_count(len(prompt_ids)))

    async def _read_body(self, request: Request) -> dict[str, object]:
        raw = await request.body()
        body = decode_body(raw, request.headers.get("content-encoding"), self.settings.request_limit)
        return read_json_object(body)

    # -- a call -----------------------------------------------------------------------------------------------------

    async def generate(
        self, request: Request, provider: Provider, route: ProviderRoute, episode: EpisodeInfo
    ) -> Response:
        """A generation request from arrival to the start of its reply."""
        harness = read_harness(request.headers)
        arrival = CallArrival(
            id=new_id(20),
            episode_id=episode.id,
            provider=provider.name,
            path=request.url.path,
            arrived_at=time.time(),
            harness=harness.name,
            harness_version=harness.version,
            thread=harness.thread,
            kind=harness.kind,
        )
        arrived = self.recorder.arrive(arrival)
        try:
            call = await self._prepare(request, provider, route, episode, arrival)
        except ClientDisconnect:
            await self._record(arrival, "aborted", 499, "client_left", "the client left while sending its request")
            return Response(status_code=499)
        except DragomanError as error:
            status = "refused" if error.status < 500 else "failed"
            await self._record(arrival, status, provider.error_status(error), error.code, error.message)
            return error_response(provider, error, arrival.id)
        generation = self._start(call)
        await arrived
        if call.request.stream:
            return await self._stream(call, generation)
        return await self._whole(request, call, generation)

    async def _prepare(
        self, request: Request, provider: Provider, route: ProviderRoute, episode: EpisodeInfo, arrival: CallArrival
    ) -> Call:
        """Normalise, render and check; every 4xx is raised here."""
        chat = provider.parse_request(await self._read_body(request), route)
        served = await self.model.get()
        if chat.prompt is None:
            prompt_ids = await asyncio.to_thread(served.codec.render, chat.messages, chat.tools)
        else:
            prompt_ids = await asyncio.to_thread(served.codec.plain_prompt, chat.prompt)
        sampling = resolve_sampling(
            chat.sampling,
            episode.spec,
            prompt_len=len(prompt_ids),
            context_len=served.info.max_model_len,
            max_reply_tokens=self.settings.max_reply_tokens,
        )
        return Call(arrival, provider, chat, served, prompt_ids, sampling)

    def _start(self, call: Call) -> Generation:
        structured = None
        if call.request.response_format is not None:
            structured = {"json": call.request.response_format.schema or {"type": "object"}}
        codec = call.served.codec
        generation = Generation(
            engine=self.engine,
            call_id=call.arrival.id,
            model=None,
            prompt_ids=call.prompt_ids,
            sampling=call.sampling,
            stop_ids=codec.stop_ids,
            structured=structured,
            text=codec.text_stream(
                call.prompt_ids, call.request.tools, stop=call.sampling.stop, plain=call.request.prompt is not None
            ),
            grace=self.settings.grace,
            on_sampled=lambda sampled: self._answered(call, sampled),
            on_failed=lambda error, sampled: self._failed(call, error, sampled),
            on_aborted=lambda sampled: self._aborted(call, sampled),
        )
        self.running[call.arrival.id] = generation
        task = generation.start()
        self.generations.add(task)
        task.add_done_callback(lambda done: self._forget(call.arrival.id, done))
        return generation

    def _forget(self, call_id: str, task: asyncio.Task[None]) -> None:
        self.generations.discard(task)
        self.running.pop(call_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("call %s: the gateway failed", call_id, exc_info=error)

    # -- record -----------------------------------------------------------------------------------------------------

    async def _answered(self, call: Call, sampled: Sampled) -> tuple[ReplyEvent, ...]:
        nameless, reply = build_reply(
            call_id=call.arrival.id,
            model=call.request.model,
            created=int(call.arrival.arrived_at),
            tool_call_prefix=call.provider.tool_call_prefix,
            parsed=sampled.parsed,
            completion=sampled.completion,
            stop_sequence=sampled.stop_sequence,
            show_completion=call.request.return_token_ids or call.request.top_logprobs is not None,
        )
        outcome = replace(
            _with_sampled(call, sampled),
            status="answered",
            finish_reason=reply.finish_reason,
            reply=reply_blob(reply.parts),
        )
        await self.recorder.finish(outcome)
        closing: tuple[ReplyEvent, ...] = (ReplyFinished(reply),)
        return (TextDelta(nameless), *closing) if nameless else closing

    async def _failed(self, call: Call, error: DragomanError, sampled: Sampled) -> None:
        await self.recorder.finish(
            replace(
                _with_sampled(call, sampled),
                status="failed",
                http_status=call.provider.error_status(error),
                error_code=error.code,
                error_message=error.message,
            )
        )

    async def _aborted(self, call: Call, sampled: Sampled) -> None:
        await self.recorder.finish(
            replace(
                _with_sampled(call, sampled),
                status="aborted",
                http_status=499,
                finish_reason="abort",
                error_code="client_left",
                error_message="the client left before the reply was complete",
            )
        )

    async def _record(self, arrival: CallArrival, status: str, http_status: int, code: str, message: str) -> None:
        """The outcome of a call that never reached the engine."""
        assert status in ("refused", "failed", "aborted")
        await self.recorder.finish(
            CallOutcome(
                id=arrival.id,
                status=status,  # type: ignore[arg-type]
                http_status=http_status,
                finished_at=time.time(),
                error_code=code,
                error_message=message,
            )
        )

    # -- reply ------------------------------------------------------------------------------------------------------

    async def _stream(self, call: Call, generation: Generation) -> Response:
        generation.attach()
        # A dead engine says so at once, and a status is clearer to a harness than an in-stream error.
        events = await generation.next_events(0, 1.0)
        if events and isinstance(events[0], ReplyFailed):
            generation.detach()
            return _failure(call, events[0])
        body = self._encoded(call, generation)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(body, media_type="text/event-stream", headers=headers)

    async def _encoded(self, call: Call, generation: Generation) -> AsyncIterator[bytes]:
        encoder: ReplyEncoder = call.provider.encoder(call.request)
        started = ReplyStarted(
            call.arrival.id, call.request.model, int(call.arrival.arrived_at), prompt_tokens=len(call.prompt_ids)
        )
        seen = 0
        try:
            yield encoder.encode(started)
            while True:
                events = await generation.next_events(seen, self.settings.keep_alive)
                seen += len(events)
                data = b"".join(encoder.encode(event) for event in merge_deltas(events))
                if data:
                    yield data
                elif not events:
                    yield encoder.keep_alive()
                if events and isinstance(events[-1], ReplyFinished | ReplyFailed):
                    return
                await generation.wait_finished(self.settings.coalesce)
        finally:
            generation.detach()

    async def _whole(self, request: Request, call: Call, generation: Generation) -> Response:
        generation.attach()
        left = asyncio.create_task(_until_left(request))
        finished = asyncio.create_task(generation.wait_finished(self.settings.patience))
        try:
            await asyncio.wait((left, finished), return_when=asyncio.FIRST_COMPLETED)
            if not generation.finished and left.done():
                generation.detach()
                return Response(status_code=499)
        finally:
            left.cancel()
            finished.cancel()
        if not generation.finished:
            return StreamingResponse(self._late_whole(call, generation), media_type="application/json")
        generation.detach()
        event = generation.events[-1]
        if isinstance(event, ReplyFailed):
            return _failure(call, event)
        return Response(_rendered(call, event), media_type="application/json")

    async def _late_whole(self, call: Call, generation: Generation) -> AsyncIterator[bytes]:
        """White space is legal before JSON, and keeps a waiting client from timing out."""
        try:
            yield b" "
            while not await generation.wait_finished(self.settings.keep_alive):
                yield b" "
            event = generation.events[-1]
            if isinstance(event, ReplyFailed):
                yield orjson.dumps(call.provider.error_body(_as_dragoman(event.error), call.arrival.id))
            else:
                yield _rendered(call, event)
        finally:
            generation.detach()


def _with_sampled(call: Call, sampled: Sampled) -> CallOutcome:
    completion = sampled.completion
    return replace(
        call.outcome(),
        finished_at=time.time(),
        completion_ids=completion.completion_ids,
        logprobs=completion.logprobs,
        policy_spans=completion.policy_spans,
        engine_started_at=sampled.started_at,
        first_token_at=sampled.first_token_at,
    )


def _as_dragoman(error: Exception) -> DragomanError:
    return error if isinstance(error, DragomanError) else DragomanError(str(error))


def _rendered(call: Call, event: ReplyEvent) -> bytes:
    assert isinstance(event, ReplyFinished)
    return orjson.dumps(call.provider.render_reply(event.reply, call.request))


def _failure(call: Call, event: ReplyFailed) -> Response:
    return error_response(call.provider, _as_dragoman(event.error), call.arrival.id)


def _json(value: dict[str, object]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def error_response(provider: Provider, error: DragomanError, call_id: str | None) -> Response:
    """The one place where an error becomes a provider-shaped reply."""
    headers = {"retry-after": str(error.retry_after)} if error.retry_after is not None else {}
    body = orjson.dumps(provider.error_body(error, call_id))
    return Response(body, provider.error_status(error), headers, media_type="application/json")


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def create_app(gateway: Gateway) -> Starlette:
    """The gateway as an ASGI app. With its lifespan on, it starts and stops the gateway itself."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            Mount("/dragoman", routes=control.routes(gateway)),
            Route("/{path:path}", gateway.handle, methods=methods),
        ],
        lifespan=lifespan,
    )
