"""The hosted app answers on a port of its own, and does not close a connection that its proxy keeps."""

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dragoman.addons.hosting import HostedApp


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def test_it_serves_and_keeps_idle_connections_for_hours() -> None:
    hosted = HostedApp(Starlette(routes=[Route("/", hello)]), message_limit=1000)
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{hosted.port}/")).text == "hello"
    # The default, 5 s, ended connections on which a request was just on its way: 502 for the harness.
    assert hosted._server.config.timeout_keep_alive >= 3600
    hosted.no_more()
    await hosted.ended()
