"""Workspaces of every kind, and copies of them that an agent cannot turn against a check."""

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from dragoman.rollout.tasks import ArchiveWorkspace, FilesWorkspace, FolderWorkspace, GitWorkspace, Workspace
from dragoman.rollout.workspaces import WorkspaceError, copy_for_checks, make_workspace, put_files

MOST = 1_000_000


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _sources(folder: Path) -> dict[str, Workspace]:
    source = folder / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "deep" / "b.txt").write_text("b")
    _git(source, "init", "-q")
    _git(source, "add", "-A")
    _git(source, "commit", "-qm", "first")
    first = _git(source, "rev-parse", "HEAD")
    with tarfile.open(folder / "a.tar.gz", "w:gz") as tar:
        tar.add(source / "a.txt", "a.txt")
        tar.add(source / "deep", "deep")
    with zipfile.ZipFile(folder / "a.zip", "w") as packed:
        packed.write(source / "a.txt", "a.txt")
        packed.write(source / "deep" / "b.txt", "deep/b.txt")
    (source / "answer.txt").write_text("42")
    _git(source, "add", "-A")
    _git(source, "commit", "-qm", "the answer")
    return {
        "git": GitWorkspace(str(source), first),
        "tar": ArchiveWorkspace(folder / "a.tar.gz"),
        "zip": ArchiveWorkspace(folder / "a.zip"),
        "files": FilesWorkspace((("a.txt", b"a"), ("deep/b.txt", b"b"))),
    }


@pytest.mark.parametrize("kind", ["git", "tar", "zip", "files"])
def test_each_is_a_repository_with_one_commit(tmp_path: Path, kind: str) -> None:
    work = tmp_path / "work"
    make_workspace(_sources(tmp_path)[kind], work)

    assert {path.relative_to(work).as_posix() for path in work.rglob("*.txt")} == {"a.txt", "deep/b.txt"}
    assert _git(work, "log", "--all", "--format=%s") == "The task."
    assert _git(work, "status", "--porcelain") == ""


def test_a_folder_is_copied_without_its_history(tmp_path: Path) -> None:
    _sources(tmp_path)
    make_workspace(FolderWorkspace(tmp_path / "source"), tmp_path / "work")
    (tmp_path / "work" / "a.txt").write_text("changed")
    assert (tmp_path / "source" / "a.txt").read_text() == "a"
    assert _git(tmp_path / "work", "log", "--all", "--format=%s") == "The task."


def test_what_cannot_be_made_says_why(tmp_path: Path) -> None:
    sources = _sources(tmp_path)
    git = sources["git"]
    assert isinstance(git, GitWorkspace)
    with pytest.raises(WorkspaceError, match="git archive ended with 128"):
        make_workspace(GitWorkspace(git.repository, "0" * 40), tmp_path / "one")
    with pytest.raises(WorkspaceError, match="git clone ended with 128"):
        make_workspace(GitWorkspace(str(tmp_path / "nowhere"), "HEAD"), tmp_path / "two")
    (tmp_path / "bad.tar").write_bytes(b"no archive")
    with pytest.raises(WorkspaceError, match="could not be made"):
        make_workspace(ArchiveWorkspace(tmp_path / "bad.tar"), tmp_path / "three")


def test_an_archive_that_leads_outside_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        entry = tarfile.TarInfo("../outside.txt")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(WorkspaceError):
        make_workspace(ArchiveWorkspace(tmp_path / "evil.tar"), tmp_path / "work")
    assert not (tmp_path / "outside.txt").exists()


def test_a_copy_holds_plain_files_and_links_that_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    work = tmp_path / "work"
    make_workspace(FilesWorkspace((("a.txt", b"a"), ("deep/b.txt", b"b"), ("run", b"#!/bin/sh\n"))), work)
    (work / "inside").symlink_to("deep/b.txt")
    (work / "absolute").symlink_to(tmp_path / "secret")
    (work / "above").symlink_to("../secret")
    (work / "chain").symlink_to("above")
    (work / "folder").symlink_to("..")
    os.link(tmp_path / "secret", work / "hard")
    os.mkfifo(work / "pipe")
    (work / "deep" / "__pycache__").mkdir()
    (work / "deep" / "__pycache__" / "b.pyc").write_text("")
    (work / "x.pth").write_text("")

    copy_for_checks(work, tmp_path / "copy", (), (), most_bytes=MOST)

    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["a.txt", "deep", "hard", "inside", "run"]
    assert (tmp_path / "copy" / "inside").read_text() == "b"
    assert os.access(tmp_path / "copy" / "run", os.X_OK)
    (tmp_path / "copy" / "hard").write_text("other")
    assert (tmp_path / "secret").read_text() == "secret"


def test_steering_files_are_the_tasks_own(tmp_path: Path) -> None:
    work = tmp_path / "work"
    made = make_workspace(FilesWorkspace((("conftest.py", b"mine"), ("deep/tox.ini", b"mine"))), work)
    (work / "conftest.py").write_text("evil")
    (work / "deep" / "tox.ini").unlink()
    (work / "deep" / "conftest.py").write_text("evil")
    (work / "unittest").mkdir()
    (work / "unittest" / "__init__.py").write_text("evil")

    copy_for_checks(work, tmp_path / "copy", made.steering, (("deep/pytest.ini", b"check"),), most_bytes=MOST)

    found = {path.relative_to(tmp_path / "copy").as_posix(): path for path in (tmp_path / "copy").rglob("*")}
    assert {name: path.read_text() for name, path in found.items() if path.is_file()} == {
        "conftest.py": "mine",
        "deep/tox.ini": "mine",
        "deep/pytest.ini": "check",
    }


def test_a_copy_that_is_too_large_is_refused(tmp_path: Path) -> None:
    make_workspace(FilesWorkspace((("a.txt", b"a" * 100),)), tmp_path / "work")
    with pytest.raises(WorkspaceError, match="the workspace holds more than 99 bytes"):
        copy_for_checks(tmp_path / "work", tmp_path / "copy", (), (), most_bytes=99)


def test_files_are_never_written_through_links(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "test.py").write_text("outside")
    (inside / "tests").symlink_to(outside)
    (inside / "link.py").symlink_to(outside / "test.py")
    (inside / "file").write_text("")
    (inside / "dir.py").mkdir()

    put_files(inside, (("tests/test.py", b"new"), ("link.py", b"new"), ("file/a.py", b"new"), ("dir.py", b"new")))

    assert (outside / "test.py").read_text() == "outside"
    for name in ("tests/test.py", "link.py", "file/a.py", "dir.py"):
        assert (inside / name).read_text() == "new"
