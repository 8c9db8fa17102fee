"""The entry for ``mitmdump -s``: where each flow goes.

Rules of this module: mitmproxy loads it under a name of its own, so nothing imports it. It decides where a flow goes
and nothing about what it means. Credentials are taken out of a flow before it goes anywhere; the origin is put back
before it is saved, so a saved flow says what the harness said and heard, and can be replayed.
"""

import asyncio
import logging
import re
import urllib.parse
from typing import TextIO

import orjson
from mitmproxy import connection, ctx, http
from mitmproxy.addonmanager import Loader
from mitmproxy.proxy import mode_specs
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from dragoman import home
from dragoman.addons.app import create_app
from dragoman.addons.diversion import Diversions
from dragoman.addons.egress import Egress, is_loopback, read_egress, read_upstream
from dragoman.addons.errors import DragomanError
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import INTERNAL_PREFIX, Hop, Tickets
from dragoman.addons.hosting import HostedApp
from dragoman.addons.identity import (
    CREDENTIAL_HEADERS,
    Credentials,
    read_credentials,
    read_proxy_user,
)
from dragoman.addons.observer import Observer
from dragoman.addons.options import add_options, check_options, own_address, read_settings
from dragoman.addons.providers import provider_for_host
from dragoman.addons.providers.side import find_side_answer
from dragoman.addons.redact import join_target, lower_headers, redact, split_target, take_ours

log = logging.getLogger("dragoman")
HEADER_LIMIT = 64 * 1024
"""Bytes of a request's path and headers. The largest head of a harness had 6 kB."""
CONTROL_PATH = re.compile(r"/*dragoman(/|$)")
"""The control API, whose answers hold tokens; more slashes than the app itself takes, to be on the safe side."""
NOT_FOUND = b'{"error":{"type":"not_found","message":"blocked by the gateway: this host is not a model provider"}}'


class Intercept:
    def __init__(self) -> None:
        self.diversions = Diversions(Tickets())
        self.leaving: dict[str, http.HTTPFlow] = {}
        """Flow id → flow on its way to another host, with credentials that must not be saved."""
        self.egress = Egress()
        self.observer: Observer | None = None
        """Set where calls are not answered here but only looked at."""
        self.proxy_users: dict[str, str] = {}
        """Client connection id → user name of its CONNECT's proxy credentials."""
        self.ready = asyncio.Event()
        self.gateway: Gateway | None = None
        self.app: HostedApp | None = None
        self.warming: asyncio.Task[None] | None = None
        self.announced: TextIO | None = None
        """Open as long as other commands may count on this gateway."""

    # -- options ----------------------------------------------------------------------------------------------------

    def load(self, loader: Loader) -> None:
        for noisy in ("alembic", "httpx", "httpcore", "transformers"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        add_options(loader)

    def configure(self, updated: set[str]) -> None:
        check_options(updated)

    # -- hosting the app --------------------------------------------------------------------------------------------

    async def running(self) -> None:
        options = ctx.options
        try:
            settings = read_settings(options)
            self.gateway = Gateway(settings, self.diversions.tickets)
            await self.gateway.start()
        except Exception as error:
            log.error("dragoman cannot start: %s", error)
            ctx.master.shutdown()
            raise
        self.egress = read_egress(options.dragoman_egress)
        self.app = HostedApp(create_app(self.gateway), message_limit=settings.request_limit)
        if options.dragoman_observe:
            self.observer = Observer(self.gateway, read_upstream(options.dragoman_observe))
        else:
            self.warming = asyncio.create_task(self._warm(self.gateway), name="dragoman model")
        self.announced = home.announce_gateway(home.state_folder(), own_address(options))
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
        if self.app is not None and self.gateway is not None:
            self.app.no_more()
            await self.gateway.stop()
            await self.app.ended()
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
            flow.response = _not_identified(error)
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
        host = _host(flow.request)
        if self.observer is not None and self._is_observed(flow, own):
            await self._observe(self.observer, flow, own)
        elif own or provider_for_host(host) is not None:
            assert self.app is not None
            hop = self._take_credentials(flow, own)
            path = urllib.parse.unquote(split_target(flow.request.path)[0])
            self.diversions.divert(flow, hop, self.app.port, keep=not CONTROL_PATH.match(path))
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
        assert self.app is not None
        named = [("127.0.0.1", self.app.port)]
        if self.observer is not None and self.observer.upstream is not None:
            named.append(self.observer.upstream.address)
        if (host, port) in named or data.server.via is not None:
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
        return host in names or is_loopback(host) or isinstance(flow.client_conn.proxy_mode, mode_specs.ReverseMode)

    def _is_observed(self, flow: http.HTTPFlow, own: bool) -> bool:
        """Whether a request is for a provider; what is for the control API is not."""
        if not own:
            return provider_for_host(_host(flow.request)) is not None
        return not CONTROL_PATH.match(urllib.parse.unquote(flow.request.path))

    async def _observe(self, observer: Observer, flow: http.HTTPFlow, own: bool) -> None:
        self.leaving[flow.id] = flow
        try:
            await observer.watch(flow, own=own, proxy_user=self._proxy_user(flow))
        except DragomanError as error:
            flow.response = _refusal(error.status, error.message)

    async def _refuse_stranger(self, flow: http.HTTPFlow) -> http.Response | None:
        """Whose request for another host is it? Takes our credentials out of it; those of that host stay.

        Returns the refusal of a request that belongs to no open episode.
        """
        assert self.gateway is not None
        request = flow.request
        lowered = lower_headers(request)
        credentials, _, _ = read_credentials(lowered, "/", "", self._proxy_user(flow))
        take_ours(request)
        if self.gateway.settings.open_mode and not credentials.tokens:
            return None
        try:
            await self.gateway.identify(Hop(credentials, None, ""), None)
        except DragomanError as error:
            return _not_identified(error)
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
        lowered = lower_headers(request)
        credentials, path, query = read_credentials(lowered, target_path, target_query, user)
        if flow.is_replay:
            credentials = Credentials(frozenset(filter(None, [ctx.options.dragoman_replay_token])))
        for name in CREDENTIAL_HEADERS:
            request.headers.pop(name, None)
        request.path = join_target(path, query)
        address = f"{request.scheme}://{request.host_header or f'{request.host}:{request.port}'}"
        return Hop(credentials, None if own else _host(request), address)

    def _before_saving(self, flow: http.HTTPFlow) -> None:
        self.diversions.restore(flow)
        if self.observer is not None:
            self.observer.finish(flow)
        self.leaving.pop(flow.id, None)
        redact(flow)  # also where a request was refused before anything looked at its credentials


def _host(request: http.Request) -> str:
    """The host asked for, as it is compared."""
    return request.host.lower().rstrip(".")


def _not_identified(error: DragomanError) -> http.Response:
    """A proxy says 407 where others say 401: only on that does git send its credentials."""
    return _proxy_authentication_required() if error.status == 401 else _refusal(error.status, error.message)


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
