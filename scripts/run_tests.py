"""Run the tests in both environments and sum up: ``make test``. Arguments go to pytest.

``.venv`` runs all files but those that import torch. ``.venv-engine`` (an older Python, without mitmproxy) runs those,
and once more the tests of the store and the trainer that do not import the gateway, since both packages must work
there. The last line counts both; the exit code is 1 when a test failed, an environment ran none, or pytest itself
did not end well.
"""

import ast
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5
GATEWAY, ENGINE = ".venv", ".venv-engine"
NEEDS_TORCH = {"torch"}
NEEDS_GATEWAY = {"dragoman.addons", "tests.gateway"}


@dataclass(frozen=True)
class Counts:
    passed: int = 0
    failed: int = 0
    """Errors in fixtures and in collection too."""
    skipped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read_counts(report: Path) -> Counts:
    """The counts of a JUnit report; no report (pytest did not get that far) counts as one failure."""
    if not report.is_file():
        return Counts(failed=1)
    total = Counts()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        tests, failures, errors, skipped = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        failed = failures + errors
        total += Counts(max(0, tests - failed - skipped), failed, skipped)
    return total


def needs(path: Path, packages: set[str]) -> bool:
    """Whether a test file imports one of the packages, anywhere in it, or asks for it with ``importorskip``."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "importorskip":
            names += [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
    return any(f"{name}.".startswith(f"{package}.") for name in names for package in packages)


def plan() -> dict[str, list[str]]:
    """Environment → what pytest is told to run there."""
    tests = ROOT / "tests"
    torch = [path for path in sorted(tests.rglob("test_*.py")) if needs(path, NEEDS_TORCH)]
    both = [path for name in ("store", "trainer") for path in sorted((tests / name).rglob("test_*.py"))]
    engine = [path for path in both if path not in torch and not needs(path, NEEDS_GATEWAY)]
    return {
        GATEWAY: ["tests", *(f"--ignore={path.relative_to(ROOT)}" for path in torch)],
        ENGINE: [str(path.relative_to(ROOT)) for path in sorted([*torch, *engine])],
    }


def run(environment: str, selection: list[str], arguments: list[str], report: Path, output: IO[str] | None) -> int:
    """pytest's exit code; ``output``: where it prints to, ``None``: as it comes."""
    print(f"=== {environment}: pytest {' '.join([*selection, *arguments])}", flush=True, file=output)
    python = ROOT / environment / "bin" / "python"
    command = [str(python), "-m", "pytest", *selection, f"--junitxml={report}", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=output, stderr=None if output is None else STDOUT).returncode


def main(arguments: list[str]) -> int:
    total = Counts()
    codes = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        # Side by side: most tests wait for other processes. What the engine's environment prints comes when it is done.
        planned = plan()
        reports = {environment: Path(folder) / f"{environment}.xml" for environment in planned}
        later = (Path(folder) / "output").open("w+")
        outputs = {environment: None if environment == GATEWAY else later for environment in planned}
        running = {
            environment: pool.submit(run, environment, selection, arguments, reports[environment], outputs[environment])
            for environment, selection in planned.items()
        }
        for environment, future in running.items():
            code = future.result()
            if outputs[environment] is not None:
                later.seek(0)
                print(later.read(), flush=True)
            total += read_counts(reports[environment])
            # With a selection (-k, -m) one environment may well have nothing to run.
            codes.append(0 if code == NO_TESTS and arguments else code)
        later.close()
    if total.passed + total.failed == 0:
        print("No test was run.", file=sys.stderr)
        codes.append(NO_TESTS)
    print(total, flush=True)
    return 1 if total.failed or any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
