"""The command that goes on with a session: that of the first question, and the harness's own option."""

import pytest

from scripts.harness_rows import Row
from scripts.turns_again import CAN_GO_ON, going_on


@pytest.mark.parametrize(
    ("harness", "command", "again"),
    [
        ("pi", "pi -p --model m", "pi --continue -p --model m"),
        ("claude", "claude -p", "claude --continue -p"),
        ("qwen", "qwen --yolo", "qwen --continue --yolo"),
        ("gemini", "gemini --yolo", "gemini --resume latest --yolo"),
        ("codex", "codex exec --flag -", "codex exec resume --last --flag -"),
        ("opencode", "opencode run --auto -m m", "opencode run --continue --auto -m m"),
    ],
)
def test_the_option_stands_where_the_harness_looks_for_it(harness: str, command: str, again: str) -> None:
    row = Row(harness, "", "base-url", "turns-question")

    assert harness in CAN_GO_ON
    assert " ".join(going_on(row, tuple(command.split()))) == again


def test_a_harness_without_sessions_is_refused() -> None:
    with pytest.raises(ValueError, match="mini cannot"):
        going_on(Row("mini", "", "base-url", "turns-question"), ("mini",))
