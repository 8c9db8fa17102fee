"""What the proxy knows about a request and the app cannot see: passed in memory, under a one-time ticket.

The addon takes the credentials out of a flow, puts them here, and forwards the request with a random ticket in one
header. The app takes the ticket back. So no secret travels, none can end up in a saved flow, and a request that comes
to the app's port by another road has no ticket and is refused.
"""

import secrets
from dataclasses import dataclass, field

from starlette.types import Scope

from dragoman.addons.identity import Credentials

TICKET_HEADER = "x-dragoman-ticket"
INTERNAL_PREFIX = "x-dragoman-"
"""Inbound headers that start so are removed at the edge."""


def read_target(scope: Scope) -> tuple[str, str]:
    """Path (decoded) and query of a request, as they were sent.

    Starlette's ``request.url`` puts them together with the Host header and takes that apart again: a model's name with
    ``?`` or ``#`` in it ends the path there, a line break goes, and a Host that is none is an error.
    """
    return scope["path"], scope["query_string"].decode("latin-1")


@dataclass(frozen=True, slots=True)
class Hop:
    credentials: Credentials
    host: str | None
    """The provider host that the harness meant to reach (proxy mode); ``None``: our own address (base-URL mode)."""
    address: str
    """``scheme://host:port`` at which the harness reached us, for environments that point back here."""


@dataclass(slots=True)
class Tickets:
    """Tickets given out and not yet used. Both ends live in one process and one event loop."""

    _open: dict[str, Hop] = field(default_factory=dict)

    def issue(self, hop: Hop) -> str:
        ticket = secrets.token_hex(16)
        self._open[ticket] = hop
        return ticket

    def redeem(self, ticket: str | None) -> Hop | None:
        """The hop behind a ticket, once; ``None`` for a ticket that is missing, used or made up."""
        return self._open.pop(ticket, None) if ticket else None

    def withdraw(self, ticket: str) -> None:
        """Forget a ticket whose request never arrived."""
        self._open.pop(ticket, None)
