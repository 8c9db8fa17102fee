"""The command as a whole: quick help everywhere, plain failures, no heavy import before it is needed."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import dragoman

COMMANDS: tuple[list[str], ...] = (
    [],
    ["quickstart"],
    ["serve"],
    ["engine"],
    ["doctor"],
    ["episode"],
    ["episode", "open"],
    ["episode", "end"],
    ["episode", "reward"],
    ["episodes"],
    ["show"],
    ["prune"],
    ["export"],
    ["db"],
    ["db", "upgrade"],
    ["db", "check"],
    ["db", "stats"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(run: Callable[..., Any], command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: {' '.join(['dragoman', *command])} ")
    if command and command != ["episode"]:
        assert f"dragoman {' '.join(command)}" in result.out.split("\n", 1)[1]  # an example


def test_version(run: Callable[..., Any]) -> None:
    assert run("--version").out == f"dragoman {dragoman.__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from dragoman.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"mitmproxy", "sqlalchemy", "alembic", "numpy", "httpx", "transformers", "starlette", "cryptography"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_gateway_on_an_old_python(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    result = run("serve")
    assert result.code == 1
    assert result.err.startswith("dragoman: the gateway needs Python 3.12 or newer")
