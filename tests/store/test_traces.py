"""Traces: what is trained is what was sampled, behind what stood before it, once."""

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.store.branches import ExclusionReason
from dragoman.store.records import CallInfo, PolicySpan
from dragoman.store.traces import Trace, Traces, build_traces, per_call
from tests.store_calls import Episode, episodes

many = settings(max_examples=150, deadline=None)
every_length = st.none() | st.integers(1, 60)


def is_trained(call: CallInfo, max_length: int | None = None) -> bool:
    """The rule, said once more and otherwise than in the code."""
    outcome = call.outcome
    return (
        outcome is not None
        and outcome.status == "answered"
        and outcome.retry_of is None
        and call.arrival.kind in ("main", "subagent")
        and outcome.completion_ids is not None
        and outcome.prompt_len is not None
        and len(outcome.completion_ids) > 0
        and not outcome.constrained
        and sum(span.end - span.start for span in outcome.policy_spans) == len(outcome.completion_ids)
        and (max_length is None or outcome.prompt_len + len(outcome.completion_ids) <= max_length)
    )


def masked(traces: Traces) -> list[int]:
    """The trained tokens of all traces, sorted."""
    return sorted(int(token) for trace in traces.traces for token in trace.token_ids[trace.loss_mask])


# -- any episode -----------------------------------------------------------------------------------------------------


@many
@given(episode=episodes(), max_length=every_length)
def test_every_sampled_token_is_trained_once_or_excluded(episode: Episode, max_length: int | None) -> None:
    traces = build_traces(episode.calls, max_length=max_length)
    expected = [c.arrival.id for c in episode.calls if is_trained(c, max_length)]
    assert masked(traces) == sorted(token for name in expected for token in episode.completions[name])
    assert Counter(name for trace in traces.traces for name in trace.call_ids) == Counter(expected)
    left = {c.arrival.id: len(episode.completions[c.arrival.id]) for c in episode.calls}
    for name in expected:
        del left[name]
    assert {entry.call_id: entry.tokens for entry in traces.excluded} == left


@many
@given(episode=episodes(), max_length=every_length)
def test_a_trace_is_the_stream_of_its_last_call(episode: Episode, max_length: int | None) -> None:
    for trace in build_traces(episode.calls, max_length=max_length).traces:
        assert trace.token_ids.dtype == np.int32
        assert trace.token_ids.tolist() == episode.stream(trace.call_ids[-1])


@many
@given(episode=episodes())
def test_a_trained_token_stands_behind_what_the_policy_saw(episode: Episode) -> None:
    for trace in build_traces(episode.calls).traces:
        turns = {turn.call_id: turn for turn in trace.turns}
        for name in trace.call_ids:
            turn = turns[name]
            assert trace.token_ids[: turn.completion_start].tolist() == episode.prompts[name]
            assert trace.token_ids[turn.completion_start : turn.end].tolist() == episode.completions[name]
            assert trace.loss_mask[turn.completion_start : turn.end].all()


@many
@given(episode=episodes())
def test_turns_lie_side_by_side_and_hold_all_trained_tokens(episode: Episode) -> None:
    for trace in build_traces(episode.calls).traces:
        bounds = [0, *(turn.end for turn in trace.turns)]
        assert [turn.start for turn in trace.turns] == bounds[:-1]
        assert bounds[-1] == len(trace.token_ids)
        assert tuple(turn.call_id for turn in trace.turns if turn.trained) == trace.call_ids
        for turn in trace.turns:
            assert turn.start <= turn.completion_start <= turn.end
            trained = trace.loss_mask[turn.start : turn.end]
            assert trained.tolist() == [
                turn.trained and at >= turn.completion_start for at in range(turn.start, turn.end)
            ]


@many
@given(episode=episodes())
def test_logprobs_are_those_of_the_trained_tokens(episode: Episode) -> None:
    for trace in build_traces(episode.calls).traces:
        assert trace.logprobs.dtype == np.float32
        expected = [
            episode.logprob[int(token)] if mask else 0.0
            for token, mask in zip(trace.token_ids, trace.loss_mask, strict=True)
        ]
        assert trace.logprobs.tolist() == np.array(expected, np.float32).tolist()


@many
@given(episode=episodes())
def test_policy_spans_cover_the_trained_tokens_and_no_others(episode: Episode) -> None:
    for trace in build_traces(episode.calls).traces:
        named = [(at, span.version) for span in trace.policy_spans for at in range(span.start, span.end)]
        trained = [int(at) for at in np.flatnonzero(trace.loss_mask)]
        assert named == [(at, episode.version[int(trace.token_ids[at])]) for at in trained]


@many
@given(episode=episodes())
def test_a_trace_trains_calls_of_one_kind(episode: Episode) -> None:
    kinds = {call.arrival.id: call.arrival.kind for call in episode.calls}
    for trace in build_traces(episode.calls, kinds={"main", "subagent", "side", "compaction"}).traces:
        assert {kinds[name] for name in trace.call_ids} == {trace.kind}


@many
@given(episode=episodes(), max_length=st.integers(1, 40))
def test_no_trace_is_longer_than_asked_and_none_is_dropped_whole(episode: Episode, max_length: int) -> None:
    traces, whole = build_traces(episode.calls, max_length=max_length), build_traces(episode.calls)
    assert all(len(trace.token_ids) <= max_length for trace in traces.traces)
    fits = {name for trace in whole.traces for name in trace.call_ids if len(episode.stream(name)) <= max_length}
    assert {name for trace in traces.traces for name in trace.call_ids} == fits
    too_long = {entry.call_id for entry in traces.excluded if entry.reason == "too_long"}
    assert too_long == {name for trace in whole.traces for name in trace.call_ids} - fits


@many
@given(episode=episodes(), max_length=every_length)
def test_per_call_trains_the_same_tokens_in_a_trace_for_each_call(episode: Episode, max_length: int | None) -> None:
    traces, single = build_traces(episode.calls, max_length=max_length), per_call(episode.calls, max_length=max_length)
    assert masked(single) == masked(traces)
    assert single.excluded == traces.excluded
    for trace in single.traces:
        (name,) = trace.call_ids
        assert trace.token_ids.tolist() == episode.stream(name)
        assert trace.loss_mask.tolist() == [at >= len(episode.prompts[name]) for at in range(len(trace.token_ids))]
    arrived = [call.arrival.id for call in episode.calls]
    assert [trace.call_ids[0] for trace in single.traces] == [
        n for n in arrived if is_trained(by_id(episode)[n], max_length)
    ]


def by_id(episode: Episode) -> dict[str, CallInfo]:
    return {call.arrival.id: call for call in episode.calls}


@many
@given(episode=episodes(), order=st.randoms())
def test_clocks_that_disagree_change_nothing_but_the_order(episode: Episode, order: Random) -> None:
    shuffled = list(episode.calls)
    order.shuffle(shuffled)
    assert masked(build_traces(shuffled)) == masked(build_traces(episode.calls))


# -- where others go wrong -------------------------------------------------------------------------------------------
# Each is a case of unmodified harnesses in which a known trainer loses, duplicates or misplaces tokens.

U1, U2, U3, END = [1, 2, 3], [4, 5], [6], [99]


def reasons(traces: Traces) -> dict[str, tuple[ExclusionReason, int]]:
    return {entry.call_id: (entry.reason, entry.tokens) for entry in traces.excluded}


def shown(trace: Trace) -> str:
    """The trace's ids, with the trained ones in brackets."""
    text = " ".join(f"[{t}]" if m else str(t) for t, m in zip(trace.token_ids, trace.loss_mask, strict=True))
    return text.replace("] [", " ")


def three_turns(**more: str) -> Episode:
    episode = Episode()
    episode.add("a", U1, [11, 12], **more)  # type: ignore[arg-type]
    episode.add("b", [*episode.stream("a"), *U2], [13], parent="a", **more)  # type: ignore[arg-type]
    episode.add("c", [*episode.stream("b"), *U3], [14, 15], parent="b", **more)  # type: ignore[arg-type]
    return episode


def test_turns_that_continue_each_other_are_one_trace() -> None:
    traces = build_traces(three_turns().calls)
    (trace,) = traces.traces
    assert shown(trace) == "1 2 3 [11 12] 4 5 [13] 6 [14 15]"
    assert traces.excluded == ()
    assert (trace.call_ids, trace.finish_reason, trace.truncated) == (("a", "b", "c"), "stop", False)


def test_an_echo_that_came_back_changed_is_still_the_sampled_tokens() -> None:
    """Arguments serialised anew, thinking left out: lineage continued on the sampled ids, and so does the trace."""
    episode = three_turns(echo_changed=1)  # type: ignore[arg-type]
    assert [shown(trace) for trace in build_traces(episode.calls).traces] == ["1 2 3 [11 12] 4 5 [13] 6 [14 15]"]


def test_a_prompt_that_ends_in_an_empty_thinking_block_does_not_split_the_trace() -> None:
    """Qwen3's template without thinking opens the reply with ``<think></think>`` and shows it in no later prompt."""
    think = [50, 51]
    episode = Episode()
    episode.add("a", U1 + think, [11])
    episode.add("b", U1 + think + [11] + U2 + think, [12], parent="a")
    assert [shown(trace) for trace in build_traces(episode.calls).traces] == ["1 2 3 50 51 [11] 4 5 50 51 [12]"]


@pytest.mark.parametrize("completion", [[11], [11, 99], [99, 11], [11, 77]])
def test_whatever_token_a_reply_ends_with_the_next_turn_stands_behind_it(completion: list[int]) -> None:
    """A stop string, a cut reply, a stop id within: nothing is split at a supposed end-of-turn token."""
    episode = Episode()
    episode.add("a", U1, completion)
    episode.add("b", U1 + completion + U2, END, parent="a")
    (trace,) = build_traces(episode.calls).traces
    assert trace.token_ids.tolist() == U1 + completion + U2 + END
    assert trace.token_ids[trace.loss_mask].tolist() == completion + END


def test_text_and_tool_call_replayed_as_two_messages_stand_in_the_trace_once() -> None:
    """Codex replays them as separate items; rendered again, the tool call stood there twice."""
    text_and_call = [21, 22, 23, 24]
    episode = Episode()
    episode.add("a", U1, text_and_call, finish_reason="tool_calls")
    episode.add("b", U1 + text_and_call + U2, END, parent="a")
    (trace,) = build_traces(episode.calls).traces
    assert trace.token_ids.tolist().count(24) == 1
    assert shown(trace) == "1 2 3 [21 22 23 24] 4 5 [99]"


def test_a_retry_does_not_cut_the_trace() -> None:
    """The client of ``b`` was lost and sent it again: one sample, one trace, five calls, nothing lost."""
    episode = Episode()
    episode.add("a", U1, [11])
    episode.add("b", [*U1, 11, *U2], [12], parent="a")
    episode.end("b2", "answered", retry_of="b")
    episode.add("c", episode.stream("b") + U3, [13], parent="b")
    episode.add("d", episode.stream("c") + U2, [14], parent="c")
    traces = build_traces(episode.calls)
    assert [shown(trace) for trace in traces.traces] == ["1 2 3 [11] 4 5 [12] 6 [13] 4 5 [14]"]
    assert reasons(traces) == {"b2": ("retry", 0)}


def test_two_samples_of_one_request_are_two_traces() -> None:
    """Both clients were connected: best-of-N. What they share is trained in the first."""
    episode = Episode()
    episode.add("a", U1, [11])
    episode.add("b1", [*U1, 11, *U2], [12], parent="a")
    episode.add("b2", [*U1, 11, *U2], [13], parent="a")
    episode.add("c2", episode.stream("b2") + U3, [14], parent="b2")
    traces = build_traces(episode.calls).traces
    assert [shown(trace) for trace in traces] == ["1 2 3 [11] 4 5 [12]", "1 2 3 11 4 5 [13] 6 [14]"]


def test_parallel_sub_agents_with_the_same_first_prompt_are_a_trace_each() -> None:
    episode = Episode()
    for name, token in (("x", 11), ("y", 21)):
        episode.add(f"{name}1", U1, [token], kind="subagent", thread=name)
    for name, token in (("y", 22), ("x", 12)):  # and they interleave
        first = episode.stream(f"{name}1")
        episode.add(f"{name}2", first + U2, [token], parent=f"{name}1", kind="subagent", thread=name)
    traces = build_traces(episode.calls).traces
    assert [(trace.thread, shown(trace)) for trace in traces] == [
        ("x", "1 2 3 [11] 4 5 [12]"),
        ("y", "1 2 3 [21] 4 5 [22]"),
    ]


def test_a_sub_agent_that_begins_with_its_parents_stream_does_not_take_it_over() -> None:
    """It arrives before the main agent goes on, but the main agent's tokens are trained in the main agent's trace."""
    episode = Episode()
    episode.add("a", U1, [11], thread="m")
    episode.add("s1", [*U1, 11, *U3], [21], parent="a", kind="subagent", thread="s")
    episode.add("b", [*U1, 11, *U2], [12], parent="a", thread="m")
    episode.add("s2", episode.stream("s1") + U3, [22], parent="s1", kind="subagent", thread="s")
    traces = build_traces(episode.calls).traces
    assert [(trace.kind, trace.thread, shown(trace)) for trace in traces] == [
        ("main", "m", "1 2 3 [11] 4 5 [12]"),
        ("subagent", "s", "1 2 3 11 6 [21] 6 [22]"),
    ]


def test_of_two_that_go_on_the_one_of_the_same_thread_keeps_the_trace() -> None:
    episode = Episode()
    episode.add("a", U1, [11], thread="t1")
    episode.add("other", [*U1, 11, *U3], [21], parent="a", thread="t2")
    episode.add("b", [*U1, 11, *U2], [12], parent="a", thread="t1")
    traces = build_traces(episode.calls).traces
    assert [(trace.thread, trace.call_ids) for trace in traces] == [("t1", ("a", "b")), ("t2", ("other",))]


@pytest.mark.parametrize("reason", ["history_edited", "system_changed", "tools_changed", "template"])
def test_edited_history_is_a_new_trace_and_no_token_is_lost(reason: str) -> None:
    """The harness changed its second message: what was sampled behind the old one stays trained behind the old one."""
    episode = three_turns()
    episode.add("d", [*U1, 11, 12, 7, 8, 13, *U3], [16], parent="c", fork_reason=reason)
    traces = build_traces(episode.calls).traces
    assert [shown(trace) for trace in traces] == [
        "1 2 3 [11 12] 4 5 [13] 6 [14 15]",
        "1 2 3 11 12 7 8 13 6 [16]",
    ]
    assert [turn.call_id for turn in traces[1].turns] == ["a", "d"]


def test_stripped_thinking_is_a_fork_and_each_turn_stands_behind_what_it_saw() -> None:
    """The template shows ``[31 32]`` (thinking) to no later turn: never train the second reply as if it had."""
    episode = Episode()
    episode.add("a", U1, [31, 32, 11])
    episode.add("b", [*U1, 11, *U2], [33, 12], parent="a", fork_reason="thinking_policy")
    traces = build_traces(episode.calls).traces
    assert [shown(trace) for trace in traces] == ["1 2 3 [31 32 11]", "1 2 3 11 4 5 [33 12]"]


def test_a_truncated_reply_that_a_user_message_replaces_is_trained_where_it_was_sampled() -> None:
    """The cut reply is not in the next prompt: its text is trained behind its own prompt, and the message is kept."""
    episode = Episode()
    episode.add("a", U1, [11, 12, 13], finish_reason="length")
    episode.add("b", U1 + U2, [14], parent="a", fork_reason="history_edited")
    traces = build_traces(episode.calls).traces
    assert [(shown(trace), trace.truncated) for trace in traces] == [
        ("1 2 3 [11 12 13]", True),
        ("1 2 3 4 5 [14]", False),
    ]


def compacted() -> Episode:
    episode = Episode()
    episode.add("a", U1, [11])
    episode.add("b", [*U1, 11, *U2], [12], parent="a")
    episode.add("sum", [*episode.stream("b"), 40, 41], [42, 43], parent="b", kind="compaction")
    episode.add("c", [1, 42, 43, 6], [13])  # begins anew, with the summary as its first message
    return episode


def test_compaction_is_excluded_and_begins_a_new_trace() -> None:
    traces = build_traces(compacted().calls)
    assert [shown(trace) for trace in traces.traces] == ["1 2 3 [11] 4 5 [12]", "1 42 43 6 [13]"]
    assert reasons(traces) == {"sum": ("compaction", 2)}


def test_compaction_that_is_asked_for_is_a_trace_of_its_own_kind() -> None:
    traces = build_traces(compacted().calls, kinds={"main", "compaction"})
    assert [(trace.kind, shown(trace)) for trace in traces.traces] == [
        ("main", "1 2 3 [11] 4 5 [12]"),
        ("compaction", "1 2 3 11 4 5 12 40 41 [42 43]"),
        ("main", "1 42 43 6 [13]"),
    ]
    assert traces.excluded == ()


def test_side_calls_are_excluded_and_counted() -> None:
    episode = three_turns()
    episode.add("title", [8, 9], [50, 51, 52], kind="side")
    traces = build_traces(episode.calls)
    assert [trace.call_ids for trace in traces.traces] == [("a", "b", "c")]
    assert reasons(traces) == {"title": ("side", 3)}
    chosen = build_traces(episode.calls, kinds={"side"})
    assert [shown(trace) for trace in chosen.traces] == ["8 9 [50 51 52]"]
    assert reasons(chosen) == {"a": ("main", 2), "b": ("main", 1), "c": ("main", 2)}


def test_a_side_call_on_the_way_is_context_and_does_not_cut_the_trace() -> None:
    episode = Episode()
    episode.add("a", U1, [11])
    episode.add("side", [*U1, 11, *U2], [50], parent="a", kind="side")
    episode.add("b", episode.stream("side") + U3, [12], parent="side")
    traces = build_traces(episode.calls)
    assert [shown(trace) for trace in traces.traces] == ["1 2 3 [11] 4 5 50 6 [12]"]
    assert reasons(traces) == {"side": ("side", 1)}


def test_an_aborted_call_is_not_trained_but_counted() -> None:
    """The client left, or weights were exchanged: what was sampled until then is no reply."""
    episode = three_turns()
    episode.add("d", episode.stream("c") + U2, [16, 17], parent="c", status="aborted", finish_reason="abort")
    episode.end("e", "aborted", error_code="gateway_killed")
    traces = build_traces(episode.calls)
    assert [trace.call_ids for trace in traces.traces] == [("a", "b", "c")]
    assert reasons(traces) == {"d": ("aborted", 2), "e": ("gateway_killed", 0)}


def test_a_reply_that_the_engine_broke_off_is_no_complete_one() -> None:
    """As it does when weights are exchanged and nobody told it to wait. The harness went on with what it was sent."""
    episode = three_turns()
    episode.add("d", episode.stream("c") + U2, [16, 17], parent="c", finish_reason="abort")
    (trace,) = build_traces(episode.calls).traces
    assert (trace.call_ids[-1], trace.finish_reason, trace.truncated) == ("d", "abort", True)


def test_what_continues_an_aborted_call_has_it_as_context() -> None:
    episode = Episode()
    episode.add("a", U1, [11], status="aborted")
    episode.add("b", [*U1, 11, *U2], [12], parent="a")
    assert [shown(trace) for trace in build_traces(episode.calls).traces] == ["1 2 3 11 4 5 [12]"]


def test_calls_without_tokens_are_no_traces_of_length_one() -> None:
    episode = Episode()
    episode.end("a", "answered")
    episode.add("b", U1, [])
    episode.end("c", "refused")
    episode.end("d", "failed")
    episode.end("e", "arrived")
    traces = build_traces(episode.calls)
    assert traces.traces == ()
    assert [entry.reason for entry in traces.excluded] == ["empty", "empty", "refused", "failed", "open"]


def test_constrained_tokens_are_context_and_never_trained() -> None:
    episode = Episode()
    episode.add("a", U1, [11], constrained=True)
    episode.add("b", [*U1, 11, *U2], [12], parent="a")
    episode.add("c", U3, [13])
    traces = build_traces(episode.calls)
    assert [(shown(trace), trace.constrained) for trace in traces.traces] == [
        ("1 2 3 11 4 5 [12]", True),
        ("6 [13]", False),
    ]
    assert reasons(traces) == {"a": ("constrained", 1)}


def test_weights_exchanged_in_the_middle_of_a_reply() -> None:
    episode = Episode()
    episode.add("a", U1, [11, 12, 13], spans=(PolicySpan("v1", 0, 2), PolicySpan("v2", 2, 3)))
    episode.add("b", [*U1, 11, 12, 13, *U2], [14], parent="a", spans=(PolicySpan("v2", 0, 1),))
    episode.add("c", episode.stream("b") + U3, [15], parent="b", spans=())
    traces = build_traces(episode.calls)
    (trace,) = traces.traces
    assert trace.policy_spans == (PolicySpan("v1", 3, 5), PolicySpan("v2", 5, 6), PolicySpan("v2", 8, 9))
    assert reasons(traces) == {"c": ("unknown_policy", 1)}


def test_a_long_episode_is_cut_at_a_turn_and_not_dropped() -> None:
    traces = build_traces(three_turns().calls, max_length=10)
    assert [shown(trace) for trace in traces.traces] == ["1 2 3 [11 12] 4 5 [13]"]
    assert reasons(traces) == {"c": ("too_long", 2)}
    assert reasons(build_traces(three_turns().calls, max_length=11)) == {}


def test_what_forks_off_a_turn_that_is_too_long_is_trained() -> None:
    episode = three_turns()
    episode.add("d", [*U1, 11, 12, 7], [16], parent="c", fork_reason="history_edited")
    traces = build_traces(episode.calls, max_length=8)
    assert [shown(trace) for trace in traces.traces] == ["1 2 3 [11 12] 4 5 [13]", "1 2 3 11 12 7 [16]"]
    assert reasons(traces) == {"c": ("too_long", 2)}


def test_temperatures_are_those_of_trained_turns() -> None:
    episode = Episode()
    episode.add("a", U1, [11], sampling_used={"temperature": 0.7})
    episode.add("b", [*U1, 11, *U2], [12], parent="a", kind="side", sampling_used={"temperature": 0.0})
    episode.add("c", episode.stream("b") + U3, [13], parent="b", sampling_used=None)
    (trace,) = build_traces(episode.calls).traces
    assert trace.temperatures == {0.7, None}
    assert [turn.temperature for turn in trace.turns] == [0.7, 0.0, None]
    assert trace.trained_tokens == 2


# -- what is no episode ----------------------------------------------------------------------------------------------


def test_calls_of_two_episodes_are_refused() -> None:
    one, other = Episode("e1"), Episode("e2")
    one.add("a", U1, [11])
    other.add("b", U1, [12])
    with pytest.raises(ValueError, match="several episodes: e1, e2"):
        build_traces(one.calls + other.calls)


def test_no_calls_give_no_traces() -> None:
    assert build_traces([]) == Traces((), ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": np.zeros(3, np.float32)}, "call 'c': it has not one logprob for each sampled token"),
        ({"logprobs": None}, "call 'c': it has not one logprob"),
        ({"logprobs": np.array([-1.0, np.nan], np.float32)}, "call 'c': a logprob is not finite"),
        ({"prompt_len": 5}, "call 'c': prompt_len is 5, but it keeps 8 tokens and adds 1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    episode = three_turns()
    outcome = episode.calls[-1].outcome
    assert outcome is not None
    episode.calls[-1] = replace(episode.calls[-1], outcome=replace(outcome, **change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        build_traces(episode.calls)


def test_a_trace_owns_its_arrays() -> None:
    episode = three_turns()
    (trace,) = build_traces(episode.calls).traces
    trace.token_ids[:] = 0
    trace.logprobs[:] = 0
    assert [shown(trace) for trace in build_traces(episode.calls).traces] == ["1 2 3 [11 12] 4 5 [13] 6 [14 15]"]
