"""What a task is: a prompt, the folder to work in, and the checks that say what the work is worth.

Rules of this module: frozen records and pure reading of one JSON-like object. A task that cannot be is refused with
every mistake in it at once, each with its place. Files of checks are held in memory from the start: what an agent does
to the disk later cannot change them.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dragoman.store.records import JsonObject

__all__ = [
    "ArchiveWorkspace",
    "Check",
    "CommandCheck",
    "EqualCheck",
    "FileTree",
    "FilesWorkspace",
    "FolderWorkspace",
    "FunctionCheck",
    "GitWorkspace",
    "JudgeCheck",
    "RegexCheck",
    "SchemaCheck",
    "Task",
    "TestsCheck",
    "Workspace",
]

FileTree = tuple[tuple[str, bytes], ...]
"""Relative paths (with ``/``, none leads out) and contents."""


@dataclass(frozen=True)
class FolderWorkspace:
    """A copy of a folder."""

    folder: Path


@dataclass(frozen=True)
class GitWorkspace:
    """The files of one commit, without the history behind or after it (a later commit may hold the answer)."""

    repository: str
    """A folder or a URL."""
    commit: str


@dataclass(frozen=True)
class ArchiveWorkspace:
    """What a tar or zip file holds."""

    archive: Path


@dataclass(frozen=True)
class FilesWorkspace:
    """Files written in the task itself; none: an empty folder."""

    files: FileTree = ()


Workspace = FolderWorkspace | GitWorkspace | ArchiveWorkspace | FilesWorkspace


@dataclass(frozen=True, kw_only=True)
class _Common:
    name: str
    """The component's name in the store; unique in its task."""
    weight: float = 1.0
    """Its part in the reward; below 0 it is a penalty."""
    time_limit: float | None = None
    """Seconds. None: the run's own limit for checks."""


@dataclass(frozen=True, kw_only=True)
class CommandCheck(_Common):
    """1.0 when the shell command ends with 0, else 0.0."""

    run: str
    files: FileTree = ()
    """Put over the copy of the workspace before."""


@dataclass(frozen=True, kw_only=True)
class TestsCheck(_Common):
    """What pytest or unittest says of the test files. Only a test that passed counts: a skipped one does not."""

    __test__ = False  # no class of tests, though pytest would take it for one by its name
    framework: Literal["pytest", "unittest"]
    files: FileTree
    paths: tuple[str, ...]
    """Files with tests, as they lie in the workspace."""
    score: Literal["all", "fraction"] = "all"
    """``all``: 1.0 when every test passed, else 0.0. ``fraction``: passed by all."""
    python: str | None = None
    """None: this Python where it has the framework, else ``python3``."""


@dataclass(frozen=True, kw_only=True)
class EqualCheck(_Common):
    """1.0 when a file of the workspace has exactly this content."""

    path: str
    content: bytes
    strip: bool = True
    """White space at both ends does not count."""


@dataclass(frozen=True, kw_only=True)
class SchemaCheck(_Common):
    """1.0 when a file of the workspace is JSON that fits a JSON schema."""

    path: str
    schema: JsonObject


@dataclass(frozen=True, kw_only=True)
class RegexCheck(_Common):
    """1.0 when the pattern is found (``re.search``, ``^`` and ``$`` at line ends)."""

    pattern: str
    where: Literal["file", "output", "reply"]
    path: str | None = None
    """The file, for ``file``."""
    absent: bool = False
    """1.0 when it is *not* found."""


@dataclass(frozen=True, kw_only=True)
class FunctionCheck(_Common):
    """What ``module:function(episode, workspace)`` returns: a number, or named numbers with ``reward`` among them."""

    function: str
    folder: Path
    """Where the module is looked for first: the task file's folder."""


@dataclass(frozen=True, kw_only=True)
class JudgeCheck(_Common):
    """What another model says: a number from 0 to 1."""

    url: str
    """Base URL of an OpenAI-compatible API, as ``http://host:port/v1``."""
    model: str
    rubric: str
    key_env: str | None = None
    """Name of the variable with the API key. None: the API wants none."""


Check = CommandCheck | TestsCheck | EqualCheck | SchemaCheck | RegexCheck | FunctionCheck | JudgeCheck


@dataclass(frozen=True)
class Task:
    id: str
    prompt: str
    workspace: Workspace = FilesWorkspace()
    setup: str | None = None
    """A shell command that is run in the workspace before the harness starts."""
    checks: tuple[Check, ...] = ()
    """None at all: episodes of the task get no reward."""
    time_limit: float | None = None
    """Seconds that the harness may take. None: the run's own limit."""
    split: str | None = None
    metadata: JsonObject = field(default_factory=dict)
    """Kept with each episode, and given to functions."""
    source: Path | None = None
    """The file that it was read from; its folder is hidden from agents. None: made in code."""
