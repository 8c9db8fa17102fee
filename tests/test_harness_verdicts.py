"""Whether a row went as well as it can: each thing that may be wrong makes it fail."""

from dataclasses import replace
from typing import Any

import pytest

from scripts.harness_outcome import Outcome
from scripts.harness_rows import Row
from scripts.harness_verdicts import WANTED_HASH, describe, ending, expected, problems

GOOD = Outcome(
    row="claude-proxy-works",
    version="1",
    exit_code=0,
    seconds=2.0,
    calls=("answered", "answered"),
    turns=("start", "exact"),
    steps=(1, 0),
    tool_ran=True,
    file_hash=WANTED_HASH,
    hosts=("github.com 404",),
    escaped=(),
    names=(),
    stdout="I wrote the file.\n",
    stderr="",
    finished_at=1.0,
)
WORKS = Row("claude", "", "proxy", "works")


def test_a_good_row_has_no_problem() -> None:
    assert problems(WORKS, GOOD) == ()
    assert problems(WORKS, replace(GOOD, names=None)) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": None}, "stopped after 120 s"),
        ({"stdout": " \n"}, "it printed nothing"),
        ({"file_hash": ""}, "no file was written"),
        ({"file_hash": "0" * 12}, "the file is not the one asked for"),
        ({"tool_ran": False}, "the tool's output did not reach the model"),
        ({"calls": ("answered", "failed 529")}, "calls that are failed 529"),
        ({"calls": ("answered", "refused 400", "refused 400")}, "calls that are refused 400"),
        ({"calls": ("answered", "open")}, "calls that are open"),
        ({"turns": ("start", "template", "history_edited")}, "turns that are history_edited, template"),
        ({"escaped": ("example.com",)}, "a connection to example.com"),
        ({"names": ("example.com",)}, "looked up past the proxy: example.com"),
    ],
)
def test_everything_that_may_be_wrong_is_told(change: dict[str, Any], problem: str) -> None:
    assert problems(WORKS, replace(GOOD, **change)) == (problem,)


def test_aider_begins_with_replies_that_nobody_sampled() -> None:
    turns = replace(GOOD, turns=("unknown_parent", "start"), tool_ran=False)

    assert problems(Row("aider", "", "proxy", "works"), turns) == ()
    assert "turns that are unknown_parent" in problems(WORKS, turns)


def test_pi_may_ask_for_a_thread_once() -> None:
    row = Row("pi", "anthropic", "proxy", "works")
    once = replace(GOOD, calls=("refused 400", "answered", "answered"))
    twice = replace(GOOD, calls=("refused 400", "refused 400", "answered"))

    assert problems(row, once) == ()
    assert problems(row, twice) == ("calls that are refused 400",)
    assert problems(replace(row, mode="base-url"), once) == ("calls that are refused 400",)


NO_FILE = replace(GOOD, file_hash="", tool_ran=False)


@pytest.mark.parametrize(
    ("harness", "scenario", "outcome", "good"),
    [
        ("claude", "broken-json", GOOD, True),
        ("claude", "broken-json", NO_FILE, False),
        ("codex", "cut-text", NO_FILE, True),
        ("codex", "cut-text", GOOD, True),  # better than expected
        ("codex", "cut-text", replace(NO_FILE, exit_code=1), False),
        ("claude", "cut-text", NO_FILE, False),
        ("qwen", "empty", replace(NO_FILE, exit_code=1), False),
        ("qwen", "empty-once", NO_FILE, True),
        ("claude", "empty", replace(NO_FILE, exit_code=1), False),
        ("claude", "empty", NO_FILE, True),
        ("claude", "engine-failure", replace(GOOD, calls=("failed 529", "answered", "answered")), True),
        ("claude", "slow", replace(GOOD, calls=("aborted 499", "answered")), False),
        ("claude", "engine-failure", replace(NO_FILE, exit_code=None), False),
    ],
)
def test_a_defect_is_met_as_well_as_the_harness_can(harness: str, scenario: str, outcome: Outcome, good: bool) -> None:
    assert (problems(Row(harness, "", "base-url", scenario), outcome) == ()) is good


def test_a_defect_that_was_not_played_proves_nothing() -> None:
    row = Row("claude", "", "base-url", "broken-json")

    assert problems(row, replace(GOOD, steps=(2, 0))) == ("the defect was not played",)
    assert problems(row, replace(GOOD, steps=(1, 2, 0))) == ()


def test_the_words_for_an_ending() -> None:
    row = Row("codex", "custom", "base-url", "cut-text")

    assert ending(row, GOOD) == "recovers, 2"
    assert ending(row, NO_FILE) == "ends, 2"
    assert ending(row, replace(GOOD, exit_code=1, calls=("answered", "failed 503"))) == "fails (1), 1 + 1 failed 503"
    assert ending(row, replace(GOOD, exit_code=None)) == "fails (killed), 2"
    assert expected(row) == "ends"


def test_calls_are_counted_by_kind() -> None:
    assert describe(()) == "0"
    assert describe(("answered", "refused 400", "answered", "failed 503", "failed 503")) == (
        "2 + 2 failed 503 + 1 refused 400"
    )
