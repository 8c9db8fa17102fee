"""A real gateway for tests: mitmdump with the addon, in a process of its own, with a state folder of its own."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dragoman.cli.processes import Child, free_port, start, stop
from dragoman.gateway_client import GatewayClient, OpenedEpisode
from dragoman.home import operator_key
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.records import CallInfo

ADDON = Path(__file__).resolve().parents[1] / "addons" / "intercept.py"


@dataclass
class RunningGateway:
    address: str
    home: Path
    child: Child

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.home / 'dragoman.db'}"

    @property
    def ca(self) -> Path:
        return self.home / "certs" / "mitmproxy-ca-cert.pem"

    def client(self) -> GatewayClient:
        return GatewayClient(self.address, operator_key(self.home))

    def open(self, **spec: Any) -> OpenedEpisode:
        with self.client() as client:
            return client.open_episode(**spec)

    @property
    def app_port(self) -> int:
        """The loopback port of the app behind the proxy, which nobody is told."""
        return next(port for port in listening(self.child.process.pid) if not self.address.endswith(f":{port}"))

    def proxy(self, token: str) -> str:
        return self.address.replace("://", f"://{token}:x@")

    def calls(self, episode_id: str) -> list[CallInfo]:
        """What the store holds; works while the gateway runs and after it was killed."""
        database = Database.open(self.store_url)
        try:
            with database.reading() as session:
                return read_calls(session, episode_id)
        finally:
            database.close()

    def kill(self) -> None:
        """``kill -9``, as the kernel does when memory runs out."""
        self.child.process.send_signal(signal.SIGKILL)
        self.child.process.wait()


def listening(pid: int) -> list[int]:
    """The loopback ports on which a process listens."""
    sockets = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
        except OSError:
            continue
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


@contextmanager
def running_gateway(
    home: Path, engine: str, *arguments: str, settings: dict[str, str] | None = None
) -> Iterator[RunningGateway]:
    """Start it over the state folder ``home`` and wait until it answers."""
    port = free_port()
    options = {"dragoman_engine": engine, "dragoman_max_reply_tokens": "64", "flow_detail": "0"} | (settings or {})
    command = [
        str(Path(sys.executable).parent / "mitmdump"),
        "--listen-host",
        "127.0.0.1",
        "-p",
        str(port),
        "-s",
        str(ADDON),
    ]
    for name, value in options.items():
        command += ["--set", f"{name}={value}"]
    environment = {**os.environ, "DRAGOMAN_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    child = start([*command, *arguments], environment, home.parent / f"{home.name}-gateway.log")
    gateway = RunningGateway(f"http://127.0.0.1:{port}", home, child)
    try:
        _wait_ready(gateway)
        yield gateway
    finally:
        stop(child)


def _wait_ready(gateway: RunningGateway) -> None:
    limit = time.monotonic() + 120
    while True:
        if gateway.child.returncode() is not None or time.monotonic() > limit:
            raise AssertionError("the gateway does not start:\n" + gateway.child.log.read_text(errors="replace"))
        try:
            httpx.get(f"{gateway.address}/", timeout=5, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
