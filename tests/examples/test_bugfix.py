"""The example's hidden tests fail on what an agent gets, and pass with the reference fix."""

import os
import shutil
from pathlib import Path

import pytest

from dragoman.rollout.checks import Place
from dragoman.rollout.rewards import find_reward
from dragoman.rollout.seen import EpisodeSeen
from dragoman.rollout.task_files import read_tasks
from dragoman.rollout.tasks import FolderWorkspace, Task
from dragoman.rollout.workspaces import make_workspace

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "bugfix"
TASKS = read_tasks(FOLDER / "tasks.yaml")


def test_there_are_twenty_in_two_splits() -> None:
    assert len(TASKS) == 20
    assert len(read_tasks(FOLDER / "tasks.yaml", split="test")) == 4
    assert {path.name for path in (FOLDER / "repos").iterdir()} == {path.name for path in (FOLDER / "fixes").iterdir()}


@pytest.mark.parametrize("task", TASKS, ids=[task.id for task in TASKS])
def test_hidden_tests_fail_before_the_fix_and_pass_after_it(task: Task, tmp_path: Path) -> None:
    made = make_workspace(task.workspace, tmp_path / "work")
    place = Place(made.folder, made.steering, tmp_path / "scratch", path=os.environ.get("PATH", os.defpath))
    seen = EpisodeSeen("e", task.id, task.prompt)
    place.scratch.mkdir()

    before = find_reward(task, seen, place, time_limit=60)
    assert (before.value, before.problem) == (0.0, None), before.log
    assert isinstance(task.workspace, FolderWorkspace)
    shutil.copytree(FOLDER / "fixes" / task.workspace.folder.name, made.folder, dirs_exist_ok=True)
    after = find_reward(task, seen, place, time_limit=60)
    assert (after.value, after.problem) == (1.0, None), after.log
