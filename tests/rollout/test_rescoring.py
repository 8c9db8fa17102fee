"""Rewards of episodes that have long ended: the workspace as the agent left it, or a reason why there is none."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.rollout.box import DEFAULT_RESOURCES
from dragoman.rollout.changes import changes_since, take_own_snapshot
from dragoman.rollout.ready import make_ready
from dragoman.rollout.rescoring import CannotRescore, Rescoring, rescore
from dragoman.rollout.tasks import CommandCheck, EqualCheck, FilesWorkspace, RegexCheck, Task
from dragoman.store.artefacts import write_artefacts
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, get_episode, open_episode
from dragoman.store.records import Artefact, EpisodeInfo, EpisodeSpec

PATH = os.environ.get("PATH", os.defpath)
HOW = Rescoring(60, path=PATH)
TASK = Task(
    "t",
    "do it",
    FilesWorkspace((("a.txt", b"one\n"), ("gone.txt", b"x"), (".gitignore", b"*.log\n"))),
    setup="echo made > made.txt",
    checks=(EqualCheck(name="a", path="a.txt", content=b"two"),),
)
EVERYTHING = (
    "grep two a.txt && test ! -e gone.txt && test -f made.txt && cmp out.bin b.bin && test -x run && test -f x.log"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = Database.open(f"sqlite:///{tmp_path / 'dragoman.db'}")
    with database.session() as session:
        open_episode(session, EpisodeSpec("t"), episode_id="e1", token_hash="0" * 64, now=1.0, expires_at=9e9)
    yield database
    database.close()


def _work(folder: Path) -> bytes:
    """The diff of an agent's work of every kind."""
    (folder / "home").mkdir()
    work = folder / "work"
    make_ready(TASK, work, folder / "home", path=PATH, resources=DEFAULT_RESOURCES, time_limit=60)
    (folder / "git").mkdir()
    before = take_own_snapshot(work, folder / "git")
    assert before is not None
    (work / "a.txt").write_text("two\n")
    (work / "gone.txt").unlink()
    for name in ("out.bin", "b.bin"):
        (work / name).write_bytes(bytes(range(256)))
    (work / "run").write_text("#!/bin/sh\n")
    (work / "run").chmod(0o755)
    (work / "x.log").write_text("ignored by git, and work all the same")
    (work / "link").symlink_to("/etc")
    return changes_since(before)


def _ended(database: Database, diff: bytes | None, omitted: int = 0) -> EpisodeInfo:
    kept = [Artefact("run.json", "application/json", b'{"exit_code": 0, "seconds": 1.5, "harness": "pi"}')]
    kept += [Artefact(f"{name}.txt", "text/plain", b"All done.\n") for name in ("stdout", "stderr")]
    kept += [] if diff is None else [Artefact("changes.diff", "text/x-diff", diff, omitted)]
    with database.session() as session:
        write_artefacts(session, "e1", kept, now=2.0)
        end_episode(session, "e1", "completed", reason=None, now=3.0)
        return get_episode(session, "e1")


def test_the_workspace_is_as_the_agent_left_it(store: Database, tmp_path: Path) -> None:
    episode = _ended(store, _work(tmp_path))
    said = RegexCheck(name="said", pattern="^All done", where="output")
    whole = CommandCheck(name="whole", run=EVERYTHING)
    reward = rescore(store, episode, replace(TASK, checks=(*TASK.checks, said, whole)), HOW)
    assert (reward.value, reward.problem) == (1.0, None), reward.log
    with store.reading() as session:
        assert get_episode(session, "e1").reward is None, "nothing is written"


def test_no_changes_are_the_task_as_it_was(store: Database) -> None:
    assert rescore(store, _ended(store, b""), TASK, HOW).value == 0.0


@pytest.mark.parametrize(
    ("diff", "omitted", "says"),
    [
        (None, 0, "has no artefact 'changes.diff'"),
        (b"diff", 7, "its diff was too long to keep: 7 bytes are missing"),
        (b"--- a/other.txt\n+++ b/other.txt\n@@ -1 +1 @@\n-x\n+y\n", 0, "its diff does not fit the task's workspace"),
        (b"--- /dev/null\n+++ b/../../outside\n@@ -0,0 +1 @@\n+y\n", 0, "its diff does not fit the task's workspace"),
    ],
)
def test_what_is_not_all_there_is_not_scored(store: Database, diff: bytes | None, omitted: int, says: str) -> None:
    with pytest.raises(CannotRescore, match=says):
        rescore(store, _ended(store, diff, omitted), TASK, HOW)


def test_a_setup_that_fails_now_is_no_zero(store: Database) -> None:
    with pytest.raises(CannotRescore, match="setup ended with 1"):
        rescore(store, _ended(store, b""), replace(TASK, setup="exit 1"), HOW)


def test_an_open_episode_is_not_scored(store: Database) -> None:
    with store.reading() as session:
        episode = get_episode(session, "e1")
    with pytest.raises(CannotRescore, match="it has not ended"):
        rescore(store, episode, TASK, HOW)
