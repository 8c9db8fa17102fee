"""Rewards: how scores are weighed, and that an agent that attacks its own checks gains nothing."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from dragoman.rollout.box import find_isolation
from dragoman.rollout.checks import Place, Score
from dragoman.rollout.rewards import Reward, combine, find_reward
from dragoman.rollout.seen import EpisodeSeen
from dragoman.rollout.tasks import Check, CommandCheck, FilesWorkspace, RegexCheck, Task, TestsCheck
from dragoman.rollout.workspaces import Made, make_workspace

SEED = (("sums.py", b"def add(a, b):\n    return a - b\n"), ("helper.py", b"SIGN = 1\n"))
FIXED = "def add(a, b):\n    return a + b\n"
HIDDEN = (
    ("tests/test_sums.py", b"import colorsys\nfrom sums import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"),
)
UNIT = b"""import unittest
from sums import add

class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
PYTEST = TestsCheck(name="tests", framework="pytest", files=HIDDEN, paths=("tests/test_sums.py",))
UNITTEST = TestsCheck(name="unit", framework="unittest", files=(("test_u.py", UNIT),), paths=("test_u.py",))


@pytest.fixture(params=["namespaces", "limits"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    try:
        isolation = find_isolation(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = os.environ.get("PATH", os.defpath)
    return Place(tmp_path / "work", (), scratch, isolation, most_bytes=50_000_000, path=path)


def _made(place: Place) -> Made:
    return make_workspace(FilesWorkspace(SEED), place.workspace)


def _reward(place: Place, *checks: Check) -> Reward:
    task = Task("t", "fix it", checks=checks or (PYTEST, UNITTEST))
    return find_reward(task, EpisodeSeen("e1", "t", "fix it", stdout="hello"), place, time_limit=60)


def test_work_that_is_done_is_worth_one_and_work_that_is_not_nothing(place: Place) -> None:
    made = _made(place)
    assert _reward(place).value == 0.0
    (made.folder / "sums.py").write_text(FIXED)
    reward = _reward(place)
    assert (reward.value, reward.components) == (1.0, {"tests": 1.0, "unit": 1.0}), reward.log
    assert list(place.scratch.iterdir()) == [], "nothing of a check is left"
    assert not (made.folder / "tests").exists(), "the agent's own folder is not written to"


CONFTEST = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome = "passed"
"""
FAKE_PYTEST = "import sys\ndef main(*a, **k):\n    return 0\nsys.exit(0)\n"
ALWAYS = "import os\nos._exit(0)\n"
SITE = """
import builtins, unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
"""


def _conftest(work: Path) -> None:
    (work / "conftest.py").write_text(CONFTEST)


def _conftest_beside_the_tests(work: Path) -> None:
    (work / "tests").mkdir()
    (work / "tests" / "conftest.py").write_text(CONFTEST)


def _fake_modules(work: Path) -> None:
    for name in ("pytest.py", "unittest.py", "sitecustomize.py", "usercustomize.py"):
        (work / name).write_text(FAKE_PYTEST)
    (work / "_pytest").mkdir()
    (work / "_pytest" / "__init__.py").write_text(FAKE_PYTEST)
    (work / "colorsys.py").write_text("import sums\nsums.add = lambda a, b: a + b\n")  # the tests import it first
    (work / "json.py").write_text(SITE)
    (work / "evil.pth").write_text("import os; os._exit(0)\n")


def _fake_programs(work: Path) -> None:
    for name in ("pytest", "python", "python3", "sh"):
        program = work / name
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)


def _configuration(work: Path) -> None:
    (work / "sneaky.py").write_text(CONFTEST)
    (work / "pytest.ini").write_text("[pytest]\naddopts = -p sneaky\n")


def _configuration_in_the_project(work: Path) -> None:
    (work / "sneaky.py").write_text(CONFTEST)
    (work / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p sneaky'\n")


FORGED = """
import json, os, pathlib, sys
paths = ["tests/test_sums.py", "test_u.py"]
result = {"word": "", "outcomes": {"a": "passed"}, "files": dict.fromkeys(paths, 1), "code": 0}
for folder in (pathlib.Path.cwd().parent, pathlib.Path.home(), pathlib.Path.cwd()):
    (folder / "result.json").write_text(json.dumps(result))
os._exit(0)
"""


def _forged_result(work: Path) -> None:
    (work / "sums.py").write_text(FORGED)


def _exits(work: Path) -> None:
    (work / "sums.py").write_text(ALWAYS)


def _exits_by_error(work: Path) -> None:
    (work / "sums.py").write_text("raise SystemExit(0)\n")


def _skips(work: Path) -> None:
    (work / "sums.py").write_text("import unittest\ndef add(a, b):\n    raise unittest.SkipTest('not today')\n")


def _skips_the_module(work: Path) -> None:
    (work / "sums.py").write_text("import pytest\npytest.skip('not today', allow_module_level=True)\n")


def _expected(work: Path) -> None:
    (work / "sums.py").write_text("def add(a, b):\n    import pytest\n    pytest.xfail('known')\n")


def _own_tests(work: Path) -> None:
    (work / "tests").mkdir()
    (work / "tests" / "test_sums.py").write_text("def test_add():\n    pass\n")
    (work / "test_u.py").write_text("import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\n")


def _link_to_elsewhere(work: Path) -> None:
    outside = work.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "conftest.py").write_text(CONFTEST)
    (work / "tests").symlink_to(outside)
    (work / "test_u.py").symlink_to(outside / "u.py")


def _byte_code(work: Path) -> None:
    source = work / "honest" / "sums.py"
    source.parent.mkdir()
    source.write_text(FIXED)
    import py_compile

    (work / "__pycache__").mkdir()
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(
        str(source), str(work / "__pycache__" / f"sums.{sys.implementation.cache_tag}.pyc"), invalidation_mode=mode
    )


def _hooks(work: Path) -> None:
    hook = work / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(parents=True, exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch /tmp/dragoman-hook-ran\n")
    hook.chmod(0o755)
    (work / ".git" / "config").write_text("[core]\nfsmonitor = touch /tmp/dragoman-hook-ran\n")


@pytest.mark.parametrize(
    "attack",
    [
        _conftest,
        _conftest_beside_the_tests,
        _fake_modules,
        _fake_programs,
        _configuration,
        _configuration_in_the_project,
        _forged_result,
        _exits,
        _exits_by_error,
        _skips,
        _skips_the_module,
        _expected,
        _own_tests,
        _link_to_elsewhere,
        _byte_code,
        _hooks,
    ],
)
def test_an_attack_on_the_checks_gains_nothing(place: Place, attack: object) -> None:
    made = _made(place)
    attack(made.folder)  # type: ignore[operator]
    reward = _reward(place)

    assert reward.problem is None, reward.problem
    assert reward.value == 0.0, reward.log
    outside = place.workspace.parent / "outside"
    assert not outside.exists() or [path.name for path in outside.iterdir()] == ["conftest.py"]


@pytest.mark.parametrize("attack", [_conftest, _fake_modules, _fake_programs, _configuration, _own_tests])
def test_an_attack_beside_good_work_does_not_spoil_it(place: Place, attack: object) -> None:
    made = _made(place)
    attack(made.folder)  # type: ignore[operator]
    (made.folder / "sums.py").write_text(FIXED)
    if attack is _own_tests:
        shutil.rmtree(made.folder / "tests")
    assert _reward(place).value == 1.0


def test_the_tasks_own_configuration_holds(place: Place) -> None:
    seed = (*SEED, ("pyproject.toml", b"[tool.pytest.ini_options]\npythonpath = ['lib']\n"))
    made = make_workspace(FilesWorkspace((*seed, ("lib/sums.py", FIXED.encode()))), place.workspace)
    (made.folder / "pyproject.toml").unlink()
    (made.folder / "sums.py").unlink()
    from dataclasses import replace

    assert _reward(replace(place, steering=made.steering), PYTEST).value == 1.0
    assert _reward(place, PYTEST).value == 0.0


def test_a_process_left_by_a_check_is_ended_before_the_next(place: Place) -> None:
    made = _made(place)
    (made.folder / "sums.py").write_text(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(654)'], env={}, start_new_session=True)\n"
        + FIXED
    )
    assert _reward(place, PYTEST).value == 1.0
    marked = b"import time; time.sleep(654)"
    left = [one for one in Path("/proc").glob("[0-9]*/cmdline") if marked in _cmdline(one)]
    assert left == []


def _cmdline(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_check_reaches_no_network_where_there_are_namespaces(place: Place) -> None:
    _made(place)
    script = "import socket; socket.create_server(('127.0.0.1', 0)); socket.create_connection(('192.0.2.1', 80), 1)"
    check = CommandCheck(name="net", run=f'{sys.executable} -c "{script}" 2>&1')
    reward = _reward(place, check)
    assert reward.value == 0.0
    if place.isolation == "namespaces":
        assert "unreachable" in reward.log


def test_a_command_has_an_environment_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_OPERATOR_KEY", "dgo_secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    _made(place)
    reward = _reward(place, CommandCheck(name="env", run="env; pwd; ls -a"))
    assert reward.value == 1.0
    assert "dgo_secret" not in reward.log
    assert "PYTHONPATH" not in reward.log
    assert "\n.git\n" not in reward.log


def test_a_check_that_hangs_or_prints_without_end_is_worth_nothing(place: Place) -> None:
    from dataclasses import replace

    _made(place)
    slow = CommandCheck(name="slow", run="sleep 60", time_limit=0.5)
    loud = CommandCheck(name="loud", run="yes")
    reward = _reward(replace(place, output_bytes=100_000), slow, loud)
    assert (reward.value, reward.problem) == (0.0, None)
    assert "ended at the limit of 0.5 s" in reward.log
    assert "it printed more than 100,000 bytes" in reward.log


def test_what_is_not_the_agents_fault_gives_no_reward(place: Place) -> None:
    from dataclasses import replace

    _made(place)
    reward = _reward(
        place, replace(PYTEST, python="/no/such/python"), RegexCheck(name="r", pattern="x", where="output")
    )
    assert reward.value is None
    assert reward.components == {"r": 0.0}
    assert "check tests: /no/such/python has no pytest" in str(reward.problem)


def test_modes_that_only_privileges_give_are_not_copied(place: Place) -> None:
    made = _made(place)
    program = made.folder / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4755)
    os.mkfifo(made.folder / "pipe")
    reward = _reward(place, CommandCheck(name="c", run="test -x tool && test ! -u tool && test ! -e pipe"))
    assert reward.value == 1.0, reward.log
    assert program.stat().st_mode & stat.S_ISUID


def test_weights() -> None:
    def check(name: str, weight: float) -> Check:
        return CommandCheck(name=name, run="true", weight=weight)

    scores = [
        (check("a", 3), Score(1.0, "")),
        (check("b", 1), Score(0.0, "")),
        (check("p", -1), Score(0.5, "", {"x": 2})),
    ]
    assert combine(scores) == (0.625, {"a": 1.0, "b": 0.0, "p": 0.5, "p/x": 2})
    turns = [(check("f", 1), Score(0.5, "", {"turn/abc": 0.25}))]
    assert combine(turns) == (0.5, {"f": 0.5, "turn/abc": 0.25})
    assert combine([]) == (None, {})
    assert combine([(check("f", 1), Score(float("nan"), ""))])[0] is None
