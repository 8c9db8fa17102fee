"""Do later turns extend what was sampled? Conversations of a real model through the gateway, beside re-rendering.

``make bench-drift``, or ``python -m bench.drift --engine URL`` with a running engine. Two questions about each turn:

- *ours*: does the prompt that the engine was asked begin with the last prompt and completion, to the token, and is its
  text what the chat template itself makes of the conversation?
- *re-rendered*: the same conversation rendered anew by the chat template from its messages, as most systems do: does
  that begin with what was sampled?

Ends with one JSON line a figure.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dragoman.addons.blobs import read_message
from dragoman.addons.messages import Message, TextPart
from dragoman.addons.tokens import TokenCodec
from dragoman.store.calls import full_prompt, read_calls, read_messages
from dragoman.store.database import Database
from dragoman.store.records import CallInfo, TokenIds

QUESTIONS = (
    "Tell me about the sea, in French: é, à, ç.",
    "Write a Python function that reverses a list.",
    "Give me a JSON object with three animals.",
    "用中文写一句话",
    "What is 17 times 23? Show the steps.",
    "Write an ASCII table with emojis 🙂🚀.",
)
FOLLOW_UPS = (
    "Go on.",
    "Shorter, please.",
    "Now as a list:\n- one\n- two",
    "为什么",
    '{"more": true}',
    "  And\tthen?  ",
)


@dataclass
class Counts:
    turns: int = 0
    broken: int = 0
    """Turns whose prompt does not begin with the last stream."""
    other_text: int = 0
    """Turns that do, but whose text is not the template's, though nothing drifted."""
    rerendered: int = 0
    """Turns that would not begin with it if the history were rendered anew."""
    forks: dict[str, int] = field(default_factory=dict)


def converse(address: str, key: str, turns: int, number: int) -> None:
    """One conversation of ``turns`` turns, by plain Chat Completions."""
    said: list[dict[str, Any]] = [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]
    with httpx.Client(
        base_url=address, headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=600
    ) as http:
        for turn in range(turns):
            reply = http.post("/v1/chat/completions", json={"model": "m", "messages": said, "max_tokens": 48})
            reply.raise_for_status()
            said.append(reply.json()["choices"][0]["message"])
            said.append({"role": "user", "content": FOLLOW_UPS[(number + turn) % len(FOLLOW_UPS)]})


def count(
    codec: TokenCodec, calls: list[CallInfo], prompts: dict[str, TokenIds], messages: dict[str, tuple[Message, ...]]
) -> Counts:
    """Look at every later turn of one episode. A conversation's turns hang together by their parents."""
    counts = Counts()
    by_id = {call.arrival.id: call.outcome for call in calls}
    for call in calls:
        outcome = call.outcome
        if outcome is None or outcome.status != "answered" or len(messages[outcome.id]) == 1:
            continue
        counts.turns += 1
        if outcome.fork_reason is not None or outcome.parent_id is None:
            counts.broken += 1
            counts.forks[outcome.fork_reason or "no parent"] = (
                counts.forks.get(outcome.fork_reason or "no parent", 0) + 1
            )
            continue
        parent = by_id[outcome.parent_id]
        assert parent is not None
        assert parent.completion_ids is not None
        stream = [*prompts[outcome.parent_id].tolist(), *parent.completion_ids.tolist()]
        prompt = prompts[outcome.id].tolist()
        again = codec.render(messages[outcome.id], ()).tolist()
        drifted = again[: len(stream)] != stream
        counts.rerendered += drifted
        counts.broken += prompt[: len(stream)] != stream
        closed = parent.completion_ids[-1] == codec.close_id
        trimmed = _trimmed(messages[outcome.id])
        if closed and not trimmed and codec.decode(prompt) != codec.decode(again):
            counts.other_text += 1
    return counts


def _trimmed(messages: tuple[Message, ...]) -> bool:
    """Whether a reply holds special tokens' text or ends in white space, which a template or a parser may treat."""
    replies = [part.text for m in messages if m.role == "assistant" for part in m.parts if isinstance(part, TextPart)]
    return any(text != text.strip() for text in replies)


@contextmanager
def services(engine: str | None, folder: Path) -> Iterator[tuple[str, Any]]:
    from tests.gateway import running_gateway
    from tests.models import real_engine, smollm2_folder

    if engine is not None:
        with running_gateway(folder / "home", engine) as gateway:
            yield engine, gateway
        return
    with real_engine(smollm2_folder(), folder) as address, running_gateway(folder / "home", address) as gateway:
        yield address, gateway


def run(engine: str | None, plan: list[tuple[int, int]], concurrency: int) -> None:
    from tests.models import smollm2_folder

    codec = TokenCodec.load(str(smollm2_folder()))
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-drift-") as folder,
        services(engine, Path(folder)) as (_, gateway),
    ):
        figures: list[dict[str, Any]] = []
        for conversations, turns in plan:
            episodes = [gateway.open(task="drift") for _ in range(conversations)]
            with ThreadPoolExecutor(concurrency) as pool:
                jobs = [
                    pool.submit(converse, gateway.address, episode.api_key, turns, number)
                    for number, episode in enumerate(episodes)
                ]
                for job in jobs:
                    job.result()
            total = Counts()
            database = Database.open(gateway.store_url)
            with database.reading() as session:
                for episode in episodes:
                    calls = read_calls(session, episode.id)
                    ids = [call.arrival.id for call in calls]
                    prompts = {call_id: full_prompt(session, call_id) for call_id in ids}
                    said = {call_id: tuple(map(read_message, read_messages(session, call_id))) for call_id in ids}
                    counts = count(codec, calls, prompts, said)
                    total.turns += counts.turns
                    total.broken += counts.broken
                    total.other_text += counts.other_text
                    total.rerendered += counts.rerendered
                    for reason, number in counts.forks.items():
                        total.forks[reason] = total.forks.get(reason, 0) + number
            database.close()
            print(f"{conversations} conversations of {turns} turns: {total}")
            name = f"drift_{turns}_turns"
            share = 100 * total.rerendered / max(1, total.turns)
            figures += [
                {
                    "name": f"{name}_broken",
                    "value": total.broken,
                    "unit": "turns",
                    "target": 0,
                    "met": total.broken == 0,
                },
                {
                    "name": f"{name}_other_text",
                    "value": total.other_text,
                    "unit": "turns",
                    "target": 0,
                    "met": total.other_text == 0,
                },
                {"name": f"{name}_rerendered", "value": round(share, 1), "unit": "%", "target": 10, "met": share >= 10},
            ]
        for figure in figures:
            print(json.dumps(figure))
        if not all(figure["met"] for figure in figures):
            raise SystemExit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", help="address of a running vLLM; default: start one with SmolLM2")
    parser.add_argument("--conversations", type=int, default=200, help="of two turns")
    parser.add_argument("--long", type=int, default=50, help="conversations of ten turns")
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    run(options.engine, [(options.conversations, 2), (options.long, 10)], options.concurrency)
