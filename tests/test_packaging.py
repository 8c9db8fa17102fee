"""The shape of the project: links, import directions, names, a test for each module, and the wheel."""

import ast
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "dragoman"
PACKAGES = ("addons", "certs", "monitor", "rollout", "store", "trainer")

MAY_IMPORT = {
    "addons": {"addons", "store", "certs", "home"},
    "certs": {"certs", "home"},
    "monitor": {"monitor", "store", "home"},
    "rollout": {"rollout", "store", "certs", "home", "gateway_client", "signals"},
    "store": {"store", "home"},
    "trainer": {"trainer", "store", "home"},
}
"""Package → what of ``dragoman`` it may import. The modules beside the packages import no package but the store."""

TESTED_IN = {
    # Vocabulary and errors: every test of their users.
    "addons/errors.py": "tests/addons/providers/test_golden.py",
    "addons/messages.py": "tests/addons/providers/test_golden.py",
    "store/errors.py": "tests/store/test_database.py",
    "store/records.py": "tests/store/test_calls.py",
    # What migrations do, with data: through all of them.
    "store/migrations/loss.py": "tests/store/test_migrations.py",
    "store/migrations/versions/0004_leases.py": "tests/store/test_migrations.py",
    "store/migrations/versions/0005_policies.py": "tests/store/test_migrations.py",
    "store/atif_steps.py": "tests/store/test_atif.py",
    # Weights in the engine, through what follows the store; the loop, whole.
    "addons/engine_weights.py": "tests/addons/test_policy.py",
    "src/dragoman/cli/eval_view.py": "tests/cli/test_eval.py",
    "src/dragoman/cli/harbor_run.py": "tests/e2e/test_harbor.py",
    "src/dragoman/cli/loop.py": "tests/e2e/test_loop.py",
    "src/dragoman/cli/loop_run.py": "tests/e2e/test_loop.py",
    # Parts of the app, through it.
    "addons/call.py": "tests/addons/test_app.py",
    "addons/gateway.py": "tests/addons/test_app.py",
    "addons/options.py": "tests/addons/test_intercept.py",
    "addons/reply_bytes.py": "tests/addons/test_diversion.py",
    "addons/served.py": "tests/addons/test_app.py",
    "addons/settings.py": "tests/addons/test_app.py",
    # Parts of a dialect, through it.
    "addons/providers/openai_errors.py": "tests/addons/providers/test_openai_chat.py",
    "addons/providers/openai_tools.py": "tests/addons/providers/test_openai_responses.py",
    "rollout/probe/records.py": "tests/rollout/probe/test_judge.py",
    # Records, and programs that run beside the tests' own process.
    "rollout/box_inside.py": "tests/rollout/test_box.py",
    "rollout/function_inside.py": "tests/rollout/test_checks.py",
    "rollout/ready.py": "tests/rollout/test_samples.py",
    "rollout/seen.py": "tests/rollout/test_checks.py",
    "rollout/task_fields.py": "tests/rollout/test_task_files.py",
    "rollout/tasks.py": "tests/rollout/test_task_files.py",
    "rollout/tests_inside.py": "tests/rollout/test_rewards.py",
    # Parts of a command, through it.
    "src/dragoman/cli/call_view.py": "tests/cli/test_show.py",
    "src/dragoman/cli/checks.py": "tests/cli/test_doctor.py",
    "src/dragoman/cli/options.py": "tests/cli/test_episode.py",
    "src/dragoman/cli/rollout_plan.py": "tests/cli/test_rollout.py",
    "src/dragoman/cli/rollout_run.py": "tests/cli/test_rollout.py",
    "src/dragoman/cli/run_plan.py": "tests/cli/test_run.py",
    "src/dragoman/cli/engine_checks.py": "tests/cli/test_doctor.py",
    "src/dragoman/gateway_client.py": "tests/cli/test_gateway_client.py",
    # Run by Alembic.
    "store/migrations/env.py": "tests/store/test_schema.py",
    "store/migrations/versions/0001_first.py": "tests/store/test_schema.py",
    "store/migrations/versions/0002_artefacts.py": "tests/store/test_schema.py",
    "store/migrations/versions/0003_reply_states.py": "tests/store/test_schema.py",
}
"""Module without a test file of its name → the file that tests it."""


def _modules() -> list[Path]:
    """Every module of the distribution, as a path below the root without the links of ``src``."""
    packages = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    own = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in PACKAGES]
    return sorted(path.relative_to(ROOT) for path in packages + own)


def _imports(path: Path) -> set[str]:
    """The dotted names that a module imports, wherever in it: under ``TYPE_CHECKING`` and in functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_is_a_relative_link_to_its_folder(name: str) -> None:
    link = SOURCE / name

    assert os.readlink(link) == f"../../{name}"
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("module", [path for path in _modules() if path.parts[0] in PACKAGES], ids=str)
def test_imports_go_one_way(module: Path) -> None:
    package = module.parts[0]
    targets = {name.split(".")[1] for name in _imports(ROOT / module) if name.startswith("dragoman.")}

    assert targets - {"__version__"} <= MAY_IMPORT[package]


@pytest.mark.parametrize("leaf", ["home", "gateway_client", "signals"])
def test_the_shared_modules_are_leaves(leaf: str) -> None:
    targets = {name.split(".")[1] for name in _imports(SOURCE / f"{leaf}.py") if name.startswith("dragoman.")}

    assert targets <= {"store", "home"}


def test_nobody_imports_the_mitmproxy_script() -> None:
    files = [ROOT / module for module in _modules()]

    assert [path for path in files if any(n.startswith("dragoman.addons.intercept") for n in _imports(path))] == []


def test_no_module_beside_the_mitmproxy_script_hides_a_library() -> None:
    # mitmproxy puts the script's folder first on sys.path.
    known = set(packages_distributions()) | sys.stdlib_module_names
    known |= {"accelerate", "peft", "ray", "torch", "trl", "vllm"}
    own = {path.stem if path.suffix == ".py" else path.name for path in (ROOT / "addons").iterdir()}
    own -= {"__init__", "__pycache__"}

    assert own & known == set()


def _test_path(module: Path) -> Path:
    inside = Path(*module.parts[2:]) if module.parts[0] == "src" else module
    return ROOT / "tests" / inside.parent / f"test_{inside.name}"


@pytest.mark.parametrize(
    "module", [path for path in _modules() if path.name not in ("__init__.py", "__main__.py")], ids=str
)
def test_each_module_has_its_test_file(module: Path) -> None:
    own, other = _test_path(module), TESTED_IN.get(str(module))
    if other is None:
        assert own.is_file(), f"{own.relative_to(ROOT)} is missing (or name the file that tests it in TESTED_IN)"
    else:
        assert (ROOT / other).is_file(), f"{other} is missing"
        assert not own.exists(), f"{own.relative_to(ROOT)} exists: take the module off TESTED_IN"


def test_the_list_of_exceptions_names_modules_that_exist() -> None:
    assert set(TESTED_IN) <= {str(module) for module in _modules()}


def test_no_file_names_the_machine_it_was_written_on() -> None:
    home = f"{Path.home()}/"
    machine = re.compile(
        "|".join(
            [
                re.escape(f"{ROOT}/"),
                # A name as plain as /root/ may be there for another reason.
                *([re.escape(home)] if home.count("/") > 2 else []),
                # Addresses of package registries: a lock or constraints file must work with any mirror.
                r"https?://[^\s/\"']*(registry|pypi|npmjs|pythonhosted)[^\s\"']*",
            ]
        )
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for path in _tracked()
        if path.is_file() and not path.is_symlink()
        for match in machine.finditer(path.read_text(errors="ignore"))
    ]

    assert found == []


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-engine.txt"])
def test_constraints_are_exact_versions(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]

    assert len(lines) > 80
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout's files, so that no build folder is left here."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in _tracked():
        target = folder / "checkout" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
        elif path.is_file():
            target.write_bytes(path.read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), "."]
    result = subprocess.run(build, cwd=folder / "checkout", capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    def inside(path: Path) -> str:
        return str(Path("dragoman", *path.parts[2:]) if path.parts[0] == "src" else Path("dragoman", path))

    wanted = {inside(module) for module in _modules()}
    wanted |= {inside(p.relative_to(ROOT)) for p in _tracked() if p.is_file() and p.suffix in (".mako", ".jinja")}
    assert wanted - names == set()
    assert "dragoman/py.typed" in names
    assert not any(name.startswith(("addons/", "tests/", "scripts/")) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_in_an_empty_environment_runs_the_command(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, cwd=tmp_path)
    # The dependencies come from the environment of the tests, without a download; its own dragoman comes second.
    (packages,) = (environment / "lib").glob("python*/site-packages")
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(theirs) + "\n")

    def run(*command: str) -> str:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    where = run(str(python), "-c", "import dragoman.addons; print(dragoman.addons.__file__)")
    assert Path(where.strip()).is_relative_to(environment)
    assert "Usage: dragoman" in run(str(environment / "bin" / "dragoman"), "--help")


WITHOUT_THE_GATEWAY = """
import importlib, pkgutil, sys
BANNED = ("mitmproxy", "starlette", "uvicorn", "renderers", "wsproto", "prometheus_client")
def asked_by_trl(frame):
    # It imports vLLM where there is one, which has a server of its own.
    while frame is not None:
        if "/site-packages/trl/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
class Ban:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BANNED and not asked_by_trl(sys._getframe()):
            raise ImportError(f"{name} must not be needed here")
sys.meta_path.insert(0, Ban())
"""

IMPORT_ALL = """
for package in ("dragoman.store", "dragoman.cli", "dragoman.trainer"):  # TRL last: what it has loaded is not asked for
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, package + "."):
        # Alembic runs this one, and only inside a migration.
        if found.name != "dragoman.store.migrations.env":
            importlib.import_module(found.name)
print(sys.version_info[:2])
"""

RUN_COMMAND = """
from dragoman.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def engine_python() -> str:
    """The Python that vLLM and trainers use, which has no mitmproxy."""
    python = os.environ.get("DRAGOMAN_ENGINE_PYTHON") or str(ROOT / ".venv-engine" / "bin" / "python")
    assert Path(python).exists(), f"{python} is missing: run `make setup`, or set DRAGOMAN_ENGINE_PYTHON"
    return python


def test_store_trainer_and_commands_import_on_the_engines_python_without_mitmproxy(engine_python: str) -> None:
    code = WITHOUT_THE_GATEWAY + IMPORT_ALL

    result = subprocess.run([engine_python, "-c", code], capture_output=True, text=True, cwd="/")

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("(3, 11)", "(3, 12)", "(3, 13)")


def test_store_commands_run_on_the_engines_python_without_mitmproxy(engine_python: str, tmp_path: Path) -> None:
    code = WITHOUT_THE_GATEWAY + RUN_COMMAND
    for command in (
        "db upgrade",
        "db check",
        "db stats --json",
        "prune --older-than 30d",
        "episodes --json",
        "ledger --all",
    ):
        arguments = [*command.split(), "--store", f"sqlite:///{tmp_path}/store.db"]

        result = subprocess.run([engine_python, "-c", code, *arguments], capture_output=True, text=True, cwd="/")

        assert result.returncode == 0, f"{command}: {result.stderr}"


def test_the_command_starts_without_the_heavy_libraries() -> None:
    code = "import sys, dragoman.cli; print({'mitmproxy', 'transformers', 'torch', 'vllm'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_the_package_is_found_from_anywhere(tmp_path: Path) -> None:
    code = "import dragoman.addons.errors, dragoman.store.records"

    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
