"""Codex as it really talks, over WebSockets and over HTTP, as a table: ``make e2e-codex``.

Each row is a session of ``scripts/codex_row.py``, by API key and by ChatGPT login, by base URL and by proxy: seven
turns with tools, a sub-agent, a compaction and a resume. Every session over HTTP must have shown the model exactly what
the one over WebSockets did. Two more rows disturb a session: the gateway is killed between two turns, the connection is
cut in mid-reply; neither may sample a turn twice. The exit code is 1 when a row failed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.harness_tables import as_text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".run" / "e2e-codex"
ROW_LIMIT = 600.0
SESSIONS = tuple((variant, mode) for variant in ("builtin", "chatgpt") for mode in ("base-url", "proxy"))
ROWS = (
    *((*session, transport) for session in SESSIONS for transport in ("websocket", "http")),
    ("builtin", "base-url", "killed"),
    ("builtin", "base-url", "cut"),
)
MARKS = ["ran-45", "ran-51", "ran-54", "ran-55", "ran-56", "ran-57", "ran-58", "ran-61", "ran-62"]

Outcome = dict[str, Any]
"""A ``codex_row.CodexOutcome`` as JSON."""


def run_row(row: tuple[str, str, str], folder: Path) -> Outcome | str:
    """The row's outcome, or why there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "scripts.codex_row", *row, str(folder)]
    with (folder / "row.log").open("wb") as log:
        try:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=ROW_LIMIT, check=True)
        except subprocess.SubprocessError as error:
            return f"{type(error).__name__}; see {folder / 'row.log'}"
    outcome: Outcome = json.loads((folder / "outcome.json").read_text())
    return outcome


def problems(row: tuple[str, str, str], outcome: Outcome, over_sockets: Outcome | None) -> list[str]:
    """What is wrong with a row; empty when it is good. ``over_sockets``: the same session by the other transport."""
    transport = row[2]
    found = list(outcome["problems"])
    if set(outcome["exit_codes"]) != {0}:
        found.append(f"exit codes {outcome['exit_codes']}")
    if outcome["escaped"]:
        found.append("something looked a name up past the proxy")
    if (outcome["sockets"] == 0) != (transport == "http"):
        found.append(f"{outcome['sockets']} WebSockets")
    if transport in ("killed", "cut"):
        wanted = {"asked": 2, "turns": ["start", "exact"], "traces": ["main main 2"], "ran": ["ran-51"]}
    else:
        # Two segments of the main agent, before and after its compaction, and its sub-agent.
        wanted = {"asked": 14, "traces": ["main main 5", "subagent sub 3", "main main 5"], "ran": MARKS}
        if others := set(outcome["turns"]) - {"start", "exact"}:
            found.append(f"turns that are {', '.join(sorted(others))}")
        if outcome["turns"].count("start") != 3:
            found.append(f"{outcome['turns'].count('start')} turns without a parent")
        if outcome["calls"].count("compaction main answered") != 1:
            found.append("not one compaction")
    found += [f"{name} is {outcome[name]}, not {value}" for name, value in wanted.items() if outcome[name] != value]
    if odd := {call for call in outcome["calls"] if not call.endswith("answered")} - {"main main retry"}:
        found.append(f"calls that are {', '.join(sorted(odd))}")
    if over_sockets is not None and outcome["prompts"] != over_sockets["prompts"]:
        pairs = zip(outcome["prompts"], over_sockets["prompts"], strict=False)
        different = [str(step) for step, (one, other) in enumerate(pairs) if one != other]
        found.append(f"over WebSockets the model was shown something else at steps {', '.join(different)}")
    return found


def line(row: tuple[str, str, str], outcome: Outcome | str, trouble: list[str]) -> list[str]:
    verdict = "FAILED: " + "; ".join(trouble) if trouble else "ok"
    if isinstance(outcome, str):
        return [*row, "-", "-", "-", "-", verdict]
    later = [turn for turn in outcome["turns"] if turn != "start"]
    exact = f"{later.count('exact')} of {len(later)}"
    return [*row, str(len(outcome["calls"])), str(outcome["sockets"]), exact, str(len(outcome["traces"])), verdict]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="e2e_codex.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="rows whose name begins so")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where outcomes and logs are")
    options = parser.parse_args(arguments)
    table = [["login", "mode", "transport", "calls", "sockets", "exact turns", "traces", "result"]]
    outcomes: dict[tuple[str, str, str], Outcome] = {}
    failed = False
    for row in ROWS:
        name = "-".join(row)
        if options.only and not name.startswith(tuple(options.only)):
            continue
        outcome = run_row(row, options.folder / name)
        if isinstance(outcome, str):
            trouble = [outcome]
        else:
            outcomes[row] = outcome
            twin = outcomes.get((row[0], row[1], "websocket")) if row[2] == "http" else None
            trouble = problems(row, outcome, twin)
        failed |= bool(trouble)
        table.append(line(row, outcome, trouble))
        print(f"{name:30} {table[-1][-1]}", file=sys.stderr, flush=True)
    print(as_text(table))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
