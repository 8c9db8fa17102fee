"""``dragoman rollout``: many samples of many tasks, each in an episode of its own, with its reward."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli.episode import Gateway
from dragoman.cli.options import ModelName, Profile, Temperature, Variant
from dragoman.cli.output import Failure
from dragoman.cli.rollout_plan import RolloutOptions
from dragoman.cli.tasks import Split, TaskFile
from dragoman.home import DEFAULT_GATEWAY

CONTEXT = {"allow_extra_args": True}
INTERRUPTED = 130


def rollout(
    context: typer.Context,
    tasks: TaskFile,
    harness: Annotated[
        list[str], typer.Option("--harness", help="Harnesses, with commas or repeated; `command` for any program.")
    ],
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task and harness: one group.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, help="Samples that run at once.")] = 4,
    mode: Annotated[Literal["proxy", "base-url"], typer.Option(help="How harnesses reach the gateway.")] = "proxy",
    variant: Variant = None,
    model: ModelName = None,
    split: Split = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be repeated.")] = None,
    time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds for a harness, where the task names no limit.")
    ] = 1800,
    check_time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds for a check or a setup that names no limit.")
    ] = 300,
    temperature: Temperature = None,
    profile: Profile = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Limit of turns, for harnesses that have one.")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run (default: made from tasks and options).")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="A new run, though there is one of that name.")] = False,
    deadline: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds until missing episodes count as abandoned (default: by the limits)."),
    ] = None,
    isolation: Annotated[
        Literal["auto", "namespaces", "limits", "none"],
        typer.Option(help="What keeps agents in: `auto` is the strongest that this system has."),
    ] = "auto",
    memory: Annotated[
        float | None, typer.Option(min=1, metavar="GIB", help="Address space of each process of a harness or check.")
    ] = None,
    disk: Annotated[float, typer.Option(min=0.001, metavar="GIB", help="What workspace and home may grow to.")] = 4,
    hide: Annotated[
        list[Path] | None, typer.Option(help="A folder or file that agents must not see; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="A variable for the harness; may be repeated.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="Where workspaces are made (default: the temporary folder).")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store, for checks that read replies (default: as the gateway)."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run samples on a Ray cluster; `local` starts one on this machine."),
    ] = None,
    ray_cpus: Annotated[float, typer.Option(min=0, help="Of Ray's CPUs, for each sample.")] = 1,
    gateway: Gateway = DEFAULT_GATEWAY,
) -> None:
    """Run every task SAMPLES times with each harness: an episode, a fresh workspace, the harness, the checks, a reward.

    The same command goes on where it was: samples that are done are not run again. Ctrl-C ends what runs; those
    episodes are abandoned. While the gateway or the engine is away it waits. Exit code 0: every sample has ended.

    \b
        dragoman rollout tasks.yaml --harness pi --samples 8 --concurrency 8
        dragoman rollout tasks.yaml --harness claude,codex --split train --time-limit 600
        dragoman rollout tasks.yaml --harness command --mode base-url -- python my_agent.py '{prompt}'
        dragoman rollout tasks.yaml --harness pi --concurrency 64 --ray 10.0.0.5:6379
    """
    from dragoman.cli.rollout_run import run_rollout
    from dragoman.cli.run import read_variables

    options = RolloutOptions(
        tasks=tasks,
        harnesses=tuple(name.strip() for one in harness for name in one.split(",") if name.strip()),
        samples=samples,
        concurrency=concurrency,
        mode=mode,
        variant=variant,
        model=model,
        split=split,
        only=tuple(task or ()),
        time_limit=time_limit,
        check_time_limit=check_time_limit,
        temperature=temperature,
        profile=profile,
        max_turns=max_turns,
        run=run,
        again=again,
        deadline=deadline,
        isolation=isolation,
        memory=memory,
        disk=disk,
        hide=tuple(hide or ()),
        env=read_variables(env or []),
        scratch=scratch,
        store=store,
        command=tuple(context.args),
        gateway=gateway,
        ray=ray,
        ray_cpus=ray_cpus,
    )
    if len(set(options.harnesses)) < len(options.harnesses) or not options.harnesses:
        raise Failure("--harness needs names, each once")
    raise typer.Exit(run_rollout(options))
