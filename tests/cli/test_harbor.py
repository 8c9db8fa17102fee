"""`dragoman harbor run`: what it says before a trial is run. The whole of it is in tests/e2e/test_harbor.py."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli import app
from dragoman.cli.output import Failure


def _fails(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["harbor", "run", *arguments])
    assert isinstance(result.exception, Failure), result.output
    return str(result.exception)


def test_without_harbor_it_says_how_to_get_it(tmp_path: Path) -> None:
    said = _fails(str(tmp_path), "--agent", "nop", "--harbor", "no-such-harbor")
    assert "uv tool install harbor" in said


def test_a_folder_without_tasks_and_a_missing_gateway_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path / "state"))
    harbor = ["--agent", "nop", "--harbor", "/bin/true", "--gateway", "127.0.0.1:1"]
    assert "has no task of Harbor" in _fails(str(tmp_path), *harbor)
    (tmp_path / "task.toml").write_text("")
    assert "has no task 'other'" in _fails(str(tmp_path), *harbor, "--task", "other")
    assert "no gateway answers" in _fails(str(tmp_path), *harbor)
    assert "no name for a run" in _fails(str(tmp_path), *harbor, "--run", "a/b")
