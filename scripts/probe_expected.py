"""What is known of the eight harnesses, as a probe of each must find it. Pure.

It was measured by hand against a recording server, which is no gateway. Where the gateway answers otherwise than such
a server would, so that the harness goes on (codex is never told that a reply was cut, qwen is never given an empty
one), the answer here is what comes of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["EXPECTED", "Fact", "differences"]


@dataclass(frozen=True)
class Fact:
    about: str
    answer: str
    """The finding's answer; with ``…`` at its end, its beginning."""
    holds: tuple[str, ...] = ()
    """What the answer or its detail must hold."""


_BOTH_WAYS = (
    Fact("base URL", "honoured"),
    Fact("proxy", "honoured"),
    Fact("CA", "trusted"),
    Fact("after a plain text", "ends with 0"),
    Fact("past the proxy", "nothing"),
    Fact("silence", "recovers", ("waited",)),
)
_WITH_TOOLS = (
    *_BOTH_WAYS,
    Fact("tool ran", "yes"),
    Fact("two calls in one reply", "both ran"),
    Fact("replayed text", "verbatim"),
    Fact("tool-call ids", "echoed"),
    Fact("broken-json", "recovers"),
    Fact("wrong-args", "recovers"),
    Fact("unknown-tool", "recovers"),
    Fact("cut-call", "recovers"),
    Fact("error-500", "recovers", ("tried again",)),
    Fact("stream-failure", "recovers"),
)
_EXACT = Fact("exact turns", "2 of 2")
_NO_SESSION = Fact("session id", "none")
_NO_AGENTS = Fact("sub-agents", "none")

EXPECTED: dict[str, tuple[Fact, ...]] = {
    "pi": (
        *_WITH_TOOLS,
        _EXACT,
        Fact("dialect", "anthropic"),
        Fact("streams", "yes"),
        _NO_SESSION,
        _NO_AGENTS,
        Fact("history", "changed", ("cache_control taken away",)),
        Fact("replayed reasoning", "verbatim"),
        Fact("signatures", "echoed"),
        Fact("side calls", "none"),
        Fact("broken-json", "recovers", ("replayed as bash {}",)),
        Fact("empty", "ends", ("1 call ",)),
        Fact("cut-text", "ends"),
        Fact("error-429", "recovers", ("though told",)),
        Fact("hosts besides", "none"),
    ),
    "claude": (
        *_WITH_TOOLS,
        _EXACT,
        Fact("dialect", "anthropic"),
        Fact("streams", "yes"),
        Fact("session id", "x-claude-code-session-id", ("metadata.user_id",)),
        Fact("sub-agents", "named", ("x-claude-code-agent-id",)),
        Fact("history", "changed", ("messages.content.cache_control taken away", "a list became a text")),
        Fact("replayed arguments", "verbatim"),
        Fact("replayed reasoning", "verbatim"),
        Fact("signatures", "echoed"),
        Fact("side calls", "none"),
        Fact("broken-json", "recovers", ("__unparsedToolInput",)),
        Fact("empty", "ends", ("2 calls",)),
        Fact("cut-text", "recovers"),
        Fact("error-429", "recovers", ("as it was told",)),
    ),
    "codex": (
        *_WITH_TOOLS,
        _EXACT,
        Fact("dialect", "openai_responses"),
        Fact("streams", "yes"),
        Fact("session id", "session-id, thread-id…", ("x-client-request-id", "x-codex-window-id", "prompt_cache_key")),
        Fact("sub-agents", "named", ("x-codex-parent-thread-id", "x-openai-subagent")),
        Fact("history", "verbatim"),
        Fact("replayed arguments", "verbatim"),
        Fact("replayed reasoning", "verbatim"),
        Fact("signatures", "echoed"),
        Fact("ids come back in", "input.call_id, input.encrypted_content…"),
        Fact("side calls", "none"),
        Fact("broken-json", "recovers", ("replayed as exec_command {", ", }")),
        Fact("empty", "ends", ("1 call ",)),
        Fact("cut-text", "ends"),
        Fact("error-429", "recovers", ("as it was told",)),
        Fact("hosts besides", "api.github.com, github.com"),
    ),
    "gemini": (
        *_WITH_TOOLS,
        _EXACT,
        Fact("dialect", "google"),
        Fact("streams", "yes"),
        _NO_SESSION,
        Fact("sub-agents", "not named"),
        Fact("history", "verbatim"),
        Fact("replayed arguments", "verbatim"),
        Fact("replayed reasoning", "left out"),
        Fact("ids come back in", "contents.parts.functionCall.id…", ("functionResponse.id", "thoughtSignature")),
        Fact("side calls", "1 side"),
        Fact("empty", "ends", ("4 calls",)),
        Fact("cut-text", "ends"),
        Fact("error-429", "recovers", ("though told",)),
    ),
    "qwen": (
        *_WITH_TOOLS,
        _EXACT,
        Fact("dialect", "openai_chat"),
        Fact("streams", "yes"),
        _NO_SESSION,
        Fact("sub-agents", "not named"),
        Fact("history", "verbatim"),
        Fact("replayed arguments", "changed"),
        Fact("replayed reasoning", "verbatim"),
        Fact("broken-json", "recovers", ("2 calls",)),
        Fact("empty", "ends", ("1 call ",)),
        Fact("cut-text", "recovers"),
        Fact("error-429", "recovers", ("as it was told",)),
    ),
    "opencode": (
        *_WITH_TOOLS,
        _EXACT,
        Fact("dialect", "openai_chat"),
        Fact("streams", "yes"),
        Fact("session id", "x-session-affinity, x-session-id"),
        Fact("sub-agents", "named", ("x-parent-session-id",)),
        Fact("history", "verbatim"),
        Fact("replayed arguments", "changed"),
        Fact("replayed reasoning", "verbatim"),
        Fact("side calls", "1 side"),
        Fact("broken-json", "recovers", ("replayed as invalid",)),
        Fact("empty", "ends", ("1 call ",)),
        Fact("cut-text", "ends"),
        Fact("error-429", "recovers", ("as it was told",)),
        Fact("hosts besides", "registry.…"),
    ),
    "mini": (
        *_WITH_TOOLS,
        # A text is no end for it: it asks for a call three times, and those turns are exact, too.
        Fact("exact turns", "4 of 4"),
        Fact("dialect", "openai_chat"),
        Fact("streams", "no"),
        _NO_SESSION,
        _NO_AGENTS,
        Fact("history", "verbatim"),
        Fact("replayed arguments", "verbatim"),
        Fact("side calls", "none"),
        Fact("empty", "ends", ("3 calls",)),
        Fact("cut-text", "recovers"),
    ),
    "aider": (
        *_BOTH_WAYS,
        Fact("dialect", "openai_chat"),
        Fact("streams", "yes"),
        _NO_SESSION,
        Fact("tools", "none"),
        _NO_AGENTS,
        Fact("error-500", "recovers"),
        Fact("empty", "ends", ("1 call ",)),
    ),
}
"""Harness, in its first variant → what a probe must find. Of a fact that is named twice both hold."""


def differences(facts: Sequence[Fact], report: dict[str, Any]) -> list[str]:
    """What a report (as ``dragoman harness probe --json`` writes it) says otherwise; empty when all facts are found."""
    found: list[str] = []
    if report["verdict"] == "not trainable":
        found.append(f"it is said not to be trainable: {'; '.join(report['because'])}")
    for fact in facts:
        findings = [finding for finding in report["findings"] if finding["about"] == fact.about]
        if not findings:
            found.append(f"{fact.about}: nothing was found, expected {fact.answer}")
        for finding in findings:
            answer, said = finding["answer"], f"{finding['answer']} {finding['detail']}"
            right = answer.startswith(fact.answer[:-1]) if fact.answer.endswith("…") else answer == fact.answer
            if not right:
                found.append(f"{fact.about}: {said.strip()}; expected {fact.answer}")
            found += [
                f"{fact.about}: {said.strip()}; expected in it {text!r}" for text in fact.holds if text not in said
            ]
    return found
