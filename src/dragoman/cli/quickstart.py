"""``dragoman quickstart``: the whole path once, on this machine: engine, gateway, a real harness, the record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import Failure, say, step

if TYPE_CHECKING:
    from dragoman.rollout.process import HarnessResult

PROMPT = "Write a file hello.txt that says hello, then tell me in one sentence what you did."


@dataclass(frozen=True, slots=True)
class Run:
    """What to run and within which limits."""

    harness: str
    prompt: str
    max_reply_tokens: int
    timeout: float
    """Seconds that the harness may take."""


def quickstart(
    model: Annotated[
        str, typer.Option(help="Model for the engine: a folder, a name, `tiny` or `smollm2`.")
    ] = "smollm2",
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this running engine instead of starting one.")
    ] = None,
    harness: Annotated[str, typer.Option(help="The harness to run.")] = "pi",
    prompt: Annotated[str, typer.Option(help="What to ask of it.")] = PROMPT,
    max_reply_tokens: Annotated[int, typer.Option(min=1, help="Cap on the tokens of one reply.")] = 200,
    timeout: Annotated[float, typer.Option(help="Seconds that the harness may take.")] = 180,
    python: Annotated[Path | None, typer.Option(help="The Python that has vllm (default: .venv-engine).")] = None,
) -> None:
    """Start an engine and a gateway, run a real harness through them once, and show what was recorded.

    Everything that is started is stopped again. A model as small as the default may only talk: that is fine.

    \b
        dragoman quickstart
        dragoman quickstart --model ./my-model --prompt 'List the files here.'
        dragoman quickstart --engine http://127.0.0.1:8000
    """
    from dragoman.cli.gateway_process import gateway
    from dragoman.signals import terminable

    run = Run(harness, prompt, max_reply_tokens, timeout)
    with terminable():
        installed = install_harness(harness)
        with engine_address(engine, model, python) as address, gateway(address, max_reply_tokens) as gateway_address:
            episode_id, result = run_episode(run, gateway_address, installed)
        report(episode_id, result)


def install_harness(name: str) -> Path:
    """The folder of the installed harness. Raises ``Failure``."""
    from dragoman.rollout.harnesses import find_harness
    from dragoman.rollout.install import InstallError, install

    try:
        harness = find_harness(name)
        with step(f"harness {harness.name} {harness.version}"):
            return install(harness)
    except (ValueError, InstallError) as error:
        raise Failure(str(error)) from error


@contextmanager
def engine_address(running: str | None, model: str, python: Path | None) -> Iterator[str]:
    """The address of the engine that is running, or of one started on a free port and stopped afterwards."""
    import os

    from dragoman.cli import processes
    from dragoman.cli.engine import bring_up, resolve_model
    from dragoman.cli.engine_process import EngineOptions, engine_command, engine_environment, find_python
    from dragoman.home import state_folder

    if running is not None:
        yield running.rstrip("/")
        return
    found = find_python(python)
    options = EngineOptions(resolve_model(model, found), port=processes.free_port())
    log = state_folder() / "logs" / "quickstart-engine.log"
    environment = engine_environment(found, options.model, os.environ)
    with processes.running(engine_command(found, options), environment, log) as child:
        bring_up(child, options, timeout=900)
        yield f"http://{options.host}:{options.port}"


def run_episode(run: Run, address: str, installed: Path) -> "tuple[str, HarnessResult]":
    """Run the harness through ``HTTPS_PROXY``, in an episode and a folder of its own."""
    import tempfile

    from dragoman.cli.episode import connect
    from dragoman.gateway_client import GatewayError
    from dragoman.home import state_folder
    from dragoman.rollout.episode_run import EpisodeRun, run_in_episode
    from dragoman.rollout.harnesses import find_harness
    from dragoman.rollout.launch import Target, launch
    from dragoman.rollout.process import Launch

    harness = find_harness(run.harness)
    with tempfile.TemporaryDirectory(prefix="dragoman-quickstart-") as folder, connect(address) as client:

        def prepare(token: str, home: Path) -> Launch:
            target = Target(address, token, "proxy", state_folder() / "certs", run.max_reply_tokens)
            return launch(harness, target, installed=installed, prompt=run.prompt, home=home, workdir=Path(folder))

        # Greedy: at temperature 1 a small model may ramble on until it is cut, and pi ends a cut reply with exit 1.
        wanted = EpisodeRun(
            run.harness, harness, prepare, Path(folder), run.timeout, task="quickstart", temperature=0.0
        )
        try:
            with step(f"running {run.harness} through {address}"):
                finished = run_in_episode(client, wanted)
        except GatewayError as error:
            raise Failure(str(error)) from error
    for problem in finished.problems:
        say(problem)
    return finished.episode_id, finished.result


def report(episode_id: str, result: "HarnessResult") -> None:
    """Print the episode and the next commands. Raises ``Failure`` when the run is no success."""
    from dragoman.cli.lookup import reading
    from dragoman.cli.show import print_episode, traces_fact
    from dragoman.store.calls import read_calls
    from dragoman.store.episodes import get_episode

    with reading(None) as (session, url):
        episode, calls = get_episode(session, episode_id), read_calls(session, episode_id)
    print_episode(episode, calls, url, traces_fact(calls))
    answered = [call for call in calls if call.outcome is not None and call.outcome.status == "answered"]
    if episode.end != "completed" or not answered:
        why = episode.end_reason or "the harness made no call that was answered"
        raise Failure("\n".join([why, *tail("stderr", result.stderr), *tail("stdout", result.stdout)]))
    print("\nIt said:")
    print("\n".join(f"  {line}" for line in result.stdout.strip().splitlines()[-12:]) or "  (nothing)")
    print("\nNext:")
    for command, why in (
        (f"dragoman show {episode_id} --messages", "the conversation"),
        (f"dragoman show {episode_id} --tokens", "every sampled id with its log-probability"),
        ("dragoman engine", "an engine that stays, in one terminal"),
        ("dragoman serve", "a gateway that stays, in another"),
        ("dragoman run --harness claude -- 'List the files.'", "a harness in an episode of its own"),
        ('eval "$(dragoman env claude)"', "or in your own shell, by hand"),
    ):
        print(f"  {command:<50} # {why}")
    say("quickstart: all parts work")


def tail(name: str, text: str) -> Sequence[str]:
    """The last lines of a harness's output, labelled."""
    lines = text.strip().splitlines()[-10:]
    return [f"  its {name}:", *(f"    {line}" for line in lines)] if lines else []
