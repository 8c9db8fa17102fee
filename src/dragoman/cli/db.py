"""``dragoman db``: the database itself: bring it to the newest schema, look for damage, see what takes the room."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.episodes import Store, age, plain
from dragoman.cli.output import Failure, console, print_json

if TYPE_CHECKING:
    from dragoman.store.check import Checked
    from dragoman.store.records import JsonObject
    from dragoman.store.sizes import Sizes

app = typer.Typer(
    help="Look after the database: `dragoman db upgrade`, `check`, `stats`, `downgrade`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command()
def upgrade(store: Store = None) -> None:
    """Bring the database to the schema of this Dragoman, making it if there is none.

    \b
    Every command does so when it opens the database. This one does nothing else, and says what it did:
        dragoman db upgrade --store postgresql://dragoman@db.example/dragoman
    """
    from dragoman.home import default_store_url
    from dragoman.store.database import Database, migrate
    from dragoman.store.errors import StoreError
    from dragoman.store.schema import HEAD

    url = store or default_store_url()
    try:
        before = migrate(url)
        database = Database.open(url)
    except StoreError as error:
        raise Failure(str(error)) from error
    database.close()
    if before == HEAD:
        did = f"schema {HEAD} already, which is the newest; nothing to do"
    else:
        did = f"schema {HEAD}, new" if before is None else f"schema {before} → {HEAD}"
    console().print(f"{plain(database.url)}: {did}")


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The schema to go back to, such as 0003.")], store: Store = None
) -> None:
    """Take the database back to an older schema, for an older Dragoman; refused where data would be lost.

    \b
    End everything else that uses the database first. This Dragoman migrates it forward again as soon as it
    opens it, so install the older one next:
        dragoman db downgrade 0003 --store postgresql://dragoman@db.example/dragoman
    """
    from dragoman.home import default_store_url
    from dragoman.store.database import downgrade as take_back
    from dragoman.store.errors import StoreError

    url = store or default_store_url()
    try:
        before = take_back(url, revision)
    except (StoreError, ValueError) as error:
        raise Failure(str(error)) from error
    console().print(f"schema {before} → {revision}")


@app.command()
def check(store: Store = None, as_json: AsJson = False) -> None:
    """Read the whole database and say what is damaged or missing; exit with 1 if anything is.

    \b
    Every message and token array must be readable, whatever a row refers to must be there, and every
    episode's ledger must balance. It takes about as long as reading the file:
        dragoman db check
    """
    from dragoman.cli.lookup import reading
    from dragoman.store.check import check as check_store

    with reading(store) as (session, url):
        found = check_store(session)
    if as_json:
        print_json(check_json(found, url))
    else:
        out = console()
        out.print(f"{plain(url)}: {found.episodes:,} episodes, {found.calls:,} calls, {found.blobs:,} blobs read")
        out.print("[bold red]It is damaged:[/bold red]" if found.problems else "[bold green]It is whole.[/bold green]")
        for problem in found.problems:
            out.print(f"- {plain(problem)}")
    if found.problems:
        raise typer.Exit(1)


@app.command()
def stats(store: Store = None, as_json: AsJson = False) -> None:
    """Show what the database holds: rows and bytes of each table, tokens, bytes per token, episodes by end.

    \b
        dragoman db stats
    """
    from dragoman.cli.lookup import reading
    from dragoman.store.sizes import measure

    with reading(store) as (session, url):
        sizes = measure(session)
    if as_json:
        print_json(sizes_json(sizes, url))
    else:
        print_sizes(sizes, url, time.time())


def check_json(found: "Checked", url: str) -> "JsonObject":
    return {
        "episodes": found.episodes,
        "calls": found.calls,
        "blobs": found.blobs,
        "problems": list(found.problems),
        "whole": not found.problems,
        "store": url,
    }


def sizes_json(sizes: "Sizes", url: str) -> "JsonObject":
    """Field meanings: ``store.sizes``. Times are unix seconds; ``null`` means not known, or that there is none."""
    return {
        "tables": {table.name: {"rows": table.rows, "bytes": table.bytes} for table in sizes.tables},
        "bytes": sizes.bytes,
        "free_bytes": sizes.free_bytes,
        "prompt_tokens": sizes.prompt_tokens,
        "stored_prompt_tokens": sizes.stored_prompt_tokens,
        "completion_tokens": sizes.completion_tokens,
        "token_bytes": sizes.token_bytes,
        "bytes_per_token": sizes.bytes_per_token,
        "episodes": {end or "open": count for end, count in sizes.ends.items()},
        "oldest": sizes.oldest,
        "newest": sizes.newest,
        "store": url,
    }


def print_sizes(sizes: "Sizes", url: str, now: float) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table")
    table.add_column("rows", justify="right")
    table.add_column("bytes", justify="right")
    for entry in sizes.tables:
        table.add_row(entry.name, f"{entry.rows:,}", "-" if entry.bytes is None else f"{entry.bytes:,}")
    free = "" if sizes.free_bytes is None else f", of which {sizes.free_bytes:,} free"
    each = "-" if sizes.bytes_per_token is None else f"{sizes.bytes_per_token:.2f}"
    facts = {
        "bytes": f"{sizes.bytes:,}{free}",
        "tokens": f"{sizes.stored_tokens:,} stored = {sizes.stored_prompt_tokens:,} of prompts + "
        f"{sizes.completion_tokens:,} sampled, in {sizes.token_bytes:,} bytes",
        "prompts": f"{sizes.prompt_tokens:,} tokens in full",
        "a token": f"{each} bytes of the database",
        "episodes": ", ".join(f"{count:,} {end or 'open'}" for end, count in sizes.ends.items()) or "none",
        "opened": "-"
        if sizes.oldest is None or sizes.newest is None
        else f"{age(now - sizes.oldest)} ago to {age(now - sizes.newest)} ago",
        "database": url,
    }
    out = console()
    out.print(table)
    out.print()
    for fact, value in facts.items():
        out.print(f"[bold]{fact:<13}[/bold] {plain(value)}")
