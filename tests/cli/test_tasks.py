"""``dragoman tasks``: what a person sees of a good file and of a bad one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOOD = """\
- id: one
  prompt: Do it, please.
  split: train
  time_limit: 60
  workspace: {files: {a.txt: a}}
  checks: [{kind: command, run: make}, {kind: function, function: "m:f", weight: 2}]
- {id: two, prompt: x}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.yaml"
    path.write_text(GOOD)
    return path


def test_a_good_file(run: Callable[..., Any], tasks: Path) -> None:
    result = run("tasks", "validate", str(tasks))
    assert result.code == 0
    assert result.out.splitlines() == [
        f"{tasks}: 2 tasks (no split, train)",
        "1 of them have no check, so their episodes get no reward: two",
    ]


def test_a_bad_file_is_told_with_all_lines(run: Callable[..., Any], tasks: Path) -> None:
    tasks.write_text("- {id: a, promt: x}\n- {prompt: y}\n")
    result = run("tasks", "validate", str(tasks))
    assert result.code == 1
    assert f"{tasks} has 3 mistakes:" in result.err
    assert f"{tasks}:1: task 'a': unknown field 'promt'" in result.err
    assert f"{tasks}:2: 'id' is missing" in result.err


def test_a_preview_of_all_and_of_one(run: Callable[..., Any], tasks: Path) -> None:
    result = run("tasks", "preview", str(tasks))
    assert result.code == 0
    one, two = result.out.splitlines()[1:]
    assert [word in one for word in ("one", "train", "1 files", "command, function", "60 s", "Do it")] == [True] * 6
    assert [word in two for word in ("two", "empty", "none")] == [True] * 3
    result = run("tasks", "preview", str(tasks), "--task", "one")
    assert "check      command: exit code of `make` (weight 1)" in result.out
    assert "check      function: m:f (weight 2)" in result.out
    assert result.out.endswith("\n\nDo it, please.\n")


def test_a_task_that_is_not_there(run: Callable[..., Any], tasks: Path) -> None:
    assert "has no task 'three'" in run("tasks", "preview", str(tasks), "--task", "three").err
    assert "no task has the split 'test'" in run("tasks", "preview", str(tasks), "--split", "test").err
