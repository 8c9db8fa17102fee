"""What a teacher answers in each harness: the right tool call in some of its episodes, a plausible mistake in the rest.

Rules of this module: pure; the same seed gives the same script. A model that copies this teacher well is right about as
often as the teacher is (``RIGHT``), and wrong in the ways in which a small model is wrong in a harness: so there is
something for reinforcement to choose from. The script is for ``dragoman.rollout.scripted_engine``.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from examples.tinyloop.tasks import Job
from examples.tinyloop.words import CONTENTS, NAMES

Way = Literal["right", "idle", "other_name", "other_words", "unknown_tool", "malformed"]
RIGHT = 0.35
WAYS: dict[Way, float] = {
    "right": RIGHT,
    "idle": 0.20,
    "other_name": 0.15,
    "other_words": 0.15,
    "unknown_tool": 0.08,
    "malformed": 0.07,
}
"""Way → how often."""
SHELLS = {"claude": ("Bash", "command"), "codex": ("exec_command", "cmd"), "pi": ("bash", "command")}
"""Harness → its tool that runs a shell command, and that tool's argument."""
DONE = "Done."
Call = dict[str, Any]


def right_call(job: Job, harness: str) -> Call:
    """The tool call that does a job: pi's own tools where it has one, else a shell command."""
    name, text = f"{job.name}.txt", " ".join(job.words)
    if harness == "pi" and job.kind in ("create", "nest"):
        path = name if job.kind == "create" else f"{job.other}/{name}"
        return {"name": "write", "arguments": {"path": path, "content": f"{text}\n"}}
    if harness == "pi" and job.kind == "replace":
        edit = {"oldText": job.words[0], "newText": job.words[1]}
        return {"name": "edit", "arguments": {"path": name, "edits": [edit]}}
    tool, argument = SHELLS[harness]
    return {"name": tool, "arguments": {argument: shell_command(job)}}


def shell_command(job: Job) -> str:
    name, other, text = f"{job.name}.txt", f"{job.other}.txt", " ".join(job.words)
    match job.kind:
        case "create":
            return f"echo {text} > {name}"
        case "append":
            return f"echo {text} >> {name}"
        case "replace":
            return f"sed -i s/{job.words[0]}/{job.words[1]}/ {name}"
        case "rename":
            return f"mv {name} {other}"
        case "delete":
            return f"rm {name}"
        case "copy":
            return f"cp {name} {other}"
        case "nest":
            return f"mkdir {job.other} && echo {text} > {job.other}/{name}"


def step(job: Job, harness: str, way: Way, random_: random.Random) -> dict[str, Any]:
    """One first reply to a job, as a step of the script."""
    if way == "idle":
        return {"text": DONE}
    if way == "other_name":
        job = _with(job, name=random_.choice([word for word in NAMES if word not in (job.name, job.other)]))
    if way == "other_words":
        if not job.words:
            return {"text": DONE}
        job = _with(job, words=tuple(random_.sample([w for w in CONTENTS if w not in job.words], len(job.words))))
    call = right_call(job, harness)
    if way == "unknown_tool":
        call = {**call, "name": "run"}
    if way == "malformed":
        return {"raw": f'<tool_call>\n{{"name": "{call["name"]}", "arguments": \n</tool_call>', "end": True}
    return {"tool_calls": [call]}


def make_script(jobs: Sequence[Job], harness: str, *, samples: int, seed: int) -> list[dict[str, Any]]:
    """Steps for ``samples`` episodes of each job: a first reply of its own for each, and the same end for all."""
    random_ = random.Random(seed)
    steps: list[dict[str, Any]] = [{"match": "</tool_response>", "text": DONE, "repeat": True}]
    ways = list(WAYS)
    for job in jobs:
        for way in random_.choices(ways, [WAYS[way] for way in ways], k=samples):
            steps.append({"match": job.prompt, **step(job, harness, way, random_)})
    return steps


def _with(job: Job, **changed: Any) -> Job:
    return replace(job, **changed)
