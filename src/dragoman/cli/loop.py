"""``dragoman loop``: rollouts and a trainer side by side, evaluations between, until the run is over."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.episode import Gateway
from dragoman.home import DEFAULT_GATEWAY


def loop(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="What to do; docs/loop.md has every setting.")],
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """Train while sampling: groups of episodes as the trainer uses them up, new weights into the engine, evaluations.

    The gateway and the engine must be running (`dragoman serve`, `dragoman engine --lora`). Ctrl-C ends all of it in
    good order, and the same command goes on where it was.

    \b
        dragoman loop run.yaml
    """
    from dragoman.cli.loop_config import read_loop
    from dragoman.cli.loop_run import run_loop

    raise typer.Exit(run_loop(read_loop(config), gateway))
