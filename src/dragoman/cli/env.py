"""``dragoman env``: the environment of one episode for a person's own shell, in that shell's own syntax."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli.episode import Gateway
from dragoman.cli.options import ModelName, Profile, Task, Variant, Way
from dragoman.cli.output import Failure, say
from dragoman.home import DEFAULT_GATEWAY

Syntax = Literal["posix", "fish"]


def env(
    harness: Annotated[
        str, typer.Argument(help="A name of `dragoman harness list`, or `command` for any program.")
    ] = "command",
    mode: Way = "proxy",
    variant: Variant = None,
    model: ModelName = None,
    task: Task = None,
    profile: Profile = None,
    shell: Annotated[
        Literal["sh", "bash", "zsh", "fish"] | None, typer.Option(help="Whose syntax (default: by $SHELL).")
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """Open an episode and print what points this shell's programs at it, for `eval`.

    Your HOME stays as it is. A harness that is told by files where its model is gets them in a folder of the state
    folder, and a variable that names it, so that your own settings are not read in their place.

    \b
        eval "$(dragoman env claude)"                          # sh, bash, zsh
        dragoman env codex --mode base-url | source            # fish
        dragoman episode end --end completed                   # when you are done: the token stops working

    How to start the harness is in the first lines, and on stderr where the output is evaluated.

    The episode is that of the shell: start several programs, or one several times, and all their calls are in it.
    """
    from dragoman.cli.episode import connect
    from dragoman.cli.run_plan import find_target, with_token
    from dragoman.gateway_client import GatewayError
    from dragoman.home import state_folder
    from dragoman.rollout.harnesses import COMMAND, find_harness
    from dragoman.rollout.launch import shell as shell_for
    from dragoman.rollout.process import write_private

    syntax = syntax_of(shell, os.environ.get("SHELL", ""))
    with connect(gateway) as client:
        try:
            entry = None if harness == COMMAND else find_harness(harness)
            target = find_target(mode, client, None)
            shell_for(entry, target, folder=Path("/"), variant=variant, model=model)  # before an episode is opened
            about = {"harness": harness, "mode": mode, "opened": "by dragoman env"}
            opened = client.open_episode(task=task, profile=profile, metadata=about)
            folder = state_folder() / "shells" / opened.id
            found = shell_for(entry, with_token(target, opened.token), folder=folder, variant=variant, model=model)
        except (GatewayError, ValueError) as error:
            raise Failure(str(error)) from error
        for path, content in found.files:
            write_private(path, content)
        variables = found.env | {"DRAGOMAN_EPISODE": opened.id, "DRAGOMAN_GATEWAY": client.address}
    notes = comments(harness, opened.id, found.arguments, variables, syntax)
    for line in notes:
        print(f"# {line}")
    if not sys.stdout.isatty():  # evaluated, so nobody sees the comments; the long last one is left out here
        for line in notes[:-1]:
            say(line)
    for line in exports(variables, syntax):
        print(line)


def start_line(harness: str, arguments: Sequence[str]) -> str:
    """What to type. A harness that is not on PATH is started from its install folder, with the Node that lies there."""
    from dragoman.rollout.harnesses import COMMAND, find_harness
    from dragoman.rollout.install import installed

    if harness == COMMAND:
        return "any program"
    typed = shlex.join([harness, *arguments])
    if shutil.which(harness) or (folder := installed(find_harness(harness))) is None:
        return typed
    return f'env PATH={shlex.quote(str(folder / "bin"))}:"$PATH" {typed}'


def syntax_of(shell: str | None, login_shell: str) -> Syntax:
    """By the shell that was named, else by the person's login shell."""
    return "fish" if (shell or Path(login_shell).name) == "fish" else "posix"


def exports(variables: Mapping[str, str], syntax: Syntax) -> list[str]:
    """One line a variable, its value quoted so that the shell changes nothing in it."""
    if syntax == "fish":
        return [f"set -gx {name} {fish_quoted(value)}" for name, value in variables.items()]
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def fish_quoted(text: str) -> str:
    """In single quotes, where fish reads a backslash before a quote or a backslash only."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def comments(
    harness: str, episode_id: str, arguments: Sequence[str], variables: Mapping[str, str], syntax: Syntax
) -> list[str]:
    """How to go on, for who reads what is evaluated."""
    unset = "set -e" if syntax == "fish" else "unset"
    return [
        f"episode {episode_id}",
        f"start    {start_line(harness, arguments)}",
        "end it   dragoman episode end --end completed    (or failed, abandoned)",
        f"look     dragoman show {episode_id}",
        f"undo     {unset} {' '.join(variables)}; or close this shell",
    ]
