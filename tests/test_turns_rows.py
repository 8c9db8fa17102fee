"""The longer runs: what the model says can be played, in order, to the agent that it is meant for."""

import io
import json
import struct
import zlib
from collections import Counter

import pytest

from dragoman.rollout.harnesses import HARNESSES
from dragoman.rollout.script import Script, read_script
from scripts.harness_rows import Row, defect_rows, matrix_rows, tool_call
from scripts.turns_again import CAN_GO_ON
from scripts.turns_rows import MARK, SUB_TASK, THINKING, marks, once_steps, png, turns_rows, turns_script
from scripts.turns_tools import HAVE_AGENTS

ROWS = list(turns_rows())


def _play(script: Script, prompts: list[str]) -> list[int | None]:
    return [script.choose(prompt) for prompt in prompts]


def test_every_harness_is_there_in_every_run_that_it_can_make() -> None:
    counts = Counter(row.scenario for row in ROWS)
    variants = {(row.harness, row.variant) for row in ROWS}

    assert variants >= {(harness.name, next(iter(harness.variants), "")) for harness in HARNESSES}
    assert counts["turns"] == 2 * counts["turns-thinking"] == 2 * len(variants)
    assert counts["turns-agent"] == sum(harness in HAVE_AGENTS for harness, _ in variants)
    assert counts["turns-question"] == sum(harness in CAN_GO_ON for harness, _ in variants)
    every = [*ROWS, *matrix_rows(), *defect_rows()]
    assert len({row.id for row in every}) == len(every)
    assert {row.scenario for row in ROWS if row.mode == "proxy"} == {"turns"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_main_agent_is_told_every_step_in_order(row: Row) -> None:
    script = read_script(turns_script(row))
    offered = json.dumps({"name": _shell_tool(row), "description": ""})
    sub = [step.unless is not None for step in script.steps].count(True)
    once = sorted(once_steps(row))

    assert len(once) - sub >= (4 if row.harness == "aider" or row.scenario == "turns-agent" else 6)
    assert _play(script, [MARK + offered] * (len(once) - sub)) == once[sub:]


@pytest.mark.parametrize("row", [row for row in ROWS if row.scenario == "turns-agent"], ids=lambda row: row.id)
def test_the_sub_agent_has_steps_of_its_own(row: Row) -> None:
    script = read_script(turns_script(row))
    offered = json.dumps({"name": _shell_tool(row), "description": ""})

    # in whatever order the two come
    assert _play(script, [MARK + offered, SUB_TASK + offered, MARK + SUB_TASK + offered, SUB_TASK + offered]) == [
        *(3, 0, 4, 1)
    ]


@pytest.mark.parametrize("row", [row for row in ROWS if row.harness != "aider"], ids=lambda row: row.id)
def test_what_is_asked_beside_uses_up_no_step(row: Row) -> None:
    script = read_script(turns_script(row))

    number = script.choose(MARK + "a title, please, for " + json.dumps({"name": _shell_tool(row), "arguments": {}}))

    assert number is not None
    assert number not in once_steps(row)
    if row.harness == "gemini":
        assert json.loads(script.steps[number].text)


def test_reasoning_is_only_in_the_runs_with_thinking() -> None:
    for row in ROWS:
        thinks = [bool(step.get("reasoning")) for step in turns_script(row)]
        assert any(thinks) == (row.scenario in THINKING)


def test_what_the_tools_print_if_they_run() -> None:
    assert marks(Row("claude", "", "base-url", "turns")) == {"ran-42", "ran-43", "ran-44"}
    assert marks(Row("aider", "", "base-url", "turns")) == set()


def test_the_image_is_a_png() -> None:
    file = io.BytesIO(png())
    assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    while head := file.read(8):
        size, name = struct.unpack(">I4s", head)
        data = file.read(size)
        assert struct.unpack(">I", file.read(4)) == (zlib.crc32(name + data),)
        chunks[name] = data
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert len(zlib.decompress(chunks[b"IDAT"])) == 8 * (1 + 8 * 3)


def _shell_tool(row: Row) -> str:
    return "none" if row.harness == "aider" else str(tool_call(row, "")["name"])
