"""The ASGI app: which request goes where, and HTTP in and out. What a call walks through is in ``answer``.

Rules of this module: every 4xx is decided before a byte of the reply leaves; after that a failure is the dialect's
own in-stream error. An error that nobody foresaw is the provider's own 500, and counted.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from dragoman.addons import control, respond, responses_socket
from dragoman.addons.answer import Asked, Body, Refused, WarmedUp, answer_call, load_body, parse_body
from dragoman.addons.bodies import decode_body
from dragoman.addons.errors import NotFound
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import read_target
from dragoman.addons.identity import read_credentials, read_harness
from dragoman.addons.prompt import render_prompt
from dragoman.addons.providers import find_provider, provider_for_path
from dragoman.addons.providers.base import Provider
from dragoman.addons.providers.base import Route as ProviderRoute
from dragoman.addons.providers.side import ACCOUNT_HEADER, find_side_answer


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

        async def read() -> Body:
            return await _read_body(gateway, request)

        asked = Asked(provider, route, path, episode, harness, read)
        match await answer_call(gateway, asked):
            case Refused(error, call_id):
                return respond.error_response(provider, error, call_id)
            case WarmedUp():
                raise AssertionError("only sockets are warmed up")
            case answering if answering.call.request.stream:
                return await respond.streamed(gateway, answering.call, answering.generation)
            case answering:
                return await respond.whole(gateway, request, answering.call, answering.generation)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        return respond.error_response(provider, gateway.shown(error), None)


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
    chat = await parse_body(provider, await _read_body(gateway, request), route)
    prompt_ids = await asyncio.to_thread(render_prompt, served.codec, chat)
    return respond.json_response(provider.render_count(len(prompt_ids)))


async def _read_body(gateway: Gateway, request: Request) -> Body:
    raw = await request.body()
    return await load_body(decode_body(raw, request.headers.get("content-encoding"), gateway.settings.request_limit))


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

    async def socket(websocket: WebSocket) -> None:
        await responses_socket.serve(gateway, websocket)

    async def unmatched(request: Request, _: Exception) -> Response:
        return await handle(gateway, request)  # no route takes a line break in a path, or a method not listed here

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            Mount("/dragoman", routes=control.routes(gateway)),
            Route("/{path:path}", endpoint, methods=methods),
            WebSocketRoute("/{path:path}", socket),
        ],
        exception_handlers={404: unmatched, 405: unmatched},
        lifespan=lifespan,
    )
