"""A scripted engine inside the test's own process, on a thread: what most tests of the gateway talk to."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from dragoman.rollout.script import read_script
from dragoman.rollout.scripted_engine import ScriptedEngine
from tests.models import tiny_model_folder


@dataclass(frozen=True)
class Scripted:
    address: str
    engine: ScriptedEngine | None = None
    """``None``: it is another process."""

    def release(self) -> None:
        """Let one held reply go on."""
        httpx.post(f"{self.address}/scripted/release", trust_env=False).raise_for_status()

    def requests(self) -> list[dict[str, Any]]:
        """What was asked so far, and what became of it."""
        asked: list[dict[str, Any]] = httpx.get(f"{self.address}/scripted/requests", trust_env=False).json()
        return asked

    def told(self) -> list[str]:
        """The routes that change weights, in the order in which they were asked."""
        assert self.engine is not None
        return list(self.engine.weights.told)

    def forget_weights(self) -> None:
        """As a restart does."""
        assert self.engine is not None
        self.engine.weights.version = "default"
        self.engine.weights.adapters.clear()

    def wait_for_state(self, number: int, state: str) -> None:
        """Wait until request ``number`` has come and is in ``state``; fails after ten seconds."""
        limit = time.monotonic() + 10
        while True:
            asked = self.requests()
            if len(asked) > number and asked[number]["state"] == state:
                return
            assert time.monotonic() < limit, f"request {number} is not {state!r}: {[one['state'] for one in asked]}"
            time.sleep(0.01)


@contextmanager
def scripted_engine(
    steps: list[dict[str, Any]], *, model: Path | None = None, max_model_len: int | None = None
) -> Iterator[Scripted]:
    """Serve ``steps`` with the tokenizer of ``model`` (the tiny one unless named)."""
    engine = ScriptedEngine(str(model or tiny_model_folder()), read_script(steps), max_model_len=max_model_len)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(engine.app(), log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{listener.getsockname()[1]}", engine)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
