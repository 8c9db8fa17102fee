"""Which hosts may be reached from here, beside the engine (by default none), and where observed calls go. Pure, but for
the resolver passed in.

Rules of this module: a host is allowed by its name, exactly as the harness asked for it. What a name resolves to is
looked at as well: nothing that is not a provider may lead back to this machine or to what lives on the link, where the
engine, the control API and a cloud's credentials are.
"""

import ipaddress
import socket
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

GetAddrInfo = Callable[..., Awaitable[list[Any]]]
"""As the event loop's own ``getaddrinfo``."""
Policy = Literal["block", "allow", "pass"]


@dataclass(frozen=True, slots=True)
class Egress:
    policy: Policy = "block"
    hosts: tuple[str, ...] = ()
    """With ``allow``: ``host``, ``host:port``, or ``.host`` for every name below it; lower case."""

    def allows(self, host: str, port: int) -> bool:
        """Whether a request to ``host`` may leave. The name as it was asked for; case and a final dot do not count."""
        host = host.lower().rstrip(".")
        if self.policy == "pass":
            return True
        return any(_matches(pattern, host, port) for pattern in self.hosts)

    async def resolve(self, host: str, port: int, getaddrinfo: GetAddrInfo) -> str:
        """The IP address to connect to for ``host``.

        Raises ``OSError`` when there is none, or when one of them is this machine or its link; only a host that the
        operator allowed together with its port may be that.
        """
        found = await getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if f"{host.lower()}:{port}" not in self.hosts and (inside := [one for one in addresses if is_internal(one)]):
            raise OSError(
                f"{host!r} leads to {inside[0]}, which is this machine or its link; name it as HOST:PORT to allow it"
            )
        if not addresses:
            raise OSError(f"{host!r} has no address")
        return addresses[0]


def read_egress(text: str) -> Egress:
    """The policy that ``block``, ``pass`` or ``allow HOST…`` says. Raises ``ValueError`` with what is wrong."""
    policy, *hosts = text.lower().split() or [""]
    if policy not in get_args(Policy):
        raise ValueError(f"must be block, pass or 'allow HOST…', not {text!r}")
    if (policy == "allow") != bool(hosts):
        raise ValueError(f"'allow' needs host names behind it, and only 'allow' does: {text!r}")
    for host in hosts:
        if "/" in host or "*" in host or not host.strip(".") or not host.rpartition(":")[2]:
            raise ValueError(f"{host!r} is no host; say github.com, .github.com (all below it) or github.com:443")
    return Egress(policy, tuple(hosts))  # type: ignore[arg-type]


def _matches(pattern: str, host: str, port: int) -> bool:
    name, colon, wanted = pattern.rpartition(":")
    if not colon:
        name = pattern
    elif wanted != str(port):
        return False
    return host.endswith(name) if name.startswith(".") else host == name


def is_internal(address: str) -> bool:
    """Whether an IP address is this machine or its link: loopback, unspecified, link-local, multicast.

    Private networks are not: a mirror or a Git server may well stand in one.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True  # no address at all: nothing to connect to
    if isinstance(ip, ipaddress.IPv6Address) and (mapped := ip.ipv4_mapped or ip.sixtofour) is not None:
        ip = mapped
    return ip.is_loopback or ip.is_unspecified or ip.is_link_local or ip.is_multicast


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where observed traffic goes instead of the provider's own host."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


def read_upstream(text: str) -> Upstream | None:
    """``provider``: each provider's own host (``None``); else an address. Raises ``ValueError``."""
    if text == "provider":
        return None
    url = urllib.parse.urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query:
        raise ValueError(f"must be 'provider' or an address as https://host:port, not {text!r}")
    return Upstream(url.scheme, url.hostname, url.port or (443 if url.scheme == "https" else 80))


def is_loopback(host: str) -> bool:
    """Whether a host as somebody wrote it is this machine's own loopback: ``localhost`` or such an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
