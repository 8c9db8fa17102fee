"""A continuous run: the trainer as a child process, rollouts here, and what each evaluation came to."""

import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.loop_config import LoopConfig
from dragoman.cli.output import Failure, say
from dragoman.cli.rollout_plan import RolloutOptions, check_tasks, make_setting, readable_store, runs_folder
from dragoman.cli.rollout_run import INTERRUPTED, close_left, run_noted

if TYPE_CHECKING:
    from dragoman.cli.processes import Child
    from dragoman.gateway_client import GatewayClient
    from dragoman.rollout.course import Plan, Standing, Stop
    from dragoman.rollout.journal import Journal
    from dragoman.rollout.samples import Sample, Setting
    from dragoman.rollout.tasks import Task
    from dragoman.store.database import Database
    from dragoman.store.groups import GroupCounts

LOOK_EVERY = 1.0
"""Seconds between looks at how far the trainer is."""
MOST_STARTS = 5
"""Of a trainer that ends by itself, in a row without a new version."""


def run_loop(config: LoopConfig, gateway: str) -> int:
    """Do it, and return the exit code. Raises ``Failure``."""
    from dragoman.cli.episode import connect
    from dragoman.gateway_client import GatewayError
    from dragoman.home import default_store_url
    from dragoman.rollout.journal import Journal, RunBusy
    from dragoman.signals import terminable
    from dragoman.store.database import Database
    from dragoman.store.errors import StoreError

    with connect(gateway) as client:
        try:
            setting = make_setting(_options(config, gateway), config.run, client)
            url = config.store or readable_store(None, client) or default_store_url()
            with Journal(runs_folder() / config.run) as journal, terminable():
                close_left(journal, client)
                database = Database.open(url)
                try:
                    return _Loop(config, setting, journal, client, database, url).run()
                finally:
                    database.close()
        except (KeyboardInterrupt, SystemExit):
            say("interrupted: harnesses and trainer are ended; the same command goes on where it was")
            return INTERRUPTED
        except (GatewayError, RunBusy, StoreError, ValueError, OSError) as error:
            raise Failure(str(error)) from error


def _options(config: LoopConfig, gateway: str) -> RolloutOptions:
    return RolloutOptions(
        tasks=config.tasks,
        harnesses=config.harnesses,
        samples=config.samples,
        concurrency=config.concurrency,
        mode=config.mode,
        variant=config.variant,
        model=None,
        split=None,
        only=(),
        time_limit=config.time_limit,
        check_time_limit=config.check_time_limit,
        temperature=config.temperature,
        profile=None,
        max_turns=config.max_turns,
        run=config.run,
        again=False,
        deadline=None,
        isolation="auto",
        memory=None,
        disk=4,
        hide=(),
        env={},
        scratch=None,
        store=config.store,
        command=(),
        gateway=gateway,
    )


@dataclass
class _Loop:
    config: LoopConfig
    setting: "Setting"
    journal: "Journal"
    client: "GatewayClient"
    database: "Database"
    url: str

    def run(self) -> int:
        from dragoman.cli.tasks import load_tasks
        from dragoman.rollout.course import Plan, Stop

        config = self.config
        tasks = load_tasks(config.tasks, config.train_split)
        check_tasks(tasks)
        self.trained_on = [task.id for task in tasks]
        plan = Plan(tasks, config.harnesses, config.samples, config.seed)
        held_out = {split: load_tasks(config.tasks, split) for split in config.eval_splits}
        stop = Stop(config.stop_versions, config.stop_reward, config.stop_hours)
        self.began = time.monotonic()
        self.groups_per_step = groups_per_step(config.trainer)
        say(f"run {config.run}: {len(tasks)} tasks to train on, {sum(map(len, held_out.values()))} to evaluate")
        while True:
            version = self.standing().version
            reward = self.evaluate(version, held_out)
            why = stop.reached(version=version, reward=reward, hours=self.hours)
            if why is not None:
                say(f"the run is over: {why}")
                return 0
            due = version + config.eval_every
            with self.training() as trainer:
                self.train(plan, stop, due, trainer)

    @property
    def hours(self) -> float:
        return (time.monotonic() - self.began) / 3600

    def standing(self) -> "Standing":
        return self.look()[0]

    def look(self) -> "tuple[Standing, GroupCounts]":
        """How far the run is, and how the groups of its tasks stand."""
        from dragoman.rollout.course import Standing
        from dragoman.store.leases import count_groups
        from dragoman.store.policies import newest_of_run

        with self.database.reading() as session:
            newest = newest_of_run(session, self.config.run)
            served = newest_of_run(session, self.config.run, served=True)
            counts = count_groups(session, self.config.run, time.time(), tasks=self.trained_on)
        version = served.number if served else 0
        steps = (newest.step or 0) if newest else 0
        return Standing(version, steps, counts.set_aside), counts

    def evaluate(self, version: int, held_out: "dict[str, tuple[Task, ...]]") -> float | None:
        """The mean reward of the first split; ``None``: there is none, or it has no rewards."""
        from dragoman.rollout.course import evaluation_samples

        first: float | None = None
        setting = replace(self.setting, samples=self.config.eval_samples)
        for split, tasks in held_out.items():
            samples = evaluation_samples(tasks, self.config.harnesses, self.config.eval_samples, version)
            keys = {sample.key for sample in samples}
            self.sample([sample for sample in samples if sample.key not in self.journal.done], setting, len(samples))
            done = [outcome for key, outcome in self.journal.done.items() if key in keys]
            rewards = [outcome.reward for outcome in done if outcome.reward is not None]
            mean = statistics.fmean(rewards) if rewards else None
            self.note({"event": "evaluated", "version": version, "split": split, "reward": mean, "episodes": len(done)})
            said = "no rewards" if mean is None else f"mean reward {mean:.3f}"
            say(f"version {version}, {split}: {said} over {len(done)} episodes of {len(tasks)} tasks")
            first = mean if split == next(iter(held_out)) else first
        return first

    def train(self, plan: "Plan", stop: "Stop", due: int, trainer: "_Trainer") -> None:
        """Sample groups until an evaluation is due or the run is over; then until the trainer has used them up."""
        from dragoman.rollout.course import train_samples

        looked, last = 0.0, self.standing()

        def standing() -> "Standing":
            nonlocal looked, last
            if time.monotonic() - looked > LOOK_EVERY:
                trainer.check(last.version)
                looked, last = time.monotonic(), self.standing()
            return last

        def over(now: "Standing") -> bool:
            return now.version >= due or stop.reached(version=now.version, reward=None, hours=self.hours) is not None

        def begun() -> set[tuple[str, str, int]]:
            train = {task.id for task in plan.tasks}
            keys = [*self.journal.done, *self.journal.open.values()]
            return {
                (task, harness, round_) for task, harness, _, round_ in keys if task in train and round_ is not None
            }

        supply = train_samples(
            plan,
            done=self.journal.done,
            begun=begun(),
            standing=standing,
            over=over,
            ahead=self.config.ahead,
            groups_per_step=self.groups_per_step,
        )
        self.sample(supply, self.setting, None)
        self.drain(trainer)

    def drain(self, trainer: "_Trainer") -> None:
        """Wait until the trainer has no step's worth of groups left, so that what is evaluated stays what it is."""
        from dragoman.store.groups import settle_groups

        while True:
            with self.database.session() as session:
                settle_groups(session, time.time())
            now, counts = self.look()
            trainer.check(now.version)
            in_hand = counts.leased + counts.consumed - now.steps * self.groups_per_step
            if counts.ready == 0 and in_hand < self.groups_per_step:
                return
            time.sleep(LOOK_EVERY)

    def sample(self, supply: "Iterable[Sample | None]", setting: "Setting", total: int | None) -> None:
        from dragoman.rollout.progress import Progress

        run_noted(
            supply,
            setting,
            Progress(total, time.monotonic()),
            self.journal,
            concurrency=self.config.concurrency,
            at_work=lambda health: nullcontext((health, None)),
        )

    @contextmanager
    def training(self) -> "Iterator[_Trainer]":
        trainer = _Trainer(self.config, self.url, self.trained_on, self.journal.folder)
        try:
            trainer.start()
            yield trainer
        finally:
            trainer.stop()

    def note(self, event: dict[str, Any]) -> None:
        with (self.journal.folder / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps({**event, "at": time.time()}) + "\n")


class _Trainer:
    """``dragoman train grpo`` as a child; started again when it ends by itself."""

    def __init__(self, config: LoopConfig, url: str, tasks: list[str], folder: Path) -> None:
        self.folder = folder
        self.command = [sys.executable, "-m", "dragoman", "train", "grpo", str(config.trainer)]
        self.command += ["--run_name", config.run, "--output_dir", str(folder / "trainer"), "--store", url]
        # Said, though the file says it too: both must count by the same number.
        self.command += ["--groups_per_step", str(groups_per_step(config.trainer)), "--tasks", *tasks]
        self.child: Child | None = None
        self._starts = 0
        self._version = -1

    def start(self) -> None:
        import os

        from dragoman.cli.processes import start

        self._starts += 1
        self.child = start(self.command, os.environ, self.folder / "trainer.log")

    def check(self, version: int) -> None:
        """Start it again when it has ended. Raises ``Failure`` when that does not help."""
        if version > self._version:
            self._version, self._starts = version, 1
        assert self.child is not None
        if (code := self.child.returncode()) is None:
            return
        last = "\n".join(f"  {line}" for line in self.child.last_lines(15))
        if code == 0 or self._starts >= MOST_STARTS:
            raise Failure(f"the trainer has ended with {code}\n{last}\n  the whole log: {self.child.log}")
        say(f"the trainer has ended with {code}; it is started again from its checkpoint\n{last}")
        self.start()

    def stop(self) -> None:
        """Let it end its step and write its checkpoint."""
        import signal
        import subprocess

        from dragoman.cli.processes import stop

        if self.child is None:
            return
        if self.child.returncode() is None:
            self.child.process.send_signal(signal.SIGTERM)
            try:
                self.child.process.wait(300)
            except subprocess.TimeoutExpired:
                say("the trainer does not end; it is killed, and goes on from its last checkpoint next time")
        stop(self.child)


def groups_per_step(path: Path) -> int:
    """What the trainer's configuration says. Raises ``Failure``."""
    import yaml

    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise Failure(f"{path} cannot be read: {error}") from error
    return int((given or {}).get("groups_per_step", 4))
