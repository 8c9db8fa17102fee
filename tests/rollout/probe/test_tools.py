"""Which tool is the shell and which starts a sub-agent, by the tools of real harnesses and of unknown ones."""

from typing import Any

import pytest

from dragoman.rollout.probe.tools import OfferedTool, find_agent, find_shell


def _tool(name: str, *required: str, says: str = "", **properties: Any) -> OfferedTool:
    kinds = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return OfferedTool(name, says, {"type": "object", "properties": kinds, "required": list(required)})


@pytest.mark.parametrize(
    "tool",
    [
        _tool("Bash", "command", command="string", timeout="number"),
        _tool("exec_command", "cmd", cmd="string", yield_time_ms="number"),
        _tool("run_shell_command", "command", command="string"),
        _tool("bash", "command", command="string"),
        _tool("executeCommand", "command", command="string"),
        _tool("terminal.run", "script", script="string"),
        _tool("shell", "command", command={"type": "array", "items": {"type": "string"}}),
        _tool("cmd", "command", command={"type": ["string", "null"]}),
    ],
    ids=lambda tool: tool.name,
)
def test_a_shell_is_found(tool: OfferedTool) -> None:
    other = _tool("read_file", "path", path="string")
    shell = find_shell([other, tool])

    assert shell is not None
    assert shell.tool is tool
    (value,) = [value for value in shell.call("ls")["arguments"].values() if value != "x"]
    assert value in ("ls", ["bash", "-c", "ls"])


@pytest.mark.parametrize(
    "tool",
    [
        _tool("write_stdin", "session", session="number", command="string"),
        _tool("kill_shell", "command", command="string"),
        _tool("bash_output", "command", command="string"),
        _tool("Monitor", "command", command="string"),
        _tool("search", "query", query="string"),
        _tool("run", "target", target="string"),
        _tool("mushroom", "command", command="string"),
    ],
    ids=lambda tool: tool.name,
)
def test_what_is_no_shell(tool: OfferedTool) -> None:
    assert find_shell([tool]) is None


def test_the_surest_name_goes_first() -> None:
    tools = [
        _tool("run", "command", command="string"),
        _tool("exec", "cmd", cmd="string"),
        _tool("Bash", command="string"),
    ]

    assert [shell.tool.name for n in (3, 2, 1) if (shell := find_shell(tools[:n]))] == ["Bash", "exec", "run"]


def test_what_else_a_call_needs_is_made_up() -> None:
    tool = _tool("bash", "command", "reason", command="string", reason="string")
    shell = find_shell([tool])
    assert shell is not None
    assert shell.call("ls") == {"name": "bash", "arguments": {"command": "ls", "reason": "x"}}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (
            _tool("Agent", "description", "prompt", description="string", prompt="string", run_in_background="boolean"),
            {"description": "write_a_file", "prompt": "do it", "run_in_background": False},
        ),
        (
            _tool("agent", "prompt", prompt="string", fork_turns={"type": "string", "description": "a number, or all"}),
            {"prompt": "do it"},
        ),
        (
            _tool("task", "prompt", "subagent_type", prompt="string", subagent_type="string",
                  says="Agents: explore, general."),
            {"prompt": "do it", "subagent_type": "general"},
        ),
        (
            _tool("invoke_agent", "agent_name", "prompt", agent_name={"type": "string", "enum": ["generalist"]},
                  prompt="string"),
            {"agent_name": "generalist", "prompt": "do it"},
        ),
        (
            _tool("collaboration__spawn_agent", "task_name", "message", task_name="string", message="string",
                  fork_turns={"type": "string", "description": "none, or all"}),
            {"task_name": "write_a_file", "message": "do it", "fork_turns": "none"},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, OfferedTool) else "",
)  # fmt: skip
def test_a_tool_that_starts_a_sub_agent(tool: OfferedTool, arguments: dict[str, Any]) -> None:
    agent = find_agent([_tool("bash", command="string"), tool])

    assert agent is not None
    assert agent.calls("do it") == [{"name": tool.name, "arguments": arguments}]


def test_where_a_tool_does_not_say_what_kinds_there_are_each_is_called() -> None:
    agent = find_agent([_tool("invoke_agent", "agent_name", "prompt", agent_name="string", prompt="string")])

    assert agent is not None
    kinds = [call["arguments"]["agent_name"] for call in agent.calls("do it")]
    assert {"generalist", "general-purpose", "general"} < set(kinds)


@pytest.mark.parametrize(
    "tool",
    [_tool("task_list", prompt="string"), _tool("close_agent", message="string"), _tool("agent", id="number")],
    ids=lambda tool: tool.name,
)
def test_what_starts_no_sub_agent(tool: OfferedTool) -> None:
    assert find_agent([tool]) is None
