"""The file of ``dragoman loop``: read into one record, and every mistake named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.cli.loop_config import LoopConfig, read_loop
from dragoman.cli.output import Failure

GOOD = {"run": "one", "tasks": "tasks.jsonl", "trainer": "grpo.yaml", "harnesses": ["pi"], "stop_versions": 3}


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in {**GOOD, **changed}.items() if value != "-"}))
    return path


def test_it_is_read_with_paths_beside_the_file(tmp_path: Path) -> None:
    config = read_loop(written(tmp_path, harnesses="pi", eval_splits=["held-out"], time_limit=60, stop_reward=0.9))
    assert config == LoopConfig(
        run="one",
        tasks=(tmp_path / "tasks.jsonl").resolve(),
        trainer=(tmp_path / "grpo.yaml").resolve(),
        harnesses=("pi",),
        eval_splits=("held-out",),
        time_limit=60.0,
        stop_versions=3,
        stop_reward=0.9,
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sample": 3}, "no setting 'sample'; did you mean 'samples'?"),
        ({"run": "-"}, "say run"),
        ({"stop_versions": "-"}, "say when to stop"),
        ({"samples": "8"}, "samples is '8'; it is of type int"),
        ({"samples": 1}, "samples is 1; a group compares at least 2"),
        ({"ahead": 0}, "ahead is 0; it is at least 1"),
        ({"mode": "direct"}, "mode is 'direct'; it is one of proxy, base-url"),
        ({"harnesses": [1]}, "harnesses is [1]; it is a list of names"),
        ({"time_limit": True}, "time_limit is True; it is of type float"),
        ({"run": 3}, "run is 3; it is of type str"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Failure) as caught:
        read_loop(written(tmp_path, **changed))
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("- a", "holds no settings"), ("a: [", "is no YAML")])
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(Failure, match=message):
        read_loop(path)
    with pytest.raises(Failure, match="cannot be read"):
        read_loop(tmp_path / "none.yaml")
