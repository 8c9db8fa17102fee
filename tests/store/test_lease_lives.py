"""Whatever holders do and in whatever order: a lease lives as a simple model of it says, and nothing is done twice."""

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import text

from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode
from dragoman.store.errors import LeaseLost
from dragoman.store.groups import GroupCounts, settle_groups
from dragoman.store.leases import consume, count_groups, give_back, lease_groups, renew, set_aside
from dragoman.store.records import EpisodeSpec

RUNS = itertools.count()


def add_groups(database: Database, count: int, *, settled: bool = True) -> None:
    """Groups of one failed episode each, which are complete."""
    with database.session() as session:
        for n in range(count):
            episode_id = f"e{n}"
            open_episode(
                session,
                EpisodeSpec(task="t", group=f"g{n}", expected=1),
                episode_id=episode_id,
                token_hash=episode_id.encode().hex().rjust(64, "0"),
                now=float(n),
                expires_at=1e9,
            )
            end_episode(session, episode_id, "failed", reason=None, now=float(n))
        if settled:
            assert len(settle_groups(session, 0.0)) == count


HOLDERS = st.sampled_from(("ann", "bob", "cy"))
PLACES = st.integers(0, 3)
SECONDS = 10.0


class Lives(RuleBasedStateMachine):
    """``model``: group → (state, holder, expires_at); a group that is not in it is ready."""

    def __init__(self, database: Database, groups: list[int]) -> None:
        super().__init__()
        self.database, self.groups = database, groups
        self.run = f"run {next(RUNS)}"  # no other example has leased anything for it
        self.now = 0.0
        self.model: dict[int, tuple[str, str, float]] = {}

    def ready(self, group: int) -> bool:
        state, _, expires = self.model.get(group, ("leased", "", self.now))
        return state == "leased" and expires <= self.now

    @rule(seconds=st.sampled_from((1.0, 4.0, 10.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(holder=HOLDERS, limit=st.integers(0, 5))
    def leases(self, holder: str, limit: int) -> None:
        expected = [group for group in self.groups if self.ready(group)][:limit]
        with self.database.session() as session:
            found = lease_groups(session, self.run, holder=holder, limit=limit, now=self.now, seconds=SECONDS)
        assert [group.row for group in found] == expected
        self.model |= dict.fromkeys(expected, ("leased", holder, self.now + SECONDS))

    @rule(holder=HOLDERS)
    def renews(self, holder: str) -> None:
        mine = [group for group, (state, by, _) in self.model.items() if (state, by) == ("leased", holder)]
        with self.database.session() as session:
            assert renew(session, self.run, holder=holder, now=self.now, seconds=SECONDS) == len(mine)
        self.model |= dict.fromkeys(mine, ("leased", holder, self.now + SECONDS))

    @rule(holder=HOLDERS)
    def gives_back(self, holder: str) -> None:
        mine = [group for group, (state, by, _) in self.model.items() if (state, by) == ("leased", holder)]
        with self.database.session() as session:
            assert give_back(session, self.run, holder=holder) == len(mine)
        for group in mine:
            del self.model[group]

    @rule(holder=HOLDERS, places=st.lists(PLACES, max_size=3))
    def consumes(self, holder: str, places: list[int]) -> None:
        self.finish("consumed", holder, [self.groups[place] for place in places])

    @rule(holder=HOLDERS, place=PLACES)
    def sets_aside(self, holder: str, place: int) -> None:
        self.finish("set_aside", holder, [self.groups[place]])

    def finish(self, state: str, holder: str, groups: list[int]) -> None:
        may = all(
            by == holder and has in ("leased", state)
            for has, by, _ in (self.model.get(group, ("leased", holder, 0.0)) for group in groups)
        )
        try:
            with self.database.session() as session:
                if state == "consumed":
                    consume(session, self.run, groups, holder=holder, now=self.now, step=1)
                else:
                    set_aside(session, self.run, groups[0], "bad", holder=holder, now=self.now)
        except LeaseLost:
            assert not may
        else:
            assert may
            self.model |= dict.fromkeys(groups, (state, holder, 0.0))

    @invariant()
    def counts_agree(self) -> None:
        states = Counter(self.model[group][0] for group in self.groups if group in self.model and not self.ready(group))
        ready = sum(map(self.ready, self.groups))
        with self.database.reading() as session:
            found = count_groups(session, self.run, self.now)
        assert found == GroupCounts(0, ready, states["leased"], states["consumed"], states["set_aside"])


def test_leases_live_as_the_model_says(database: Database) -> None:
    add_groups(database, 4)
    with database.session() as session:
        rows = [g.row for g in lease_groups(session, "none", holder="h", limit=9, now=0.0, seconds=1.0)]
    run_state_machine_as_test(
        lambda: Lives(database, rows),  # type: ignore[arg-type]  # it takes any callable
        settings=settings(max_examples=30, stateful_step_count=30, deadline=None),
    )


WORKER = """
import json, sys
from dragoman.store.database import Database
from dragoman.store.leases import consume, lease_groups, renew
database = Database.open(sys.argv[1])
holder, dies = sys.argv[2], sys.argv[3] == "dies"
print("ready", flush=True)
sys.stdin.readline()
now, consumed, empty = 0.0, [], 0
while empty < 2:
    now += 1.0
    with database.session() as session:
        groups = [g.row for g in lease_groups(session, "run", holder=holder, limit=3, now=now, seconds=1e6)]
    empty = 0 if groups else empty + 1
    if dies and groups:
        sys.exit(0)
    for group in groups:
        with database.session() as session:
            renew(session, "run", holder=holder, now=now, seconds=1e6)
            consume(session, "run", [group], holder=holder, now=now, step=len(consumed))
        consumed.append(group)
print(json.dumps(consumed))
"""


def run_workers(url: str, *workers: str) -> list[list[int]]:
    """What each worker consumed, all at once; ``dies``: it leases, and is gone."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, f"holder {n}", how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n, how in enumerate(workers)
    ]
    for worker in started:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in started:  # all are waiting: now at once
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    found = []
    for worker, how in zip(started, workers, strict=True):
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        found.append(json.loads(out) if how == "lives" else [])
    return found


def test_processes_that_lease_at_once_consume_each_group_once(database: Database, store_url: str) -> None:
    add_groups(database, 60, settled=False)

    consumed = run_workers(store_url, *["lives"] * 3)

    every = [group for of_worker in consumed for group in of_worker]
    assert len(every) == len(set(every)) == 60
    with database.reading() as session:
        assert count_groups(session, "run", 0.0) == GroupCounts(0, 0, 0, 60, 0)


def test_what_a_dead_process_had_is_taken_over_when_its_lease_expires(database: Database, store_url: str) -> None:
    add_groups(database, 12)

    run_workers(store_url, "dies")
    run_workers(store_url, "lives")
    with database.session() as session:
        assert count_groups(session, "run", 0.0) == GroupCounts(0, 0, 3, 9, 0)
        late = lease_groups(session, "run", holder="next", limit=9, now=1e7, seconds=1.0)
        consume(session, "run", [group.row for group in late], holder="next", now=1e7, step=None)
        assert count_groups(session, "run", 1e7).consumed == 12


def test_each_group_is_settled_by_one(database: Database) -> None:
    add_groups(database, 20, settled=False)
    together = threading.Barrier(4)

    def settle(_: Any) -> list[int]:
        together.wait()
        with database.session() as session:
            return settle_groups(session, 1.0)

    with ThreadPoolExecutor(4) as pool:
        found = [row for rows in pool.map(settle, range(4)) for row in rows]
    with database.session() as session:
        found += settle_groups(session, 2.0)
    assert len(found) == len(set(found)) == 20


def test_an_episode_opened_meanwhile_keeps_its_group_open(postgres_url: str) -> None:
    """PostgreSQL only: SQLite has one writer. The group is locked by who opens, so settling passes it over."""
    database = Database.open(postgres_url)
    add_groups(database, 1, settled=False)
    with database.session() as opening:
        open_episode(
            opening,
            EpisodeSpec(task="t", group="g0"),
            episode_id="late",
            token_hash="f" * 64,
            now=1.0,
            expires_at=1e9,
        )
        with database.session() as settling:
            settling.execute(text("SET LOCAL lock_timeout = '5s'"))
            assert settle_groups(settling, 2.0) == []
    with database.session() as session:
        assert settle_groups(session, 3.0) == []
        end_episode(session, "late", "failed", reason=None, now=4.0)
        assert len(settle_groups(session, 5.0)) == 1
    database.close()
