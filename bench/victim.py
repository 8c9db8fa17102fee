"""A gateway that is killed on purpose: forked from a process that has everything loaded, watched at each await.

Rules of this module: the product's code is not changed and knows nothing of this. What is done to it is done by name
in the forked child before mitmproxy starts: the call's coroutines are driven by ``Watch``, which sees every suspension,
and the functions that commit are wrapped. A point is named by the innermost line of ours that awaits.

``python -m bench.victim MODEL`` reads one JSON object a line (``Order``) and answers with ``{"pid": …}`` and, when the
child has ended, ``{"ended": …}``.
"""

import gc
import json
import linecache
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Aim:
    """Where the gateway is to be killed."""

    point: str
    hit: int
    """Which time that the point is come to, counted from 1, while enough calls are in flight."""
    in_flight: int = 8
    warm: int = 0
    """How many calls must be over before."""


@dataclass(frozen=True)
class Order:
    """One gateway to start."""

    arguments: list[str]
    """mitmdump's."""
    environment: dict[str, str]
    log: str
    points: str
    """File to which each point is written when it is first come to, one a line."""
    killed: str
    """File that says at which point it was killed, and how many calls were in flight."""
    aim: Aim | None = None
    slow: float = 0.0
    """Seconds before each commit, so that an event that is let out too early is far ahead of its record."""
    clock: int | None = None
    """Seed of a clock that jumps by an hour, forth and back; ``None``: it does not."""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class Sight:
    """Counts the calls in flight, sees the points, and kills."""

    def __init__(self, order: Order) -> None:
        self.aim = order.aim
        self.in_flight = 0
        self.over = 0
        self._points = open(order.points, "a", buffering=1)  # noqa: SIM115 (as long as the process)
        self._killed = order.killed
        self._seen: set[str] = set()
        self._hits = 0
        self._lock = threading.Lock()

    def at(self, point: str) -> None:
        """The gateway has come to ``point``. May not return."""
        with self._lock:
            if point not in self._seen:
                self._seen.add(point)
                self._points.write(point + "\n")
            if self.aim is None or point != self.aim.point:
                return
            if self.in_flight < self.aim.in_flight or self.over < self.aim.warm:
                return
            self._hits += 1
            if self._hits < self.aim.hit:
                return
            partial = Path(f"{self._killed}.partial")
            partial.write_text(json.dumps({"point": point, "in_flight": self.in_flight}))
            partial.rename(self._killed)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, slow: float, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with a point before it and one after it, and ``slow`` seconds between the first and it."""

        def watched(*arguments: Any, **named: Any) -> Any:
            self.at(f"before {name}")
            time.sleep(slow)
            result = function(*arguments, **named)
            self.at(f"after {name}")
            return result

        return watched

    def awaited(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """A coroutine function whose every suspension is a point, and every resumption."""

        async def watched(*arguments: Any, **named: Any) -> Any:
            return await Watch(function(*arguments, **named), self)

        return watched

    def iterated(self, function: Callable[..., AsyncGenerator[bytes]]) -> Callable[..., AsyncGenerator[bytes]]:
        """An async generator function, likewise; what it yields is a point, too."""

        async def watched(*arguments: Any, **named: Any) -> AsyncGenerator[bytes]:
            events = function(*arguments, **named)
            try:
                while True:
                    try:
                        event = await Watch(events.__anext__(), self)
                    except StopAsyncIteration:
                        return
                    self.at(f"before the client gets what {function.__qualname__} yields")
                    yield event
                    self.at(f"after the client got what {function.__qualname__} yields")
            finally:
                await events.aclose()

        return watched


class Watch(Awaitable[Any]):
    """Drives something that can be awaited and sees where it waits."""

    def __init__(self, awaited: Any, sight: Sight) -> None:
        self._awaited = awaited
        self._sight = sight

    def __await__(self) -> Generator[Any, Any, Any]:
        step, given = self._awaited.send, None
        while True:
            try:
                waiting = step(given)
            except StopIteration as stop:
                return stop.value
            point = _where(self._awaited)
            self._sight.at(f"waiting in {point}")
            try:
                step, given = self._awaited.send, (yield waiting)
            except GeneratorExit:
                self._awaited.close()
                raise
            except BaseException as error:
                step, given = self._awaited.throw, error
            self._sight.at(f"going on in {point}")


def _where(awaited: Any) -> str:
    """The innermost line of the gateway's own code that waits."""
    found = "?"
    at = awaited
    while at is not None:
        frame = next((getattr(at, name) for name in ("cr_frame", "ag_frame", "gi_frame") if hasattr(at, name)), None)
        if frame is None and not hasattr(at, "cr_await"):  # the step of an async generator does not say whose it is
            frame = next((one.ag_frame for one in gc.get_referents(at) if hasattr(one, "ag_frame")), None)
            at_inner = next((one.ag_await for one in gc.get_referents(at) if hasattr(one, "ag_await")), None)
        else:
            names = ("cr_await", "ag_await", "gi_yieldfrom")
            at_inner = next((getattr(at, name) for name in names if hasattr(at, name)), None)
        if frame is not None and "/addons/" in frame.f_code.co_filename:
            code = frame.f_code
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            found = f"{Path(code.co_filename).stem}.{code.co_qualname}: {line}"
        at = at_inner
    return found


def arm(order: Order) -> None:
    """Do to the loaded modules what the order says."""
    from dragoman.addons import app, delivery, drain, generation, keeper, outbox, outbox_episodes, respond

    sight = Sight(order)
    _replace(app, "handle", sight.awaited)
    _replace(respond, "told", sight.iterated)
    _replace(generation.Generation, "_run", sight.awaited)
    for owner, name, said, slow in (
        (delivery, "write_outcomes", "write_outcomes (in the transaction)", 0.0),
        (keeper, "deliver", "the commit of a batch into SQLite", order.slow),
        (drain, "deliver", "the commit of a batch into PostgreSQL", order.slow),
        (outbox.Outbox, "commit", "Outbox.commit", order.slow),
        (outbox.Outbox, "delivered", "Outbox.delivered", 0.0),
        (outbox_episodes.OpenEpisodes, "remember", "OpenEpisodes.remember", 0.0),
    ):
        _replace(owner, name, partial(sight.around, said, slow))
    _replace(app, "create_app", partial(_counting, sight))
    if order.clock is not None:
        _let_jump(random.Random(order.clock))


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _counting(sight: Sight, made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``create_app``, of an app that tells how many calls are in flight."""

    def create_app(gateway: Any) -> Any:
        inner = made(gateway)

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"].startswith("/dragoman"):
                await inner(scope, receive, send)
                return
            sight.in_flight += 1
            try:
                await inner(scope, receive, send)
            finally:
                sight.in_flight -= 1
                sight.over += 1

        return counted

    return create_app


def _let_jump(chance: random.Random) -> None:
    """Put the clock an hour forth or back, twice a second or so."""
    real = time.time
    offset = 0.0
    until = 0.0

    def jumping() -> float:
        nonlocal offset, until
        if time.monotonic() > until:
            offset, until = chance.choice((-3600.0, 0.0, 3600.0)), time.monotonic() + chance.uniform(0.2, 0.8)
        return real() + offset

    time.time = jumping


def main() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import uvicorn  # noqa: F401
    from mitmproxy.tools.main import mitmdump

    from dragoman.addons import app, observer, options, served  # noqa: F401
    from dragoman.addons.bridge import probe
    from dragoman.addons.tokens import TokenCodec

    model = sys.argv[1]
    codec = TokenCodec.load(model)
    bridges = probe(codec, "template")
    _replace(TokenCodec, "load", lambda _: lambda *_, **__: codec)
    _replace(served, "probe", lambda _: lambda *_: bridges)
    gc.freeze()
    for line in sys.stdin:
        value = json.loads(line)
        aim = value.pop("aim")
        order = Order(**value, aim=None if aim is None else Aim(**aim))
        pid = os.fork()
        if pid == 0:
            os.setsid()
            log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, nothing), (1, log), (2, log)):
                os.dup2(source, target)
            os.environ.update(order.environment)
            arm(order)
            try:
                mitmdump(order.arguments)
            finally:
                os._exit(0)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
