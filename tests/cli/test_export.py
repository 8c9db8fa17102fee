"""``dragoman export``: which episodes are written, where to, and what is said of them."""

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atif
import pyarrow.parquet
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


def test_parquet_has_the_same_rows(run: Callable[..., Any], filled_store: str, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"

    result = run("export", "--format", "parquet", "--out", str(file))

    assert (result.code, result.out) == (0, "")
    (read,) = pyarrow.parquet.read_table(file).to_pylist()
    (row,) = rows(run("export").out)
    assert [read[name] for name in ("episode", "token_ids", "loss_mask", "logprobs", "reward")] == [
        row[name] for name in ("episode", "token_ids", "loss_mask", "logprobs", "reward")
    ]
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ""] == ["all.parquet"]


def test_a_trajectory(run: Callable[..., Any], filled_store: str) -> None:
    result = run("export", "--format", "atif", "--episode", "abcd")

    assert result.err == "1 episodes written, each as one trajectory\n"
    document = atif.Trajectory.model_validate_json(result.out)
    assert [step.source for step in document.steps] == ["user", "agent"]
    assert document.agent.name == "pi"
    assert document.extra is not None
    assert (document.extra["reward"], len(document.extra["other_calls"])) == (0.75, 3)


def test_a_file_that_did_not_become_whole_is_not_left(
    run: Callable[..., Any], filled_store: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text("the last one")
    with sqlite3.connect(filled_store.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE calls SET logprobs = completion_ids, completion_ids = x'01' WHERE logprobs IS NOT NULL"
        )
    connection.close()

    result = run("export", "--out", str(tmp_path / "a.jsonl"))

    assert (result.code, "`dragoman db check` says more" in result.err) == (1, True)
    assert (tmp_path / "a.jsonl").read_text() == "the last one"
    assert not (tmp_path / "a.jsonl.part").exists()


def test_a_pipe_is_written_as_it_is(run: Callable[..., Any], filled_store: str) -> None:
    assert run("export", "--out", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


def test_parquet_without_pyarrow(run: Callable[..., Any], filled_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    result = run("export", "--format", "parquet", "--out", "/dev/null")
    assert (result.code, "install dragoman[parquet]" in result.err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "parquet"), "--format parquet needs --out FILE"),
        (("--episode", "abcd", "--task", "t"), "not both"),
        (("--episode", "zzz"), "no episode or call has an id"),
        (("--out", "/no/such/folder/file"), "/no/such/folder/file cannot be written: No such file"),
    ],
)
def test_what_cannot_be(run: Callable[..., Any], filled_store: str, options: tuple[str, ...], said: str) -> None:
    result = run("export", *options)

    assert result.code == 1
    assert said in result.err
