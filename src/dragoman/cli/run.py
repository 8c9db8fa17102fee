"""``dragoman run``: one harness on one prompt, in an episode of its own, and what became of it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.episode import Gateway
from dragoman.cli.options import Deadline, Expected, Group, ModelName, Profile, Task, Temperature, Variant
from dragoman.cli.output import Failure, say
from dragoman.cli.run_plan import RunOptions, prepare_run
from dragoman.home import DEFAULT_GATEWAY

if TYPE_CHECKING:
    from dragoman.gateway_client import EpisodeState, OpenedEpisode
    from dragoman.rollout.episode_run import Finished
    from dragoman.rollout.process import Stream

CONTEXT = {"allow_interspersed_args": False}
TIMED_OUT, INTERRUPTED, NOT_FOUND = 124, 130, 127
"""Exit codes as a shell and ``timeout`` have them."""


def run(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="The prompt; for `command` the program to run.")
    ] = None,
    harness: Annotated[
        str, typer.Option(help="A name of `dragoman harness list`, or `command` for any program.")
    ] = "claude",
    variant: Variant = None,
    mode: Annotated[
        Literal["proxy", "base-url"],
        typer.Option(
            help="`proxy`: it calls its own provider and is caught there. `base-url`: it is told to call the gateway."
        ),
    ] = "proxy",
    model: ModelName = None,
    workdir: Annotated[Path, typer.Option(help="Where the harness works.")] = Path("."),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that it may take.")] = 1800,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Limit of its turns, for harnesses that have one.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A variable for it, by NAME alone from this shell; may be repeated."),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Its private home folder, kept afterwards (default: a new one, removed).")
    ] = None,
    task: Task = None,
    group: Group = None,
    expected: Expected = None,
    deadline: Deadline = None,
    profile: Profile = None,
    temperature: Temperature = None,
    context_tokens: Annotated[
        int | None, typer.Option(min=1, help="What the harness is told fits into the model (default: the engine's).")
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """Run a harness once at a running gateway: open an episode, start it, keep what it leaves, end the episode.

    What the harness prints goes to stdout and stderr as it comes; the episode's id and a summary go to stderr. The exit
    code is the harness's own (124: it was stopped at the time limit; 130: Ctrl-C). Kept with the episode are stdout,
    stderr, the diff of the working folder where that is in a git repository, and run.json; `dragoman show` lists them.

    The harness gets a home folder and an environment of its own: your files, logins and keys stay out of it. Without a
    PROMPT it is read from stdin.

    \b
        dragoman run --harness claude -- 'Write hello.txt that says hello.'
        dragoman run --harness pi --variant chat --mode base-url --workdir ./repo -- 'Fix the failing test.'
        dragoman run --harness codex --timeout 600 --task fix-1 --group base --expected 8 < prompt.txt
        dragoman run --harness command --mode proxy -- mytool --verbose file.txt
    """
    options = RunOptions(
        harness=harness,
        words=tuple(words or ()),
        mode=mode,
        variant=variant,
        model=model,
        workdir=workdir,
        timeout=timeout,
        max_turns=max_turns,
        env=read_variables(env or []),
        home=home,
        task=task,
        group=group,
        expected=expected,
        deadline=deadline,
        profile=profile,
        temperature=temperature,
        context_tokens=context_tokens,
    )
    raise typer.Exit(run_once(options, gateway))


def read_variables(given: list[str]) -> dict[str, str]:
    """``NAME=VALUE``, or ``NAME`` with the value it has in this shell. Raises ``Failure``."""
    variables = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not name or (not sign and name not in os.environ):
            raise Failure(f"--env {text!r} is neither NAME=VALUE nor the name of a variable of this shell")
        variables[name] = value if sign else os.environ[name]
    return variables


def run_once(options: RunOptions, gateway: str) -> int:
    """Do it, and return the exit code for the shell. Raises ``Failure``."""
    from dragoman.cli.episode import connect
    from dragoman.gateway_client import GatewayError
    from dragoman.rollout.episode_run import run_in_episode
    from dragoman.signals import terminable

    with connect(gateway) as client:
        try:
            wanted = prepare_run(options, client)
            with terminable():
                finished = run_in_episode(client, wanted, on_opened=announce, on_output=show)
                state = client.episode(finished.episode_id)
        except KeyboardInterrupt:
            say("interrupted: the harness and all that it started are ended, and so is the episode (abandoned)")
            return INTERRUPTED
        except BrokenPipeError:
            sys.stdout = None  # or Python complains when it flushes it at the end
            say("nobody reads the output any more: the run is ended, and so is the episode (abandoned)")
            return 1
        except FileNotFoundError as error:
            say(f"dragoman: cannot start it: {error}; is it installed, and on PATH?")
            return NOT_FOUND
        except (GatewayError, ValueError, OSError) as error:
            raise Failure(str(error)) from error
    for problem in finished.problems:
        say(f"dragoman: {problem}")
    say(summary(finished, state))
    code = exit_code(finished.result.exit_code)
    return 1 if code == 0 and finished.problems else code


def exit_code(code: int | None) -> int:
    """The shell's exit code for a harness's (``None``: stopped at the time limit; negative: ended by a signal)."""
    if code is None:
        return TIMED_OUT
    return code if code >= 0 else 128 - code


def announce(opened: "OpenedEpisode") -> None:
    say(f"episode {opened.id}")


def show(stream: "Stream", data: bytes) -> None:
    """Hand on what the harness printed, at once. Raises ``BrokenPipeError``."""
    out = sys.stdout if stream == "stdout" else sys.stderr
    out.buffer.write(data)
    out.flush()


def summary(finished: "Finished", state: "EpisodeState") -> str:
    """One line on an ended run: its end, its calls, its tokens."""
    calls = sum(state.calls.values())
    others = [f"{count} {status}" for status, count in sorted(state.calls.items()) if status != "answered"]
    counted = f"{calls} call{'' if calls == 1 else 's'}" + (f" ({', '.join(others)})" if others else "")
    how = finished.end if finished.reason is None else f"{finished.end} ({finished.reason})"
    tokens = f"{state.prompt_tokens:,} tokens in, {state.completion_tokens:,} out"
    return (
        f"episode {finished.episode_id} {how}: {counted}, {tokens}, {finished.result.seconds:.1f} s"
        f"; `dragoman show {finished.episode_id}`"
    )
