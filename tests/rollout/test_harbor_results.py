"""What Harbor's result files say, and what episodes they make."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout.harbor_results import Trial, judge_trial, read_trial

# As Harbor 0.26 writes them.
BLAMELESS = {"should_retry": True, "should_grade": False, "has_valid_reward": False}
UNKNOWN = {"should_retry": True, "should_grade": True, "has_valid_reward": True}
FINAL = {"should_retry": False, "should_grade": True, "has_valid_reward": True}
REFUSED = {"should_retry": False, "should_grade": True, "has_valid_reward": False}


def _trial(folder: Path, rewards: Any = None, failure: Any = None, **more: Any) -> Trial:
    trial = folder / "task__abc"
    trial.mkdir(parents=True, exist_ok=True)
    graded = None if rewards is None else {"rewards": rewards}
    (trial / "result.json").write_text(json.dumps({"verifier_result": graded, "exception_info": failure, **more}))
    return read_trial(folder)


def _failure(kind: str, policy: Any) -> dict[str, Any]:
    return {"exception_type": kind, "exception_message": "a\n b", "policy": policy}


@pytest.mark.parametrize(
    ("rewards", "named", "end", "reward"),
    [
        ({"reward": 1}, None, "completed", 1.0),
        ({"reward": 0.5, "style": 1}, None, "completed", 0.5),
        ({"pass": 1}, None, "completed", 1.0),
        ({"a": 1, "b": 0}, "b", "completed", 0.0),
        ({"a": 1, "b": 0}, None, "failed", None),
        ({"a": 1}, "b", "failed", None),
        (None, None, "failed", None),
    ],
)
def test_a_graded_trial_completes_with_its_reward(
    tmp_path: Path, rewards: Any, named: str | None, end: str, reward: float | None
) -> None:
    judged = judge_trial(_trial(tmp_path, rewards), named)
    assert (judged.end, judged.reward) == (end, reward)
    if end == "completed":
        assert judged.components == rewards
    else:
        assert "Harbor graded the trial, but" in str(judged.reason)


@pytest.mark.parametrize(
    ("kind", "policy", "end", "reward"),
    [
        ("NonZeroAgentExitCodeError", FINAL, "failed", 0.0),
        ("RuntimeError", UNKNOWN, "failed", 0.0),
        ("AgentTimeoutError", FINAL, "timed_out", 0.0),
        ("AgentTimeoutError", BLAMELESS, "timed_out", None),
        ("BadRequestError", REFUSED, "failed", None),
        ("EnvironmentStartTimeoutError", BLAMELESS, "abandoned", None),
    ],
)
def test_what_went_wrong_decides_the_end(
    tmp_path: Path, kind: str, policy: Any, end: str, reward: float | None
) -> None:
    judged = judge_trial(_trial(tmp_path, {"reward": 0}, _failure(kind, policy)), None)
    assert (judged.end, judged.reward, judged.reason) == (end, reward, f"{kind}: a b")


def test_a_failed_step_fails_the_trial(tmp_path: Path) -> None:
    steps = [{"exception_info": None}, {"exception_info": _failure("RuntimeError", UNKNOWN)}]
    assert judge_trial(_trial(tmp_path, {"reward": 1}, step_results=steps), None).end == "failed"


def test_its_files_are_kept_but_no_links(tmp_path: Path) -> None:
    folder = _trial(tmp_path, {"reward": 1}).folder
    (folder / "verifier").mkdir()
    (folder / "verifier" / "test-stdout.txt").write_text("all well")
    (folder / "agent").mkdir()
    (folder / "agent" / "trajectory.json").symlink_to("/etc/hostname")
    kept = {one.name: one.data for one in judge_trial(read_trial(tmp_path), None).artefacts}
    assert set(kept) == {"harbor-result.json", "checks.txt"}
    assert kept["checks.txt"] == b"all well"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"verifier_result": {"rewards": {"reward": "much"}}}', '{"exception_info": 3}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "result.json").write_text(text)
    with pytest.raises(ValueError, match="is not a result that Harbor documents"):
        read_trial(tmp_path)


def test_a_job_without_a_trial_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Harbor left 0 trials"):
        read_trial(tmp_path / "none")
