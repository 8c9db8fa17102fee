"""The rows of several turns, and what the scripted engine says in each. Pure.

``turns``: one agent works through a task of at least six turns (text, tools, two calls in one reply, an image, a search
for tools where there is one, and an empty reply where the harness answers one with a reminder), with a chat template
that shows a conversation always alike; by base URL and by proxy, where a harness may know its model better and show it
more. ``turns-thinking``: the same with reasoning, and Qwen3's template, which drops earlier reasoning as soon as a new
question comes. ``turns-question``: with that template, a second question in the same session. ``turns-agent``: the
agent has a sub-agent do something. Every step is said once, in order; what must come of it is in ``turns_expected``.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator

from dragoman.rollout.harnesses import HARNESSES
from scripts import turns_tools as tools
from scripts.harness_rows import COMMAND, CONTENT, DONE, FILE, SAME_PROGRAM, Row, Step, tool_call
from scripts.turns_again import CAN_GO_ON

SCENARIOS = ("turns", "turns-thinking", "turns-question", "turns-agent")
THINKING = ("turns-thinking", "turns-question")
"""With reasoning, and with Qwen3's template."""
MARK = "TURNS-TASK"
"""Stands in the prompt, and so in everything that the main agent is shown; its sub-agents are not shown it."""
PROMPT = f"{MARK}: write and read a few small files with your tools, then say in one sentence what you did."
SUB_TASK = "SUB-TASK: write hello into sub.txt with the shell, then say that you did."
IMAGE = "pixel.png"
NOTE_FILE = "note.txt"
NOTE = 'naïve, 日本語 🐉\n\ttab "quoted" \\n <b>&amp;</b>'
"""Text that is easily changed on its way: several bytes a character, quotes, escapes."""

REMINDS = ("claude", "mini")
"""Answer an empty reply by asking again. Gemini CLI does when it is the first or has only thoughts (read in 0.61.0,
and tried); to the others it is the end, and to Qwen Code it is never shown."""
ONLY_THOUGHTS = "<think>\nNothing to say.\n</think>\n\n"

# The main agent of Codex does not wait for the sub-agent by itself, and its tool for that wants an id that the script
# does not know. The sub-agent's last call comes at once after this file.
AWAIT = "until [ -f sub.txt ]; do sleep 0.2; done; sleep 3; printf 'ran-%s' 45"


def turns_rows() -> Iterator[Row]:
    for harness in HARNESSES:
        for variant in harness.variants or ("",):
            if variant in SAME_PROGRAM:
                continue
            yield Row(harness.name, variant, "base-url", "turns")
            yield Row(harness.name, variant, "proxy", "turns")
            yield Row(harness.name, variant, "base-url", "turns-thinking")
            if harness.name in CAN_GO_ON:
                yield Row(harness.name, variant, "base-url", "turns-question")
            if harness.name in tools.HAVE_AGENTS:
                yield Row(harness.name, variant, "base-url", "turns-agent")


def is_turns(row: Row) -> bool:
    return row.scenario in SCENARIOS


def turns_script(row: Row, work: str = "/a/folder") -> list[Step]:
    """The scripted engine's steps for a row of several turns, which is played in the folder ``work``."""
    if row.harness == "aider":
        return _aider_script(row)
    # As a tool is described; what Gemini's router is shown has calls of it.
    offered = f'"name": "{tool_call(row, "")["name"]}", "description"'
    if row.scenario == "turns-agent":
        main, sub = _agent_steps(row)
    elif row.scenario == "turns-question":
        main, sub = _two_questions(row, work), []
    else:
        main, sub = _main_steps(row, work), []
    if row.scenario in THINKING:
        main = [_thinking(step, number) for number, step in enumerate(main, 1)]
    # Requests without tools: a title, or Gemini's router, which wants JSON.
    beside = '{"complexity_reasoning": "one file", "complexity_score": 1}' if row.harness == "gemini" else "A title"
    return [
        *({"match": offered, "unless": MARK, **step} for step in sub),
        *({"match": offered, **step} for step in main),
        {"text": beside, "repeat": True},
    ]


def _main_steps(row: Row, work: str) -> list[Step]:
    steps: list[Step] = [
        {"text": "I will write the file.", "tool_calls": [tools.shell(row, COMMAND)]},
        {"tool_calls": [tools.read(row, f"{work}/{FILE}")]},
        {
            "text": "Two at once.",
            "tool_calls": [tools.shell(row, "printf 'ran-%s' 43"), tools.read(row, f"{work}/{FILE}")],
        },
    ]
    if (image := tools.see(row, f"{work}/{IMAGE}")) is not None:
        steps.append({"text": "Now the image.", "tool_calls": [image]})
    if row.harness in REMINDS:
        steps.append({"raw": ""})
    elif row.harness == "gemini":
        steps.insert(0, {"raw": ""})
        if row.scenario == "turns-thinking":
            steps.append({"raw": ONLY_THOUGHTS})
    steps.append({"text": "  Ein Wort: naïve 🐉\n", "tool_calls": [tools.write(row, f"{work}/{NOTE_FILE}", NOTE)]})
    if (search := tools.search(row)) is not None:
        steps.append({"tool_calls": [search]})
    steps.append({"text": "Once more.\n\nThen I am done.", "tool_calls": [tools.shell(row, "printf 'ran-%s' 44")]})
    steps.append(_last(row))
    return steps


def _two_questions(row: Row, work: str) -> list[Step]:
    return [
        {"text": "I will write the file.", "tool_calls": [tools.shell(row, COMMAND)]},
        {"tool_calls": [tools.read(row, f"{work}/{FILE}")]},
        {"text": DONE},
        {"text": "A command.", "tool_calls": [tools.shell(row, "printf 'ran-%s' 47")]},
        {"tool_calls": [tools.shell(row, "printf 'ran-%s' 48")]},
        {"text": "It printed ran and a number."},
    ]


def _agent_steps(row: Row) -> tuple[list[Step], list[Step]]:
    """Of the main agent, and of its sub-agent."""
    main: list[Step] = [
        {"text": "I will write the file.", "tool_calls": [tools.shell(row, COMMAND)]},
        {"text": "Somebody else can do this.", "tool_calls": [tools.agent(row, SUB_TASK)]},
        {"tool_calls": [tools.shell(row, AWAIT)]},
        _last(row),
    ]
    sub: list[Step] = [
        {"text": "I will.", "tool_calls": [tools.shell(row, "printf 'ran-%s' 46")]},
        {"tool_calls": [tools.shell(row, "echo hello > sub.txt")]},
    ]
    if row.harness == "gemini":
        sub.append(
            {"tool_calls": [{"name": "complete_task", "arguments": {"result": {"response": "sub.txt says hello."}}}]}
        )
    else:
        sub.append({"text": "sub.txt says hello."})
    return main, sub


def _last(row: Row) -> Step:
    if row.harness == "mini":
        return {"text": DONE, "tool_calls": [tool_call(row, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]}
    return {"text": DONE}


def _thinking(step: Step, number: int) -> Step:
    return step if "raw" in step else {"reasoning": f"Step {number}. What comes next?\nThis does.", **step}


def _aider_script(row: Row) -> list[Step]:
    """aider has no tools. A reply whose file has no name is sent back to the model with a complaint, three times.

    By proxy it knows the model, and asks for blocks to search and replace instead of whole files.
    """
    edit = f"<<<<<<< SEARCH\n=======\n{CONTENT}>>>>>>> REPLACE\n" if row.mode == "proxy" else CONTENT
    block = f"```\n{edit}```\n"
    steps: list[Step] = [{"text": f"Attempt {number}.\n\n{block}"} for number in (1, 2, 3)]
    steps.append({"text": f"I will write the file.\n\n{FILE}\n{block}"})
    if row.scenario == "turns-thinking":
        steps = [_thinking(step, number) for number, step in enumerate(steps, 1)]
    return [{"match": "commit message", "text": "feat: add the file", "repeat": True}, *steps]


def once_steps(row: Row) -> set[int]:
    """The numbers of the steps that must all have been said."""
    return {number for number, step in enumerate(turns_script(row)) if not step.get("repeat")}


def marks(row: Row) -> set[str]:
    """What the tools print, if they all run."""
    return {f"ran-{number}" for number in re.findall(r"'ran-%s' (\d+)", json.dumps(turns_script(row)))}


def png() -> bytes:
    """A red image of 8 by 8 pixels."""
    rows = b"".join(b"\0" + b"\xff\0\0" * 8 for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )
