"""``dragoman episodes``: what it lists, for people and for programs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.cli.episodes import age


def test_the_table_has_what_matters(run: Callable[..., Any], filled_store: str) -> None:
    result = run("episodes")
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["id", "task", "group", "harness", "calls", "tokens", "in", "out", "end", "reward", "age"]
    by_id = {line[0]: line[1:] for line in lines[1:]}
    assert by_id["abcdefgh1234"][:8] == ["ls-task", "g1", "pi", "4", "6", "4", "completed", "0.75"]
    assert by_id["abzzzzzzzzzz"][:8] == ["-", "-", "-", "0", "0", "0", "open", "-"]
    assert filled_store in result.err


def test_json_task_and_limit(run: Callable[..., Any], filled_store: str) -> None:
    (entry,) = json.loads(run("episodes", "--json", "--task", "ls-task").out)
    assert entry == {
        "id": "abcdefgh1234",
        "task": "ls-task",
        "group": "g1",
        "harness": "pi",
        "calls": 4,
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "profile": "train",
        "temperature": 1.0,
        "end": "completed",
        "end_reason": "all done",
        "reward": 0.75,
        "opened_at": 999.0,
        "ended_at": 1010.0,
    }
    assert len(json.loads(run("episodes", "--json", "--limit", "1").out)) == 1
    assert len(json.loads(run("episodes", "--json", "--store", filled_store).out)) == 2
    nothing = run("episodes", "--task", "other")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no episodes of task 'other'" in nothing.err


def test_no_store_yet(run: Callable[..., Any]) -> None:
    result = run("episodes")
    assert result.code == 1
    assert "there is no database at" in result.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1.0, "0 s"), (59.0, "59 s"), (60.0, "1 min"), (7300.0, "2 h"), (200000.0, "2 d")]
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text
