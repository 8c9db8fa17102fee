"""Which rows the real harnesses are run in, and what the scripted engine says in each. Pure.

A row is a harness in one of its variants and modes, in one scenario. In ``works`` the model calls the harness's own
shell tool and then says that it is done; every other scenario begins with one defect, and goes on in that way as soon
as the harness asks again. Whether the tool really ran shows in the prompt: its output holds ``RAN``, which is nowhere
in the command.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dragoman.rollout.defects import defect, slow
from dragoman.rollout.harnesses import HARNESSES
from dragoman.rollout.setups import Mode

FILE, CONTENT = "out.txt", "hello from the tool\n"
# No $(…) in it: Gemini CLI refuses to run such a command.
COMMAND = "printf 'hello from the tool\\n' > out.txt && printf 'ran-%s' 42"
RAN = "ran-42"
PROMPT = "Create a file out.txt that says hello, with your shell tool. Then say in one sentence what you did."
DONE = "I wrote the file."

SLOW, HELD = 60.0, 20.0
"""Seconds without a token: of a slow engine, and of a weight update."""

DEFECTS: dict[str, str] = {
    "broken-json": "a tool call whose arguments are not JSON",
    "wrong-args": "a tool call with arguments that the tool does not have",
    "unknown-tool": "a call of a tool that there is not",
    "empty-once": "one reply without a token but the end",
    "empty": "only such replies",
    "cut-text": "a text that the length limit cuts",
    "cut-call": "a tool call that the length limit cuts",
    "engine-failure": "an error inside the stream, after three tokens",
    "slow": f"{SLOW:.0f} s until the first token",
    "held": f"{HELD:.0f} s until the first token, as in a weight update",
}
SAME_PROGRAM = ("chatgpt",)
"""Variants that differ from another one by how they log in only: what they make of a reply is the same."""
NEED_TOOLS = ("broken-json", "wrong-args", "unknown-tool", "cut-call")

Step = dict[str, Any]


@dataclass(frozen=True)
class Row:
    harness: str
    variant: str
    """Empty where the harness has none."""
    mode: Mode
    scenario: str
    """``works``, one of ``DEFECTS``, or one of ``turns_rows.SCENARIOS``."""

    @property
    def id(self) -> str:
        return "-".join(part for part in (self.harness, self.variant, self.mode, self.scenario) if part)

    @property
    def who(self) -> str:
        return f"{self.harness} {self.variant}".strip()

    @property
    def time_limit(self) -> float:
        """Seconds that the harness gets."""
        return 240.0 if self.scenario == "slow" else 120.0


def matrix_rows() -> Iterator[Row]:
    """Every harness and variant in both modes."""
    modes: tuple[Mode, ...] = ("base-url", "proxy")
    for harness in HARNESSES:
        for variant in harness.variants or ("",):
            for mode in modes:
                yield Row(harness.name, variant, mode, "works")


def defect_rows() -> Iterator[Row]:
    """Every harness and variant, by base URL, in every scenario that it can meet."""
    for harness in HARNESSES:
        for variant in harness.variants or ("",):
            if variant in SAME_PROGRAM:
                continue
            for scenario in DEFECTS:
                if harness.name != "aider" or scenario not in NEED_TOOLS:
                    yield Row(harness.name, variant, "base-url", scenario)


def tool_call(row: Row, command: str) -> dict[str, Any]:
    """The model's call of the harness's own shell tool."""
    if row.harness == "codex" and _is_code_mode(row):
        code = f"const result = await tools.exec_command({{cmd: {json.dumps(command)}}}); text(JSON.stringify(result));"
        return {"name": "functions__exec", "arguments": {"input": code}}
    match row.harness:
        case "claude":
            return {"name": "Bash", "arguments": {"command": command, "description": "Write the file"}}
        case "codex":
            return {"name": "exec_command", "arguments": {"cmd": command}}
        case "gemini" | "qwen":
            return {"name": "run_shell_command", "arguments": {"command": command}}
        case "opencode" | "pi" | "mini":
            return {"name": "bash", "arguments": {"command": command}}
    raise ValueError(f"{row.harness} has no shell tool that is known here")


def script(row: Row) -> list[Step]:
    """The scripted engine's steps for a row."""
    if row.harness == "aider":
        return _edit_script(row)
    call = tool_call(row, COMMAND)
    tools = f'"name": "{call["name"]}"'
    if row.harness == "mini":
        last: Step = {"text": DONE, "tool_calls": [tool_call(row, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]}
    else:
        last = {"text": DONE}
    good: Step = {"text": "I will write the file.", "tool_calls": [call]}
    # Requests without tools: a title, or Gemini's router, which wants JSON.
    beside = '{"complexity_reasoning": "one file", "complexity_score": 1}' if row.harness == "gemini" else "A title"
    return [
        {"match": RAN, **last, "repeat": True},
        *({"match": tools, **step} for step in _defect(row.scenario, good)),
        {"match": tools, **good, "repeat": True},
        {"text": beside, "repeat": True},
    ]


def defect_steps(row: Row) -> set[int]:
    """Which steps of the row's script are its defect, by number; empty for ``works``."""
    good = script(replace(row, scenario="works"))
    return {number for number, step in enumerate(script(row)) if step not in good}


def _is_code_mode(row: Row) -> bool:
    """OpenAI's default model has one freeform tool that runs JavaScript; one that Codex does not know has functions."""
    return row.variant in ("builtin", "chatgpt")


def _defect(scenario: str, good: Step) -> list[Step]:
    """The reply before the good ones, if the scenario has one."""
    match scenario:
        case "works":
            return []
        case "empty":
            return [{"raw": "", "repeat": True}]
        case "slow":
            return [slow(good, SLOW)]
        case "held":
            return [{**good, "hold": "first"}]
    step = defect({"empty-once": "empty", "engine-failure": "stream-failure"}.get(scenario, scenario), good)
    if step is None:
        raise ValueError(f"there is no scenario {scenario!r}; there are: works, {', '.join(DEFECTS)}")
    return [step]


def _edit_script(row: Row) -> list[Step]:
    """aider has no tools: it applies the edits that a reply holds, then asks for a commit message."""
    whole: Step = {"text": f"I will write the file.\n\n{FILE}\n```\n{CONTENT}```\n"}
    block = f"{FILE}\n```\n<<<<<<< SEARCH\n=======\n{CONTENT}>>>>>>> REPLACE\n```\n"
    commit, blocks = "commit message", "SEARCH/REPLACE"
    good: Step = {"text": f"I will write the file.\n\n{block}"}
    spoilt = _defect(row.scenario, good)
    return [
        {"match": commit, "text": "feat: add the file", "repeat": True},
        *({"match": blocks, **step} for step in spoilt),
        {"match": blocks, **good, "repeat": True},
        *({"unless": blocks, **step} for step in _defect(row.scenario, whole)),
        {**whole, "repeat": True},
    ]
