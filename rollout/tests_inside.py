"""Runs a task's tests and says what became of each: a program for the Python that the task names, in a box.

Rules of this module: the standard library and the framework only. The framework is loaded before anything of the
workspace can be found, the workspace stands behind the standard library, and the result counts only when the tests
came to their end and it carries the word that was given on standard input. The code under test runs in this very
process: what it does to the process is not told apart from what the tests do.
"""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

NO_FRAMEWORK = 97


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.stdin.read())
    outcomes: dict[str, str] = {}
    files: dict[str, int] = dict.fromkeys(plan["paths"], 0)
    try:
        framework = importlib.import_module(plan["framework"])
    except ImportError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)
        sys.exit(NO_FRAMEWORK)
    at = next((i for i, path in enumerate(sys.path) if path.endswith(("-packages",))), len(sys.path))
    sys.path.insert(at, plan["root"])
    run = run_pytest if plan["framework"] == "pytest" else run_unittest
    code = run(framework, plan, outcomes, files)
    result = {"word": plan["word"], "outcomes": outcomes, "files": files, "code": code}
    sys.stdout.flush()
    sys.stderr.flush()
    Path(plan["result"]).write_text(json.dumps(result))
    os._exit(0)  # nothing that the code under test left for the end of the process is run


def run_pytest(pytest: Any, plan: dict[str, Any], outcomes: dict[str, str], files: dict[str, int]) -> int:
    class Listener:
        def pytest_collection_finish(self, session: Any) -> None:
            for item in session.items:
                outcomes[item.nodeid] = "not run"
                name = item.nodeid.partition("::")[0]
                files[name] = files.get(name, 0) + 1

        def pytest_runtest_logreport(self, report: Any) -> None:
            before = outcomes.get(report.nodeid, "not run")
            if report.outcome != "passed" or hasattr(report, "wasxfail"):
                outcomes[report.nodeid] = "skipped" if report.outcome == "skipped" else "failed"
            elif report.when == "call" and before == "not run":
                outcomes[report.nodeid] = "passed"

    options = ["-q", "-p", "no:cacheprovider", "--import-mode=append", "--rootdir", plan["root"]]
    options += ["--confcutdir", plan["root"], "--color=no"]
    return int(pytest.main([*options, *plan["paths"]], plugins=[Listener()]))


def run_unittest(unittest: Any, plan: dict[str, Any], outcomes: dict[str, str], files: dict[str, int]) -> int:
    class Result(unittest.TextTestResult):  # type: ignore[misc]
        def startTest(self, test: Any) -> None:
            super().startTest(test)
            outcomes[test.id()] = "not run"

        def addSuccess(self, test: Any) -> None:
            super().addSuccess(test)
            outcomes[test.id()] = "passed"

    suite = unittest.TestSuite()
    for number, path in enumerate(plan["paths"]):
        spec = importlib.util.spec_from_file_location(f"task_tests_{number}_{Path(path).stem}", path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        tests = unittest.defaultTestLoader.loadTestsFromModule(module)
        files[path] = tests.countTestCases()
        suite.addTests(tests)
    result = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    main()
