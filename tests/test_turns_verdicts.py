"""Whether a longer run came out as written: each difference makes it fail."""

from dataclasses import replace
from typing import Any

import pytest

from scripts.harness_outcome import Outcome
from scripts.harness_rows import Row
from scripts.harness_verdicts import WANTED_HASH
from scripts.turns_account import Account
from scripts.turns_verdicts import by_count, turns_notes, turns_problems, turns_table

ROW = Row("claude", "", "base-url", "turns")
ACCOUNT = Account(
    calls={"main": 9},
    exact=7,
    starts=1,
    forks=("tools_changed",),
    echo_changed=7,
    traces={"main": 3},
    sampled=300,
    traced=300,
    excluded={},
    images=1,
    printed=("ran-42", "ran-43", "ran-44"),
    note=True,
    flow_calls=9,
    problems=(),
)
GOOD = Outcome(
    row=ROW.id,
    version="1",
    exit_code=0,
    run_code=0,
    end="completed",
    kept=("changes.diff", "run.json", "stderr.txt", "stdout.txt"),
    in_diff=True,
    seconds=2.0,
    calls=("answered",) * 9,
    turns=("start", *["exact"] * 7, "tools_changed"),
    steps=tuple(range(9)),
    tool_ran=True,
    file_hash=WANTED_HASH,
    hosts=(),
    escaped=(),
    names=(),
    no_route=0,
    stdout="I wrote the file.\n",
    stderr="",
    finished_at=1.0,
    account=ACCOUNT,
)


def test_a_run_that_came_out_as_written_has_no_problem() -> None:
    assert turns_problems(ROW, GOOD) == ()
    assert turns_problems(ROW, replace(GOOD, names=None)) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"exit_code": None}, "the time limit ended it"),
        ({"exit_code": 3}, "exit code 3"),
        ({"file_hash": ""}, "no file was written"),
        ({"file_hash": "0"}, "the file is not the one asked for"),
        ({"steps": (0, 1, 2, 3, 4, 6, 7, 8)}, "the model did not come to say step 5"),
        ({"calls": ("failed 502", *["answered"] * 8)}, "calls that are failed 502"),
        ({"calls": ("answered",) * 10}, "9 calls in the saved flows, 10 in the store"),
        ({"escaped": ("a.example",)}, "a connection to a.example"),
        ({"names": ("a.example",)}, "looked up past the proxy: a.example"),
        ({"no_route": 2}, "tried 2 times to send to an address outside"),
        ({"account": None}, "its calls were not counted"),
    ],
)
def test_everything_that_may_be_wrong_with_the_run_is_told(change: dict[str, Any], problem: str) -> None:
    assert turns_problems(ROW, replace(GOOD, **change)) == (problem,)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"problems": ("call 'x' is neither traced nor excluded",)}, "call 'x' is neither traced nor excluded"),
        ({"calls": {"main": 8, "side": 1}}, "calls: {'main': 8, 'side': 1}, expected {'main': 9}"),
        ({"starts": 2}, "starts: 2, expected 1"),
        ({"images": 0}, "images: 0, expected 1"),
        ({"printed": ("ran-43",)}, "ran-42, ran-44 did not reach the model"),
        ({"note": False}, "the note is not what the model wrote"),
        ({"forks": ()}, "forks: [], expected ['tools_changed']"),
        ({"traces": {"main": 1}}, "traces: {'main': 1}, expected {'main': 3}"),
    ],
)
def test_every_difference_to_what_was_written_is_told(change: dict[str, Any], problem: str) -> None:
    assert turns_problems(ROW, replace(GOOD, account=replace(ACCOUNT, **change))) == (problem,)


def test_a_line_of_the_table() -> None:
    other = replace(ROW, scenario="turns-thinking")
    head, line, broken = turns_table([ROW, other], {ROW.id: GOOD, other.id: "claude is not installed"})

    assert dict(zip(head, line, strict=True)) == {
        "harness": "claude",
        "run": "plain",
        "turns": "9 main",
        "exact": "7",
        "echoes changed": "7 of 7",
        "forks": "1 tools_changed",
        "traces": "3 main",
        "tokens = traced + excluded": "300 = 300 + 0",
        "ledger": "balances",
        "result": "as expected",
    }
    assert broken[-1] == "FAILED: claude is not installed"


def test_the_notes_say_why_there_are_forks() -> None:
    questions = [Row("pi", variant, "base-url", "turns-question") for variant in ("chat", "gemini")]
    rows = [ROW, replace(ROW, mode="proxy"), Row("pi", "chat", "base-url", "turns"), *questions]

    first, second = turns_notes(rows)

    assert first.startswith("claude, plain: After the empty reply")
    assert second.startswith("pi chat, pi gemini, question: The second question")


def test_counts_in_words() -> None:
    assert by_count({"main": 8, "side": 1}) == "8 main, 1 side"
