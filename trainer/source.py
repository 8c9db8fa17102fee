"""Groups from the store, as the steps of a trainer: leased, waited for, and consumed with a checkpoint.

The rules:

- A group is consumed in the store only when a complete checkpoint holds what it taught (``checkpoints``). Until then it
  stays leased; a trainer that is killed loses nothing and trains nothing twice, seen from the checkpoint it resumes.
- A step holds ``groups_per_step`` groups that have a gradient. What is dropped (``samples.DropReason``) is set aside in
  the store with its reason, is counted, and makes place for the next group.
- A store that is away, or has nothing, is waited for, and that is said once. One thread, rank 0.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dragoman.store.database import Database
from dragoman.store.errors import LeaseLost, StoreUnavailable
from dragoman.store.leases import consume, count_groups, give_back, lease_groups, renew, set_aside
from dragoman.store.policies import newest_served, version_numbers
from dragoman.trainer.batch import Step, Taken, padded_tokens
from dragoman.trainer.checkpoints import TrainedGroup, write_marker
from dragoman.trainer.samples import DroppedGroup, DropReason, PreparedGroup, Rules, Sample, prepare_group

Say = Callable[[str], None]
LOGGED_REASONS: tuple[DropReason, ...] = get_args(DropReason)


@dataclass
class Totals:
    """What became of everything that this process has read. ``sampled`` = ``trained`` + the excluded tokens."""

    groups: Counter[str] = field(default_factory=Counter)
    """``trained``, or a ``DropReason``."""
    episodes: Counter[str] = field(default_factory=Counter)
    """By ``EpisodeUse``, of trained groups."""
    sampled: int = 0
    trained: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    """Tokens by reason (``samples.TokenCount``)."""


class GroupSource:
    """A ``grpo.StepSource``."""

    def __init__(
        self,
        database: Database,
        *,
        consumer: str,
        holder: str,
        rules: Rules,
        plan: Callable[[Sequence[Sample]], Step],
        groups_per_step: int,
        say: Say,
        tasks: Sequence[str] | None = None,
        lease_seconds: float = 900.0,
        poll_seconds: float = 2.0,
        stop_after_waiting: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.database = database
        self.consumer, self.holder = consumer, holder
        self.rules, self.plan, self.groups_per_step = rules, plan, groups_per_step
        self.tasks = tasks
        self.lease_seconds, self.poll_seconds, self.stop_after_waiting = lease_seconds, poll_seconds, stop_after_waiting
        self.stopping = False
        """Set from outside (a signal) to end training before the next step."""
        self.totals = Totals()
        self._say, self._sleep = say, sleep
        self._ready: list[PreparedGroup] = []
        self._current: list[PreparedGroup] = []
        self._pending: list[TrainedGroup] = []
        self._dropped: Counter[DropReason] = Counter()
        self._renewed = time.monotonic()
        self._waiting_since: float | None = None
        self._said = ""

    def start(self, trained: Sequence[TrainedGroup]) -> int:
        """Consume what the checkpoint that is resumed has trained, then give back what was leased besides.

        Returns how many groups were given back. Raises ``StoreUnavailable``.
        """
        self._pending = list(trained)
        self._consume_pending()
        with self.database.session() as session:
            return give_back(session, self.consumer, holder=self.holder)

    def take(self) -> Taken | Literal["wait", "end"]:
        if self.stopping:
            return "end"
        try:
            self._fill()
            if len(self._ready) < self.groups_per_step:
                return self._none_yet()
            with self.database.reading() as session:
                counts = count_groups(session, self.consumer, time.time(), tasks=self.tasks)
        except StoreUnavailable as error:
            self._say_once(f"waiting for the store: {error}")
            return "wait"
        self._waiting_since, self._said = None, ""
        self._current, self._ready = self._ready, []
        step = self.plan([sample for group in self._current for sample in group.samples])
        metrics = step_metrics(self._current, step)
        metrics["groups/waiting"] = float(counts.ready)
        metrics |= {f"dropped/{reason}": float(self._dropped[reason]) for reason in LOGGED_REASONS}
        self._dropped.clear()
        return Taken(step, metrics)

    def wait(self) -> None:
        self.keep()
        self._sleep(self.poll_seconds)

    def keep(self) -> None:
        """Renew the leases before they run out."""
        if time.monotonic() - self._renewed < self.lease_seconds / 4:
            return
        try:
            with self.database.session() as session:
                renew(session, self.consumer, holder=self.holder, now=time.time(), seconds=self.lease_seconds)
            self._renewed = time.monotonic()
        except StoreUnavailable as error:
            self._say(f"leases could not be renewed: {error}")

    def trained(self, step: int) -> None:
        for group in self._current:
            self._pending.append(TrainedGroup(group.group.row, step))
            self.totals.groups["trained"] += 1
            self.totals.episodes.update(group.episodes)
            self._count(group)
        self._current = []

    def failed(self, groups: tuple[int, ...], reason: str) -> None:
        """Set the named groups aside; the others of their step come again in the next one."""
        names = ", ".join(f"{one.group.task}/{one.group.name or one.group.row}" for one in self._current)
        self._say(f"step skipped: {reason}; groups {', '.join(map(str, groups))} are set aside (the step had {names})")
        for group in self._current:
            if group.group.row in groups:
                sampled = group.tokens.sampled
                tokens = type(group.tokens)(sampled, 0, {"group_not_finite": sampled})
                self._drop(DroppedGroup(group.group, "not_finite", reason, tokens))
            else:
                self._ready.append(group)
        self._current = []

    def checkpoint(self, folder: Path) -> None:
        """Make a checkpoint complete, and with it the consumption of what it has trained."""
        write_marker(folder, self._pending)
        try:
            self._consume_pending()
        except StoreUnavailable as error:
            self._say(f"trained groups stay leased until the next checkpoint: {error}")

    def close(self) -> None:
        """Give back what was leased and not trained."""
        try:
            with self.database.session() as session:
                give_back(session, self.consumer, holder=self.holder)
        except StoreUnavailable as error:
            self._say(f"leases end by themselves within {self.lease_seconds:.0f} s: {error}")

    def _fill(self) -> None:
        """Lease until a step is full or the store has no more."""
        while (missing := self.groups_per_step - len(self._ready)) > 0:
            now = time.time()
            with self.database.session() as session:
                versions, newest = version_numbers(session), newest_served(session)
                leased = lease_groups(
                    session,
                    self.consumer,
                    holder=self.holder,
                    limit=missing,
                    now=now,
                    seconds=self.lease_seconds,
                    tasks=self.tasks,
                )
            if not leased:
                return
            for group in leased:
                prepared = prepare_group(group, self.rules, versions, newest)
                if isinstance(prepared, DroppedGroup):
                    self._drop(prepared)
                else:
                    self._ready.append(prepared)

    def _drop(self, dropped: DroppedGroup) -> None:
        group = dropped.group
        self._dropped[dropped.reason] += 1
        self.totals.groups[dropped.reason] += 1
        self._count(dropped)
        if dropped.reason != "zero_variance":  # so common that it would drown the others
            self._say(f"group {group.task}/{group.name or group.row} set aside, {dropped.reason}: {dropped.detail}")
        try:
            with self.database.session() as session:
                reason = f"{dropped.reason}: {dropped.detail}"
                set_aside(session, self.consumer, group.row, reason, holder=self.holder, now=time.time())
        except (LeaseLost, StoreUnavailable) as error:
            self._say(f"group {group.row} could not be set aside: {error}")

    def _count(self, group: PreparedGroup | DroppedGroup) -> None:
        self.totals.sampled += group.tokens.sampled
        self.totals.trained += group.tokens.trained
        self.totals.excluded.update(group.tokens.excluded)

    def _none_yet(self) -> Literal["wait", "end"]:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if self.stop_after_waiting is not None and now - self._waiting_since >= self.stop_after_waiting:
            self._say(f"no more groups for {self.stop_after_waiting:.0f} s: training ends (stop_after_waiting)")
            return "end"
        with self.database.reading() as session:
            counts = count_groups(session, self.consumer, time.time(), tasks=self.tasks)
        self._say_once(
            f"waiting for groups: {len(self._ready)} of {self.groups_per_step} in hand, {counts.open} not complete "
            f"yet, {counts.set_aside} set aside so far; {counts.consumed + len(self._pending)} trained"
        )
        return "wait"

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._say(text)
            self._said = text

    def _consume_pending(self) -> None:
        """Raises ``StoreUnavailable``; nothing is forgotten then."""
        by_step: dict[int, list[int]] = {}
        for group in self._pending:
            by_step.setdefault(group.step, []).append(group.row)
        now = time.time()
        for step, rows in by_step.items():
            try:
                with self.database.session() as session:
                    consume(session, self.consumer, rows, holder=self.holder, now=now, step=step)
            except LeaseLost as error:
                self._say(f"trained, but not ours any more: {error}")
                for row in rows:
                    self._consume_alone(row, step, now)
        self._pending = []

    def _consume_alone(self, row: int, step: int, now: float) -> None:
        try:
            with self.database.session() as session:
                consume(session, self.consumer, [row], holder=self.holder, now=now, step=step)
        except LeaseLost:
            pass  # said already, of the whole step


def step_metrics(groups: Sequence[PreparedGroup], step: Step) -> dict[str, float]:
    """What is logged of a step before it is trained."""
    rewards = [reward for group in groups for reward in group.rewards]
    samples = [sample for group in groups for sample in group.samples]
    seen = sum(len(sample.token_ids) for sample in samples)
    trained = sum(group.tokens.trained for group in groups)
    return {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.fmean(statistics.stdev(group.rewards) for group in groups),
        "policy_lag": sum(group.mean_lag * group.tokens.trained for group in groups) / trained,
        "policy_lag/oldest": float(max(group.oldest_lag for group in groups)),
        "groups/trained": float(len(groups)),
        "episodes": float(len(rewards)),
        "traces": float(len(samples)),
        "tokens/seen": float(seen),
        "tokens/trained": float(trained),
        "tokens/padding": 1 - seen / padded_tokens(step),
    }
