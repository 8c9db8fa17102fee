"""How small and how fast is the store? Sessions that grow, as an agent's do, written and read back.

``make bench-store``. Five questions, over SQLite (and ``--store`` names another database for the last four):

- What does a session of 50, 100 and 200 turns take on disk, all told, when it grows to 64,000 tokens in its first 50
  turns and as fast after that? And what would the same session take as one JSON document a call?
- How many calls a second can be written, in batches as the recorder commits them?
- How many tokens of traces a second can be rebuilt from what is stored?
- How long does a trainer wait for a group of 64 episodes of 32,000 tokens: leased and read with all messages, and then
  made into traces? (The fastest of three times: the question is what it takes, not what else the machine does.)

``bench.store_commands`` has a sixth: how long the commands take in a big store.

Text and tokens are those of this repository's own source files, in the tokenizer of the small model that setup makes.
Ends with one JSON line a figure.
"""

import argparse
import itertools
import json
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from dragoman.addons.blobs import message_blob, reply_blob
from dragoman.addons.messages import Message, TextPart, ToolCallPart, ToolResultPart
from dragoman.home import cache_folder
from dragoman.store.calls import read_streams, write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode
from dragoman.store.leases import give_back, lease_groups
from dragoman.store.records import Blob, CallArrival, CallOutcome, EpisodeSpec, JsonObject, PolicySpan
from dragoman.store.traces import build_traces

ROOT = Path(__file__).resolve().parents[1]
TURN_TOKENS = 1280
"""What one turn adds: 50 turns come to 64,000 tokens."""
REPLY_TOKENS = 300
BATCH = 256
"""Records in one commit, at most; as the recorder's."""


@dataclass(frozen=True)
class Turn:
    arrival: CallArrival
    outcome: CallOutcome


class Words:
    """Tokens and text without end, from this repository's source files."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(cache_folder() / "models" / "smollm2" / "tokenizer.json"))
        files = sorted(path for folder in ("addons", "store", "tests") for path in (ROOT / folder).rglob("*.py"))
        ids = [one for path in files for one in self.tokenizer.encode(path.read_text()).ids]
        self._ids = itertools.cycle(ids)

    def take(self, count: int) -> tuple[list[int], str]:
        ids = list(itertools.islice(self._ids, count))
        return ids, self.tokenizer.decode(ids, skip_special_tokens=False)


def session(
    words: Words, episode: str, turns: int, *, turn_tokens: int = TURN_TOKENS, reply_tokens: int = REPLY_TOKENS
) -> Iterator[Turn]:
    """The calls of one agent that reads a tool's output each turn and answers with some thought and another call."""
    chance = np.random.default_rng(7)
    parent: CallOutcome | None = None
    length = 0
    before: list[Blob] = [message_blob(Message("system", (TextPart(words.take(400)[1]),)))]
    for number in range(turns):
        call_id = secrets.token_hex(10)
        prompt, said = words.take(turn_tokens - reply_tokens)
        completion, thought = words.take(reply_tokens)
        result = ToolResultPart(f"toolu_{number}", (TextPart(said),))
        asks = Message("tool", (result,)) if number else Message("user", (TextPart(said),))
        reply = (TextPart(thought), ToolCallPart(f"toolu_{call_id}_0", "bash", '{"command":"ls"}'))
        arrival = CallArrival(call_id, episode, "anthropic", "/v1/messages", time.time(), harness="claude", thread="t")
        outcome = CallOutcome(
            id=call_id,
            status="answered",
            http_status=200,
            finished_at=time.time(),
            model="claude-sonnet-4-5",
            stream=True,
            messages=(*before, message_blob(asks)),
            messages_kept=0 if parent is None else 2 * number,
            reply=reply_blob(reply),
            sampling_asked={"max_tokens": 32000},
            sampling_used={"temperature": 1.0, "max_tokens": 4096},
            parent_id=None if parent is None else parent.id,
            shared_len=length,
            prompt_len=length + len(prompt),
            prompt_ids=np.array(prompt, np.int32),
            completion_ids=np.array(completion, np.int32),
            logprobs=-chance.exponential(0.6, len(completion)).astype(np.float32),
            finish_reason="tool_calls",
            policy_spans=(PolicySpan("policy-v1", 0, len(completion)),),
            tokenizer_hash="0" * 16,
            template_hash="0" * 16,
            canonical_version=1,
        )
        yield Turn(arrival, outcome)
        length += len(prompt) + len(completion)
        before = [message_blob(Message("assistant", reply))]
        parent = outcome


def write(database: Database, turns: list[Turn]) -> None:
    for start in range(0, len(turns), BATCH // 2):
        some = turns[start : start + BATCH // 2]
        with database.session() as session:
            answers = write_arrivals(session, [turn.arrival for turn in some])
            answers += write_outcomes(session, [turn.outcome for turn in some])
        assert answers == [None] * len(answers), answers


def new_episode(database: Database, spec: EpisodeSpec = EpisodeSpec()) -> str:  # noqa: B008 (it is frozen)
    name = secrets.token_hex(6)
    with database.session() as session:
        now = time.time()
        open_episode(session, spec, episode_id=name, token_hash=secrets.token_hex(32), now=now, expires_at=now + 9)
    return name


def as_json(turns: list[Turn]) -> int:
    """Bytes of the same session as one JSON document a call: its whole prompt, completion and messages each time."""
    stream: list[int] = []
    messages: list[JsonObject] = []
    size = 0
    for turn in turns:
        outcome = turn.outcome
        assert outcome.prompt_ids is not None and outcome.completion_ids is not None  # noqa: PT018
        assert outcome.logprobs is not None and outcome.reply is not None  # noqa: PT018
        stream += outcome.prompt_ids.tolist()
        messages += [json.loads(blob.data) for blob in outcome.messages]
        completion = outcome.completion_ids.tolist()
        logprobs = outcome.logprobs.astype(float).tolist()
        document = {"messages": messages, "prompt_ids": stream, "completion_ids": completion, "logprobs": logprobs}
        size += len(json.dumps(document | {"reply": json.loads(outcome.reply.data)}, separators=(",", ":")))
        stream += completion
    return size


def figure(name: str, value: float, unit: str, target: float | None, met: bool) -> JsonObject:
    return {"name": name, "value": round(value, 3), "unit": unit, "target": target, "met": met}


def sizes(words: Words, folder: Path) -> Iterator[JsonObject]:
    on_disk: dict[int, float] = {}
    for turns in (50, 100, 200):
        path = folder / f"{turns}.db"
        empty = Database.open(f"sqlite:///{path}")
        empty.close()
        database = Database.open(f"sqlite:///{path}")
        calls = list(session(words, new_episode(database), turns))
        write(database, calls)
        database.close()
        on_disk[turns] = sum(one.stat().st_size for one in folder.glob(f"{turns}.db*")) / 1e6
        limit = 1.0 if turns == 50 else None
        yield figure(f"store_{turns}_turns", on_disk[turns], "MB", limit, limit is None or on_disk[turns] <= limit)
        yield figure(f"json_{turns}_turns", as_json(calls) / 1e6, "MB", None, True)
    growth = (on_disk[200] - on_disk[100]) / (on_disk[100] - on_disk[50])
    yield figure("store_growth_of_100_turns_to_that_of_50", growth, "ratio", 2.2, growth <= 2.2)


def speeds(words: Words, database: Database) -> Iterator[JsonObject]:
    calls = [turn for _ in range(40) for turn in session(words, new_episode(database), 50)]
    start = time.perf_counter()
    write(database, calls)
    rate = len(calls) / (time.perf_counter() - start)
    yield figure("ingest", rate, "calls/s", 2000, rate >= 2000)
    episodes = list(dict.fromkeys(turn.arrival.episode_id for turn in calls))
    tokens, reading, building = 0, 0.0, 0.0
    for episode in episodes:
        start = time.perf_counter()
        with database.reading() as session_:
            read = read_streams(session_, episode)
        middle = time.perf_counter()
        traces = build_traces(read)
        building += time.perf_counter() - middle
        reading += middle - start
        tokens += sum(len(trace.token_ids) for trace in traces.traces)
    rebuilt = tokens / (reading + building)
    yield figure("traces_read_and_rebuilt", rebuilt / 1e6, "M tokens/s", 5, rebuilt >= 5e6)
    yield figure("traces_rebuilt_alone", tokens / building / 1e6, "M tokens/s", None, True)


def leasing(words: Words, database: Database) -> Iterator[JsonObject]:
    spec = EpisodeSpec(task="bench", group="of 64", expected=64)
    for _ in range(64):
        episode = new_episode(database, spec)
        write(database, list(session(words, episode, 25)))
        with database.session() as session_:
            end_episode(session_, episode, "failed", reason=None, now=time.time())
    times: list[tuple[float, float]] = []
    for _ in range(3):
        start = time.perf_counter()
        with database.session() as session_:
            (group,) = lease_groups(session_, "bench", holder="h", limit=1, now=time.time(), seconds=600)
        leased = time.perf_counter()
        traces = [build_traces(episode.calls) for episode in group.episodes]
        times.append((leased - start, time.perf_counter() - leased))
        assert sum(len(trace.token_ids) for found in traces for trace in found.traces) == 64 * 25 * TURN_TOKENS
        with database.session() as session_:
            give_back(session_, "bench", holder="h")
    lease, building = min(times)
    yield figure("lease_64_episodes_of_32k_tokens", lease, "s", 1, lease < 1)
    yield figure("their_traces", building, "s", None, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="SQLAlchemy URL of the database whose speed is measured (default: SQLite)")
    arguments = parser.parse_args()
    words = Words()
    with tempfile.TemporaryDirectory(prefix="dragoman-store-") as folder:
        figures = list(sizes(words, Path(folder)))
        database = Database.open(arguments.store or f"sqlite:///{folder}/speed.db")
        figures += list(speeds(words, database))
        figures += list(leasing(words, database))
        database.close()
    for one in figures:
        print(json.dumps(one))
    if not all(one["met"] for one in figures):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
