"""How fast is training on stored episodes? Beside stock TRL on the same rows, and merged traces beside single calls.

``make bench-train``, in the engine environment. Two questions:

- Tokens a second of our GRPO step and of TRL's own ``GRPOTrainer``, which gets the same rows from a ``rollout_func``:
  equal batch, same model, loss and optimizer, one process, in turns; the median of the ratios. Once with rows of one
  length, which is TRL's best case, and once with lengths as agents' sessions have them. On a CPU the seconds are those
  of one processor that worked for this process, so that what else the machine does plays no part.
- What merged traces save against a row for each call, on the sessions of a real harness that ``make e2e-codex`` leaves
  behind (turns with tools, a sub-agent, a compaction): tokens through the model, optimizer steps, and with
  ``--timed N`` seconds. (That both train the same tokens is checked here, and in ``tests/trainer``.)

Ends with one JSON line a figure.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from dragoman.home import cache_folder
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.episodes import get_episode, list_episodes
from dragoman.store.leases import LeasedEpisode, LeasedGroup
from dragoman.store.traces import build_traces
from dragoman.trainer.batch import Taken, padded_tokens, plan_step
from dragoman.trainer.config import GRPOArguments
from dragoman.trainer.grpo import StoredEpisodeGRPOTrainer
from dragoman.trainer.samples import PreparedGroup, Rules, Sample, group_advantages, prepare_group

ROOT = Path(__file__).resolve().parents[1]
EPISODES = ROOT / ".run" / "e2e-codex"
GROUP, GROUPS, ROWS = 4, 2, 4
"""Episodes of a group, groups of a step, rows of a micro-batch."""


def now() -> float:
    """Seconds that count: of the wall on a GPU, of the processor elsewhere."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Clock(TrainerCallback):
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(now() - self.began)


class Always:
    """A source that gives one step again and again."""

    def __init__(self, taken: Taken) -> None:
        self.taken = taken

    def take(self) -> Any:
        return self.taken

    def wait(self) -> None: ...

    def keep(self) -> None: ...

    def trained(self, step: int) -> None: ...

    def failed(self, groups: tuple[int, ...], reason: str) -> None:
        raise AssertionError(reason)


@dataclass(frozen=True)
class Made:
    """Rows of one step: ``GROUPS`` groups of ``GROUP`` one-trace episodes."""

    samples: list[Sample]
    rewards: list[float]


def made_rows(vocabulary: int, lengths: Sequence[int], seed: int) -> Made:
    """Sessions of several turns with these lengths in tokens: a prompt, then replies and tool results in turns."""
    random = np.random.default_rng(seed)
    samples, rewards = [], []
    for number, length in enumerate(lengths):
        mask = np.zeros(length, np.bool_)
        at = length // 3
        while at < length:
            reply = int(random.integers(20, 60))
            mask[at : at + reply] = True
            at += reply + int(random.integers(40, 160))
        mask[-1] = True
        rewards.append(float(number % 2))
        samples.append(
            Sample(
                number // GROUP,
                f"e{number}",
                random.integers(20, vocabulary - 20, length).astype(np.int32),
                mask,
                np.where(mask, -8.0, 0.0).astype(np.float32),
                0.0,
                int(mask.sum()),
            )
        )
    finished = []
    for group in range(GROUPS):
        mine = slice(group * GROUP, (group + 1) * GROUP)
        for sample, advantage in zip(samples[mine], group_advantages(rewards[mine], "group"), strict=True):
            finished.append(replace(sample, advantage=advantage))
    return Made(finished, rewards)


def common(folder: Path, steps: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "loss_type": "dapo",
        "max_steps": steps,
        "per_device_train_batch_size": ROWS,
        "learning_rate": 1e-6,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
        "disable_tqdm": True,
        "logging_steps": 1000,
    }


def our_seconds(
    model: str, samples: Sequence[Sample], steps: int, folder: Path, *, rows: int = ROWS, max_tokens: int | None = None
) -> list[float]:
    """Of each step but the first."""
    step = plan_step(samples, loss="dapo", world=1, rows=rows, max_tokens=max_tokens)
    clock = Clock()
    trainer = StoredEpisodeGRPOTrainer(
        source=Always(Taken(step, {})),
        model=model,
        args=GRPOArguments(**common(folder, steps)),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.seconds[1:]


def stock_seconds(model: str, made: Made, steps: int, folder: Path) -> list[float]:
    """The same rows through TRL's own trainer. It makes no importance correction here, so it scores each row once."""

    def rollout(prompts: list[str], _trainer: Any) -> dict[str, Any]:
        # Row n of a step is generation n % GROUP of its prompt.
        seen: dict[str, int] = {}
        found: dict[str, list[Any]] = {
            "prompt_ids": [],
            "completion_ids": [],
            "logprobs": [],
            "env_mask": [],
            "row": [],
        }
        for prompt in prompts:
            number = int(prompt) * GROUP + seen.get(prompt, 0)
            seen[prompt] = seen.get(prompt, 0) + 1
            sample = made.samples[number]
            first = sample.first
            found["prompt_ids"].append(sample.token_ids[:first].tolist())
            found["completion_ids"].append(sample.token_ids[first:].tolist())
            found["logprobs"].append(sample.logprobs[first:].tolist())
            found["env_mask"].append(sample.loss_mask[first:].astype(int).tolist())
            found["row"].append(number)
        return found

    def reward(row: list[int], **_: Any) -> list[float]:
        return [made.rewards[number] for number in row]

    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            **common(folder, steps),
            gradient_accumulation_steps=GROUP * GROUPS // ROWS,
            num_generations=GROUP,
            max_completion_length=8192,
        ),
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(GROUPS)]}),
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollout,
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.seconds[1:]


def beside_stock(model: str, vocabulary: int, repeats: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    shapes = {
        "one length": [512] * (GROUP * GROUPS),
        "lengths of sessions": [int(one) for one in np.clip(random.lognormal(6.0, 0.6, GROUP * GROUPS), 150, 2000)],
    }
    figures = []
    for name, lengths in shapes.items():
        made = made_rows(vocabulary, lengths, seed=2)
        ratios, ours, theirs = [], [], []
        for repeat in range(repeats):
            pair = {}
            for who in ("ours", "stock") if repeat % 2 else ("stock", "ours"):
                if who == "ours":
                    pair[who] = statistics.median(our_seconds(model, made.samples, steps, folder))
                else:
                    pair[who] = statistics.median(stock_seconds(model, made, steps, folder))
            ours.append(sum(lengths) / pair["ours"])
            theirs.append(sum(lengths) / pair["stock"])
            ratios.append(pair["stock"] / pair["ours"])
        figures.append(
            {
                "figure": f"beside stock TRL, {name}",
                "tokens": sum(lengths),
                "ours_tokens_per_second": round(statistics.median(ours)),
                "stock_tokens_per_second": round(statistics.median(theirs)),
                "ratio": round(statistics.median(ratios), 2),
                "least": round(min(ratios), 2),
                "most": round(max(ratios), 2),
                "repeats": repeats,
            }
        )
    return figures


def real_episodes(folder: Path) -> list[LeasedEpisode]:
    """All episodes of the stores below ``folder`` that give something to train on."""
    found = []
    for path in sorted(folder.rglob("dragoman.db")):
        database = Database.open(f"sqlite:///{path}")
        with database.reading() as session:
            for summary in list_episodes(session, limit=100):
                calls = tuple(read_calls(session, summary.episode.id))
                if build_traces(calls).traces:
                    found.append(LeasedEpisode(get_episode(session, summary.episode.id), calls))
        database.close()
    return found


def prepared(episodes: Sequence[LeasedEpisode], *, each_call: bool) -> PreparedGroup:
    """All as one group, every second one with a reward."""
    rewarded = [
        replace(one, info=replace(one.info, end="completed", reward=float(number % 2)))
        for number, one in enumerate(episodes)
    ]
    rules = Rules(each_call=each_call, max_staleness=None)
    versions = {
        span.version: 0 for one in episodes for call in one.calls if call.outcome for span in call.outcome.policy_spans
    }
    group = prepare_group(LeasedGroup(1, "bench", None, 0.0, tuple(rewarded)), rules, versions, 0)
    if not isinstance(group, PreparedGroup):
        raise SystemExit(f"these episodes cannot be trained together: {group.detail}")
    return group


def merged_beside_calls(
    model: str, folder: Path, work: Path, rows_per_step: int, timed: int
) -> Iterator[dict[str, Any]]:
    episodes = real_episodes(folder)
    if not episodes:
        raise SystemExit(f"no episodes below {folder}: run `make e2e-codex` first, or name others by --episodes")
    counts: dict[str, Any] = {}
    for name, each_call in (("merged", False), ("per_call", True)):
        group = prepared(episodes, each_call=each_call)
        seen = sum(len(one.token_ids) for one in group.samples)
        counts[name] = (len(group.samples), seen, -(-len(group.samples) // rows_per_step), group.tokens.trained)
    assert counts["merged"][3] == counts["per_call"][3]
    for at, what in ((0, "rows"), (1, "tokens through the model"), (2, f"optimizer steps of {rows_per_step} rows")):
        yield {
            "figure": f"real harness sessions, {what}",
            "episodes": len(episodes),
            "trained_tokens": counts["merged"][3],
            "merged": counts["merged"][at],
            "per_call": counts["per_call"][at],
            "ratio": round(counts["per_call"][at] / counts["merged"][at], 2),
        }
    if timed < 2:
        return
    some = shortest(episodes, timed)
    seconds = {}
    for name, each_call in (("merged", False), ("per_call", True)):
        group = prepared(some, each_call=each_call)
        step = plan_step(group.samples, loss="dapo", world=1, rows=ROWS, max_tokens=16384)
        took = our_seconds(model, group.samples, 3, work, max_tokens=16384)
        seconds[name] = statistics.median(took)
        counts[name] = padded_tokens(step)
    yield {
        "figure": "real harness sessions, seconds of a step",
        "episodes": len(some),
        "merged": round(seconds["merged"], 2),
        "per_call": round(seconds["per_call"], 2),
        "ratio": round(seconds["per_call"] / seconds["merged"], 2),
    }


def shortest(episodes: Sequence[LeasedEpisode], count: int) -> list[LeasedEpisode]:
    """Those with the fewest tokens, so that a CPU gets through them."""

    def tokens(one: LeasedEpisode) -> int:
        return sum(call.outcome.prompt_len or 0 for call in one.calls if call.outcome is not None)

    return sorted(episodes, key=tokens)[:count]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a folder (default: the tiny model)")
    parser.add_argument("--only", choices=("stock", "merged"), help="one of the two questions (default: both)")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs beside stock TRL")
    parser.add_argument("--steps", type=int, default=4, help="steps of a run; the first is not counted")
    parser.add_argument("--episodes", type=Path, default=EPISODES, help="where the stores of real sessions are")
    parser.add_argument("--rows", type=int, default=16, help="rows of an optimizer step, for counting steps")
    parser.add_argument(
        "--timed", type=int, default=0, help="time the training of so many episodes, the shortest ones (at least 2)"
    )
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    model = options.model or str(cache_folder() / "models" / "tiny")
    vocabulary = len(AutoTokenizer.from_pretrained(model))
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "merged":
            for figure in beside_stock(model, vocabulary, options.repeats, options.steps, Path(folder)):
                print(json.dumps(figure), flush=True)
        if options.only != "stock":
            for figure in merged_beside_calls(model, options.episodes, Path(folder), options.rows, options.timed):
                print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
