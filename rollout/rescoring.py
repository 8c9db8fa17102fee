"""A new reward for an episode that has long ended: its workspace is made again from the task and the stored diff.

Rules of this module: the harness is not run; everything comes from the task and the store. Earlier rewards stay: the
store keeps all, and the last one counts. What cannot be restored to the byte is not scored.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.rollout.box import DEFAULT_RESOURCES, Isolation, Resources
from dragoman.rollout.checks import Place
from dragoman.rollout.ready import NotReady, make_ready
from dragoman.rollout.rewards import Reward, find_reward
from dragoman.rollout.samples import wants_replies
from dragoman.rollout.seen import EpisodeSeen, read_replies
from dragoman.rollout.tasks import Task
from dragoman.store.artefacts import read_artefact
from dragoman.store.database import Database
from dragoman.store.errors import ArtefactNotFound
from dragoman.store.records import Artefact, EpisodeInfo

__all__ = ["CannotRescore", "Rescoring", "rescore"]


class CannotRescore(Exception):
    """What the episode left is not all there; the message says what is missing."""


@dataclass(frozen=True)
class Rescoring:
    """How episodes are scored anew."""

    time_limit: float = 300.0
    """Seconds for a check or a setup that names no limit."""
    isolation: Isolation = "limits"
    resources: Resources = DEFAULT_RESOURCES
    most_bytes: int = 4 << 30
    path: str = os.defpath
    hidden: tuple[Path, ...] = ()


def rescore(
    database: Database, episode: EpisodeInfo, task: Task, how: Rescoring, *, stopped: Callable[[], bool] | None = None
) -> Reward:
    """What the task's checks say now of what the episode left. Writes nothing to the store.

    Raises ``CannotRescore``, ``StoreError``, and ``Stopped``.
    """
    if episode.end is None:
        raise CannotRescore("it has not ended")
    with database.reading() as session:
        try:
            diff, facts, out, err = (
                read_artefact(session, episode.id, name)
                for name in ("changes.diff", "run.json", "stdout.txt", "stderr.txt")
            )
        except ArtefactNotFound as error:
            raise CannotRescore(str(error)) from error
    replies = read_replies(database, episode.id) if wants_replies(task) else None
    seen = _seen(episode, task, diff, facts, out, err)
    seen = EpisodeSeen(**{**seen.__dict__, "replies": replies})
    folder = Path(tempfile.mkdtemp(prefix="dragoman-score-")).resolve()
    try:
        (folder / "home").mkdir()
        made = make_ready(
            task,
            folder / "work",
            folder / "home",
            path=how.path,
            resources=how.resources,
            time_limit=how.time_limit,
            stopped=stopped,
        )
        _apply(diff, folder / "work", folder)
        (folder / "checks").mkdir()
        place = Place(
            folder / "work",
            made.steering,
            folder / "checks",
            how.isolation,
            how.resources,
            most_bytes=how.most_bytes,
            path=how.path,
            hidden=how.hidden,
            stopped=stopped,
        )
        return find_reward(task, seen, place, time_limit=how.time_limit)
    except NotReady as error:
        raise CannotRescore(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _seen(
    episode: EpisodeInfo, task: Task, diff: Artefact, facts: Artefact, out: Artefact, err: Artefact
) -> EpisodeSeen:
    ran = json.loads(facts.data)
    return EpisodeSeen(
        episode.id,
        task.id,
        task.prompt,
        task.metadata,
        str(ran.get("harness", "")),
        episode.end or "",
        ran.get("exit_code"),
        float(ran.get("seconds") or 0.0),
        out.data.decode(errors="replace"),
        err.data.decode(errors="replace"),
        diff.data.decode(errors="replace"),
    )


def _apply(diff: Artefact, workspace: Path, scratch: Path) -> None:
    """Make the agent's changes again. Raises ``CannotRescore``."""
    if diff.omitted:
        raise CannotRescore(f"its diff was too long to keep: {diff.omitted:,} bytes are missing")
    if not diff.data.strip():
        return
    patch = scratch / "changes.diff"
    patch.write_bytes(diff.data)
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "LC_ALL": "C"}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "apply", "--binary", "--whitespace=nowarn", str(patch)]
    done = subprocess.run(command, cwd=workspace, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise CannotRescore(f"its diff does not fit the task's workspace: {said[-1] if said else 'git apply failed'}")
