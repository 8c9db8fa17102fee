"""SFT on accepted episodes: the very tokens that were sampled, and a loss on them alone. Needs torch and trl.

The rules: rows are the traces of GRPO (``store.traces``), with the loss mask as labels, so nothing is tokenised again;
only episodes that a real provider answered are rendered, once, and counted apart. What is left out is counted by
reason.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from sqlalchemy import select
from sqlalchemy.orm import Session
from transformers import AutoTokenizer, PrinterCallback
from trl import ModelConfig, SFTTrainer, get_peft_config

from dragoman.home import default_store_url
from dragoman.store.calls import read_calls, read_messages
from dragoman.store.database import Database
from dragoman.store.episodes import get_episode
from dragoman.store.models import Call, Episode, Group, Task
from dragoman.store.records import JsonObject
from dragoman.store.traces import build_traces
from dragoman.trainer.callbacks import ProgressLine
from dragoman.trainer.config import ConfigError, SFTArguments, SFTEpisodes
from dragoman.trainer.observed import Render, render_calls, render_with
from dragoman.trainer.selection import Candidate, select_episodes

IGNORED = -100
"""Label of a token that is not trained."""


@dataclass
class Account:
    """What became of the episodes, calls and tokens."""

    episodes: Counter[str] = field(default_factory=Counter)
    """``train``, ``held_out``, or why an episode was not accepted."""
    rows: Counter[str] = field(default_factory=Counter)
    """``sampled``: of stored tokens; ``rendered``: of messages."""
    trained_tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Calls of accepted episodes that are not trained, by reason; an episode with a damaged trace: ``corrupt``."""


def read_rows(
    session: Session, rules: SFTEpisodes, render: Render, account: Account
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Rows to train on, and rows held out: ``input_ids``, ``labels``, ``episode``, ``rendered``."""
    selection = select_episodes(
        read_candidates(session, rules.tasks),
        min_reward=rules.min_reward,
        best_of_group=rules.best_of_group,
        balance_harnesses=rules.balance_harnesses,
        eval_share=rules.eval_share,
    )
    account.episodes.update(selection.rejected)
    account.episodes.update({"train": len(selection.train), "held_out": len(selection.held_out)})
    train = [row for one in selection.train for row in episode_rows(session, one.info.id, rules, render, account)]
    held_out = [row for one in selection.held_out for row in episode_rows(session, one.info.id, rules, render, account)]
    return train, held_out


def read_candidates(session: Session, tasks: Sequence[str] | None) -> list[Candidate]:
    """All episodes that have ended, the first opened first."""
    query = select(Episode.id, Episode.group_row).where(Episode.end.is_not(None))
    if tasks is not None:
        query = query.join(Group, Group.row == Episode.group_row).join(Task, Task.row == Group.task_row)
        query = query.where(Task.name.in_(tasks))
    harnesses: dict[str, set[str]] = {}
    for episode_id, harness in session.execute(
        select(Call.episode_id, Call.harness).where(Call.harness.is_not(None)).distinct()
    ):
        harnesses.setdefault(episode_id, set()).add(str(harness))
    return [
        Candidate(get_episode(session, row.id), row.group_row, ", ".join(sorted(harnesses.get(row.id, ()))))
        for row in session.execute(query.order_by(Episode.opened_at, Episode.row))
    ]


def episode_rows(
    session: Session, episode_id: str, rules: SFTEpisodes, render: Render, account: Account
) -> list[JsonObject]:
    """The rows of one accepted episode."""
    calls = read_calls(session, episode_id)
    rows = []
    try:
        built = build_traces(calls, max_length=rules.max_trace_length)
    except ValueError:
        account.left_out["corrupt"] += 1
        return []
    account.left_out.update(call.reason for call in built.excluded if call.reason != "observed")
    for trace in built.traces:
        rows.append(_row(episode_id, trace.token_ids, trace.loss_mask, rendered=False))
    observed = [call for call in calls if call.outcome is not None and call.outcome.status == "observed"]
    if observed and not rules.observed:
        account.left_out["observed"] += len(observed)
    elif observed:
        messages = {call.arrival.id: read_messages(session, call.arrival.id) for call in observed}
        rendered, left_out = render_calls(observed, messages, render)
        account.left_out.update(left_out)
        for one in rendered:
            if rules.max_trace_length is not None and len(one.token_ids) > rules.max_trace_length:
                account.left_out["too_long"] += 1
            else:
                rows.append(_row(episode_id, one.token_ids, one.loss_mask, rendered=True))
    for row in rows:
        account.rows["rendered" if row["rendered"] else "sampled"] += 1
        account.trained_tokens += sum(label != IGNORED for label in row["labels"])
    return rows


def make_trainer(
    arguments: SFTArguments,
    model: Any,
    tokenizer: Any,
    train: Sequence[JsonObject],
    held_out: Sequence[JsonObject],
    *,
    peft_config: Any = None,
    callbacks: Sequence[Any] = (),
) -> Any:
    """TRL's trainer on rows of ``read_rows``. ``model``: a folder, a name or a model."""
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=_dataset(train),
        eval_dataset=_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train_sft(arguments: SFTArguments, episodes: SFTEpisodes, model: ModelConfig) -> Account:
    """Train on what the store holds now. Raises ``ConfigError`` when nothing is accepted, and ``StoreError``."""
    console = Console(highlight=False, soft_wrap=True, stderr=True)
    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    account = Account()
    database = Database.open(episodes.store or default_store_url())
    try:
        with database.reading() as session:
            train, held_out = read_rows(session, episodes, render_with(tokenizer), account)
    finally:
        database.close()
    if arguments.process_index == 0:
        for line in account_lines(account):
            console.print(line, markup=False)
    if not train:
        raise ConfigError("no episode is accepted; lower min_reward, or see above why they are not")
    options = dict(arguments.model_init_kwargs or {})
    options.setdefault("dtype", model.dtype or "float32")
    if model.attn_implementation:
        options.setdefault("attn_implementation", model.attn_implementation)
    arguments.model_init_kwargs = options
    trainer = make_trainer(
        arguments,
        model.model_name_or_path,
        tokenizer,
        train,
        held_out,
        peft_config=get_peft_config(model),
        callbacks=[ProgressLine(console)],
    )
    trainer.train(resume_from_checkpoint=_checkpoint(arguments))
    trainer.save_model(str(Path(arguments.output_dir) / "final"))
    return account


def account_lines(account: Account) -> list[str]:
    """For a person."""
    episodes = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in account.episodes.items() if n) or "none"
    lines = [
        f"episodes: {episodes}",
        f"rows: {account.rows['sampled']} of sampled tokens, {account.rows['rendered']} rendered from messages; "
        f"{account.trained_tokens:,} tokens to train",
    ]
    if left_out := ", ".join(f"{n} {reason}" for reason, n in account.left_out.items() if n):
        lines.append(f"calls left out: {left_out}")
    return lines


def _row(episode_id: str, token_ids: Any, loss_mask: Any, *, rendered: bool) -> JsonObject:
    labels = np.where(loss_mask, token_ids, IGNORED)
    return {"input_ids": token_ids.tolist(), "labels": labels.tolist(), "episode": episode_id, "rendered": rendered}


def _dataset(rows: Sequence[JsonObject]) -> Any:
    return Dataset.from_list([{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows])


def _checkpoint(arguments: SFTArguments) -> str | bool | None:
    """What to resume: the newest checkpoint of the output folder, unless told otherwise."""
    asked = arguments.resume_from_checkpoint
    if isinstance(asked, str) and asked.lower() in ("no", "false"):
        return None
    if isinstance(asked, str) and asked.lower() != "true":
        return asked
    return True if any(Path(arguments.output_dir).glob("checkpoint-*")) else None
