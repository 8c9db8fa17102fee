"""Which groups a checkpoint has trained, and which checkpoint a run goes on from.

The rules:

- A checkpoint is complete when it holds ``MARKER``, which is written last and whole. One without it was being written
  when its trainer was killed, and is passed over.
- The marker names every group that was trained until then and is not yet consumed in the store. So a trainer that is
  killed at any moment finds, in the checkpoint that it resumes from, what must not be trained again; all other groups
  that it had leased have not reached these weights, and are ready again.
- A run has a name of its own for its leases (``HOLDER``), in its output folder: the same after a restart, another one
  for every other run.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

MARKER = "trained_groups.json"
HOLDER = "holder.txt"
LOCK = "trainer.lock"


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    row: int
    step: int
    """The optimizer step that trained it."""


class RunInUse(RuntimeError):
    """Another trainer is at work in the output folder."""


def lock_run(folder: Path) -> TextIO:
    """Keep other trainers on this machine out of an output folder for as long as the returned file is open.

    Raises ``RunInUse``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunInUse(f"another trainer is at work in {folder}; end it, or name another output_dir") from None
    return file


def holder_of(folder: Path) -> str:
    """Under which name the run of an output folder leases groups; made on first use."""
    path = folder / HOLDER
    if not path.exists():
        _write_whole(path, f"trainer-{secrets.token_hex(8)}")
    return path.read_text().strip()


def write_marker(checkpoint: Path, trained: Sequence[TrainedGroup]) -> None:
    """Make a checkpoint complete, naming the groups that are trained in it and not yet consumed."""
    _write_whole(checkpoint / MARKER, json.dumps({"groups": [[group.row, group.step] for group in trained]}))


def read_marker(checkpoint: Path) -> list[TrainedGroup]:
    """Raises ``ValueError`` for a folder that is no complete checkpoint of ours."""
    try:
        kept = json.loads((checkpoint / MARKER).read_text())
        return [TrainedGroup(int(row), int(step)) for row, step in kept["groups"]]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{checkpoint} is no complete checkpoint of `dragoman train grpo` ({error})") from error


def checkpoint_step(checkpoint: Path) -> int:
    """The optimizer step of a folder ``checkpoint-<step>``; -1: it is none."""
    name, _, number = checkpoint.name.rpartition("-")
    return int(number) if name == "checkpoint" and number.isdecimal() else -1


def last_complete(folder: Path) -> Path | None:
    """The newest complete checkpoint in an output folder; ``None``: there is none."""
    found = [path.parent for path in folder.glob(f"checkpoint-*/{MARKER}") if checkpoint_step(path.parent) >= 0]
    return max(found, key=checkpoint_step, default=None)


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
