"""``dragoman harbor run``: Harbor's tasks in Harbor's sandboxes, each trial an episode with Harbor's reward."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.episode import Gateway
from dragoman.cli.options import Profile, Temperature
from dragoman.cli.output import Failure
from dragoman.home import DEFAULT_GATEWAY

app = typer.Typer(
    no_args_is_help=True, help="Run Harbor's tasks and benchmarks against the gateway.", rich_markup_mode=None
)
CONTEXT = {"allow_extra_args": True}
INTERRUPTED = 130
INSTALL = "install it in an environment of its own (uv tool install harbor), or name it with --harbor"


@app.command(context_settings=CONTEXT)
def run(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A task of Harbor, or a folder of them.")],
    agent: Annotated[str, typer.Option(help="One of Harbor's agents, or module:Class.")],
    model: Annotated[
        str, typer.Option(metavar="PROVIDER/NAME", help="As the agent wants it; the gateway answers to any name.")
    ] = "openai/policy",
    sandbox: Annotated[
        str, typer.Option(help="One of Harbor's environments, module:Class, or `local`: on this machine.")
    ] = "docker",
    agents_gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The gateway as sandboxes reach it (default: as --gateway)."),
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be repeated.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task: one group.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, help="Trials that run at once.")] = 4,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for a trial with all that belongs to it.")] = 7200,
    reward: Annotated[
        str | None, typer.Option(help="Which reward counts, where a task has several (default: `reward`).")
    ] = None,
    temperature: Temperature = None,
    profile: Profile = None,
    run: Annotated[str, typer.Option(metavar="NAME", help="Name of the run.")] = "harbor",
    jobs: Annotated[Path, typer.Option(help="Where Harbor keeps its jobs.")] = Path("jobs"),
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="A variable for Harbor; may be repeated.")
    ] = None,
    harbor: Annotated[str, typer.Option(help="The `harbor` program.")] = "harbor",
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """Run every task SAMPLES times as a job of Harbor, and keep its rewards with the episodes.

    The same command goes on where it was. What follows `--` is given to `harbor run`. Exit code 0: all have ended.

    \b
        harbor download swe-bench/swe-bench-verified -o sets
        dragoman harbor run sets/swe-bench-verified --agent claude-code --agents-gateway http://172.17.0.1:8080
        dragoman harbor run my-task --agent my_agent:Agent --sandbox local --env PYTHONPATH=agents
    """
    from dragoman.cli.harbor_run import HarborOptions, run_harbor
    from dragoman.cli.run import read_variables

    program = shutil.which(harbor)
    if program is None:
        raise Failure(f"there is no program {harbor!r}: {INSTALL}")
    options = HarborOptions(
        path=path,
        agent=agent,
        model=model,
        sandbox=sandbox,
        agents_gateway=agents_gateway,
        only=tuple(task or ()),
        samples=samples,
        concurrency=concurrency,
        time_limit=time_limit,
        reward=reward,
        temperature=temperature,
        profile=profile,
        run=run,
        jobs=jobs.resolve(),
        env=read_variables(env or []),
        program=program,
        words=tuple(context.args),
        gateway=gateway,
    )
    raise typer.Exit(run_harbor(options))
