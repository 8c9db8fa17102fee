"""The entry for ``mitmdump -s``: options, routing of flows, egress policy, and hosting the app.

Rules of this module: mitmproxy loads it under a name of its own, so nothing imports it. It decides where a flow goes
and nothing about what it means. Credentials are taken out of a flow before it goes anywhere; the origin is put back
before it is saved, so a saved flow says what the harness said and heard, and can be replayed.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

import uvicorn
from mitmproxy import connection, ctx, exceptions, http
from mitmproxy.addonmanager import Loader
from mitmproxy.proxy import mode_specs

from dragoman import home
from dragoman.addons.app import create_app
from dragoman.addons.errors import DragomanError
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import INTERNAL_PREFIX, TICKET_HEADER, Hop, Tickets
from dragoman.addons.identity import (
    CREDENTIAL_HEADERS,
    Credentials,
    read_credentials,
    read_proxy_user,
)
from dragoman.addons.providers import provider_for_host
from dragoman.addons.providers.side import find_side_answer
from dragoman.addons.settings import Settings
from dragoman.certs.authority import ensure_authority

log = logging.getLogger("dragoman")
NOT_FOUND = b'{"error":{"type":"not_found","message":"blocked by the gateway: this host is not a model provider"}}'


class _Server(uvicorn.Server):
    """uvicorn inside mitmproxy's loop: mitmproxy keeps the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(slots=True)
class _Diverted:
    """What a flow looked like before it was sent to the app, and the reply bytes seen so far."""

    scheme: str
    host: str
    port: int
    authority: str
    host_header: str | None
    ticket: str
    keep: bool
    chunks: list[bytes] = field(default_factory=list)


class Intercept:
    def __init__(self) -> None:
        self.tickets = Tickets()
        self.diverted: dict[str, _Diverted] = {}
        self.proxy_users: dict[str, str] = {}
        """Client connection id → user name of its CONNECT's proxy credentials."""
        self.ready = asyncio.Event()
        self.gateway: Gateway | None = None
        self.server: _Server | None = None
        self.serving: asyncio.Task[None] | None = None
        self.warming: asyncio.Task[None] | None = None
        self.port = 0

    # -- options ----------------------------------------------------------------------------------------------------

    def load(self, loader: Loader) -> None:
        for noisy in ("alembic", "httpx", "httpcore", "transformers"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        add = loader.add_option
        add("dragoman_engine", str, home.DEFAULT_ENGINE, "Address of the vLLM server.")
        add("dragoman_store", str, "", "SQLAlchemy URL of the store. Default: dragoman.db in the state folder.")
        add("dragoman_model", str, "", "Folder or name of the tokenizer's model. Default: the engine's own.")
        add("dragoman_renderer", str, "auto", "Message renderer: auto, template, or a name of the renderers package.")
        add("dragoman_max_reply_tokens", int, 4096, "Cap on the tokens of one reply.")
        add("dragoman_thinking", str, "template", "Earlier reasoning that the template drops: template, or keep.")
        add("dragoman_open", bool, False, "Open an episode by itself for traffic without a token (loopback only).")
        add("dragoman_egress", str, "block", "Hosts that are no provider: block, pass, or 'allow HOST…'.")
        add("dragoman_names", str, "", "Further host names under which harnesses reach this gateway, by spaces.")
        add("dragoman_fsync", bool, False, "Survive power loss too, at the price of one fsync a commit.")
        add("dragoman_replay_token", str, "", "Episode token for flows replayed with -C (credentials are not saved).")
        # The harness speaks to us; mitmproxy must never dial the real provider by itself.
        ctx.options.update(confdir=str(home.state_folder() / "certs"), connection_strategy="lazy", upstream_cert=False)
        ensure_authority(home.state_folder() / "certs")

    def configure(self, updated: set[str]) -> None:
        if "dragoman_egress" in updated:
            word = ctx.options.dragoman_egress.split(" ", 1)[0]
            if word not in ("block", "pass", "allow"):
                raise exceptions.OptionsError(f"dragoman_egress must be block, pass or 'allow HOST…', not {word!r}")
        if "dragoman_thinking" in updated and ctx.options.dragoman_thinking not in ("template", "keep"):
            raise exceptions.OptionsError(
                f"dragoman_thinking must be template or keep, not {ctx.options.dragoman_thinking!r}"
            )
        if "dragoman_max_reply_tokens" in updated and ctx.options.dragoman_max_reply_tokens < 1:
            raise exceptions.OptionsError("dragoman_max_reply_tokens must be at least 1")
        if ctx.options.dragoman_open and not _is_loopback(ctx.options.listen_host or ""):
            raise exceptions.OptionsError("dragoman_open needs --listen-host 127.0.0.1: it asks for no credential")

    # -- hosting the app --------------------------------------------------------------------------------------------

    async def running(self) -> None:
        options = ctx.options
        settings = Settings(
            store=options.dragoman_store or home.default_store_url(),
            operator_key=home.operator_key(home.state_folder()),
            engine=options.dragoman_engine,
            model=options.dragoman_model or None,
            renderer=options.dragoman_renderer,
            thinking=options.dragoman_thinking,
            max_reply_tokens=options.dragoman_max_reply_tokens,
            open_mode=options.dragoman_open,
            fsync=options.dragoman_fsync,
        )
        self.gateway = Gateway(settings, self.tickets)
        try:
            await self.gateway.start()
        except Exception as error:
            log.error("dragoman cannot start: %s", error)
            ctx.master.shutdown()
            raise
        # IPPROTO_TCP, not 0: asyncio sets TCP_NODELAY only then, and without it every call waits 40 ms for an ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            create_app(self.gateway), log_level="warning", lifespan="off", ws="wsproto", server_header=False
        )
        self.server = _Server(config)
        self.serving = asyncio.create_task(self.server.serve(sockets=[listener]), name="dragoman app")
        self.warming = asyncio.create_task(self._warm(self.gateway), name="dragoman model")
        self.ready.set()

    async def _warm(self, gateway: Gateway) -> None:
        """Load the tokenizer before the first call needs it; without an engine the first call says so."""
        try:
            await gateway.model.get()
        except DragomanError as error:
            log.warning("dragoman: %s (calls are answered as soon as it is there)", error.message)

    async def done(self) -> None:
        if self.server is not None and self.serving is not None and self.gateway is not None:
            self.server.should_exit = True
            await self.gateway.stop()
            await self.serving

    # -- flows ------------------------------------------------------------------------------------------------------

    async def http_connect(self, flow: http.HTTPFlow) -> None:
        """A tunnel needs an open episode's token: git sends credentials only after a 407 challenge."""
        await self.ready.wait()
        assert self.gateway is not None
        user = read_proxy_user(flow.request.headers.pop("proxy-authorization", None))
        if user is None:
            if not self.gateway.settings.open_mode:
                flow.response = _proxy_authentication_required()
            return
        credentials, _, _ = read_credentials({}, "/", "", user)
        try:
            await self.gateway.identify(Hop(credentials, None, ""), None)
        except DragomanError as error:
            if error.status != 401:
                flow.response = _json(error.status, error.message)
            else:
                flow.response = _proxy_authentication_required()
            return
        self.proxy_users[flow.client_conn.id] = user

    def client_disconnected(self, client: connection.Client) -> None:
        self.proxy_users.pop(client.id, None)

    async def request(self, flow: http.HTTPFlow) -> None:
        await self.ready.wait()
        assert self.gateway is not None
        own = self._is_own(flow)
        hop = self._take_credentials(flow, own)
        path = urllib.parse.urlsplit(flow.request.path).path
        host = flow.request.host.lower().rstrip(".")
        if own or provider_for_host(host) is not None:
            self._divert(flow, hop, keep=not path.startswith("/dragoman/"))
            return
        try:
            if not (self.gateway.settings.open_mode and not hop.credentials.tokens):
                check = await self.gateway.identify(hop, None)
                del check
        except DragomanError as error:
            flow.response = (
                _proxy_authentication_required() if error.status == 401 else _json(error.status, error.message)
            )
            return
        if side := find_side_answer(host, flow.request.method, path):
            flow.response = http.Response.make(side.status, side.body, {"content-type": side.content_type})
        elif not self._may_leave(host):
            flow.response = http.Response.make(404, NOT_FOUND, {"content-type": "application/json"})

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        diverted = self.diverted.get(flow.id)
        if diverted is None:
            flow.response.stream = flow.response.raw_content is None
            return

        def tee(data: bytes) -> bytes:
            if diverted.keep:
                diverted.chunks.append(data)
            return data

        flow.response.stream = tee

    def response(self, flow: http.HTTPFlow) -> None:
        self._restore(flow)

    def error(self, flow: http.HTTPFlow) -> None:
        self._restore(flow)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _is_own(self, flow: http.HTTPFlow) -> bool:
        """Whether a request is meant for this gateway itself: origin-form, to one of our names."""
        if flow.request.scheme != "http":
            return False
        host = flow.request.host.lower()
        names = {"localhost", (ctx.options.listen_host or "").lower(), *ctx.options.dragoman_names.lower().split()}
        return host in names or _is_loopback(host) or isinstance(flow.client_conn.proxy_mode, mode_specs.ReverseMode)

    def _take_credentials(self, flow: http.HTTPFlow, own: bool) -> Hop:
        """Take every credential out of the flow; what it said of its origin is kept in the hop."""
        request = flow.request
        for name in [name for name in request.headers if name.lower().startswith(INTERNAL_PREFIX)]:
            del request.headers[name]
        user = read_proxy_user(request.headers.get("proxy-authorization")) or self.proxy_users.get(flow.client_conn.id)
        url = urllib.parse.urlsplit(request.path)
        lowered = {name.lower(): value for name, value in request.headers.items()}
        credentials, path, query = read_credentials(lowered, url.path, url.query, user)
        if flow.is_replay:
            credentials = Credentials(frozenset(filter(None, [ctx.options.dragoman_replay_token])))
        for name in CREDENTIAL_HEADERS:
            request.headers.pop(name, None)
        request.path = urllib.parse.urlunsplit(("", "", path, query, ""))
        address = f"{request.scheme}://{request.host_header or f'{request.host}:{request.port}'}"
        return Hop(credentials, None if own else request.host.lower().rstrip("."), address)

    def _may_leave(self, host: str) -> bool:
        policy, *hosts = ctx.options.dragoman_egress.split()
        return policy == "pass" or (policy == "allow" and host in hosts)

    def _divert(self, flow: http.HTTPFlow, hop: Hop, *, keep: bool) -> None:
        request = flow.request
        ticket = self.tickets.issue(hop)
        self.diverted[flow.id] = _Diverted(
            request.scheme, request.host, request.port, request.authority, request.host_header, ticket, keep
        )
        request.headers[TICKET_HEADER] = ticket
        request.scheme, request.host, request.port = "http", "127.0.0.1", self.port

    def _restore(self, flow: http.HTTPFlow) -> None:
        """Put the origin back before the flow is saved, with the bytes that the client got."""
        diverted = self.diverted.pop(flow.id, None)
        if diverted is None:
            return
        self.tickets.withdraw(diverted.ticket)
        request = flow.request
        request.headers.pop(TICKET_HEADER, None)
        request.scheme, request.host, request.port = diverted.scheme, diverted.host, diverted.port
        request.authority = diverted.authority
        request.host_header = diverted.host_header
        if flow.response is not None and flow.response.raw_content is None:
            flow.response.raw_content = b"".join(diverted.chunks)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _proxy_authentication_required() -> http.Response:
    return http.Response.make(
        407,
        b'{"error":{"type":"proxy_authentication_required","message":'
        b'"use http://<episode token>:x@host:port as HTTPS_PROXY"}}',
        {"proxy-authenticate": 'Basic realm="dragoman"', "content-type": "application/json"},
    )


def _json(status: int, message: str) -> http.Response:
    return http.Response.make(status, message.encode(), {"content-type": "text/plain; charset=utf-8"})


addons = [Intercept()]
