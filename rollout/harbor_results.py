"""What Harbor's results say of a trial, and what that makes of its episode.

Rules of this module: no clock, no process; Harbor is not imported, its ``result.json`` is read (checked with 0.26). A
trial that Harbor itself would try again, and whose reward it does not trust, was not the agent's doing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.rollout.episode_run import Judged
from dragoman.rollout.kept import cut
from dragoman.store.records import ARTEFACT_LIMIT, Artefact

__all__ = ["Trial", "judge_trial", "read_trial"]

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Trial:
    """What Harbor's ``result.json`` of a trial says."""

    folder: Path
    rewards: Mapping[str, float]
    """Empty: it was not graded."""
    error: str | None
    """Type and message of what went wrong, in one line. None: nothing."""
    timed_out: bool
    """The agent's own time was over."""
    agent_to_blame: bool
    """False: the sandbox, the provider or the grading failed; Harbor would try again."""
    reward_counts: bool


def read_trial(job: Path) -> Trial:
    """The only trial of a job. Raises ``ValueError`` when there is none, or its result is not what Harbor documents."""
    paths = sorted(job.glob("*/result.json"))
    if len(paths) != 1:
        raise ValueError(f"Harbor left {len(paths)} trials in {job}, not one")
    try:
        result = json.loads(paths[0].read_text())
        rewards = (result.get("verifier_result") or {}).get("rewards") or {}
        failures = [step.get("exception_info") for step in [result, *(result.get("step_results") or [])]]
        failure = next((one for one in failures if one), None)
        policy = (failure or {}).get("policy") or {}
        kind = "" if failure is None else str(failure["exception_type"])
        return Trial(
            paths[0].parent,
            {str(name): float(value) for name, value in rewards.items()},
            None if failure is None else " ".join(f"{kind}: {failure['exception_message']}".split())[:300],
            kind == "AgentTimeoutError",
            failure is None or not policy.get("should_retry", False) or policy.get("has_valid_reward", True),
            policy.get("has_valid_reward", True),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{paths[0]} is not a result that Harbor documents: {error!r}") from error


def judge_trial(trial: Trial, named: str | None) -> Judged:
    """The episode's typed end, and its reward."""
    artefacts = trial_artefacts(trial.folder)
    if not trial.agent_to_blame and not trial.timed_out:
        return Judged("abandoned", trial.error, artefacts=artefacts)
    rewards = dict(trial.rewards) if trial.reward_counts else {}
    name = named or ("reward" if "reward" in rewards or len(rewards) != 1 else next(iter(rewards)))
    value = rewards.get(name)
    if trial.timed_out:
        return Judged("timed_out", trial.error, value, rewards, artefacts)
    if trial.error is not None:
        return Judged("failed", trial.error, value, rewards, artefacts)
    if value is None:
        why = f"its rewards are {', '.join(sorted(rewards))}; name one with --reward" if rewards else "it has no reward"
        return Judged("failed", f"Harbor graded the trial, but {why}", artefacts=artefacts)
    return Judged("completed", None, value, rewards, artefacts)


def trial_artefacts(folder: Path) -> tuple[Artefact, ...]:
    """What is kept of Harbor's own files; links are not followed."""
    found = []
    for name, path, kind in (
        ("harbor-result.json", folder / "result.json", "application/json"),
        ("checks.txt", folder / "verifier" / "test-stdout.txt", TEXT),
        ("trajectory.json", folder / "agent" / "trajectory.json", "application/json"),
    ):
        if path.is_file() and not path.is_symlink():
            found.append(Artefact(name, kind, *cut(path.read_bytes(), ARTEFACT_LIMIT)))
    return tuple(found)
