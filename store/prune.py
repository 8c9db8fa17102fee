"""Deleting old episodes with everything of theirs, and what is left without an owner then.

Rules of this module: functions over a ``Session``; the caller owns the transaction and the clock. An episode goes whole
or not at all. Messages are shared between episodes, so they go last, when no call of any episode refers to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, delete, exists, func, literal, select, text
from sqlalchemy.orm import Session

from dragoman.store.call_rows import split_digests
from dragoman.store.database import Database, lock_out_writers
from dragoman.store.errors import EpisodeNotFound
from dragoman.store.models import (
    Base,
    Call,
    Credential,
    Episode,
    Group,
    Lease,
    ReplyState,
    Reward,
    StoredArtefact,
    StoredBlob,
    Task,
    table_of,
)

CHUNK = 500
"""Values in one ``IN`` list."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which ended episodes are deleted."""

    ended_before: float
    """Unix seconds. An open episode has not ended, however old it is."""
    keep_best: int = 0
    """How many episodes of each task are kept whatever their age: those of the highest reward, and of two with the same
    reward the newer. Episodes without a task or a reward are none of the best."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """An episode that is to be deleted."""

    id: str
    task: str | None
    opened_at: float
    end: str | None
    """``None``: it is open."""
    reward: float | None
    calls: int
    bytes: int
    """Of its calls' token arrays and its artefacts; its messages, which others may share, are not counted."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """What was left without an owner, and was deleted."""

    blobs: int
    groups: int
    tasks: int


def find_old(session: Session, rule: Rule) -> list[Doomed]:
    """The episodes that a rule deletes, those that ended first before the others.

    Raises ``ValueError`` for a rule that makes no sense.
    """
    if rule.keep_best < 0:
        raise ValueError(f"keep_best is {rule.keep_best}; it cannot be negative")
    ids = session.scalars(_old(rule).order_by(Episode.ended_at, Episode.row)).all()
    return describe(session, ids)


def describe(session: Session, episode_ids: Sequence[str]) -> list[Doomed]:
    """These episodes, in their order. Raises ``EpisodeNotFound``."""
    calls, artefacts = table_of(Call).c, table_of(StoredArtefact).c
    packed = sum(func.coalesce(func.length(calls[name]), 0) for name in ("prompt_ids", "completion_ids", "logprobs"))
    found: dict[str, Doomed] = {}
    for chunk in _chunks(episode_ids):
        sums = select(calls.episode_id, func.count(), func.sum(packed)).where(calls.episode_id.in_(chunk))
        of_calls = {row[0]: (row[1], int(row[2])) for row in session.execute(sums.group_by(calls.episode_id))}
        sums = select(artefacts.episode_id, literal(0), func.sum(func.length(artefacts.data))).where(
            artefacts.episode_id.in_(chunk)
        )
        left = {row[0]: int(row[2]) for row in session.execute(sums.group_by(artefacts.episode_id))}
        rows = session.execute(
            select(Episode.id, Task.name, Episode.opened_at, Episode.end, Episode.reward)
            .outerjoin(Group, Group.row == Episode.group_row)
            .outerjoin(Task, Task.row == Group.task_row)
            .where(Episode.id.in_(chunk))
        )
        for row in rows:
            count, size = of_calls.get(row.id, (0, 0))
            found[row.id] = Doomed(*row, count, size + left.get(row.id, 0))
    for missing in (episode_id for episode_id in episode_ids if episode_id not in found):
        raise EpisodeNotFound(f"there is no episode {missing!r} in this store; name it by its whole id")
    return [found[episode_id] for episode_id in episode_ids]


def delete_old(session: Session, rule: Rule, episode_ids: Sequence[str]) -> list[str]:
    """Delete those of these episodes that the rule still deletes: one may have got a better reward since.

    Returns their ids.
    """
    lock_out_writers(session)
    return _delete(session, _old(rule).where(Episode.id.in_(episode_ids)))


def delete_episode(session: Session, episode_id: str) -> bool:
    """Delete an episode, open or not. Returns False when it is not there."""
    lock_out_writers(session)
    return bool(_delete(session, select(Episode.id).where(Episode.id == episode_id)))


def delete_orphans(session: Session) -> Orphans:
    """Delete blobs that no call refers to, groups without episodes and tasks without groups.

    It reads which blobs each call of the whole store refers to. On PostgreSQL the gateways' writing waits meanwhile.
    """
    lock_out_writers(session)
    calls = table_of(Call).c
    used: set[bytes] = set()
    for row in session.connection().execute(select(calls.messages, calls.tools, calls.reply)).yield_per(1000):
        used.update(split_digests(row.messages), (address for address in row[1:] if address is not None))
    orphans = [address for address in session.scalars(select(StoredBlob.digest)) if address not in used]
    for chunk in _chunks(orphans):
        session.execute(delete(table_of(StoredBlob)).where(StoredBlob.digest.in_(chunk)))
    empty = select(Group.row).where(~exists().where(Episode.group_row == Group.row))
    session.execute(delete(table_of(Lease)).where(Lease.group_row.in_(empty)))
    groups = session.execute(delete(table_of(Group)).where(Group.row.in_(empty)))
    tasks = session.execute(delete(table_of(Task)).where(~exists().where(Group.task_row == Task.row)))
    return Orphans(len(orphans), groups.rowcount, tasks.rowcount)  # type: ignore[attr-defined]


def give_back_space(database: Database) -> None:
    """Let the database give up the room of what was deleted, by ``VACUUM``. Raises ``StoreUnavailable``.

    SQLite writes its file anew, which needs as much disk space again for that time, and the write lock; with
    ``empty_log`` after it, no byte of what was deleted is left. PostgreSQL frees the room for new rows only, and its
    own log and backups keep what they have.
    """
    with database.outside_transactions() as connection:
        tables = "" if connection.dialect.name == "sqlite" else ", ".join(Base.metadata.tables)
        connection.execute(text(f"VACUUM {tables}"))


def empty_log(database: Database) -> bool:
    """Empty SQLite's write-ahead log into its file. Returns False when a reader still needed it: some is left then."""
    with database.outside_transactions() as connection:
        if connection.dialect.name != "sqlite":
            return True
        busy, *_ = connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()
        return not busy


def _old(rule: Rule) -> "Select[str]":
    """Ids of the ended episodes that a rule deletes."""
    place = func.row_number().over(
        partition_by=Group.task_row, order_by=(Episode.reward.desc(), Episode.ended_at.desc(), Episode.row.desc())
    )
    ranked = (
        select(Episode.id, place.label("place"))
        .join(Group, Group.row == Episode.group_row)
        .where(Episode.reward.is_not(None), Episode.end.is_not(None))
        .subquery()
    )
    best = select(ranked.c.id).where(ranked.c.place <= rule.keep_best)
    old = select(Episode.id).where(Episode.end.is_not(None), Episode.ended_at < rule.ended_before)
    return old.where(Episode.id.not_in(best)) if rule.keep_best else old


def _delete(session: Session, which: "Select[str]") -> list[str]:
    """Delete episodes and all rows that refer to them. Locked first, so that nobody rewards or ends one meanwhile."""
    ids = list(session.scalars(select(Episode.id).where(Episode.id.in_(which)).with_for_update()))
    calls = select(Call.id).where(Call.episode_id.in_(ids))
    session.execute(delete(table_of(ReplyState)).where(ReplyState.call_id.in_(calls)))
    for model in (Call, StoredArtefact, Reward, Credential):  # a call's parent is of its episode: all go at once
        table = table_of(model)
        session.execute(delete(table).where(table.c.episode_id.in_(ids)))
    session.execute(delete(table_of(Episode)).where(Episode.id.in_(ids)))
    return ids


def _chunks(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[at : at + CHUNK] for at in range(0, len(values), CHUNK)]
