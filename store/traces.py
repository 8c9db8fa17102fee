"""An episode's calls as token sequences to train on: one trace for each branch. Pure.

The rules (``branches`` says which calls are trained, and where):

- A trace is the stream of its branch's last call: its full prompt and its completion, exactly as the engine was given
  and gave them. Nothing is rendered, decoded or encoded here.
- ``loss_mask`` is 1 on the completions of the branch's calls, and 0 on all else: what harness and template wrote
  between them, completions of excluded calls, and what another branch trains.
- So every sampled token of the episode is in exactly one trace with mask 1, or belongs to a call in ``excluded``; and
  what stands before a trained token is what stood before it when it was sampled.
- ``per_call`` trains the same tokens, each call in a trace of its own, for comparison.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.store.branches import TRAINED_KINDS, Branch, Excluded, find_branches
from dragoman.store.call_facts import facts_of
from dragoman.store.records import (
    CallInfo,
    CallKind,
    CallOutcome,
    FinishReason,
    JsonObject,
    Logprobs,
    PolicySpan,
    TokenIds,
)

LossMask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Turn:
    """Where what one call added stands in a trace. A trace's turns lie side by side and cover it."""

    call_id: str
    start: int
    """First token of what its prompt adds to its parent's stream."""
    completion_start: int
    end: int
    """Behind its completion, or behind what a fork keeps of it."""
    trained: bool
    """Whether its completion has mask 1; such a turn is always whole."""
    constrained: bool
    """Whether a grammar or forced tool limited what could be sampled; then it is not trained."""
    sampling: JsonObject | None
    """The sampling that was used; ``None``: not known."""

    @property
    def temperature(self) -> float | None:
        """``None``: not known."""
        return None if self.sampling is None else self.sampling.get("temperature")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One training row. Arrays align with ``token_ids``, shape (N,)."""

    episode_id: str
    kind: CallKind
    """Of all its trained calls."""
    thread: str | None
    """Of its first trained call."""
    call_ids: tuple[str, ...]
    """Its trained calls, in order; ``turns`` has the others too."""
    token_ids: TokenIds
    loss_mask: LossMask
    """True: sampled, and trained here."""
    logprobs: Logprobs
    """Of the distribution that was sampled from; always finite, and 0.0 (no data) where the mask is False."""
    policy_spans: tuple[PolicySpan, ...]
    """Which version sampled which positions, in order: exactly those with mask True. None crosses two turns."""
    turns: tuple[Turn, ...]
    finish_reason: FinishReason | None
    """How its last call ended."""

    @property
    def trained_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask))

    @property
    def truncated(self) -> bool:
        """Whether the policy did not end the last reply itself: it grew too long, or the engine broke it off."""
        return self.finish_reason in ("length", "abort")

    @property
    def constrained(self) -> bool:
        """Whether its context holds tokens that were not the policy's free choice."""
        return any(turn.constrained for turn in self.turns)

    @property
    def temperatures(self) -> frozenset[float | None]:
        """The temperatures of the trained turns."""
        return frozenset(turn.temperature for turn in self.turns if turn.trained)


@dataclass(frozen=True, slots=True)
class Traces:
    """What an episode gives to train on, and what it does not."""

    traces: tuple[Trace, ...]
    """In the order in which their first trained calls arrived."""
    excluded: tuple[Excluded, ...]
    """Every call that is trained in no trace, in order of arrival."""


def build_traces(
    calls: Sequence[CallInfo], *, kinds: Collection[CallKind] = TRAINED_KINDS, max_length: int | None = None
) -> Traces:
    """The traces of one episode, whose ``calls`` come as ``calls.read_calls`` gives them.

    ``kinds``: which calls are trained. ``max_length``: longest trace in tokens, ``None``: no limit; a branch is cut
    before the first turn that does not fit, and the turns behind it are excluded as ``too_long``. (A trace of them
    alone would have to begin with everything before them, and be as long.)

    Raises ``ValueError`` naming the call when these cannot be the calls of one episode (``find_branches``), and for one
    whose arrays do not fit together.
    """
    return _build(calls, kinds, max_length, each_call=False)


def per_call(
    calls: Sequence[CallInfo], *, kinds: Collection[CallKind] = TRAINED_KINDS, max_length: int | None = None
) -> Traces:
    """As ``build_traces``, but with a trace for every trained call: its full prompt masked, its completion trained.

    It is what training on single calls would see: the same tokens to train, and every prompt once more.
    """
    return _build(calls, kinds, max_length, each_call=True)


def _build(
    calls: Sequence[CallInfo], kinds: Collection[CallKind], max_length: int | None, *, each_call: bool
) -> Traces:
    if len(episodes := {call.arrival.episode_id for call in calls}) > 1:
        raise ValueError(f"these calls are of several episodes: {', '.join(sorted(episodes))}; give one episode's")
    found = find_branches([facts_of(call) for call in calls], kinds=kinds, max_length=max_length)
    branches: Sequence[Branch] = found.branches
    if each_call:
        trained = {call_id: branch.kind for branch in branches for call_id in branch.calls}
        branches = [Branch(trained[c.arrival.id], (c.arrival.id,)) for c in calls if c.arrival.id in trained]
    by_id = {call.arrival.id: call for call in calls}
    return Traces(tuple(_trace(branch, by_id) for branch in branches), found.excluded)


def _trace(branch: Branch, by_id: Mapping[str, CallInfo]) -> Trace:
    last = _outcome(by_id[branch.calls[-1]])
    first = by_id[branch.calls[0]].arrival
    token_ids, turns = _stream(last, by_id, frozenset(branch.calls))
    loss_mask = np.zeros(len(token_ids), np.bool_)
    logprobs = np.zeros(len(token_ids), np.float32)
    spans: list[PolicySpan] = []
    for turn in turns:
        if turn.trained:
            outcome = _outcome(by_id[turn.call_id])
            loss_mask[turn.completion_start : turn.end] = True
            logprobs[turn.completion_start : turn.end] = _logprobs(outcome)
            spans += [
                PolicySpan(span.version, turn.completion_start + span.start, turn.completion_start + span.end)
                for span in outcome.policy_spans
            ]
    return Trace(
        episode_id=first.episode_id,
        kind=branch.kind,
        thread=first.thread,
        call_ids=branch.calls,
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        policy_spans=tuple(spans),
        turns=tuple(turns),
        finish_reason=last.finish_reason,
    )


def _stream(last: CallOutcome, by_id: Mapping[str, CallInfo], trained: frozenset[str]) -> tuple[TokenIds, list[Turn]]:
    """Prompt and completion of ``last``, shape (N,), put together along its parents, and who wrote which part."""
    end = last.shared_len + sum(len(part) for part in _own(last))
    stream = np.empty(end, np.int32)
    turns: list[Turn] = []
    outcome = last
    while end > 0:  # `end`: how much of this call's stream is kept
        start = min(outcome.shared_len, end)
        if start < end:
            prompt, completion = _own(outcome)
            completion_start = min(start + len(prompt), end)
            stream[start:completion_start] = prompt[: completion_start - start]
            stream[completion_start:end] = completion[: end - completion_start]
            turns.append(
                Turn(
                    outcome.id,
                    start,
                    completion_start,
                    end,
                    outcome.id in trained,
                    outcome.constrained,
                    outcome.sampling_used,
                )
            )
        end = start
        if end > 0:
            assert outcome.parent_id is not None  # find_branches has looked at every parent
            outcome = _outcome(by_id[outcome.parent_id])
    turns.reverse()
    return stream, turns


def _own(outcome: CallOutcome) -> tuple[TokenIds, TokenIds]:
    """What a call adds to its parent's stream: prompt ids and completion ids."""
    prompt, completion = outcome.prompt_ids, outcome.completion_ids
    if prompt is None:
        raise ValueError(f"call {outcome.id!r}: its prompt is not stored, but a later call keeps some of it")
    if outcome.prompt_len != outcome.shared_len + len(prompt):
        raise ValueError(
            f"call {outcome.id!r}: prompt_len is {outcome.prompt_len}, but it keeps {outcome.shared_len} tokens and "
            f"adds {len(prompt)}"
        )
    return prompt, np.empty(0, np.int32) if completion is None else completion


def _logprobs(outcome: CallOutcome) -> Logprobs:
    """The log-probabilities of a trained call, checked."""
    logprobs, completion = outcome.logprobs, outcome.completion_ids
    if logprobs is None or completion is None or len(logprobs) != len(completion):
        raise ValueError(f"call {outcome.id!r}: it has not one logprob for each sampled token")
    if not np.isfinite(logprobs).all():
        raise ValueError(f"call {outcome.id!r}: a logprob is not finite")
    return logprobs


def _outcome(call: CallInfo) -> CallOutcome:
    assert call.outcome is not None  # such a call has no stream: nothing is trained of it, and nothing can keep any
    return call.outcome
