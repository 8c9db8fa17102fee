"""``dragoman harness list|install|check|probe``: which harnesses there are and are ready, and what any other does."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import probe
from dragoman.cli.output import Failure, console, print_json, say, step

if TYPE_CHECKING:
    from dragoman.rollout.harnesses import Harness

app = typer.Typer(
    no_args_is_help=True,
    help="The harnesses that can be run: list, install and check them; and probe any other.",
    rich_markup_mode=None,
)

app.command(context_settings=probe.CONTEXT)(probe.probe)

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Which ones (default: all).")]


def wanted(names: list[str] | None) -> "list[Harness]":
    """The entries of those names, all for none. Raises ``Failure``."""
    from dragoman.rollout.harnesses import HARNESSES, find_harness

    try:
        return [find_harness(name) for name in names] if names else list(HARNESSES)
    except ValueError as error:
        raise Failure(str(error)) from error


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything the table holds as JSON.")] = False,
) -> None:
    """List every harness: how it speaks to its model, its variants, the pinned version, and whether it is installed.

    Beside these, `dragoman run --harness command -- PROGRAM…` runs any program.
    """
    from rich.table import Table

    from dragoman.rollout.install import installed

    entries = [(harness, installed(harness)) for harness in wanted(None)]
    if as_json:
        print_json(
            [
                {
                    "name": harness.name,
                    "registry": harness.registry,
                    "package": harness.package,
                    "version": harness.version,
                    "installed": None if folder is None else str(folder),
                    "variants": list(harness.variants),
                    "dialects": list(harness.dialects),
                    "session_header": harness.session_header,
                    "subagent_header": harness.subagent_header,
                    "can_limit_turns": harness.can_limit_turns,
                }
                for harness, folder in entries
            ]
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "variant", "dialect", "version", "installed", "package"):
        table.add_column(column)
    for harness, folder in entries:
        for at, dialect in enumerate(harness.dialects):
            variant = harness.variants[at] if harness.variants else "-"
            if at:
                table.add_row("", variant, dialect)
            else:
                there = "no" if folder is None else "yes"
                package = f"{harness.registry} {harness.package}"
                table.add_row(harness.name, variant, dialect, harness.version, there, package)
    table.add_row("command", "-", "any", "", "", "any program: dragoman run --harness command -- PROGRAM…")
    console().print(table)


@app.command()
def install(names: Names = None) -> None:
    """Install harnesses at their pinned versions into the cache folder; what is there already is left alone.

    Nothing of yours is touched: each has a folder of its own, those of npm with Node 24, those of PyPI with a Python
    environment. No package's install script is run.

    \b
        dragoman harness install claude codex
    """
    from dragoman.rollout.install import InstallError
    from dragoman.rollout.install import install as install_one

    failed = []
    for harness in wanted(names):
        try:
            with step(f"{harness.name} {harness.version}"):
                folder = install_one(harness)
            print(f"{harness.name} {harness.version} {folder}")
        except InstallError as error:
            failed.append(harness.name)
            say(f"{harness.name}: {error}")
    if failed:
        raise Failure(f"not installed: {', '.join(failed)}")


@app.command()
def check(
    names: Names = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say which harnesses are ready to run, and of the others why not. Each is started once to print its version.

    Exit code 1 when one that was named is not ready; without names all are looked at, and it is 0.

    \b
        dragoman harness check
        dragoman harness check claude codex
    """
    from dragoman.rollout.install import install_folder, why_not_ready

    entries = wanted(names)
    with ThreadPoolExecutor(4) as pool:
        reasons = list(pool.map(why_not_ready, entries))
    found = list(zip(entries, reasons, strict=True))
    if as_json:
        print_json(
            [
                {"name": harness.name, "version": harness.version, "ready": why is None, "why_not": why}
                for harness, why in found
            ]
        )
    else:
        for harness, why in found:
            said = f"ready      {install_folder(harness)}" if why is None else f"not ready  {why}"
            print(f"{harness.name:<9} {harness.version:<9} {said}")
    if names and any(reasons):
        raise typer.Exit(1)
