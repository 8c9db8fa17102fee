"""The diff of a run: everything that it did in its folder, and the repository as if we had never looked."""

import subprocess
from pathlib import Path

import pytest

from dragoman.rollout import changes
from dragoman.rollout.changes import ChangesError, Snapshot, changes_since, take_snapshot


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository with a commit, a staged change, an unstaged one, and an ignored file."""
    folder = tmp_path / "work"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    for name, content in (("a.txt", "one\n"), ("b.txt", "two\n"), (".gitignore", "*.log\n"), ("sub/c.txt", "three\n")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    (folder / "a.txt").write_text("one, staged\n")
    _git(folder, "add", "a.txt")
    (folder / "b.txt").write_text("two, unstaged\n")
    (folder / "x.log").write_text("noise\n")
    return folder


def _snapshot(work: Path, tmp_path: Path) -> Snapshot:
    (tmp_path / "scratch").mkdir()
    found = take_snapshot(work, tmp_path / "scratch")
    assert found is not None
    return found


def _state(work: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (work / ".git").rglob("*") if path.is_file()}


def test_new_edited_deleted_committed_and_binary(work: Path, tmp_path: Path) -> None:
    before = _snapshot(work, tmp_path)
    (work / "a.txt").write_text("one, by the run\n")
    (work / "sub" / "c.txt").unlink()
    (work / "new.bin").write_bytes(bytes(range(256)))
    (work / "x.log").write_text("more noise\n")
    _git(work, "add", ".")
    _git(work, "commit", "-q", "-m", "by the run")
    (work / "later.txt").write_text("not committed\n")

    diff = changes_since(before).decode()

    assert "-one, staged\n+one, by the run\n" in diff
    assert "deleted file mode 100644" in diff
    assert "GIT binary patch" in diff
    assert "+not committed" in diff
    assert "unstaged" not in diff  # it was there before
    assert "noise" not in diff


def test_the_diff_turns_the_one_state_into_the_other(work: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(work), str(copy)], check=True)
    before = _snapshot(work, tmp_path)
    (work / "a.txt").write_bytes(b"caf\xe9\n")
    (work / "sub" / "c.txt").rename(work / "sub" / "d e.txt")

    subprocess.run(["git", "apply"], input=changes_since(before), cwd=copy, check=True)

    assert (copy / "a.txt").read_bytes() == b"caf\xe9\n"
    assert (copy / "sub" / "d e.txt").read_text() == "three\n"


def test_the_repository_stays_as_it_is(work: Path, tmp_path: Path) -> None:
    _git(work, "status")  # git itself refreshes its index
    state = _state(work)

    before = _snapshot(work, tmp_path)
    (work / "new.txt").write_text("new\n")
    assert b"+new" in changes_since(before)

    assert _state(work) == state


def test_nothing_changed_is_an_empty_diff(work: Path, tmp_path: Path) -> None:
    assert changes_since(_snapshot(work, tmp_path)) == b""


def test_a_folder_inside_a_repository_is_looked_at_alone(work: Path, tmp_path: Path) -> None:
    before = _snapshot(work / "sub", tmp_path)
    (work / "a.txt").write_text("outside\n")
    (work / "sub" / "new.txt").write_text("inside\n")

    diff = changes_since(before).decode()

    assert "+++ b/new.txt" in diff
    assert "outside" not in diff


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    _git(work, "init", "-q")
    before = _snapshot(work, tmp_path)
    (work / "new.txt").write_text("new\n")

    assert b"+++ b/new.txt" in changes_since(before)


def test_no_repository_is_none(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()

    assert take_snapshot(tmp_path / "work", tmp_path / "scratch") is None


def test_without_git_there_is_none(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    assert take_snapshot(work, tmp_path / "scratch") is None


def test_a_program_in_the_repositorys_settings_is_not_started(work: Path, tmp_path: Path) -> None:
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    before = _snapshot(work, tmp_path)
    for name in ("core.fsmonitor", "diff.external", "core.pager", "diff.x.textconv", "diff.x.command"):
        _git(work, "config", name, str(program))
    (work / ".gitattributes").write_text("*.txt diff=x\n")
    (work / "a.txt").write_text("changed\n")

    assert b"+changed" in changes_since(before)

    assert not (tmp_path / "started").exists()


def test_gits_own_refusal_is_told(work: Path, tmp_path: Path) -> None:
    before = _snapshot(work, tmp_path)
    (work / "inner").mkdir()
    _git(work / "inner", "init", "-q")
    (work / "inner" / "x").write_text("x")

    with pytest.raises(ChangesError, match=r"git add ended with \d+: fatal: .*"):
        changes_since(before)


def test_git_that_hangs_is_told(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _snapshot(work, tmp_path)
    monkeypatch.setattr(changes, "TIME_LIMIT", 0.0)

    with pytest.raises(ChangesError, match="git add took more than 0 s"):
        changes_since(before)
