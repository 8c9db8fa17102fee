"""The harness table's own machinery: what is written where, and what a row's saved flows and packets say."""

import dataclasses
import json
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from mitmproxy import io
from mitmproxy.test import tflow, tutils

from dragoman.rollout.harnesses import find_harness
from scripts.e2e_harnesses import (
    defect_table,
    main,
    matrix_table,
    read_results,
    run_row,
    write_table,
)
from scripts.harness_row import Outcome, asked_name, read_flows
from scripts.harness_rows import DEFECTS, Row
from scripts.harness_verdicts import WANTED_HASH

ROW = Row("codex", "custom", "proxy", "works")
GOOD = Outcome(
    row=ROW.id,
    version=find_harness("codex").version,
    exit_code=0,
    seconds=2.4,
    calls=("answered", "answered"),
    turns=("start", "exact"),
    steps=(1, 0),
    tool_ran=True,
    file_hash=WANTED_HASH,
    hosts=("api.github.com 404", "github.com 404"),
    escaped=(),
    names=(),
    stdout="I wrote the file.\n",
    stderr="",
    finished_at=time.mktime((2026, 12, 1, 12, 0, 0, 0, 0, 0)),
)


def _keep(folder: Path, outcome: Outcome) -> None:
    (folder / outcome.row).mkdir()
    (folder / outcome.row / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))


def test_a_good_row_in_the_matrix() -> None:
    head, line = matrix_table([ROW], {ROW.id: GOOD})

    assert dict(zip(head, line, strict=True)) == {
        "harness": "codex",
        "version": GOOD.version,
        "variant": "custom",
        "mode": "proxy",
        "exit": "0",
        "calls": "2",
        "exact turns": "1 of 1",
        "asked besides": "api.github.com, github.com",
        "seconds": "2",
        "result": "ok",
    }


def test_a_row_that_did_not_even_run_is_in_the_matrix_too() -> None:
    _, line = matrix_table([ROW], {ROW.id: "npm is not installed"})

    assert line[4:] == ["-", "-", "-", "-", "-", "FAILED: npm is not installed"]


def test_defects_are_one_line_a_harness() -> None:
    rows = [replace(ROW, mode="base-url", scenario=scenario) for scenario in ("broken-json", "empty")]
    results: dict[str, Outcome | str] = {rows[0].id: GOOD, rows[1].id: replace(GOOD, exit_code=1)}

    head, line = defect_table(rows, results)

    assert head == ["harness", *DEFECTS]
    cells = dict(zip(head, line, strict=True))
    assert cells["harness"] == "codex custom"
    assert cells["broken-json"] == "recovers, 2"
    assert cells["empty"] == "**FAILED** fails (1), 2"
    assert cells["slow"] == "-"


def test_a_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("a\n<!-- matrix: made by make e2e-harnesses -->\nold\n<!-- end of matrix -->\nb\n")

    for results in ({ROW.id: GOOD}, {ROW.id: replace(GOOD, names=None)}):
        write_table(document, "matrix", [["x", "y"], ["1", "2"]], dict(results))

    text = document.read_text()
    assert text.startswith(
        "a\n<!-- matrix: made by make e2e-harnesses -->\nMeasured 2026-12-01; each row as a plain process"
    )
    assert text.endswith("\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n<!-- end of matrix -->\nb\n")
    assert "old" not in text


def test_a_document_without_a_place_is_told(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("nothing")

    with pytest.raises(ValueError, match="no place for the table 'matrix'"):
        write_table(document, "matrix", [["x"]], {})


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
    assert "codex is not installed: python -m dragoman.rollout.install codex" in result


def test_flows_tell_who_was_asked_and_who_was_reached(tmp_path: Path) -> None:
    path = tmp_path / "flows"
    with path.open("wb") as file:
        writer = io.FlowWriter(file)  # type: ignore[no-untyped-call]
        for host, status, server in (
            ("api.openai.com", 200, "127.0.0.1"),
            ("github.com", 404, None),
            ("github.com", 407, None),
            ("127.0.0.1", 200, "127.0.0.1"),
            ("evil.example", 200, "192.0.2.1"),
        ):
            flow = tflow.tflow(req=tutils.treq(host=host, scheme=b"https"), resp=tutils.tresp(status_code=status))
            flow.server_conn.peername = None if server is None else (server, 443)
            writer.add(flow)

    hosts, escaped = read_flows(path)

    assert hosts == ("evil.example 200", "github.com 404/407")
    assert escaped == ("evil.example",)


def test_the_name_in_a_question() -> None:
    question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\x03api\x06github\x03com\x00" + struct.pack(">2H", 1, 1)

    assert asked_name(question) == "api.github.com"
    assert asked_name(question[:12]) == ""
