"""Whether everything that arrived and was sampled is accounted for. Pure.

Two sums must come out: calls that arrived = answered + observed + refused + failed + aborted + open, and sampled tokens
= traced + excluded by reason, call by call. The ledger counts again from the calls and the traces themselves and
believes neither: a call that is in no trace and not excluded, in two places, or there with other tokens than were
sampled is a problem that names it. ``flow_calls`` holds the store against what a proxy wrote down on its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman.store.branches import Branches, Excluded, ExclusionReason, find_branches
from dragoman.store.call_facts import CallFacts, facts_of
from dragoman.store.records import CallInfo
from dragoman.store.traces import Trace, Traces, build_traces


@dataclass(frozen=True, slots=True)
class Ledger:
    """The sums of one or more episodes."""

    arrived: int
    answered: int
    observed: int
    refused: int
    failed: int
    aborted: int
    open: int
    sampled_tokens: int
    """Of all calls, answered or not."""
    traced_tokens: int
    """Mask 1 in some trace."""
    traces: int
    excluded: tuple[Excluded, ...]
    problems: tuple[str, ...]
    """Why it does not balance, naming the call."""

    @property
    def balances(self) -> bool:
        return not self.problems

    @property
    def excluded_tokens(self) -> dict[ExclusionReason, int]:
        """Sampled tokens by reason, the most first."""
        tokens: Counter[ExclusionReason] = Counter()
        for excluded in self.excluded:
            tokens[excluded.reason] += excluded.tokens
        return dict(tokens.most_common())

    @property
    def excluded_calls(self) -> dict[ExclusionReason, tuple[str, ...]]:
        """Ids of the excluded calls by reason, in order of arrival within an episode."""
        calls: dict[ExclusionReason, list[str]] = {}
        for excluded in self.excluded:
            calls.setdefault(excluded.reason, []).append(excluded.call_id)
        return {reason: tuple(ids) for reason, ids in calls.items()}


def balance(calls: Sequence[CallInfo], traces: Traces) -> Ledger:
    """The ledger of one episode, from its calls and what was made of them, token by token."""
    facts = [facts_of(call) for call in calls]
    by_id = {call.arrival.id: call for call in calls}
    traced: list[tuple[str, int]] = []
    problems: list[str] = []
    for trace in traces.traces:
        problems += _compare(trace, by_id)
        for turn in trace.turns:
            if turn.trained:
                traced.append((turn.call_id, int(np.count_nonzero(trace.loss_mask[turn.start : turn.end]))))
    problems += _check(facts, traced, traces.excluded)
    tokens = sum(trace.trained_tokens for trace in traces.traces)
    return _ledger(facts, tokens, len(traces.traces), traces.excluded, problems)


def balance_facts(calls: Sequence[CallFacts], found: Branches) -> Ledger:
    """The ledger of one episode without its tokens, by the lengths that are stored."""
    lengths = {call.id: call.completion_len for call in calls}
    traced = [(call_id, lengths.get(call_id, 0)) for branch in found.branches for call_id in branch.calls]
    problems = _check(calls, traced, found.excluded)
    return _ledger(calls, sum(tokens for _, tokens in traced), len(found.branches), found.excluded, problems)


def audit(calls: Sequence[CallInfo]) -> Ledger:
    """Build the traces of one episode and balance them. Calls that no traces can be built of are a problem, too."""
    try:
        return balance(calls, build_traces(calls))
    except ValueError as error:
        return _ledger([facts_of(call) for call in calls], 0, 0, (), [str(error)])


def audit_facts(calls: Sequence[CallFacts]) -> Ledger:
    """As ``audit``, without reading any token."""
    try:
        return balance_facts(calls, find_branches(calls))
    except ValueError as error:
        return _ledger(calls, 0, 0, (), [str(error)])


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """The sums of several episodes."""
    every = list(ledgers)
    return Ledger(
        arrived=sum(ledger.arrived for ledger in every),
        answered=sum(ledger.answered for ledger in every),
        observed=sum(ledger.observed for ledger in every),
        refused=sum(ledger.refused for ledger in every),
        failed=sum(ledger.failed for ledger in every),
        aborted=sum(ledger.aborted for ledger in every),
        open=sum(ledger.open for ledger in every),
        sampled_tokens=sum(ledger.sampled_tokens for ledger in every),
        traced_tokens=sum(ledger.traced_tokens for ledger in every),
        traces=sum(ledger.traces for ledger in every),
        excluded=tuple(excluded for ledger in every for excluded in ledger.excluded),
        problems=tuple(problem for ledger in every for problem in ledger.problems),
    )


def _ledger(
    calls: Sequence[CallFacts], traced_tokens: int, traces: int, excluded: tuple[Excluded, ...], problems: list[str]
) -> Ledger:
    """Do the sums. ``problems``: those found so far."""
    status = Counter(call.status for call in calls)
    ledger = Ledger(
        arrived=len(calls),
        answered=status["answered"],
        observed=status["observed"],
        refused=status["refused"],
        failed=status["failed"],
        aborted=status["aborted"],
        open=status["arrived"],
        sampled_tokens=sum(call.completion_len for call in calls),
        traced_tokens=traced_tokens,
        traces=traces,
        excluded=excluded,
        problems=tuple(problems),
    )
    ended = ledger.answered + ledger.observed + ledger.refused + ledger.failed + ledger.aborted
    if ended + ledger.open != len(calls):
        problems.append(f"{len(calls)} calls arrived, but {ended} have ended in a known way and {ledger.open} are open")
    not_traced = sum(entry.tokens for entry in excluded)
    if traced_tokens + not_traced != ledger.sampled_tokens:
        problems.append(
            f"{ledger.sampled_tokens} tokens were sampled, but {traced_tokens} are traced and {not_traced} excluded"
        )
    return replace(ledger, problems=tuple(problems))


def _check(calls: Sequence[CallFacts], traced: Sequence[tuple[str, int]], excluded: Sequence[Excluded]) -> list[str]:
    """What is wrong with single calls. ``traced``: id and trained tokens, once for each place where one is trained."""
    problems: list[str] = []
    by_id = {call.id: call for call in calls}
    places: dict[str, list[str]] = {call.id: [] for call in calls}
    for call_id, tokens, place in (
        *((call_id, tokens, "traced") for call_id, tokens in traced),
        *((entry.call_id, entry.tokens, f"excluded as {entry.reason}") for entry in excluded),
    ):
        if call_id not in by_id:
            problems.append(f"call {call_id!r} is {place}, but did not arrive")
            continue
        places[call_id].append(place)
        if tokens != (sampled := by_id[call_id].completion_len):
            problems.append(f"call {call_id!r} is {place} with {tokens} tokens, but sampled {sampled}")
    for call in calls:
        if len(places[call.id]) != 1:
            where = " and ".join(places[call.id]) or "neither traced nor excluded"
            problems.append(f"call {call.id!r} is {where}")
        if call.retry_of is not None and call.retry_of not in by_id:
            problems.append(f"call {call.id!r} was given the reply of {call.retry_of!r}, which is not in its episode")
        parent = by_id.get(call.parent_id) if call.parent_id is not None else None
        if parent is not None and call.fork_reason is None and not call.continues(parent):
            problems.append(
                f"call {call.id!r} keeps {call.shared_len} of the {parent.stream_len} tokens of its parent "
                f"{parent.id!r}, but names no fork reason"
            )
    return problems


def _compare(trace: Trace, by_id: Mapping[str, CallInfo]) -> list[str]:
    """Where a trace holds something else than its calls."""
    problems: list[str] = []
    for turn in trace.turns:
        call = by_id.get(turn.call_id)
        if call is None or (outcome := call.outcome) is None or outcome.prompt_ids is None:
            problems.append(f"call {turn.call_id!r} stands in a trace, but has no tokens")
            continue
        empty = np.empty(0, np.int32)
        completion = empty if outcome.completion_ids is None else outcome.completion_ids
        own = np.concatenate([outcome.prompt_ids, completion])[: turn.end - turn.start]
        if turn.start != outcome.shared_len or not np.array_equal(trace.token_ids[turn.start : turn.end], own):
            problems.append(f"call {turn.call_id!r} stands in a trace with other tokens than are stored of it")
        mask = trace.loss_mask[turn.start : turn.end]
        sampled = np.arange(turn.start, turn.end) >= outcome.shared_len + len(outcome.prompt_ids)
        if not np.array_equal(mask, sampled & turn.trained):
            problems.append(f"call {turn.call_id!r} has a wrong loss mask")
        elif turn.trained and (
            outcome.logprobs is None
            or not np.array_equal(trace.logprobs[turn.start : turn.end][mask], outcome.logprobs)
        ):
            problems.append(f"call {turn.call_id!r} stands in a trace with other logprobs than are stored of it")
    covered = sum(span.end - span.start for span in trace.policy_spans)
    if covered != trace.trained_tokens:
        problems.append(
            f"the trace of call {trace.call_ids[-1]!r} trains {trace.trained_tokens} tokens, but names the policy "
            f"of {covered}"
        )
    return problems
