"""Each defect is a step that the scripted engine takes, and spoils what the good reply has."""

import json

import pytest

from dragoman.rollout.defects import defect, slow
from dragoman.rollout.script import read_script
from dragoman.store.records import JsonObject

GOOD: JsonObject = {"text": "So.", "tool_calls": [{"name": "bash", "arguments": {"command": "printf hello > a.txt"}}]}
KINDS = ("broken-json", "wrong-args", "unknown-tool", "empty", "cut-text", "cut-call", "stream-failure")


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_a_step_of_a_script(kind: str) -> None:
    read_script([defect(kind, GOOD)])  # it raises for what is none


def test_what_is_none_is_none() -> None:
    assert defect("error-500", GOOD) is None


def test_the_calls_are_the_good_ones_spoilt() -> None:
    broken, cut = defect("broken-json", GOOD), defect("cut-call", GOOD)
    assert broken is not None
    assert cut is not None
    assert '"name": "bash"' in broken["raw"]
    with pytest.raises(ValueError, match="double quotes"):
        json.loads(broken["raw"].split("\n")[1])
    assert cut["raw"].endswith('{"command": "printf hello')
    assert cut["end"] is False


def test_a_slow_reply_is_the_good_one() -> None:
    assert slow(GOOD, 20.0) == {**GOOD, "delay": 20.0, "chunk": 10_000}
