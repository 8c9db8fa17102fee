"""Sending a flow to the app instead of its origin, and putting the origin back before the flow is saved.

Rules of this module: what a saved flow says is what the harness said and heard. The reply's bytes pass as they come and
are kept beside, so a cut stream keeps those it got.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mitmproxy import http

from dragoman.addons.hop import TICKET_HEADER, Hop, Tickets
from dragoman.addons.reply_bytes import ReplyBytes


@dataclass(slots=True)
class _Diverted:
    """What a flow looked like before it was sent to the app, and its reply so far."""

    scheme: str
    host: str
    port: int
    authority: str
    host_header: str | None
    ticket: str
    reply: ReplyBytes


@dataclass(slots=True)
class Diversions:
    tickets: Tickets
    _by_flow: dict[str, _Diverted] = field(default_factory=dict)

    def divert(self, flow: http.HTTPFlow, hop: Hop, port: int, *, keep: bool) -> None:
        """Send ``flow`` to the app at loopback ``port``. ``keep``: whether its reply may be saved."""
        request = flow.request
        ticket = self.tickets.issue(hop)
        self._by_flow[flow.id] = _Diverted(
            request.scheme,
            request.host,
            request.port,
            request.authority,
            request.host_header,
            ticket,
            ReplyBytes(keep),
        )
        request.headers[TICKET_HEADER] = ticket
        request.scheme, request.host, request.port = "http", "127.0.0.1", port

    def tee(self, flow: http.HTTPFlow) -> Callable[[bytes], bytes] | None:
        """Passes a diverted flow's reply on as it comes, and keeps it; ``None``: the flow is not a diverted one."""
        diverted = self._by_flow.get(flow.id)
        return None if diverted is None else diverted.reply.tee

    def restore(self, flow: http.HTTPFlow) -> None:
        """Put the origin back before the flow is saved, with the bytes that the client got."""
        diverted = self._by_flow.pop(flow.id, None)
        if diverted is None:
            return
        self.tickets.withdraw(diverted.ticket)
        request = flow.request
        request.headers.pop(TICKET_HEADER, None)
        request.scheme, request.host, request.port = diverted.scheme, diverted.host, diverted.port
        request.authority = diverted.authority
        request.host_header = diverted.host_header
        diverted.reply.put_back(flow)
