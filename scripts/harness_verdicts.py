"""Whether a row went as well as it can. Pure.

In the matrix everything must work. A defect is met as well as that harness can meet it: what each was seen to do with a
reply of that kind, whoever sent it, is the measure.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from dragoman.cli.run import TIMED_OUT
from scripts.harness_outcome import Outcome
from scripts.harness_rows import CONTENT, Row, defect_steps

Ending = Literal["recovers", "ends", "fails"]
"""The work is done in the end; the harness ends with 0 and without it; it ends with another code."""

BEST_FIRST: tuple[Ending, ...] = ("recovers", "ends", "fails")
KEPT = ("changes.diff", "run.json", "stderr.txt", "stdout.txt")
WANTED_HASH = hashlib.sha256(CONTENT.encode()).hexdigest()[:12]

# Harnesses that take a reply without a tool call for the last one: nothing that we send makes them go on. Qwen Code
# would ask again after an empty reply, and end with 1 after five; ours to it are never empty, so that it ends with 0.
TAKES_IT_FOR_THE_END: dict[str, tuple[str, ...]] = {
    "empty-once": ("codex", "opencode", "pi", "qwen", "aider"),
    "cut-text": ("codex", "gemini", "opencode", "pi", "aider"),
}


def problems(row: Row, outcome: Outcome) -> tuple[str, ...]:
    """What is wrong with a row; empty when it is good."""
    found = []
    if outcome.exit_code is None:
        found.append(f"stopped after {row.time_limit:.0f} s")
    if row.scenario == "works":
        found += not_done(row, outcome)
        if forks := not_exact(row, outcome.turns):
            found.append("turns that are " + ", ".join(forks))
    elif not defect_steps(row) & set(outcome.steps):
        found.append("the defect was not played")
    elif BEST_FIRST.index(ending_word(row, outcome)) > BEST_FIRST.index(expected(row)):
        found.append(f"expected that it {expected(row)}, but it {ending(row, outcome)}")
    if odd := unexpected_calls(row, outcome.calls):
        found.append("calls that are " + ", ".join(odd))
    return (*found, *got_out(outcome), *badly_kept(row, outcome))


def got_out(outcome: Outcome) -> list[str]:
    """What went past the gateway, or tried to."""
    found = []
    if outcome.escaped:
        found.append("a connection to " + ", ".join(outcome.escaped))
    if outcome.names:
        found.append("looked up past the proxy: " + ", ".join(outcome.names))
    if outcome.no_route:
        found.append(f"tried {outcome.no_route} times to send to an address outside")
    return found


def badly_kept(row: Row, outcome: Outcome) -> list[str]:
    """What `dragoman run` should have kept of the run, or said of it, and did not."""
    found = []
    code = TIMED_OUT if outcome.exit_code is None else outcome.exit_code
    if outcome.run_code != code:
        found.append(f"dragoman run ended with {outcome.run_code}")
    ends = {None: {"timed_out"}, 0: {"completed"} if outcome.file_hash else {"completed", "failed"}}
    if outcome.end not in ends.get(outcome.exit_code, {"failed"}):  # one that says in words that it failed is failed
        found.append(f"the episode ended as {outcome.end}")
    if outcome.kept != KEPT:
        found.append(f"kept with it are only {', '.join(outcome.kept) or 'no artefacts'}")
    if outcome.in_diff != bool(outcome.file_hash):
        found.append(
            "the diff does not show the file" if outcome.file_hash else "the diff shows a file that is not there"
        )
    return found


def not_done(row: Row, outcome: Outcome) -> list[str]:
    """What is missing from a run that did everything it was asked."""
    found = []
    if outcome.exit_code not in (0, None):
        found.append(f"exit code {outcome.exit_code}")
    if not outcome.stdout.strip():
        found.append("it printed nothing")
    if outcome.file_hash != WANTED_HASH:
        found.append("the file is not the one asked for" if outcome.file_hash else "no file was written")
    if not outcome.tool_ran and row.harness != "aider":  # which shows no tool's output to the model
        found.append("the tool's output did not reach the model")
    return found


def not_exact(row: Row, turns: Sequence[str]) -> list[str]:
    """Why turns of a run did not continue what was sampled, each reason once."""
    reasons = set(turns) - {"start", "exact"}
    if row.harness == "aider":  # its prompt begins with replies, as examples, that nobody sampled
        reasons.discard("unknown_parent")
    return sorted(reasons)


def expected(row: Row) -> Ending:
    """The best that this harness can make of the scenario."""
    if row.scenario == "empty":
        return "ends"
    return "ends" if row.harness in TAKES_IT_FOR_THE_END.get(row.scenario, ()) else "recovers"


def unexpected_calls(row: Row, calls: Sequence[str]) -> list[str]:
    """Statuses that this row should not have, sorted; repeated ones once."""
    allowed = Counter[str]()
    if (row.harness, row.variant, row.mode) == ("pi", "anthropic", "proxy"):
        allowed["refused 400"] = (
            1  # it tries Anthropic's server-side threads once, and must be told that there are none
        )
    if row.scenario == "engine-failure":
        allowed.update({status: 1 for status in calls if status.startswith("failed")})
    left = Counter(status for status in calls if status != "answered") - allowed
    return sorted(left)


def ending_word(row: Row, outcome: Outcome) -> Ending:
    if outcome.exit_code != 0:
        return "fails"
    return "ends" if not_done(row, outcome) else "recovers"


def ending(row: Row, outcome: Outcome) -> str:
    """How it ended, in a few words."""
    word = ending_word(row, outcome)
    if word == "fails":
        word_and_code = f"fails ({'killed' if outcome.exit_code is None else outcome.exit_code})"
    else:
        word_and_code = word
    return f"{word_and_code}, {describe(outcome.calls)}"


def describe(calls: Sequence[str]) -> str:
    """How many calls there were, and of what kind: ``3``, or ``2 + 1 refused 400``."""
    counts = Counter(calls)
    parts = [str(counts.pop("answered", 0)), *(f"{count} {status}" for status, count in sorted(counts.items()))]
    return " + ".join(parts)
