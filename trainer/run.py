"""A whole GRPO run: configuration, store, model, and training until it ends or is stopped. Needs torch and trl.

The rules:

- A run goes on where it stopped: from the newest complete checkpoint of its output folder, unless it is told another.
- Ctrl-C and SIGTERM end it after the step that is going on, with a checkpoint; a second one ends it at once.
- The model is always built from the base model, and the checkpoint loaded into it: the reference policy of the KL term
  is the base, not the checkpoint.
"""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import AutoConfig, AutoTokenizer, PrinterCallback
from trl import ModelConfig, get_peft_config

from dragoman.home import default_store_url
from dragoman.store.database import Database
from dragoman.trainer.batch import plan_step
from dragoman.trainer.callbacks import CheckpointCallback, ProgressLine, PushCallback
from dragoman.trainer.checkpoints import MARKER, TrainedGroup, holder_of, last_complete, lock_run, read_marker
from dragoman.trainer.config import ConfigError, GRPOArguments, GRPOEpisodes, rules_of
from dragoman.trainer.grpo import NoMoreSteps, StoredEpisodeGRPOTrainer
from dragoman.trainer.source import GroupSource, Totals
from dragoman.trainer.weight_transfer import Transfer


def train_grpo(arguments: GRPOArguments, episodes: GRPOEpisodes, model: ModelConfig) -> Totals | None:
    """Train until ``max_steps``, a stop, or (``stop_after_waiting``) the end of the groups.

    Returns what became of the groups, on rank 0; ``None`` on the others. Raises ``ConfigError``, ``StoreError``,
    ``RunInUse`` and ``NotFinite``.
    """
    first = arguments.process_index == 0
    folder = Path(arguments.output_dir).absolute()
    run = arguments.run_name or folder.name
    console = Console(highlight=False, soft_wrap=True, stderr=True)
    with ExitStack() as stack:
        source = database = None
        if first:
            stack.enter_context(lock_run(folder))
        checkpoint, trained = _resume(arguments.resume_from_checkpoint, folder)
        if first:
            database = Database.open(episodes.store or default_store_url())
            stack.callback(database.close)
            source = GroupSource(
                database,
                consumer=episodes.consumer or run,
                holder=holder_of(folder),
                rules=rules_of(episodes, arguments, _vocabulary(model)),
                plan=partial(
                    plan_step,
                    loss=arguments.loss,
                    world=arguments.world_size,
                    rows=arguments.per_device_train_batch_size,
                    max_tokens=episodes.max_microbatch_tokens,
                    length_constant=arguments.max_completion_length or 1,
                ),
                groups_per_step=episodes.groups_per_step,
                say=partial(_say, console),
                tasks=episodes.tasks,
                lease_seconds=episodes.lease_seconds,
                poll_seconds=episodes.poll_seconds,
                stop_after_waiting=episodes.stop_after_waiting,
            )
            stack.callback(source.close)
            given_back = source.start(trained)
            if checkpoint is not None:
                _say(console, f"resuming from {checkpoint}: {len(trained)} groups trained, {given_back} ready again")
        push = PushCallback(
            database,
            every=episodes.push_every,
            kind=_push_kind(episodes, model),
            folder=folder / "policies",
            run=run,
            timeout=episodes.push_timeout,
            say=partial(_say, console),
        )
        arguments.model_init_kwargs = _model_options(model, arguments.model_init_kwargs)
        trainer = StoredEpisodeGRPOTrainer(
            source=source,
            model=model.model_name_or_path,
            args=arguments,
            processing_class=_tokenizer(model),
            peft_config=get_peft_config(model),
            callbacks=[ProgressLine(console), CheckpointCallback(source), push],
        )
        trainer.remove_callback(PrinterCallback)
        push.trainer = trainer
        if first and episodes.push_nccl is not None:
            push.push = Transfer(episodes.push_nccl, trainer.accelerator.device).publish
        with stoppable(source):
            _train(trainer, checkpoint)
    return None if source is None else source.totals


@contextmanager
def stoppable(source: GroupSource | None) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM inside the block ends training before its next step. All ranks ignore it but the
    first, which tells the others."""

    def stop(number: int, _frame: Any) -> None:
        if source is not None:
            if source.stopping:
                raise KeyboardInterrupt
            source.stopping = True
            print("stopping after this step; once more: at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def account_lines(totals: Totals) -> list[str]:
    """What became of all groups and tokens, for a person. Says so when it does not add up."""
    dropped = {reason: count for reason, count in totals.groups.items() if reason != "trained"}
    excluded = sum(totals.excluded.values())
    lines = [
        f"groups: {totals.groups['trained']} trained" + "".join(f", {n} {reason}" for reason, n in dropped.items()),
        f"episodes of trained groups: {', '.join(f'{n} {use}' for use, n in totals.episodes.items()) or 'none'}",
        f"tokens: {totals.sampled:,} sampled = {totals.trained:,} trained + {excluded:,} excluded"
        + "".join(f"; {reason} {n:,}" for reason, n in totals.excluded.most_common()),
    ]
    if totals.sampled != totals.trained + excluded:
        lines.append("these tokens do not add up: a fault of Dragoman")
    return lines


def _train(trainer: StoredEpisodeGRPOTrainer, checkpoint: Path | None) -> None:
    with suppress(NoMoreSteps):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    state = trainer.state
    newest = Path(trainer.args.output_dir) / f"checkpoint-{state.global_step}"
    trainer.accelerator.wait_for_everyone()
    if state.global_step > 0 and not (newest / MARKER).exists():
        trainer._save_checkpoint(trainer.model, trial=None)
        trainer.callback_handler.on_save(trainer.args, state, trainer.control)


def _resume(asked: str | bool | None, folder: Path) -> tuple[Path | None, Sequence[TrainedGroup]]:
    """The checkpoint to go on from, and the groups that it has trained."""
    if isinstance(asked, str) and asked.lower() in ("no", "false"):
        if newest := last_complete(folder):
            raise ConfigError(f"{folder} holds {newest.name} of an earlier run; name another output_dir")
        return None, ()
    checkpoint = Path(asked) if isinstance(asked, str) and asked.lower() != "true" else last_complete(folder)
    if checkpoint is None:
        return None, ()
    try:
        return checkpoint, read_marker(checkpoint)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _push_kind(episodes: GRPOEpisodes, model: ModelConfig) -> Any:
    if episodes.push_kind != "auto":
        return episodes.push_kind
    return "lora" if model.use_peft else "full"


def _model_options(model: ModelConfig, given: Any) -> dict[str, Any]:
    options = dict(given or {})
    options.setdefault("dtype", model.dtype or "float32")
    if model.attn_implementation:
        options.setdefault("attn_implementation", model.attn_implementation)
    if model.model_revision:
        options.setdefault("revision", model.model_revision)
    return options


def _vocabulary(model: ModelConfig) -> int:
    return int(AutoConfig.from_pretrained(model.model_name_or_path).get_text_config().vocab_size)


def _tokenizer(model: ModelConfig) -> Any:
    """The model's tokenizer; only its padding id is used, and saved with what is trained."""
    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path, padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False)
