"""One optimizer step of the real trainer on made groups, and its gradient; also as a program for several ranks."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoTokenizer, TrainerCallback

from dragoman.trainer.batch import LossType, Taken, plan_step
from dragoman.trainer.config import GRPOArguments
from dragoman.trainer.grpo import StoredEpisodeGRPOTrainer
from dragoman.trainer.samples import PreparedGroup, Rules, Sample, prepare_group
from tests.trainer.made_groups import NEWEST, VERSIONS, Maker, gradient_groups, leased, scorer

LORA_SEED = 7
LENGTH = 16
"""The constant of dr_grpo."""
Change = Callable[[list[Sample]], list[Sample]]


class OneStep:
    """A source with one step."""

    def __init__(self, taken: Taken) -> None:
        self.left = [taken]
        self.failures: list[tuple[tuple[int, ...], str]] = []
        self.done = 0

    def take(self) -> Taken | Literal["wait", "end"]:
        return self.left.pop() if self.left else "end"

    def wait(self) -> None:
        raise AssertionError("it has a step or none")

    def keep(self) -> None:
        pass

    def trained(self, step: int) -> None:
        self.done += 1

    def failed(self, groups: tuple[int, ...], reason: str) -> None:
        self.failures.append((groups, reason))


class Gradients(TrainerCallback):
    """Keeps the gradients as the optimizer would get them."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        model = more["model"]
        named = getattr(model, "module", model).named_parameters()
        self.kept = {name: one.grad.clone() for name, one in named if one.grad is not None}


def samples(model: Path, temperature: float = 1.0, scale: Literal["group", "none"] = "group") -> list[Sample]:
    """Of the made groups that are trained; the other two must be dropped."""
    make = Maker(scorer(model, temperature=temperature), temperature=temperature)
    rules = Rules(temperature=temperature, scale_rewards=scale, vocabulary=97, max_staleness=4)
    prepared = [prepare_group(leased(group), rules, VERSIONS, NEWEST) for group in gradient_groups(make)]
    assert [getattr(one, "reason", None) for one in prepared] == [None, None, None, "zero_variance", "stale"]
    return [sample for one in prepared if isinstance(one, PreparedGroup) for sample in one.samples]


def arguments(folder: Path, loss: LossType, **more: Any) -> GRPOArguments:
    return GRPOArguments(
        output_dir=str(folder),
        loss_type=loss,
        max_completion_length=LENGTH,
        max_grad_norm=0.0,
        learning_rate=0.0,
        report_to="none",
        save_strategy="no",
        gradient_checkpointing=more.pop("gradient_checkpointing", False),
        max_steps=1,
        **more,
    )


def peft_config() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=1, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)


def train_once(
    model: Path,
    folder: Path,
    loss: LossType,
    trained: Sequence[Sample],
    *,
    start: Path | None = None,
    lora: bool = False,
    rows: int = 2,
    max_tokens: int | None = 70,
    trainer_class: type[StoredEpisodeGRPOTrainer] = StoredEpisodeGRPOTrainer,
    **more: Any,
) -> tuple[dict[str, torch.Tensor], StoredEpisodeGRPOTrainer, OneStep]:
    """The gradients of one step; ``start``: weights other than those of ``model``, which is then the reference."""
    args = arguments(folder, loss, **more)
    step = plan_step(
        trained, loss=loss, world=args.world_size, rows=rows, max_tokens=max_tokens, length_constant=LENGTH
    )
    source = OneStep(Taken(step, {"reward": 0.5}))
    gradients = Gradients()
    torch.manual_seed(LORA_SEED)
    trainer = trainer_class(
        source=source if args.process_index == 0 else None,
        model=str(model),
        args=args,
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=peft_config() if lora else None,
        callbacks=[gradients],
    )
    if start is not None:
        from transformers import AutoModelForCausalLM

        trainer.model.load_state_dict(AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    trainer.train()
    return gradients.kept, trainer, source


def main() -> None:
    """``MODEL FOLDER LOSS…``: writes FOLDER/LOSS.pt with the gradients, on rank 0."""
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    made = samples(model)
    for loss in sys.argv[3:]:
        found, trainer, _ = train_once(model, folder / loss, loss, made)  # type: ignore[arg-type]
        if trainer.accelerator.is_main_process:
            torch.save({"gradients": found, "world": trainer.accelerator.num_processes}, folder / f"{loss}.pt")


def changed(made: list[Sample], **fields: Callable[[Sample], Any]) -> list[Sample]:
    return [dataclasses.replace(one, **{name: make(one) for name, make in fields.items()}) for one in made]


if __name__ == "__main__":
    main()
