"""The entry for ``mitmdump -s``: options, routing of flows, egress policy, and hosting the app.

Rules of this module: mitmproxy loads it under a name of its own, so nothing imports it. It decides where a flow goes
and nothing about what it means. Credentials are taken out of a flow before it goes anywhere; the origin is put back
before it is saved, so a saved flow says what the harness said and heard, and can be replayed.
"""

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
import urllib.parse
from collections.abc import Iterator
from typing import TextIO

import orjson
import uvicorn
from mitmproxy import connection, ctx, exceptions, http
from mitmproxy.addonmanager import Loader
from mitmproxy.options import Options
from mitmproxy.proxy import mode_specs
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from dragoman import home
from dragoman.addons.app import create_app
from dragoman.addons.diversion import Diversions
from dragoman.addons.egress import Egress, Upstream, read_egress, read_upstream
from dragoman.addons.errors import DragomanError
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import INTERNAL_PREFIX, Hop, Tickets
from dragoman.addons.identity import (
    CREDENTIAL_HEADERS,
    Credentials,
    read_credentials,
    read_proxy_user,
)
from dragoman.addons.observer import NO_SOCKETS, Observer
from dragoman.addons.providers import provider_for_host
from dragoman.addons.providers.side import find_side_answer
from dragoman.addons.redact import join_target, redact, split_target, take_ours
from dragoman.addons.settings import Settings
from dragoman.certs.authority import ensure_authority

log = logging.getLogger("dragoman")
BODY_LIMIT = "256m"
"""mitmproxy's own limit, for bodies in both directions; the app has a smaller one for requests."""
HEADER_LIMIT = 64 * 1024
"""Bytes of a request's path and headers. The largest head of a harness had 6 kB."""
CONTROL_PATH = re.compile(r"/*dragoman(/|$)")
"""The control API, whose answers hold tokens; more slashes than the app itself takes, to be on the safe side."""
NOT_FOUND = b'{"error":{"type":"not_found","message":"blocked by the gateway: this host is not a model provider"}}'


class _Server(uvicorn.Server):
    """uvicorn inside mitmproxy's loop: mitmproxy keeps the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Intercept:
    def __init__(self) -> None:
        self.diversions = Diversions(Tickets())
        self.leaving: dict[str, http.HTTPFlow] = {}
        """Flow id → flow on its way to another host, with credentials that must not be saved."""
        self.egress = Egress()
        self.upstream: Upstream | None = None
        """Where observed traffic goes; ``None``: to each provider's own host."""
        self.observer: Observer | None = None
        """Set where calls are not answered here but only looked at."""
        self.proxy_users: dict[str, str] = {}
        """Client connection id → user name of its CONNECT's proxy credentials."""
        self.ready = asyncio.Event()
        self.gateway: Gateway | None = None
        self.server: _Server | None = None
        self.serving: asyncio.Task[None] | None = None
        self.warming: asyncio.Task[None] | None = None
        self.port = 0
        self.announced: TextIO | None = None
        """Open as long as other commands may count on this gateway."""

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
        add("dragoman_observe", str, "", "Only look on: pass calls to 'provider', or to an address, and record them.")
        add("dragoman_names", str, "", "Further host names under which harnesses reach this gateway, by spaces.")
        add("dragoman_fsync", bool, False, "Survive power loss too, at the price of one fsync a commit.")
        add("dragoman_websockets", bool, True, "Take WebSockets (Codex); if not, answer 426 and it takes HTTP.")
        add("dragoman_replay_token", str, "", "Episode token for flows replayed with -C (credentials are not saved).")
        # Before mitmproxy is told of the folder: it would make an authority of its own there.
        ensure_authority(home.state_folder() / "certs")
        # The harness speaks to us; mitmproxy must never dial the real provider by itself.
        ctx.options.update(confdir=str(home.state_folder() / "certs"), connection_strategy="lazy", upstream_cert=False)
        # What is neither HTTP nor WebSocket would pass every check below.
        ctx.options.update(rawtcp=False)
        if ctx.options.body_size_limit is None:
            ctx.options.update(body_size_limit=BODY_LIMIT)

    def configure(self, updated: set[str]) -> None:
        if "dragoman_egress" in updated:
            try:
                self.egress = read_egress(ctx.options.dragoman_egress)
            except ValueError as error:
                raise exceptions.OptionsError(f"dragoman_egress: {error}") from error
        if "dragoman_observe" in updated and ctx.options.dragoman_observe:
            try:
                self.upstream = read_upstream(ctx.options.dragoman_observe)
            except ValueError as error:
                raise exceptions.OptionsError(f"dragoman_observe: {error}") from error
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
            websockets=options.dragoman_websockets,
        )
        self.gateway = Gateway(settings, self.diversions.tickets)
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
            create_app(self.gateway),
            log_level="warning",
            lifespan="off",
            server_header=False,
            ws="wsproto",
            ws_max_size=settings.request_limit,
            ws_ping_interval=None,  # Codex answers none while its tools run, and would be cut off for it
        )
        self.server = _Server(config)
        self.serving = asyncio.create_task(self.server.serve(sockets=[listener]), name="dragoman app")
        if options.dragoman_observe:
            self.observer = Observer(self.gateway, self.upstream)
        else:
            self.warming = asyncio.create_task(self._warm(self.gateway), name="dragoman model")
        self.announced = home.announce_gateway(home.state_folder(), _own_address(options))
        self.ready.set()

    async def _warm(self, gateway: Gateway) -> None:
        """Load the tokenizer before the first call needs it; without an engine the first call says so."""
        try:
            await gateway.model.get()
        except DragomanError as error:
            log.warning("dragoman: %s (calls are answered as soon as it is there)", error.message)

    async def done(self) -> None:
        for flow in self.leaving.values():  # mitmproxy saves the unfinished ones now
            redact(flow)
        if self.server is not None and self.serving is not None and self.gateway is not None:
            self.server.should_exit = True
            await self.gateway.stop()
            await self.serving
        if self.announced is not None:
            self.announced.close()

    # -- flows ------------------------------------------------------------------------------------------------------

    async def http_connect(self, flow: http.HTTPFlow) -> None:
        """A tunnel needs an open episode's token: git sends credentials only after a 407 challenge."""
        await self.ready.wait()
        assert self.gateway is not None
        user = read_proxy_user(flow.request.headers.pop("proxy-authorization", None))
        redact(flow)  # whatever else it holds is for nobody
        if user is None:
            if not self.gateway.settings.open_mode:
                flow.response = _proxy_authentication_required()
            return
        credentials, _, _ = read_credentials({}, "/", "", user)
        try:
            await self.gateway.identify(Hop(credentials, None, ""), None)
        except DragomanError as error:
            if error.status != 401:
                flow.response = _refusal(error.status, error.message)
            else:
                flow.response = _proxy_authentication_required()
            return
        self.proxy_users[flow.client_conn.id] = user

    def client_disconnected(self, client: connection.Client) -> None:
        self.proxy_users.pop(client.id, None)

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        size = sum(len(name) + len(value) for name, value in flow.request.headers.fields) + len(flow.request.path)
        if size > HEADER_LIMIT:
            flow.response = _refusal(431, f"the request's head has {size} bytes; at most {HEADER_LIMIT} are taken")

    async def request(self, flow: http.HTTPFlow) -> None:
        if flow.response is not None:
            return
        await self.ready.wait()
        own = self._is_own(flow)
        host = flow.request.host.lower().rstrip(".")
        if self.observer is not None and self._is_observed(flow, own):
            await self._observe(self.observer, flow, own)
        elif own or provider_for_host(host) is not None:
            hop = self._take_credentials(flow, own)
            path = urllib.parse.unquote(split_target(flow.request.path)[0])
            self.diversions.divert(flow, hop, self.port, keep=not CONTROL_PATH.match(path))
        elif (refusal := await self._refuse_stranger(flow)) is not None:
            flow.response = refusal
        elif side := find_side_answer(host, flow.request.method, split_target(flow.request.path)[0]):
            flow.response = http.Response.make(side.status, side.body, {"content-type": side.content_type})
        elif not self.egress.allows(host, flow.request.port):
            flow.response = http.Response.make(404, NOT_FOUND, {"content-type": "application/json"})
        else:
            self.leaving[flow.id] = flow

    async def server_connect(self, data: ServerConnectionHookData) -> None:
        """A name that may be asked for must not lead back to this machine, whatever it resolves to."""
        assert data.server.address is not None
        host, port = data.server.address[:2]
        named = self.observer is not None and self.upstream is not None and self.upstream.address == (host, port)
        if (host, port) == ("127.0.0.1", self.port) or data.server.via is not None or named:
            return
        try:
            address = await self.egress.resolve(host, port, asyncio.get_running_loop().getaddrinfo)
        except OSError as error:
            data.server.error = str(error)
            return
        data.server.sni = data.server.sni or host
        data.server.address = (address, port)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        tee = self.diversions.tee(flow) or (self.observer and self.observer.tee(flow))
        flow.response.stream = tee or flow.response.raw_content is None

    def response(self, flow: http.HTTPFlow) -> None:
        self._before_saving(flow)

    def error(self, flow: http.HTTPFlow) -> None:
        self._before_saving(flow)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _is_own(self, flow: http.HTTPFlow) -> bool:
        """Whether a request is meant for this gateway itself: origin-form, to one of our names."""
        if flow.request.scheme != "http":
            return False
        host = flow.request.host.lower()
        names = {"localhost", (ctx.options.listen_host or "").lower(), *ctx.options.dragoman_names.lower().split()}
        return host in names or _is_loopback(host) or isinstance(flow.client_conn.proxy_mode, mode_specs.ReverseMode)

    def _is_observed(self, flow: http.HTTPFlow, own: bool) -> bool:
        """Whether a request is for a provider; what is for the control API is not."""
        if not own:
            return provider_for_host(flow.request.host.lower().rstrip(".")) is not None
        return not CONTROL_PATH.match(urllib.parse.unquote(flow.request.path))

    async def _observe(self, observer: Observer, flow: http.HTTPFlow, own: bool) -> None:
        self.leaving[flow.id] = flow
        try:
            await observer.watch(flow, own=own, proxy_user=self._proxy_user(flow))
        except DragomanError as error:
            status = 426 if error.message == NO_SOCKETS else error.status
            flow.response = _refusal(status, error.message)

    async def _refuse_stranger(self, flow: http.HTTPFlow) -> http.Response | None:
        """Whose request for another host is it? Takes our credentials out of it; those of that host stay.

        Returns the refusal of a request that belongs to no open episode.
        """
        assert self.gateway is not None
        request = flow.request
        lowered = {name.lower(): value for name, value in request.headers.items()}
        credentials, _, _ = read_credentials(lowered, "/", "", self._proxy_user(flow))
        take_ours(request)
        if self.gateway.settings.open_mode and not credentials.tokens:
            return None
        try:
            await self.gateway.identify(Hop(credentials, None, ""), None)
        except DragomanError as error:
            return _proxy_authentication_required() if error.status == 401 else _refusal(error.status, error.message)
        return None

    def _proxy_user(self, flow: http.HTTPFlow) -> str | None:
        header = flow.request.headers.get("proxy-authorization")
        return read_proxy_user(header) or self.proxy_users.get(flow.client_conn.id)

    def _take_credentials(self, flow: http.HTTPFlow, own: bool) -> Hop:
        """Take every credential out of the flow; what it said of its origin is kept in the hop."""
        request = flow.request
        for name in [name for name in request.headers if name.lower().startswith(INTERNAL_PREFIX)]:
            del request.headers[name]
        user = self._proxy_user(flow)
        target_path, target_query = split_target(request.path)
        lowered = {name.lower(): value for name, value in request.headers.items()}
        credentials, path, query = read_credentials(lowered, target_path, target_query, user)
        if flow.is_replay:
            credentials = Credentials(frozenset(filter(None, [ctx.options.dragoman_replay_token])))
        for name in CREDENTIAL_HEADERS:
            request.headers.pop(name, None)
        request.path = join_target(path, query)
        address = f"{request.scheme}://{request.host_header or f'{request.host}:{request.port}'}"
        return Hop(credentials, None if own else request.host.lower().rstrip("."), address)

    def _before_saving(self, flow: http.HTTPFlow) -> None:
        self.diversions.restore(flow)
        if self.observer is not None:
            self.observer.finish(flow)
        self.leaving.pop(flow.id, None)
        redact(flow)  # also where a request was refused before anything looked at its credentials


def _own_address(options: Options) -> str:
    """Where this gateway is reached from this machine."""
    host = options.listen_host or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{options.listen_port or 8080}"


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


def _refusal(status: int, message: str) -> http.Response:
    body = orjson.dumps({"error": {"type": "refused", "message": message}})
    return http.Response.make(status, body, {"content-type": "application/json"})


addons = [Intercept()]
