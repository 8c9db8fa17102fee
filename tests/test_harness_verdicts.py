"""Whether a row went as well as it can: each thing that may be wrong makes it fail."""

from dataclasses import replace
from typing import Any

import pytest

from scripts.harness_outcome import Outcome
from scripts.harness_rows import Row
from scripts.harness_verdicts import KEPT, WANTED_HASH, describe, ending, expected, problems

GOOD = Outcome(
    row="claude-proxy-works",
    version="1",
    exit_code=0,
    run_code=0,
    end="completed",
    kept=KEPT,
    in_diff=True,
    seconds=2.0,
    calls=("answered", "answered"),
    turns=("start", "exact"),
    steps=(1, 0),
    tool_ran=True,
    file_hash=WANTED_HASH,
    hosts=("github.com 404",),
    escaped=(),
    names=(),
    no_route=0,
    stdout="I wrote the file.\n",
    stderr="",
    finished_at=1.0,
)
WORKS = Row("claude", "", "proxy", "works")


def test_a_good_row_has_no_problem() -> None:
    assert problems(WORKS, GOOD) == ()
    assert problems(WORKS, replace(GOOD, names=None, no_route=None)) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"exit_code": 3, "run_code": 3, "end": "failed"}, "exit code 3"),
        ({"exit_code": None, "run_code": 124, "end": "timed_out"}, "stopped after 120 s"),
        ({"run_code": 1}, "dragoman run ended with 1"),
        ({"end": "open"}, "the episode ended as open"),
        ({"end": "failed"}, "the episode ended as failed"),
        ({"kept": ("run.json",)}, "kept with it are only run.json"),
        ({"kept": ()}, "kept with it are only no artefacts"),
        ({"in_diff": False}, "the diff does not show the file"),
        ({"stdout": " \n"}, "it printed nothing"),
        ({"file_hash": "", "in_diff": False}, "no file was written"),
        ({"file_hash": "0" * 12}, "the file is not the one asked for"),
        ({"tool_ran": False}, "the tool's output did not reach the model"),
        ({"calls": ("answered", "failed 529")}, "calls that are failed 529"),
        ({"calls": ("answered", "refused 400", "refused 400")}, "calls that are refused 400"),
        ({"calls": ("answered", "open")}, "calls that are open"),
        ({"turns": ("start", "template", "history_edited")}, "turns that are history_edited, template"),
        ({"escaped": ("example.com",)}, "a connection to example.com"),
        ({"names": ("example.com",)}, "looked up past the proxy: example.com"),
        ({"no_route": 2}, "tried 2 times to send to an address outside"),
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


NO_FILE = replace(GOOD, file_hash="", in_diff=False, tool_ran=False)
WITH_1 = replace(NO_FILE, exit_code=1, run_code=1, end="failed")


@pytest.mark.parametrize(
    ("harness", "scenario", "outcome", "good"),
    [
        ("claude", "broken-json", GOOD, True),
        ("claude", "broken-json", NO_FILE, False),
        ("codex", "cut-text", NO_FILE, True),
        ("codex", "cut-text", GOOD, True),  # better than expected
        ("codex", "cut-text", WITH_1, False),
        ("claude", "cut-text", NO_FILE, False),
        ("qwen", "empty", WITH_1, False),
        ("qwen", "empty-once", NO_FILE, True),
        ("claude", "empty", WITH_1, False),
        ("claude", "empty", NO_FILE, True),
        ("claude", "empty", replace(NO_FILE, end="failed"), True),
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
