"""``dragoman outbox``: the records that wait for a PostgreSQL store, and those that it refused."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import Failure, console, print_json, say

if TYPE_CHECKING:
    from dragoman.addons.outbox import Outbox, OutboxState, SetAside

SHOWN = 20
"""How many of the records that were set aside are listed; ``--json`` has them all."""


def outbox(
    file: Annotated[
        Path | None,
        typer.Option("--outbox", metavar="FILE", help="The outbox (default: outbox.db in the state folder)."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="With --deliver: the store, which may have another address now.")
    ] = None,
    deliver: Annotated[bool, typer.Option("--deliver", help="Deliver what waits, without a gateway.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Let what was set aside wait for the store again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what waits for the store, since when, and what it refused.

    A gateway delivers by itself, so this is for when none runs. What was set aside stays in the outbox until it is
    tried again: end the gateway, mend the cause, and say `--retry`.

    \b
        dragoman outbox
        dragoman outbox --retry
        dragoman outbox --deliver --store postgresql://user@db/dragoman
    """
    from dataclasses import asdict

    from dragoman.addons.outbox import look
    from dragoman.home import state_folder
    from dragoman.store.errors import StoreError

    path = file or state_folder() / "outbox.db"
    if not path.exists():
        raise Failure(f"there is no outbox {path}; a gateway makes one when its store is PostgreSQL")
    if deliver and store is None:
        raise Failure("--deliver needs the store's URL: --store postgresql://user@host/name")
    try:
        if retry:
            say(f"{_retry(path)} records wait for the store again")
        if deliver and store is not None:
            _deliver(path, store)
        state, aside, known = look(path)
    except StoreError as error:
        raise Failure(str(error)) from error
    if as_json:
        print_json({**asdict(state), "store": known, "set_aside": [asdict(one) for one in aside]})
        return
    for line in lines(state, aside, known, time.time()):
        console().print(line, markup=False, soft_wrap=True)


def lines(state: "OutboxState", aside: "list[SetAside]", store: str | None, now: float) -> list[str]:
    """What to tell a person."""
    said = [f"{state.path}, for {store}: {waiting(state, now)}"]
    if aside:
        said.append(f"{len(aside)} records were set aside: the store refuses them, or they cannot be read")
        said += [
            f"  {one.what} of call {one.call_id} (episode {one.episode_id}): {one.reason}" for one in aside[:SHOWN]
        ]
        if len(aside) > SHOWN:
            said.append(f"  and {len(aside) - SHOWN} more (--json lists them)")
        said.append("mend the cause, end the gateway, and try them again: dragoman outbox --retry")
    return said


def waiting(state: "OutboxState", now: float) -> str:
    """How much waits, and since when."""
    if state.oldest_at is None:
        return "nothing waits"
    age = max(0.0, now - state.oldest_at)
    return f"{state.records} records wait ({state.bytes / 1e6:.1f} MB), the oldest for {age:.0f} s"


def _retry(path: Path) -> int:
    opened = _open(path, None)
    try:
        return opened.retry()
    finally:
        opened.close()


def _deliver(path: Path, store: str) -> None:
    from dragoman.addons.drain import drain_now
    from dragoman.store.database import Database

    database = Database.open(store)
    try:
        opened = _open(path, database.url)
        try:
            opened.close_open_calls(time.time())
            drain_now(opened, database, lambda rows: say(f"{rows} records wait"))
        finally:
            opened.close()
    finally:
        database.close()


def _open(path: Path, store: str | None) -> "Outbox":
    """The outbox, for ``store`` from now on (``None``: for the one that it is for). No gateway may run with it."""
    from dragoman.addons.outbox import Outbox, look

    _, _, known = look(path)
    return Outbox(path, store or known or "", moved=True)
