"""``dragoman score``: new rewards for stored episodes, from what they left, without running the harness again."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.output import Failure, say
from dragoman.cli.tasks import load_tasks

if TYPE_CHECKING:
    from dragoman.rollout.rescoring import Rescoring
    from dragoman.rollout.tasks import Task
    from dragoman.store.database import Database
    from dragoman.store.records import EpisodeInfo


def score(
    what: Annotated[list[str], typer.Argument(metavar="RUN|EPISODE…", help="Names of runs, or ids of episodes.")],
    tasks: Annotated[Path, typer.Option(help="The task file whose checks are made.")],
    check_time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds for a check or a setup that names no limit.")
    ] = 300,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes that are scored at once.")] = 2,
    isolation: Annotated[
        Literal["auto", "namespaces", "limits", "none"], typer.Option(help="What keeps checked code in.")
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the rewards and store nothing.")] = False,
    store: Annotated[str | None, typer.Option(metavar="URL", help="The store (default: the state folder's).")] = None,
) -> None:
    """Make a task file's checks again on what stored episodes left, and give the episodes the new rewards.

    Earlier rewards are kept in the store; the last one counts. Exit code 1 when an episode could not be scored.

    \b
        dragoman score tasks-1a2b3c4d --tasks tasks.yaml
        dragoman score k3v9x2m1q8zt --tasks stricter.yaml --dry-run
    """
    raise typer.Exit(_score(what, tasks, check_time_limit, concurrency, isolation, dry_run, store))


def _score(
    what: list[str],
    tasks: Path,
    check_time_limit: float,
    concurrency: int,
    isolation: Literal["auto", "namespaces", "limits", "none"],
    dry_run: bool,
    store: str | None,
) -> int:
    import os
    from concurrent.futures import ThreadPoolExecutor

    from dragoman.cli.lookup import reading
    from dragoman.home import default_store_url, state_folder
    from dragoman.rollout.box import find_isolation
    from dragoman.rollout.rescoring import Rescoring
    from dragoman.store.database import Database
    from dragoman.store.errors import StoreError

    known = {task.id: task for task in load_tasks(tasks, None)}
    with reading(store) as (session, _):
        episodes = find_episodes(session, what)
    try:
        found = find_isolation(isolation)
    except ValueError as error:
        raise Failure(f"--isolation: {error}") from error
    how = Rescoring(
        check_time_limit, found, path=os.environ.get("PATH", os.defpath), hidden=(state_folder(), tasks.resolve())
    )
    try:
        database = Database.open(store or default_store_url())
        try:
            with ThreadPoolExecutor(concurrency) as pool:
                done = list(pool.map(lambda one: score_one(database, one, known, how, dry_run), episodes))
        finally:
            database.close()
    except StoreError as error:
        raise Failure(str(error)) from error
    say(f"{sum(done)} of {len(done)} episodes are scored{' (nothing is stored)' if dry_run else ''}")
    return 0 if all(done) else 1


def find_episodes(session: object, what: list[str]) -> "list[EpisodeInfo]":
    """The ended episodes of runs and those named by id, each once. Raises ``Failure`` where a name is neither."""
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    from dragoman.cli.lookup import find_id
    from dragoman.store.episodes import get_episode
    from dragoman.store.models import Episode

    assert isinstance(session, Session)
    runs: dict[str, list[str]] = {}
    for id_, details in session.execute(select(Episode.id, Episode.details).order_by(Episode.row)):
        if isinstance(run := details.get("run"), str):
            runs.setdefault(run, []).append(id_)
    ids: dict[str, None] = {}
    for name in what:
        ids |= dict.fromkeys(runs[name] if name in runs else [find_id(session, name)[0]])
    return [one for one in (get_episode(session, id_) for id_ in ids) if one.end != "abandoned"]


def score_one(
    database: "Database", episode: "EpisodeInfo", known: "dict[str, Task]", how: "Rescoring", dry_run: bool
) -> bool:
    """Score one and print a line; whether it has a reward now."""
    from dragoman.rollout.kept import cut
    from dragoman.rollout.rescoring import CannotRescore, rescore
    from dragoman.store.artefacts import write_artefacts
    from dragoman.store.episodes import set_reward
    from dragoman.store.records import ARTEFACT_LIMIT, Artefact

    name = f"{episode.id}  {episode.spec.task}"
    task = known.get(episode.spec.task or "")
    if task is None:
        say(f"{name}: the task file has no such task")
        return False
    try:
        reward = rescore(database, episode, task, how)
    except CannotRescore as error:
        say(f"{name}: {error}")
        return False
    if reward.value is None:
        say(f"{name}: {reward.problem or 'the task has no checks'}")
        return False
    before = "none" if episode.reward is None else f"{episode.reward:g}"
    parts = ", ".join(f"{part} {value:g}" for part, value in reward.components.items())
    print(f"{name}  {before} -> {reward.value:g}  ({parts})", flush=True)
    if not dry_run:
        log = Artefact(
            "checks.txt", "text/plain; charset=utf-8", *cut(reward.log.encode(errors="replace"), ARTEFACT_LIMIT)
        )
        now = time.time()
        with database.session() as session:
            set_reward(session, episode.id, reward.value, components=reward.components, now=now)
            write_artefacts(session, episode.id, [log], now=now)
    return True
