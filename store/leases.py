"""Leases: which process of a training run has which complete group.

Rules of this module: functions over a ``Session`` that writes; the caller owns the transaction and the clock. A
consumer is a training run, by its name; it has each group at most once. A holder is one process of it, which keeps its
leases by ``renew`` and loses them to the next that asks once they have expired. Consumed and set aside are for good.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from dragoman.store.calls import read_calls_of
from dragoman.store.database import lock_out_pruning
from dragoman.store.episodes import read_group
from dragoman.store.errors import LeaseLost, StoreError
from dragoman.store.groups import GroupCounts, settle_groups
from dragoman.store.models import Group, Lease, Task, table_of
from dragoman.store.packing import clean_text
from dragoman.store.records import CallInfo, EpisodeInfo

LeaseState = Literal["leased", "consumed", "set_aside"]


@dataclass(frozen=True, slots=True)
class LeasedEpisode:
    info: EpisodeInfo
    calls: tuple[CallInfo, ...]
    """In the order in which they arrived."""


@dataclass(frozen=True, slots=True)
class LeasedGroup:
    """A complete group, read whole: the abandoned and failed episodes too."""

    row: int
    """What the group is called in ``consume`` and ``set_aside``."""
    task: str
    name: str | None
    """``None``: the group of one episode that named none."""
    completed_at: float
    episodes: tuple[LeasedEpisode, ...]
    """In the order in which they were opened."""


def lease_groups(
    session: Session,
    consumer: str,
    *,
    holder: str,
    limit: int,
    now: float,
    seconds: float,
    tasks: Sequence[str] | None = None,
) -> list[LeasedGroup]:
    """Lease and read up to ``limit`` groups until ``now + seconds``, those that became complete first before others.

    It settles groups first (``settle_groups``), and takes over leases that have expired. Groups that another
    transaction is leasing at the moment are passed over, so fewer than there are may come. A group that cannot be read
    is set aside with its reason, and the rest goes on. ``tasks``: names; ``None``: of any task.
    """
    lock_out_pruning(session)
    settle_groups(session, now)
    found: list[LeasedGroup] = []
    while len(found) < limit:
        candidates = _candidates(session, consumer, limit - len(found), now, tasks)
        if not candidates:
            break
        for row in _take(session, consumer, candidates, holder=holder, now=now, until=now + seconds):
            try:
                found.append(_read(session, row))
            except (StoreError, TypeError, ValueError) as error:
                set_aside(session, consumer, row, f"it cannot be read: {error}", holder=holder, now=now)
    return found


def renew(session: Session, consumer: str, *, holder: str, now: float, seconds: float) -> int:
    """Let all leases of a holder last until ``now + seconds``. Returns how many it still has.

    One that has expired and that nobody has taken over is its own again.
    """
    mine = _of_holder(consumer, holder)
    return len(
        session.execute(
            update(Lease)
            .where(mine)
            .values(expires_at=now + seconds)
            .returning(Lease.group_row)
            .execution_options(synchronize_session=False)
        ).all()
    )


def consume(
    session: Session, consumer: str, groups: Sequence[int], *, holder: str, now: float, step: int | None
) -> None:
    """Mark groups as consumed, all or none of them. Doing it again as the same holder changes nothing.

    One that nobody has leased (it was given back) is consumed too: the caller knows that it was used. ``step``: the
    optimizer step; ``None``: not said. Raises ``LeaseLost`` when another holder has one of the groups or has done with
    it, or when it was set aside; end the transaction then.
    """
    _finish(session, consumer, groups, "consumed", holder=holder, now=now, step=step, reason=None)


def set_aside(session: Session, consumer: str, group: int, reason: str, *, holder: str, now: float) -> None:
    """Drop a group for good, with its reason. Again as the same holder: nothing changes. Raises as ``consume``."""
    _finish(session, consumer, [group], "set_aside", holder=holder, now=now, step=None, reason=clean_text(reason))


def give_back(session: Session, consumer: str, *, holder: str) -> int:
    """End all leases of a holder, so that its groups are ready again. Returns how many there were."""
    given = delete(Lease).where(_of_holder(consumer, holder)).returning(Lease.group_row)
    return len(session.execute(given.execution_options(synchronize_session=False)).all())


def count_groups(session: Session, consumer: str, now: float, *, tasks: Sequence[str] | None = None) -> GroupCounts:
    """How the groups of these tasks (``None``: of all) stand with a consumer. Only reads."""
    state = case(
        (Group.completed_at.is_(None), "open"),
        (or_(Lease.state.is_(None), _expired(now)), "ready"),
        else_=Lease.state,
    )
    query = select(state.label("state")).select_from(Group).outerjoin(Lease, _lease_of_group(consumer))
    if tasks is not None:
        query = query.where(_of_tasks(tasks))
    states = query.subquery()
    rows = session.execute(select(states.c.state, func.count()).group_by(states.c.state))
    counts: dict[str, int] = {row[0]: row[1] for row in rows}
    return GroupCounts(*(counts.get(name, 0) for name in ("open", "ready", "leased", "consumed", "set_aside")))


def _candidates(session: Session, consumer: str, limit: int, now: float, tasks: Sequence[str] | None) -> list[int]:
    """Rows of groups that may be leased, locked on PostgreSQL: no other lessor sees them until this ends."""
    query = (
        select(Group.row)
        .outerjoin(Lease, _lease_of_group(consumer))
        .where(Group.completed_at.is_not(None), or_(Lease.state.is_(None), _expired(now)))
        .order_by(Group.completed_at, Group.row)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Group)
    )
    if tasks is not None:
        query = query.where(_of_tasks(tasks))
    return list(session.scalars(query))


def _take(
    session: Session, consumer: str, groups: Sequence[int], *, holder: str, now: float, until: float
) -> list[int]:
    """Lease those of the groups that nobody has leased since they were looked up. Returns their rows, in order."""
    table = table_of(Lease)
    sqlite_dialect = session.connection().dialect.name == "sqlite"
    insert = (sqlite.insert if sqlite_dialect else postgresql.insert)(table)
    values = {"consumer": consumer, "state": "leased", "holder": holder, "expires_at": until, "at": now}
    insert = insert.values([{"group_row": group, **values} for group in groups])
    # Its own condition, seen under the row's lock: a lease may have been committed after the groups were looked up.
    taken = insert.on_conflict_do_update(
        index_elements=["group_row", "consumer"],
        set_={name: insert.excluded[name] for name in ("holder", "expires_at", "at")},
        where=and_(table.c.state == "leased", table.c.expires_at <= now),
    )
    mine = set(session.connection().execute(taken.returning(table.c.group_row)).scalars())
    return [group for group in groups if group in mine]


def _read(session: Session, group_row: int) -> LeasedGroup:
    group = session.execute(
        select(Group.name, Group.completed_at, Task.name.label("task"))
        .join(Task, Task.row == Group.task_row)
        .where(Group.row == group_row)
    ).one()
    infos = read_group(session, group_row)
    calls = read_calls_of(session, [info.id for info in infos])
    episodes = tuple(LeasedEpisode(info, tuple(calls[info.id])) for info in infos)
    return LeasedGroup(group_row, group.task, group.name, group.completed_at, episodes)


def _finish(
    session: Session, consumer: str, groups: Sequence[int], state: LeaseState, *, holder: str, now: float, **said: Any
) -> None:
    if not groups:
        return
    lock_out_pruning(session)
    session.execute(select(Group.row).where(Group.row.in_(groups)).order_by(Group.row).with_for_update())
    query = select(Lease.group_row, Lease.state, Lease.holder)
    query = query.where(Lease.consumer == consumer, Lease.group_row.in_(groups))
    there = {row.group_row: (row.state, row.holder) for row in session.execute(query)}
    for group in groups:
        has, by = there.get(group, ("leased", holder))
        if by != holder or has not in ("leased", state):
            raise LeaseLost(
                f"group {group} is no longer leased to {holder!r} by {consumer!r}: it is {has} by {by!r}. "
                "Its lease had expired; lease for longer, or renew more often"
            )
    values = {"state": state, "expires_at": None, "at": now, **said}
    session.execute(
        update(Lease)
        .where(Lease.consumer == consumer, Lease.group_row.in_(groups), Lease.state == "leased")
        .values(values)
        .execution_options(synchronize_session=False)
    )
    new = [group for group in dict.fromkeys(groups) if group not in there]
    session.add_all(Lease(group_row=group, consumer=consumer, holder=holder, **values) for group in new)
    session.flush()


def _of_tasks(tasks: Sequence[str]) -> ColumnElement[bool]:
    return Group.task_row.in_(select(Task.row).where(Task.name.in_(tasks)))


def _of_holder(consumer: str, holder: str) -> ColumnElement[bool]:
    return and_(Lease.consumer == consumer, Lease.holder == holder, Lease.state == "leased")


def _lease_of_group(consumer: str) -> ColumnElement[bool]:
    return and_(Lease.group_row == Group.row, Lease.consumer == consumer)


def _expired(now: float) -> ColumnElement[bool]:
    return and_(Lease.state == "leased", Lease.expires_at <= now)
