"""Which of the tools that a harness offers runs a command, and which starts a sub-agent; and calls of them. Pure.

Rules of this module: no harness is known here by its name. A tool is known by what it is called and by what its schema
asks for, so a harness that nobody has seen works as well as one of the table.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.rollout.made_up import made_up
from dragoman.store.records import JsonObject

__all__ = ["AgentTool", "OfferedTool", "ShellTool", "find_agent", "find_shell"]

# Names of tools that run a command, the surest first.
_SHELL_NAMES = (r"bash|shell", r"terminal|exec|console|command|cmd", r"run|sh")
_COMMANDS = ("command", "cmd", "commands", "script", "shell_command", "bash_command", "command_line", "commandline")
# A tool that shows or ends a command that runs already has a command's words, too.
_NOT_SHELL = re.compile(r"(?i)output|kill|stop|status|list|read|write|stdin|monitor|wait|history")
_AGENT_NAMES = re.compile(
    r"(?i)^(.*(__|[./]))?(task|agent|sub_?agent|(spawn|invoke|run|start|launch)_(sub_?)?agent|delegate)$"
)
_TASKS = ("prompt", "message", "task", "instructions", "instruction", "query", "objective")
# What kinds of a sub-agent are called where a tool asks for one without an enum.
_KINDS = ("general-purpose", "generalist", "general", "default", "worker")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments."""


@dataclass(frozen=True, slots=True)
class ShellTool:
    tool: OfferedTool
    parameter: str
    form: Literal["text", "words"]
    """Whether the command is one string, or a list of words."""

    def call(self, command: str) -> JsonObject:
        """A call of it, as a step of a script has one."""
        value: Any = command if self.form == "text" else ["bash", "-c", command]
        return {"name": self.tool.name, "arguments": made_up(self.tool.parameters, {self.parameter: value})}


@dataclass(frozen=True, slots=True)
class AgentTool:
    tool: OfferedTool
    parameter: str

    def calls(self, task: str) -> list[JsonObject]:
        """Calls of it that start one sub-agent: one; or one for each kind that there may be, where it does not say."""
        asked = _asked_kinds(self.tool)
        spoken_of = f"{self.tool.description} {self.tool.parameters}"
        kinds = [kind for kind in _KINDS if re.search(rf"\b{kind}\b", spoken_of)][:1] or list(_KINDS)
        return [self._call(task, dict.fromkeys(asked, kind)) for kind in (kinds if asked else kinds[:1])]

    def _call(self, task: str, kind: dict[str, str]) -> JsonObject:
        arguments = made_up(self.tool.parameters, {self.parameter: task, **kind}, text="write_a_file")
        for name, schema in _properties(self.tool).items():
            # else it is handed the whole conversation, or nobody waits for it
            if name == "fork_turns" and "none" in str(schema):
                arguments[name] = "none"
            if "background" in name and schema.get("type") == "boolean":
                arguments[name] = False
        return {"name": self.tool.name, "arguments": arguments}


def find_shell(tools: Sequence[OfferedTool]) -> ShellTool | None:
    """The tool that runs a command in a shell; ``None``: none is offered."""
    found: list[tuple[int, int, ShellTool]] = []
    for at, tool in enumerate(tools):
        rank = next((n for n, names in enumerate(_SHELL_NAMES) if _has_word(tool.name, names)), None)
        if rank is None or _NOT_SHELL.search(tool.name):
            continue
        if (parameter := _command_parameter(tool)) is not None:
            found.append((rank, at, ShellTool(tool, *parameter)))
    return min(found, key=lambda one: one[:2])[2] if found else None


def find_agent(tools: Sequence[OfferedTool]) -> AgentTool | None:
    """The tool that starts a sub-agent with a task in words; ``None``: none is offered."""
    for tool in tools:
        properties = _properties(tool)
        if not _AGENT_NAMES.match(tool.name):
            continue
        for name in _TASKS:
            if properties.get(name, {}).get("type") == "string":
                return AgentTool(tool, name)
    return None


def _properties(tool: OfferedTool) -> dict[str, JsonObject]:
    properties = tool.parameters.get("properties")
    found = properties.items() if isinstance(properties, dict) else ()
    return {name: schema for name, schema in found if isinstance(schema, dict)}


def _has_word(name: str, words: str) -> bool:
    """Whether one of ``words`` is a word of a name that is written like_this, likeThis or like.this."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.search(rf"(?i)(?:^|[^a-z])(?:{words})(?:$|[^a-z])", spaced) is not None


def _command_parameter(tool: OfferedTool) -> tuple[str, Literal["text", "words"]] | None:
    properties = _properties(tool)
    for name in _COMMANDS:
        schema = properties.get(name, {})
        kind = schema.get("type")
        if kind == "string" or (isinstance(kind, list) and "string" in kind):
            return name, "text"
        if kind == "array":
            return name, "words"
    return None


def _asked_kinds(tool: OfferedTool) -> list[str]:
    """The required parameters that ask for a kind of sub-agent by its name, without an enum."""
    required = tool.parameters.get("required", ())
    return [
        name
        for name, schema in _properties(tool).items()
        if name in required and "enum" not in schema and re.search(r"(?i)type|agent|kind", name)
    ]
