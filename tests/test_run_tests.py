"""The sum over both environments' tests, with pytest run on files made here."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "run_tests.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dragoman_run_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dragoman_run_tests"] = module
    spec.loader.exec_module(module)
    return module


run_tests = _load()

MIXED = """
import pytest
def test_good(): pass
def test_bad(): assert False
def test_later(): pytest.skip("later")
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
"""

FOR_TORCH = """
def test_good(): pass
def never_called():
    import torch
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two environments that are this one; ``test_one.py`` is for the gateway's, ``test_two.py`` for the engine's."""
    for name in (".venv", ".venv-engine"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / name / "bin" / "python").chmod(0o755)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("def test_good(): pass\n")
    (tmp_path / "tests" / "test_two.py").write_text(FOR_TORCH)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    return tmp_path


def test_each_file_runs_where_it_can(checkout: Path) -> None:
    for package in ("store", "trainer", "addons"):
        (checkout / "tests" / package).mkdir()
        (checkout / "tests" / package / "test_plain.py").write_text("def test_good(): pass\n")
    (checkout / "tests" / "trainer" / "test_whole.py").write_text("from dragoman.addons.tokens import TokenCodec\n")

    (checkout / "tests" / "addons" / "test_quoted.py").write_text('SCRIPT = "import torch"\n')
    (checkout / "tests" / "addons" / "test_skips.py").write_text('import pytest\npytest.importorskip("torch")\n')

    assert run_tests.plan() == {
        ".venv": ["tests", "--ignore=tests/addons/test_skips.py", "--ignore=tests/test_two.py"],
        ".venv-engine": [
            "tests/addons/test_skips.py",
            "tests/store/test_plain.py",
            "tests/test_two.py",
            "tests/trainer/test_plain.py",
        ],
    }


def test_both_are_counted_and_good(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_tests.main([]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_a_failure_in_either_fails_the_whole(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (checkout / "tests" / "test_one.py").write_text(MIXED)

    assert run_tests.main([]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 2 failed, 1 skipped"


def test_a_file_that_cannot_be_imported_is_a_failure(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (checkout / "tests" / "test_two.py").write_text("import torch_of_another_name\nimport torch")

    assert run_tests.main([]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_an_environment_that_is_missing_is_a_failure(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (checkout / ".venv-engine" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")

    assert run_tests.main([]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_an_environment_without_tests_is_a_failure(checkout: Path) -> None:
    (checkout / "tests" / "test_two.py").write_text("def helper():\n    import torch\n")

    assert run_tests.main([]) == 1


def test_a_selection_may_leave_one_environment_empty_but_not_both(checkout: Path) -> None:
    (checkout / "tests" / "test_one.py").write_text("def test_special(): pass\n")

    assert run_tests.main(["-k", "special"]) == 0
    assert run_tests.main(["-k", "nothing_of_that_name"]) == 1
