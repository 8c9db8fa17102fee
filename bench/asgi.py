"""One request to an ASGI app in this process, as a server would hand it over, and its whole answer.

No HTTP library stands between, so that a path, a header or a body may be what no client would send, and a client may
leave while it sends or reads.
"""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp

from bench.mutations import Request


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    """0: nothing came, as when the client had left."""
    headers: dict[str, str]
    body: bytes


async def ask(app: ASGIApp, request: Request) -> Answer:
    """Raises what the app raises; a server would close the connection then."""
    sent = False
    left = asyncio.Event()
    status = 0
    headers: dict[str, str] = {}
    body = bytearray()

    async def receive() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            await left.wait()
            return {"type": "http.disconnect"}
        sent = True
        if request.leaves == "sending":
            left.set()
            half = len(request.body) // 2
            return {"type": "http.request", "body": request.body[:half], "more_body": True}
        if request.leaves == "reading":
            asyncio.get_running_loop().call_later(0.002, left.set)
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                left.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode(),
        "query_string": request.query.encode("latin-1", errors="replace"),
        "root_path": "",
        "headers": list(request.headers),
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
    await app(scope, receive, send)
    return Answer(status, headers, bytes(body))
