"""``dragoman train``: the same command in the engine environment, and errors in plain words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import train
from dragoman.cli.output import Failure


def test_it_becomes_the_same_command_where_trl_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    became: list[tuple[object, list[str]]] = []
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    monkeypatch.setattr(train, "find_trainer", lambda: Path("/there/python"))

    def become(python: object, command: list[str]) -> None:
        became.append((python, command))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr(sys, "argv", ["dragoman", "train", "grpo", "a.yaml", "--beta", "0.1"])
    with pytest.raises(SystemExit):
        train._train("grpo", Path("a.yaml"), ["--beta", "0.1"], False)
    command = ["/there/python", "-m", "dragoman", "train", "grpo", "a.yaml", "--beta", "0.1"]
    assert became == [(Path("/there/python"), command)]


def test_no_environment_with_trl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_ENGINE_PYTHON", "/bin/false")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    with pytest.raises(Failure, match=r"no environment with trl: run `make setup`.*DRAGOMAN_ENGINE_PYTHON"):
        train.find_trainer()


def test_training_and_db_import_no_mitmproxy() -> None:
    modules = "cli.train, cli.db, trainer.source, trainer.checkpoints, trainer.samples, trainer.batch"
    code = (
        f"import sys, {', '.join(f'dragoman.{name}' for name in modules.split(', '))}; "
        "sys.exit(any(name.split('.')[0] == 'mitmproxy' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
