"""What is not finite never reaches the optimizer. (The loss itself: ``test_gradient``.)"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dragoman.trainer.batch import Taken, plan_step
from dragoman.trainer.grpo import NotFinite, StoredEpisodeGRPOTrainer
from dragoman.trainer.samples import Sample
from tests.trainer.made_groups import small_model
from tests.trainer.trained_once import OneStep, arguments, samples


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


def poisoned(sample: Sample) -> Sample:
    """So unlikely for the policy that sampled that its ratio is infinite: finite to store, and no loss."""
    return replace(sample, logprobs=np.where(sample.loss_mask, -500, 0).astype(np.float32), advantage=-1.0)


def trainer(
    model: Path,
    folder: Path,
    steps: list[list[Sample]],
    kind: type[StoredEpisodeGRPOTrainer] = StoredEpisodeGRPOTrainer,
) -> tuple[StoredEpisodeGRPOTrainer, OneStep]:
    planned = [
        Taken(plan_step(one, loss="dapo", world=1, rows=1, max_tokens=None), {"tokens/seen": 10.0}) for one in steps
    ]
    source = OneStep(planned[0])
    source.left = planned[::-1]
    args = arguments(folder, "dapo")
    args.max_steps, args.learning_rate, args.max_grad_norm = len(steps), 1e-2, 1.0
    made = kind(source=source, model=str(model), args=args, processing_class=AutoTokenizer.from_pretrained(model))
    return made, source


def weights(network: Any) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in network.parameters()])


def test_a_step_that_is_not_finite_changes_nothing_and_names_its_group(model: Path, tmp_path: Path) -> None:
    made = samples(model)
    bad = [poisoned(one) if one.group == 2 else one for one in made]
    first, source = trainer(model, tmp_path, [bad])
    before = weights(first.model)
    first.train()
    assert source.failures == [((2,), "the loss was not finite at step 1")]
    assert source.done == 0
    assert torch.equal(weights(first.model), before)
    assert first.state.log_history[0]["failed_steps"] == 1.0
    assert first.last_metrics == {}

    second, source = trainer(model, tmp_path, [bad, made])
    second.train()
    assert (len(source.failures), source.done) == (1, 1)
    alone, _ = trainer(model, tmp_path, [made])
    alone.train()
    assert torch.isfinite(weights(second.model)).all()
    assert torch.equal(weights(second.model), weights(alone.model))  # Adam has seen one step


class NanGradient(StoredEpisodeGRPOTrainer):
    """Its loss is finite and its gradient is not."""

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        nothing = next(iter(model.parameters())).sum() * 0
        return super()._compute_loss(model, inputs) + nothing.sqrt()


def test_where_only_the_gradient_is_not_finite_all_groups_are_named_and_it_ends(model: Path, tmp_path: Path) -> None:
    made, source = trainer(model, tmp_path, [samples(model)] * 4, NanGradient)
    before = weights(made.model)
    with pytest.raises(NotFinite, match="the gradient was not finite in 3 steps in a row"):
        made.train()
    assert source.failures[0] == ((1, 2, 3), "the gradient was not finite at step 1")
    assert torch.equal(weights(made.model), before)


def test_weights_that_are_not_finite_end_training(model: Path, tmp_path: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        next(iter(network.parameters()))[5, 0] = float("nan")
    network.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "broken")
    made, _ = trainer(tmp_path / "broken", tmp_path, [samples(model)])
    with pytest.raises(NotFinite, match="the weights are not finite"):
        made.train()


def test_a_source_that_waits_is_asked_again(model: Path, tmp_path: Path) -> None:
    made, source = trainer(model, tmp_path, [samples(model)])
    waited = []
    source.left.append("wait")  # type: ignore[arg-type]
    source.wait = lambda: waited.append(1)  # type: ignore[method-assign]
    made.train()
    assert (waited, source.done) == ([1], 1)
