"""Running a rollout of Harbor's trials: as ``rollout_run`` does, with Harbor in the place of harness and checks."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dragoman.cli.output import Failure, say
from dragoman.cli.rollout_plan import runs_folder
from dragoman.cli.rollout_run import INTERRUPTED, close_left, run_all

if TYPE_CHECKING:
    from dragoman.gateway_client import GatewayClient
    from dragoman.rollout.journal import Journal


@dataclass(frozen=True)
class HarborOptions:
    path: Path
    agent: str
    model: str
    sandbox: str
    agents_gateway: str | None
    only: tuple[str, ...]
    samples: int
    concurrency: int
    time_limit: float
    reward: str | None
    temperature: float | None
    profile: Literal["train", "as_asked"] | None
    run: str
    jobs: Path
    env: Mapping[str, str]
    program: str
    words: tuple[str, ...]
    gateway: str


def run_harbor(options: HarborOptions) -> int:
    """Do it, and return the exit code. Raises ``Failure``."""
    from dragoman.cli.episode import connect
    from dragoman.gateway_client import GatewayError
    from dragoman.rollout.journal import Journal, RunBusy, RunName
    from dragoman.signals import terminable

    with connect(options.gateway) as client:
        try:
            name = RunName(options.run).text
            with Journal(runs_folder() / name) as journal, terminable():
                close_left(journal, client)
                return _run(options, journal, client)
        except (KeyboardInterrupt, SystemExit):
            say("interrupted: all trials are ended, their episodes abandoned; the same command goes on")
            return INTERRUPTED
        except (GatewayError, RunBusy, ValueError, OSError) as error:
            raise Failure(str(error)) from error


def _run(options: HarborOptions, journal: "Journal", client: "GatewayClient") -> int:
    from dragoman.cli.episode import full_address, operator_credential
    from dragoman.rollout.harbor import HarborSetting, find_tasks, on_harbor
    from dragoman.rollout.runner import all_samples
    from dragoman.rollout.samples import Setting

    tasks = [task for task in find_tasks(options.path) if not options.only or task.id in options.only]
    if missing := set(options.only) - {task.id for task in tasks}:
        raise Failure(f"{options.path} has no task {sorted(missing)[0]!r}")
    status = client.status()
    setting = Setting(
        options.run,
        client.address,
        operator_credential(),
        options.samples,
        temperature=options.temperature,
        profile=options.profile or "train",
        max_reply_tokens=status.max_reply_tokens or 4096,
    )
    harbor = HarborSetting(
        options.program,
        options.agent,
        options.model,
        options.sandbox,
        full_address(options.agents_gateway or options.gateway).rstrip("/"),
        options.jobs,
        options.time_limit,
        options.reward,
        options.env,
        options.words,
    )
    samples = all_samples(tasks, [f"harbor-{options.agent.replace(':', '.')}"], options.samples)
    done = sum(sample.key in journal.done for sample in samples)
    say(f"run {options.run}: {len(tasks)} tasks of Harbor, {len(samples)} trials, {done} of them done before")
    return run_all(
        samples,
        setting,
        journal,
        concurrency=options.concurrency,
        at_work=lambda health: nullcontext((health, on_harbor(harbor, health))),
        noun="trials",
    )
