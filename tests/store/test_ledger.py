"""The ledger balances for every episode, and says so when something is lost, doubled or changed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from dragoman.store.branches import Branch, Branches, Excluded, find_branches
from dragoman.store.call_facts import facts_of
from dragoman.store.ledger import audit, audit_facts, balance, balance_facts, total
from dragoman.store.records import PolicySpan
from dragoman.store.traces import Traces, build_traces, per_call
from tests.store_calls import Episode, episodes


@settings(max_examples=150, deadline=None)
@given(episode=episodes())
def test_it_balances_for_any_episode(episode: Episode) -> None:
    ledger = audit(episode.calls)
    assert ledger.problems == ()
    assert ledger.balances
    assert ledger.arrived == len(episode.calls)
    assert ledger.sampled_tokens == sum(len(completion) for completion in episode.completions.values())
    assert ledger.sampled_tokens == ledger.traced_tokens + sum(ledger.excluded_tokens.values())
    assert audit_facts([facts_of(call) for call in episode.calls]) == ledger
    assert balance(episode.calls, per_call(episode.calls)).balances


def mixed() -> Episode:
    episode = Episode()
    episode.add("a", [1, 2, 3], [11, 12])
    episode.add("b", [*episode.stream("a"), 4], [13, 14, 15], parent="a")
    episode.add("c", [1, 2, 3, 11, 9], [16], parent="b", fork_reason="history_edited")
    episode.add("title", [8], [50, 51], kind="side")
    episode.add("left", [8, 9], [60], status="aborted")
    episode.add("late", [8, 9], [61], status="failed")
    episode.end("no", "refused")
    episode.end("again", "answered", retry_of="a")
    episode.end("open", "arrived")
    return episode


def test_the_sums_of_an_episode() -> None:
    ledger = audit(mixed().calls)
    assert ledger.balances
    counts = (ledger.arrived, ledger.answered, ledger.refused, ledger.failed, ledger.aborted, ledger.open)
    assert counts == (9, 5, 1, 1, 1, 1)
    assert (ledger.sampled_tokens, ledger.traced_tokens, ledger.traces) == (10, 6, 2)
    assert ledger.excluded_tokens == {"side": 2, "aborted": 1, "failed": 1, "refused": 0, "retry": 0, "open": 0}
    assert ledger.excluded_calls == {
        "side": ("title",),
        "aborted": ("left",),
        "failed": ("late",),
        "refused": ("no",),
        "retry": ("again",),
        "open": ("open",),
    }


def test_the_sums_of_several_episodes() -> None:
    one, other = audit(mixed().calls), audit([mixed().calls[0], mixed().calls[1]])
    both = total([one, other])
    assert (both.arrived, both.answered, both.sampled_tokens, both.traced_tokens, both.traces) == (11, 7, 15, 11, 3)
    assert both.excluded == one.excluded
    assert (both.balances, total([]).balances, total([]).arrived) == (True, True, 0)
    broken = replace(other, problems=("lost",))
    assert (total([one, broken]).balances, total([one, broken]).problems) == (False, ("lost",))


def first_changed(traces: Traces, name: str, change: Callable[[np.ndarray], None]) -> Traces:
    """``traces`` with an array of the first trace changed in place."""
    change(getattr(traces.traces[0], name))
    return traces


def put(at: int, value: float) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[at] = value

    return change


def spanless(traces: Traces) -> Traces:
    first = replace(traces.traces[0], policy_spans=(PolicySpan("base", 3, 5),))
    return replace(traces, traces=(first, *traces.traces[1:]))


def headless(traces: Traces) -> Traces:
    """The second trace without what stood before its only trained turn."""
    trace = traces.traces[1]
    cut = trace.turns[-1].start
    turn = trace.turns[-1]
    turn = replace(turn, start=0, completion_start=turn.completion_start - cut, end=turn.end - cut)
    arrays = {name: getattr(trace, name)[cut:] for name in ("token_ids", "loss_mask", "logprobs")}
    return replace(traces, traces=(traces.traces[0], replace(trace, turns=(turn,), **arrays)))


def emptied(traces: Traces) -> Traces:
    """The first trace's first trained turn is no longer called trained, but its mask stays."""
    first = traces.traces[0]
    turns = (replace(first.turns[0], trained=False), *first.turns[1:])
    return replace(traces, traces=(replace(first, turns=turns), *traces.traces[1:]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: replace(t, traces=t.traces[1:]), ["call 'a' is neither traced", "call 'b' is neither", "10 tokens"]),
        (lambda t: replace(t, traces=(*t.traces, t.traces[0])), ["call 'a' is traced and traced", "10 tokens"]),
        (lambda t: replace(t, excluded=t.excluded[1:]), ["call 'title' is neither traced nor excluded", "10 tokens"]),
        (
            lambda t: replace(t, excluded=(*t.excluded, Excluded("a", "side", 2))),
            ["call 'a' is traced and excluded as side", "10 tokens were sampled, but 6 are traced and 6 excluded"],
        ),
        (
            lambda t: replace(t, excluded=(replace(t.excluded[0], tokens=1), *t.excluded[1:])),
            ["call 'title' is excluded as side with 1 tokens, but sampled 2", "10 tokens"],
        ),
        (
            lambda t: replace(t, excluded=(*t.excluded, Excluded("ghost", "side", 0))),
            ["call 'ghost' is excluded as side, but did not arrive"],
        ),
        (lambda t: first_changed(t, "loss_mask", put(3, False)), ["call 'a' has a wrong loss mask", "with 1 tokens"]),
        (lambda t: first_changed(t, "loss_mask", put(0, True)), ["call 'a' has a wrong loss mask", "with 3 tokens"]),
        (lambda t: first_changed(t, "token_ids", put(4, 77)), ["call 'a' stands in a trace with other tokens"]),
        (lambda t: first_changed(t, "token_ids", put(0, 77)), ["call 'a' stands in a trace with other tokens"]),
        (lambda t: first_changed(t, "logprobs", put(4, -0.5)), ["call 'a' stands in a trace with other logprobs"]),
        (spanless, ["the trace of call 'b' trains 5 tokens, but names the policy of 2"]),
        (headless, ["call 'c' stands in a trace with other tokens", "call 'c' has a wrong loss mask"]),
        (emptied, ["call 'a' has a wrong loss mask"]),
    ],
)
def test_what_is_lost_doubled_or_changed_is_named(damage: Callable[[Traces], Traces], says: list[str]) -> None:
    calls = mixed().calls
    ledger = balance(calls, damage(build_traces(calls)))
    assert not ledger.balances
    for words in says:
        assert any(words in problem for problem in ledger.problems), ledger.problems


def test_a_call_that_never_arrived() -> None:
    calls = mixed().calls
    ledger = balance(calls[1:], build_traces(calls))
    assert "call 'a' stands in a trace, but has no tokens" in ledger.problems
    assert "call 'a' is traced, but did not arrive" in ledger.problems


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda b: Branches((), b.excluded), "call 'a' is neither traced nor excluded"),
        (lambda b: Branches((*b.branches, Branch("main", ("a",))), b.excluded), "call 'a' is traced and traced"),
        (lambda b: Branches(b.branches, ()), "call 'title' is neither traced nor excluded"),
        (lambda b: Branches((*b.branches, Branch("main", ("ghost",))), b.excluded), "call 'ghost' is traced, but did"),
    ],
)
def test_without_the_tokens_too(damage: Callable[[Branches], Branches], says: str) -> None:
    facts = [facts_of(call) for call in mixed().calls]
    found = find_branches(facts)
    assert balance_facts(facts, found).balances
    ledger = balance_facts(facts, damage(found))
    assert any(problem.startswith(says) for problem in ledger.problems), ledger.problems


def test_a_fork_without_a_reason_is_a_problem() -> None:
    episode = Episode()
    episode.add("a", [1, 2, 3], [11, 12])
    episode.add("b", [1, 2, 3, 11, 4], [13], parent="a")
    ledger = audit(episode.calls)
    assert ledger.problems == ("call 'b' keeps 4 of the 5 tokens of its parent 'a', but names no fork reason",)
    assert ledger.sampled_tokens == ledger.traced_tokens == 3


def test_a_retry_of_nothing_is_a_problem() -> None:
    episode = Episode()
    episode.end("a", "answered", retry_of="gone")
    assert audit(episode.calls).problems == ("call 'a' was given the reply of 'gone', which is not in its episode",)


def test_an_unknown_status_breaks_the_first_sum() -> None:
    facts = [facts_of(call) for call in mixed().calls]
    facts[0] = replace(facts[0], status="lost")  # type: ignore[arg-type]
    assert "9 calls arrived, but 7 have ended in a known way and 1 are open" in audit_facts(facts).problems


def test_an_episode_that_no_traces_can_be_built_of() -> None:
    calls = mixed().calls[1:]
    for ledger in (audit(calls), audit_facts([facts_of(call) for call in calls])):
        assert ledger.problems[0] == "call 'b': its parent 'a' is not among the calls of its episode"
        assert (ledger.arrived, ledger.sampled_tokens, ledger.traced_tokens, ledger.balances) == (8, 8, 0, False)
