"""Each kind of check, on work that is good and on work that is not."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout.box import find_isolation
from dragoman.rollout.checks import CheckError, Place, run_check
from dragoman.rollout.process import Stopped
from dragoman.rollout.seen import EpisodeSeen, ReplySeen
from dragoman.rollout.tasks import (
    Check,
    CommandCheck,
    EqualCheck,
    FunctionCheck,
    JudgeCheck,
    RegexCheck,
    SchemaCheck,
    TestsCheck,
)

REPLIES = (ReplySeen("c1", "main", "first", ()), ReplySeen("c2", "main", "All is well.", (("bash", "{}"),)))
SEEN = EpisodeSeen("e1", "t", "do it", {"level": 3}, stdout="printed\nok 3\n", replies=REPLIES)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    path = os.environ.get("PATH", os.defpath)
    return Place(tmp_path / "work", (), tmp_path / "scratch", find_isolation("limits"), path=path)


def _value(check: Check, place: Place) -> float:
    return run_check(check, SEEN, place, time_limit=30).value


def test_a_file_equals(place: Place) -> None:
    check = EqualCheck(name="e", path="out.txt", content=b"7")
    assert _value(check, place) == 0.0
    (place.workspace / "out.txt").write_text("7\n")
    assert _value(check, replace(place, scratch=_new(place))) == 1.0
    assert _value(replace(check, strip=False), replace(place, scratch=_new(place))) == 0.0


def _new(place: Place) -> Path:
    number = len(list(place.scratch.parent.glob("scratch*")))
    folder = place.scratch.parent / f"scratch-{number}"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("content", "value"),
    [('{"n": 1}', 1.0), ('{"n": "1"}', 0.0), ("{}", 0.0), ("no JSON", 0.0), ("[" * 100000, 0.0), (None, 0.0)],
)
def test_a_file_fits_a_schema(place: Place, content: str | None, value: float) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    if content is not None:
        (place.workspace / "out.json").write_text(content)
    assert _value(SchemaCheck(name="s", path="out.json", schema=schema), place) == value


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"pattern": "^ok \\d$", "where": "output"}, 1.0),
        ({"pattern": "^ok \\d$", "where": "output", "absent": True}, 0.0),
        ({"pattern": "well", "where": "reply"}, 1.0),
        ({"pattern": "first", "where": "reply"}, 0.0),
        ({"pattern": "x+", "where": "file", "path": "a/b.txt"}, 1.0),
        ({"pattern": "y", "where": "file", "path": "a/b.txt", "absent": True}, 1.0),
        ({"pattern": "y", "where": "file", "path": "nowhere", "absent": True}, 0.0),
    ],
)
def test_a_pattern_is_found(place: Place, more: dict[str, Any], value: float) -> None:
    (place.workspace / "a").mkdir()
    (place.workspace / "a" / "b.txt").write_text("axxb")
    assert _value(RegexCheck(name="r", **more), place) == value


def test_a_pattern_that_takes_for_ever_is_not_found(place: Place) -> None:
    check = RegexCheck(name="r", pattern="(a+)+$", where="output", absent=True, time_limit=0.5)
    seen = replace(SEEN, stdout="a" * 50 + "b")
    assert run_check(check, seen, place, time_limit=30).value == 0.0


def test_the_fraction_of_tests(place: Place) -> None:
    test = b"import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_n(n):\n    assert n < 3\n"
    check = TestsCheck(name="t", framework="pytest", files=(("test_n.py", test),), paths=("test_n.py",))
    assert _value(check, place) == 0.0
    assert _value(replace(check, score="fraction"), replace(place, scratch=_new(place))) == 0.75


def test_every_named_file_must_have_a_test(place: Place) -> None:
    files = (("test_a.py", b"def test(): pass\n"), ("test_b.py", b"x = 1\n"))
    check = TestsCheck(name="t", framework="pytest", files=files, paths=("test_a.py", "test_b.py"))
    score = run_check(check, SEEN, place, time_limit=30)
    assert score.value == 0.0
    assert "no test could be loaded from test_b.py" in score.says


def test_commands_see_their_files_and_not_the_original(place: Place) -> None:
    (place.workspace / "answer").write_text("agent's")
    check = CommandCheck(name="c", run="test $(cat answer) = check && echo x > answer", files=(("answer", b"check"),))
    assert _value(check, place) == 1.0
    assert (place.workspace / "answer").read_text() == "agent's"


FUNCTIONS = """
import pathlib, sys
def number(episode, workspace): return 0.5
def named(episode, workspace):
    return {"reward": 1, "style": 0.25, f"turn/{episode.replies[1].call_id}": episode.metadata["level"]}
def tools(episode, workspace): return float(episode.replies[1].tool_calls == (("bash", "{}"),))
def nameless(episode, workspace): return {"style": 1}
def broken(episode, workspace): raise RuntimeError("no idea")
def wrong(episode, workspace): return float("nan")
"""


@pytest.mark.parametrize(
    ("name", "value", "extra"),
    [("number", 0.5, {}), ("named", 1.0, {"style": 0.25, "turn/c2": 3.0}), ("tools", 1.0, {})],
)
def test_functions(place: Place, name: str, value: float, extra: dict[str, float]) -> None:
    (place.scratch.parent / "judges.py").write_text(FUNCTIONS)
    score = run_check(
        FunctionCheck(name="f", function=f"judges:{name}", folder=place.scratch.parent), SEEN, place, time_limit=30
    )
    assert (score.value, score.extra) == (value, extra)


@pytest.mark.parametrize(
    ("name", "says"),
    [("nameless", "no 'reward', only style"), ("broken", "no idea"), ("wrong", "nan"), ("gone", "gone")],
)
def test_a_function_that_fails_is_no_zero(place: Place, name: str, says: str) -> None:
    (place.scratch.parent / "judges.py").write_text(FUNCTIONS)
    check = FunctionCheck(name="f", function=f"judges:{name}", folder=place.scratch.parent)
    with pytest.raises(CheckError, match=f"(?i){says}"):
        run_check(check, SEEN, place, time_limit=30)


def test_a_module_of_the_workspace_is_not_the_tasks(place: Place) -> None:
    (place.scratch.parent / "judges.py").write_text(FUNCTIONS)
    (place.workspace / "judges.py").write_text("def number(episode, workspace): return 1.0\n")
    check = FunctionCheck(name="f", function="judges:number", folder=place.scratch.parent)
    assert _value(check, place) == 0.5


def test_a_judge_that_does_not_answer_is_no_zero(place: Place) -> None:
    check = JudgeCheck(name="j", url="http://127.0.0.1:9/v1", model="m", rubric="r")
    with pytest.raises(CheckError, match=r"the judge at http://127\.0\.0\.1:9/v1 gave no answer"):
        run_check(check, SEEN, place, time_limit=5)


def test_a_stop_ends_a_check(place: Place) -> None:
    with pytest.raises(Stopped):
        run_check(CommandCheck(name="c", run="sleep 60"), SEEN, replace(place, stopped=lambda: True), time_limit=30)


def test_what_checks_see_goes_through_json() -> None:
    from dragoman.rollout.seen import from_json, to_json

    assert from_json(json.loads(json.dumps(to_json(SEEN)))) == SEEN
    assert SEEN.reply == "All is well."
    assert replace(SEEN, replies=None).reply == SEEN.stdout
