"""What a run changed in its working folder, as one diff: new files, edits, deletions, whether committed or not.

Two trees are compared, one written before the run and one after it. Git writes both into a folder of ours, with an
index of ours: the repository, its index and its branches stay exactly as they are. What the repository ignores is not
looked at. In a workspace that an agent may have turned against us, ``take_own_snapshot`` does not even read its
repository: a filter in its configuration would be a program that git starts for us.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ChangesError", "Snapshot", "changes_since", "take_own_snapshot", "take_snapshot"]

TIME_LIMIT = 120.0
"""Seconds for one git command."""
# A run may have written the repository's configuration: none of its programs are to be started on our account.
SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat")
# Made by running things, often large, and never the work.
MADE = (":(exclude,glob)**/__pycache__/**", ":(exclude,glob)**/node_modules/**", ":(exclude,glob)**/.venv/**")


class ChangesError(Exception):
    """Git could not say what changed; the message is its own."""


@dataclass(frozen=True)
class Snapshot:
    workdir: Path
    env: dict[str, str]
    """Git's environment: an index and an object folder of ours."""
    tree: str
    """Id of the tree that was written."""
    everything: bool = False
    """Also what the repository ignores, but ``MADE``."""


def take_snapshot(workdir: Path, scratch: Path) -> Snapshot | None:
    """The state of ``workdir`` now, kept in the empty folder ``scratch``; None where it is in no git repository.

    Raises ``ChangesError``.
    """
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"LC_ALL": "C"}
    if shutil.which("git") is None or not _in_repository(workdir, plain):
        return None
    index, objects = (_git(workdir, plain, "rev-parse", "--git-path", name).decode() for name in ("index", "objects"))
    (scratch / "objects").mkdir(parents=True)
    env = plain | {
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((workdir / objects.rstrip("\n")).resolve()),
    }
    known = workdir / index.rstrip("\n")
    if known.is_file():  # with the times of files in it, so that only what was touched is read
        shutil.copyfile(known, scratch / "index")
    return Snapshot(workdir, env, _write_tree(workdir, env))


def take_own_snapshot(workdir: Path, scratch: Path) -> Snapshot | None:
    """The state of ``workdir`` now, all files that are no ``MADE`` ones, kept in the empty folder ``scratch``.

    ``workdir``'s own repository, if it has one, is not read. None: there is no git here. Raises ``ChangesError``.
    """
    if shutil.which("git") is None:
        return None
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "LC_ALL": "C"}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    _git(scratch, env, "init", "-q", "--bare", str(scratch / "repository"))
    env |= {"GIT_DIR": str(scratch / "repository"), "GIT_WORK_TREE": str(workdir)}
    return Snapshot(workdir, env, _write_tree(workdir, env, everything=True), everything=True)


def changes_since(before: Snapshot) -> bytes:
    """The diff from ``before`` to now, in the form that ``git apply`` reads; empty: nothing changed.

    Raises ``ChangesError``.
    """
    after = _write_tree(before.workdir, before.env, everything=before.everything)
    options = ("--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--relative")
    return _git(before.workdir, before.env, "diff", *options, before.tree, after, "--", ".")


def _in_repository(workdir: Path, env: dict[str, str]) -> bool:
    done = subprocess.run(
        ["git", *SAFE, "rev-parse", "--is-inside-work-tree"], cwd=workdir, env=env, capture_output=True, text=True
    )
    return done.stdout.strip() == "true"


def _write_tree(workdir: Path, env: dict[str, str], *, everything: bool = False) -> str:
    _git(workdir, env, "add", "--all", *(("--force", "--", ".", *MADE) if everything else ("--", ".")))
    return _git(workdir, env, "write-tree").decode().strip()


def _git(workdir: Path, env: dict[str, str], *arguments: str) -> bytes:
    command = ["git", *SAFE, *arguments]
    try:
        done = subprocess.run(
            command, cwd=workdir, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired as error:
        raise ChangesError(f"git {arguments[0]} took more than {TIME_LIMIT:.0f} s") from error
    except OSError as error:
        raise ChangesError(f"git {arguments[0]} could not be started: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ChangesError(f"git {arguments[0]} ended with {done.returncode}: {said[-1] if said else 'no message'}")
    return done.stdout
