"""What the table of Codex's sessions says is wrong with a row."""

from copy import deepcopy
from typing import Any

import pytest

from scripts.e2e_codex import MARKS, ROWS, line, problems

SESSION = ("builtin", "proxy", "websocket")
GOOD: dict[str, Any] = {
    "exit_codes": [0, 0],
    "calls": ["warm_up main answered", *["main main answered"] * 10, "compaction main answered"],
    "turns": ["start"] * 3 + ["exact"] * 11,
    "traces": ["main main 5", "subagent sub 3", "main main 5"],
    "problems": [],
    "sockets": 3,
    "asked": 14,
    "ran": MARKS,
    "prompts": ["a", "b"],
    "escaped": False,
}


def test_there_is_a_session_over_http_after_each_over_websockets() -> None:
    sessions = [row for row in ROWS if row[2] in ("websocket", "http")]
    assert [row[:2] for row in sessions[::2]] == [row[:2] for row in sessions[1::2]]
    assert {row[2] for row in sessions[::2]} == {"websocket"}


def test_a_good_row() -> None:
    assert problems(SESSION, GOOD, None) == []
    assert line(SESSION, GOOD, [])[3:] == ["12", "3", "11 of 11", "3", "ok"]
    assert problems(("builtin", "proxy", "http"), GOOD | {"sockets": 0}, GOOD) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exit_codes": [0, None]}, "exit codes"),
        ({"escaped": True}, "past the proxy"),
        ({"sockets": 0}, "0 WebSockets"),
        ({"asked": 15}, "asked is 15"),
        ({"traces": ["main main 5"]}, "traces is"),
        ({"ran": []}, "ran is"),
        ({"turns": ["start"] * 3 + ["history_edited"]}, "history_edited"),
        ({"turns": ["start"] * 4}, "4 turns without a parent"),
        ({"calls": ["main main answered"]}, "not one compaction"),
        ({"calls": ["compaction main answered", "main main failed"]}, "main main failed"),
        ({"problems": ["call x is lost"]}, "call x is lost"),
    ],
)
def test_whatever_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    found = problems(SESSION, deepcopy(GOOD) | change, None)
    assert [text for text in found if said in text]
    assert line(SESSION, GOOD | change, found)[-1].startswith("FAILED: ")


def test_what_the_model_was_shown_must_be_the_same_by_both_transports() -> None:
    (found,) = problems(("builtin", "proxy", "http"), GOOD | {"sockets": 0, "prompts": ["a", "c"]}, GOOD)
    assert found.endswith("something else at steps 1")


def test_a_disturbed_session_samples_each_turn_once() -> None:
    cut = GOOD | {"asked": 2, "turns": ["start", "exact"], "traces": ["main main 2"], "ran": ["ran-51"]}
    cut["calls"] = ["warm_up main answered", "main main answered", "main main answered", "main main retry"]
    assert problems(("builtin", "base-url", "cut"), cut, None) == []
    assert problems(("builtin", "base-url", "cut"), cut | {"asked": 3}, None) == ["asked is 3, not 2"]


def test_a_row_without_an_outcome_failed() -> None:
    assert line(SESSION, "no log", ["no log"])[-1] == "FAILED: no log"
