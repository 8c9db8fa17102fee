"""The trainer's gradient is that of a loss written from the papers, on every loss type and way of training."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dragoman.trainer.grpo import StoredEpisodeGRPOTrainer
from dragoman.trainer.samples import Sample, group_advantages
from tests.trainer import reference_loss
from tests.trainer.made_groups import Maker, gradient_groups, scorer, small_model
from tests.trainer.reference_loss import Settings
from tests.trainer.trained_once import changed, samples, train_once

LOSSES = ("cispo", "dapo", "grpo", "dr_grpo", "gspo")
TOLERANCE = 1e-6
TRAINED = (1, 2, 3)
"""The groups that a step of these holds; the other two have no variance, or are stale."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights some way off those that sampled, so that ratios are not 1 and the reference is another model."""
    folder = small_model(tmp_path_factory.mktemp("moved"))
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    network.save_pretrained(folder)
    return folder


def reference_episodes(model: Path, temperature: float = 1.0) -> list[list[reference_loss.Episode]]:
    """The trained groups, from the calls as they were made. A timeout has reward 0; a failed episode does not count."""
    make = Maker(scorer(model, temperature=temperature), temperature=temperature)
    groups = []
    for group in gradient_groups(make):
        if group.row not in TRAINED:
            continue
        episodes = []
        for episode in group.episodes:
            if episode.end == "failed":
                continue
            by_id = {
                call.id: reference_loss.Call(call.prompt, call.completion, call.logprobs) for call in episode.calls
            }
            sequences = tuple(tuple(by_id[one] for one in ids) for ids in episode.sequences)
            reward = 0.0 if episode.end == "timed_out" else episode.reward
            assert reward is not None
            episodes.append(reference_loss.Episode(reward, sequences))
        groups.append(episodes)
    return groups


def expected(network: Any, model: Path, settings: Settings, reference: Any = None) -> dict[str, torch.Tensor]:
    """The reference's gradients with the weights of ``network``."""
    network.zero_grad()
    other = None if reference is None else reference_loss.logits_of(reference)
    groups = reference_episodes(model, settings.temperature)
    reference_loss.loss(reference_loss.logits_of(network), other, groups, settings).backward()
    return {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert set(found) == set(wanted)
    assert max(float(one.abs().max()) for one in wanted.values()) > 1e-2
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


@pytest.mark.parametrize("loss", LOSSES)
def test_full_training(loss: Any, model: Path, moved: Path, tmp_path: Path) -> None:
    found, trainer, source = train_once(model, tmp_path, loss, samples(model), start=moved)
    assert difference(found, expected(load(moved), model, Settings(loss))) < TOLERANCE
    assert (source.done, source.failures) == (1, [])
    assert trainer.state.log_history[0]["logp_difference"] > 0.1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("corrected", [True, False])
def test_with_kl(loss: Any, corrected: bool, model: Path, moved: Path, tmp_path: Path) -> None:
    found, _, _ = train_once(
        model, tmp_path, loss, samples(model), start=moved, beta=0.1, use_bias_correction_kl=corrected
    )
    wanted = expected(load(moved), model, Settings(loss, beta=0.1, corrected_kl=corrected), load(model))
    assert difference(found, wanted) < TOLERANCE


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_lora(loss: Any, beta: float, model: Path, tmp_path: Path) -> None:
    found, trainer, _ = train_once(model, tmp_path, loss, samples(model), lora=True, beta=beta)
    network = trainer.accelerator.unwrap_model(trainer.model)
    wanted = expected(network, model, Settings(loss, beta=beta), load(model) if beta else None)
    assert all("lora" in name for name in wanted)
    assert difference(found, wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        pytest.param(Settings("cispo", scaled=False), {"scale_rewards": "none"}, id="unscaled"),
        pytest.param(Settings("cispo", temperature=0.7), {"temperature": 0.7}, id="temperature"),
        pytest.param(Settings("dapo"), {"gradient_checkpointing": True}, id="checkpointing"),
        pytest.param(Settings("dapo", low=0.1, high=0.4), {"epsilon": 0.1, "epsilon_high": 0.4}, id="clip-higher"),
        pytest.param(Settings("cispo", cap=1.2), {"epsilon_high": 1.2}, id="cap"),
    ],
)
def test_options(settings: Settings, more: dict[str, Any], model: Path, moved: Path, tmp_path: Path) -> None:
    made = samples(model, settings.temperature, "group" if settings.scaled else "none")
    found, _, _ = train_once(model, tmp_path, settings.kind, made, start=moved, **more)
    assert difference(found, expected(load(moved), model, settings)) < TOLERANCE


@pytest.mark.parametrize(("rows", "max_tokens"), [(1, None), (64, None), (3, 10)])
def test_micro_batches_change_nothing(
    rows: int, max_tokens: int | None, model: Path, moved: Path, tmp_path: Path
) -> None:
    made = samples(model)
    found, _, _ = train_once(model, tmp_path, "grpo", made, start=moved, rows=rows, max_tokens=max_tokens)
    assert difference(found, expected(load(moved), model, Settings("grpo"))) < TOLERANCE


def test_two_ranks(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.trainer.trained_once", str(model), str(tmp_path), *LOSSES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for loss in LOSSES:
        kept = torch.load(tmp_path / f"{loss}.pt")
        assert kept["world"] == 2
        wanted = expected(load(model), model, Settings(loss))  # type: ignore[arg-type]
        assert difference(kept["gradients"], wanted) < TOLERANCE


class WithoutImportance(StoredEpisodeGRPOTrainer):
    """Takes the policy of now for the policy that sampled."""

    def _tensors(self, *arguments: Any) -> dict[str, torch.Tensor]:
        batch = super()._tensors(*arguments)
        batch["old_per_token_logps"] = torch.log_softmax(torch.zeros(97), 0)[0].expand_as(batch["old_per_token_logps"])
        return batch


def everything_behind_the_prompt(sample: Sample) -> Any:
    mask = np.zeros_like(sample.loss_mask)
    mask[sample.first :] = True
    return mask


def baseline_of_traces(made: list[Sample]) -> list[Sample]:
    """A trace as the unit of the baseline."""
    rewards = {"e00000000011": 1.0, "e00000000013": 0.25, "e00000000021": 0.9, "e00000000024": 0.4, "e00000000025": 0.4}
    rewards["e00000000032"] = 2.0
    found = []
    for group in TRAINED:
        mine = [one for one in made if one.group == group]
        advantages = group_advantages([rewards.get(one.episode_id, 0.0) for one in mine], "group")
        by_id = dict(zip(map(id, mine), advantages, strict=True))
        found += changed(mine, advantage=lambda one, by_id=by_id: by_id[id(one)])  # type: ignore[misc]
    return found


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("broken", ["importance", "mask", "baseline"])
def test_the_test_sees_what_is_broken(loss: Any, broken: str, model: Path, moved: Path, tmp_path: Path) -> None:
    made = samples(model)
    trainer_class = StoredEpisodeGRPOTrainer
    if broken == "importance":
        trainer_class = WithoutImportance
    elif broken == "mask":
        made = changed(made, loss_mask=everything_behind_the_prompt)
    else:
        made = baseline_of_traces(made)
    found, _, _ = train_once(model, tmp_path, loss, made, start=moved, trainer_class=trainer_class)
    assert difference(found, expected(load(moved), model, Settings(loss))) > 100 * TOLERANCE
