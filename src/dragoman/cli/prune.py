"""``dragoman prune``: delete old episodes, or named ones, and give their room back."""

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.episodes import Store, age, plain
from dragoman.cli.output import Failure, console, say

if TYPE_CHECKING:
    from rich.table import Table

    from dragoman.store.database import Database
    from dragoman.store.prune import Doomed, Rule

BATCH = 100
"""Episodes deleted in one transaction: gateways on the same store wait for no longer than that takes."""
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Episodes that ended longer ago: 30d, 12h, 90min, 2w.")
    ] = None,
    keep_best: Annotated[
        int, typer.Option(min=0, metavar="N", help="Keep each task's N episodes of the highest reward, however old.")
    ] = 0,
    episode: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="This episode (whole id), open or not; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")] = False,
    store: Store = None,
) -> None:
    """Delete whole episodes: calls, messages that no other episode needs, rewards, artefacts; then free the space.

    \b
    Open episodes stay, unless named. SQLite's file is written anew (VACUUM), so nothing of them is left in it:
        dragoman prune --older-than 30d --keep-best 4 --dry-run
        dragoman prune --episode k3v9q2m8x7ab
    """
    from dragoman.cli.lookup import reading
    from dragoman.store.database import Database
    from dragoman.store.errors import EpisodeNotFound, StoreError
    from dragoman.store.prune import Rule, describe, find_old

    if (older_than is None) == (not episode):
        raise Failure("say which episodes: either --older-than AGE, or --episode ID")
    if keep_best and older_than is None:
        raise Failure("--keep-best goes with --older-than: a named episode is deleted however good it is")
    now = time.time()
    rule = None if older_than is None else Rule(now - seconds(older_than), keep_best)
    with reading(store) as (session, url):
        try:
            doomed = describe(session, list(dict.fromkeys(episode or ()))) if rule is None else find_old(session, rule)
        except EpisodeNotFound as error:
            raise Failure(str(error)) from error
    if dry_run:
        if doomed:
            console().print(doomed_table(doomed, now))
        console().print(f"would delete {sums(doomed)} of {plain(url)}")
        return
    from dragoman.home import default_store_url

    try:
        database = Database.open(store or default_store_url())
        try:
            delete(database, rule, doomed)
        finally:
            database.close()
    except StoreError as error:
        raise Failure(str(error)) from error


def delete(database: "Database", rule: "Rule | None", doomed: "Sequence[Doomed]") -> None:
    """Delete in batches, then what is left without an owner, and say what was done. Raises ``StoreUnavailable``."""
    from dragoman.store.prune import delete_episode, delete_old, delete_orphans, empty_log, give_back_space
    from dragoman.store.sizes import measure

    with database.reading() as session:
        before = measure(session)
    gone: set[str] = set()
    for at in range(0, len(doomed), BATCH):
        ids = [entry.id for entry in doomed[at : at + BATCH]]
        with database.session() as session:
            if rule is not None:
                gone.update(delete_old(session, rule, ids))
            else:
                gone.update(name for name in ids if delete_episode(session, name))
        say(f"{len(gone):,} of {len(doomed):,} episodes deleted")
    with database.session() as session:
        orphans = delete_orphans(session)
    out = console()
    out.print(f"deleted {sums([entry for entry in doomed if entry.id in gone])} of {plain(database.url)}")
    left = f"{orphans.blobs:,} messages, {orphans.groups:,} groups, {orphans.tasks:,} tasks"
    out.print(f"and what nothing refers to now: {left}")
    if gone or orphans.blobs or before.free_bytes:
        say("VACUUM: giving the space back")
        give_back_space(database)
        with database.reading() as session:
            after = measure(session)
        out.print(f"the database has {after.bytes:,} bytes, {before.bytes:,} before")
    if not empty_log(database):
        raise Failure(
            "another process was reading the database: what was deleted may still stand in its write-ahead log. "
            "Run `dragoman prune` again when that has ended"
        )


def seconds(text: str) -> float:
    """An age such as ``30d`` in seconds. Raises ``Failure``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)", text.strip())
    if match is None:
        raise Failure(f"{text!r} is no age: say 30d, 12h, 90min, 45s or 2w")
    return float(match[1]) * SECONDS[match[2]]


def sums(doomed: "Sequence[Doomed]") -> str:
    calls, size = sum(entry.calls for entry in doomed), sum(entry.bytes for entry in doomed)
    number = len(doomed)
    return f"{number:,} episode{'' if number == 1 else 's'} with {calls:,} calls ({size:,} bytes, messages not counted)"


def doomed_table(doomed: "Sequence[Doomed]", now: float) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "task"):
        table.add_column(name, overflow="fold")
    for name in ("calls", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("end")
    for name in ("reward", "age"):
        table.add_column(name, justify="right")
    for entry in doomed:
        reward = "-" if entry.reward is None else f"{entry.reward:g}"
        row = (entry.id, plain(entry.task), f"{entry.calls:,}", f"{entry.bytes:,}")
        table.add_row(*row, entry.end or "open", reward, age(now - entry.opened_at))
    return table
