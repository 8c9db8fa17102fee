"""The small example's tasks and teacher: what is right passes its check, what is a mistake does not."""

import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from dragoman.rollout.script import read_script
from dragoman.rollout.task_files import read_tasks
from examples.tinyloop.tasks import SEEN, UNSEEN, Job, Kind, check_command, make_job, make_jobs, write_tasks
from examples.tinyloop.teacher import SHELLS, WAYS, make_script, right_call, shell_command, step
from examples.tinyloop.words import CONTENTS, NAMES


def done(job: Job, folder: Path, command: str | None) -> bool:
    for path, text in job.before.items():
        (folder / path).write_text(text)
    if command is not None:
        subprocess.run(["sh", "-c", command], cwd=folder, check=True)
    return subprocess.run(["sh", "-c", check_command(job)], cwd=folder, capture_output=True).returncode == 0


@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_is_right_passes_and_doing_nothing_does_not(kind: Kind, tmp_path: Path) -> None:
    for number in range(5):
        job = make_job(kind, random.Random(number))
        for name in ("right", "idle"):
            (tmp_path / f"{name}{number}").mkdir()
        assert done(job, tmp_path / f"right{number}", shell_command(job))
        assert not done(job, tmp_path / f"idle{number}", None)


def test_splits_share_no_task_and_some_kinds_are_held_out_only() -> None:
    jobs = make_jobs(train=256, held_out=64, unseen=32, seed=0)
    assert {split: len(some) for split, some in jobs.items()} == {"train": 256, "held-out": 64, "unseen": 32}
    prompts = [job.prompt for some in jobs.values() for job in some]
    assert len(set(prompts)) == len(prompts)
    assert not any(one != other and one in other for one in prompts for other in prompts)
    assert {job.kind for split in ("train", "held-out") for job in jobs[split]} == set(SEEN)
    assert {job.kind for job in jobs["unseen"]} == set(UNSEEN)
    assert make_jobs(train=256, held_out=64, unseen=32, seed=0) == jobs
    assert make_jobs(train=256, held_out=64, unseen=32, seed=1) != jobs
    with pytest.raises(ValueError, match="ask for fewer"):
        make_jobs(train=100_000, held_out=0, unseen=0, seed=0)


def test_words_are_no_parts_of_each_other() -> None:
    words = [*NAMES, *CONTENTS]
    assert len(set(words)) == len(words)
    assert not [(one, other) for one in words for other in words if one != other and one in other]


def test_the_task_file_is_one(tmp_path: Path) -> None:
    path = write_tasks(tmp_path, make_jobs(train=10, held_out=5, unseen=2, seed=0))
    tasks = read_tasks(path)
    assert Counter(task.split for task in tasks) == {"train": 10, "held-out": 5, "unseen": 2}
    assert tasks[0].id == "train-000-create"


@pytest.mark.parametrize("harness", SHELLS)
def test_the_teachers_script_has_every_way_about_as_often_as_it_should(harness: str) -> None:
    jobs = make_jobs(train=100, held_out=0, unseen=0, seed=0)["train"]
    script = make_script(jobs, harness, samples=4, seed=0)
    assert len(read_script(script).steps) == 401
    right = sum(one.get("tool_calls") == [right_call(job, harness)] for job, one in _pairs(jobs, script[1:]))
    assert 0.25 < right / 400 < 0.45
    assert make_script(jobs, harness, samples=4, seed=0) == script


@pytest.mark.parametrize("way", [way for way in WAYS if way != "right"])
@pytest.mark.parametrize("kind", SEEN)
def test_a_mistake_is_one(kind: Kind, way: str) -> None:
    job = make_job(kind, random.Random(1))
    reply = step(job, "pi", way, random.Random(2))  # type: ignore[arg-type]
    assert reply.get("tool_calls") != [right_call(job, "pi")]


def _pairs(jobs: list[Job], steps: list[dict[str, object]]) -> list[tuple[Job, dict[str, object]]]:
    return [(jobs[number // 4], one) for number, one in enumerate(steps)]
