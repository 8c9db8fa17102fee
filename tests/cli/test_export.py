"""``dragoman export``: which episodes are written, where to, and what is said of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.store.database import Database
from dragoman.store.episodes import end_episode
from tests.store_calls import Episode, write_episode

EPISODE = "abcdefgh1234"


def rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_episode_to_stdout(run: Callable[..., Any], filled_store: str) -> None:
    result = run("export", "--episode", "abcd")

    assert result.code == 0
    (row,) = rows(result.out)
    assert (row["episode"], row["task"], row["group"], row["reward"]) == (EPISODE, "ls-task", "g1", 0.75)
    assert row["token_ids"] == [1, 2, 3, 4, 7, 8, 2]
    assert row["loss_mask"] == [0, 0, 0, 0, 1, 1, 1]
    assert row["logprobs"] == [0, 0, 0, 0, -0.5, -1.5, -0.25]
    assert row["policy_spans"] == [["base", 4, 6], ["policy-v1", 6, 7]]
    assert result.err.startswith("1 episodes: 1 traces with 3 trained tokens written, 3 calls excluded")


def test_ended_episodes_in_order_and_of_one_task(run: Callable[..., Any], store_url: str, tmp_path: Path) -> None:
    database = Database.open(store_url)
    for name, opened_at, task in (("late", 9.0, "a"), ("early", 1.0, "a"), ("other", 5.0, "b"), ("open", 2.0, "a")):
        calls = Episode(name)
        calls.add(f"{name}1", [1], [2])
        with database.session() as session:
            write_episode(session, calls, opened_at=opened_at, task=task)
            if name != "open":
                end_episode(session, name, "completed", reason=None, now=10.0)
    database.close()

    every = run("export", "--store", store_url, "--format", "jsonl")
    of_task = run("export", "--store", store_url, "--task", "a", "--out", str(tmp_path / "a.jsonl"))
    named = run("export", "--store", store_url, "--episode", "open")

    assert [row["episode"] for row in rows(every.out)] == ["early", "other", "late"]
    assert (of_task.code, of_task.out) == (0, "")
    assert [row["episode"] for row in rows((tmp_path / "a.jsonl").read_text())] == ["early", "late"]
    assert [(row["episode"], row["end"]) for row in rows(named.out)] == [("open", None)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--episode", "abcd", "--task", "t"), "not both"),
        (("--episode", "zzz"), "no episode or call has an id"),
        (("--out", "/no/such/folder/file"), "/no/such/folder/file cannot be written: No such file"),
    ],
)
def test_what_cannot_be(run: Callable[..., Any], filled_store: str, options: tuple[str, ...], said: str) -> None:
    result = run("export", *options)

    assert result.code == 1
    assert said in result.err
