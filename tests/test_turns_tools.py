"""The calls of each harness's own tools."""

import pytest

from scripts import turns_tools as tools
from scripts.harness_rows import Row
from scripts.turns_rows import turns_rows

ROWS = [row for row in turns_rows() if row.harness != "aider"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_call_has_a_name_and_arguments(row: Row) -> None:
    calls = [tools.shell(row, "ls"), tools.read(row, "a.txt"), tools.see(row, "a.png"), tools.write(row, "a", "b")]
    calls += [tools.search(row), tools.agent(row, "do it") if row.harness in tools.HAVE_AGENTS else None]

    for call in calls:
        assert call is None or (set(call) == {"name", "arguments"} and isinstance(call["arguments"], dict))


def test_what_a_harness_has_no_tool_for_is_done_with_its_shell() -> None:
    mini = Row("mini", "", "base-url", "turns")

    assert tools.read(mini, "a.txt") == {"name": "bash", "arguments": {"command": "cat a.txt"}}
    assert tools.write(mini, "a.txt", "x") == {"name": "bash", "arguments": {"command": "printf '%s' 'x' > a.txt"}}
    assert tools.see(mini, "a.png") is None
    assert tools.search(mini) is None


def test_codex_shows_an_image_by_its_own_ways() -> None:
    custom, builtin = (Row("codex", variant, "base-url", "turns") for variant in ("custom", "builtin"))

    assert tools.see(custom, "a.png") == {"name": "view_image", "arguments": {"path": "a.png"}}
    assert tools.see(builtin, "a.png") == {
        "name": "functions__exec",
        "arguments": {"input": 'const seen = await tools.view_image({path: "a.png"}); image(seen);'},
    }


def test_a_patch_adds_the_file() -> None:
    call = tools.write(Row("opencode", "responses", "base-url", "turns"), "/there/a", "one\n\ttwo")

    assert call["arguments"]["patchText"] == "*** Begin Patch\n*** Add File: /there/a\n+one\n+\ttwo\n*** End Patch\n"
