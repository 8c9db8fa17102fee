"""What happens around the steps of a GRPO run: a line of progress, checkpoints that count, weights that go back.

Rules of this module: each callback does one thing; only rank 0 prints, reads the store and writes. A failed push is
said and changes nothing: the policy before goes on serving. Needs torch and transformers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from transformers import TrainerCallback

from dragoman.store.database import Database
from dragoman.store.errors import StoreError
from dragoman.trainer.source import GroupSource, Say
from dragoman.trainer.weights import publish

SHOWN = (
    ("reward", "reward", ".3f"),
    ("policy_lag", "lag", ".1f"),
    ("tokens_per_second", "tokens/s", ",.0f"),
    ("groups/waiting", "waiting", ".0f"),
    ("loss", "loss", ".4f"),
    ("eval_loss", "eval loss", ".4f"),
    ("grad_norm", "grad", ".3g"),
    ("kl", "KL", ".4f"),
    ("clip_ratio/region_mean", "clipped", ".1%"),
    ("cispo_clip_ratio", "clipped", ".1%"),
    ("logp_difference", "|Δlogp|", ".4f"),
    ("failed_steps", "failed", ".0f"),
)
"""Metric, what the line calls it, format."""


class ProgressLine(TrainerCallback):
    """One line for each logged step."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if state.is_world_process_zero and logs and ("loss" in logs or "eval_loss" in logs):
            self.console.print(progress_line(state.global_step, args.max_steps, logs))


def progress_line(step: int, steps: int, logs: Mapping[str, Any]) -> str:
    """``step 3/40 · reward 0.500 · …``: what is in ``logs``, and nothing that is not."""
    parts = [f"[bold]step {step}[/]" + (f"/{steps}" if steps < 1_000_000 else "")]
    for name, shown, form in SHOWN:
        value = logs.get(name)
        if value is not None and (name != "failed_steps" or value):
            parts.append(f"{shown} {float(value):{form}}")
    return " · ".join(parts)


class CheckpointCallback(TrainerCallback):
    """Tells the source of groups that a checkpoint has been written. ``source``: ``None`` on ranks but the first."""

    def __init__(self, source: GroupSource | None) -> None:
        self.source = source

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.source is not None:
            self.source.checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class PushCallback(TrainerCallback):
    """Publishes the weights every so many steps. ``trainer`` is set once it is made."""

    trainer: Any

    def __init__(
        self,
        database: Database | None,
        *,
        every: int,
        kind: Literal["lora", "full"],
        folder: Path,
        run: str,
        timeout: float,
        say: Say,
        push: Callable[..., Any] = publish,
    ) -> None:
        """``database``: ``None`` on ranks but the first."""
        self.database = database
        self.every, self.kind, self.folder, self.run, self.timeout = every, kind, folder, run, timeout
        self.say, self.push = say, push

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.every or state.global_step % self.every or not self.trainer.last_metrics:
            return
        accelerator = self.trainer.accelerator
        sharded = accelerator.distributed_type in ("FSDP", "MEGATRON_LM")
        state_dict = accelerator.get_state_dict(self.trainer.model) if sharded else None  # all ranks take part
        if self.database is None:
            return
        try:
            published = self.push(
                self.database,
                accelerator.unwrap_model(self.trainer.model),
                self.trainer.processing_class,
                folder=self.folder,
                kind=self.kind,
                run=self.run,
                step=state.global_step,
                metrics=self.trainer.last_metrics,
                timeout=self.timeout,
                state_dict=state_dict,
            )
        except (OSError, StoreError, ValueError) as error:
            self.say(f"step {state.global_step}: the weights were not published: {error}")
            return
        if published.serving:
            self.say(f"step {state.global_step}: {published.version} is served")
        else:
            self.say(f"step {state.global_step}: {published.version} is not served: {published.reason}")
