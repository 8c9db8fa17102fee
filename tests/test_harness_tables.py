"""The tables: what a line of each says, and what is written where."""

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.harness_outcome import Outcome
from scripts.harness_rows import DEFECTS
from scripts.harness_tables import defect_table, matrix_table, write_table
from tests.test_e2e_harnesses import GOOD, ROW


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


def test_no_registry_is_named_in_the_matrix() -> None:
    head, line = matrix_table([ROW], {ROW.id: replace(GOOD, hosts=("registry.example 404", "github.com 404"))})

    assert line[head.index("asked besides")] == "npm's registry, github.com"


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


def test_notes_stand_below_the_table(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("<!-- turns: made by make e2e-harnesses -->\n<!-- end of turns -->\n")

    write_table(document, "turns", [["x"], ["1"]], {ROW.id: GOOD}, ["one", "two"])

    assert document.read_text().endswith("| 1 |\n\n- one\n- two\n<!-- end of turns -->\n")
