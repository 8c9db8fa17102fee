"""Traffic that is only looked at: it goes on to the real provider, and what was said is recorded, without tokens.

Rules of this module: a request and its reply reach the other side as they were sent, credentials of ours apart. What
cannot be understood is recorded all the same, with the reason. Provider keys are on the wire only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import orjson
from mitmproxy import http

from dragoman.addons.blobs import message_blob, reply_blob, tools_blob
from dragoman.addons.bodies import read_json_object
from dragoman.addons.call import sampling_json
from dragoman.addons.classify import classify
from dragoman.addons.egress import Upstream
from dragoman.addons.errors import DragomanError, NoSockets, Unauthorized
from dragoman.addons.gateway import Gateway
from dragoman.addons.hop import Hop
from dragoman.addons.identity import new_id, read_credentials, read_harness
from dragoman.addons.messages import ChatRequest
from dragoman.addons.observed_reply import read_reply
from dragoman.addons.providers import find_provider, provider_for_path
from dragoman.addons.providers.base import Provider, Route
from dragoman.addons.redact import join_target, lower_headers, split_target, take_ours, without_secrets
from dragoman.addons.reply_bytes import ReplyBytes
from dragoman.store.records import CallArrival, CallOutcome


@dataclass(slots=True)
class _Watched:
    arrival: CallArrival
    provider: Provider
    route: Route
    request: ChatRequest | DragomanError
    """The error: why the request could not be understood. The provider may well take it."""
    reply: ReplyBytes = field(default_factory=ReplyBytes)


@dataclass(slots=True)
class Observer:
    gateway: Gateway
    upstream: Upstream | None
    _watched: dict[str, _Watched] = field(default_factory=dict)

    async def watch(self, flow: http.HTTPFlow, *, own: bool, proxy_user: str | None) -> None:
        """Send a flow on to the provider, and note it if it is a call.

        ``own``: it came to our own address. Raises ``DragomanError`` for one that goes nowhere.
        """
        request = flow.request
        target_path, target_query = split_target(request.path)
        headers = lower_headers(request)
        credentials, path, query = read_credentials(headers, target_path, target_query, proxy_user)
        if not own:
            path = target_path
        harness = read_harness(headers)
        episode = await self.gateway.identify(Hop(credentials, None, ""), harness.thread)
        if not credentials.foreign and (own or self.upstream is None):
            raise Unauthorized(
                "the gateway only looks on here, and the provider wants a key of its own: set the provider's key, and "
                "name the episode by the proxy's user or by the path /e/<token>/…"
            )
        if headers.get("upgrade", "").lower() == "websocket":
            raise NoSockets("no WebSockets while the gateway looks on; use HTTP")
        take_ours(request)
        found = find_provider(
            host=None if own else request.host, method=request.method, path=path, query=query, headers=headers
        )
        self._send_on(request, own, provider_for_path(path) if found is None else found[0])
        request.path = join_target(path, split_target(request.path)[1])
        if found is None or found[1].kind != "generate":
            return
        provider, route = found
        chat: ChatRequest | DragomanError
        try:
            chat = provider.parse_request(read_json_object(request.get_content(strict=False) or b""), route)
        except DragomanError as error:
            chat = error
        arrival = CallArrival(
            id=new_id(20),
            episode_id=episode.id,
            provider=provider.name,
            path=path,
            arrived_at=time.time(),
            harness=harness.name,
            harness_version=harness.version,
            thread=harness.thread,
            kind=harness.kind if isinstance(chat, DragomanError) else classify(harness, chat),
        )
        await self.gateway.recorder.arrive(arrival)
        self._watched[flow.id] = _Watched(arrival, provider, route, chat)

    def _send_on(self, request: http.Request, own: bool, provider: Provider) -> None:
        if self.upstream is not None:
            target = self.upstream
        elif own:
            target = Upstream("https", provider.hosts[0], 443)
        else:
            return
        request.scheme, request.host, request.port = target.scheme, target.host, target.port
        default = target.port == (443 if target.scheme == "https" else 80)
        request.host_header = target.host if default else f"{target.host}:{target.port}"

    def tee(self, flow: http.HTTPFlow) -> Callable[[bytes], bytes] | None:
        """Passes an observed call's reply on as it comes, and keeps it; ``None``: it is no observed call."""
        watched = self._watched.get(flow.id)
        return None if watched is None else watched.reply.tee

    def finish(self, flow: http.HTTPFlow) -> None:
        """Record how an observed call ended; to be called in the event loop, when its reply is over or broken."""
        watched = self._watched.pop(flow.id, None)
        if watched is None:
            return
        watched.reply.put_back(flow)
        outcome = observed(watched, flow.response, time.time())
        if outcome.error_message:
            outcome = replace(outcome, error_message=without_secrets(outcome.error_message, flow.request))
        self.gateway.recorder.finish(outcome)


def observed(watched: _Watched, response: http.Response | None, now: float) -> CallOutcome:
    """The row of a call that a real provider answered. Pure. ``response`` ``None``: it sent none."""
    status = None if response is None else response.status_code
    outcome = CallOutcome(id=watched.arrival.id, status="observed", http_status=status, finished_at=now)
    chat = watched.request
    if isinstance(chat, ChatRequest):
        outcome = replace(
            outcome,
            model=chat.model,
            stream=chat.stream,
            messages=tuple(message_blob(message) for message in chat.messages),
            tools=tools_blob(chat.tools),
            sampling_asked=sampling_json(chat.sampling),
        )
    if response is None or response.status_code >= 400:
        said = "the provider sent no reply" if response is None else _error_text(response)
        refused = response is not None and response.status_code < 500
        return replace(outcome, status="refused" if refused else "failed", error_code="provider", error_message=said)
    problem = chat.message if isinstance(chat, DragomanError) else None
    try:
        content_type = response.headers.get("content-type", "")
        parts = read_reply(watched.provider, watched.route, content_type, response.get_content(strict=False) or b"")
        outcome = replace(outcome, reply=reply_blob(parts))
    except DragomanError as error:
        problem = error.message
    return replace(outcome, error_message=problem)


def _error_text(response: http.Response) -> str:
    """The first thousand characters of what the provider said."""
    body = response.get_content(strict=False) or b""
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"])[:1000]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:1000].decode(errors="replace")
