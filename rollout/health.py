"""Whether the gateway and its engine are there, so that a rollout waits for them and burns no tasks.

Rules of this module: one ``Health`` serves all samples of a process; it is asked from several threads. An outage is
remembered: a harness that failed while something was gone is not to blame.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from dragoman.gateway_client import GatewayClient, GatewayError
from dragoman.rollout.process import Stopped
from dragoman.store.records import JsonObject

__all__ = ["Health", "PatientClient", "Tell"]

FRESH = 1.0
"""Seconds for which one look serves everybody."""
AGAIN = 1.0
"""Seconds between looks while something is gone."""
WATCH_EVERY = 3.0
AWAY = (None, "overloaded", "timeout")
"""Codes of a refusal that waiting may help against: nobody answers, or the store is down."""

Tell = Callable[[str], None]
"""Gets one line for a person."""


class Health:
    """What is known of a gateway."""

    def __init__(self, client: GatewayClient, tell: Tell) -> None:
        self._client = client
        self._tell = tell
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._problem: str | None = None
        self._told = False
        self._started_at: float | None = None
        self._outages: list[tuple[float, str]] = []

    def look(self, *, fresh: bool = False) -> str | None:
        """What is wrong now, in words; None: nothing. ``fresh``: an answer of a moment ago is too old. Never raises."""
        with self._lock:
            if not fresh and time.monotonic() - self._looked_at < FRESH:
                return self._problem
            problem = None
            try:
                status = self._client.status()
            except GatewayError as error:
                problem = str(error)
            else:
                if status.engine_up is False:
                    problem = f"the engine at {status.engine} does not answer"
                if self._started_at not in (None, status.started_at):
                    self._outages.append((time.monotonic(), "the gateway was started anew"))
                self._started_at = status.started_at
            self._note(problem)
            return problem

    def report(self, problem: str) -> None:
        """Somebody found the gateway gone."""
        with self._lock:
            self._note(problem)

    def trouble_since(self, when: float) -> str | None:
        """What was wrong at any time since ``when`` (``time.monotonic``); None: nothing that is known."""
        now = self.look(fresh=True)
        with self._lock:
            return now or next((problem for at, problem in reversed(self._outages) if at >= when), None)

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Return when all is well. Raises ``Stopped``."""
        while self.look() is not None:
            if stopped():
                raise Stopped
            time.sleep(AGAIN / 4)

    @contextlib.contextmanager
    def watching(self) -> Any:
        """Look now and then while the block runs, so that short outages are known too."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_EVERY):
                self.look()

        thread = threading.Thread(target=watch, name="health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _note(self, problem: str | None) -> None:
        self._looked_at = time.monotonic()
        if problem is not None:
            self._outages.append((self._looked_at, problem))
            del self._outages[:-1000]
            if not self._told:
                self._tell(f"paused: {problem}")
                self._told = True
        elif self._told:
            self._tell("it is back; going on")
            self._told = False
        self._problem = problem


class PatientClient(GatewayClient):
    """A client that waits for a gateway that is away, instead of failing, until it is told to stop.

    Told to stop, it tries once more and then fails.
    """

    def __init__(self, address: str, operator_key: str, health: Health, stopped: Callable[[], bool]) -> None:
        super().__init__(address, operator_key, timeout=60.0)
        self._health = health
        self._stopped = stopped

    def _ask(self, method: str, path: str, body: JsonObject | None) -> dict[str, Any]:
        while True:
            try:
                return super()._ask(method, path, body)
            except GatewayError as error:
                if error.code not in AWAY or self._stopped():
                    raise
                self._health.report(str(error))
            time.sleep(AGAIN)
