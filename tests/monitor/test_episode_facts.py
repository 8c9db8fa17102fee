"""What an evaluation reads of episodes in a real store."""

import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from dragoman.monitor.episode_facts import Chosen, EpisodeFacts, read_episodes, version_order
from dragoman.monitor.tool_errors import ToolErrors
from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode, set_reward
from dragoman.store.packing import digest
from dragoman.store.records import Blob, EpisodeSpec, JsonObject, PolicySpan
from tests.store_calls import Episode


def blob(value: Any) -> Blob:
    data = json.dumps(value).encode()
    return Blob(digest(data), data)


TOOLS = blob([{"name": "bash", "description": "", "parameters": {}}])


def said(*parts: tuple[str, str] | str) -> Blob:
    """A reply: texts, and tool calls as (name, arguments)."""
    return blob(
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "tool_call", "id": "x", "name": part[0], "arguments": part[1]}
                for part in parts
            ],
        }
    )


def versioned(*lengths: tuple[str, int]) -> tuple[PolicySpan, ...]:
    spans, start = [], 0
    for version, length in lengths:
        spans.append(PolicySpan(version, start, start + length))
        start += length
    return tuple(spans)


def write(
    session: Session,
    calls: Episode,
    *,
    task: str | None = "t",
    metadata: JsonObject | None = None,
    end: str | None = "completed",
    reward: float | None = None,
    opened_at: float = 1.0,
) -> None:
    open_episode(
        session,
        EpisodeSpec(task=task, metadata=metadata or {}),
        episode_id=calls.id,
        token_hash=digest(calls.id.encode()).hex() * 2,
        now=opened_at,
        expires_at=1e9,
    )
    assert set(write_arrivals(session, [call.arrival for call in calls.calls])) <= {None}
    assert set(write_outcomes(session, [call.outcome for call in calls.calls if call.outcome])) <= {None}
    if reward is not None:
        set_reward(session, calls.id, reward, components=None, now=50.0)
    if end is not None:
        end_episode(session, calls.id, end, reason=None, now=opened_at + 60)  # type: ignore[arg-type]


def read(store_url: str, *chosen: Chosen) -> list[EpisodeFacts]:
    database = Database.open(store_url)
    with database.reading() as session:
        found = [facts for one in chosen or (Chosen(),) for facts in read_episodes(session, one)]
    database.close()
    return found


def stored(store_url: str, *episodes: tuple[Episode, JsonObject]) -> None:
    database = Database.open(store_url)
    with database.session() as session:
        for calls, how in episodes:
            write(session, calls, **how)
    database.close()


def test_the_sums_of_an_episode(store_url: str) -> None:
    calls = Episode("e1")
    first, second = versioned(("policy-v2", 2)), versioned(("policy-v2", 1), ("policy-v10", 1))
    calls.add("a", [1, 2], [3, 4], tools=TOOLS, reply=said(("bash", "{}")), spans=first)
    calls.add("b", [1, 2, 3, 4, 5], [6, 7], parent="a", tools=TOOLS, reply=said(("bash", "{")), spans=second)
    calls.add("c", [1, 2, 9], [10], parent="b", fork_reason="history_edited", tools=TOOLS, reply=said(("rm", "{}")))
    calls.add("s", [1], [90, 91, 92], kind="side", spans=versioned(("side", 3)), reply=said(("rm", "{}")))
    calls.end("again", "answered", retry_of="c")
    calls.end("no", "refused")
    about = {"harness": "pi", "run": "r1", "split": "test"}
    stored(store_url, (calls, {"metadata": about, "reward": 0.5}))

    assert read(store_url) == [
        EpisodeFacts(
            id="e1",
            task="t",
            run="r1",
            split="test",
            harness="pi",
            version="base..policy-v10",
            end="completed",
            reward=0.5,
            seconds=60.0,
            turns=3,
            prompt_tokens=2 + 5 + 3 + 1,
            completion_tokens=2 + 2 + 1 + 3,
            tools=ToolErrors(calls=3, malformed=1, unknown=1),
            histories=2,
            continued=1,
        )
    ]


def test_an_ignored_tool_call(store_url: str) -> None:
    """The first one's result never came back, the second's did through a retry, and of the last nobody knows."""
    calls = Episode("e1")
    good: JsonObject = {"tools": TOOLS, "reply": said(("bash", "{}"))}
    calls.add("lost", [1], [2], **good)
    calls.add("kept", [1], [3], **good)
    calls.end("again", "answered", retry_of="kept", tools=TOOLS, reply=said(("bash", "{}")))
    calls.add("next", [1, 3, 4], [5], parent="kept", **good)
    stored(store_url, (calls, {}))

    (facts,) = read(store_url)

    assert facts.tools == ToolErrors(calls=3, ignored=1)
    assert (facts.turns, facts.histories, facts.continued) == (3, 1, 1)


def test_a_history_that_is_not_kept_whole_is_not_exact(store_url: str) -> None:
    calls = Episode("e1")
    calls.add("a", [1, 2], [3, 4])
    calls.add("b", [1, 2, 3, 4, 5], [6], parent="a")
    calls.add("c", [1, 2, 3, 7], [8], parent="a", fork_reason="no_close")
    calls.add("d", [9], [10], fork_reason="unknown_parent")
    stored(store_url, (calls, {}))

    (facts,) = read(store_url)

    assert (facts.histories, facts.continued) == (3, 1)


def test_which_episodes(store_url: str) -> None:
    stored(
        store_url,
        (Episode("e1"), {"task": "swe-1", "metadata": {"run": "r1", "split": "test", "harness": "pi"}}),
        (Episode("e2"), {"task": "swe-2", "metadata": {"run": "r2", "split": "train", "harness": "codex"}}),
        (Episode("e3"), {"task": "math-1", "metadata": {"run": 7, "split": None}}),
        (Episode("e4"), {"task": None, "opened_at": 0.5, "end": None}),
    )

    def ids(chosen: Chosen) -> list[str]:
        return [facts.id for facts in read(store_url, chosen)]

    assert ids(Chosen()) == ["e4", "e1", "e2", "e3"]
    assert ids(Chosen(run="r1")) == ["e1"]
    assert ids(Chosen(run="r*")) == ["e1", "e2"]
    assert ids(Chosen(tasks=("swe-*",))) == ["e1", "e2"]
    assert ids(Chosen(tasks=("swe-2", "math-?"))) == ["e2", "e3"]
    assert ids(Chosen(split="train")) == ["e2"]
    assert ids(Chosen(harness="pi")) == ["e1"]
    assert ids(Chosen(tasks=("none",))) == []
    assert [(facts.run, facts.split, facts.task) for facts in read(store_url, Chosen(tasks=("math-1",)))] == [
        (None, None, "math-1")
    ]


def test_the_harness_of_calls_where_nobody_named_one(store_url: str) -> None:
    calls = Episode("e1")
    calls.add("a", [1], [2])
    calls.calls = [replace(call, arrival=replace(call.arrival, harness="pi")) for call in calls.calls]
    stored(store_url, (calls, {}), (Episode("e2"), {}))

    assert [facts.harness for facts in read(store_url)] == ["pi", None]
    assert [facts.id for facts in read(store_url, Chosen(harness="pi"))] == ["e1"]
    assert read(store_url, Chosen(harness="codex")) == []


def test_four_queries_for_many_episodes(store_url: str) -> None:
    many = []
    for number in range(30):
        calls = Episode(f"e{number}")
        calls.add(f"c{number}", [1], [2], tools=TOOLS, reply=said(f"answer {number}"))
        many.append((calls, {"task": f"t{number}"}))
    stored(store_url, *many)
    database = Database.open(store_url)
    with database.reading() as session:
        statements: list[str] = []
        event.listen(session.get_bind(), "before_cursor_execute", lambda *args: statements.append(args[2]))
        found = read_episodes(session, Chosen())
    database.close()

    assert len(found) == 30
    assert len([statement for statement in statements if statement.startswith("SELECT")]) == 4


def test_a_damaged_reply_is_named(store_url: str) -> None:
    calls = Episode("e1")
    calls.add("a", [1], [2], reply=blob({"parts": [{}]}))
    stored(store_url, (calls, {}))

    with pytest.raises(ValueError, match="the reply of call 'a'"):
        read(store_url)


def test_versions_in_the_order_in_which_they_were_published() -> None:
    labels = ["strange", "policy-v10", "policy-v2..policy-v9", "policy-v2", "base"]

    assert sorted(labels, key=version_order) == [
        "base",
        "policy-v2",
        "policy-v2..policy-v9",
        "policy-v10",
        "strange",
    ]
