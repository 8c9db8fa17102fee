"""Which checkpoint a run goes on from. (Killed at every moment: ``test_run``.)"""

from pathlib import Path

import pytest

from dragoman.trainer.checkpoints import (
    MARKER,
    RunInUse,
    TrainedGroup,
    checkpoint_step,
    holder_of,
    last_complete,
    lock_run,
    read_marker,
    write_marker,
)


def test_the_newest_complete_one_by_number(tmp_path: Path) -> None:
    assert last_complete(tmp_path) is None
    for step, complete in ((2, True), (10, True), (9, True), (30, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if complete:
            write_marker(folder, [])
    (tmp_path / "checkpoint-best").mkdir()
    write_marker(tmp_path / "checkpoint-best", [])
    assert last_complete(tmp_path) == tmp_path / "checkpoint-10"
    assert [checkpoint_step(Path(name)) for name in ("checkpoint-7", "checkpoint-", "x-3")] == [7, -1, -1]


def test_a_marker_is_read_as_it_was_written(tmp_path: Path) -> None:
    groups = [TrainedGroup(5, 1), TrainedGroup(7, 2)]
    write_marker(tmp_path, groups)
    assert read_marker(tmp_path) == groups
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]
    (tmp_path / MARKER).write_text("{}")
    with pytest.raises(ValueError, match="no complete checkpoint"):
        read_marker(tmp_path)


def test_a_run_keeps_its_name_and_others_have_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert holder_of(tmp_path / "a") == holder_of(tmp_path / "a") != holder_of(tmp_path / "b")


def test_one_trainer_in_a_folder(tmp_path: Path) -> None:
    with lock_run(tmp_path / "a"), pytest.raises(RunInUse, match="another trainer is at work"):
        lock_run(tmp_path / "a")
    lock_run(tmp_path / "a").close()
