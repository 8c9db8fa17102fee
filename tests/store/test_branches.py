"""Branches: which calls are trained together, why the others are not, and what is no episode at all."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from dragoman.store.branches import Branch, Excluded, ExclusionReason, find_branches
from dragoman.store.call_facts import CallFacts
from dragoman.store.records import CallKind


def call(call_id: str, parent: str | None = None, shared: int = 0, **more: Any) -> CallFacts:
    """An answered call: its prompt has 3 tokens more than it shares, its completion 2."""
    facts = CallFacts(call_id, "e1", "/v1/messages", 10.0, "main", None, "answered")
    return replace(facts, parent_id=parent, shared_len=shared, prompt_len=shared + 3, completion_len=2, **more)


CHAIN = [call("a"), call("b", "a", 5), call("c", "b", 10)]


def test_a_branch_goes_on_along_exact_continuations() -> None:
    found = find_branches(CHAIN)
    assert (found.branches, found.excluded) == ((Branch("main", ("a", "b", "c")),), ())
    assert (find_branches([]).branches, find_branches([]).excluded) == ((), ())


@pytest.mark.parametrize(
    "fork", [call("d", "c", 14), call("d", "c", 15, fork_reason="template"), call("d", None, 0), call("d", "c", 0)]
)
def test_a_fork_begins_a_branch(fork: CallFacts) -> None:
    assert [branch.calls for branch in find_branches([*CHAIN, fork]).branches] == [("a", "b", "c"), ("d",)]


def test_the_first_that_arrived_goes_on_where_nothing_else_tells() -> None:
    found = find_branches([*CHAIN, call("x", "a", 5), call("y", "x", 10), call("z", "a", 5)])
    assert [branch.calls for branch in found.branches] == [("a", "b", "c"), ("x", "y"), ("z",)]


def test_a_way_that_leads_to_nothing_trained_is_not_taken() -> None:
    found = find_branches([CHAIN[0], call("side", "a", 5, kind="side"), call("b", "a", 5)])
    assert [branch.calls for branch in found.branches] == [("a", "b")]
    assert found.excluded == (Excluded("side", "side", 2),)


def test_every_reason() -> None:
    cases: dict[ExclusionReason, CallFacts] = {
        "open": call("c", status="arrived"),
        "refused": call("c", status="refused"),
        "failed": call("c", status="failed"),
        "aborted": call("c", status="aborted", error_code="client_left"),
        "gateway_killed": call("c", status="aborted", error_code="gateway_killed"),
        "retry": call("c", retry_of="b"),
        "observed": replace(call("c", status="observed"), completion_len=0),
        "main": call("c"),
        "subagent": call("c", kind="subagent"),
        "side": call("c", kind="side"),
        "compaction": call("c", kind="compaction"),
        "warm_up": replace(call("c", kind="warm_up"), completion_len=0),
        "empty": replace(call("c", kind="compaction"), completion_len=0),
        "constrained": call("c", kind="compaction", constrained=True),
        "unknown_policy": call("c", kind="compaction", policy_known=False),
        "too_long": replace(call("c", kind="compaction"), prompt_len=9),
    }
    assert set(cases) == set(get_args(ExclusionReason))
    for reason, facts in cases.items():
        kinds: set[CallKind] = (
            {"compaction"} if reason in ("empty", "constrained", "unknown_policy", "too_long") else set()
        )
        found = find_branches([facts], kinds=kinds, max_length=10)
        assert found.branches == ()
        assert found.excluded == (Excluded("c", reason, facts.completion_len),)


def test_the_first_reason_counts() -> None:
    facts = call("c", status="aborted", kind="side", retry_of="b", constrained=True, policy_known=False)
    order: list[ExclusionReason] = []
    cures: tuple[dict[str, Any], ...] = (
        {"status": "answered"},
        {"retry_of": None},
        {"kind": "main"},
        {"constrained": False},
        {"policy_known": True},
    )
    for cure in cures:
        order += [entry.reason for entry in find_branches([facts], max_length=1).excluded]
        facts = replace(facts, **cure)
    order += [entry.reason for entry in find_branches([facts], max_length=1).excluded]
    assert order == ["aborted", "retry", "side", "constrained", "unknown_policy", "too_long"]


def test_a_parent_may_stand_behind_its_child() -> None:
    """The clocks of two gateways disagree."""
    found = find_branches([CHAIN[1], CHAIN[2], CHAIN[0]])
    assert [branch.calls for branch in found.branches] == [("a", "b", "c")]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([call("b", "a", 5)], "call 'b': its parent 'a' is not among the calls of its episode"),
        ([call("a"), call("b", "a", 6)], "call 'b': it keeps 6 tokens of its parent 'a', which has 5"),
        ([call("a"), call("a")], "call 'a' is there twice"),
        ([call("a", "a", 1)], "call 'a': it descends from itself, by its parent 'a'"),
        ([call("r"), call("a", "b", 1), call("b", "a", 1)], "call 'a': it descends from itself, by its parent 'b'"),
    ],
)
def test_what_is_no_episode(calls: list[CallFacts], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_branches(calls)


def test_options_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="'title' is no kind of call; kinds are main, subagent, side, compaction"):
        find_branches(CHAIN, kinds={"main", "title"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_length is 0"):
        find_branches(CHAIN, max_length=0)


def test_a_thousand_turns_and_a_thousand_branches() -> None:
    """No recursion, and no time that grows with the square."""
    long = [call("c0")]
    for number in range(1, 3000):
        long.append(call(f"c{number}", long[-1].id, long[-1].stream_len))
    assert [len(branch.calls) for branch in find_branches(long).branches] == [3000]
    wide = [call("root"), *(call(f"c{number}", "root", 5) for number in range(3000))]
    assert [len(branch.calls) for branch in find_branches(wide).branches] == [2, *[1] * 2999]
