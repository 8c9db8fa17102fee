"""The reward of one episode: every check of its task, weighed.

Rules of this module: the reward is ``sum(weight * score) / sum(positive weights)``, so perfect work is worth 1 and a
check of negative weight takes something off. Every component is kept. When one check cannot be made, there is no
reward at all: a number made of the others would be compared with numbers made of all.
"""

import math
import shutil
from dataclasses import dataclass, replace

from dragoman.rollout.checks import CheckError, Place, Score, run_check
from dragoman.rollout.seen import EpisodeSeen
from dragoman.rollout.tasks import Check, Task

__all__ = ["Reward", "combine", "find_reward"]

TURN = "turn/"
"""Components of this beginning are rewards of single calls, named by their ids; they keep their names."""


@dataclass(frozen=True)
class Reward:
    value: float | None
    """None: the task has no checks, or one could not be made (``problem`` says why)."""
    components: dict[str, float]
    log: str
    """What each check said, for a person."""
    problem: str | None = None


def find_reward(task: Task, episode: EpisodeSeen, place: Place, *, time_limit: float) -> Reward:
    """Make all checks of a task, each in a folder of its own below ``place.scratch``. Raises ``Stopped``."""
    scores: list[tuple[Check, Score]] = []
    said: list[str] = []
    problems: list[str] = []
    for number, check in enumerate(task.checks):
        scratch = place.scratch / f"check-{number}"
        scratch.mkdir(parents=True)
        try:
            score = run_check(check, episode, replace(place, scratch=scratch), time_limit=time_limit)
        except CheckError as error:
            problems.append(f"check {check.name}: {error}")
            said.append(f"== {check.name}: not made: {error}")
        else:
            scores.append((check, score))
            said.append(f"== {check.name}: {score.value:g}\n{score.says}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    value, components = combine(scores)
    problem = "; ".join(problems) or None
    return Reward(None if problem else value, components, "\n".join(said), problem)


def combine(scores: list[tuple[Check, Score]]) -> tuple[float | None, dict[str, float]]:
    """The reward of these scores and all components; no reward without scores, or where one is not finite."""
    components: dict[str, float] = {}
    for check, score in scores:
        components[check.name] = score.value
        for name, number in score.extra.items():
            components[name if name.startswith(TURN) else f"{check.name}/{name}"] = number
    most = sum(check.weight for check, _ in scores if check.weight > 0)
    if not most:
        return None, components
    value = sum(check.weight * score.value for check, score in scores) / most
    return (value if math.isfinite(value) else None), components
