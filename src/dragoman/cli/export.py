"""``dragoman export``: traces as a file, for a trainer that is not ours."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.episodes import Store
from dragoman.cli.output import Failure, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


def export(
    format_: Annotated[Literal["jsonl"], typer.Option("--format", help="One JSON object a line.")] = "jsonl",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it (default: stdout).")] = None,
    episode: Annotated[str | None, typer.Option(metavar="ID", help="One episode, by its id or its start.")] = None,
    task: Annotated[str | None, typer.Option(help="Only episodes of this task.")] = None,
    store: Store = None,
) -> None:
    """Write the traces of all ended episodes, or of one: token ids, loss mask, log-probabilities, policy, reward.

    \b
    docs/store.md has the fields, and what verl, slime, SkyRL and prime-rl call them:
        dragoman export --task hello --out hello.jsonl
    """
    from dragoman.cli.lookup import reading
    from dragoman.store.calls import read_calls
    from dragoman.store.episodes import get_episode
    from dragoman.store.export import trace_row
    from dragoman.store.traces import build_traces

    if episode is not None and task is not None:
        raise Failure("say --episode or --task, not both")
    episodes = traces = tokens = excluded = 0
    try:
        with reading(store) as (session, _), out.open("w") if out is not None else nullcontext(sys.stdout) as file:
            for episode_id in which(session, episode, task):
                info = get_episode(session, episode_id)
                try:
                    built = build_traces(read_calls(session, episode_id))
                except ValueError as error:
                    raise Failure(f"episode {episode_id}: {error}; `dragoman db check` says more") from error
                for trace in built.traces:
                    file.write(json.dumps(trace_row(info, trace), separators=(",", ":"), allow_nan=False) + "\n")
                    tokens += trace.trained_tokens
                session.expunge_all()
                episodes, traces, excluded = episodes + 1, traces + len(built.traces), excluded + len(built.excluded)
    except OSError as error:
        raise Failure(f"{out or 'stdout'} cannot be written: {error.strerror}") from error
    say(
        f"{episodes:,} episodes: {traces:,} traces with {tokens:,} trained tokens written, {excluded:,} calls excluded "
        "(`dragoman ledger` says why)"
    )


def which(session: "Session", episode: str | None, task: str | None) -> "Sequence[str]":
    """Ids of the episodes that are meant, the first opened first. Open ones only when named."""
    from sqlalchemy import select

    from dragoman.cli.lookup import find_id
    from dragoman.store.models import Episode, Group, Task

    if episode is not None:
        return [find_id(session, episode)[0]]
    query = select(Episode.id).where(Episode.end.is_not(None)).order_by(Episode.opened_at, Episode.row)
    if task is not None:
        query = query.join(Group, Group.row == Episode.group_row).join(Task, Task.row == Group.task_row)
        query = query.where(Task.name == task)
    return session.scalars(query).all()
