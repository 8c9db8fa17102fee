"""What is wrong with the tool calls of single replies."""

import json
from typing import Any

import pytest

from dragoman.monitor.tool_errors import ToolErrors, find_errors, tool_names

OFFERED = frozenset({"bash", "edit"})


def reply(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"role": "assistant", "parts": parts}).encode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": "c1_0", "name": name, "arguments": arguments}


def test_good_calls() -> None:
    found = find_errors(reply(text("Two:"), call("bash", '{"cmd": "ls"}'), call("edit", "{}")), OFFERED)

    assert found == ToolErrors(calls=2)
    assert found.errors == 0


@pytest.mark.parametrize("arguments", ['{"cmd": "ls', "[1]", '"ls"', "", "null", "ls -l"])
def test_malformed(arguments: str) -> None:
    assert find_errors(reply(call("bash", arguments)), OFFERED) == ToolErrors(calls=1, malformed=1)


def test_unknown_counts_once_though_it_is_malformed_too() -> None:
    assert find_errors(reply(call("Bash", "{"), call("rm", "{}")), OFFERED) == ToolErrors(calls=2, unknown=2)
    assert find_errors(reply(call("bash", "{}")), frozenset()) == ToolErrors(calls=1, unknown=1)


@pytest.mark.parametrize(
    "words",
    [
        '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>',
        '```json\n{"name": "bash", "parameters": {"cmd": "ls"}}\n```',
        "<function=bash><parameter=cmd>ls</parameter></function>",
        '[TOOL_CALLS][{"name": "bash"}]',
        '{"nme": "bash", "arguments": {"cmd": "ls"}}',
        '<invoke name="bash">',
    ],
)
def test_missing(words: str) -> None:
    assert find_errors(reply(text(words)), OFFERED) == ToolErrors(missing=1)
    assert find_errors(reply(text(words)), frozenset()) == ToolErrors()
    assert find_errors(reply(text(words), call("bash", "{}")), OFFERED) == ToolErrors(calls=1)


@pytest.mark.parametrize("words", ["I listed the files.", 'The config is {"name": "x", "version": 1}.', "a tool call"])
def test_plain_answers(words: str) -> None:
    assert find_errors(reply(text(words)), OFFERED) == ToolErrors()


def test_reasoning_is_no_call() -> None:
    thought = {"type": "reasoning", "text": "<tool_call>?", "signature": None}

    assert find_errors(reply(thought, text("Done.")), OFFERED) == ToolErrors()


def test_sums() -> None:
    both = ToolErrors(1, 2, 3, 4, 5) + ToolErrors(10, 20, 30, 40, 50)

    assert both == ToolErrors(11, 22, 33, 44, 55)
    assert both.errors == 154


@pytest.mark.parametrize("data", [b"{}", b"[]", b"3", b"no json", b'{"parts": [{}]}'])
def test_no_reply(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"reply|Expecting"):
        find_errors(data, OFFERED)


def test_tool_names() -> None:
    assert tool_names(b'[{"name": "bash", "description": ""}, {"name": "edit"}]') == OFFERED
    with pytest.raises(ValueError, match="no stored tool list"):
        tool_names(b'[{"title": "bash"}]')
