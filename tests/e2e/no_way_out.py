"""Run by ``test_no_way_out.py`` in a process of its own: a gateway in a network with nothing but loopback.

It is asked for models and for everything else that a harness may ask for; printed as JSON is what it answered, and
what the kernel and the name server saw of anything that wanted to leave. Exit code 77: no such network can be made.
"""

import base64
import contextlib
import json
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from dragoman.rollout.network import isolate, no_route
from tests.gateway import RunningGateway, running_gateway
from tests.scripted import scripted_engine

MODEL = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def model_calls(gateway: RunningGateway, token: str) -> dict[str, int]:
    """The status of a model call by base URL, and of one by proxy in each dialect's own host."""
    direct = httpx.Client(trust_env=False, timeout=60)
    with direct, by_proxy(gateway, token) as proxied:
        key = {"x-api-key": f"dgm_{token}"}
        contents = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
        google = "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent"
        return {
            "base url": direct.post(f"{gateway.address}/v1/messages", json=MODEL, headers=key).status_code,
            "anthropic": proxied.post("https://api.anthropic.com/v1/messages", json=MODEL).status_code,
            "openai": proxied.post("https://api.openai.com/v1/chat/completions", json=CHAT).status_code,
            "google": proxied.post(google, json=contents).status_code,
        }


def by_proxy(gateway: RunningGateway, token: str) -> httpx.Client:
    trust = ssl.create_default_context(cafile=gateway.ca)
    return httpx.Client(proxy=gateway.proxy(token), verify=trust, trust_env=False, timeout=60)


def everything_else(gateway: RunningGateway, token: str) -> dict[str, int | str]:
    """The status (or the error) of what a harness, its tools or an attacker may ask of a proxy."""
    urls = [
        "https://github.com/openai/plugins.git/info/refs?service=git-upload-pack",
        "https://telemetry.example/v1/batch",
        "https://api.anthropic.com/api/event_logging/v2/batch",
        "https://api.openai.com/nothing/known/here",
        "https://192.0.2.1/",
        "http://192.0.2.1/",
        "http://example.com/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[2001:db8::1]/",
        "https://[2001:db8::1]/",
    ]
    found: dict[str, int | str] = {}
    with by_proxy(gateway, token) as client:
        for url in urls:
            found[url] = tried(lambda url=url: client.get(url).status_code)  # type: ignore[misc]
    with httpx.Client(proxy=gateway.address, trust_env=False, timeout=60) as nobody:
        found["without a token"] = tried(lambda: nobody.get("http://example.com/").status_code)
    found["CONNECT to a mail server"] = raw(gateway, token, "192.0.2.1:25", b"EHLO me\r\n")
    found["CONNECT, then no TLS"] = raw(gateway, token, "example.com:443", b"\x00\x01\x02\x03 no protocol\r\n\r\n")
    found["Host of another"] = raw(gateway, token, "api.openai.com:80", b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
    return found


def tried(ask: Callable[[], int]) -> int | str:
    try:
        return ask()
    except httpx.HTTPError as error:
        return type(error).__name__


def raw(gateway: RunningGateway, token: str, target: str, after: bytes) -> str:
    """Open a tunnel and say something in it; how the gateway answered, in few words."""
    host, _, port = gateway.address.removeprefix("http://").partition(":")
    credentials = base64.b64encode(f"{token}:x".encode()).decode()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode()
        )
        answer = connection.recv(4096)
        if b" 200 " not in answer.split(b"\r\n", 1)[0] + b" ":
            return answer.split(b"\r\n", 1)[0].decode()
        connection.settimeout(3)  # a gateway that waits for more of a protocol that it does not know is fine
        try:
            connection.sendall(after)
            answer = connection.recv(4096)
        except OSError as error:
            return type(error).__name__
        return answer.split(b"\r\n", 1)[0].decode(errors="replace") or "closed"


def main(folder: Path) -> int:
    names = isolate(folder)
    if names is None:
        return 77
    with (
        scripted_engine([{"text": "hello", "repeat": True}]) as engine,
        running_gateway(folder / "home", engine.address) as gateway,
    ):
        token = gateway.open().token
        calls = model_calls(gateway, token)
        others = everything_else(gateway, token)
        seen = {"no_route": no_route(), "names": sorted(set(names))}
    with contextlib.suppress(OSError):  # that the count counts, in this very network
        socket.create_connection(("192.0.2.1", 443), timeout=5).close()
    print(json.dumps({"calls": calls, "others": others, **seen, "with one attempt": no_route()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
