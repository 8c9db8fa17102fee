"""An episode's lineage from the store alone finds the same parents and makes the same prompts as the one in memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.addons.bridge import Thinking
from dragoman.addons.call import Call, retried
from dragoman.addons.lineage import EpisodeLineage
from dragoman.addons.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.restore import restore
from dragoman.addons.tokens import TokenCodec
from dragoman.store.calls import full_prompt, read_calls, read_messages, write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import open_episode
from dragoman.store.ledger import audit
from dragoman.store.records import Blob, CallInfo, EpisodeSpec
from dragoman.store.traces import build_traces
from tests.addons.talk import END, OLD_REASONING_DROPPED, SYSTEM, TOOLS, Talk, results, spelt, tool_call, user
from tests.addons.templates.families import FAMILIES, codec
from tests.models import tiny_model_folder

NAMES = count()


@cache
def tiny() -> TokenCodec:
    return TokenCodec.load(str(tiny_model_folder()))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = Database.open(f"sqlite:///{tmp_path_factory.mktemp('store')}/dragoman.db")
    yield opened
    opened.close()


def open_talk(store: Database, used: TokenCodec, thinking: Thinking = "template") -> Talk:
    number = next(NAMES)
    with store.session() as session:
        spec = EpisodeSpec()
        open_episode(session, spec, episode_id=f"e{number}", token_hash=f"{number:064x}", now=1.0, expires_at=9.0)
    return Talk(used, thinking=thinking, episode_id=f"e{number}", asked=number * 1000)


def stored(store: Database, talk: Talk) -> EpisodeLineage:
    """What a gateway that has just started knows of the episode."""
    with store.session() as session:
        assert write_arrivals(session, [row.arrival for row in talk.rows]) == [None] * len(talk.rows)
        outcomes = [row.outcome for row in talk.rows if row.outcome is not None]
        assert write_outcomes(session, outcomes) == [None] * len(outcomes)
    with store.reading() as session:
        return restore(read_calls(session, talk.episode_id))


def assert_same(talk: Talk, restored: EpisodeLineage, said: list[Message], **tools: object) -> None:
    """Both lineages answer this request alike."""
    kept, again = (talk.ask(said, lineage=lineage, **tools) for lineage in (talk.lineage, restored))  # type: ignore[arg-type]
    assert again.found.key == kept.found.key
    assert again.found.position == kept.found.position
    assert again.found.echo_changed == kept.found.echo_changed
    parents = [call.prompt.parent and call.prompt.parent.call_id for call in (again, kept)]
    assert parents[0] == parents[1]
    assert again.prompt.ids.tolist() == kept.prompt.ids.tolist()
    assert (again.prompt.shared_len, again.prompt.fork_reason) == (kept.prompt.shared_len, kept.prompt.fork_reason)


# -- what a model samples and what a harness makes of it -------------------------------------------------------------

THOUGHT = "<think>\nI wonder\n</think>\n\n"
REPLIES = [
    f"Yes.{END}",
    f"{THOUGHT}Yes.{END}",
    f"Look:\n{tool_call(at='é', why='x')}{END}",
    f"{THOUGHT}{tool_call()}\n{tool_call('touch')}{END}",
    f'<tool_call>\n{{"name": "look", "arguments": {{"at"\n</tool_call>{END}',
    "It goes on and",
    "<think>\nI wonder whether",
    END,
]
NEW = ["more", "other", "<|im_start|>", "mind the\n"]


def edited(said: list[Message], how: str) -> list[Message]:
    """The conversation as some harness replays it."""
    if how == "no reasoning":
        return [replace(m, parts=tuple(p for p in m.parts if not isinstance(p, ReasoningPart))) for m in said]
    if how == "spelt anew":

        def anew(part: Part) -> Part:
            return (
                replace(part, arguments=part.arguments.replace(": ", ":")) if isinstance(part, ToolCallPart) else part
            )

        return [replace(m, parts=tuple(anew(part) for part in m.parts)) for m in said]
    if how == "apart":
        return [
            one
            for m in said
            for one in ([Message("assistant", (part,)) for part in m.parts] if m.role == "assistant" else [m])
        ]
    if how == "reminder":
        return [replace(said[0], parts=(*said[0].parts, TextPart("Remember."))), *said[1:]]
    return said


EDITS = ["", "", "", "no reasoning", "spelt anew", "apart", "reminder"]


def grow(talk: Talk, grown: list[list[Message]], data: st.DataObject) -> tuple[Call, list[int]]:
    """One more call, somewhere in the episode; ``grown`` then has one more conversation to go on from."""
    said = edited(data.draw(st.sampled_from(grown)), data.draw(st.sampled_from(EDITS)))
    call = talk.ask(said, tools=data.draw(st.sampled_from([TOOLS, TOOLS, TOOLS[:1]])))
    text = data.draw(st.sampled_from(REPLIES))
    sampled = spelt(talk.codec, text) if data.draw(st.booleans()) else talk.codec.encode(text)
    reply = talk.answer(call, sampled)
    new = [results(reply)] if any(isinstance(part, ToolCallPart) for part in reply.parts) else []
    if not new or data.draw(st.booleans()):
        new.append(user(data.draw(st.sampled_from(NEW))))
    grown.append([*said, reply, *new])
    return call, sampled.tolist()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_episode_gives_back_what_was_asked_and_sampled_and_balances(store: Database, data: st.DataObject) -> None:
    """Branches, forks, retries and threads that take turns, with a gateway that restarts between any two of them."""
    used = codec(FAMILIES["chatml"][0], "template", OLD_REASONING_DROPPED)
    talk = open_talk(store, used, data.draw(st.sampled_from(["template", "keep"])))
    grown: list[list[Message]] = [[SYSTEM, user("start")], [user("start")]]
    answered: dict[str, tuple[Call, list[int]]] = {}
    for what in data.draw(st.lists(st.sampled_from(("call", "call", "call", "restart", "retry")), max_size=12)):
        if what == "restart":
            talk.lineage = stored(store, talk)
        elif what == "call":
            call, sampled = grow(talk, grown, data)
            answered[call.id] = call, sampled
        elif answered:
            original, _ = data.draw(st.sampled_from(list(answered.values())))
            outcome = next(row.outcome for row in talk.rows if row.arrival.id == original.id)
            assert outcome is not None
            talk.asked += 1
            now = float(talk.asked)
            arrival = replace(original.arrival, id=f"{talk.asked:020d}", arrived_at=now)
            talk.rows.append(CallInfo(arrival, retried(arrival, outcome, now)))
    stored(store, talk)
    with store.reading() as session:
        calls = read_calls(session, talk.episode_id)
        for call_id, (call, _) in answered.items():
            assert full_prompt(session, call_id).tolist() == call.prompt.ids.tolist()
            assert tuple(read_messages(session, call_id)) == tuple(blob.data for blob in call.messages)
    trained: list[str] = []
    for trace in build_traces(calls).traces:
        for turn in trace.turns:
            if turn.trained:
                call, sampled = answered[turn.call_id]
                assert trace.token_ids[: turn.completion_start].tolist() == call.prompt.ids.tolist()
                assert trace.token_ids[turn.completion_start : turn.end].tolist() == sampled
                assert trace.loss_mask[turn.completion_start : turn.end].all()
                trained.append(turn.call_id)
        assert trace.trained_tokens == sum(turn.end - turn.completion_start for turn in trace.turns if turn.trained)
    assert sorted(trained) == sorted(answered)
    ledger = audit(calls)
    assert ledger.problems == ()
    assert (ledger.arrived, ledger.answered) == (len(talk.rows), len(talk.rows))
    assert ledger.traced_tokens == sum(len(sampled) for _, sampled in answered.values())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_after_a_restart_every_request_finds_the_same_parent_and_prompt(store: Database, data: st.DataObject) -> None:
    used = codec(FAMILIES["chatml"][0], "template", OLD_REASONING_DROPPED)
    talk = open_talk(store, used, data.draw(st.sampled_from(["template", "keep"])))
    grown: list[list[Message]] = [[SYSTEM, user("start")], [user("start")]]
    for _ in range(data.draw(st.integers(1, 8))):
        grow(talk, grown, data)
    restored = stored(store, talk)
    assert list(restored.nodes) == list(talk.lineage.nodes)
    for call_id, node in talk.lineage.nodes.items():
        again = restored.nodes[call_id]
        assert (again.key, again.seed, again.system, again.reply) == (node.key, node.seed, node.system, node.reply)
        assert again.message_digests == node.message_digests
        assert again.stream().tolist() == node.stream().tolist()
    for said in grown:
        assert_same(talk, restored, edited(said, data.draw(st.sampled_from(EDITS))))
    assert_same(talk, restored, grown[-1], tools=TOOLS[:1])


def test_calls_that_gave_no_reply_are_left_out(store: Database) -> None:
    talk = open_talk(store, tiny())
    _, reply = talk.turn([SYSTEM, user("hi")], f"Yes.{END}")
    for status in ("refused", "failed", "aborted"):
        talk.turn([SYSTEM, user(status)], f"No.{END}")
        row = talk.rows[-1]
        assert row.outcome
        http_status = {"refused": 400, "failed": 502, "aborted": 499}[status]
        outcome = replace(row.outcome, status=status, http_status=http_status, reply=None, finish_reason=None)
        talk.rows[-1] = replace(row, outcome=outcome)
    talk.rows.append(replace(talk.rows[0], arrival=replace(talk.rows[0].arrival, id="z" * 20), outcome=None))
    restored = stored(store, talk)
    assert list(restored.nodes) == [talk.rows[0].arrival.id]
    found = restored.find((SYSTEM, user("hi"), reply, user("more")), next(iter(restored.nodes.values())).seed)
    assert found.parent is restored.nodes[talk.rows[0].arrival.id]


def test_a_retry_that_was_given_another_calls_reply_is_left_out(store: Database) -> None:
    talk = open_talk(store, tiny())
    talk.turn([user("hi")], f"Yes.{END}")
    first = talk.rows[0]
    assert first.outcome
    outcome = replace(
        first.outcome, id="y" * 20, retry_of=first.arrival.id, prompt_ids=None, prompt_len=None, completion_ids=None
    )
    outcome = replace(outcome, logprobs=None, reply=None, policy_spans=(), finish_reason=None)
    talk.rows.append(replace(first, arrival=replace(first.arrival, id="y" * 20), outcome=outcome))
    assert list(stored(store, talk).nodes) == [first.arrival.id]


def test_what_is_not_ours_is_an_error(tmp_path: Path) -> None:
    talk = Talk(tiny())
    talk.turn([user("hi")], f"Yes.{END}")
    (row,) = talk.rows
    assert row.outcome
    with pytest.raises(ValueError, match="no stored message"):
        restore([replace(row, outcome=replace(row.outcome, reply=Blob(b"x" * 16, b'{"role": "assistant"}')))])


def test_a_call_that_arrived_before_its_parent_by_a_clock_that_was_put_back() -> None:
    talk = Talk(tiny())
    asked, reply = talk.turn((SYSTEM, user("one")), f"First.{END}")
    second, _ = talk.turn((SYSTEM, user("one"), reply, user("two")), f"Second.{END}")
    restored = restore(talk.rows[::-1])
    node = restored.nodes[second.id]
    assert node.parent is restored.nodes[asked.id]
    assert node.stream().tolist() == talk.node(second).stream().tolist()
    assert node.key == talk.node(second).key
    assert audit(talk.rows[::-1]).problems == ()
    backwards, forwards = build_traces(talk.rows[::-1]).traces, build_traces(talk.rows).traces
    assert [trace.token_ids.tolist() for trace in backwards] == [trace.token_ids.tolist() for trace in forwards]
