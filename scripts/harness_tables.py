"""The tables of ``docs/harnesses.md``: made from what became of the rows, and put between their marks."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dragoman.rollout.harnesses import find_harness
from scripts.harness_outcome import Outcome
from scripts.harness_rows import DEFECTS, Row, defect_rows, matrix_rows
from scripts.harness_verdicts import describe, ending, problems
from scripts.turns_rows import is_turns, turns_rows
from scripts.turns_verdicts import turns_problems, turns_table

Results = dict[str, Outcome | str]
"""What is known of each row: its outcome, or why there is none."""


def wrong(row: Row, result: Outcome | str) -> tuple[str, ...]:
    if isinstance(result, str):
        return (result,)
    return turns_problems(row, result) if is_turns(row) else problems(row, result)


def matrix_table(rows: Sequence[Row], results: Results) -> list[list[str]]:
    table = [
        ["harness", "version", "variant", "mode", "exit", "calls", "exact turns", "asked besides", "seconds", "result"]
    ]
    for row in rows:
        result = results[row.id]
        trouble = wrong(row, result)
        verdict = "FAILED: " + "; ".join(trouble) if trouble else "ok"
        middle = ["-"] * 5
        if isinstance(result, Outcome):
            code = "killed" if result.exit_code is None else str(result.exit_code)
            hosts = ", ".join(_shown(host.split()[0]) for host in result.hosts) or "nothing"
            later = [turn for turn in result.turns if turn != "start"]
            exact = f"{later.count('exact')} of {len(later)}"
            middle = [code, describe(result.calls), exact, hosts, f"{result.seconds:.0f}"]
        version = find_harness(row.harness).version
        table.append([row.harness, version, row.variant or "-", row.mode, *middle, verdict])
    return table


def _shown(host: str) -> str:
    """Which registry a harness asks is a matter of its machine, so the document names none."""
    return "npm's registry" if host.startswith("registry.") else host


def defect_table(rows: Sequence[Row], results: Results) -> list[list[str]]:
    """One line a harness and variant, one column a defect."""
    table = [["harness", *DEFECTS]]
    for who in dict.fromkeys(row.who for row in rows):
        cells = {}
        for row in rows:
            if row.who == who:
                result = results[row.id]
                cell = result if isinstance(result, str) else ending(row, result)
                cells[row.scenario] = f"**FAILED** {cell}" if wrong(row, result) else cell
        table.append([who, *(cells.get(scenario, "-") for scenario in DEFECTS)])
    return table


def as_text(table: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table)


def as_markdown(table: list[list[str]]) -> str:
    head, *lines = table
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def write_table(document: Path, name: str, table: list[list[str]], results: Results, notes: Sequence[str] = ()) -> None:
    """Put a table into the document, and a list of ``notes`` below it, in place of what is between its two marks."""
    times = [result.finished_at for result in results.values() if isinstance(result, Outcome)]
    day = time.strftime("%Y-%m-%d", time.gmtime(max(times))) if times else "never"
    isolated = all(isinstance(result, str) or result.names is not None for result in results.values())
    network = "in a network of its own" if isolated else "as a plain process behind the proxy variables"
    begin, end = f"<!-- {name}: made by make e2e-harnesses -->", f"<!-- end of {name} -->"
    text = document.read_text()
    before, mark, rest = text.partition(begin)
    _, other, after = rest.partition(end)
    if not mark or not other:
        raise ValueError(f"{document} has no place for the table {name!r}: it needs the lines {begin!r} and {end!r}")
    below = "".join(f"\n- {note}" for note in notes)
    below = f"\n{below}" if below else ""
    new = f"{begin}\nMeasured {day}; each row {network}.\n\n{as_markdown(table)}{below}\n{end}"
    document.write_text(before + new + after)


TABLES: dict[str, tuple[Callable[[], Iterator[Row]], Callable[[Sequence[Row], Results], list[list[str]]]]] = {
    "matrix": (matrix_rows, matrix_table),
    "defects": (defect_rows, defect_table),
    "turns": (turns_rows, turns_table),
}
