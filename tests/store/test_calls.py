"""Calls: what is written comes back, in order, once, whatever else is in the batch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select, text
from sqlalchemy.orm import Session

from dragoman.store.calls import (
    close_open_calls,
    full_prompt,
    read_call,
    read_calls,
    read_messages,
    read_state,
    read_streams,
    write_arrivals,
    write_outcomes,
)
from dragoman.store.database import Database
from dragoman.store.episodes import open_episode
from dragoman.store.errors import CallNotFound
from dragoman.store.models import Call, StoredBlob
from dragoman.store.packing import digest
from dragoman.store.records import Blob, CallArrival, CallOutcome, EpisodeSpec, PolicySpan, TokenIds
from dragoman.store.traces import build_traces
from tests.store_calls import Episode


def open_one(session: Session, episode_id: str) -> None:
    token_hash = digest(episode_id.encode()).hex() * 2
    open_episode(session, EpisodeSpec(), episode_id=episode_id, token_hash=token_hash, now=1.0, expires_at=9.0)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One transaction in a store with the episodes ``e1`` and ``e2``."""
    with database.session() as session:
        open_one(session, "e1")
        open_one(session, "e2")
        yield session


def arrival(call_id: str, at: float = 10.0, episode_id: str = "e1") -> CallArrival:
    return CallArrival(id=call_id, episode_id=episode_id, provider="anthropic", path="/v1/messages", arrived_at=at)


def answered(call_id: str, prompt: Sequence[int], completion: Sequence[int], **more: Any) -> CallOutcome:
    """An answered call that adds ``prompt`` to what it shares with its parent."""
    return CallOutcome(
        id=call_id,
        status="answered",
        http_status=200,
        finished_at=20.0,
        prompt_ids=np.array(prompt, np.int32),
        prompt_len=len(prompt) + more.get("shared_len", 0),
        completion_ids=np.array(completion, np.int32),
        logprobs=np.linspace(-3, 0, len(completion), dtype=np.float32),
        **more,
    )


def blob(text: str) -> Blob:
    return Blob(digest(text.encode()), text.encode())


def assert_same(found: object, expected: object) -> None:
    """Equality of records, whose arrays ``==`` cannot compare."""
    assert type(found) is type(expected)
    for field in fields(expected):  # type: ignore[arg-type]
        left, right = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert np.array_equal(left, right), field.name
        else:
            assert left == right, field.name


def test_every_field_comes_back(session: Session) -> None:
    first = CallArrival(
        id="c1",
        episode_id="e1",
        provider="openai_chat",
        path="/v1/chat/completions",
        arrived_at=10.125,
        harness="pi",
        harness_version="0.67.68",
        thread="main/1",
        kind="subagent",
    )
    outcome = CallOutcome(
        id="c1",
        status="answered",
        http_status=200,
        finished_at=12.75,
        error_code="code",
        error_message="said",
        model="gpt-✓",
        stream=True,
        messages=(blob('{"a":1}'), blob('{"b":2}'), blob('{"a":1}')),
        tools=blob("[]"),
        reply=blob('{"r":"✓"}'),
        sampling_asked={"temperature": 0.3, "stop": ["\0", "✓"]},
        sampling_used={"temperature": 1.0},
        constrained=True,
        parent_id="c0",
        shared_len=2,
        fork_reason="history_edited",
        echo_changed=3,
        retry_of="c0",
        messages_kept=1,
        prompt_len=4,
        prompt_ids=np.array([7, 151_935], np.int32),
        completion_ids=np.array([3, 2**31 - 1], np.int32),
        logprobs=np.array([-0.1, -3.25e-9], np.float32),
        finish_reason="tool_calls",
        policy_spans=(PolicySpan("base", 0, 1), PolicySpan("policy-v1", 1, 2)),
        first_token_at=11.5,
        engine_started_at=11.25,
        tokenizer_hash="t",
        template_hash="m",
        canonical_version=1,
        state={"kept": True},
    )
    left_out = [f.name for f in fields(CallOutcome) if repr(getattr(outcome, f.name)) == repr(f.default)]
    assert left_out == []
    assert write_arrivals(session, [arrival("c0"), first]) == [None, None]
    open_call = read_call(session, "c1")
    assert open_call is not None
    assert (open_call.arrival, open_call.outcome) == (first, None)
    parent = answered("c0", [1, 2, 3], [], messages=(blob('{"first":0}'), blob("second")))
    assert write_outcomes(session, [parent, outcome]) == [None, None]
    session.expire_all()
    call = read_call(session, "c1")
    assert call is not None
    assert_same(call.arrival, first)
    assert_same(call.outcome, replace(outcome, state=None))
    assert (read_state(session, "c1"), read_state(session, "c0")) == ({"kept": True}, None)
    assert read_messages(session, "c1") == [b'{"first":0}', b'{"a":1}', b'{"b":2}', b'{"a":1}']


def test_messages_are_stored_once_along_a_branch(session: Session) -> None:
    write_arrivals(session, [arrival("c0"), arrival("c1"), arrival("c2"), arrival("c3")])
    one, two, three, four = (blob(f'"{n}"') for n in range(4))
    write_outcomes(session, [answered("c0", [1], [2], messages=(one, two))])
    write_outcomes(session, [answered("c1", [1], [2], messages=(three,), parent_id="c0", messages_kept=2)])
    write_outcomes(session, [answered("c2", [1], [2], messages=(four, one), parent_id="c1", messages_kept=1)])
    write_outcomes(session, [answered("c3", [1], [2], messages=(two,), parent_id="c2", messages_kept=0)])
    said = {
        name: [json.loads(message) for message in read_messages(session, name)] for name in ("c0", "c1", "c2", "c3")
    }
    assert said == {"c0": ["0", "1"], "c1": ["0", "1", "2"], "c2": ["0", "3", "0"], "c3": ["1"]}


def test_a_call_that_is_not_there(session: Session) -> None:
    assert read_call(session, "c9") is None
    assert read_calls(session, "e9") == []
    with pytest.raises(CallNotFound, match="'c9'"):
        read_messages(session, "c9")
    with pytest.raises(CallNotFound, match="'c9'"):
        full_prompt(session, "c9")


def test_calls_are_read_in_the_order_of_arrival(session: Session) -> None:
    write_arrivals(session, [arrival("z", 12.0), arrival("y", 11.0), arrival("other", 11.0, "e2")])
    write_arrivals(session, [arrival("x", 11.0), arrival("a", 11.0), arrival("w", 10.0)])
    write_outcomes(session, [answered("z", [1], [2]), answered("y", [1], [2])])  # PostgreSQL moves these rows
    if session.get_bind().dialect.name == "postgresql":  # so that no index happens to give the right order
        session.execute(text("SET LOCAL enable_indexscan = off"))
        session.execute(text("SET LOCAL enable_bitmapscan = off"))
    calls = read_calls(session, "e1")
    assert [call.arrival.id for call in calls] == ["w", "y", "x", "a", "z"]  # written first goes first at one time
    assert [call.outcome is None for call in calls] == [True, False, True, True, False]


def test_a_record_delivered_twice_is_stored_once(session: Session) -> None:
    for _ in range(2):
        assert write_arrivals(session, [arrival("c1"), arrival("c1")]) == [None, None]
    outcome = answered("c1", [1, 2], [3], messages=(blob("m"),))
    for _ in range(2):
        assert write_outcomes(session, [outcome, outcome]) == [None, None]
    assert write_arrivals(session, [arrival("c1")]) == [None]  # a late repeat does not open it again
    (call,) = read_calls(session, "e1")
    assert_same(call.outcome, outcome)
    assert session.scalar(select(func.count()).select_from(StoredBlob)) == 1


def test_a_message_is_stored_once_however_often_it_is_sent(session: Session) -> None:
    write_arrivals(session, [arrival(f"c{n}") for n in range(4)])
    write_outcomes(session, [answered("c0", [1], [2], messages=(blob("s"), blob("u")), tools=blob("t"))])
    outcomes = [
        answered(f"c{n}", [1], [2], messages=(blob("s"), blob("u"), blob(f"r{n}")), tools=blob("t")) for n in (1, 2, 3)
    ]
    write_outcomes(session, outcomes)
    assert session.scalar(select(func.count()).select_from(StoredBlob)) == 6
    assert read_messages(session, "c3") == [b"s", b"u", b"r3"]


def test_more_messages_than_one_query_can_name(session: Session) -> None:
    messages = tuple(blob(str(n)) for n in range(1203))
    write_arrivals(session, [arrival("c1")])
    assert write_outcomes(session, [answered("c1", [1], [2], messages=messages)]) == [None]
    assert read_messages(session, "c1") == [message.data for message in messages]


def test_bad_arrivals_do_not_stop_the_others(session: Session) -> None:
    write_arrivals(session, [arrival("c1", 10.0)])
    answers = write_arrivals(
        session,
        [
            arrival("c2"),
            replace(arrival("c3"), provider="acme"),  # type: ignore[arg-type]
            arrival("c4", episode_id="e9"),
            arrival("c1", 11.0),
            arrival("c5\0"),
            arrival("c6"),
        ],
    )
    assert [None if error is None else str(error) for error in answers] == [
        None,
        "call 'c3': provider 'acme' is not one of anthropic, openai_chat, openai_responses, google",
        "call 'c4': there is no episode 'e9'",
        "call 'c1': another call has this id",
        "call 'c5\\x00': id 'c5\\x00' is not made of 1 to 40 of a-z and 0-9",
        None,
    ]
    assert {call.arrival.id for call in read_calls(session, "e1")} == {"c1", "c2", "c6"}


def test_bad_outcomes_do_not_stop_the_others(session: Session) -> None:
    write_arrivals(session, [*(arrival(f"c{n}") for n in range(8)), arrival("foreign", episode_id="e2")])
    write_outcomes(session, [answered("c0", [1, 2, 3], [4]), answered("foreign", [1], [2])])
    ended = replace(answered("c0", [9], [9]), finished_at=21.0)
    wrong_digest = Blob(digest(b"good"), b"evil")
    answers = write_outcomes(
        session,
        [
            answered("c1", [5], [6], parent_id="c0", shared_len=4),
            answered("c2", [5], [6], parent_id="c0", shared_len=5),
            answered("c3", [5], [6], parent_id="foreign"),
            answered("c4", [5], [6], parent_id="c5", shared_len=1),  # c5 is open: it has no stream yet
            answered("c5", [5], [6], messages=(blob("other"), wrong_digest)),
            answered("c6", [5], [6], parent_id="c0", messages_kept=1),
            answered("c9", [5], [6]),
            ended,
            replace(answered("c6", [5], [6]), logprobs=np.array([np.nan], np.float32)),
            answered("c7", [5], [6], messages=(blob("good"),)),
        ],
    )
    assert [None if error is None else str(error) for error in answers] == [
        None,
        "call 'c2': shared_len is 5, but its parent 'c0' has 4 tokens",
        "call 'c3': its parent 'foreign' is not in its episode",
        "call 'c4': shared_len is 1, but its parent 'c5' has 0 tokens",
        f"call 'c5': digest {digest(b'good').hex()} does not belong to its data",
        "call 'c6': messages_kept is 1, but its parent 'c0' has 0 messages",
        "call 'c9': it has not arrived",
        "call 'c0': it has already ended as 'answered'",
        "call 'c6': logprob 0 is nan; every logprob must be finite",
        None,
    ]
    done = {call.arrival.id for call in read_calls(session, "e1") if call.outcome is not None}
    assert done == {"c0", "c1", "c7"}
    assert read_messages(session, "c7") == [b"good"]
    assert session.scalar(select(func.count()).select_from(StoredBlob)) == 1


def test_a_parent_without_a_prompt_has_nothing_to_share(session: Session) -> None:
    write_arrivals(session, [arrival("c1"), arrival("c2")])
    too_long = CallOutcome(id="c1", status="refused", http_status=400, finished_at=20.0, prompt_len=70_000)
    answers = write_outcomes(session, [too_long, answered("c2", [1], [2], parent_id="c1", shared_len=1)])
    assert str(answers[1]) == "call 'c2': shared_len is 1, but its parent 'c1' has 0 tokens"
    with pytest.raises(ValueError, match="'c1' has no prompt"):
        full_prompt(session, "c1")


def test_calls_of_a_killed_gateway_are_closed(session: Session) -> None:
    write_arrivals(session, [arrival("old", 10.0), arrival("done", 10.0), arrival("new", 30.0)])
    write_outcomes(session, [answered("done", [1], [2])])
    assert close_open_calls(session, started_before=30.0, now=31.0) == 1
    assert close_open_calls(session, started_before=30.0, now=32.0) == 0
    session.expire_all()
    calls = {call.arrival.id: call.outcome for call in read_calls(session, "e1")}
    assert calls["old"] is not None
    assert calls["done"] is not None
    assert calls["new"] is None
    found = (calls["old"].status, calls["old"].error_code, calls["old"].http_status, calls["old"].finished_at)
    assert found == ("aborted", "gateway_killed", None, 31.0)
    assert calls["done"].status == "answered"


def test_an_outcome_replaces_what_was_only_supposed(session: Session) -> None:
    """Another gateway on the same store was started, and took a slow call of this one for a dead one."""
    write_arrivals(session, [arrival("c1")])
    close_open_calls(session, started_before=30.0, now=31.0)
    outcome = replace(answered("c1", [1], [2]), finished_at=40.0)
    assert write_outcomes(session, [outcome]) == [None]
    session.expire_all()
    call = read_call(session, "c1")
    assert call is not None
    assert_same(call.outcome, outcome)


numbers = count()
ids = st.lists(st.integers(0, 2**31 - 1), max_size=12)


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int | None, int, list[int], list[int]]]:
    """Calls as (index of the parent, shared_len, new prompt ids, completion ids)."""
    calls: list[tuple[int | None, int, list[int], list[int]]] = []
    lengths: list[int] = []
    for n in range(draw(st.integers(1, 12))):
        parent = draw(st.none() | st.integers(0, n - 1)) if n else None
        limit = 0 if parent is None else lengths[parent]
        shared = draw(st.just(limit) | st.integers(0, limit))
        prompt, completion = draw(ids), draw(ids)
        calls.append((parent, shared, prompt, completion))
        lengths.append(shared + len(prompt) + len(completion))
    return calls


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), at_once=st.booleans())
def test_full_prompt_of_any_tree_of_calls(
    database: Database, tree: list[tuple[int | None, int, list[int], list[int]]], at_once: bool
) -> None:
    number = next(numbers)
    names = [f"t{number}c{n}" for n in range(len(tree))]
    prompts: list[list[int]] = []
    outcomes = []
    for name, (parent, shared, prompt, completion) in zip(names, tree, strict=True):
        kept = [] if parent is None else (prompts[parent] + tree[parent][3])[:shared]
        prompts.append(kept + prompt)
        parent_id = None if parent is None else names[parent]
        outcomes.append(answered(name, prompt, completion, parent_id=parent_id, shared_len=shared))
    with database.session() as session:
        open_one(session, f"t{number}")
        write_arrivals(session, [arrival(name, episode_id=f"t{number}") for name in names])
        for batch in [outcomes] if at_once else [[outcome] for outcome in outcomes]:
            assert write_outcomes(session, batch) == [None] * len(batch)
    with database.reading() as session:
        for name, expected in zip(names, prompts, strict=True):
            found = full_prompt(session, name)
            assert found.dtype == np.int32
            assert found.tolist() == expected


def random_ids(rng: np.random.Generator, length: int) -> TokenIds:
    return rng.integers(0, 151_936, length).astype(np.int32)


def wordy_ids(rng: np.random.Generator, length: int) -> TokenIds:
    """Ids with the repetition of text: few words are frequent, and phrases come back."""
    phrases = [np.minimum(rng.zipf(1.2, 8), 151_935).astype(np.int32) for _ in range(200)]
    return np.concatenate([phrases[k] for k in rng.integers(0, 200, length // 8 + 1)])[:length]


@pytest.mark.parametrize("make_ids", [random_ids, wordy_ids])
def test_a_session_of_50_turns_and_64k_tokens_stays_under_one_megabyte(tmp_path: Path, make_ids: Any) -> None:
    rng = np.random.default_rng(0)
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    messages: list[Blob] = [blob("system " + rng.bytes(8000).hex())]
    stream = np.empty(0, np.int32)
    prompts: dict[str, TokenIds] = {}
    with database.session() as session:
        open_one(session, "e1")
    for turn in range(50):
        new, completion = make_ids(rng, 640), make_ids(rng, 640)
        prompts[f"c{turn}"] = np.concatenate([stream, new])
        messages += [blob(f"user {turn} " + rng.bytes(1200).hex()), blob(f"assistant {turn} " + rng.bytes(1200).hex())]
        outcome = replace(
            answered(f"c{turn}", new, completion, parent_id=f"c{turn - 1}" if turn else None, shared_len=len(stream)),
            messages=tuple(messages),
            tools=blob("tools"),
            logprobs=-rng.exponential(1.0, 640).astype(np.float32),
            sampling_used={"temperature": 1.0, "top_p": 1.0, "max_tokens": 4096},
            policy_spans=(PolicySpan("base", 0, 640),),
        )
        with database.session() as session:
            assert write_arrivals(session, [arrival(f"c{turn}", 10.0 + turn)]) == [None]
            assert write_outcomes(session, [outcome]) == [None]
        stream = np.concatenate([prompts[f"c{turn}"], completion])
    assert len(stream) == 64_000
    with database.reading() as session:
        statements: list[str] = []
        session.connection()  # its BEGIN is not counted
        event.listen(database._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        for call_id, expected in prompts.items():
            assert np.array_equal(full_prompt(session, call_id), expected)
        assert len(statements) == len(prompts)
        assert session.scalar(select(func.count()).select_from(Call)) == 50
    database.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000


def test_streams_are_the_calls_without_what_was_said(database: Database) -> None:
    episode = Episode("e1")
    episode.add("aa", [1, 2], [10])
    episode.add("bb", [1, 2, 10, 3], [11], parent="aa")
    with database.session() as session:
        open_episode(session, EpisodeSpec(), episode_id="e1", token_hash="0" * 64, now=1.0, expires_at=9.0)
        assert set(write_arrivals(session, [call.arrival for call in episode.calls])) == {None}
        assert set(write_outcomes(session, [call.outcome for call in episode.calls if call.outcome])) == {None}
    with database.reading() as session:
        whole, streams = read_calls(session, "e1"), read_streams(session, "e1")
    assert [one.arrival for one in streams] == [one.arrival for one in whole]
    assert [trace.token_ids.tolist() for trace in build_traces(streams).traces] == [[1, 2, 10, 3, 11]]
    for one in streams:
        assert one.outcome is not None
        assert (one.outcome.messages, one.outcome.tools, one.outcome.reply) == ((), None, None)
