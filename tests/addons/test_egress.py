"""Which hosts may be reached: by name, and by what the name leads to."""

from typing import Any

import pytest

from dragoman.addons.egress import Egress, Upstream, is_internal, is_loopback, read_egress, read_upstream


@pytest.mark.parametrize(
    ("policy", "host", "port", "allowed"),
    [
        ("block", "github.com", 443, False),
        ("pass", "github.com", 443, True),
        ("allow github.com", "github.com", 443, True),
        ("allow github.com", "GitHub.com.", 80, True),
        ("allow github.com", "evil-github.com", 443, False),
        ("allow github.com", "github.com.evil.org", 443, False),
        ("allow github.com", "api.github.com", 443, False),
        ("allow .github.com", "api.github.com", 443, True),
        ("allow .github.com", "github.com", 443, False),
        ("allow .github.com", "evilgithub.com", 443, False),
        ("allow github.com:443", "github.com", 443, True),
        ("allow github.com:443", "github.com", 22, False),
        ("allow a.org  B.org", "b.org", 443, True),
        ("allow github.com", "github.com\u3002evil.org", 443, False),
        ("allow github.com", "140.82.112.3", 443, False),
        ("allow github.com", "", 443, False),
    ],
)
def test_a_host_is_allowed_by_its_own_name_only(policy: str, host: str, port: int, allowed: bool) -> None:
    assert read_egress(policy).allows(host, port) is allowed


@pytest.mark.parametrize(
    "policy", ["", "deny", "allow", "pass github.com", "block x", "allow https://github.com", "allow *.com", "allow a:"]
)
def test_a_policy_that_is_none_is_named(policy: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_egress(policy)


@pytest.mark.parametrize(
    ("address", "internal"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", True),
        ("169.254.169.254", True),
        ("224.0.0.1", True),
        ("::1", True),
        ("::", True),
        ("::ffff:127.0.0.1", True),
        ("2002:7f00:1::", True),
        ("fe80::1%eth0", True),
        ("no address", True),
        ("10.0.0.1", False),
        ("140.82.112.3", False),
        ("2606:50c0:8000::153", False),
    ],
)
def test_what_counts_as_this_machine(address: str, internal: bool) -> None:
    assert is_internal(address) is internal


def resolver(*addresses: str) -> Any:
    async def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        return [(None, None, None, "", (address, port)) for address in addresses]

    return getaddrinfo


async def test_a_name_that_leads_here_is_refused_whatever_else_it_leads_to() -> None:
    egress = Egress("pass")
    assert await egress.resolve("a.org", 443, resolver("140.82.112.3")) == "140.82.112.3"
    with pytest.raises(OSError, match=r"'a\.org' leads to 127\.0\.0\.1"):
        await egress.resolve("a.org", 443, resolver("140.82.112.3", "127.0.0.1"))
    with pytest.raises(OSError, match="no address"):
        await egress.resolve("a.org", 443, resolver())


async def test_only_a_host_that_was_allowed_with_its_port_may_be_here() -> None:
    here = resolver("127.0.0.1")
    assert await read_egress("allow localhost:9000").resolve("localhost", 9000, here) == "127.0.0.1"
    for policy in ("allow localhost", "pass", "allow localhost:9001"):
        with pytest.raises(OSError, match="this machine"):
            await read_egress(policy).resolve("localhost", 9000, here)


@pytest.mark.parametrize("text", ["", "yes", "api.anthropic.com", "ftp://a", "https://a/v1", "https://"])
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="provider"):
        read_upstream(text)


def test_addresses() -> None:
    assert read_upstream("provider") is None
    assert read_upstream("https://gate.example") == Upstream("https", "gate.example", 443)
    assert read_upstream("http://gate.example:81/") == Upstream("http", "gate.example", 81)


def test_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "gpu-box")] == [False] * 4
