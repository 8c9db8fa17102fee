"""``dragoman score``: whole runs and single episodes, with the earlier rewards kept."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.home import default_store_url
from dragoman.store.artefacts import write_artefacts
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode, set_reward
from dragoman.store.records import Artefact, EpisodeSpec

IDS = ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc")


@pytest.fixture
def tasks(tmp_path: Path, state: Path) -> Path:
    """A task file, and a store with a run of three episodes: good work, no work, and a run that was abandoned."""
    path = tmp_path / "tasks.jsonl"
    check = {"kind": "equal", "path": "a.txt", "to": "two", "name": "content"}
    task = {"id": "t", "prompt": "x", "workspace": {"files": {"a.txt": "one\n"}}, "checks": [check]}
    path.write_text(json.dumps(task))
    work = b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n"
    database = Database.open(default_store_url())
    with database.session() as session:
        for number, (id_, diff) in enumerate(zip(IDS, (work, b"", b""), strict=True)):
            spec = EpisodeSpec("t", metadata={"run": "mine"})
            open_episode(session, spec, episode_id=id_, token_hash=f"{number}" * 64, now=1.0, expires_at=9e9)
            kept = [Artefact("run.json", "application/json", b"{}"), Artefact("changes.diff", "text/x-diff", diff)]
            kept += [Artefact(f"{name}.txt", "text/plain", b"") for name in ("stdout", "stderr")]
            write_artefacts(session, id_, kept, now=2.0)
            set_reward(session, id_, 0.25, components=None, now=2.0)
            end_episode(session, id_, "abandoned" if number == 2 else "completed", reason=None, now=3.0)
    database.close()
    return path


def _rewards(state: Path) -> list[tuple[str, float]]:
    with sqlite3.connect(state / "dragoman.db") as database:
        return database.execute("SELECT episode_id, reward FROM rewards ORDER BY row").fetchall()


def test_a_run_is_scored_again_and_earlier_rewards_stay(run: Callable[..., Any], tasks: Path, state: Path) -> None:
    before = _rewards(state)
    result = run("score", "mine", "--tasks", str(tasks), "--concurrency", "1", "--isolation", "limits")
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        f"{IDS[0]}  t  0.25 -> 1  (content 1)",
        f"{IDS[1]}  t  0.25 -> 0  (content 0)",
    ]
    assert "2 of 2 episodes are scored" in result.err
    assert _rewards(state) == [*before, (IDS[0], 1.0), (IDS[1], 0.0)]
    assert "== content: 1" in run("show", IDS[0], "--artefact", "checks.txt").out


def test_one_episode_by_the_start_of_its_id_and_nothing_stored(
    run: Callable[..., Any], tasks: Path, state: Path
) -> None:
    before = _rewards(state)
    result = run("score", "aaaa", "--tasks", str(tasks), "--dry-run", "--isolation", "limits")
    assert (result.code, "0.25 -> 1" in result.out) == (0, True)
    assert _rewards(state) == before


def test_what_cannot_be_scored_is_told(run: Callable[..., Any], tasks: Path) -> None:
    tasks.write_text('{"id": "other", "prompt": "x"}')
    result = run("score", "mine", "--tasks", str(tasks))
    assert result.code == 1
    assert f"{IDS[0]}  t: the task file has no such task" in result.err
    assert run("score", "nothing", "--tasks", str(tasks)).code == 1
