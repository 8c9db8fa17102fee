"""The table of real harness runs: what counts as good, and the half of it that needs no vLLM."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dragoman.cli.output import Failure
from dragoman.rollout.install import InstallError
from dragoman.rollout.process import HarnessResult

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "e2e_first.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dragoman_e2e_first", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dragoman_e2e_first"] = module
    spec.loader.exec_module(module)
    return module


e2e = _load()

GOOD = HarnessResult(0, "I wrote the file.\n", "", 1.0)
ANSWERED = ["answered", "answered"]


def test_a_good_run_has_no_problem() -> None:
    assert e2e.judge("scripted", GOOD, ["refused", *ANSWERED], e2e.WANTED_HASH) == ()
    assert e2e.judge("real", GOOD, ["answered"], "") == ()


@pytest.mark.parametrize(
    ("engine", "result", "statuses", "file_hash", "problem"),
    [
        ("real", HarnessResult(1, "x", "", 1.0), ["answered"], "", "exit code 1"),
        ("real", HarnessResult(None, "x", "", 300.0), ["answered"], "", "stopped after 300 s"),
        ("real", HarnessResult(0, "\n", "", 1.0), ["answered"], "", "it printed nothing"),
        ("real", GOOD, [], "", "no call was answered"),
        ("real", GOOD, ["answered", "failed"], "", "calls that are failed"),
        ("real", GOOD, ["answered", "open"], "", "calls that are open"),
        ("scripted", GOOD, ["answered"], e2e.WANTED_HASH, "no second call after the tool's result"),
        ("scripted", GOOD, ANSWERED, "", "the tool call wrote no file"),
        ("scripted", GOOD, ANSWERED, "0" * 12, "the file is not the one asked for"),
    ],
)
def test_each_flaw_is_named(
    engine: str, result: HarnessResult, statuses: list[str], file_hash: str, problem: str
) -> None:
    assert e2e.judge(engine, result, statuses, file_hash) == (problem,)


def test_a_harness_that_cannot_be_installed_fails_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_row(address: str, harness: str, *rest: object) -> object:
        raise InstallError(f"npm has no {harness}\nmore")

    monkeypatch.setattr(e2e, "run_row", run_row)

    rows = list(e2e.run_rows("http://127.0.0.1:1", ("pi",), "scripted", tmp_path))

    assert [(row.mode, row.exit_code, row.problems) for row in rows] == [
        ("proxy", None, ("npm has no pi",)),
        ("base-url", None, ("npm has no pi",)),
    ]


def test_an_engine_that_does_not_start_fails_the_rows_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = e2e.Row("pi", "proxy", "real", 0, 1, "", 1.0, ())

    def real_rows(folder: Path) -> Iterator[object]:
        yield good
        raise Failure("vLLM exited with 1\nmore")

    monkeypatch.setattr(e2e, "real_rows", real_rows)
    monkeypatch.setattr(e2e.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setenv("DRAGOMAN_HOME", "")

    assert e2e.main(["--only", "real"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["pi", "proxy", "real"],
        ["pi", "base-url", "real"],
        ["claude", "proxy", "real"],
        ["claude", "base-url", "real"],
    ]
    assert lines[1].endswith("ok")
    assert all(line.endswith("FAILED: vLLM exited with 1") for line in lines[2:5])
    assert str(tmp_path) in lines[-1]


@pytest.mark.harness
def test_in_each_real_harness_and_mode_a_tool_call_really_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path / "state"))

    rows = list(e2e.scripted_rows(tmp_path))

    assert [(row.harness, row.mode, row.exit_code, row.file_hash, row.problems) for row in rows] == [
        (harness, mode, 0, e2e.WANTED_HASH, ()) for harness in ("pi", "claude") for mode in ("proxy", "base-url")
    ]
