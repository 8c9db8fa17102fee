"""Groups: when one is complete, so that a trainer may have it.

Rules of this module: functions over a ``Session``; the caller owns the transaction and the clock. A group is complete
when ``expected`` episodes have ended otherwise than abandoned, each with a reward or with an end that needs none, and
no episode of it is still on its way; or when its deadline has passed, and then those that are missing count as
abandoned. A group without ``expected`` and without a deadline is never complete. Once found complete it stays so, and
takes no more episodes.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from dragoman.store.episodes import abandon_overdue_groups
from dragoman.store.models import Episode, Group

NEED_NO_REWARD = ("failed", "abandoned", "timed_out")
"""Ends that say themselves how the episode went."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How the groups of a store stand with one consumer. Each group is in one of them."""

    open: int
    """Not complete yet, or not yet found to be."""
    ready: int
    """Complete, and nobody has it; a lease that has expired counts here."""
    leased: int
    consumed: int
    set_aside: int


def settle_groups(session: Session, now: float) -> list[int]:
    """Mark groups that have become complete (``groups.completed_at``), abandoning what is overdue first.

    Returns the rows of these groups, in no order. Several processes may do this at once; each group is marked by one.
    """
    abandon_overdue_groups(session, now)
    complete = _complete(now)
    candidates = list(session.scalars(select(Group.row).where(complete)))
    if not candidates:
        return []
    # Locked before it is looked at again: an episode that was opened meanwhile held the lock, and is seen now.
    locked = list(session.scalars(select(Group.row).where(Group.row.in_(candidates)).with_for_update(skip_locked=True)))
    return list(
        session.scalars(
            update(Group)
            .where(Group.row.in_(locked), complete)
            .values(completed_at=now)
            .returning(Group.row)
            .execution_options(synchronize_session=False)
        )
    )


def _complete(now: float) -> ColumnElement[bool]:
    """Whether a group that is not marked is complete."""
    mine = Episode.group_row == Group.row
    unsettled = or_(Episode.end.is_(None), and_(Episode.end.not_in(NEED_NO_REWARD), Episode.reward.is_(None)))
    # An abandoned one may be run again, so before the deadline it counts for nothing.
    counts = or_(Episode.end.is_(None), Episode.end != "abandoned")
    number = select(func.count()).select_from(Episode).where(mine, counts).correlate(Group).scalar_subquery()
    full = and_(number >= Group.expected, ~exists().where(mine, unsettled))
    overdue = and_(Group.deadline <= now, ~exists().where(mine, Episode.end.is_(None)))
    return and_(Group.completed_at.is_(None), or_(full, overdue))
