"""The folder that an agent works in, and the copy of it that checks run on.

Rules of this module: a workspace is new for each sample and shares nothing with its source; it is a git repository
with one commit, so that an agent can look at its own changes and finds no later commit with the answer in it. A copy
for checks takes plain files and links that stay inside, and nothing that another program obeys without being asked:
no ``.git``, no byte code, and the files that steer Python and pytest as the task had them.
"""

import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dragoman.rollout.tasks import (
    ArchiveWorkspace,
    FilesWorkspace,
    FileTree,
    FolderWorkspace,
    GitWorkspace,
    Workspace,
)

__all__ = ["Made", "WorkspaceError", "copy_for_checks", "make_workspace", "put_files"]

GIT_SECONDS = 600.0
PLAIN = {"LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_GLOBAL": "/dev/null"}
AUTHOR = ("-c", "user.name=task", "-c", "user.email=task@localhost", "-c", "commit.gpgsign=false")
PYTEST_FILES = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg")
STEERING = frozenset((*PYTEST_FILES, "pyproject.toml", "sitecustomize.py", "usercustomize.py", ".coveragerc"))
"""Names of files, in any folder, that decide how Python and pytest run without being named by anybody."""
MODULES = ("pytest", "_pytest", "unittest", "pluggy")
"""At the top of a workspace they would stand in for the test framework."""


class WorkspaceError(Exception):
    """The workspace could not be made; the message says why."""


@dataclass(frozen=True)
class Made:
    folder: Path
    steering: FileTree
    """The steering files that the task itself has; what a copy for checks gets."""


def make_workspace(workspace: Workspace, folder: Path) -> Made:
    """Fill ``folder``, which must not exist, and commit all of it. Raises ``WorkspaceError``."""
    try:
        match workspace:
            case FolderWorkspace(source):
                _copy_folder(source, folder)
            case GitWorkspace(repository, commit):
                _checkout(repository, commit, folder)
            case ArchiveWorkspace(archive):
                _unpack(archive, folder)
            case FilesWorkspace(files):
                folder.mkdir(parents=True)
                put_files(folder, files)
        shutil.rmtree(folder / ".git", ignore_errors=True)
        steering = tuple(
            (path.relative_to(folder).as_posix(), path.read_bytes())
            for path in sorted(folder.rglob("*"))
            if _steers(path.relative_to(folder)) and path.is_file() and not path.is_symlink()
        )
        if shutil.which("git"):
            _git(folder, "init", "-q", "-b", "main")
            _git(folder, "add", "-A", "-f")
            _git(folder, *AUTHOR, "commit", "-q", "--allow-empty", "-m", "The task.")
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise WorkspaceError(f"the workspace could not be made: {error}") from error
    return Made(folder, steering)


def copy_for_checks(workspace: Path, copy: Path, steering: FileTree, files: FileTree, *, most_bytes: int) -> None:
    """Copy a workspace to ``copy``, which must not exist, and put ``files`` over it.

    The agent's programs must have ended. Raises ``WorkspaceError`` when it holds more than ``most_bytes``.
    """
    copy.mkdir(parents=True)
    try:
        _copy_plain(workspace, copy, most_bytes)
        put_files(copy, steering)
        put_files(copy, files)
    except OSError as error:
        raise WorkspaceError(f"the workspace could not be copied for the check: {error}") from error


def put_files(folder: Path, files: FileTree) -> None:
    """Write files below ``folder``. What stands in the way, a link to somewhere above all, is removed."""
    for path, content in files:
        at = folder
        for part in PurePosixPath(path).parts[:-1]:
            at = at / part
            if at.is_symlink() or (at.exists() and not at.is_dir()):
                at.unlink()
            at.mkdir(exist_ok=True)
        at = at / PurePosixPath(path).name
        if at.is_symlink() or at.is_file():
            at.unlink()
        elif at.is_dir():
            shutil.rmtree(at)
        mode = 0o755 if content.startswith(b"#!") else 0o644
        with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            file.write(content)


def _steers(path: Path) -> bool:
    """Whether a file below a workspace decides how Python or pytest run, or stands in for the framework."""
    if path.name in STEERING or path.suffix in (".pth", ".pyc", ".pyo") or "__pycache__" in path.parts:
        return True
    return path.parts[0] in MODULES or path.parts[0] in {f"{name}.py" for name in MODULES}


def _copy_plain(source: Path, copy: Path, most_bytes: int) -> None:
    taken = 0
    root = source.resolve()
    for at, folders, names in os.walk(source, followlinks=False):
        here = Path(at)
        below = here.relative_to(source)
        linked = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in linked and name not in (".git", "__pycache__") and not _steers(below / name)
        ]
        for name in folders:
            (copy / below / name).mkdir()
        for name in [*names, *linked]:
            path, to = here / name, copy / below / name
            if _steers(below / name) or name == ".git":
                continue
            kind = path.lstat()
            if stat.S_ISLNK(kind.st_mode):
                target = os.readlink(path)
                if not os.path.isabs(target) and (here / target).resolve().is_relative_to(root):
                    to.symlink_to(target)
            elif stat.S_ISREG(kind.st_mode):
                taken += kind.st_size
                if taken > most_bytes:
                    raise WorkspaceError(f"the workspace holds more than {most_bytes:,} bytes")
                shutil.copyfile(path, to, follow_symlinks=False)
                to.chmod(0o755 if kind.st_mode & 0o100 else 0o644)


def _copy_folder(source: Path, folder: Path) -> None:
    ignore = shutil.ignore_patterns(".git", "__pycache__")
    shutil.copytree(source, folder, symlinks=True, ignore=ignore)


def _checkout(repository: str, commit: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dragoman-git-") as scratch:
        bare = Path(scratch) / "bare"
        _git(Path(scratch), "clone", "-q", "--bare", "--", repository, str(bare))
        folder.mkdir(parents=True)
        packed = Path(scratch) / "tree.tar"
        _git(bare, "archive", "--format=tar", "-o", str(packed), commit)
        with tarfile.open(packed) as tar:
            tar.extractall(folder, filter="tar")


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)  # leaves out what would lead outside
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _git(folder: Path, *arguments: str) -> None:
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **PLAIN}
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise WorkspaceError(f"git took more than {GIT_SECONDS:.0f} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        verb = next((word for word in arguments if word in ("clone", "archive", "init", "add", "commit")), "git")
        raise WorkspaceError(f"git {verb} ended with {done.returncode}: {said[-1] if said else 'no message'}")
