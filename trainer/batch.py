"""Samples as the micro-batches of one optimizer step, and as the arrays that the loss reads. Pure numpy.

The rules:

- A step is the same number of micro-batches on every rank, with equally many rows; missing rows are fillers (``None``),
  which no loss counts. No sample is ever dropped: more samples make more micro-batches.
- Rows of one micro-batch are about equally long, and together at most ``max_tokens`` padded tokens where that can be.
- The loss is a weighted sum over trained tokens, divided by ``Step.items`` over all ranks and micro-batches:

  ========= ===================== ==============================
  loss      weight of a token     items
  ========= ===================== ==============================
  cispo     1                     trained tokens
  dapo      1                     trained tokens
  dr_grpo   1                     episodes x the length constant
  grpo      1 / tokens of episode episodes
  gspo      1 / tokens of episode episodes
  ========= ===================== ==============================

  So an episode is one unit however many traces it has, and neither fillers nor the way in which rows are spread over
  ranks change the gradient.
- Where prompt ends and completion begins is no fact about the loss, which the mask alone decides. Each row is split
  where the first trained token of its micro-batch stands, so no prompt needs padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.trainer.samples import Sample

LossType = Literal["cispo", "dapo", "grpo", "dr_grpo", "gspo"]
Rows = tuple[Sample | None, ...]
"""One micro-batch of one rank; ``None``: a filler."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One optimizer step."""

    ranks: tuple[tuple[Rows, ...], ...]
    """``ranks[r][m]``: the rows of micro-batch ``m`` on rank ``r``."""
    items: float
    """What the weighted sum over all trained tokens is divided by."""
    scale: float
    """Factor of all weights and of ``items``; keeps every weight at 1 or above (TRL clamps sums of weights there)."""
    loss: LossType


@dataclass(frozen=True, slots=True)
class Taken:
    """A step to train, and what to log beside it."""

    step: Step
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """One micro-batch: B rows, P prompt columns, C completion columns. Ids and masks are int64, the rest float32."""

    prompt_ids: NDArray[np.int64]
    """(B, P)"""
    prompt_mask: NDArray[np.int64]
    completion_ids: NDArray[np.int64]
    """(B, C), padded on the right."""
    completion_mask: NDArray[np.int64]
    """1 on every real token: attention."""
    weights: NDArray[np.float32]
    """(B, C): weight of a trained token, 0 on all others."""
    advantages: NDArray[np.float32]
    """(B,)"""
    logprobs: NDArray[np.float32]
    """(B, C): of the policy that sampled; 0 on all that is not trained."""


def plan_step(
    samples: Sequence[Sample],
    *,
    loss: LossType,
    world: int,
    rows: int,
    max_tokens: int | None,
    length_constant: int = 1,
) -> Step:
    """Spread the samples of one step over ``world`` ranks.

    ``rows``: the most rows of a micro-batch. ``max_tokens``: its most padded tokens; a single longer row is a
    micro-batch of its own; ``None``: no limit. ``length_constant``: of ``dr_grpo``. Raises ``ValueError`` without
    samples.
    """
    if not samples:
        raise ValueError("a step needs at least one sample")
    order = sorted(samples, key=lambda sample: -len(sample.token_ids))
    ranks: list[list[Rows]] = [[] for _ in range(world)]
    at = 0
    while at < len(order):
        longest = len(order[at].token_ids)
        each = rows if max_tokens is None else max(1, min(rows, max_tokens // longest))
        taken = order[at : at + each * world]
        at += len(taken)
        height = -(-len(taken) // world)
        for rank in range(world):
            mine: list[Sample | None] = [*taken[rank::world]]
            ranks[rank].append((*mine, *[None] * (height - len(mine))))
    items, scale = _items(samples, loss, length_constant)
    return Step(tuple(tuple(micro) for micro in ranks), items, scale, loss)


def _items(samples: Sequence[Sample], loss: LossType, length_constant: int) -> tuple[float, float]:
    """Divisor of the loss, and the factor by which it and all weights are multiplied."""
    episodes = {(sample.group, sample.episode_id): sample.episode_tokens for sample in samples}
    match loss:
        case "cispo" | "dapo":
            return float(sum(sample.trained for sample in samples)), 1.0
        case "dr_grpo":
            return float(len(episodes) * length_constant), 1.0
        case "grpo" | "gspo":
            longest = max(episodes.values())
            return float(len(episodes) * longest), float(longest)


def weight(sample: Sample, step: Step) -> float:
    """Of each trained token of a sample."""
    return step.scale / sample.episode_tokens if step.loss in ("grpo", "gspo") else 1.0


def collate(rows: Rows, step: Step, pad_id: int) -> Arrays:
    """The arrays of one micro-batch of ``step``."""
    height = len(rows)
    real = [sample for sample in rows if sample is not None]
    split = min((sample.first for sample in real), default=1)
    width = max((len(sample.token_ids) for sample in real), default=2)
    ids = np.full((height, width), pad_id, np.int64)
    mask = np.zeros((height, width), np.int64)
    weights = np.zeros((height, width), np.float32)
    logprobs = np.zeros((height, width), np.float32)
    advantages = np.zeros(height, np.float32)
    for row, sample in enumerate(rows):
        if sample is None:
            mask[row, 0] = 1  # a row that attends to nothing has no softmax
            continue
        length = len(sample.token_ids)
        ids[row, :length] = sample.token_ids
        mask[row, :length] = 1
        weights[row, :length][sample.loss_mask] = weight(sample, step)
        logprobs[row, :length][sample.loss_mask] = sample.logprobs[sample.loss_mask]
        advantages[row] = sample.advantage
    return Arrays(
        ids[:, :split], mask[:, :split], ids[:, split:], mask[:, split:], weights[:, split:], advantages,
        logprobs[:, split:],
    )  # fmt: skip


def padded_tokens(step: Step) -> int:
    """Positions that the model computes in a step, on all ranks."""
    return sum(
        len(rows) * max((len(sample.token_ids) for sample in rows if sample is not None), default=2)
        for micro in step.ranks
        for rows in micro
    )
