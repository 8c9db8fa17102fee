"""``dragoman harness probe``: its options, what a person and a program read, the exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import probe as command
from dragoman.cli import probe_run
from dragoman.cli.probe_run import Probe
from dragoman.rollout.harnesses import find_harness
from dragoman.rollout.probe.cases import PROMPT
from dragoman.rollout.probe.records import CaseRun
from tests.rollout.probe.runs import text, tools


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the runs: what it was asked for, and the ``runs`` that it gives."""
    seen: dict[str, Any] = {"runs": [text(), tools(), text("proxy"), tools("proxy")]}

    def play(probe: Probe, folder: Path, *, private: bool, say: Callable[[str], None]) -> list[CaseRun]:
        seen.update(probe=probe, folder=folder, private=private, there=folder.is_dir())
        if isinstance(seen["runs"], OSError):
            raise seen["runs"]
        runs: list[CaseRun] = seen["runs"]
        return runs

    monkeypatch.setattr(probe_run, "play", play)
    return seen


def test_a_command_that_is_trainable(run: Callable[..., Any], played: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = run("harness", "probe", "--json", str(file), "--env", "A=b", "--", "agent", "-p", "{prompt}", "--x")

    assert result.code == 0, result.err
    assert "trainable as is." in result.out
    assert "base URL" in result.out
    probe = played["probe"]
    assert (probe.words, probe.modes, probe.prompt) == (
        ("agent", "-p", "{prompt}", "--x"),
        ("base-url", "proxy"),
        PROMPT,
    )
    assert (probe.env, probe.long, probe.only, played["private"], played["there"]) == (
        {"A": "b"},
        False,
        (),
        True,
        True,
    )
    assert not played["folder"].exists()
    report = json.loads(file.read_text())
    assert (report["verdict"], report["what"]) == ("trainable as is", "agent -p {prompt} --x")
    assert {"about": "CA", "answer": "trusted", "weight": "good", "detail": "", "mode": "proxy"} in report["findings"]


def test_json_on_stdout_is_all_that_is_there(run: Callable[..., Any], played: dict[str, Any]) -> None:
    result = run("harness", "probe", "--json", "-", "--", "agent", "--url", "{base_url}/v1")

    report = json.loads(result.out)
    assert (report["verdict"], report["settings"]) == (
        "trainable with these settings",
        ["its arguments name {base_url}"],
    )


def test_one_that_is_not_says_why_and_fails(run: Callable[..., Any], played: dict[str, Any]) -> None:
    played["runs"] = [text(requests=(), calls=(), exit_code=1, stderr="[bold] boom")]
    result = run("harness", "probe", "--mode", "base-url", "--network", "shared", "--timeout", "5", "--", "agent")

    assert result.code == 1
    assert "not trainable, because:" in result.out
    assert "[bold] boom" in result.out
    assert (played["probe"].modes, played["private"], played["probe"].timeout) == (("base-url",), False, 5)


def test_a_harness_of_the_table_is_told_with_its_settings(
    run: Callable[..., Any], played: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    program = tmp_path / "cache" / "harnesses" / f"codex-{find_harness('codex').version}" / "bin" / "codex"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    result = run(
        "harness", "probe", "--harness", "codex", "--case", "tools", "--case", "empty", "--keep", str(tmp_path / "k")
    )

    assert result.code == 0, result.err
    assert result.out.startswith(f"codex custom {find_harness('codex').version}")
    assert "by base URL its settings in ~/.codex/config.toml" in result.out
    assert (played["probe"].place, played["probe"].only) == (program.parent.parent, ("tools", "empty"))
    assert played["folder"] == tmp_path / "k"
    assert played["folder"].is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one"),
        (["--harness", "claude", "--", "x"], "name one"),
        (["--harness", "nobody"], "no harness 'nobody'"),
        (["--harness", "claude"], "is not installed"),
        (["--variant", "v", "--", "x"], "--variant goes with --harness"),
        (["--case", "nothing", "--", "x"], "no case 'nothing'"),
        (["--mode", "sideways", "--", "x"], "sideways"),
    ],
)
def test_wrong_usage(
    run: Callable[..., Any],
    played: dict[str, Any],
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    result = run("harness", "probe", *arguments)

    assert result.code == 2
    assert said in result.err
    assert "probe" not in played


def test_a_program_that_is_not_there(run: Callable[..., Any], played: dict[str, Any], tmp_path: Path) -> None:
    played["runs"] = FileNotFoundError(2, "No such file or directory", "agent")
    result = run("harness", "probe", "--", "agent")

    assert (result.code, result.out) == (2, "")
    assert "cannot start it" in result.err

    (tmp_path / "there").mkdir()
    assert run("harness", "probe", "--keep", str(tmp_path / "there"), "--", "x").code == command.NOT_STARTED


def test_files_are_named_from_the_folder_in_which_the_command_was_typed(
    run: Callable[..., Any], played: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("agent.py", "agent"):
        (tmp_path / name).touch()
    run("harness", "probe", "--", "agent", "agent.py", "{prompt}", "-p", "other.py")
    assert played["probe"].words == ("agent", str(tmp_path / "agent.py"), "{prompt}", "-p", "other.py")

    run("harness", "probe", "--", "./agent", "x")
    assert played["probe"].words == (str(tmp_path / "agent"), "x")
