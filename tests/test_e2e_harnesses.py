"""Running rows: which are run, what is kept of them, and what a broken one says."""

import dataclasses
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.rollout.harnesses import find_harness
from scripts.e2e_harnesses import main, read_results, run_row
from scripts.harness_outcome import Outcome
from scripts.harness_rows import Row
from scripts.harness_verdicts import WANTED_HASH

ROW = Row("codex", "custom", "proxy", "works")
GOOD = Outcome(
    row=ROW.id,
    version=find_harness("codex").version,
    exit_code=0,
    run_code=0,
    end="completed",
    kept=("changes.diff", "run.json", "stderr.txt", "stdout.txt"),
    in_diff=True,
    seconds=2.4,
    calls=("answered", "answered"),
    turns=("start", "exact"),
    steps=(1, 0),
    tool_ran=True,
    file_hash=WANTED_HASH,
    hosts=("api.github.com 404", "github.com 404"),
    escaped=(),
    names=(),
    no_route=0,
    stdout="I wrote the file.\n",
    stderr="",
    finished_at=time.mktime((2026, 12, 1, 12, 0, 0, 0, 0, 0)),
)


def _keep(folder: Path, outcome: Outcome) -> None:
    (folder / outcome.row).mkdir()
    (folder / outcome.row / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))


def test_outcomes_of_another_version_are_forgotten(tmp_path: Path) -> None:
    _keep(tmp_path, GOOD)
    assert read_results([ROW], tmp_path) == {ROW.id: GOOD}

    _keep(tmp_path, replace(GOOD, row="codex-builtin-proxy-works", version="0.0.1"))
    assert read_results([replace(ROW, variant="builtin")], tmp_path) == {}
    (tmp_path / ROW.id / "outcome.json").write_text("{}")
    assert read_results([ROW], tmp_path) == {}


def test_resuming_runs_nothing_that_was_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _keep(tmp_path, GOOD)

    code = main(["--resume", "--only", ROW.id, "--folder", str(tmp_path), "--document", str(tmp_path / "doc.md")])

    assert code == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *(
            "codex",
            GOOD.version,
            "custom",
            "proxy",
            "0",
            "2",
            "1",
            "of",
            "1",
            "api.github.com,",
            "github.com",
            "2",
            "ok",
        )
    ]


def test_a_name_that_no_row_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing", "--folder", str(tmp_path)])
    assert "no row begins so; there are: pi-anthropic-base-url-works" in capsys.readouterr().err


def test_a_row_that_breaks_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "empty"))

    result = run_row(ROW, tmp_path / "row", threading.Event())

    assert isinstance(result, str)
    assert "is not installed: `dragoman harness install codex`" in result
