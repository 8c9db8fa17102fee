"""Requests that are wrong somewhere, through the whole gateway in one process: does every one get a proper answer?

``make fuzz``, or ``python -m bench.fuzz --count N --seed S``. The right requests are the golden ones of the tests and,
where ``DRAGOMAN_WIRE`` names their folder, recorded ones. An engine in this process answers at once, and checks what it
is asked. Request ``n`` of a seed is always the same: ``--only n`` sends it alone and shows it.

After each 100 requests an episode ends, and its ledger must balance: everything that was answered is in the store, with
the status that was answered. Ends with one JSON line a figure; exit code 1 where one misses its target.
"""

import argparse
import asyncio
import ctypes
import gc
import itertools
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, get_args

from starlette.types import ASGIApp

from bench.answers import problems
from bench.asgi import Answer, ask
from bench.instant_engine import InstantEngine
from bench.mutations import Dialect, Request, Sample, keys_in, make_request, shrink
from dragoman.addons.app import create_app
from dragoman.addons.gateway import Gateway
from dragoman.addons.served import ServedModel
from dragoman.addons.settings import Settings
from dragoman.addons.tokens import TokenCodec
from dragoman.store.calls import read_calls
from dragoman.store.ledger import audit
from dragoman.store.records import JsonObject

HANG = 30.0
"""Seconds after which a request that has no answer counts as hanging."""
PER_EPISODE = 100
MEMORY = 128
"""MiB by which the process may grow from 10 % of the requests to the last: what the C library keeps in pieces, since
prompts of 100,000 tokens come and go. A leak of the gateway's own would show in the objects."""
OBJECTS = 5.0
"""Percent by which the number of Python's memory blocks may grow meanwhile."""
OPERATOR = "dgo_fuzz"
CASES = Path(__file__).resolve().parents[1] / "tests" / "addons" / "providers" / "cases"
CONTROL = Sample(
    "control",
    "control",
    {"task": "t", "group": "g", "expected": 2, "deadline_seconds": 9e9, "profile": "train", "temperature": 1.0}
    | {"metadata": {"a": 1}, "ttl_seconds": 3600},
)


@dataclass
class Report:
    asked: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    """What was wrong with an answer, each with the number of its request and what was done to it."""
    hangs: int = 0
    unbalanced: list[str] = field(default_factory=list)
    """What is wrong with an episode's ledger, or missing in the store."""
    calls: int = 0
    episodes: int = 0
    unexpected: int = 0
    seconds: float = 0.0
    slowest: tuple[float, int, str] = (0.0, -1, "")
    """Seconds, number, changes."""
    memory: list[float] = field(default_factory=list)
    """MiB of the process, after each tenth of the requests."""
    objects: list[int] = field(default_factory=list)
    """Python's memory blocks, then."""


def golden_samples() -> list[Sample]:
    return [CONTROL] + [
        Sample(f"{path.parent.parent.name}/{path.parent.name}", dialect, json.loads(path.read_text()))
        for dialect in get_args(Dialect)
        for path in sorted((CASES / dialect).glob("*/request.json"))
    ]


def recorded_samples(folder: Path) -> list[Sample]:
    """The recorded requests on routes that we have, made small."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        route, body = record.get("path") or "", record.get("body")
        if not isinstance(body, dict) or not (dialect := dialect_of_route(route)):
            continue
        small = shrink(body)
        if len(json.dumps(small)) < 10_000:
            found.append(Sample(path.stem, dialect, small))
    return found


def dialect_of_route(route: str) -> Dialect | None:
    for part, dialect in (("/messages", "anthropic"), ("/responses", "openai_responses"), ("/models/", "google")):
        if part in route:
            return dialect  # type: ignore[return-value]
    return "openai_chat" if "/completions" in route else None


class Fuzzer:
    def __init__(self, gateway: Gateway, app: ASGIApp, samples: Sequence[Sample], seed: int, count: int) -> None:
        self.gateway, self.app, self.seed, self.count = gateway, app, seed, count
        self.report = Report()
        self.samples = samples
        self.known = {
            dialect: frozenset[str]().union(*(keys_in(one.body) for one in samples if one.dialect == dialect))
            for dialect in get_args(Dialect)
        }
        self._numbers = iter(range(count))

    async def run(self, concurrency: int, seconds: float) -> None:
        started = time.monotonic()
        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(self._work(started + seconds))
        self.report.seconds = time.monotonic() - started
        self.report.unexpected = self.gateway.unexpected

    async def _work(self, until: float) -> None:
        while batch := list(itertools.islice(self._numbers, PER_EPISODE)):
            episode, key = await self._open(batch[0])
            statuses: dict[str, int] = {}
            for number in batch:
                if time.monotonic() > until:
                    return
                request = make_request(Random(f"{self.seed}:{number}"), self._samples_for(number), key)
                if request.dialect == "control":
                    request = _as_operator(request)
                answer = await self.send(number, request)
                name = answer.headers.get("request-id") or answer.headers.get("x-request-id")
                if name is not None and request.leaves is None:
                    statuses[name.removeprefix("req_")] = answer.status
            await self._close(episode, statuses)

    def _samples_for(self, number: int) -> Sequence[Sample]:
        """All of them, or those of one dialect, so that pieces of requests often land where they mean something."""
        dialect = (None, *get_args(Dialect)[:4])[number % 5]
        return [one for one in self.samples if dialect in (None, one.dialect)]

    async def send(self, number: int, request: Request) -> Answer:
        """Ask, and look at the answer."""
        report, began = self.report, time.monotonic()
        what = f"request {number} ({', '.join(request.changes)}; {request.method} {request.path[:100]})"
        answer = Answer(0, {}, b"")
        try:
            async with asyncio.timeout(HANG):
                answer = await ask(self.app, request)
        except TimeoutError:
            report.hangs += 1
            report.defects.append(f"{what}: no answer within {HANG:.0f} s")
        except Exception as error:
            report.defects.append(f"{what}: the app raised {error!r}")
        else:
            known = self.known[dialect_of_route(request.path) or request.dialect]
            report.defects += [f"{what}: {problem}" for problem in problems(request, answer, known)]
        report.slowest = max(report.slowest, (time.monotonic() - began, number, ", ".join(request.changes)))
        report.statuses[answer.status] += 1
        report.asked += 1
        if report.asked % max(1, self.count // 10) == 0:
            report.memory.append(resident())
            report.objects.append(sys.getallocatedblocks())
            print(f"{report.asked} requests, {len(report.defects)} defects, {report.memory[-1]:.0f} MiB", flush=True)
        return answer

    async def _open(self, number: int) -> tuple[str, str]:
        body = {"task": "fuzz", "profile": "as_asked" if number // PER_EPISODE % 2 else "train", "ttl_seconds": 86400}
        opened = json.loads((await ask(self.app, _operator("/dragoman/episodes", body))).body)
        self.report.episodes += 1
        return opened["id"], opened["api_key"]

    async def _close(self, episode: str, statuses: dict[str, int]) -> None:
        """End an episode once nothing of it is being sampled, and hold its ledger against what was answered."""
        running = [one.task for one in self.gateway.running.values() if one.call.arrival.episode_id == episode]
        if running:
            await asyncio.wait(running)
        await ask(self.app, _operator(f"/dragoman/episodes/{episode}/end", {}))
        await asyncio.to_thread(self._audit, episode, statuses)

    def _audit(self, episode: str, statuses: dict[str, int]) -> None:
        with self.gateway.database.reading() as session:
            calls = read_calls(session, episode)
        ledger = audit(calls)
        wrong = [f"episode {episode}: {problem}" for problem in ledger.problems]
        if ledger.open:
            wrong.append(f"episode {episode}: {ledger.open} calls have no outcome")
        stored = {call.arrival.id: call.outcome.http_status for call in calls if call.outcome is not None}
        wrong += [
            f"call {name}: answered {status}, and the store says {stored.get(name)}"
            for name, status in statuses.items()
            if stored.get(name) != status
        ]
        self.report.calls += ledger.arrived
        self.report.unbalanced += wrong


def _operator(path: str, body: JsonObject) -> Request:
    headers = ((b"authorization", f"Bearer {OPERATOR}".encode()),)
    return Request("control", "POST", path, "", headers, json.dumps(body).encode(), None, (), frozenset())


def _as_operator(request: Request) -> Request:
    headers = tuple((name, value) for name, value in request.headers if name != b"authorization")
    return replace(request, headers=(*headers, (b"authorization", f"Bearer {OPERATOR}".encode())))


def resident() -> float:
    """MiB of this process that are in memory, once what is free has been given back."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def fuzz(
    model: Path,
    folder: Path,
    samples: Sequence[Sample],
    *,
    seed: int,
    count: int,
    concurrency: int = 8,
    seconds: float = 3600.0,
    only: int | None = None,
) -> Report:
    """Serve the app with a new store in ``folder`` and send ``count`` requests to it, for at most ``seconds``.

    ``model``: the folder whose tokenizer is used. ``only``: send the request of this number alone, and print it.
    """
    settings = Settings(
        store=f"sqlite:///{folder / 'fuzz.db'}",
        operator_key=OPERATOR,
        max_reply_tokens=24,
        grace=0.05,
        request_limit=2 * 1024 * 1024,
    )
    gateway = Gateway(settings)
    await gateway.start()
    try:
        await gateway.engine.close()
        codec = await asyncio.to_thread(TokenCodec.load, str(model))
        gateway.engine = gateway.policy.engine = InstantEngine(str(model), codec, 4096)
        gateway.model = ServedModel(gateway.engine, settings)
        await gateway.model.get()
        fuzzer = Fuzzer(gateway, create_app(gateway), samples, seed, count)
        if only is None:
            await fuzzer.run(concurrency, seconds)
        else:
            _, key = await fuzzer._open(only)
            request = make_request(Random(f"{seed}:{only}"), fuzzer._samples_for(only), key)
            print(request)
            print(await fuzzer.send(only, _as_operator(request) if request.dialect == "control" else request))
            fuzzer.report.unexpected = gateway.unexpected
    finally:
        await gateway.stop()
    return fuzzer.report


def figures(report: Report) -> Iterator[dict[str, Any]]:
    """The report as one object a figure; a target of ``None``: nothing to meet."""
    tenth, last = (report.memory[0], report.memory[-1]) if report.memory else (0.0, 0.0)
    errors = sum(number for status, number in report.statuses.items() if status >= 500)
    yield _figure("fuzz_requests", report.asked, "requests", None)
    yield _figure("fuzz_rate", round(report.asked / max(report.seconds, 1e-9), 1), "requests/s", None)
    yield _figure("fuzz_calls_in_store", report.calls, "calls", None)
    yield _figure("fuzz_slowest", round(report.slowest[0], 3), "s", HANG)
    yield _figure("fuzz_5xx", errors, "answers", 0)
    yield _figure("fuzz_hangs", report.hangs, "requests", 0)
    yield _figure("fuzz_unexpected_errors", report.unexpected, "errors", 0)
    yield _figure("fuzz_improper_answers", len(report.defects), "answers", 0)
    yield _figure("fuzz_unbalanced", len(report.unbalanced), "problems", 0)
    yield _figure("fuzz_memory_at_10_percent", round(tenth, 1), "MiB", None)
    yield _figure("fuzz_memory_growth", round(last - tenth, 1), "MiB", MEMORY)
    grown = 100 * (report.objects[-1] / report.objects[0] - 1) if report.objects else 0.0
    yield _figure("fuzz_objects_growth", round(grown, 1), "%", OBJECTS)


def _figure(name: str, value: float, unit: str, target: float | None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "met": target is None or value <= target}


def main() -> None:
    from tests.models import tiny_model_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long in any case")
    parser.add_argument("--only", type=int, help="send the request of this number alone, and show it")
    options = parser.parse_args()
    logging.getLogger("dragoman").setLevel(logging.ERROR)
    samples = golden_samples()
    if wire := os.environ.get("DRAGOMAN_WIRE"):
        samples += recorded_samples(Path(wire))
    print(f"seed {options.seed}: {options.count} requests made from {len(samples)} right ones", flush=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-fuzz-") as folder:
        report = asyncio.run(
            fuzz(
                tiny_model_folder(),
                Path(folder),
                samples,
                seed=options.seed,
                count=options.count,
                concurrency=options.concurrency,
                seconds=options.seconds,
                only=options.only,
            )
        )
    for problem in [*report.defects[:100], *report.unbalanced[:20]]:
        print(problem)
    print(f"statuses: {dict(sorted(report.statuses.items()))}; {report.episodes} episodes; slowest: {report.slowest}")
    print("memory in MiB after each tenth:", *(round(mib) for mib in report.memory))
    every = list(figures(report))
    for figure in every:
        print(json.dumps(figure))
    if not all(figure["met"] for figure in every):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
