"""TRL's names and ours in one file; what is unknown, or would have no effect, is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dragoman.trainer.config import (
    CISPO_CLIP,
    ENDLESS,
    REFUSED,
    ConfigError,
    GRPOEpisodes,
    help_text,
    read_grpo,
    read_sft,
    rules_of,
)


def written(folder: Path, **options: Any) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({"model_name_or_path": "m", "output_dir": str(folder / "out"), **options}))
    return path


def test_defaults(tmp_path: Path) -> None:
    arguments, episodes, model = read_grpo(written(tmp_path))
    assert (arguments.loss, arguments.epsilon_high, arguments.max_steps) == ("cispo", CISPO_CLIP, ENDLESS)
    assert arguments.use_cpu == (not torch.cuda.is_available()) != arguments.bf16
    assert (arguments.steps_per_generation, arguments.gradient_accumulation_steps) == (1, 1)
    assert arguments.report_to == ["tensorboard"]
    assert str(arguments.lr_scheduler_type) in ("constant_with_warmup", "SchedulerType.CONSTANT_WITH_WARMUP")
    assert episodes == GRPOEpisodes()
    assert model.model_name_or_path == "m"
    rules = rules_of(episodes, arguments, 97)
    assert (rules.temperature, rules.max_staleness, rules.scale_rewards, rules.vocabulary) == (1.0, 4, "group", 97)


def test_a_file_and_what_the_command_line_says_over_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        max_staleness=None,
        tasks=["a", "b"],
        per_device_train_batch_size=1,
        learning_rate="3e-6",
        epsilon_high=5,
    )
    arguments, episodes, _ = read_grpo(path, ["--groups_per_step", "7", "--temperature=0.7", "--scale-rewards", "none"])
    assert (episodes.max_staleness, episodes.tasks, episodes.groups_per_step) == (None, ["a", "b"], 7)
    assert (arguments.learning_rate, arguments.temperature, arguments.epsilon_high) == (3e-6, 0.7, 5)
    assert rules_of(episodes, arguments, 9).scale_rewards == "none"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"learning_rat": 1}, "there is no option 'learning_rat'; did you mean 'learning_rate'"),
        ({"group_per_step": 1}, "did you mean 'groups_per_step'"),
        ({"loss_type": "bnpo"}, "loss_type 'bnpo' is none of cispo, dapo, grpo, dr_grpo, gspo"),
        ({"scale_rewards": "batch"}, "group or none"),
        ({"importance_sampling_level": "sequence"}, "goes with loss_type gspo"),
        ({"save_strategy": "epoch"}, "steps or no"),
        ({"groups_per_step": 0}, "at least one group"),
        ({"push_every": -1}, "say 0"),
        ({"model_name_or_path": ""}, "say model_name_or_path"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_grpo(written(tmp_path, **options))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gradient_accumulation_steps", 8),
        ("num_iterations", 2),
        ("use_vllm", True),
        ("top_p", 0.9),
        ("num_generations", 16),
        ("entropy_coef", 0.1),
        ("mask_truncated_completions", True),
        ("eval_strategy", "steps"),
        ("fp16", True),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} has no place in training on stored episodes"):
        read_grpo(written(tmp_path, **{name: value}))
    assert name in REFUSED


def test_gspo_as_trl_spells_it(tmp_path: Path) -> None:
    path = written(tmp_path, loss_type="grpo", importance_sampling_level="sequence")
    assert read_grpo(path)[0].loss == "gspo"


def test_sft(tmp_path: Path) -> None:
    arguments, episodes, _ = read_sft(written(tmp_path, min_reward=0.5, num_train_epochs=2))
    assert (arguments.max_length, arguments.num_train_epochs, episodes.min_reward) == (None, 2, 0.5)
    with pytest.raises(ConfigError, match="say max_trace_length"):
        read_sft(written(tmp_path, max_length=1024))
    with pytest.raises(ConfigError, match="the stored loss mask"):
        read_sft(written(tmp_path, completion_only_loss=True))
    with pytest.raises(ConfigError, match="eval_share"):
        read_sft(written(tmp_path, eval_share=1.0))


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mapping|no YAML"):
        read_grpo(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_grpo(tmp_path / "none.yaml")


def test_help_has_every_option() -> None:
    for kind, names in (("grpo", ("--max_staleness", "--beta", "--lora_r")), ("sft", ("--min_reward", "--packing"))):
        text = help_text(kind)  # type: ignore[arg-type]
        assert all(name in text for name in (*names, "--store", "--learning_rate"))
