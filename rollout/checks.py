"""One check of a task on what an agent left: a score, or why there can be none.

Rules of this module: nothing that the agent made is run or read but in a copy (``workspaces.copy_for_checks``), in a
box without network, with a home and an environment of its own, after the agent's last process has ended. What the
agent's work is to blame for is a score of 0; what is not its fault (no pytest here, a judge that does not answer) is
``CheckError``, and the episode gets no reward from it.
"""

import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jsonschema

from dragoman.rollout.box import DEFAULT_RESOURCES, Box, Isolation, Resources, boxed
from dragoman.rollout.judge import JudgeError, ask_judge
from dragoman.rollout.process import HarnessResult, Launch, Limits, run
from dragoman.rollout.seen import EpisodeSeen, to_json
from dragoman.rollout.tasks import (
    Check,
    CommandCheck,
    EqualCheck,
    FileTree,
    FunctionCheck,
    JudgeCheck,
    RegexCheck,
    SchemaCheck,
    TestsCheck,
)
from dragoman.rollout.tests_inside import NO_FRAMEWORK
from dragoman.rollout.workspaces import WorkspaceError, copy_for_checks

__all__ = ["CheckError", "Place", "Score", "run_check"]

HERE = Path(__file__).resolve().parent
READ_LIMIT = 16 * 1024 * 1024
SEARCH = "import json,re,sys; p=json.load(sys.stdin); sys.exit(0 if re.search(p[0], p[1], re.M) else 10)"
NOT_FOUND = 10


class CheckError(Exception):
    """The check could not be made, for a reason that is not the agent's."""


@dataclass(frozen=True)
class Score:
    value: float
    says: str
    """For a person: what the check printed, or why it is 0."""
    extra: dict[str, float] = field(default_factory=dict)
    """Further components: as the function named them."""


@dataclass(frozen=True)
class Place:
    """Where a check is made, and within what limits."""

    workspace: Path
    """What the agent left; never written to."""
    steering: FileTree
    scratch: Path
    """An empty folder, for this check alone."""
    isolation: Isolation = "limits"
    resources: Resources = DEFAULT_RESOURCES
    most_bytes: int = 4 << 30
    """Of the workspace's copy, and of what the check writes."""
    output_bytes: int = 64 << 20
    path: str = os.defpath
    hidden: tuple[Path, ...] = ()
    stopped: Callable[[], bool] | None = None

    def copy(self, files: FileTree = ()) -> Path:
        """A copy of the workspace with ``files`` over it. Raises ``WorkspaceError``."""
        folder = self.scratch / "work"
        copy_for_checks(self.workspace, folder, self.steering, files, most_bytes=self.most_bytes)
        return folder

    def run(self, command: tuple[str, ...], cwd: Path, *, stdin: str = "", timeout: float) -> HarnessResult:
        """Run a program in a box of its own without network."""
        home = self.scratch / "home"
        home.mkdir(exist_ok=True)
        env = {
            "PATH": self.path,
            "HOME": str(home),
            "TMPDIR": str(home),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        box = Box(
            self.isolation,
            self.resources,
            writable=(self.scratch,),
            readable=(HERE,),
            hidden=(self.workspace, *self.hidden),
        )
        limits = Limits(self.output_bytes, self.most_bytes, (self.scratch,))
        launch = Launch(command, env, (), cwd, stdin)
        return run(boxed(launch, box), timeout=timeout, limits=limits, stopped=self.stopped)


def run_check(check: Check, episode: EpisodeSeen, place: Place, *, time_limit: float) -> Score:
    """Make one check, within ``time_limit`` seconds where it has no limit of its own.

    Raises ``CheckError``, and ``Stopped`` when ``place.stopped`` says so.
    """
    limit = check.time_limit or time_limit
    try:
        match check:
            case CommandCheck():
                return _command(check, place, limit)
            case TestsCheck():
                return _tests(check, place, limit)
            case EqualCheck():
                return _equal(check, place)
            case SchemaCheck():
                return _schema(check, place)
            case RegexCheck():
                return _regex(check, episode, place, limit)
            case FunctionCheck():
                return _function(check, episode, place, limit)
            case JudgeCheck():
                score, said = ask_judge(check, episode, timeout=limit)
                return Score(score, said)
    except WorkspaceError as error:
        return Score(0.0, str(error))
    except (JudgeError, OSError) as error:
        raise CheckError(str(error)) from error


def _command(check: CommandCheck, place: Place, limit: float) -> Score:
    result = place.run(("/bin/sh", "-c", check.run), place.copy(check.files), timeout=limit)
    return Score(1.0 if result.exit_code == 0 else 0.0, _told(result, limit))


def _tests(check: TestsCheck, place: Place, limit: float) -> Score:
    root, result_path, word = place.copy(check.files), place.scratch / "result.json", secrets.token_hex(16)
    plan = {
        "framework": check.framework,
        "root": str(root),
        "paths": list(check.paths),
        "word": word,
        "result": str(result_path),
    }
    python = check.python or _python_with(check.framework)
    command = (python, "-I", "-X", "pycache_prefix=/dev/null", str(HERE / "tests_inside.py"))
    done = place.run(command, root, stdin=json.dumps(plan), timeout=limit)
    said = _told(done, limit)
    if done.exit_code in (NO_FRAMEWORK, 127):
        raise CheckError(f"{python} has no {check.framework}: {said[-300:]}")
    try:
        result = json.loads(result_path.read_bytes()[:READ_LIMIT])
        mine = result["word"] == word
    except (OSError, ValueError, KeyError, TypeError):
        mine = False
    if not mine:
        return Score(0.0, f"the tests did not come to their end\n{said}")
    without = [path for path in check.paths if not result["files"].get(path)]
    if without:
        return Score(0.0, f"no test could be loaded from {', '.join(without)}\n{said}")
    outcomes = list(result["outcomes"].values())
    passed = outcomes.count("passed")
    value = passed / len(outcomes) if check.score == "fraction" else float(passed == len(outcomes))
    return Score(value, f"{passed} of {len(outcomes)} tests passed\n{said}")


@cache
def _python_with(framework: str) -> str:
    """This Python when it can import the framework, else the one on PATH."""
    import importlib.util

    if importlib.util.find_spec(framework) is not None:
        return sys.executable
    return shutil.which("python3") or sys.executable


def _equal(check: EqualCheck, place: Place) -> Score:
    content = _read(place.copy(), check.path)
    if content is None:
        return Score(0.0, f"{check.path} is not there, or is no file")
    same = content.strip() == check.content.strip() if check.strip else content == check.content
    return Score(float(same), "equal" if same else f"{check.path} is {content[:200]!r}")


def _schema(check: SchemaCheck, place: Place) -> Score:
    content = _read(place.copy(), check.path)
    if content is None:
        return Score(0.0, f"{check.path} is not there, or is no file")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        return Score(0.0, f"{check.path} is no JSON: {error}")
    wrong = next(iter(jsonschema.Draft202012Validator(check.schema).iter_errors(value)), None)
    return Score(0.0, f"{wrong.json_path}: {wrong.message:.300}") if wrong else Score(1.0, "it fits the schema")


def _regex(check: RegexCheck, episode: EpisodeSeen, place: Place, limit: float) -> Score:
    if check.where == "file":
        content = _read(place.copy(), check.path or "")
        if content is None:
            return Score(0.0, f"{check.path} is not there, or is no file")
        text = content.decode(errors="replace")
    else:
        text = episode.reply if check.where == "reply" else f"{episode.stdout}\n{episode.stderr}"
    # In a process of its own, since some patterns take for ever on some texts.
    command = (sys.executable, "-I", "-S", "-c", SEARCH)
    done = place.run(command, place.scratch, stdin=json.dumps([check.pattern, text]), timeout=limit)
    if done.exit_code not in (0, NOT_FOUND):
        return Score(0.0, f"the search did not come to its end\n{_told(done, limit)}")
    found = done.exit_code == 0
    return Score(float(found != check.absent), "found" if found else "not found")


def _function(check: FunctionCheck, episode: EpisodeSeen, place: Place, limit: float) -> Score:
    """The task's author wrote it, so it has this process's environment and network; what it reads is the copy."""
    plan_path, result_path = place.scratch / "plan.json", place.scratch / "result.json"
    plan = {
        "function": check.function,
        "folder": str(check.folder),
        "workspace": str(place.copy()),
        "episode": to_json(episode),
    }
    plan_path.write_text(json.dumps(plan))
    command = (sys.executable, "-P", "-m", "dragoman.rollout.function_inside", str(plan_path), str(result_path))
    launch = Launch(command, dict(os.environ), (), place.scratch, "")
    done = run(launch, timeout=limit, limits=Limits(place.output_bytes), stopped=place.stopped)
    if done.exit_code != 0:
        raise CheckError(f"{check.function} failed: {_told(done, limit)[-2000:]}")
    numbers = json.loads(result_path.read_text())
    return Score(numbers.pop("reward"), _told(done, limit), numbers)


def _read(copy: Path, path: str) -> bytes | None:
    """A file of the copy; None when there is none, or it is too long to be meant."""
    file = copy / path
    if not file.is_file() or not file.resolve().is_relative_to(copy.resolve()) or file.stat().st_size > READ_LIMIT:
        return None
    return file.read_bytes()


def _told(result: HarnessResult, limit: float) -> str:
    """What a program printed, and how it ended."""
    if result.over_limit is not None:
        how = f"ended because {result.over_limit}"
    elif result.exit_code is None:
        how = f"ended at the limit of {limit:g} s"
    else:
        how = f"exit code {result.exit_code}"
    return f"{result.stdout}{result.stderr}[{how}]"
