"""Start a program in a process group of its own, watch it, and stop the whole group, whatever happens.

Rules of this module: a process is only ever stopped by its own group id.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dragoman.signals import postponed, undisturbed

PATIENCE = 15.0
"""Seconds that a group has to end by itself before it is killed."""


@dataclass(frozen=True, slots=True)
class Child:
    """A program that we started, the leader of its own process group."""

    process: subprocess.Popen[bytes]
    log: Path
    """Everything it wrote on stdout and stderr."""

    def returncode(self) -> int | None:
        """Its exit status (negative: killed by that signal); ``None`` while it runs."""
        return self.process.poll()

    def last_lines(self, count: int) -> list[str]:
        """The end of its log, at most ``count`` lines."""
        return self.log.read_text(errors="replace").splitlines()[-count:]


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
    """Start ``command`` with exactly ``environment``; its output replaces what was in ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(process, log)


def group_alive(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def stop(child: Child) -> None:
    """SIGTERM to the whole group, SIGKILL to what is left after ``PATIENCE`` seconds. Safe to call twice."""
    group = child.process.pid
    for sent, wait in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 5.0)):
        if not group_alive(group):
            break
        os.killpg(group, sent)
        limit = time.monotonic() + wait
        while time.monotonic() < limit:
            child.process.poll()  # reaps the leader, which would else keep its group alive
            if not group_alive(group):
                break
            time.sleep(0.05)
    child.process.wait()


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Child]:
    """``start``, and ``stop`` when the block is left in any way, also by a signal that comes while it starts."""
    child: Child | None = None
    try:
        with postponed():
            child = start(command, environment, log)
        yield child
    finally:
        if child is not None:
            with undisturbed():
                stop(child)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def why_no_listening(host: str, port: int) -> str | None:
    """Why nothing new can listen on ``host:port``, in the system's words; ``None``: it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None
