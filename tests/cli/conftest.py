"""What the command-line tests share: a state folder per test, a way to run a command, stub HTTP servers."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Answer = tuple[int, Any]
"""Status, and a JSON value (or bytes, sent as they are)."""
Answers = Callable[[str, str, Any], Answer]
"""``(method, path, JSON body or None) → answer``."""


@dataclass
class Stub:
    """A running stub server and what it was asked."""

    address: str
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh state folder; no variable of the developer's shell reaches the test."""
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("DRAGOMAN_GATEWAY", "DRAGOMAN_EPISODE", "DRAGOMAN_OPERATOR_KEY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "state"
    monkeypatch.setenv("DRAGOMAN_HOME", str(folder))
    return folder


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run ``dragoman`` with arguments in this process."""
    from dragoman.cli import main

    def command(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        captured = capsys.readouterr()
        code = exit_.value.code
        return Result(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return command


@pytest.fixture
def serve_stub() -> Iterator[Callable[[Answers], Stub]]:
    """Start stub servers; all are stopped at the end of the test."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> Stub:
        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                stub.requests.append((self.command, self.path, body))
                stub.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, value = answers(self.command, self.path, body)
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _answer

            def log_message(self, format: str, *args: Any) -> None:
                """Keep the test's output clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        stub = Stub(f"http://127.0.0.1:{server.server_address[1]}")
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return stub

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def nobody() -> str:
    """An address that nothing listens on."""
    from dragoman.cli.processes import free_port

    return f"http://127.0.0.1:{free_port()}"
