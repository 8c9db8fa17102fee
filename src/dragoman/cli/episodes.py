"""``dragoman episodes``: the latest episodes, one line each."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import console, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from dragoman.store.records import EpisodeSummary, JsonObject

Store = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Database (default: dragoman.db in the state folder).")
]


def episodes(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    task: Annotated[str | None, typer.Option(help="Only episodes of this task.")] = None,
    store: Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the latest episodes with their calls, tokens, end and reward.

    \b
        dragoman episodes
        dragoman episodes --task hello --limit 100 --json
    """
    from dragoman.cli.lookup import harness_names, reading
    from dragoman.store.episodes import list_episodes

    with reading(store) as (session, url):
        found = list_episodes(session, limit=limit, task=task)
        harnesses = harness_names(session, [summary.episode.id for summary in found])
    if as_json:
        print_json([summary_json(summary, harnesses.get(summary.episode.id)) for summary in found])
        return
    if not found:
        of_task = f" of task {task!r}" if task else ""
        say(f"no episodes{of_task} in {url} yet; `dragoman episode open` opens one")
        return
    console().print(episodes_table(found, harnesses, time.time()))
    say(f"database: {url}")


def summary_json(summary: "EpisodeSummary", harness: str | None) -> "JsonObject":
    """Times are unix seconds; ``null`` means not known."""
    episode = summary.episode
    return {
        "id": episode.id,
        "task": episode.spec.task,
        "group": episode.spec.group,
        "harness": harness,
        "calls": summary.calls,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "profile": episode.spec.profile,
        "temperature": episode.spec.temperature,
        "end": episode.end,
        "end_reason": episode.end_reason,
        "reward": episode.reward,
        "opened_at": episode.opened_at,
        "ended_at": episode.ended_at,
    }


def episodes_table(found: "list[EpisodeSummary]", harnesses: dict[str, str], now: float) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "task", "group", "harness"):
        table.add_column(name, overflow="fold")
    for name in ("calls", "tokens in", "out"):
        table.add_column(name, justify="right")
    table.add_column("end")
    table.add_column("reward", justify="right")
    table.add_column("age", justify="right")
    for summary in found:
        episode = summary.episode
        table.add_row(
            episode.id,
            plain(episode.spec.task),
            plain(episode.spec.group),
            plain(harnesses.get(episode.id)),
            str(summary.calls),
            f"{summary.prompt_tokens:,}",
            f"{summary.completion_tokens:,}",
            episode.end or ("expired" if episode.expires_at < now else "open"),
            "-" if episode.reward is None else f"{episode.reward:g}",
            age(now - episode.opened_at),
        )
    return table


def plain(text: str | None) -> str:
    """Text for a table cell, nothing in it read as markup; a dash for ``None``."""
    from rich.markup import escape

    return "-" if text is None else escape(text)


def age(seconds: float) -> str:
    """A time span in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
