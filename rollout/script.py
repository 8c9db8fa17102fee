"""What the scripted engine says, and how it misbehaves: a list of steps, read from JSON. Pure.

A script is a list of steps (or ``{"steps": [...]}``). A request takes the first step that is not used up and whose
``match`` and ``unless`` agree with its prompt. A harness loop is two steps::

    [{"match": "<tool_response>", "text": "Done.", "repeat": true},
     {"tool_calls": [{"name": "write", "arguments": {"path": "a.txt"}}], "repeat": true}]
"""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from dragoman.store.records import JsonObject

Hold = Literal["first", "last"]
Flaw = Literal[
    "nan",
    "none",
    "no_evidence",
    "missing_logprobs",
    "extra_logprob",
    "other_token",
    "text_id",
    "garbage",
    "no_versions",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One reply. Its tokens are ``ids``, else ``raw``, else reasoning, text and tool calls in the model's own form."""

    match: str | None = None
    """Text that must occur in the decoded prompt."""
    unless: str | None = None
    """Text that must not."""
    repeat: bool = False
    """Whether it can be used again."""
    reasoning: str = ""
    text: str = ""
    tool_calls: tuple[JsonObject, ...] = ()
    """Each ``{"name": …, "arguments": {…}}``."""
    raw: str | None = None
    """Text whose markers and special tokens are encoded as such; for malformed replies."""
    ids: tuple[int, ...] | None = None
    """The exact tokens; nothing is added."""
    obey: bool = False
    """Where the request holds the reply to a JSON schema: say the smallest value that it allows, and nothing else."""
    end: bool = True
    """Whether the end-of-turn token is sampled after text; without it the reply is cut by ``length``."""
    chunk: int = 1
    """Tokens per event of a stream."""
    delay: float = 0.0
    """Seconds before each event."""
    hold: Hold | None = None
    """Wait for ``POST /scripted/release`` before the first or before the last token."""
    fail: int | None = None
    """Answer with this HTTP status instead."""
    message: str = "scripted failure"
    """What a failure says."""
    error_after: int | None = None
    """After so many tokens send an error event, as vLLM does, and end."""
    end_after: int | None = None
    """After so many tokens end the stream in good order, but without a finish reason."""
    cut_after: int | None = None
    """After so many tokens break the connection."""
    flaw: Flaw | None = None
    """What is wrong with the last token's event."""


@dataclass(slots=True)
class Script:
    steps: tuple[Step, ...]
    _used: set[int] = field(default_factory=set)

    def choose(self, prompt: str) -> int | None:
        """The number of the step for a prompt, which is then used up unless it repeats; ``None``: there is none."""
        for number, step in enumerate(self.steps):
            if number in self._used or (step.match and step.match not in prompt):
                continue
            if step.unless and step.unless in prompt:
                continue
            if not step.repeat:
                self._used.add(number)
            return number
        return None


def load_script(path: Path) -> Script:
    """Read a script. Raises ``ValueError`` naming the step and what is wrong with it."""
    return read_script(json.loads(path.read_text()))


def read_script(value: Any) -> Script:
    """A script from its JSON value. Raises ``ValueError`` naming the step and what is wrong with it."""
    steps = value.get("steps") if isinstance(value, dict) else value
    if not isinstance(steps, list) or not steps:
        raise ValueError("a script is a list of steps, and not an empty one")
    return Script(tuple(_read_step(step, number) for number, step in enumerate(steps)))


def _read_step(value: Any, number: int) -> Step:
    known = {one.name for one in fields(Step)}
    if not isinstance(value, dict) or (unknown := set(value) - known):
        raise ValueError(f"step {number}: {sorted(unknown) if isinstance(value, dict) else value!r} is not known")
    value = dict(value)
    for name in ("tool_calls", "ids"):
        if name in value:
            value[name] = tuple(value[name])
    step = Step(**value)
    for call in step.tool_calls:
        if set(call) != {"name", "arguments"}:
            raise ValueError(f"step {number}: a tool call has a name and arguments, not {sorted(call)}")
    for given, allowed in ((step.hold, get_args(Hold)), (step.flaw, get_args(Flaw))):
        if given is not None and given not in allowed:
            raise ValueError(f"step {number}: {given!r} is none of {', '.join(allowed)}")
    return step
