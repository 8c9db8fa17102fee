"""Leased groups as samples to train on, or the reason why a group is not trained. Pure.

The rules:

- One advantage for each *episode*, over its whole group, before anything is cut, filtered or sharded; all traces of an
  episode carry it. Which episodes count is said by ``EpisodeUse``.
- A group is trained whole or dropped whole, for one ``DropReason`` with words that name the episode and the remedy.
- What the policy sampled under other rules than this run's is refused, never trained in silence.
- Every sampled token is accounted for: ``TokenCount.sampled`` is the sum of the trained and the excluded ones.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from dragoman.store.records import CallInfo, EpisodeInfo, Logprobs, TokenIds
from dragoman.store.traces import LossMask, Trace, Traces, build_traces, per_call
from dragoman.trainer.rescore import changed_by

if TYPE_CHECKING:
    from dragoman.store.leases import LeasedGroup

EpisodeUse = Literal["counted", "failed", "abandoned", "timed_out", "no_reward"]
"""``counted``: in its group's baseline, and trained. The others leave it: ``failed`` is an infrastructure's fault and
says nothing about the policy; ``timed_out`` only where ``Rules.timed_out`` excludes it."""

DropReason = Literal[
    "corrupt", "no_baseline", "zero_variance", "no_tokens", "sampling", "unknown_version", "stale", "not_finite"
]
"""Why a whole group is not trained; the first that holds. ``no_baseline``: fewer than two episodes count.
``zero_variance``: all rewards are equal. ``no_tokens``: no call of it can be trained. ``sampling``: a call was sampled
under other rules than this run's. ``stale``: sampled too many policy versions ago. ``not_finite``: its loss or
gradient was not finite (found while training)."""

ADVANTAGE_EPSILON = 1e-4
"""Added to the standard deviation of the rewards, as TRL does."""
TEMPERATURE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run trains on."""

    temperature: float = 1.0
    """At which all calls must have been sampled; the loss scores at it too."""
    scale_rewards: Literal["group", "none"] = "group"
    """``group``: advantages are divided by the standard deviation (n - 1) of the group's rewards."""
    timed_out: Literal["reward", "exclude"] = "reward"
    """What an episode that ran out of time is: one with ``timed_out_reward``, or none."""
    timed_out_reward: float = 0.0
    max_staleness: int | None = 4
    """How many policy versions the oldest trained token of a group may be behind; ``None``: any number."""
    max_trace_length: int | None = None
    """In tokens; a longer trace is cut before the turn that does not fit. ``None``: no limit."""
    vocabulary: int | None = None
    """Size of the model's vocabulary; ``None``: token ids are not checked."""
    each_call: bool = False
    """Train every call in a row of its own instead of merged traces: slower and equal, for comparison."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One trace with what the loss needs. Arrays have shape (N,) and align."""

    group: int
    """Row of its group."""
    episode_id: str
    token_ids: TokenIds
    loss_mask: LossMask
    """True: sampled, and trained here. Never at position 0."""
    logprobs: Logprobs
    """Of the policy that sampled, at its temperature; 0.0 where the mask is False. Always finite."""
    advantage: float
    """Of its episode."""
    episode_tokens: int
    """Trained tokens of its episode, over all of its samples."""

    @property
    def first(self) -> int:
        """Position of the first trained token."""
        return int(np.argmax(self.loss_mask))

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return int(np.count_nonzero(self.loss_mask))


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Where the sampled tokens of a group went."""

    sampled: int
    trained: int
    excluded: Mapping[str, int]
    """Reason → tokens: an ``ExclusionReason`` of their call, ``episode_`` and an ``EpisodeUse``, or ``group_`` and a
    ``DropReason``."""


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group that is trained."""

    group: "LeasedGroup"
    samples: tuple[Sample, ...]
    """Of all counted episodes, in their order; at least one."""
    rewards: tuple[float, ...]
    """Of the counted episodes."""
    episodes: Mapping[EpisodeUse, int]
    oldest_lag: int
    """Policy versions between its oldest trained token and the newest policy."""
    mean_lag: float
    """The same, as a mean over trained tokens."""
    tokens: TokenCount


@dataclass(frozen=True, slots=True)
class DroppedGroup:
    group: "LeasedGroup"
    reason: DropReason
    detail: str
    """What was found, and what to do about it."""
    tokens: TokenCount


class _Dropped(Exception):
    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: DropReason = reason
        self.detail = detail


def prepare_group(
    group: "LeasedGroup", rules: Rules, versions: Mapping[str, int], newest: int
) -> PreparedGroup | DroppedGroup:
    """What a leased group gives to train on.

    ``versions``: number of every known policy version. ``newest``: the number of the newest one, from which lag counts.
    """
    uses = [episode_use(episode.info, rules) for episode in group.episodes]
    sampled = [_sampled(episode.calls) for episode in group.episodes]
    try:
        counted = [episode for episode, use in zip(group.episodes, uses, strict=True) if use == "counted"]
        rewards = [reward_of(episode.info, rules) for episode in counted]
        advantages = group_advantages(rewards, rules.scale_rewards)
        if len(rewards) < 2:
            raise _Dropped("no_baseline", f"{len(rewards)} of its {len(uses)} episodes count; a baseline needs two")
        if min(rewards) == max(rewards):
            raise _Dropped("zero_variance", f"all {len(rewards)} rewards are {rewards[0]:g}")
        built = [_traces(episode.info.id, episode.calls, rules) for episode in counted]
        traces = [trace for one in built for trace in one.traces]
        if not traces:
            raise _Dropped("no_tokens", "none of its calls can be trained; `dragoman ledger` says why")
        for trace in traces:
            _check_sampling(trace, rules)
        lags = _lags(traces, versions, newest)
        oldest = max(lag for lag, _ in lags)
        if rules.max_staleness is not None and oldest > rules.max_staleness:
            raise _Dropped(
                "stale",
                f"its oldest tokens are {oldest} policy versions behind, and max_staleness is {rules.max_staleness}; "
                "sample faster, push less often, or allow more",
            )
    except _Dropped as dropped:
        excluded = {f"group_{dropped.reason}": sum(sampled)} if sum(sampled) else {}
        return DroppedGroup(group, dropped.reason, dropped.detail, TokenCount(sum(sampled), 0, excluded))

    samples = []
    excluded_tokens: Counter[str] = Counter()
    for one, advantage in zip(built, advantages, strict=True):
        trained = sum(trace.trained_tokens for trace in one.traces)
        for trace in one.traces:
            arrays = (trace.token_ids, trace.loss_mask, trace.logprobs)
            samples.append(Sample(group.row, trace.episode_id, *arrays, advantage, trained))
        for call in one.excluded:
            excluded_tokens[call.reason] += call.tokens
    for use, tokens in zip(uses, sampled, strict=True):
        if use != "counted":
            excluded_tokens[f"episode_{use}"] += tokens
    all_trained = sum(sample.trained for sample in samples)
    lag_tokens = sum(tokens for _, tokens in lags)
    return PreparedGroup(
        group,
        tuple(samples),
        tuple(rewards),
        Counter(uses),
        oldest_lag=oldest,
        mean_lag=sum(lag * tokens for lag, tokens in lags) / lag_tokens,
        tokens=TokenCount(sum(sampled), all_trained, {name: n for name, n in excluded_tokens.items() if n}),
    )


def episode_use(episode: EpisodeInfo, rules: Rules) -> EpisodeUse:
    """Whether an episode that has ended counts in its group's baseline, and if not, why."""
    match episode.end:
        case "failed" | "abandoned":
            return episode.end
        case "timed_out":
            return "counted" if rules.timed_out == "reward" else "timed_out"
    return "counted" if episode.reward is not None else "no_reward"


def reward_of(episode: EpisodeInfo, rules: Rules) -> float:
    """The reward of an episode that counts."""
    if episode.end == "timed_out":
        return rules.timed_out_reward
    assert episode.reward is not None
    return episode.reward


def group_advantages(rewards: Sequence[float], scale: Literal["group", "none"]) -> list[float]:
    """One advantage for each episode of a group; all 0 where fewer than two count."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    values = np.asarray(rewards, np.float64)
    advantages = values - values.mean()
    if scale == "group":
        advantages /= values.std(ddof=1) + ADVANTAGE_EPSILON
    return [float(advantage) for advantage in advantages]


def _sampled(calls: Sequence[CallInfo]) -> int:
    outcomes = [call.outcome for call in calls if call.outcome is not None]
    return sum(len(outcome.completion_ids) for outcome in outcomes if outcome.completion_ids is not None)


def _traces(episode_id: str, calls: Sequence[CallInfo], rules: Rules) -> Traces:
    """The traces of an episode, each checked for what would spoil the loss."""
    build = per_call if rules.each_call else build_traces
    try:
        built = build(calls, max_length=rules.max_trace_length)
    except ValueError as error:
        raise _Dropped("corrupt", f"episode {episode_id}: {error}") from error
    for trace in built.traces:
        logprobs = trace.logprobs[trace.loss_mask]
        wrong = None
        if trace.loss_mask[0]:
            wrong = "its first token is trained, and nothing stands before it"
        elif logprobs.max() > 1e-3:
            wrong = f"a logprob is {logprobs.max():g}, and none can be above 0"
        elif logprobs.min() <= -9999.0:
            wrong = "a logprob is -9999, which the engine says where it has none"
        elif trace.token_ids.min() < 0:
            wrong = f"it has the token id {trace.token_ids.min()}"
        elif rules.vocabulary is not None and trace.token_ids.max() >= rules.vocabulary:
            wrong = (
                f"it has the token id {trace.token_ids.max()} and the model {rules.vocabulary} ids; "
                "was it sampled from another model?"
            )
        if wrong:
            raise _Dropped("corrupt", f"episode {episode_id}, trace of call {trace.call_ids[0]}: {wrong}")
    return built


def _check_sampling(trace: Trace, rules: Rules) -> None:
    for turn in trace.turns:
        if not turn.trained:
            continue
        where = f"episode {trace.episode_id}, call {turn.call_id}"
        if turn.temperature is None:
            raise _Dropped("sampling", f"{where}: the temperature that it was sampled at is not stored")
        if knob := changed_by(turn.sampling):
            raise _Dropped(
                "sampling",
                f"{where}: sampled with {knob}, which bends the distribution that its logprobs are of; "
                "open episodes with the sampling profile `train`",
            )
        if abs(turn.temperature - rules.temperature) > TEMPERATURE_TOLERANCE:
            raise _Dropped(
                "sampling",
                f"{where}: sampled at temperature {turn.temperature:g}, and this run trains at {rules.temperature:g}; "
                "say `temperature` in the configuration as the rollouts do",
            )


def _lags(traces: Sequence[Trace], versions: Mapping[str, int], newest: int) -> list[tuple[int, int]]:
    """Of each policy span: versions behind the newest, and tokens."""
    found = []
    for trace in traces:
        for span in trace.policy_spans:
            if span.version not in versions:
                raise _Dropped(
                    "unknown_version",
                    f"episode {trace.episode_id}: tokens of the policy {span.version!r}, which this store does not "
                    "know; its staleness cannot be told",
                )
            found.append((max(0, newest - versions[span.version]), span.end - span.start))
    return found
