"""A GRPO loss written from the papers, to hold the trainer's gradient against. Imports nothing of the trainer.

It starts from a model's raw logits and from single calls as they were stored (full prompt, sampled ids, stored
log-probabilities): no trace, no padding, no micro-batch, no rank.

- GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3): clipped ratio to the policy that sampled, mean over an output's tokens,
  mean over outputs; an output is an episode here. KL as its unbiased estimator (eq. 4).
- DAPO (arXiv 2503.14476, eq. 8): mean over all tokens. Dr. GRPO (arXiv 2503.20783): sum over tokens by a constant.
- GSPO (arXiv 2507.18071, eq. 5): one ratio for a sequence, the geometric mean of its tokens'.
- CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): REINFORCE with a truncated importance weight, mean over all tokens.
- With bias correction (DeepSeek-V3.2) the KL of a token is multiplied by the ratio.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Logits = Callable[[Tensor], Tensor]
"""Token ids (N,) → logits (N, V)."""


@dataclass(frozen=True)
class Call:
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Episode:
    reward: float
    sequences: tuple[tuple[Call, ...], ...]


@dataclass(frozen=True)
class Settings:
    kind: Literal["cispo", "dapo", "grpo", "dr_grpo", "gspo"]
    low: float = 0.2
    high: float = 0.2
    cap: float = 3.0
    beta: float = 0.0
    corrected_kl: bool = True
    temperature: float = 1.0
    scaled: bool = True
    constant: int = 16


def loss(logits: Logits, reference: Logits | None, groups: Sequence[Sequence[Episode]], settings: Settings) -> Tensor:
    """The loss of one optimizer step over whole groups, shape ()."""
    terms: list[tuple[Tensor, int]] = []  # of each episode: sum over its tokens, and their number
    for group in groups:
        rewards = [episode.reward for episode in group]
        mean = sum(rewards) / len(rewards)
        spread = statistics.stdev(rewards) + 1e-4 if settings.scaled else 1.0
        for episode in group:
            advantage = (episode.reward - mean) / spread
            sums = [sequence_loss(logits, reference, one, advantage, settings) for one in episode.sequences]
            tokens = sum(len(call.completion) for one in episode.sequences for call in one)
            terms.append((torch.stack(sums).sum(), tokens))
    match settings.kind:
        case "cispo" | "dapo":
            return torch.stack([term for term, _ in terms]).sum() / sum(tokens for _, tokens in terms)
        case "dr_grpo":
            return torch.stack([term for term, _ in terms]).sum() / (len(terms) * settings.constant)
        case "grpo" | "gspo":
            return torch.stack([term / tokens for term, tokens in terms]).mean()


def sequence_loss(
    logits: Logits, reference: Logits | None, calls: Sequence[Call], advantage: float, settings: Settings
) -> Tensor:
    """Sum of the token losses of one sequence, shape ()."""
    now = torch.cat([logprobs(logits, call, settings.temperature) for call in calls])
    old = torch.cat([torch.tensor(call.logprobs, dtype=now.dtype) for call in calls])
    log_ratio = now - old
    ratio = torch.exp(log_ratio.mean() if settings.kind == "gspo" else log_ratio)
    if settings.kind == "cispo":
        policy = -ratio.clamp(max=settings.cap).detach() * advantage * now
    else:
        clipped = ratio.clamp(1 - settings.low, 1 + settings.high)
        policy = -torch.minimum(ratio * advantage, clipped * advantage).expand(len(now))
    if settings.beta and reference is not None:
        with torch.no_grad():
            theirs = torch.cat([logprobs(reference, call, settings.temperature) for call in calls])
        kl = torch.exp(theirs - now) - (theirs - now) - 1
        policy = policy + settings.beta * kl * (ratio if settings.corrected_kl else 1.0)
    return policy.sum()


def logprobs(logits: Logits, call: Call, temperature: float) -> Tensor:
    """Log-probabilities of what a call sampled, shape (completion,)."""
    ids = torch.tensor([*call.prompt, *call.completion])
    scaled = torch.log_softmax(logits(ids)[len(call.prompt) - 1 : -1] / temperature, -1)
    return scaled.gather(1, ids[len(call.prompt) :, None])[:, 0]


def logits_of(model: Any) -> Logits:
    def logits(ids: Tensor) -> Tensor:
        found: Tensor = model(input_ids=ids[None]).logits[0].float()
        return found

    return logits
