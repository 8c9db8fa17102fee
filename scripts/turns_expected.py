"""What must come of the rows of several turns: calls, forks and traces, and why that is right. Written before the runs.

The rules that it follows from:

- A run whose harness only ever adds to its conversation is one trace. With Qwen3's template it is still one as long as
  no new question comes, since tool results are none: all reasoning stays where it is.
- A *fork* is a call whose prompt cannot be its parent's stream and more; it begins a trace. It needs a cause in the
  harness (it edits what was said) or in the template (it drops earlier reasoning when a user message comes).
- A reply that the harness throws away is a *branch*: the next request continues the call before it, exactly. Its tokens
  were sampled, so they are trained, in a trace of their own; nothing is forked.
- A sub-agent has a conversation of its own, and so a trace of its own. Titles and routers are ``side``.
"""

from dataclasses import dataclass, replace

from scripts.harness_rows import Row
from scripts.turns_rows import once_steps

WHY = {
    "claude": "After the empty reply Claude Code asks again with a reminder behind the tool result; the empty reply is "
    "nowhere: a branch. ToolSearch puts a tool into the list, which the template writes first: `tools_changed`.",
    "gemini": "After an empty first reply Gemini CLI asks again with a reminder behind the question: a second start. "
    "From the next request on the reminder is gone: `history_edited`.",
    "mini": "mini throws a reply without a tool call away and complains: a branch.",
    "aider": "Every prompt of aider begins with example replies that nobody sampled, and its long reminder moves to "
    "the last user message each time: `unknown_parent`, a trace each. The commit message is a `side` call.",
}
WHY_THINKING = {
    "gemini": "As before; and to a reply of thoughts only, Gemini CLI adds a model's words that nobody sampled "
    "('Tool execution completed.') and a reminder: `unknown_parent`. The next request has neither: `history_edited`.",
    "claude": "As before; and the reminder is a user's message, so the template drops what was thought before it: "
    "the branch is a fork, `thinking_policy`.",
    "opencode chat": "OpenCode's chat dialect shows a tool's image in a user's message, which to the template is a new "
    "question: `thinking_policy`.",
    "mini": "As before; and the complaint is a user's message: `thinking_policy`.",
}


WHY_QUESTION = {
    "gemini": "In a resumed session Gemini CLI writes the first message anew: `history_edited`.",
    "qwen": "In a resumed session Qwen Code writes the first messages anew: `history_edited`.",
}
NEW_QUESTION = "The second question makes the template drop the reasoning before it: `thinking_policy`."


@dataclass(frozen=True)
class Expected:
    calls: dict[str, int]
    """Answered calls by kind."""
    forks: tuple[str, ...]
    """Reasons, in order of arrival."""
    starts: int
    """Calls of trained kinds that begin a conversation without being forks."""
    traces: dict[str, int]
    """By kind."""
    images: int = 0
    """Of the image that the harness's own tool reads: whether it is sent."""
    why: str = ""
    """Why there are forks, or more traces than agents; empty: there are not."""


# Where it is not: pi by base URL, Qwen Code and OpenCode's chat dialect take the model for one that sees no images.
SENDS_IMAGE = ("claude", "codex custom", "codex builtin", "gemini", "opencode anthropic", "opencode responses")
SENDS_IMAGE_BY_PROXY = (*SENDS_IMAGE, "pi anthropic", "pi responses", "pi gemini")


def expected(row: Row) -> Expected:
    want = _calls_and_traces(row)
    if row.who == "codex builtin":
        # on its WebSocket it sends each agent's beginning ahead, each time the program starts
        warm_ups = 2 if row.scenario in ("turns-agent", "turns-question") else 1
        want = replace(want, calls={**want.calls, "warm_up": warm_ups})
    if row.scenario in ("turns", "turns-thinking"):
        return replace(want, images=int(row.who in (SENDS_IMAGE_BY_PROXY if row.mode == "proxy" else SENDS_IMAGE)))
    return want


def _calls_and_traces(row: Row) -> Expected:
    if row.scenario == "turns-agent":
        return _with_agent(row)
    if row.scenario == "turns-question":
        return _second_question(row)
    main = len(once_steps(row))
    one = Expected({"main": main}, (), 1, {"main": 1})
    thinking = row.scenario == "turns-thinking"
    why = WHY_THINKING.get(row.harness, WHY.get(row.harness, "")) if thinking else WHY.get(row.harness, "")
    match row.harness:
        case "claude":
            forks = ("thinking_policy", "tools_changed") if thinking else ("tools_changed",)
            return replace(one, forks=forks, traces={"main": 3}, why=why)
        case "gemini":
            calls = {"main": main, "side": 1}
            if thinking:
                return Expected(calls, ("history_edited", "unknown_parent", "history_edited"), 2, {"main": 5}, why=why)
            return Expected(calls, ("history_edited",), 2, {"main": 3}, why=why)
        case "opencode" if thinking and row.variant == "chat":
            return Expected({"main": main, "side": 1}, ("thinking_policy",), 1, {"main": 2}, why=WHY_THINKING[row.who])
        case "opencode":
            return replace(one, calls={"main": main, "side": 1})
        case "mini":
            return replace(one, forks=("thinking_policy",) if thinking else (), traces={"main": 2}, why=why)
        case "aider":
            return Expected({"main": main, "side": 1}, ("unknown_parent",) * main, 0, {"main": main}, why=why)
    return one


def _second_question(row: Row) -> Expected:
    calls = {"main": len(once_steps(row))}
    if row.harness == "gemini":
        calls["side"] = 2  # its router is asked by each start of the program
    if row.harness == "opencode":
        calls["side"] = 1
    reason = "history_edited" if row.harness in WHY_QUESTION else "thinking_policy"
    return Expected(calls, (reason,), 1, {"main": 2}, why=WHY_QUESTION.get(row.harness, NEW_QUESTION))


def _with_agent(row: Row) -> Expected:
    """One trace an agent. Gemini CLI and Qwen Code do not say that a sub-agent asks: their kind is ``main``."""
    main, sub = 4, 3
    match row.harness:
        case "gemini":
            # its router is asked for each agent
            return Expected({"main": main + sub, "side": 2}, (), 2, {"main": 2})
        case "qwen":
            return Expected({"main": main + sub}, (), 2, {"main": 2})
        case "opencode":
            return Expected({"main": main, "subagent": sub, "side": 1}, (), 2, {"main": 1, "subagent": 1})
    return Expected({"main": main, "subagent": sub}, (), 2, {"main": 1, "subagent": 1})
