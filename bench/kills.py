"""200 times ``kill -9`` of the gateway with at least eight calls in flight: is everything there that a client acted on?

``make faults`` runs it. Twelve clients (three dialects, streamed and whole, with and without a tool) talk without a
pause to a real gateway (mitmdump and the addon) and a scripted engine. The gateway is killed at every await of a call's
coroutine, at every commit, and at random moments, with commits as fast as they are or slowed down, so that what is let
out too early is seen by a client; half of it over SQLite, half over PostgreSQL with the outbox. After
each restart the store is held against what the clients wrote down:

- every reply of which a client saw something to act on is stored as answered, with the words that the client saw;
- no call is there twice, and none that was never sent; no call is left open; every ledger balances;
- the next turn goes on from the stored reply, to the token.

Ends with one JSON line a figure. ``--folder`` keeps what was done; ``--resume`` goes on there.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.postgres import Postgres
from bench.talkers import Crowd, Sent, script
from bench.victim import Aim, Order
from dragoman.addons.blobs import read_message
from dragoman.addons.messages import TextPart, ToolCallPart
from dragoman.cli.processes import free_port, running
from dragoman.home import operator_key
from dragoman.store.calls import GATEWAY_KILLED, read_calls
from dragoman.store.database import Database
from dragoman.store.ledger import audit
from dragoman.store.records import CallInfo

ROOT = Path(__file__).resolve().parents[1]
IN_FLIGHT = 8
TURNS = 6
SLOW = (0.0, 0.1)
"""Seconds by which commits are slowed down, in one half of the rounds and the other."""
AIM_SECONDS = 6.0
"""How long a point is waited for before the gateway is killed at whatever it does."""


@dataclass
class Round:
    """One kill and what was found after it."""

    number: int
    store: str
    point: str | None
    """Where it was killed; ``None``: at a random moment."""
    in_flight: int
    phases: dict[str, int]
    """How far the replies in flight had come at their clients."""
    fates: dict[str, int]
    """What became of the calls in flight in the store."""
    sent: int
    acted: int
    stored: dict[str, int]
    """Status → calls of this round's episodes."""
    continued: int
    """Calls that went on from a reply of before the kill, to the token."""
    problems: list[str] = field(default_factory=list)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what is waited for is another process, or many tasks)
        await asyncio.sleep(0.003)


class Gateway:
    """The gateway of a campaign: forked, killed, started again on the same port and state folder."""

    def __init__(self, home: Path, engine: str, store: str, model: str, settings: dict[str, str]) -> None:
        self.home = home
        home.mkdir(parents=True)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.key = operator_key(home)
        self.points = home / "points"
        self.killed = home / "killed"
        options = {
            "dragoman_engine": engine,
            "dragoman_model": model,
            "dragoman_store": store,
            "dragoman_max_reply_tokens": "64",
            "flow_detail": "0",
            "termlog_verbosity": "warn",
        } | settings
        self._arguments = ["--listen-host", "127.0.0.1", "-p", str(self.port), "-s", str(ROOT / "addons/intercept.py")]
        for name, value in options.items():
            self._arguments += ["--set", f"{name}={value}"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._forker = subprocess.Popen(
            [sys.executable, "-m", "bench.victim", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.pid: int | None = None

    def start(self, aim: Aim | None = None, *, slow: float = 0.0, clock: int | None = None) -> None:
        self.killed.unlink(missing_ok=True)
        environment = {"DRAGOMAN_HOME": str(self.home)}
        log = str(self.home / "gateway.log")
        order = Order(self._arguments, environment, log, str(self.points), str(self.killed), aim, slow, clock)
        assert self._forker.stdin is not None
        self._forker.stdin.write(order.line())
        self._forker.stdin.flush()
        self.pid = self._answer()["pid"]

    def _answer(self) -> dict[str, Any]:
        assert self._forker.stdout is not None
        line = self._forker.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks gateways has ended")
        return dict(json.loads(line))

    async def ready(self) -> None:
        """Return when it answers. Raises ``RuntimeError`` with its log."""
        limit = time.monotonic() + 60
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            while True:
                try:
                    answer = await http.get(f"{self.address}/v1/models", headers={"authorization": "Bearer x"})
                    if answer.status_code == 401:
                        return
                except httpx.TransportError:
                    pass
                if time.monotonic() > limit or self.gone:
                    log = (self.home / "gateway.log").read_text()
                    raise RuntimeError("the gateway does not start:\n" + log[-3000:])
                await asyncio.sleep(0.02)

    @property
    def gone(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"

    async def status(self) -> dict[str, Any]:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            headers = {"authorization": f"Bearer {self.key}"}
            return dict((await http.get(f"{self.address}/dragoman/status", headers=headers)).json())

    async def drained(self, seconds: float = 60.0) -> None:
        """Return when the store has everything. Raises ``RuntimeError``."""
        limit = time.monotonic() + seconds
        while (status := await self.status())["outbox_depth"]:
            if time.monotonic() > limit:
                raise RuntimeError(f"the store does not get everything: {status['recording']}")
            await asyncio.sleep(0.02)

    def end(self, how: signal.Signals) -> int:
        """Send a signal and wait; the exit code."""
        assert self.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self.pid, how)
        return self.wait()

    def wait(self) -> int:
        code = int(self._answer()["code"])
        self.pid = None
        return code

    def close(self) -> None:
        if self.pid is not None:
            with suppress(RuntimeError):  # what forks it is gone, too
                self.end(signal.SIGKILL)
        assert self._forker.stdin is not None
        self._forker.stdin.close()
        self._forker.wait(30)


@contextmanager
def scripted_engine(folder: Path, model: str, delay: float) -> Iterator[str]:
    """Address of a scripted engine in a process of its own."""
    steps = folder / "script.json"
    steps.write_text(json.dumps(script(delay)))
    port = free_port()
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", model, "--script", str(steps)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with running([*command, "--port", str(port)], environment, folder / "engine.log") as child:
        limit = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=5)
                break
            except httpx.TransportError:
                if time.monotonic() > limit or child.returncode() is not None:
                    raise RuntimeError("the engine does not start:\n" + "\n".join(child.last_lines(20))) from None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"


def said_of(call: CallInfo) -> str | None:
    """The stored reply in the words of ``Sent.said``; ``None``: there is none."""
    if call.outcome is None or call.outcome.reply is None:
        return None
    said = ""
    for part in read_message(call.outcome.reply.data).parts:
        if isinstance(part, TextPart):
            said += part.text
        elif isinstance(part, ToolCallPart):
            said += f"|{part.name} {json.loads(part.arguments)}"
    return said


def judge(sent: list[Sent], stored: dict[str, list[CallInfo]], *, at_rest: bool = True) -> list[str]:
    """What is wrong with the ``stored`` calls (by episode), held against everything ``sent`` in those episodes.

    ``at_rest``: no call can be running.
    """
    problems: list[str] = []
    calls = {call.arrival.id: call for of_episode in stored.values() for call in of_episode}
    if len(calls) != sum(map(len, stored.values())):
        problems.append("a call is in two episodes")
    for one in sent:
        call = None if one.call_id is None else calls.get(one.call_id)
        if not one.acted or one.error is not None:
            continue
        if call is None and one.call_id is None:
            problems.append(f"{one.marker}: a client acted on a reply without an id")
        elif call is None:
            problems.append(f"{one.marker}: a client acted on call {one.call_id}, which is not stored")
        elif call.outcome is None or call.outcome.status != "answered":
            status = call.outcome.status if call.outcome else "open"
            problems.append(f"{one.marker}: a client acted on call {one.call_id}, which is stored as {status}")
        elif call.outcome.retry_of is None and one.phase == "done" and said_of(call) != one.said:
            problems.append(f"{one.marker}: call {one.call_id} says {said_of(call)!r}, its client saw {one.said!r}")
    for episode, of_episode in stored.items():
        asked = Counter(one.marker for one in sent if one.episode == episode)
        if len(of_episode) > asked.total():
            problems.append(f"episode {episode}: {len(of_episode)} calls are stored, {asked.total()} were sent")
        held: Counter[str] = Counter()
        for call in of_episode:
            if call.outcome is None and at_rest:
                problems.append(f"call {call.arrival.id} is open")
            if call.outcome is not None and call.outcome.messages:
                newest = call.outcome.messages[-1].data.decode()
                held[next((marker for marker in asked if f'{marker}"' in newest), "?")] += 1
        problems += [
            f"episode {episode}: {marker} was sent {asked[marker]} times, and is stored {count} times"
            for marker, count in held.items()
            if count > asked[marker]
        ]
        problems += [f"episode {episode}: {problem}" for problem in audit(of_episode).problems]
    return problems


def continuations(sent: list[Sent], stored: dict[str, list[CallInfo]]) -> tuple[int, list[str]]:
    """How many answered requests went on from the reply that their client had, to the token; and those that did not."""
    calls = {call.arrival.id: call for of_episode in stored.values() for call in of_episode}
    exact, others = 0, []
    for one in sent:
        call = calls.get(one.call_id or "")
        if one.follows is None or call is None or call.outcome is None or call.outcome.status != "answered":
            continue
        if call.outcome.retry_of is not None:
            continue
        if call.outcome.fork_reason is None and _same(call.outcome.parent_id, one.follows, calls):
            exact += 1
        else:
            others.append(
                f"{one.marker}: call {one.call_id} goes on from {call.outcome.parent_id}, not from {one.follows} "
                f"({call.outcome.fork_reason})"
            )
    return exact, others


def _same(one: str | None, other: str, calls: dict[str, CallInfo]) -> bool:
    """Whether two calls are one, or were asked the same and sampled the same: a request that was sent again because its
    gateway had been killed, and which a client cannot tell from the first."""
    if one is None or other not in calls or one not in calls:
        return False
    found, wanted = calls[one].outcome, calls[other].outcome
    if found is None or wanted is None or found.completion_ids is None or wanted.completion_ids is None:
        return False
    asked = (found.parent_id, found.messages, found.prompt_len) == (
        wanted.parent_id,
        wanted.messages,
        wanted.prompt_len,
    )
    return one == other or (asked and found.completion_ids.tolist() == wanted.completion_ids.tolist())


def read_episodes(store: str, episodes: set[str]) -> dict[str, list[CallInfo]]:
    database = Database.open(store)
    try:
        with database.reading() as session:
            return {episode: read_calls(session, episode) for episode in sorted(episodes)}
    finally:
        database.close()


@dataclass
class Campaign:
    folder: Path
    store: str
    kind: str
    seed: int
    rounds: list[Round] = field(default_factory=list)
    log: list[Sent] = field(default_factory=list)
    """Every request that is over."""

    async def run(self, gateway: Gateway, count: int, first: int) -> None:
        crowd = Crowd(gateway.address, gateway.key, turns=TURNS, said=self.log.append)
        gateway.start()
        await gateway.ready()
        crowd.start()
        crowd.up.set()
        await asyncio.sleep(4)  # the first look at the points
        for number in range(first, first + count):
            await self._round(gateway, crowd, number)
        await crowd.stop()
        gateway.end(signal.SIGTERM)

    def _aim(self, gateway: Gateway, number: int) -> Aim | None:
        """Points in turn, as they are known by now; every third kill is at a random moment."""
        points = [line for line in gateway.points.read_text().splitlines() if line]
        hits = Counter(one.point for one in self.rounds)
        fresh = sorted(set(points), key=lambda point: (hits[point] + self._missed[point], points.index(point)))
        if number % 3 == 2 and hits[fresh[0]] + self._missed[fresh[0]]:
            return None
        chance = random.Random(f"{self.seed} {self.kind} {number}")
        return Aim(fresh[0], chance.randint(1, 6), IN_FLIGHT, warm=chance.choice((0, 12, 36)))

    _missed: Counter[str] = field(default_factory=Counter)

    async def _round(self, gateway: Gateway, crowd: Crowd, number: int) -> None:
        chance = random.Random(f"{self.seed} {self.kind} {number}")
        aim = self._aim(gateway, number)
        if aim is not None:  # the one that runs has no aim: end it in good order first
            crowd.up.clear()
            await until(lambda: not crowd.flying)
            gateway.end(signal.SIGTERM)
            gateway.start(aim, slow=chance.choice(SLOW))
            await gateway.ready()
            crowd.up.set()
        begun = len(self.log)
        limit = time.monotonic() + (AIM_SECONDS if aim else chance.uniform(0.3, 1.5))
        await until(lambda: time.monotonic() >= limit or gateway.killed.exists())
        await until(lambda: len(crowd.flying) >= IN_FLIGHT or gateway.killed.exists())
        in_flight, phases = len(crowd.flying), Counter(str(one.phase) for one in crowd.flying)
        flying = list(crowd.flying)
        crowd.up.clear()
        code = gateway.end(signal.SIGKILL)
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the gateway ended by itself with {code}; see {gateway.home / 'gateway.log'}")
        point = None
        if gateway.killed.exists():
            said = json.loads(gateway.killed.read_text())
            point, in_flight = said["point"], said["in_flight"]
        elif aim is not None:
            self._missed[aim.point] += 1
        await until(lambda: not crowd.flying)
        gateway.start(slow=chance.choice(SLOW))
        await gateway.ready()
        await gateway.drained()
        self._judge(number, point, in_flight, phases, flying, begun)
        crowd.up.set()

    def _judge(
        self, number: int, point: str | None, in_flight: int, phases: Counter[str], flying: list[Sent], begun: int
    ) -> None:
        fresh = self.log[begun:]
        episodes = {one.episode for one in fresh}
        stored = read_episodes(self.store, episodes)
        sent = [one for one in self.log if one.episode in episodes]
        problems = judge(sent, stored)
        exact, others = continuations(sent, stored)
        calls = {call.arrival.id: call for of_episode in stored.values() for call in of_episode}
        fates: Counter[str] = Counter()
        for one in flying:
            call = calls.get(one.call_id or "")
            fates[_fate(call) if one.call_id else "its client saw no id"] += 1
        statuses = Counter(_fate(call) for call in calls.values())
        found = Round(
            number=number,
            store=self.kind,
            point=point,
            in_flight=in_flight,
            phases=dict(phases),
            fates=dict(fates),
            sent=len(fresh),
            acted=sum(one.acted for one in fresh),
            stored=dict(statuses),
            continued=exact,
            problems=problems + others,
        )
        self.rounds.append(found)
        with (self.folder / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        for problem in found.problems:
            print(f"round {number} ({point}): {problem}", file=sys.stderr, flush=True)


def _fate(call: CallInfo | None) -> str:
    if call is None:
        return "not stored"
    if call.outcome is None:
        return "open"
    return "killed" if call.outcome.error_code == GATEWAY_KILLED else call.outcome.status


def figures(rounds: list[Round]) -> Iterator[dict[str, Any]]:
    for kind in sorted({one.store for one in rounds}):
        these = [one for one in rounds if one.store == kind]
        yield _figure(f"kills_{kind}", len(these), "kills", None)
        yield _figure(f"kills_{kind}_fewest_in_flight", min(one.in_flight for one in these), "calls", None)
        points = Counter(one.point for one in these if one.point)
        yield _figure(f"kills_{kind}_points", len(points), "points", None)
        yield _figure(f"kills_{kind}_at_points", points.total(), "kills", None)
        yield _figure(f"kills_{kind}_at_random", sum(one.point is None for one in these), "kills", None)
        yield _figure(f"kills_{kind}_requests", sum(one.sent for one in these), "requests", None)
        yield _figure(f"kills_{kind}_acted_on", sum(one.acted for one in these), "replies", None)
        for what, counts in (("phase", [one.phases for one in these]), ("fate", [one.fates for one in these])):
            total: Counter[str] = sum((Counter(one) for one in counts), Counter())
            for name, number in total.most_common():
                yield _figure(f"kills_{kind}_{what}_{name.replace(' ', '_')}", number, "calls in flight", None)
        yield _figure(f"kills_{kind}_problems", sum(len(one.problems) for one in these), "problems", 0)


def _figure(name: str, value: float, unit: str, target: float | None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "met": target is None or value <= target}


async def campaign(folder: Path, kind: str, count: int, first: int, seed: int, model: str) -> Campaign:
    """``count`` kills over one kind of store (``sqlite`` or ``postgresql``), numbered from ``first``."""
    home = folder / f"{kind}-{first}"
    postgres = Postgres.make() if kind == "postgresql" else None
    try:
        if postgres is not None:
            postgres.start()
        store = postgres.url if postgres is not None else f"sqlite:///{home / 'dragoman.db'}"
        with scripted_engine(folder, model, 0.02) as engine:
            gateway = Gateway(home, engine, store, model, {})
            found = Campaign(folder, store, kind, seed)
            try:
                await found.run(gateway, count, first)
            finally:
                gateway.close()
            return found
    finally:
        if postgres is not None:
            postgres.remove()


def main() -> int:
    from tests.models import tiny_model_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="half of it over each kind of store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    parser.add_argument("--folder", type=Path, help="default: a new one, which is removed")
    parser.add_argument("--resume", action="store_true", help="count the rounds that are in --folder already")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with tempfile.TemporaryDirectory(prefix="dragoman-kills-") as made:
        folder = options.folder or Path(made)
        done = folder / "rounds.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        rounds = []
        if options.resume and done.exists():
            rounds = [Round(**json.loads(line)) for line in done.read_text().splitlines()]
        elif done.exists():
            parser.error(f"{done} is there already; say --resume, or name another folder")
        for kind in ("sqlite", "postgresql"):
            if options.only not in (None, kind):
                continue
            first = sum(one.store == kind for one in rounds)
            wanted = options.count if options.only else options.count // 2
            if wanted > first:
                model = str(tiny_model_folder())
                found = asyncio.run(campaign(folder, kind, wanted - first, first, options.seed, model))
                rounds += found.rounds
        for point, number in sorted(Counter(one.point for one in rounds if one.point).items()):
            print(f"{number:4d}  {point}")
        met = True
        for figure in figures(rounds):
            print(json.dumps(figure))
            met &= figure["met"]
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
