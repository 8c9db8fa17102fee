"""A run's journal: what was done, what was begun, and what a crash leaves of it."""

from pathlib import Path

import pytest

from dragoman.rollout.journal import Journal, RunBusy, RunName, free_name
from dragoman.rollout.samples import Outcome, Sample
from dragoman.rollout.tasks import Task

SAMPLES = [Sample(Task("t", "x"), "pi", number) for number in range(4)]


def _outcome(number: int, episode: str | None, end: str = "completed", again: bool = False) -> Outcome:
    return Outcome("t", "pi", number, None, episode, end, None, 0.5, {"a": 1.0}, again=again, problems=("p",))  # type: ignore[arg-type]


def test_what_was_done_is_known_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        for number, sample in enumerate(SAMPLES):
            journal.opened(sample, f"e{number}")
        journal.ended(_outcome(0, "e0"))
        journal.ended(_outcome(1, "e1", "abandoned", again=True))
        journal.ended(_outcome(2, "e2", "timed_out"))
    with Journal(tmp_path / "run") as journal:
        assert set(journal.done) == {SAMPLES[0].key, SAMPLES[2].key}
        assert journal.done[SAMPLES[0].key] == _outcome(0, "e0")
        assert journal.open == {"e3": SAMPLES[3].key}


def test_abandoned_and_never_opened_ones_are_not_done(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.ended(_outcome(0, "e0", "abandoned"))
        journal.ended(_outcome(1, None, "failed"))
        assert journal.done == {}


def test_a_last_line_that_was_cut_counts_for_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.opened(SAMPLES[0], "e0")
    path = tmp_path / "run" / "journal.jsonl"
    with path.open("a") as file:
        file.write('{"event": "ended", "outc')
    with Journal(tmp_path / "run") as journal:
        assert journal.open == {"e0": SAMPLES[0].key}
        journal.ended(_outcome(0, "e0"))
    with Journal(tmp_path / "run") as journal:
        assert set(journal.done) == {SAMPLES[0].key}


def test_one_process_has_a_run_at_a_time(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "run"),
        pytest.raises(RunBusy, match="another process has the run 'run'"),
        Journal(tmp_path / "run"),
    ):
        pass
    with Journal(tmp_path / "run"):
        pass


def test_names(tmp_path: Path) -> None:
    assert free_name(tmp_path, "a") == "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_name(tmp_path, "a") == "a-3"
    for wrong in ("", "a/b", "../x", "-a", "a" * 101):
        with pytest.raises(ValueError, match="is no name for a run"):
            RunName(wrong)
