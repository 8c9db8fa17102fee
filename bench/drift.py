"""Do later turns extend what was sampled? Conversations of a real model through the gateway, beside re-rendering.

``make bench-drift``, or ``python -m bench.drift --engine URL`` with a running engine. Three questions:

- *ours*: does the prompt that the engine was asked begin with the last prompt and completion, to the token, and is its
  text what the chat template itself makes of the same messages?
- *re-rendered*: the same conversation rendered anew by the chat template from its messages, as most systems do: does
  that begin with what was sampled?
- *scored again*: one forward pass over each trace of several turns, some of them behind a fork, a shared prefix, a
  forced tool call or a cut reply: does each trained token have the log-probability that is stored?

Ends with one JSON line a figure; exit code 1 when one of them misses its target.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.addons.blobs import read_message
from dragoman.addons.messages import Message
from dragoman.addons.tokens import TokenCodec
from dragoman.store.calls import full_prompt, read_calls, read_messages
from dragoman.store.database import Database
from dragoman.store.records import CallInfo, TokenIds
from tests import conversations
from tests.gateway import RunningGateway, running_gateway
from tests.models import engine_python, real_engine, smollm2_folder

Figure = dict[str, Any]
SHORT, LONG = 2, 10
"""Turns of a conversation."""
TOLERANCE = 1e-3
"""Nats between a stored log-probability and one computed anew."""
TRACES = 100
"""Least number of them that are scored again."""
DOUBLE_DIGITS = 10
"""Per cent of turns that re-rendering is expected to break; if it does not, the conversations are too easy."""


@dataclass
class Counts:
    turns: int = 0
    broken: int = 0
    """Turns whose prompt does not begin with the last stream, forks included."""
    other_text: int = 0
    """Turns whose text is not the template's own of the same messages."""
    unseen: int = 0
    """Turns behind a reply in which the model sampled a special token. A reply's text does not show it, so there are no
    messages of which the template could make the same; they are not in ``other_text``."""
    rerendered: int = 0
    """Turns that would not begin with the last stream if the history were rendered anew."""
    forks: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        for name in ("turns", "broken", "other_text", "unseen", "rerendered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, number in other.forks.items():
            self.forks[reason] = self.forks.get(reason, 0) + number


def count(
    codec: TokenCodec, calls: list[CallInfo], prompts: dict[str, TokenIds], messages: dict[str, tuple[Message, ...]]
) -> Counts:
    """Look at every later turn of one episode. A conversation's turns hang together by their parents."""
    counts = Counts()
    by_id = {call.arrival.id: call.outcome for call in calls}
    special = set(codec._tokenizer.added_tokens_decoder) - {codec.close_id}
    unseen: set[str] = set()
    for call in calls:
        outcome = call.outcome
        assert outcome is not None
        assert outcome.status == "answered", outcome
        assert outcome.completion_ids is not None
        if special.intersection(outcome.completion_ids.tolist()) or outcome.parent_id in unseen:
            unseen.add(outcome.id)
        if len(messages[outcome.id]) == 1:
            continue
        counts.turns += 1
        if outcome.fork_reason is not None or outcome.parent_id is None:
            reason = outcome.fork_reason or "no parent"
            counts.add(Counts(broken=1, forks={reason: 1}))
            continue
        parent = by_id[outcome.parent_id]
        assert parent is not None
        assert parent.completion_ids is not None
        stream = [*prompts[outcome.parent_id].tolist(), *parent.completion_ids.tolist()]
        prompt = prompts[outcome.id].tolist()
        again = codec.render(messages[outcome.id], ()).tolist()
        counts.rerendered += again[: len(stream)] != stream
        counts.broken += prompt[: len(stream)] != stream
        if outcome.parent_id in unseen:
            counts.unseen += 1
        elif codec.decode(prompt) != codec.decode(again):
            counts.other_text += 1
    return counts


@contextmanager
def services(engine: str | None, folder: Path) -> Iterator[RunningGateway]:
    """A gateway, and an engine unless one is given."""
    with ExitStack() as stack:
        address = engine or stack.enter_context(real_engine(smollm2_folder(), folder))
        settings = {"dragoman_max_reply_tokens": str(conversations.CALL)}
        yield stack.enter_context(running_gateway(folder / "home", address, settings=settings))


def run(engine: str | None, short: int, long: int, branching: int, reply: int, concurrency: int) -> list[Figure]:
    codec = TokenCodec.load(str(smollm2_folder()))
    with tempfile.TemporaryDirectory(prefix="dragoman-drift-") as folder:
        with services(engine, Path(folder)) as gateway:
            talked: dict[str, list[str]] = {}
            for name, number, talk in (
                ("short", short, partial(conversations.straight, turns=SHORT)),
                ("long", long, partial(conversations.straight, turns=LONG)),
                ("branching", branching, conversations.branching),
            ):
                started = time.monotonic()
                episodes = [gateway.open(task=f"drift-{name}") for _ in range(number)]
                with ThreadPoolExecutor(concurrency) as pool:
                    jobs = [
                        pool.submit(talk, gateway.address, episode.api_key, number=at, most=reply)
                        for at, episode in enumerate(episodes)
                    ]
                    for job in jobs:
                        job.result()
                talked[name] = [episode.id for episode in episodes]
                print(f"{number} {name} conversations in {time.monotonic() - started:.0f} s", flush=True)
        figures = drift_figures(codec, gateway.store_url, {SHORT: talked["short"], LONG: talked["long"]})
        return figures + rescoring_figures(gateway.store_url, [*talked["long"], *talked["branching"]])


def drift_figures(codec: TokenCodec, store_url: str, episodes: dict[int, list[str]]) -> list[Figure]:
    """``episodes``: turns of a conversation → the episodes that had such a one."""
    figures = []
    database = Database.open(store_url)
    for turns, ids in episodes.items():
        total = Counts()
        for episode_id in ids:
            with database.reading() as session:
                calls = read_calls(session, episode_id)
                prompts = {call.arrival.id: full_prompt(session, call.arrival.id) for call in calls}
                said = {call_id: tuple(map(read_message, read_messages(session, call_id))) for call_id in prompts}
            total.add(count(codec, calls, prompts, said))
        print(f"{len(ids)} conversations of {turns} turns: {total}", flush=True)
        share = round(100 * total.rerendered / max(1, total.turns), 1)
        name = f"drift_{turns}_turns"
        figures += [
            figure(f"{name}_broken", total.broken, "turns", 0, total.broken == 0 and total.turns > 0),
            figure(f"{name}_other_text", total.other_text, "turns", 0, total.other_text == 0),
            figure(f"{name}_rerendered", share, "%", DOUBLE_DIGITS, share >= DOUBLE_DIGITS),
        ]
    database.close()
    return figures


def rescoring_figures(store_url: str, episodes: list[str]) -> list[Figure]:
    """Traces of several turns, scored again by the engine's Python, which has torch."""
    command = [str(engine_python()), "-m", "dragoman.trainer.rescore_traces", "--store", store_url, "--json"]
    command += ["--model", str(smollm2_folder()), "--turns", "2"]
    for episode_id in episodes:
        command += ["--episode", episode_id]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    total = json.loads(done.stdout)["summary"]
    print(f"scored again: {total}", flush=True)
    largest = total["largest"]
    met = largest is not None and largest <= TOLERANCE and total["skipped"] == 0
    return [
        figure("rescored_traces", total["traces"], "traces", TRACES, total["traces"] >= TRACES),
        figure("rescored_tokens_largest_difference", largest, "nats", TOLERANCE, met),
    ]


def figure(name: str, value: float | None, unit: str, target: float, met: bool) -> Figure:
    return {"name": name, "value": value, "unit": unit, "target": target, "met": met}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", help="address of a running vLLM with SmolLM2; default: start one")
    parser.add_argument("--short", type=int, default=200, help=f"conversations of {SHORT} turns")
    parser.add_argument("--long", type=int, default=50, help=f"conversations of {LONG} turns")
    parser.add_argument("--branching", type=int, default=14, help="conversations with forks, branches and a tool")
    parser.add_argument("--reply", type=int, default=48, help="tokens of a reply at most")
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    measured = run(**vars(options))
    for one in measured:
        print(json.dumps(one))
    sys.exit(not all(one["met"] for one in measured))
