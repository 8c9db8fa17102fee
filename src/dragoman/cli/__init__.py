"""The ``dragoman`` command.

Rules of this package: one file per command group; a command function reads options and prints, the work is in plain
functions that tests call. Heavy libraries are imported inside functions, so that ``dragoman --help`` is quick and
works where mitmproxy is not installed (Python 3.11).
"""

import os
import sys
from typing import Annotated

import typer

from dragoman.cli import (
    certs,
    db,
    doctor,
    engine,
    env,
    episode,
    episodes,
    eval,
    export,
    harbor,
    harness,
    ledger,
    loop,
    outbox,
    policy,
    prune,
    quickstart,
    rollout,
    run,
    score,
    serve,
    show,
    tasks,
    train,
)
from dragoman.cli.output import Failure

app = typer.Typer(
    name="dragoman",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `dragoman quickstart`. State (database, operator key, CA) is kept in DRAGOMAN_HOME.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from dragoman import __version__

        print(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def dragoman(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train an open model inside the agent harness it will be used in."""


app.command()(quickstart.quickstart)
app.command(context_settings=serve.CONTEXT)(serve.serve)
app.command(context_settings=engine.CONTEXT)(engine.engine)
app.command()(doctor.doctor)
app.add_typer(certs.app, name="certs")
app.command(context_settings=run.CONTEXT)(run.run)
app.command()(env.env)
app.command(context_settings=rollout.CONTEXT)(rollout.rollout)
app.add_typer(tasks.app, name="tasks")
app.command()(score.score)
app.command()(loop.loop)
app.add_typer(harbor.app, name="harbor")
app.add_typer(harness.app, name="harness")
app.add_typer(episode.app, name="episode")
app.command()(episodes.episodes)
app.command()(show.show)
app.command()(ledger.ledger)
app.add_typer(db.app, name="db")
app.add_typer(policy.app, name="policy")
app.command()(outbox.outbox)
app.command()(prune.prune)
app.command()(export.export)
app.command("eval")(eval.evaluate)
app.add_typer(train.app, name="train")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; ``None``: the process's own arguments. Always raises ``SystemExit``."""
    # Its remark that PyTorch is missing is no news where only tokenizers are used.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        app(arguments, prog_name="dragoman")
    except Failure as failure:
        print(f"dragoman: {failure}", file=sys.stderr)
        raise SystemExit(1) from None
