"""The store away, hung, killed or full, and a clock that jumps: do harnesses notice, and is anything lost?

``make faults`` runs it. The same clients, gateway and engine as in ``bench.kills``, and the same judgement of the store
against what the clients saw. ``postgres``: ``kill -9`` of the whole server, again and again under load, with one outage
in which the gateway is killed and started again, and one in which the server hangs. ``disk``: the file system of the
store, or of the outbox, fills up and has room again; once the gateway is killed meanwhile. ``clock``: an hour forth and
back, twice a second, and a ``kill -9`` in the middle.

Ends with one JSON line a figure.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kills import Gateway, continuations, judge, read_episodes, scripted_engine, until
from bench.postgres import Postgres
from bench.talkers import Crowd, Sent

FULL_SECONDS = 6.0
HUNG_SECONDS = 8.0
TMPFS_BYTES = 6 * 1024 * 1024


@dataclass
class Watched:
    """A crowd at a gateway, and what it said."""

    gateway: Gateway
    store: str
    log: list[Sent] = field(default_factory=list)
    crowd: Crowd = field(init=False)

    async def start(self, turns: int, clock: int | None = None) -> None:
        self.crowd = Crowd(self.gateway.address, self.gateway.key, turns=turns, said=self.log.append)
        self.gateway.start(clock=clock)
        await self.gateway.ready()
        self.crowd.start()
        self.crowd.up.set()
        await until(lambda: len(self.log) >= 12)

    async def restart(self, *, clock: int | None = None) -> None:
        """``kill -9`` with calls in flight, and a new gateway; the clients ask again by themselves."""
        await until(lambda: len(self.crowd.flying) >= 8)
        self.crowd.up.clear()
        self.gateway.end(signal.SIGKILL)
        await until(lambda: not self.crowd.flying)
        self.gateway.start(clock=clock)
        await self.gateway.ready()
        self.crowd.up.set()

    async def end(self) -> tuple[list[str], int]:
        """Stop the clients and judge. What is wrong, and how many requests went on exactly from what they followed."""
        await self.crowd.stop()
        await self.gateway.drained()
        stored = read_episodes(self.store, {one.episode for one in self.log})
        exact, others = continuations(self.log, stored)
        problems = judge(self.log, stored) + others
        for problem in problems:
            print(problem, file=sys.stderr, flush=True)
        self.gateway.end(signal.SIGTERM)
        return problems, exact

    def answered(self, since: int) -> int:
        return sum(one.phase == "done" and one.error is None for one in self.log[since:])

    def told(self, since: int = 0) -> Counter[str]:
        """What clients were told instead of a reply, without the connections that broke with the gateway."""
        broke = ("ReadError", "ConnectError", "RemoteProtocolError")
        errors = (f"{one.status} {one.error}" for one in self.log[since:] if one.error)
        return Counter(error[:160] for error in errors if not any(word in error for word in broke))


async def postgres(folder: Path, model: str, seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    server = Postgres.make()
    try:
        server.start()
        with scripted_engine(folder, model, 0.02) as engine:
            watched = Watched(Gateway(folder / "home", engine, server.url, model, {}), server.url)
            try:
                await watched.start(turns=30)
                while_down = killed = 0
                for number in range(count):
                    await asyncio.sleep(chance.uniform(0.3, 1.2))
                    killed += server.kill()
                    begun = len(watched.log)
                    if number == count // 2:
                        await watched.restart()
                        await asyncio.sleep(3)
                    await asyncio.sleep(chance.choice((0.2, 0.5, 1.0, 3.0)))
                    while_down += watched.answered(begun)
                    await asyncio.to_thread(server.start)
                server.freeze(True)
                begun = len(watched.log)
                await asyncio.sleep(HUNG_SECONDS)
                hung = watched.answered(begun)
                server.freeze(False)
                problems, exact = await watched.end()
            finally:
                watched.gateway.close()
    finally:
        server.remove()
    told = watched.told()
    for error, times in told.items():
        print(f"{times} clients were told {error}", file=sys.stderr)
    return [
        _figure("postgres_kills", count, "kills", None),
        _figure("postgres_processes_killed", killed, "processes", None),
        _figure("postgres_requests", len(watched.log), "requests", None),
        _figure("postgres_answered_while_it_was_down", while_down, "replies", None),
        _figure("postgres_answered_while_it_hung", hung, "replies", None),
        _figure("postgres_exact_continuations", exact, "calls", None),
        _figure("postgres_errors_that_clients_saw", told.total(), "errors", 0),
        _figure("postgres_problems", len(problems), "problems", 0),
    ]


class NoSmallDisk(RuntimeError):
    """A file system of our own cannot be mounted here."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own with a few megabytes. Raises ``NoSmallDisk`` where it cannot be mounted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise NoSmallDisk(f"no small disk can be mounted here ({done.stderr.strip()}); run this as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave not one byte."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass


async def disk(folder: Path, model: str, kind: str) -> list[dict[str, Any]]:
    server = Postgres.make() if kind == "postgresql" else None
    try:
        if server is not None:
            server.start()
        with small_disk(folder / "disk") as small, scripted_engine(folder, model, 0.02) as engine:
            store = server.url if server is not None else f"sqlite:///{small / 'dragoman.db'}"
            settings = {} if server is None else {"dragoman_outbox": str(small / "outbox.db")}
            watched = Watched(Gateway(folder / "home", engine, store, model, settings), store)
            try:
                await watched.start(turns=12)
                found = []
                for killed in (False, True):
                    await asyncio.sleep(1)
                    fill(small)
                    await asyncio.sleep(1)  # what the last pages still took
                    begun = len(watched.log)
                    await asyncio.sleep(FULL_SECONDS)
                    said = str((await watched.gateway.status())["recording"])
                    acted = sum(one.acted for one in watched.log[begun:])
                    waiting = len(watched.crowd.flying)
                    if killed:
                        watched.crowd.up.clear()
                        watched.gateway.end(signal.SIGKILL)
                        await until(lambda: not watched.crowd.flying)
                        (small / "ballast").unlink()
                        watched.gateway.start()
                        await watched.gateway.ready()
                        watched.crowd.up.set()
                    else:
                        (small / "ballast").unlink()
                    freed, begun = time.monotonic(), len(watched.log)
                    await until(lambda begun=begun: watched.answered(begun) >= 12)  # type: ignore[misc]
                    found.append((killed, acted, waiting, "full" in said, time.monotonic() - freed))
                problems, exact = await watched.end()
            finally:
                watched.gateway.close()
    finally:
        if server is not None:
            server.remove()
    told = watched.told()
    for error, times in told.items():
        print(f"{times} clients were told {error}", file=sys.stderr)
    figures = []
    for killed, acted, waiting, said_full, seconds in found:
        name = f"disk_{kind}_{'killed' if killed else 'left'}"
        figures += [
            _figure(f"{name}_acted_on_while_full", acted, "replies", 0),
            _figure(f"{name}_waiting_while_full", waiting, "calls", None),
            _figure(f"{name}_status_did_not_say_so", int(not said_full), "times", 0),
            _figure(f"{name}_twelve_replies_after", round(seconds, 2), "s", 30),
        ]
    return [
        *figures,
        _figure(f"disk_{kind}_requests", len(watched.log), "requests", None),
        _figure(f"disk_{kind}_exact_continuations", exact, "calls", None),
        _figure(f"disk_{kind}_errors_that_clients_saw", told.total(), "errors", None),
        _figure(f"disk_{kind}_problems", len(problems), "problems", 0),
    ]


async def clock(folder: Path, model: str, kind: str, seed: int, seconds: float) -> list[dict[str, Any]]:
    server = Postgres.make() if kind == "postgresql" else None
    try:
        if server is not None:
            server.start()
        with scripted_engine(folder, model, 0.02) as engine:
            store = server.url if server is not None else f"sqlite:///{folder / 'dragoman.db'}"
            watched = Watched(Gateway(folder / "home", engine, store, model, {}), store)
            try:
                await watched.start(turns=12, clock=seed)
                await asyncio.sleep(seconds / 2)
                await watched.restart(clock=seed + 1)
                await asyncio.sleep(seconds / 2)
                problems, exact = await watched.end()
            finally:
                watched.gateway.close()
    finally:
        if server is not None:
            server.remove()
    told = watched.told()
    for error, times in told.items():
        print(f"{times} clients were told {error}", file=sys.stderr)
    return [
        _figure(f"clock_{kind}_requests", len(watched.log), "requests", None),
        _figure(f"clock_{kind}_exact_continuations", exact, "calls", None),
        _figure(f"clock_{kind}_errors_that_clients_saw", told.total(), "errors", 0),
        _figure(f"clock_{kind}_problems", len(problems), "problems", 0),
    ]


def _figure(name: str, value: float, unit: str, target: float | None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "met": target is None or value <= target}


def main() -> int:
    from tests.models import tiny_model_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("postgres", "disk", "clock"), nargs="*", help="default: all three")
    parser.add_argument("--count", type=int, default=20, help="kills of PostgreSQL")
    parser.add_argument("--seconds", type=float, default=20, help="of a clock that jumps, over each kind of store")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    model = str(tiny_model_folder())
    met = True
    with tempfile.TemporaryDirectory(prefix="dragoman-outages-") as made:
        for what in options.what or ("postgres", "disk", "clock"):
            for kind in ("postgresql",) if what == "postgres" else ("sqlite", "postgresql"):
                folder = Path(made, f"{what}-{kind}")
                folder.mkdir()
                if what == "postgres":
                    figures = asyncio.run(postgres(folder, model, options.seed, options.count))
                elif what == "disk":
                    figures = asyncio.run(disk(folder, model, kind))
                else:
                    figures = asyncio.run(clock(folder, model, kind, options.seed, options.seconds))
                for figure in figures:
                    print(json.dumps(figure), flush=True)
                    met &= figure["met"]
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
