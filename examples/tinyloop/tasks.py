"""Small jobs on files, made by rule: what an agent can only do with its tools, and a check can decide.

Rules of this module: pure; the same seed gives the same tasks. No task of one split is in the other, and two kinds of
jobs (``UNSEEN``) are in the held-out split only.

``python -m examples.tinyloop.tasks FOLDER [--train N] [--held-out N] [--unseen N] [--seed S]`` writes the task file.
"""

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from examples.tinyloop.words import CONTENTS, NAMES

Kind = Literal["create", "append", "replace", "rename", "delete", "copy", "nest"]
SEEN: tuple[Kind, ...] = ("create", "append", "replace", "rename", "delete")
UNSEEN: tuple[Kind, ...] = ("copy", "nest")


@dataclass(frozen=True)
class Job:
    """One thing to do to files."""

    kind: Kind
    name: str
    """The file that it is about, without ``.txt``."""
    other: str
    """The other file, or folder, of kinds that have two."""
    words: tuple[str, ...]
    """What is written; ``replace``: the old word and the new one."""
    before: dict[str, str] = field(default_factory=dict)
    """The files that are there: name → content."""

    @property
    def prompt(self) -> str:
        """It ends with a file's name, so that none is the beginning of another one."""
        name, other, text = f"{self.name}.txt", f"{self.other}.txt", " ".join(self.words)
        match self.kind:
            case "create":
                return f"Create a file with the content {text} and name it {name}"
            case "append":
                return f"Append the line {text} to the file {name}"
            case "replace":
                return f"Replace {self.words[0]} by {self.words[1]} in the file {name}"
            case "rename":
                return f"Rename the file {name} to {other}"
            case "delete":
                return f"Delete the file {name} and keep {other}"
            case "copy":
                return f"Copy the file {name} to {other}"
            case "nest":
                return f"Create a file with the content {text} and name it {self.other}/{name}"

    @property
    def after(self) -> dict[str, str | None]:
        """What must be there then: name → content; ``None``: no such file."""
        name, other = f"{self.name}.txt", f"{self.other}.txt"
        line = " ".join(self.words) + "\n"
        untouched: dict[str, str | None] = {path: text for path, text in self.before.items() if path != name}
        match self.kind:
            case "create":
                return {name: line}
            case "append":
                return {name: self.before[name] + line}
            case "replace":
                return {name: self.before[name].replace(self.words[0], self.words[1])}
            case "rename":
                return {name: None, other: self.before[name]}
            case "delete":
                return {**untouched, name: None}
            case "copy":
                return {name: self.before[name], other: self.before[name]}
            case "nest":
                return {f"{self.other}/{name}": line}


def make_job(kind: Kind, random_: random.Random) -> Job:
    """A job of a kind, with words drawn at random."""
    name, other = random_.sample(NAMES, 2)
    words = random_.sample(CONTENTS, 4)
    there = {f"{name}.txt": f"{words[2]}\n"}
    match kind:
        case "create" | "nest":
            return Job(kind, name, other, tuple(words[: random_.choice((1, 2))]))
        case "append":
            return Job(kind, name, other, (words[0],), there)
        case "replace":
            return Job(kind, name, other, (words[0], words[1]), {f"{name}.txt": f"{words[2]} {words[0]} {words[3]}\n"})
        case "delete":
            return Job(kind, name, other, (), {**there, f"{other}.txt": f"{words[3]}\n"})
        case "rename" | "copy":
            return Job(kind, name, other, (), there)


def make_jobs(*, train: int, held_out: int, unseen: int, seed: int) -> dict[str, list[Job]]:
    """Split → jobs: ``train``, ``held-out`` (the same kinds) and ``unseen`` (other kinds), no two with one prompt.

    Raises ``ValueError`` when there are not so many.
    """
    random_ = random.Random(seed)
    said: set[str] = set()

    def draw(kinds: tuple[Kind, ...], count: int) -> list[Job]:
        jobs: list[Job] = []
        misses = 0
        while len(jobs) < count:
            job = make_job(kinds[len(jobs) % len(kinds)], random_)
            if job.prompt in said:
                misses += 1
                if misses > 1000:
                    raise ValueError(f"the words do not give {count} different jobs more; ask for fewer")
                continue
            said.add(job.prompt)
            jobs.append(job)
            misses = 0
        return jobs

    return {"train": draw(SEEN, train), "held-out": draw(SEEN, held_out), "unseen": draw(UNSEEN, unseen)}


def task_row(job: Job, split: str, number: int) -> dict[str, Any]:
    """A line of a task file. Its reward is 1 when all is as it must be, else 0."""
    return {
        "id": f"{split}-{number:03}-{job.kind}",
        "prompt": job.prompt,
        "workspace": {"files": job.before},
        "checks": [{"name": "done", "kind": "command", "run": check_command(job)}],
        "split": split,
        "metadata": {"kind": job.kind},
    }


def check_command(job: Job) -> str:
    """A shell command that ends with 0 when every file is as it must be. White space at the ends of lines is free."""
    tests = []
    for path, text in job.after.items():
        if text is None:
            tests.append(f"[ ! -e {path} ]")
        else:
            tests.append(f'[ "$(sed \'s/[ \\t]*$//\' {path})" = "{text.strip()}" ]')
    return " && ".join(tests)


def write_tasks(folder: Path, jobs: dict[str, list[Job]]) -> Path:
    path = folder / "tasks.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [task_row(job, split, number) for split, some in jobs.items() for number, job in enumerate(some)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def add_options(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], dict[str, list[Job]]]:
    parser.add_argument("--train", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--unseen", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return lambda given: make_jobs(train=given.train, held_out=given.held_out, unseen=given.unseen, seed=given.seed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.tinyloop.tasks", description=__doc__)
    parser.add_argument("folder", type=Path)
    jobs_of = add_options(parser)
    options = parser.parse_args()
    print(write_tasks(options.folder, jobs_of(options)))


if __name__ == "__main__":
    main()
