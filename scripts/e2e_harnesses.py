"""Every real harness through the gateway, as a table: ``make e2e-harnesses``.

    make e2e-harnesses                     each harness and variant, by base URL and by proxy
    make e2e-harnesses DEFECTS=1           what each makes of a small model's defects, and of a slow or broken engine
    make e2e-harnesses TURNS=1             whether the turns of longer runs are exact, and what traces they give
    make e2e-harnesses ONLY=codex          the rows whose name begins so; earlier outcomes of the others stay

A scripted engine stands for the model (``scripts/harness_rows.py`` says what it says), so the harness's own tool really
runs, and no model is needed. Each row runs by itself (``scripts/harness_row.py``), a few at a time, with a time limit;
a failed one does not stop the others. What became of each lies in ``.run/e2e-harnesses``; when every row of a table has
an outcome there, the table in ``docs/harnesses.md`` is written anew. The exit code is 1 when a row that was run failed;
a row of several turns fails when anything is not as ``scripts/turns_expected.py`` says.
"""

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dragoman.cli import processes
from dragoman.rollout.harnesses import find_harness
from dragoman.rollout.install import InstallError, install
from dragoman.signals import terminable
from scripts.harness_outcome import Outcome, read_outcome
from scripts.harness_rows import Row
from scripts.harness_tables import TABLES, Results, as_text, write_table, wrong
from scripts.turns_verdicts import turns_notes

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".run" / "e2e-harnesses"
DOCUMENT = ROOT / "docs" / "harnesses.md"
OVERHEAD = 240.0
"""Seconds that starting and stopping engine and gateway may take, on a machine that does other things too."""


def run_rows(rows: Sequence[Row], folder: Path, jobs: int, report: Callable[[Row, Outcome | str], None]) -> Results:
    """Run the rows, ``jobs`` at a time. ``report`` is called with each as it ends."""
    results: Results = {}
    missing = {name: install_problem(name) for name in dict.fromkeys(row.harness for row in rows)}
    stop = threading.Event()

    def one(row: Row) -> None:
        if stop.is_set():
            return
        results[row.id] = missing[row.harness] or run_row(row, folder / row.id, stop)
        report(row, results[row.id])

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(one, rows))
        except BaseException:
            stop.set()  # each running row ends its processes, those that wait do not begin
            raise
    return results


def install_problem(name: str) -> str | None:
    try:
        print(f"{name}: {install(find_harness(name))}", file=sys.stderr, flush=True)
    except InstallError as error:
        return str(error).strip().splitlines()[0]
    return None


def run_row(row: Row, folder: Path, stop: threading.Event) -> Outcome | str:
    """Run one row in a process of its own; its folder holds the logs, and ``outcome.json`` at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "scripts.harness_row", row.id, str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with processes.running(command, environment, folder / "row.log") as child:
        limit = time.monotonic() + row.time_limit + OVERHEAD
        while child.returncode() is None and not stop.wait(0.2):
            if time.monotonic() > limit:
                return "the row did not end"
    if child.returncode() != 0:
        return "; ".join(child.last_lines(3)) or f"the row ended with {child.returncode()}"
    shutil.rmtree(folder / "home")
    return read_outcome(folder) or "the row left no outcome"


def read_results(rows: Sequence[Row], folder: Path) -> Results:
    """The outcomes of earlier runs, of the version that is in the table now."""
    results: Results = {}
    for row in rows:
        outcome = read_outcome(folder / row.id)
        if outcome is not None and outcome.version == find_harness(row.harness).version:
            results[row.id] = outcome
    return results


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="e2e_harnesses.py", description=__doc__.partition("\n")[0])
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--defects", action="store_true", help="the table of defects instead of the matrix")
    tables.add_argument("--turns", action="store_true", help="the table of longer runs instead of the matrix")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="rows whose name begins so")
    parser.add_argument("--resume", action="store_true", help="only rows that have no good outcome yet")
    parser.add_argument("--jobs", type=int, default=3, help="rows at a time (a row waits more than it works)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where outcomes and logs are")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where the tables are written")
    options = parser.parse_args(arguments)
    name = "defects" if options.defects else "turns" if options.turns else "matrix"
    make_rows, make_table = TABLES[name]
    rows = list(make_rows())
    earlier = read_results(rows, options.folder)
    wanted = [row for row in rows if not options.only or row.id.startswith(tuple(options.only))]
    if options.resume:
        wanted = [row for row in wanted if row.id not in earlier or wrong(row, earlier[row.id])]
    if not wanted and not options.resume:
        parser.error(f"no row begins so; there are: {', '.join(row.id for row in rows)}")

    def report(row: Row, result: Outcome | str) -> None:
        trouble = wrong(row, result)
        said = "FAILED: " + "; ".join(trouble) if trouble else "ok"
        print(f"{row.id:50} {said}", file=sys.stderr, flush=True)

    with terminable():
        new = run_rows(wanted, options.folder, options.jobs, report)
    results = earlier | new
    known = [row for row in rows if row.id in results]
    print(as_text(make_table(known, results)))
    if len(known) == len(rows):
        notes = turns_notes(rows) if name == "turns" else []
        write_table(options.document, name, make_table(rows, results), results, notes)
    failed = [row for row in wanted if wrong(row, new[row.id])]
    for row in failed:
        print(f"\n{row.id}: {'; '.join(wrong(row, new[row.id]))}\n  logs: {options.folder / row.id}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
