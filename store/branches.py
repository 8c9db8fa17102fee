"""Which calls of an episode are trained together, and why the others are not. Pure, and without a token at hand.

The rules:

- A call *continues* its parent when its prompt is the parent's whole stream (prompt and completion) and new tokens
  after it, and no fork reason is named. A fork begins anew, whatever it keeps; so does a call without a parent.
- A call is trained, or excluded for exactly one reason (``ExclusionReason``).
- A branch is a way down the continuations. Where several calls continue one, the branch goes on with one of them: one
  of its own kind, of its own thread if there is one, else the first that arrived. Each of the others begins a branch
  of its own, in which what it shares with this one is context and is not trained again.
- A branch may lead through excluded calls, and ends with a trained one. All its trained calls are of one kind.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dragoman.store.call_facts import CallFacts
from dragoman.store.calls import GATEWAY_KILLED
from dragoman.store.records import CallKind

ExclusionReason = Literal[
    "open",
    "observed",
    "refused",
    "failed",
    "aborted",
    "gateway_killed",
    "retry",
    "main",
    "subagent",
    "side",
    "compaction",
    "warm_up",
    "empty",
    "constrained",
    "unknown_policy",
    "too_long",
]
"""Why a call is not trained; the first that holds, in this order. ``open``: it has no outcome yet. ``observed``:
a real provider answered it. ``retry``: it was given the reply of another call, where the tokens are. A kind: not one of
those asked for. ``empty``: nothing was sampled. ``constrained``: a grammar or forced tool decided, not the policy
alone. ``unknown_policy``: the version that sampled is not stored for every token. ``too_long``: prompt and completion
together are longer than asked for."""

TRAINED_KINDS: frozenset[CallKind] = frozenset({"main", "subagent"})


@dataclass(frozen=True, slots=True)
class Excluded:
    """A call that no trace trains."""

    call_id: str
    reason: ExclusionReason
    tokens: int
    """Sampled tokens that are stored of it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What one trace trains."""

    kind: CallKind
    """Of all its trained calls."""
    calls: tuple[str, ...]
    """Ids of its trained calls, each continuing the one before; at least one. The last call's stream holds them all."""


@dataclass(frozen=True, slots=True)
class Branches:
    branches: tuple[Branch, ...]
    """In the order in which their first trained calls arrived. Every trained call is in exactly one."""
    excluded: tuple[Excluded, ...]
    """Every other call, in order of arrival."""


def find_branches(
    calls: Sequence[CallFacts], *, kinds: Collection[CallKind] = TRAINED_KINDS, max_length: int | None = None
) -> Branches:
    """The branches of one episode, whose ``calls`` come in order of arrival.

    ``max_length``: longest stream in tokens that is trained; ``None``: no limit. A branch is cut where the next turn
    would not fit. What is cut off cannot become a branch of its own: to be true, it would begin with all that stands
    before it.

    Raises ``ValueError`` naming the call when these cannot be the calls of one episode: an id twice, a parent that is
    missing, has too few tokens, or descends from its own child.
    """
    if unknown := set(kinds) - set(get_args(CallKind)):
        raise ValueError(f"{min(unknown)!r} is no kind of call; kinds are {', '.join(get_args(CallKind))}")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length is {max_length}; at least 1 token is needed")
    number = {call.id: n for n, call in enumerate(calls)}
    if len(number) < len(calls):
        twice = next(call.id for n, call in enumerate(calls) if number[call.id] != n)
        raise ValueError(f"call {twice!r} is there twice")
    parents = [_parent(call, calls, number) for call in calls]
    reasons = [_exclusion(call, kinds, max_length) for call in calls]
    order = _parents_first(calls, parents)
    heirs = _heirs(calls, parents, reasons, order)

    branches: list[tuple[int, Branch]] = []
    placed = [False] * len(calls)
    for n in order:
        if reasons[n] is not None or placed[n]:
            continue
        trained: list[int] = []
        at: int | None = n
        while at is not None:
            placed[at] = True
            if reasons[at] is None:
                trained.append(at)
            at = heirs[at]
        branches.append((n, Branch(calls[n].kind, tuple(calls[one].id for one in trained))))
    branches.sort(key=lambda found: found[0])
    excluded = tuple(
        Excluded(call.id, reason, call.completion_len)
        for call, reason in zip(calls, reasons, strict=True)
        if reason is not None
    )
    return Branches(tuple(branch for _, branch in branches), excluded)


def _exclusion(call: CallFacts, kinds: Collection[CallKind], max_length: int | None) -> ExclusionReason | None:
    match call.status:
        case "arrived":
            return "open"
        case "observed" | "refused" | "failed":
            return call.status
        case "aborted":
            return "gateway_killed" if call.error_code == GATEWAY_KILLED else "aborted"
    if call.retry_of is not None:
        return "retry"
    if call.kind not in kinds:
        return call.kind
    if call.completion_len == 0:
        return "empty"
    if call.constrained:
        return "constrained"
    if not call.policy_known:
        return "unknown_policy"
    if max_length is not None and call.stream_len > max_length:
        return "too_long"
    return None


def _parent(call: CallFacts, calls: Sequence[CallFacts], number: dict[str, int]) -> int | None:
    """Position of a call's parent, checked; ``None``: it has none."""
    if call.parent_id is None:
        return None
    at = number.get(call.parent_id)
    if at is None:
        raise ValueError(f"call {call.id!r}: its parent {call.parent_id!r} is not among the calls of its episode")
    if call.shared_len > calls[at].stream_len:
        raise ValueError(
            f"call {call.id!r}: it keeps {call.shared_len} tokens of its parent {call.parent_id!r}, "
            f"which has {calls[at].stream_len}"
        )
    return at


def _parents_first(calls: Sequence[CallFacts], parents: list[int | None]) -> list[int]:
    """All positions, each after its parent's. (The clocks of two gateways may order them otherwise.)"""
    children: list[list[int]] = [[] for _ in calls]
    order: list[int] = []
    for n, parent in enumerate(parents):
        if parent is None:
            order.append(n)
        else:
            children[parent].append(n)
    for n in order:  # grows while it is walked
        order += children[n]
    if len(order) < len(calls):
        lost = calls[min(set(range(len(calls))) - set(order))]
        raise ValueError(f"call {lost.id!r}: it descends from itself, by its parent {lost.parent_id!r}")
    return order


def _heirs(
    calls: Sequence[CallFacts],
    parents: list[int | None],
    reasons: Sequence[ExclusionReason | None],
    order: list[int],
) -> list[int | None]:
    """For each call the one with which its branch goes on; ``None``: nothing trained comes after it in its branch."""
    followers: list[list[int]] = [[] for _ in calls]
    for n, parent in enumerate(parents):
        if parent is not None and calls[n].continues(calls[parent]):
            followers[parent].append(n)
    heirs: list[int | None] = [None] * len(calls)
    # For each call the first trained one on the way down its heirs, itself included.
    entries: list[int | None] = [None] * len(calls)
    for n in reversed(order):
        call, trained = calls[n], reasons[n] is None
        best: tuple[bool, int] | None = None
        for follower in followers[n]:
            entry = entries[follower]
            if entry is None or (trained and calls[entry].kind != call.kind):
                continue
            rank = (calls[entry].thread != call.thread, follower)
            if best is None or rank < best:
                best, heirs[n] = rank, follower
        heir = heirs[n]
        entries[n] = n if trained else None if heir is None else entries[heir]
    return heirs
