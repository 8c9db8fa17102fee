"""What a probe tries: one short run of the harness for each case, and what the model says in it. Pure.

Rules of this module: one table. A case is bounded: its script has an end, so that a harness that goes on asking is told
that the work is done, whatever it makes of the defect. The model calls the harness's own shell tool; that it really ran
shows in a later prompt, where its output holds a mark which is nowhere in the command.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from dragoman.rollout.defects import defect, slow
from dragoman.rollout.probe.tools import AgentTool, ShellTool
from dragoman.store.records import JsonObject

__all__ = ["CASES", "DONE", "PROMPT", "SUB_DONE", "SUB_TASK", "Case", "Fault", "cases_for", "mark", "steps"]

PROMPT = "Create a file probe.txt that says hello, with your shell tool. Then say in one sentence what you did."
DONE = "I wrote the file."
# Several spaces and signs of several bytes: a harness that tidies text changes them.
SAYS = "I will write it →  in two steps. ✓"
THINKS = "One command writes the file, and two look at it."
SUB_TASK = "You are the helper of a probe: answer with one short sentence, and use no tools."
SUB_DONE = "The helper has answered."
SILENCE, LONG_SILENCE = 20.0, 330.0
"""Seconds until the first token."""
PAUSE = 5.0
"""Seconds that a sub-agent gets to ask for its reply."""
NO_HEADERS = 400.0
"""Seconds for which a request is given no answer at all."""
RETRY_AFTER = 3
"""Seconds: longer than most wait of their own at the first failure, and shorter than some."""

Needs = Literal["nothing", "shell", "agent"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What the first request for a reply gets in place of one, before anybody looks at it."""

    status: int = 0
    """An HTTP status. 0: none; the request waits."""
    retry_after: int | None = None
    """Seconds, for the header of that name."""
    wait: float = 0.0
    """Seconds without any answer; then it is answered as usual."""
    offers_tools: bool = False
    """Only a request that offers tools meets it, so that none does that is made beside the work."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    what: str
    """What happens in it, for people."""
    needs: Needs = "nothing"
    fault: Fault | None = None
    in_both: bool = False
    """Whether it is tried in each mode that works, and not only in the first."""
    waits: float = 0.0
    """Seconds that it may take on top of the time limit."""
    long: bool = False
    """Only tried when asked for."""


CASES: tuple[Case, ...] = (
    Case("text", "the model says one sentence", in_both=True),
    Case("tools", "it thinks, calls the shell tool once, then twice at once, and is done", "shell", in_both=True),
    Case("broken-json", "a tool call whose arguments are no JSON", "shell"),
    Case("wrong-args", "a tool call with arguments that the tool does not have", "shell"),
    Case("unknown-tool", "a call of a tool that there is not", "shell"),
    Case("empty", "replies without a token but the end, always"),
    Case("cut-text", "a text that the length limit cuts"),
    Case("cut-call", "a tool call that the length limit cuts", "shell"),
    Case("error-500", "status 500, once", fault=Fault(500)),
    Case("error-429", f"status 429 with Retry-After: {RETRY_AFTER}, once", fault=Fault(429, retry_after=RETRY_AFTER)),
    Case("stream-failure", "an error inside the stream after three tokens, once"),
    Case("silence", f"{SILENCE:.0f} s until the first token, with the gateway's signs of life", waits=SILENCE),
    Case("subagent", "the model starts a sub-agent", "agent"),
    Case(
        "long-silence",
        f"{LONG_SILENCE:.0f} s until the first token, with the gateway's signs of life",
        waits=LONG_SILENCE,
        long=True,
    ),
    Case(
        "no-headers",
        f"no answer at all for {NO_HEADERS:.0f} s",
        fault=Fault(wait=NO_HEADERS),
        waits=NO_HEADERS,
        long=True,
    ),
)


def cases_for(
    shell: ShellTool | None, agent: AgentTool | None, *, first: bool, long: bool, only: Collection[str] = ()
) -> Iterator[Case]:
    """The cases behind ``text`` that a harness with these tools can be tried in.

    ``first``: in the first mode that works. ``only``: names of those that are wanted; empty: all, but the long ones.
    """
    have = {"nothing": True, "shell": shell is not None, "agent": agent is not None}
    for case in CASES[1:]:
        wanted = case.name in only if only else long or not case.long
        if wanted and have[case.needs] and (first or case.in_both):
            yield case


def mark(number: int) -> str:
    """What a command of the script prints, and nothing else does."""
    return f"ran-{number}"


def steps(case: Case, shell: ShellTool | None, agent: AgentTool | None, prompt: str = PROMPT) -> list[JsonObject]:
    """The scripted engine's steps for a case of a harness that is asked ``prompt``.

    Without a shell tool the model only talks.
    """
    if case.name == "text" or (shell is None and case.needs != "agent"):
        return [*_defect(case, {"text": DONE, "obey": True}), {"text": DONE, "repeat": True, "obey": True}]
    # Requests without the tool are made beside the work: a title, a router that wants JSON.
    beside: JsonObject = {"text": "A title", "repeat": True, "obey": True}
    if case.needs == "agent":
        assert agent is not None
        return [
            {"match": SUB_TASK, "unless": prompt, "text": SUB_DONE, "repeat": True},
            {"match": SUB_DONE, "text": DONE, "repeat": True},
            {"match": _names(agent.tool.name), "tool_calls": agent.calls(SUB_TASK)},
            # who does not wait for a sub-agent shall not end before it has asked
            {"match": _names(agent.tool.name), "text": DONE, "delay": PAUSE, "chunk": 10_000},
            {"match": _names(agent.tool.name), "text": DONE, "repeat": True},
            beside,
        ]
    assert shell is not None
    named = {"match": _names(shell.tool.name)}
    if case.name == "tools":
        return [
            {"match": mark(43), "text": DONE, "repeat": True},
            {"match": mark(42), "tool_calls": [shell.call(_print(43)), shell.call(_print(44))]},
            {**named, "reasoning": THINKS, "text": SAYS, "tool_calls": [shell.call(_work())]},
            {**named, "text": DONE, "repeat": True},
            beside,
        ]
    good: JsonObject = {"text": SAYS, "tool_calls": [shell.call(_work())]}
    return [
        {"match": mark(42), "text": DONE, "repeat": True},
        *({**named, **step} for step in _defect(case, good)),
        {**named, **good},
        {**named, "text": DONE, "repeat": True},
        beside,
    ]


def _print(number: int) -> str:
    # no $(…) in it: some harnesses refuse to run such a command
    return f"printf 'ran-%s' {number}"


def _work() -> str:
    return f"printf 'hello\\n' > probe.txt && {_print(42)}"


def _names(tool: str) -> str:
    """How the model's prompt shows a tool of that name."""
    return f'"name": {json.dumps(tool)}'


def _defect(case: Case, good: JsonObject) -> list[JsonObject]:
    """What the model says before the good reply."""
    match case.name:
        case "empty":
            return [{"raw": "", "repeat": True}]
        case "silence":
            return [slow(good, SILENCE)]
        case "long-silence":
            return [slow(good, LONG_SILENCE)]
    step = defect(case.name, good)
    return [] if step is None else [step]
