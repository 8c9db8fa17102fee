"""``dragoman export``: traces or trajectories as a file, for tools that are not ours."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.episodes import Store
from dragoman.cli.output import Failure, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from dragoman.store.records import JsonObject

Format = Literal["jsonl", "parquet", "atif"]


def export(
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="jsonl: a trace a line. parquet: the same rows in columns. atif: a trajectory of messages a line, one "
            "for each episode.",
        ),
    ] = "jsonl",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it (default: stdout).")] = None,
    episode: Annotated[str | None, typer.Option(metavar="ID", help="One episode, by its id or its start.")] = None,
    task: Annotated[str | None, typer.Option(help="Only episodes of this task.")] = None,
    store: Store = None,
) -> None:
    """Write the traces of all ended episodes, or of one: token ids, loss mask, log-probabilities, policy, reward.

    \b
    docs/store.md has the fields, what verl, slime, SkyRL and prime-rl call them, and what a trajectory has:
        dragoman export --task hello --out hello.jsonl
        dragoman export --format parquet --out all.parquet
        dragoman export --format atif --episode k3v9 --out k3v9.json
    """
    from dragoman.cli.lookup import reading
    from dragoman.store.atif import trajectory
    from dragoman.store.calls import read_calls
    from dragoman.store.episodes import get_episode
    from dragoman.store.export import trace_row
    from dragoman.store.traces import build_traces

    if episode is not None and task is not None:
        raise Failure("say --episode or --task, not both")
    if format_ == "parquet" and out is None:
        raise Failure("--format parquet needs --out FILE: it is no text")
    episodes = traces = tokens = excluded = 0
    with ExitStack() as open_:
        session, _ = open_.enter_context(reading(store))
        add = open_.enter_context(writing(format_, out))
        for episode_id in which(session, episode, task):
            info = get_episode(session, episode_id)
            try:
                calls = read_calls(session, episode_id)
                if format_ == "atif":
                    add(trajectory(info, calls))
                else:
                    built = build_traces(calls)
                    for trace in built.traces:
                        add(trace_row(info, trace))
                        tokens += trace.trained_tokens
                    traces, excluded = traces + len(built.traces), excluded + len(built.excluded)
            except ValueError as error:
                raise Failure(f"episode {episode_id}: {error}; `dragoman db check` says more") from error
            session.expunge_all()
            episodes += 1
    if format_ == "atif":
        say(f"{episodes:,} episodes written, each as one trajectory")
    else:
        say(
            f"{episodes:,} episodes: {traces:,} traces with {tokens:,} trained tokens written, {excluded:,} calls "
            "excluded (`dragoman ledger` says why)"
        )


@contextmanager
def writing(format_: Format, out: Path | None) -> "Iterator[Callable[[JsonObject], None]]":
    """What takes the rows one by one. The file is there under its name only when it is whole."""
    try:
        if out is None:
            yield lambda row: write_line(sys.stdout, row)
            return
        whole = out if out.exists() and not out.is_file() else out.with_name(out.name + ".part")  # a pipe stays one
        try:
            if format_ == "parquet":
                with whole.open("wb") as binary, parquet(binary) as add:
                    yield add
            else:
                with whole.open("w") as text:
                    yield lambda row: write_line(text, row)
            if whole != out:
                os.replace(whole, out)
        except BaseException:
            if whole != out:
                whole.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Failure(f"{out or 'stdout'} cannot be written: {error.strerror}") from error


@contextmanager
def parquet(file: IO[bytes]) -> "Iterator[Callable[[JsonObject], None]]":
    from dragoman.store.parquet import ParquetFile

    try:
        writer = ParquetFile(file)
    except ImportError as error:
        raise Failure("--format parquet needs PyArrow: install dragoman[parquet]") from error
    with writer:
        yield writer.add


def write_line(file: IO[str], row: "JsonObject") -> None:
    file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")


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
