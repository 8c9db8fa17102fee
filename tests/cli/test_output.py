"""Progress goes to stderr and says what took how long."""

import io

import pytest
from rich.console import Console
from rich.spinner import Spinner

from dragoman.cli.output import Step, print_json, step


def test_a_step_leaves_two_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with step("boiling water") as current:
        current.note("80 °C [dim]")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("… boiling water\n✓ boiling water (")


def test_a_step_that_fails_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="burnt"), step("toasting"):
        raise ValueError("burnt")
    assert "✓" not in capsys.readouterr().err


def test_a_live_step_is_one_line_and_shows_the_note_as_it_is() -> None:
    current = Step("loading [x]")
    current.note("shard [1/2] " + "and so on " * 30)
    out = Console(width=50, file=io.StringIO())
    out.print(Spinner("dots", text=current))
    assert isinstance(out.file, io.StringIO)
    (line,) = out.file.getvalue().splitlines()
    assert line[2:].startswith("loading [x] 0 s · shard [1/2] and so on")
    assert line.endswith("…")


def test_json_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reward": 1.0, "task": "grüße"})
    assert capsys.readouterr().out == '{\n  "reward": 1.0,\n  "task": "grüße"\n}\n'
