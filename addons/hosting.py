"""The app on a loopback port in mitmproxy's own event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

KEEP_ALIVE = 24 * 3600
"""Seconds that a connection of the proxy's may be idle."""


class _Server(uvicorn.Server):
    """uvicorn inside mitmproxy's loop: mitmproxy keeps the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HostedApp:
    """Serves from its making on; ``port`` is where. To be made in the loop that is to serve it."""

    def __init__(self, app: Starlette, *, message_limit: int) -> None:
        # IPPROTO_TCP, not 0: asyncio sets TCP_NODELAY only then, and without it every call waits 40 ms for an ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            server_header=False,
            ws="wsproto",
            ws_max_size=message_limit,
            # The proxy keeps a connection as long as its harness keeps its own. Were one closed here meanwhile, a
            # request just on its way would be answered 502 "server closed connection" (seen at the default of 5 s).
            timeout_keep_alive=KEEP_ALIVE,
            ws_ping_interval=None,  # Codex answers none while its tools run, and would be cut off for it
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="dragoman app")

    def no_more(self) -> None:
        """Take no more requests; those that run go on."""
        self._server.should_exit = True

    async def ended(self) -> None:
        await self._serving
