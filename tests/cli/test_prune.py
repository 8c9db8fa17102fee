"""``dragoman prune``: what it lists, what it deletes, what it refuses to guess."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.output import Failure
from dragoman.cli.prune import seconds
from dragoman.store.check import check
from dragoman.store.database import Database

EPISODE, OPEN = "abcdefgh1234", "abzzzzzzzzzz"


def ids(run: Callable[..., Any]) -> set[str]:
    return {line.split()[0] for line in run("episodes").out.splitlines()[1:]}


def test_a_dry_run_lists_and_deletes_nothing(run: Callable[..., Any], filled_store: str) -> None:
    result = run("prune", "--older-than", "30d", "--dry-run")

    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[0] == ["id", "task", "calls", "bytes", "end", "reward", "age"]
    assert (rows[1][:3], rows[1][4:6]) == ([EPISODE, "ls-task", "4"], ["completed", "0.75"])
    assert len(rows) == 3
    assert result.out.splitlines()[2].startswith("would delete 1 episode with 4 calls (")
    assert ids(run) == {EPISODE, OPEN}


def test_old_episodes_go_and_the_open_one_stays(run: Callable[..., Any], filled_store: str) -> None:
    file = Path(filled_store.removeprefix("sqlite:///"))
    assert b"audio" in b"".join(path.read_bytes() for path in file.parent.glob("dragoman.db*"))

    result = run("prune", "--older-than", "30d")

    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("deleted 1 episode with 4 calls (")
    assert lines[1] == "and what nothing refers to now: 3 messages, 1 groups, 1 tasks"
    assert lines[2].startswith("the database has ")
    assert "1 of 1 episodes deleted\nVACUUM: giving the space back\n" in result.err
    assert ids(run) == {OPEN}
    database = Database.open(filled_store)
    with database.reading() as session:
        assert check(session).problems == ()
    database.close()
    assert b"audio" not in b"".join(path.read_bytes() for path in file.parent.glob("dragoman.db*"))


def test_the_best_stays(run: Callable[..., Any], filled_store: str) -> None:
    result = run("prune", "--older-than", "0s", "--keep-best", "1")

    assert result.code == 0
    assert result.out.startswith("deleted 0 episodes with 0 calls")
    assert ids(run) == {EPISODE, OPEN}


def test_a_named_episode_goes_though_it_is_open(run: Callable[..., Any], filled_store: str) -> None:
    result = run("prune", "--episode", OPEN)

    assert result.code == 0
    assert ids(run) == {EPISODE}


def test_more_episodes_than_one_transaction_takes(
    run: Callable[..., Any], filled_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.prune.BATCH", 1)

    result = run("prune", "--episode", OPEN, "--episode", EPISODE, "--episode", OPEN)

    assert result.code == 0
    assert "1 of 2 episodes deleted\n2 of 2 episodes deleted\n" in result.err
    assert ids(run) == set()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either --older-than AGE, or --episode ID"),
        (("--older-than", "3d", "--episode", EPISODE), "either --older-than AGE, or --episode ID"),
        (("--episode", EPISODE, "--keep-best", "3"), "--keep-best goes with --older-than"),
        (("--episode", "abcdefgh"), "there is no episode 'abcdefgh' in this store; name it by its whole id"),
        (("--older-than", "soon"), "'soon' is no age"),
        (("--older-than", "-3d"), "'-3d' is no age"),
    ],
)
def test_what_is_not_clear_is_refused(
    run: Callable[..., Any], filled_store: str, options: tuple[str, ...], said: str
) -> None:
    result = run("prune", *options)

    assert result.code == 1
    assert said in result.err
    assert ids(run) == {EPISODE, OPEN}


@pytest.mark.parametrize(
    ("text", "wanted"), [("30d", 2592000), ("12h", 43200), ("90min", 5400), ("1.5 h", 5400), ("0s", 0), ("2w", 1209600)]
)
def test_ages(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "30", "d", "3 months", "1e9d", "nan d"])
def test_no_ages(text: str) -> None:
    with pytest.raises(Failure):
        seconds(text)


def test_over_any_database(run: Callable[..., Any], store_url: str) -> None:
    run("db", "upgrade", "--store", store_url)

    result = run("prune", "--older-than", "1d", "--store", store_url)

    assert result.code == 0, result.err
    assert result.out.startswith("deleted 0 episodes with 0 calls")
