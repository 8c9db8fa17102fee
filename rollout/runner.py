"""Many samples at once, for as long as there are any: what ``dragoman rollout`` and a continuous loop both call.

Rules of this module: threads, each with one sample; a sample that was disturbed is run again, up to a limit; nothing
is left running when ``run_tasks`` returns or raises. What a sample came to is told by ``on_outcome``, in the caller's
own thread.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from dragoman.rollout.health import Health
from dragoman.rollout.process import Stopped
from dragoman.rollout.samples import Outcome, Sample, Setting, run_one
from dragoman.rollout.tasks import Task
from dragoman.signals import undisturbed

__all__ = ["RunOne", "all_samples", "run_tasks"]

LOOK_EVERY = 0.25
"""Seconds between looks at a supply that has nothing now, and between calls of ``on_tick``."""
MOST_TRIES = 4
"""Of one sample that something outside of it disturbs."""

RunOne = Callable[[Sample, Setting, Callable[[], bool], Callable[[Sample, str], None]], Outcome]
"""Runs one sample, as ``samples.run_one`` does: ``(sample, setting, stopped, on_opened)``; here or elsewhere."""


def all_samples(
    tasks: Iterable[Task], harnesses: Iterable[str], samples: int, round: int | None = None
) -> list[Sample]:
    """Every sample of a run, those of one group next to each other, so that groups become complete early."""
    names = tuple(harnesses)
    return [Sample(task, name, number, round) for task in tasks for name in names for number in range(samples)]


def local(health: Health) -> RunOne:
    """Samples are run on this machine."""

    def work(
        sample: Sample, setting: Setting, stopped: Callable[[], bool], on_opened: Callable[[Sample, str], None]
    ) -> Outcome:
        return run_one(sample, setting, health, stopped=stopped, on_opened=on_opened)

    return work


def run_tasks(
    supply: Iterable[Sample | None],
    setting: Setting,
    health: Health,
    *,
    concurrency: int,
    stop: threading.Event,
    on_outcome: Callable[[Outcome], None],
    on_opened: Callable[[Sample, str], None] = lambda sample, episode_id: None,
    on_tick: Callable[[int], None] = lambda running: None,
    work: RunOne | None = None,
) -> None:
    """Run samples, ``concurrency`` at a time, until the supply ends or ``stop`` is set.

    The supply may go on for ever; None from it means that there is nothing to do now. ``on_opened`` is called from
    several threads. ``on_outcome`` is not called for samples that ``stop`` interrupted; their episodes are abandoned.
    An exception here or in a callback (Ctrl-C) sets ``stop``, waits until nothing runs, and is raised again.
    """
    do = work or local(health)
    left, tries = iter(supply), dict[tuple[str, str, int, int | None], int]()
    again: list[Sample] = []
    running: dict[Future[Outcome], Sample] = {}
    ended = False
    with health.watching(), ThreadPoolExecutor(concurrency, thread_name_prefix="sample") as pool:
        try:
            while not stop.is_set():
                idle = False
                while len(running) < concurrency and not idle and not (ended and not again):
                    sample, ended, idle = _next(again, left, ended)
                    if sample is not None:
                        tries[sample.key] = tries.get(sample.key, 0) + 1
                        running[pool.submit(do, sample, setting, stop.is_set, on_opened)] = sample
                if ended and not running and not again:
                    return
                done, _ = wait(running, LOOK_EVERY, FIRST_COMPLETED) if running else (set(), None)
                if not running:
                    stop.wait(LOOK_EVERY)
                for future in done:
                    sample = running.pop(future)
                    try:
                        outcome = future.result()
                    except Stopped:
                        continue
                    if outcome.again and tries[sample.key] < MOST_TRIES:
                        again.append(sample)
                        on_outcome(outcome)
                        continue
                    tries.pop(sample.key, None)
                    on_outcome(replace(outcome, again=False))
                on_tick(len(running))
        finally:
            stop.set()
            with undisturbed():
                wait(running)
                for future in running:
                    if future.exception() is None:
                        on_outcome(future.result())


def _next(again: list[Sample], left: Iterator[Sample | None], ended: bool) -> tuple[Sample | None, bool, bool]:
    """The next sample, whether the supply has ended, and whether there is nothing to do now."""
    if again:
        return again.pop(0), ended, False
    try:
        sample = next(left)
    except StopIteration:
        return None, True, True
    return sample, ended, sample is None
