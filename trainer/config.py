"""What a training run is told: TRL's own arguments, ours beside them, and the defaults that differ. Needs trl.

The rules:

- Names, meanings and parser are TRL's (``TrlParser``, ``GRPOConfig``, ``SFTConfig``, ``ModelConfig``); ``--help`` lists
  all of them. Ours are in the ``…Episodes`` classes, in no class of TRL's.
- A key that nothing knows is an error that names the nearest one that is known. An argument of TRL's that could have no
  effect on stored episodes, or a wrong one, is refused by name (``REFUSED``) instead of being passed over.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
import yaml
from trl import GRPOConfig, ModelConfig, SFTConfig, TrlParser

from dragoman.trainer.batch import LossType
from dragoman.trainer.samples import Rules

ENDLESS = 1_000_000
"""Steps of a run without ``max_steps``."""
CISPO_CLIP = 3.0
"""Largest importance weight of ``cispo`` where ``epsilon_high`` is not said. TRL would take ``epsilon``, 0.2."""

_SAMPLED = "the episodes are sampled already; it would change nothing"
REFUSED: dict[str, str] = {
    "gradient_accumulation_steps": "a step has as many micro-batches as its groups need; say groups_per_step, "
    "per_device_train_batch_size and max_microbatch_tokens",
    "steps_per_generation": "each step reads its own groups",
    "generation_batch_size": "say groups_per_step",
    "num_generations": "groups have the size that they were sampled with",
    "num_iterations": "every group is trained once; the loss corrects for the policy that sampled it",
    "use_vllm": "sampling is the rollouts' work",
    "top_p": _SAMPLED,
    "top_k": _SAMPLED,
    "min_p": _SAMPLED,
    "repetition_penalty": _SAMPLED,
    "generation_kwargs": _SAMPLED,
    "mask_truncated_completions": "it would take a trace that ends with a tool's tokens for a truncated one",
    "top_entropy_quantile": "the weights of tokens do not know it",
    "entropy_coef": "the weights of tokens do not know it",
    "use_adaptive_entropy": "the weights of tokens do not know it",
    "log_completions": "`dragoman show` and the ledger have the conversations",
    "reward_weights": "an episode has one reward, set by whoever ran it",
    "eval_strategy": "evaluate with rollouts",
    "fp16": "say bf16",
    "deepspeed": "it steps inside `backward`, before a gradient can be checked; use FSDP or DDP",
}
"""Arguments of GRPO that must keep TRL's default, and what to do instead."""


@dataclass
class GRPOArguments(GRPOConfig):  # type: ignore[misc]  # trl has no types
    """TRL's arguments with defaults for stored episodes."""

    loss_type: str = field(
        default="cispo",
        metadata={"help": "One of cispo, dapo, grpo, dr_grpo, gspo. All correct for the policy that sampled."},
    )
    epsilon_high: float | None = field(
        default=None,
        metadata={
            "help": "Upper clip of the ratio, 1 + epsilon_high; for cispo the largest importance weight itself. "
            "Default: epsilon, for cispo 3.0."
        },
    )
    lr_scheduler_type: str = field(default="constant_with_warmup", metadata={"help": "The scheduler of the run."})
    max_steps: int = field(default=-1, metadata={"help": "Optimizer steps to train; -1: until it is stopped."})
    save_steps: float = field(
        default=20, metadata={"help": "Steps between checkpoints. Groups count as consumed from the checkpoint on."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Steps between two logged lines."})
    report_to: None | str | list[str] = field(  # noqa: RUF036 (the parser reads the order)
        default="tensorboard", metadata={"help": "tensorboard, wandb, trackio or none; a list for several."}
    )
    bf16: bool | None = field(default=None, metadata={"help": "bfloat16 autocast; default: where there is a GPU."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "We print a line of our own."})
    ignore_data_skip: bool = field(default=True, metadata={"help": "The store remembers what was trained."})

    def __post_init__(self) -> None:
        _use_what_is_there(self)
        if self.max_steps <= 0:
            self.max_steps = ENDLESS
        if self.loss_type == "grpo" and self.importance_sampling_level == "sequence":
            self.loss_type = "gspo"  # as TRL spells it
        if self.loss_type not in get_args(LossType):
            raise ValueError(f"loss_type {self.loss_type!r} is none of {', '.join(get_args(LossType))}")
        if self.importance_sampling_level == "sequence" and self.loss_type != "gspo":
            raise ValueError(f"importance_sampling_level sequence goes with loss_type gspo, not {self.loss_type}")
        if self.loss_type == "cispo" and self.epsilon_high is None:
            self.epsilon_high = CISPO_CLIP
        if self.scale_rewards not in ("group", "none", True, False):
            raise ValueError(f"scale_rewards is {self.scale_rewards!r}; it is group or none")
        if self.save_strategy not in ("steps", "no"):
            raise ValueError(f"save_strategy is {self.save_strategy!r}; groups have no epochs, so it is steps or no")
        default = {each.name: each.default for each in fields(GRPOConfig)}
        for name, instead in REFUSED.items():
            if getattr(self, name) != default[name] and getattr(self, name) not in (None, "no"):
                raise ValueError(f"{name} has no place in training on stored episodes: {instead}")
        # TRL wants the batch that it would generate to hold whole groups; then it takes part in nothing.
        self.num_generations = self.steps_per_generation = 2
        super().__post_init__()
        self.steps_per_generation = 1

    @property
    def loss(self) -> LossType:
        return cast(LossType, self.loss_type)


@dataclass
class Episodes:
    """Which episodes are read, by GRPO and by SFT."""

    store: str | None = field(
        default=None, metadata={"help": "URL of the store; default: the one of the state folder (DRAGOMAN_HOME)."}
    )
    tasks: list[str] | None = field(default=None, metadata={"help": "Only episodes of these tasks; default: all."})
    timed_out: Literal["reward", "exclude"] = field(
        default="reward",
        metadata={"help": "An episode that ran out of time counts with timed_out_reward, or not at all."},
    )
    timed_out_reward: float = field(default=0.0, metadata={"help": "The reward of an episode that ran out of time."})
    max_trace_length: int | None = field(
        default=None, metadata={"help": "Longest trace in tokens; a longer one is cut between two turns."}
    )


@dataclass
class GRPOEpisodes(Episodes):
    """How groups are read, and when weights go back."""

    consumer: str | None = field(
        default=None,
        metadata={"help": "Whose reading it is: each consumer gets every group once. Default: run_name, or the name of "
                  "output_dir. One trainer at a time may read as one consumer."},
    )  # fmt: skip
    groups_per_step: int = field(default=4, metadata={"help": "Groups with a gradient in each optimizer step."})
    max_microbatch_tokens: int | None = field(
        default=16384,
        metadata={"help": "Most padded tokens of one forward pass; a longer trace is alone in one. "
                  "per_device_train_batch_size is the most rows."},
    )  # fmt: skip
    max_staleness: int | None = field(
        default=4,
        metadata={"help": "Policy versions that the oldest token of a group may be behind the newest; else the whole "
                  "group is dropped. null: no limit."},
    )  # fmt: skip
    each_call: bool = field(
        default=False, metadata={"help": "A row for each call instead of merged traces; slower, for comparison."}
    )
    lease_seconds: float = field(default=900.0, metadata={"help": "How long a leased group is ours without a sign."})
    poll_seconds: float = field(default=2.0, metadata={"help": "Pause between two looks into a store without groups."})
    stop_after_waiting: float | None = field(
        default=None, metadata={"help": "Seconds without a group after which training ends; default: never."}
    )
    push_every: int = field(default=1, metadata={"help": "Steps between two new policies; 0: none is published."})
    push_kind: Literal["auto", "lora", "full"] = field(
        default="auto", metadata={"help": "What is published; auto: the adapter with use_peft, else all weights."}
    )
    push_nccl: str | None = field(
        default=None,
        metadata={"help": "Address of the engine, as its gateway knows it: full weights go to it over NCCL, instead of "
                  "from their folder. Needs GPUs and vLLM here, and was never run."},
    )  # fmt: skip
    push_timeout: float = field(
        default=600.0, metadata={"help": "Seconds to wait until a gateway serves the new policy; 0: do not wait."}
    )

    def __post_init__(self) -> None:
        if self.groups_per_step < 1:
            raise ValueError(f"groups_per_step is {self.groups_per_step}; at least one group makes a step")
        if self.push_every < 0:
            raise ValueError(f"push_every is {self.push_every}; say 0 to publish nothing")


@dataclass
class SFTArguments(SFTConfig):  # type: ignore[misc]  # trl has no types
    """TRL's arguments with defaults for stored episodes."""

    max_length: int | None = field(
        default=None, metadata={"help": "TRL's cut in the middle of a turn; use max_trace_length instead."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Steps between two logged lines."})
    report_to: None | str | list[str] = field(  # noqa: RUF036 (the parser reads the order)
        default="tensorboard", metadata={"help": "tensorboard, wandb, trackio or none; a list for several."}
    )
    bf16: bool | None = field(default=None, metadata={"help": "bfloat16 autocast; default: where there is a GPU."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "We print a line of our own."})

    def __post_init__(self) -> None:
        _use_what_is_there(self)
        if self.max_length is not None:
            raise ValueError("max_length would cut traces in the middle of a turn; say max_trace_length")
        if self.assistant_only_loss or self.completion_only_loss is not None:
            raise ValueError("the stored loss mask decides what is trained, not assistant_only_loss or its like")
        super().__post_init__()


@dataclass
class SFTEpisodes(Episodes):
    """Which episodes are good enough to copy."""

    min_reward: float = field(default=1.0, metadata={"help": "Least reward of an accepted episode."})
    best_of_group: int | None = field(
        default=None, metadata={"help": "At most so many episodes of a group, the best ones; default: all accepted."}
    )
    balance_harnesses: bool = field(
        default=False, metadata={"help": "No harness gives more episodes than the one that gives fewest."}
    )
    eval_share: float = field(
        default=0.1, metadata={"help": "Share of tasks kept for evaluation; all episodes of a task are on one side."}
    )
    observed: bool = field(
        default=False,
        metadata={"help": "Also episodes that a real provider answered: rendered once with the model's template."},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.eval_share < 1:
            raise ValueError(f"eval_share is {self.eval_share}; it is at least 0 and below 1")


class ConfigError(ValueError):
    """A configuration that cannot be used, in words for the person who wrote it."""


def read_grpo(path: Path, overrides: Sequence[str] = ()) -> tuple[GRPOArguments, GRPOEpisodes, ModelConfig]:
    """The configuration of ``dragoman train grpo``. Raises ``ConfigError``."""
    found = _read((GRPOArguments, GRPOEpisodes, ModelConfig), path, overrides)
    return cast(tuple[GRPOArguments, GRPOEpisodes, ModelConfig], found)


def read_sft(path: Path, overrides: Sequence[str] = ()) -> tuple[SFTArguments, SFTEpisodes, ModelConfig]:
    """The configuration of ``dragoman train sft``. Raises ``ConfigError``."""
    found = _read((SFTArguments, SFTEpisodes, ModelConfig), path, overrides)
    return cast(tuple[SFTArguments, SFTEpisodes, ModelConfig], found)


def help_text(kind: Literal["grpo", "sft"]) -> str:
    """Every option, as the parser lists them."""
    own: tuple[type, ...] = (GRPOEpisodes, GRPOArguments) if kind == "grpo" else (SFTEpisodes, SFTArguments)
    usage = f"dragoman train {kind} CONFIG.yaml [--option value]…"
    return str(TrlParser((*own, ModelConfig), usage=usage, add_help=False).format_help())


def rules_of(episodes: GRPOEpisodes, arguments: GRPOArguments, vocabulary: int) -> Rules:
    return Rules(
        temperature=arguments.temperature,
        scale_rewards="none" if arguments.scale_rewards == "none" else "group",
        timed_out=episodes.timed_out,
        timed_out_reward=episodes.timed_out_reward,
        max_staleness=episodes.max_staleness,
        max_trace_length=episodes.max_trace_length,
        vocabulary=vocabulary,
        each_call=episodes.each_call,
    )


def _read(classes: tuple[type, ...], path: Path, overrides: Sequence[str]) -> tuple[Any, ...]:
    try:
        given = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path} holds no options; it must be a mapping, one `name: value` a line")
    known = {each.name for one in classes for each in fields(one) if each.init}
    said = [str(key) for key in given if key != "env"]
    said += [word[2:].partition("=")[0].replace("-", "_") for word in overrides if word.startswith("--")]
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(f"{path}: there is no option {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if not given.get("model_name_or_path") and not any(word.startswith("--model_name_or_path") for word in overrides):
        raise ConfigError(f"{path}: say model_name_or_path, the model that the episodes were sampled from")
    try:
        found = TrlParser(classes).parse_args_and_config(["--config", str(path), *overrides])
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return cast(tuple[Any, ...], found)


def _use_what_is_there(arguments: Any) -> None:
    """float32 on a CPU, bfloat16 on a GPU, unless said otherwise."""
    if not torch.cuda.is_available():
        arguments.use_cpu = True
    if arguments.bf16 is None:
        arguments.bf16 = not arguments.use_cpu and not arguments.fp16
