"""What the command-line tests share: a state folder per test, a way to run a command, stub HTTP servers."""

import hashlib
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


EPISODE = "abcdefgh1234"
CALLS = ("call0000000000000001", "call0000000000000002", "call0000000000000003", "dall0000000000000004")


@pytest.fixture
def filled_store(state: Path) -> str:
    """URL of the state folder's store with two episodes; ``EPISODE`` has an answered call with a tool call, a refused
    one, a side call and one without outcome."""
    import numpy as np

    from dragoman.home import default_store_url
    from dragoman.store.calls import write_arrivals, write_outcomes
    from dragoman.store.database import Database
    from dragoman.store.episodes import end_episode, open_episode, set_reward
    from dragoman.store.records import Blob, CallArrival, CallOutcome, EpisodeSpec, PolicySpan

    def blob(value: object) -> Blob:
        data = json.dumps(value).encode()
        return Blob(hashlib.sha256(data).digest()[:16], data)

    def arrival(index: int, **more: Any) -> CallArrival:
        return CallArrival(CALLS[index], EPISODE, "anthropic", "/v1/messages", 1000.0 + index, harness="pi", **more)

    user = {"role": "user", "parts": [{"type": "text", "text": "list the files [here]\nplease"}]}
    call = {"type": "tool_call", "id": "toolu_1", "name": "bash", "arguments": '{"cmd":"ls"}'}
    answered = CallOutcome(
        CALLS[0],
        "answered",
        200,
        1003.5,
        model="claude-x",
        stream=True,
        messages=(blob(user),),
        tools=blob([{"name": "bash", "description": "run", "parameters": {}}]),
        reply=blob({"role": "assistant", "parts": [{"type": "text", "text": "I will."}, call]}),
        prompt_len=4,
        prompt_ids=np.array([1, 2, 3, 4], np.int32),
        completion_ids=np.array([7, 8, 2], np.int32),
        logprobs=np.array([-0.5, -1.5, -0.25], np.float32),
        finish_reason="tool_calls",
        policy_spans=(PolicySpan("base", 0, 2), PolicySpan("policy-v1", 2, 3)),
        first_token_at=1000.75,
    )
    refused = CallOutcome(
        CALLS[1], "refused", 400, 1001.1, error_code="unsupported", error_message="no [audio] here", model="claude-x"
    )
    side = CallOutcome(
        CALLS[2],
        "answered",
        200,
        1002.5,
        prompt_len=2,
        prompt_ids=np.array([1, 2], np.int32),
        completion_ids=np.array([2], np.int32),
        logprobs=np.array([-1.0], np.float32),
        finish_reason="stop",
        policy_spans=(PolicySpan("policy-v1", 0, 1),),
    )
    url = default_store_url()
    database = Database.open(url)
    with database.session() as session:
        spec = EpisodeSpec(task="ls-task", group="g1", expected=2)
        times = {"now": 999.0, "expires_at": 9e9}
        open_episode(session, spec, episode_id=EPISODE, token_hash="0" * 64, **times)
        open_episode(session, EpisodeSpec(), episode_id="abzzzzzzzzzz", token_hash="1" * 64, **times)
        arrivals = [arrival(0), arrival(1), arrival(2, kind="side"), arrival(3)]
        assert write_arrivals(session, arrivals) == [None] * 4
        assert write_outcomes(session, [answered, refused, side]) == [None] * 3
        end_episode(session, EPISODE, "completed", reason="all done", now=1010.0)
        set_reward(session, EPISODE, 0.75, components=None, now=1011.0)
    database.close()
    return url
