"""The ASGI app: the one coroutine that a call walks through, top to bottom.

Rules of this module: every 4xx is decided before a byte of the reply leaves; after that a failure is the dialect's
own in-stream error. No event that a harness can act on leaves before the call's record is durable. An error that nobody
foresaw is the provider's own 500, counted, and recorded as the call's outcome.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from dragoman.addons import call as rows
from dragoman.addons import control, respond
from dragoman.addons.blobs import message_blob, tools_blob
from dragoman.addons.bodies import decode_body, read_json_object
from dragoman.addons.call import Call
from dragoman.addons.classify import classify
from dragoman.addons.errors import DragomanError, NotFound
from dragoman.addons.gateway import Gateway
from dragoman.addons.generation import Generation, Sampled
from dragoman.addons.hop import read_target
from dragoman.addons.identity import Harness, new_id, read_credentials, read_harness
from dragoman.addons.lineage import EpisodeLineage
from dragoman.addons.messages import ChatRequest, ReplyEvent, ReplyFinished, Sampling, TextDelta
from dragoman.addons.prompt import Prompt, make_prompt, render_prompt, seed_of
from dragoman.addons.providers import find_provider, provider_for_path
from dragoman.addons.providers.base import Provider
from dragoman.addons.providers.base import Route as ProviderRoute
from dragoman.addons.providers.side import ACCOUNT_HEADER, find_side_answer
from dragoman.addons.reply import build_reply
from dragoman.addons.sampling import resolve_sampling
from dragoman.addons.structured import Limits, read_limits, reading
from dragoman.store.records import CallArrival, EpisodeInfo

log = logging.getLogger("dragoman")
LARGE_BODY = 1024 * 1024
"""Bytes from which a body is parsed off the event loop."""


async def handle(gateway: Gateway, request: Request) -> Response:
    """Every request that is not for the control API: route, identify, answer."""
    sent_path, sent_query = read_target(request.scope)
    provider = provider_for_path(sent_path)
    try:
        hop = gateway.hop(request)
        _, path, query = read_credentials({}, sent_path, sent_query, None)
        found = find_provider(host=hop.host, method=request.method, path=path, query=query, headers=request.headers)
        if found is None:
            account = request.headers.get(ACCOUNT_HEADER)
            if side := find_side_answer(hop.host, request.method, path, account):
                return Response(side.body, side.status, media_type=side.content_type)
            raise NotFound(f"{request.method} {path} is not an endpoint of this gateway")
        provider, route = found
        harness = read_harness(request.headers)
        episode = await gateway.identify(hop, harness.thread)
        if route.kind != "generate":
            return await _answer_without_sampling(gateway, request, provider, route)
        return await answer_call(gateway, request, provider, route, episode, harness, path)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        return respond.error_response(provider, gateway.shown(error), None)


async def answer_call(
    gateway: Gateway,
    request: Request,
    provider: Provider,
    route: ProviderRoute,
    episode: EpisodeInfo,
    harness: Harness,
    path: str,
) -> Response:
    """A call, from its arrival row to the first byte of its reply."""
    recorder = gateway.recorder
    arrival = _arrival(provider, path, episode, harness)
    arrived: asyncio.Future[None] | None = None
    try:
        chat = await _parse(provider, await _read_body(gateway, request), route)
        arrival = replace(arrival, kind=classify(harness, chat))
        arrived = recorder.arrive(arrival)
        lineage = await gateway.lineage(episode.id)
        call = await _prepare(gateway, provider, chat, episode, arrival, lineage)
        generation = _generation(gateway, call, lineage)
    except Exception as error:
        if arrived is None:
            recorder.arrive(arrival)
        if isinstance(error, ClientDisconnect):
            await recorder.finish(rows.left_early(arrival, time.time()))
            raise
        shown = gateway.shown(error)
        await recorder.finish(rows.refused(arrival, provider, shown, time.time()))
        return respond.error_response(provider, shown, arrival.id)
    if (running := gateway.find_retried(call)) is not None:
        generation = running.generation
        generation.attach()
        await recorder.finish(rows.retried(arrival, running.call, time.time()))
        call = replace(call, arrival=running.call.arrival)
    else:
        generation.attach()
        gateway.run(call, generation)
        try:
            await arrived
        except BaseException:
            generation.detach(delivered=False)
            raise
    if call.request.stream:
        return await respond.streamed(gateway, call, generation)
    return await respond.whole(gateway, request, call, generation)


async def _prepare(
    gateway: Gateway,
    provider: Provider,
    chat: ChatRequest,
    episode: EpisodeInfo,
    arrival: CallArrival,
    lineage: EpisodeLineage,
) -> Call:
    """Find what the request continues, make the prompt, and check it; with the parser every 4xx is raised here."""
    served = await gateway.model.get()
    codec = served.codec
    messages = tuple(message_blob(message) for message in chat.messages)
    tools = tools_blob(chat.tools)
    seed = seed_of(tools.digest if tools else None, codec.tokenizer_hash, codec.template_hash)
    found = lineage.find(chat.messages, seed)

    def made() -> tuple[Prompt, Sampling, Limits]:
        prompt = make_prompt(codec, chat, found, gateway.settings.thinking)
        sampling = resolve_sampling(
            chat.sampling,
            episode.spec,
            prompt_len=len(prompt.ids),
            context_len=served.info.max_model_len,
            max_reply_tokens=gateway.settings.max_reply_tokens,
        )
        return prompt, sampling, read_limits(chat, codec, prompt.ids, sampling)

    prompt, sampling, limits = await asyncio.to_thread(made)
    if limits.unenforced:
        _warn(limits.unenforced)
    return Call(arrival, provider, chat, served, messages, tools, seed, found, prompt, sampling, limits)


def _generation(gateway: Gateway, call: Call, lineage: EpisodeLineage) -> Generation:
    """The task that samples the reply, and what it does at its end."""

    async def answered(sampled: Sampled) -> tuple[ReplyEvent, ...]:
        unsent, reply = build_reply(
            call_id=call.id,
            model=call.request.model,
            created=call.created,
            tool_call_prefix=call.provider.tool_call_prefix,
            parsed=sampled.parsed,
            completion=sampled.completion,
            stop_sequence=sampled.stop_sequence,
            show_completion=call.request.return_token_ids or call.request.top_logprobs is not None,
            never_empty=call.arrival.harness == "qwen",
        )
        await gateway.recorder.finish(rows.answered(call, sampled, reply, time.time()))
        lineage.add(call.node(sampled, reply))
        return (TextDelta(unsent), ReplyFinished(reply)) if unsent else (ReplyFinished(reply),)

    async def failed(error: DragomanError, sampled: Sampled) -> None:
        await gateway.recorder.finish(rows.failed(call, sampled, error, time.time()))

    async def aborted(sampled: Sampled) -> None:
        await gateway.recorder.finish(rows.aborted(call, sampled, time.time()))

    request, codec, limits = call.request, call.served.codec, call.limits
    return Generation(
        engine=gateway.engine,
        call_id=call.id,
        model=None,
        prompt_ids=call.prompt.ids,
        sampling=call.sampling,
        stop_ids=codec.stop_ids + limits.stop_ids,
        limits=limits,
        text=reading(codec, limits).text_stream(
            call.prompt.ids, request.tools, stop=call.sampling.stop, plain=request.prompt is not None
        ),
        grace=gateway.settings.grace,
        on_sampled=answered,
        on_failed=failed,
        on_aborted=aborted,
        on_released=lambda: gateway.release(call.id),
    )


@cache
def _warn(unenforced: str) -> None:
    """Once for each thing."""
    log.warning("a harness asked for what is not enforced: %s", unenforced)


async def _answer_without_sampling(
    gateway: Gateway, request: Request, provider: Provider, route: ProviderRoute
) -> Response:
    """Model lists and token counts."""
    served = await gateway.model.get()
    created = int(time.time())
    if route.kind == "models":
        return respond.json_response(provider.render_models([served.info.model], created))
    if route.kind == "model":
        return respond.json_response(provider.render_model(route.model or served.info.model, created))
    chat = await _parse(provider, await _read_body(gateway, request), route)
    prompt_ids = await asyncio.to_thread(render_prompt, served.codec, chat)
    return respond.json_response(provider.render_count(len(prompt_ids)))


async def _read_body(gateway: Gateway, request: Request) -> bytes:
    raw = await request.body()
    return decode_body(raw, request.headers.get("content-encoding"), gateway.settings.request_limit)


async def _parse(provider: Provider, body: bytes, route: ProviderRoute) -> ChatRequest:
    """Normalise a body; a large one in a thread, so that one client's huge request does not stop the others."""
    if len(body) < LARGE_BODY:
        return provider.parse_request(read_json_object(body), route)
    return await asyncio.to_thread(lambda: provider.parse_request(read_json_object(body), route))


def _arrival(provider: Provider, path: str, episode: EpisodeInfo, harness: Harness) -> CallArrival:
    return CallArrival(
        id=new_id(20),
        episode_id=episode.id,
        provider=provider.name,
        path=path,
        arrived_at=time.time(),
        harness=harness.name,
        harness_version=harness.version,
        thread=harness.thread,
        kind=harness.kind,
    )


async def refuse_websocket(websocket: WebSocket) -> None:
    """Codex asks for a WebSocket first: on 426 it takes HTTP at once, on anything else only after seven tries."""
    _, path, query = read_credentials({}, websocket.url.path, websocket.url.query, None)
    found = find_provider(host=None, method="POST", path=path, query=query, headers=websocket.headers)
    status = 426 if found is not None else 404
    body = b'{"error":{"type":"invalid_request_error","message":"no WebSockets here; use HTTP"}}'
    await websocket.send_denial_response(Response(body, status, media_type="application/json"))


def create_app(gateway: Gateway) -> Starlette:
    """The gateway as an ASGI app. With its lifespan on, it starts and stops the gateway itself."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    async def endpoint(request: Request) -> Response:
        return await handle(gateway, request)

    async def unmatched(request: Request, _: Exception) -> Response:
        return await handle(gateway, request)  # no route takes a line break in a path, or a method not listed here

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            Mount("/dragoman", routes=control.routes(gateway)),
            Route("/{path:path}", endpoint, methods=methods),
            WebSocketRoute("/{path:path}", refuse_websocket),
        ],
        exception_handlers={404: unmatched, 405: unmatched},
        lifespan=lifespan,
    )
