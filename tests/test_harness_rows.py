"""The rows and what the scripted engine says in each: a script that could not be played would fail every row."""

import subprocess
from pathlib import Path

import pytest

from dragoman.rollout.harnesses import HARNESSES
from dragoman.rollout.script import Script, Step, read_script
from scripts.harness_rows import (
    COMMAND,
    CONTENT,
    DEFECTS,
    FILE,
    RAN,
    Row,
    defect_rows,
    defect_steps,
    matrix_rows,
    script,
)

ROWS = [*matrix_rows(), *defect_rows()]


def _steps(row: Row) -> Script:
    return read_script(script(row))


def _chosen(steps: Script, prompt: str) -> Step:
    number = steps.choose(prompt)
    assert number is not None
    return steps.steps[number]


def test_every_harness_and_variant_is_there_in_both_modes() -> None:
    rows = list(matrix_rows())

    assert len({row.id for row in ROWS}) == len(ROWS)
    assert len(rows) == 2 * sum(len(harness.variants) or 1 for harness in HARNESSES)
    assert {row.scenario for row in rows} == {"works"}
    assert {row.scenario for row in defect_rows() if row.harness == "claude"} == set(DEFECTS)


@pytest.mark.parametrize("row", [row for row in ROWS if row.harness != "aider"], ids=lambda row: row.id)
def test_the_script_calls_the_tool_until_it_has_run(row: Row) -> None:
    steps = _steps(row)
    names = {call["name"] for step in steps.steps for call in step.tool_calls} - {"no_such_tool"}
    assert len(names) == 1
    offered = f'{{"name": "{names.pop()}", "parameters": {{}}}}'

    if row.scenario != "works":
        defect = _chosen(steps, offered)
        if row.scenario == "empty":
            return
        assert defect != _chosen(steps, offered)
    good = _chosen(steps, offered)
    assert CONTENT.strip() in str(good.tool_calls)
    assert _chosen(steps, offered + RAN).text == "I wrote the file."
    # A title, or what Gemini's router asks.
    assert _chosen(steps, "no tools here").tool_calls == ()


@pytest.mark.parametrize(("prompt", "holds"), [("x SEARCH/REPLACE x", "<<<<<<< SEARCH"), ("x", FILE + "\n```")])
def test_aider_gets_an_edit_in_the_form_that_it_asks_for(prompt: str, holds: str) -> None:
    steps = _steps(Row("aider", "", "proxy", "works"))

    assert holds in _chosen(steps, prompt).text
    assert _chosen(steps, prompt + "commit message").text == "feat: add the file"


def test_the_steps_that_are_the_defect() -> None:
    assert defect_steps(Row("claude", "", "proxy", "works")) == set()
    assert defect_steps(Row("claude", "", "base-url", "held")) == {1}
    assert defect_steps(Row("aider", "", "base-url", "cut-text")) == {1, 3}


def test_the_command_shows_that_it_ran(tmp_path: Path) -> None:
    done = subprocess.run(["bash", "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout == RAN
    assert (tmp_path / FILE).read_text() == CONTENT
    assert RAN not in COMMAND


def test_an_unknown_scenario_is_told() -> None:
    with pytest.raises(ValueError, match="no scenario 'x'; there are: works, broken-json"):
        script(Row("pi", "chat", "proxy", "x"))
