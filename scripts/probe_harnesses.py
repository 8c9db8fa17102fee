"""Probe the harnesses of the table, and hold what it finds against what is known of them.

    python -m scripts.probe_harnesses [--resume] [NAME...]

Each is probed by ``dragoman harness probe``, one after another, as a person would. Reports, logs and flows are kept in
``.run/probe-harnesses/<name>/``. Exit code 1 when a probe found something else than ``probe_expected`` says.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dragoman.rollout.harnesses import HARNESSES
from scripts.probe_expected import EXPECTED, differences

ROOT = Path(__file__).resolve().parent.parent


def probe(name: str, folder: Path) -> dict[str, Any] | str:
    """The report on a harness, or why there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "dragoman", "harness", "probe", "--harness", name]
    command += ["--json", str(folder / "report.json"), "--keep", str(folder / "probe")]
    done = subprocess.run(command, capture_output=True, text=True)
    (folder / "printed.txt").write_text(f"{done.stdout}\n{done.stderr}")
    if done.returncode not in (0, 1):
        return "; ".join(done.stderr.splitlines()[-2:])
    return read(folder) or "it wrote no report"


def read(folder: Path) -> dict[str, Any] | None:
    file = folder / "report.json"
    if not file.is_file():
        return None
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.probe_harnesses", description=__doc__)
    parser.add_argument("names", nargs="*", help="which ones (default: all)")
    parser.add_argument("--resume", action="store_true", help="take the reports that are there already")
    options = parser.parse_args(arguments)
    wanted = options.names or [harness.name for harness in HARNESSES]
    failed = 0
    for name in wanted:
        folder, started = ROOT / ".run" / "probe-harnesses" / name, time.monotonic()
        kept = read(folder) if options.resume else None
        report = kept or probe(name, folder)
        seconds = "kept" if kept else f"{time.monotonic() - started:.0f} s"
        if isinstance(report, str):
            failed += 1
            print(f"{name:<9} NOT PROBED: {report}")
            continue
        facts = EXPECTED[name]
        found = differences(facts, report)
        failed += bool(found)
        print(
            f"{name:<9} {report['version']:<9} {len(facts)} facts, {len(found)} differ ({seconds}): {report['verdict']}"
        )
        for difference in found:
            print(f"          - {difference}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
