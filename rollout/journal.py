"""What a run has done so far, in a folder of the state folder, so that the same command goes on where it was.

Rules of this module: one line of JSON for each event, appended; a last line that was cut by a crash counts for nothing.
One process has a run at a time; the kernel lets go of its lock however it ends.
"""

import fcntl
import json
import os
import re
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from dragoman.rollout.samples import Outcome, Sample

__all__ = ["Journal", "RunBusy", "RunName", "free_name"]

Key = tuple[str, str, int, int | None]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunBusy(Exception):
    """Another process has the run."""


@dataclass(frozen=True)
class RunName:
    """A run's name, known to be good for a folder and for groups. Raises ``ValueError``."""

    text: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.text):
            raise ValueError(f"{self.text!r} is no name for a run: 1 to 100 letters, digits, '.', '_' and '-' are")


def free_name(folder: Path, name: str) -> str:
    """``name``, or the first of ``name-2``, ``name-3``, … that no run has."""
    number, found = 1, name
    while (folder / found).exists():
        number += 1
        found = f"{name}-{number}"
    return found


@dataclass
class Journal:
    """Open it with ``with``; raises ``RunBusy`` where another process has it."""

    folder: Path
    """The run's own."""
    done: dict[Key, Outcome] = field(default_factory=dict)
    """What each sample came to that need not be run again."""
    open: dict[str, Key] = field(default_factory=dict)
    """Episodes that were opened, and whose end was not noted: their runner was killed."""
    _file: TextIO | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "Journal":
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / "journal.jsonl"
        self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            name = self.folder.name
            raise RunBusy(f"another process has the run {name!r}; name another with --run, or end that one") from error
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith("\n"):
                break  # it was being written when its process was killed
            whole += len(line.encode())
            self._read(json.loads(line))
        os.truncate(path, whole)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def opened(self, sample: Sample, episode_id: str) -> None:
        task, harness, number, round_ = sample.key
        event = {"event": "opened", "episode": episode_id, "key": [task, harness, number, round_]}
        self._write(event)

    def ended(self, outcome: Outcome) -> None:
        self._write({"event": "ended", "outcome": asdict(outcome)})

    def _write(self, event: dict[str, Any]) -> None:
        assert self._file is not None
        with self._lock:
            self._read(event)
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()

    def _read(self, event: dict[str, Any]) -> None:
        if event["event"] == "opened":
            task, harness, number, round_ = event["key"]
            self.open[event["episode"]] = (task, harness, number, round_)
            return
        values = dict(event["outcome"])
        outcome = Outcome(**{**values, "problems": tuple(values["problems"])})
        if outcome.episode_id is not None:
            self.open.pop(outcome.episode_id, None)
        if not outcome.again and outcome.episode_id is not None and outcome.end != "abandoned":
            self.done[outcome.key] = outcome
