from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout.script import load_script, read_script


def test_steps_are_taken_in_order_and_used_up() -> None:
    script = read_script([{"text": "a"}, {"text": "b"}])
    assert [script.choose("x") for _ in range(3)] == [0, 1, None]


def test_a_step_can_repeat_and_wait_for_its_prompt() -> None:
    script = read_script([{"match": "result", "text": "done", "repeat": True}, {"text": "call", "repeat": True}])
    assert [script.choose(prompt) for prompt in ("ask", "ask result", "ask", "result")] == [1, 0, 1, 0]


def test_a_step_can_refuse_a_prompt() -> None:
    script = read_script({"steps": [{"unless": "title", "text": "a", "repeat": True}, {"text": "t"}]})
    assert [script.choose(prompt) for prompt in ("title", "ask", "title")] == [1, 0, None]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "list of steps"),
        ({}, "list of steps"),
        ([{"txt": "a"}], r"step 0: \['txt'\]"),
        ([{}, "a"], "step 1: 'a'"),
        ([{"tool_calls": [{"name": "f"}]}], r"step 0: .*\['name'\]"),
        ([{"hold": "middle"}], "'middle'"),
        ([{"flaw": "wrong"}], "'wrong'"),
    ],
)
def test_a_wrong_script_is_refused_by_name(value: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_script(value)


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('[{"tool_calls": [{"name": "f", "arguments": {}}], "ids": [1, 2]}]')
    (step,) = load_script(path).steps
    assert step.ids == (1, 2)
    assert step.tool_calls == ({"name": "f", "arguments": {}},)
