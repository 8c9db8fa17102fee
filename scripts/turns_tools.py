"""The tools that each harness shows to its model, as calls of them. Pure.

Names and arguments are those of the tools as the harnesses offer them, at the versions of the harness table. A harness
that has no tool of a kind does the same with its shell.
"""

import json
from typing import Any

from scripts.harness_rows import Row, tool_call

Call = dict[str, Any]

HAVE_AGENTS = ("claude", "codex", "gemini", "opencode", "qwen")
"""Have a tool that starts a sub-agent."""


def shell(row: Row, command: str) -> Call:
    return tool_call(row, command)


def read(row: Row, path: str) -> Call:
    """Read a text file."""
    match row.harness:
        case "pi":
            return {"name": "read", "arguments": {"path": path}}
        case "claude":
            return {"name": "Read", "arguments": {"file_path": path}}
        case "gemini" | "qwen":
            return {"name": "read_file", "arguments": {"file_path": path}}
        case "opencode":
            return {"name": "read", "arguments": {"filePath": path}}
    return shell(row, f"cat {path}")


def see(row: Row, path: str) -> Call | None:
    """Look at an image; ``None``: the harness has nothing to do it with."""
    if row.who == "codex custom":
        return {"name": "view_image", "arguments": {"path": path}}
    if row.who == "codex builtin":
        code = f"const seen = await tools.view_image({{path: {json.dumps(path)}}}); image(seen);"
        return {"name": "functions__exec", "arguments": {"input": code}}
    return None if row.harness == "mini" else read(row, path)


def write(row: Row, path: str, text: str) -> Call:
    match row.harness:
        case "pi":
            return {"name": "write", "arguments": {"path": path, "content": text}}
        case "claude":
            return {"name": "Write", "arguments": {"file_path": path, "content": text}}
        case "gemini" | "qwen":
            return {"name": "write_file", "arguments": {"file_path": path, "content": text}}
        case "opencode" if row.variant == "responses":  # its tool for models of OpenAI
            lines = "".join(f"+{line}\n" for line in text.split("\n"))
            patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"
            return {"name": "apply_patch", "arguments": {"patchText": patch}}
        case "opencode":
            return {"name": "write", "arguments": {"filePath": path, "content": text}}
    return shell(row, f"printf '%s' '{text}' > {path}")


def search(row: Row) -> Call | None:
    """Ask for a tool that the harness keeps back; ``None``: it keeps none."""
    match row.harness:
        case "claude":
            return {"name": "ToolSearch", "arguments": {"query": "select:WebFetch"}}
        case "qwen":
            return {"name": "tool_search", "arguments": {"query": "select:web_fetch"}}
    return None


def agent(row: Row, task: str) -> Call:
    """Start a sub-agent that knows the task alone; where the harness lets us choose, wait for its end."""
    kind = {"subagent_type": "general-purpose", "run_in_background": False}
    match row.harness:
        case "claude":
            return {"name": "Agent", "arguments": {"description": "Write a file", "prompt": task, **kind}}
        case "qwen":
            return {"name": "agent", "arguments": {"description": "Write a file", "prompt": task, **kind}}
        case "codex" if row.variant in ("builtin", "chatgpt"):
            # else it is given the whole conversation so far
            fresh = {"task_name": "write_a_file", "fork_turns": "none"}
            return {"name": "collaboration__spawn_agent", "arguments": {**fresh, "message": task}}
        case "codex":
            return {"name": "multi_agent_v1__spawn_agent", "arguments": {"message": task}}
        case "gemini":
            return {"name": "invoke_agent", "arguments": {"agent_name": "generalist", "prompt": task}}
        case "opencode":
            kind = {"subagent_type": "general"}
            return {"name": "task", "arguments": {"description": "Write a file", "prompt": task, **kind}}
    raise ValueError(f"{row.harness} has no sub-agents that are known here")
