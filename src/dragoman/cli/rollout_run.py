"""Running a rollout: the journal, the live line, one line for each failure, and the summary at the end."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from dragoman.cli.output import Failure, console, progress, say
from dragoman.cli.rollout_plan import RolloutOptions, check_tasks, make_setting, run_name, runs_folder

if TYPE_CHECKING:
    from dragoman.gateway_client import GatewayClient
    from dragoman.rollout.health import Health
    from dragoman.rollout.journal import Journal
    from dragoman.rollout.progress import Progress
    from dragoman.rollout.runner import RunOne
    from dragoman.rollout.samples import Outcome, Sample, Setting

    AtWork = Callable[[Health], AbstractContextManager[tuple[Health, RunOne | None]]]
    """Given this process's health: whose health counts, and what runs a sample (``None``: this machine)."""

SAY_EVERY = 10.0
"""Seconds between progress lines where stderr is no terminal."""
INTERRUPTED = 130


def run_rollout(options: RolloutOptions) -> int:
    """Do it, and return the exit code. Raises ``Failure``."""
    from dragoman.cli.episode import connect
    from dragoman.cli.tasks import load_tasks
    from dragoman.gateway_client import GatewayError
    from dragoman.rollout.journal import Journal, RunBusy
    from dragoman.rollout.runner import all_samples
    from dragoman.signals import terminable

    tasks = load_tasks(options.tasks, options.split, list(options.only))
    check_tasks(tasks)
    name = run_name(options)
    with connect(options.gateway) as client:
        try:
            setting = make_setting(options, name, client)
            samples = all_samples(tasks, options.harnesses, options.samples)
            with Journal(runs_folder() / name) as journal, terminable():
                say(f"run {name}: {len(tasks)} tasks, {len(samples)} samples; isolation: {setting.isolation}")
                close_left(journal, client)
                return _run(samples, setting, options, journal)
        except (KeyboardInterrupt, SystemExit):
            say(f"interrupted: all harnesses are ended, their episodes abandoned; the same command goes on with {name}")
            return INTERRUPTED
        except (GatewayError, RunBusy, ValueError, OSError) as error:
            raise Failure(str(error)) from error


def close_left(journal: "Journal", client: "GatewayClient") -> None:
    """Settle what an earlier process of this run opened and did not note the end of. Raises ``GatewayError``.

    What has not ended is abandoned, and run again. What has (its runner was killed before it could note it) is done.
    """
    from dragoman.gateway_client import GatewayError
    from dragoman.rollout.samples import Outcome

    abandoned = 0
    for episode_id, key in list(journal.open.items()):
        try:
            client.end_episode(episode_id, "abandoned", "its runner was ended; the sample is run again")
            abandoned += 1
        except GatewayError as error:
            if error.code == "not_found":
                continue
            if error.code != "conflict":
                raise
            state = client.episode(episode_id)
            if state.end is not None:
                calls = sum(state.calls.values())
                tokens = (state.prompt_tokens, state.completion_tokens)
                journal.ended(Outcome(*key, episode_id, state.end, state.end_reason, state.reward, {}, calls, *tokens))
    if abandoned:
        say(f"{abandoned} episodes of an earlier start were not ended; they are abandoned and run again")


def _run(samples: "list[Sample]", setting: "Setting", options: RolloutOptions, journal: "Journal") -> int:
    done = [journal.done[sample.key] for sample in samples if sample.key in journal.done]
    if done:
        say(f"{len(done)} samples were done before; --again begins a new run")
    return run_all(
        samples,
        setting,
        journal,
        concurrency=options.concurrency,
        at_work=lambda health: workers(options, health),
        noun="samples",
    )


def run_all(
    samples: "list[Sample]",
    setting: "Setting",
    journal: "Journal",
    *,
    concurrency: int,
    at_work: "AtWork",
    noun: str,
) -> int:
    """Run those that are not done yet and summarise all; the exit code. ``noun``: what a sample is called."""
    from dragoman.rollout.progress import Progress

    state = Progress(len(samples), time.monotonic())
    outcomes = [journal.done[sample.key] for sample in samples if sample.key in journal.done]
    for outcome in outcomes:
        state.add(outcome, before=True)
    missing = [sample for sample in samples if sample.key not in journal.done]
    run_noted(missing, setting, state, journal, concurrency=concurrency, at_work=at_work, note=outcomes.append)
    summarise(state, outcomes, setting.run)
    left = [sample for sample in samples if sample.key not in journal.done]
    if left:
        say(f"{len(left)} {noun} have no outcome that counts; the same command runs them again")
    return 1 if left else 0


def run_noted(
    supply: "Iterable[Sample | None]",
    setting: "Setting",
    state: "Progress",
    journal: "Journal",
    *,
    concurrency: int,
    at_work: "AtWork",
    note: "Callable[[Outcome], None]" = lambda outcome: None,
) -> None:
    """Run a supply of samples with the journal, the live line, and a line for each failure.

    ``note``: is told each outcome, after the journal.
    """
    from dragoman.cli.episode import connect
    from dragoman.rollout.health import Health
    from dragoman.rollout.runner import run_tasks

    def on_outcome(outcome: "Outcome") -> None:
        journal.ended(outcome)
        state.add(outcome)
        note(outcome)
        for line in remarks(outcome):
            say(line)

    with connect(setting.gateway) as asking, at_work(Health(asking, say)) as (health, work), live(state) as tick:
        run_tasks(
            supply,
            setting,
            health,
            concurrency=concurrency,
            stop=threading.Event(),
            on_outcome=on_outcome,
            on_opened=journal.opened,
            on_tick=tick,
            work=work,
        )
    say(state.line(time.monotonic()))


@contextlib.contextmanager
def workers(options: RolloutOptions, health: "Health") -> "Iterator[tuple[Health, RunOne | None]]":
    """Where samples are run: on a cluster where one is named, else here (None). Raises ``Failure``."""
    if options.ray is None:
        yield health, None
        return
    from dragoman.rollout.cluster import ClusterError, connected, on_cluster

    try:
        with connected(options.ray) as cluster:
            say(f"Ray: {cluster.nodes} nodes with {cluster.cpus:g} CPUs, {options.ray_cpus:g} for each sample")
            yield health, on_cluster(cluster, health, cpus=options.ray_cpus)
    except ClusterError as error:
        raise Failure(f"--ray: {error}") from error


def remarks(outcome: "Outcome") -> list[str]:
    """What is worth a line: a failure with its reason, and what could not be kept."""
    name = f"{outcome.task} {outcome.harness} #{outcome.number}"
    show = f"; `dragoman show {outcome.episode_id}`" if outcome.episode_id else ""
    lines = []
    if outcome.end != "completed":
        first = (outcome.reason or "").splitlines() or [""]
        lines.append(f"{name}: {'run again: ' if outcome.again else ''}{outcome.end}: {first[0]:.300}{show}")
    lines += [f"{name}: {problem}" for problem in outcome.problems]
    return lines


@contextlib.contextmanager
def live(state: "Progress") -> "Iterator[Tick]":
    """A line that changes on a terminal; elsewhere one every ``SAY_EVERY`` seconds when something has changed."""
    out = progress()
    if not out.is_terminal:
        yield Tick(state)
        return
    from rich.live import Live
    from rich.text import Text

    class Line:
        def __rich__(self) -> Text:
            return Text(state.line(time.monotonic()), no_wrap=True, overflow="ellipsis", style="bold")

    # Lines that are said meanwhile go above it.
    with Live(Line(), console=out, transient=True, refresh_per_second=4, redirect_stderr=True):
        yield Tick(state, quiet=True)


class Tick:
    def __init__(self, state: "Progress", quiet: bool = False) -> None:
        self.state = state
        self.quiet = quiet
        self.said_at = time.monotonic()
        self.said = -1

    def __call__(self, running: int) -> None:
        self.state.running = running
        now = time.monotonic()
        if not self.quiet and now - self.said_at >= SAY_EVERY and self.state.done != self.said:
            self.said_at, self.said = now, self.state.done
            say(self.state.line(now))


def summarise(state: "Progress", outcomes: "list[Outcome]", name: str) -> None:
    """A table on stdout, one row for each harness; and how often which reason came."""
    from rich.table import Table

    from dragoman.rollout.progress import Progress

    columns = ("harness", "samples", "completed", "failed", "timed out", "abandoned", "passed", "mean reward", "calls")
    table = Table(*columns, box=None, pad_edge=False)
    for harness in sorted({one.harness for one in outcomes}):
        mine = Progress(None, 0.0)
        for outcome in outcomes:
            if outcome.harness == harness:
                mine.add(outcome)
        counts = [mine.ends[end] for end in ("completed", "failed", "timed_out", "abandoned")]
        rate = f"{mine.passed / mine.scored:.0%}" if mine.scored else ""
        mean = f"{mine.rewards / mine.scored:.3f}" if mine.scored else ""
        table.add_row(harness, str(mine.done), *map(str, counts), rate, mean, str(mine.calls))
    sys.stdout.write(f"run {name}\n")
    console().print(table)
    for reason, count in state.reasons.most_common(10):
        sys.stdout.write(f"{count} x {reason}\n")
