"""``dragoman episode open|end|reward``: what whoever runs an agent says to the gateway about its episode."""

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.options import Deadline, Expected, Group, Profile, Task, Temperature, Way
from dragoman.cli.output import Failure, print_json
from dragoman.home import DEFAULT_GATEWAY

if TYPE_CHECKING:
    from dragoman.gateway_client import GatewayClient, OpenedEpisode

app = typer.Typer(no_args_is_help=True, help="Open an episode, end it, give it a reward.", rich_markup_mode=None)

Gateway = Annotated[
    str, typer.Option("--gateway", envvar="DRAGOMAN_GATEWAY", help="Address of the gateway.", metavar="URL")
]
EpisodeId = Annotated[
    str,
    typer.Argument(
        metavar="EPISODE", envvar="DRAGOMAN_EPISODE", help="Whole id of the episode, as `episode open` printed it."
    ),
]


def connect(gateway: str) -> "GatewayClient":
    """A client of the gateway at an address, with or without ``http://``."""
    from dragoman.gateway_client import GatewayClient

    return GatewayClient(full_address(gateway), operator_credential())


def full_address(address: str) -> str:
    """``host:port`` as a URL; a URL stays as it is."""
    return address if "://" in address else f"http://{address}"


def operator_credential() -> str:
    """The operator key: ``DRAGOMAN_OPERATOR_KEY``, else the state folder's."""
    import os

    from dragoman.home import operator_key, state_folder

    return os.environ.get("DRAGOMAN_OPERATOR_KEY") or operator_key(state_folder())


def shell_exports(environment: Mapping[str, str]) -> list[str]:
    """``export`` lines for a POSIX shell, one per variable."""
    return [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]


def episode_environment(opened: "OpenedEpisode", mode: Literal["proxy", "base-url"], gateway: str) -> dict[str, str]:
    """The episode's variables for a harness, and those that let `dragoman episode end|reward` find it again."""
    environment = dict(opened.proxy if mode == "proxy" else opened.base_url)
    return {**environment, "DRAGOMAN_EPISODE": opened.id, "DRAGOMAN_GATEWAY": gateway}


@app.command("open")
def open_(
    task: Task = None,
    group: Group = None,
    expected: Expected = None,
    deadline: Deadline = None,
    profile: Profile = None,
    temperature: Temperature = None,
    ttl: Annotated[float | None, typer.Option(min=1, help="Seconds until the token expires (default 24 h).")] = None,
    mode: Way = "proxy",
    gateway: Gateway = DEFAULT_GATEWAY,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the `export` lines only.")] = False,
) -> None:
    """Open an episode and print its id, its token and the environment for a harness.

    What is printed can be given to the shell as it is:

    \b
        eval "$(dragoman episode open --task hello)"
        claude -p 'Write hello.txt'
        dragoman episode end --end completed
        dragoman episode reward "$DRAGOMAN_EPISODE" 1.0
    """
    if as_json and export:
        raise Failure("--json and --export exclude each other")
    from dragoman.gateway_client import GatewayError

    with connect(gateway) as client:
        try:
            opened = client.open_episode(
                task=task,
                group=group,
                expected=expected,
                deadline_seconds=deadline,
                profile=profile,
                temperature=temperature,
                ttl_seconds=ttl,
            )
        except GatewayError as error:
            raise Failure(str(error)) from error
        address = client.address
    if as_json:
        print_json(
            {
                "id": opened.id,
                "token": opened.token,
                "api_key": opened.api_key,
                "expires_at": opened.expires_at,
                "environment": {"proxy": dict(opened.proxy), "base_url": dict(opened.base_url)},
            }
        )
        return
    if not export:
        print(f"# episode {opened.id}")
        print(f"# token   {opened.token}")
        print(f"# api key {opened.api_key}")
    for line in shell_exports(episode_environment(opened, mode, address)):
        print(line)


@app.command()
def end(
    episode_id: EpisodeId,
    end: Annotated[
        Literal["completed", "failed", "timed_out", "abandoned"], typer.Option(help="How the agent's run ended.")
    ] = "completed",
    reason: Annotated[str | None, typer.Option(help="One line saying why, kept with the episode.")] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """End an episode; its token stops working.

    \b
        dragoman episode end k3v9x2m1q8zt
        dragoman episode end k3v9x2m1q8zt --end failed --reason 'the harness exited with 1'
    """
    from dragoman.gateway_client import GatewayError

    with connect(gateway) as client:
        try:
            client.end_episode(episode_id, end, reason)
        except GatewayError as error:
            raise Failure(str(error)) from error
    print(f"episode {episode_id} ended: {end}")


@app.command(context_settings={"ignore_unknown_options": True})  # so that -1 is a value
def reward(
    episode_id: Annotated[str, typer.Argument(metavar="EPISODE", help="Whole id of the episode.")],
    value: Annotated[float, typer.Argument(metavar="VALUE", help="The reward; any finite number.")],
    component: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A part of the reward; may be repeated.")
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """Give an episode its reward.

    \b
        dragoman episode reward k3v9x2m1q8zt 1.0
        dragoman episode reward k3v9x2m1q8zt 0.75 --component tests=1 --component style=0.5
        dragoman episode reward k3v9x2m1q8zt -1
    """
    import math

    from dragoman.gateway_client import GatewayError

    if not math.isfinite(value):
        raise Failure(f"a reward must be a finite number, not {value}")
    components = dict(_component(text) for text in component or [])
    with connect(gateway) as client:
        try:
            client.set_reward(episode_id, value, components)
        except GatewayError as error:
            raise Failure(str(error)) from error
    print(f"episode {episode_id} has reward {value:g}")


def _component(text: str) -> tuple[str, float]:
    name, sign, number = text.partition("=")
    try:
        if not (name and sign):
            raise ValueError
        return name, float(number)
    except ValueError:
        raise Failure(f"--component {text!r} is not NAME=VALUE with a number") from None
