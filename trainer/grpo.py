"""GRPO on stored episodes: TRL's trainer, fed with what was sampled elsewhere. Needs torch and trl.

The rules:

- TRL's own loss computes the gradient (``GRPOTrainer._compute_loss``); this class gives it the batch. Nothing is
  generated, rendered or scored with a reward function here.
- One call of ``training_step`` is one optimizer step. It goes through as many micro-batches as the step has, so the
  number of traces may differ from step to step; ``gradient_accumulation_steps`` stays 1.
- Rank 0 alone talks to the source of steps, and sends the whole step to the others.
- What is not finite never reaches the optimizer: such a step changes nothing, and its groups are named.
- The old log-probabilities of the loss are the stored ones, of the policy that sampled. So cispo's clamped ratio is the
  truncated importance weight, and dapo, grpo, dr_grpo and gspo clip against the policy that sampled.
"""

import time
from contextlib import nullcontext
from typing import Any, Literal, Protocol

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from dragoman.trainer.batch import Arrays, Rows, Taken, collate

MOST_FAILED_STEPS = 3
"""Steps in a row that may fail before training stops: the fault is then not in one group."""


class NoMoreSteps(Exception):
    """The source has ended; raised on all ranks at once, between two steps."""


class NotFinite(RuntimeError):
    """Training cannot go on: weights or several steps in a row are not finite."""


class StepSource(Protocol):
    """Where steps come from. Called on rank 0 only."""

    def take(self) -> Taken | Literal["wait", "end"]:
        """The next step; ``wait``: nothing yet, ask again."""

    def wait(self) -> None:
        """Pass the time until it is worth asking again."""

    def keep(self) -> None:
        """Called between micro-batches: hold on to what was taken."""

    def trained(self, step: int) -> None:
        """What was taken last is about to reach the weights, as optimizer step ``step`` (the first is 1)."""

    def failed(self, groups: tuple[int, ...], reason: str) -> None:
        """What was taken last changes nothing; ``groups`` (rows) made it fail."""


class StoredEpisodeGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # trl has no types
    """``source`` gives the steps. Other arguments are those of ``GRPOTrainer``; ``args`` is a ``GRPOArguments``."""

    def __init__(self, *, source: StepSource | None, args: Any, **arguments: Any) -> None:
        """``source``: ``None`` on all ranks but the first."""
        rows = args.generation_batch_size // args.num_generations
        super().__init__(
            args=args,
            reward_funcs=_no_reward_function,
            train_dataset=Dataset.from_dict({"prompt": [""] * rows}),  # only keeps the loop going
            **arguments,
        )
        if self.accelerator.distributed_type == "DEEPSPEED":
            raise ValueError("DeepSpeed steps inside `backward`, before a gradient can be checked; use FSDP or DDP")
        self.source = source
        # The weights of the tokens (`batch`) make all of these TRL's one weighted sum over tokens.
        self.loss_type = "cispo" if args.loss_type == "cispo" else "dapo"
        self.importance_sampling_level = "sequence" if args.loss_type == "gspo" else "token"
        self._labels: Tensor | None = None
        self._scored: Tensor | None = None
        self._drift = torch.zeros(2, dtype=torch.float64)
        self._failed_in_a_row = 0
        self.last_metrics: dict[str, float] = {}
        """Of the step before; empty where it failed."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one whole optimizer step. Returns its loss, shape (); 0 where it failed."""
        waited = time.perf_counter()
        taken = self._next_step()
        started = time.perf_counter()
        micro = taken.step.ranks[self.accelerator.process_index]
        self._drift.zero_()
        losses = []
        for number, rows in enumerate(micro):
            last = number == len(micro) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            with nullcontext() if last else self.accelerator.no_sync(model):
                arrays = collate(rows, taken.step, self.processing_class.pad_token_id)
                batch = self._tensors(arrays, taken.step.items)
                # Not TRL's own: it counts generations, of which there are none.
                losses.append(super(GRPOTrainer, self).training_step(model, batch))
            if self.source is not None:
                self.source.keep()
        loss = torch.stack(losses).sum()
        failed = not self._is_finite(model, loss)
        if failed:
            model.zero_grad(set_to_none=True)  # the optimizer passes over parameters without a gradient
            loss = torch.zeros_like(loss)
            self._report_failure(micro, losses)
        else:
            self._failed_in_a_row = 0
            if self.source is not None:
                self.source.trained(self.state.global_step + 1)
        self._note(taken, failed, seconds=time.perf_counter() - started, waited=started - waited)
        return loss

    def _prepare_inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return inputs

    def _next_step(self) -> Taken:
        """Ask rank 0's source until it has a step. Others only wait for what it says, so that none runs ahead."""
        while True:
            box: list[Any] = [None]
            if self.accelerator.is_main_process:
                assert self.source is not None
                box = [self.source.take()]
            broadcast_object_list(box, from_process=0)
            match box[0]:
                case "end":
                    raise NoMoreSteps
                case "wait":
                    if self.source is not None:
                        self.source.wait()
                case Taken() as taken:
                    return taken

    def _tensors(self, arrays: Arrays, items: float) -> dict[str, Tensor]:
        """What ``_compute_loss`` reads, on this rank's device."""
        device = self.accelerator.device
        batch = {
            "prompt_ids": torch.from_numpy(arrays.prompt_ids),
            "prompt_mask": torch.from_numpy(arrays.prompt_mask),
            "completion_ids": torch.from_numpy(arrays.completion_ids),
            "completion_mask": torch.from_numpy(arrays.completion_mask),
            "tool_mask": torch.from_numpy(arrays.weights),
            "advantages": torch.from_numpy(arrays.advantages),
            "old_per_token_logps": torch.from_numpy(arrays.logprobs),
        }
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        batch["num_items_in_batch"] = torch.tensor(items, device=device)
        if self.beta != 0.0:
            batch["ref_per_token_logps"] = self._reference_logps(batch)
        return batch

    def _reference_logps(self, batch: dict[str, Tensor]) -> Tensor:
        """Log-probabilities of the completions under the reference policy, shape (B, C)."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        width = batch["completion_ids"].size(1)
        self._labels = batch["tool_mask"]
        with torch.no_grad():
            if self.ref_model is not None:
                return self._get_per_token_logps_and_entropies(self.ref_model, ids, mask, width)[0]
            unwrapped = self.accelerator.unwrap_model(self.model)
            with use_adapter(unwrapped, adapter_name="ref" if "ref" in unwrapped.peft_config else None):
                return self._get_per_token_logps_and_entropies(self.model, ids, mask, width)[0]

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        self._labels = inputs["tool_mask"]
        loss: Tensor = super()._compute_loss(model, inputs)
        assert self._scored is not None
        trained = inputs["tool_mask"] > 0
        difference = (self._scored - inputs["old_per_token_logps"]).abs()[trained]
        self._drift += torch.stack([difference.sum(), trained.sum()]).double().cpu()
        self._scored = None
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **_more: Any
    ) -> tuple[Tensor, Tensor, None]:
        """As TRL's for text, but only trained tokens are scored: the others, often most, get 0 and are masked."""
        assert self._labels is not None
        labels = input_ids.clone()
        labels[:, :-logits_to_keep] = -100
        labels[:, -logits_to_keep:].masked_fill_(self._labels == 0, -100)
        with self.accelerator.autocast():
            outputs = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True)
        logps, entropies = outputs.log_probs[:, -logits_to_keep:], outputs.entropy
        if torch.is_grad_enabled():
            self._scored = logps.detach()
        return logps, entropies if entropies is None else entropies[:, -logits_to_keep:], None

    def _is_finite(self, model: Any, loss: Tensor) -> bool:
        """Whether loss and gradients are, on all ranks."""
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=loss.device)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()
        fine = torch.isfinite(norm.to(loss.device)) & torch.isfinite(loss)
        if self.accelerator.num_processes > 1:
            fine = self.accelerator.reduce(fine.float(), "sum") == self.accelerator.num_processes
        return bool(fine)

    def _report_failure(self, micro: tuple[Rows, ...], losses: list[Tensor]) -> None:
        """Name the groups whose loss is not finite, or all of the step where only the gradient is not."""
        weights_fine = all(bool(torch.isfinite(each).all()) for each in self.model.parameters())
        if not weights_fine:
            raise NotFinite(
                "the weights are not finite; resume from an earlier checkpoint, with a smaller learning rate"
            )
        suspects = [
            sample.group
            for rows, loss in zip(micro, losses, strict=True)
            for sample in rows
            if sample is not None and not bool(torch.isfinite(loss))
        ]
        everyone = [sample.group for rows in micro for sample in rows if sample is not None]
        suspects, everyone = gather_object(suspects), gather_object(everyone)
        groups = tuple(sorted(set(suspects or everyone)))
        what = "the loss" if suspects else "the gradient"
        self._failed_in_a_row += 1
        if self.source is not None:
            self.source.failed(groups, f"{what} was not finite at step {self.state.global_step + 1}")
        if self._failed_in_a_row >= MOST_FAILED_STEPS:
            raise NotFinite(
                f"{what} was not finite in {self._failed_in_a_row} steps in a row, the last with groups "
                f"{', '.join(map(str, groups))}; look at learning rate, dtype and weights"
            )

    def _note(self, taken: Taken, failed: bool, *, seconds: float, waited: float) -> None:
        """Add a step's metrics to those that TRL logs."""
        drift = self._drift.float().to(self.accelerator.device)
        if self.accelerator.num_processes > 1:
            drift = self.accelerator.reduce(drift, "sum")
        metrics = dict(taken.metrics)
        tokens = metrics.get("tokens/seen", 0.0)
        self.state.num_input_tokens_seen += int(tokens)
        metrics |= {
            "logp_difference": float(drift[0] / drift[1].clamp(min=1)),
            "step_time": seconds,
            "wait_time": waited,
            "tokens_per_second": tokens / seconds,
            "failed_steps": float(failed),
        }
        self.last_metrics = {} if failed else metrics
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)


def _no_reward_function(**_: Any) -> list[float]:
    raise AssertionError("rewards are stored; none is computed while training")
