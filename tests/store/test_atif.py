"""Trajectories are valid ATIF, have each reply once, and put what was said before it where it belongs."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.store.atif import trajectory
from dragoman.store.packing import digest
from dragoman.store.records import Blob, EpisodeInfo, EpisodeSpec, JsonObject
from tests.store_calls import Episode

atif = pytest.importorskip("atif", reason="the format's models are only in the gateway's environment")

INFO = EpisodeInfo("e1", EpisodeSpec("t", "g", metadata={"seed": 1}), 1.0, 9.0, 5.0, "completed", None, 0.5)


def blob(value: object) -> Blob:
    data = json.dumps(value).encode()
    return Blob(digest(data), data)


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def says(role: str, *parts: JsonObject | str) -> Blob:
    return blob({"role": role, "parts": [text(part) if isinstance(part, str) else part for part in parts]})


def asks_tool(call_id: str, arguments: str = '{"cmd": "ls"}') -> JsonObject:
    return {"type": "tool_call", "id": call_id, "name": "bash", "arguments": arguments}


def result(call_id: str, *parts: JsonObject | str, error: bool = False) -> JsonObject:
    inner = [text(part) if isinstance(part, str) else part for part in parts]
    return {"type": "tool_result", "id": call_id, "is_error": error, "parts": inner}


def valid(episode: Episode, info: EpisodeInfo = INFO) -> dict[str, Any]:
    """The document, which the format's own models accept and give back unchanged."""
    document = trajectory(info, episode.calls)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert atif.Trajectory.model_validate(document).to_json_dict() == document
    return document


def steps(document: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(step.get(name) for name in ("source", "message", *names)) for step in document["steps"]]


SYSTEM, HELLO = says("system", "be brief"), says("user", "list the files")
TOOLS = blob([{"name": "bash", "description": "run", "parameters": {"type": "object"}}])


def conversation() -> Episode:
    """Two turns with a tool between them."""
    episode = Episode()
    first = says("assistant", {"type": "reasoning", "text": "hm", "signature": None}, "I will.", asks_tool("toolu_a_0"))
    episode.add("a", [1, 2], [3, 4], messages=(SYSTEM, HELLO), reply=first, tools=TOOLS, model="m")
    episode.add(
        "b",
        [*episode.stream("a"), 5],
        [6],
        parent="a",
        messages=(says("assistant", "I will."), says("tool", result("toolu_a_0", "a.txt")), says("user", "and?")),
        messages_kept=2,
        reply=says("assistant", "One file."),
    )
    return episode


def test_a_conversation() -> None:
    document = valid(conversation())

    assert (document["schema_version"], document["session_id"]) == ("ATIF-v1.8", "e1")
    assert document["agent"] == {
        "name": "unknown",
        "version": "unknown",
        "model_name": "m",
        "tool_definitions": [
            {"type": "function", "function": {"name": "bash", "description": "run", "parameters": {"type": "object"}}}
        ],
    }
    assert steps(document, "reasoning_content") == [
        ("system", "be brief", None),
        ("user", "list the files", None),
        ("agent", "I will.", "hm"),
        ("user", "and?", None),
        ("agent", "One file.", None),
    ]
    asking = document["steps"][2]
    assert asking["tool_calls"] == [
        {"tool_call_id": "toolu_a_0", "function_name": "bash", "arguments": {"cmd": "ls"}},
    ]
    assert asking["observation"] == {"results": [{"content": "a.txt", "source_call_id": "toolu_a_0"}]}
    assert asking["timestamp"] == "1970-01-01T00:01:40+00:00"
    assert asking["metrics"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "completion_token_ids": [3, 4],
        "logprobs": [-3 / 256, -4 / 256],
    }
    assert asking["extra"] == {
        "call": "a",
        "kind": "main",
        "status": "answered",
        "finish_reason": "stop",
        "policy_spans": [["base", 0, 2]],
    }
    assert document["final_metrics"] == {"total_prompt_tokens": 7, "total_completion_tokens": 3, "total_steps": 5}
    extra = document["extra"]
    assert (extra["task"], extra["group"], extra["end"], extra["reward"]) == ("t", "g", "completed", 0.5)
    assert (extra["metadata"], extra["other_calls"]) == ({"seed": 1}, [])


def test_what_branches_off_is_a_trajectory_of_its_own() -> None:
    episode = conversation()
    edited = (says("user", "list the files, all of them"),)
    again = says("assistant", "All.")
    more: dict[str, Any] = {"fork_reason": "history_edited", "messages": edited, "messages_kept": 1, "reply": again}
    episode.add("c", [1, 9], [10], parent="a", **more)
    episode.add("sub", [20], [21], kind="subagent", thread="s", messages=(says("user", "look"),), reply=again)

    document = valid(episode)

    main, sub = document["subagent_trajectories"]
    assert steps(main, "is_copied_context") == [
        ("system", "be brief", True),
        ("user", "list the files, all of them", None),
        ("agent", "All.", None),
    ]
    assert main["extra"] == {"kind": "main", "thread": None, "parent_call": "a"}
    assert (main["trajectory_id"], main["steps"][2]["extra"]["fork_reason"]) == ("c", "history_edited")
    assert sub["extra"] == {"kind": "subagent", "thread": "s", "parent_call": None}
    assert steps(sub) == [("user", "look"), ("agent", "All.")]


def test_two_calls_that_go_on_from_one() -> None:
    episode = conversation()
    messages = (says("assistant", "I will."), says("user", "stop"))
    episode.add(
        "c",
        [*episode.stream("a"), 8],
        [9],
        parent="a",
        messages=messages,
        messages_kept=2,
        reply=says("assistant", "ok"),
    )
    (other,) = valid(episode)["subagent_trajectories"]
    assert steps(other, "is_copied_context") == [
        ("system", "be brief", True),
        ("user", "list the files", True),
        ("agent", "I will.", True),  # in its request; sampled in the other trajectory
        ("user", "stop", None),
        ("agent", "ok", None),
    ]


def test_observed_calls_are_put_together_by_what_they_say() -> None:
    """They name no parent, and each sends everything."""
    episode = Episode()
    reply = says("assistant", "I will.", asks_tool("call_1"))
    episode.end("a", "observed", messages=(SYSTEM, HELLO), reply=reply)
    history = (SYSTEM, HELLO, reply, says("tool", result("call_1", "x")))
    episode.end("b", "observed", messages=history, reply=says("assistant", "x."))

    document = valid(episode)

    assert "subagent_trajectories" not in document
    assert steps(document, "metrics") == [
        ("system", "be brief", None),
        ("user", "list the files", None),
        ("agent", "I will.", None),
        ("agent", "x.", None),
    ]
    assert document["steps"][2]["observation"]["results"][0]["source_call_id"] == "call_1"


def test_calls_without_a_reply_of_their_own_are_listed() -> None:
    episode = conversation()
    episode.end("no", "refused", error_code="too_long", messages=(HELLO,))
    episode.end("again", "answered", retry_of="a", messages=(HELLO,), reply=says("assistant", "I will."))
    episode.end("open", "arrived")
    assert valid(episode)["extra"]["other_calls"] == [
        {"call": "no", "status": "refused", "http_status": 400, "error_code": "too_long"},
        {"call": "again", "status": "answered", "http_status": 200, "retry_of": "a"},
        {"call": "open", "status": "arrived"},
    ]
    assert valid(Episode())["steps"] == []


def test_odd_parts_are_kept() -> None:
    episode = Episode()
    png = {"type": "image", "media_type": "image/png", "data": "aGk=", "url": None}
    linked = {"type": "image", "media_type": None, "data": None, "url": "https://a.example/b"}
    asked = says("assistant", asks_tool("toolu_a_0", "{not json"), asks_tool("toolu_a_1", "[1]"))
    episode.add("a", [1], [2], messages=(says("user", "see", png, linked),), reply=asked)
    results = (result("bash__toolu_a_1", "late", error=True), result("toolu_zz", "whose?"))
    episode.add(
        "b",
        [*episode.stream("a"), 3],
        [4],
        parent="a",
        messages=(says("tool", *results),),
        messages_kept=1,
        reply=says("assistant", "a", "b"),
    )

    shown, asking, last = valid(episode)["steps"]

    assert shown["message"] == [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"media_type": "image/png", "path": "data:image/png;base64,aGk="}},
        {"type": "text", "text": "[image https://a.example/b]"},
    ]
    assert [(call["arguments"], call["extra"]["arguments"]) for call in asking["tool_calls"]] == [
        ({}, "{not json"),
        ({}, "[1]"),
    ]
    assert asking["observation"]["results"] == [
        {"content": "late", "source_call_id": "toolu_a_1", "extra": {"is_error": True}},
        {"content": "whose?", "extra": {"tool_call_id": "toolu_zz"}},
    ]
    assert last["message"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_a_result_before_everything() -> None:
    episode = Episode()
    episode.add("a", [1], [2], messages=(says("tool", result("x", "y")),), reply=says("assistant", "z"))
    assert steps(valid(episode)) == [("system", ""), ("agent", "z")]


def test_a_parent_that_is_not_there_is_named() -> None:
    episode = conversation()
    del episode.calls[0]
    with pytest.raises(ValueError, match="call 'b': it keeps more messages of its parent 'a' than it has"):
        trajectory(INFO, episode.calls)


@st.composite
def talks(draw: st.DrawFn) -> Episode:
    """Calls that go on from any earlier one, keep any of its messages, and say anything after them."""
    episode = Episode()
    requests: dict[str, int] = {}
    for n in range(draw(st.integers(1, 10))):
        parent = draw(st.sampled_from([None, *requests])) if requests else None
        kept = 0 if parent is None else draw(st.sampled_from((0, requests[parent], requests[parent])))
        new = draw(st.lists(st.sampled_from((SYSTEM, HELLO, says("assistant", "so"), says("user", "on"))), max_size=3))
        tool = says("tool", result(draw(st.sampled_from(("t0", "t1", "x"))), "done"))
        messages = (*new, tool) if draw(st.booleans()) else tuple(new)
        reply = says("assistant", f"reply {n}", *([asks_tool(f"t{n}")] if draw(st.booleans()) else []))
        shared = 0 if parent is None else None
        prompt = [] if parent is None else episode.stream(parent)
        episode.add(
            f"c{n}",
            [*prompt, n],
            [100 + n],
            parent=parent,
            shared=shared,
            messages=messages,
            messages_kept=kept,
            reply=reply,
        )
        requests[f"c{n}"] = kept + len(messages)
    return episode


@settings(max_examples=100, deadline=None)
@given(episode=talks())
def test_every_reply_is_one_step(episode: Episode) -> None:
    document = valid(episode)
    every = [document, *document.get("subagent_trajectories", [])]
    sampled = [step for one in every for step in one["steps"] if step.get("llm_call_count") == 1]
    assert sorted(step["extra"]["call"] for step in sampled) == sorted(episode.prompts)
    assert all("metrics" in step and "is_copied_context" not in step for step in sampled)
    others = [step for one in every for step in one["steps"] if step["source"] == "agent" and step not in sampled]
    assert all(step["is_copied_context"] for step in others)
