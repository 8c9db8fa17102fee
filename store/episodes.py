"""Episodes: opened, ended and rewarded by whoever runs the agent.

Rules of this module: functions over a ``Session``; the caller owns the transaction, the clock and the ids. Each
function that changes something writes first and reads after, so that two processes cannot both win.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, cast, get_args

from sqlalchemy import Row, Select, func, insert, select, update
from sqlalchemy.orm import Session

from dragoman.store.database import insert_new, lock_out_pruning
from dragoman.store.errors import EpisodeEnded, EpisodeNotFound, GroupMismatch
from dragoman.store.models import Call, Credential, Episode, Group, Reward, Task, table_of
from dragoman.store.packing import clean_text
from dragoman.store.records import (
    CallStatus,
    CallSums,
    EpisodeEnd,
    EpisodeInfo,
    EpisodeSpec,
    EpisodeSummary,
    SamplingProfile,
)


def open_episode(
    session: Session, spec: EpisodeSpec, *, episode_id: str, token_hash: str, now: float, expires_at: float
) -> EpisodeInfo:
    """Open an episode, and its task and group when they are new.

    ``token_hash``: SHA-256 of the episode's token in lower-case hex. Within a group, ``expected`` must be the same
    whenever it is said, and the latest ``deadline`` holds. The returned spec shows what holds for the group.
    Raises ``ValueError`` for a spec that makes no sense, ``GroupMismatch`` for one that contradicts its group.
    """
    _check_spec(spec)
    if len(token_hash) != 64 or set(token_hash) - set("0123456789abcdef"):
        raise ValueError("token_hash is not a SHA-256 in lower-case hex")
    lock_out_pruning(session)
    group_row = None if spec.task is None else _open_group(session, spec.task, spec, now)
    row = {
        "id": episode_id,
        "group_row": group_row,
        "profile": spec.profile,
        "temperature": float(spec.temperature),
        "metadata": dict(spec.metadata),
        "opened_at": now,
    }
    if insert_new(session, table_of(Episode), [row]) == 0:
        raise ValueError(f"episode id {episode_id!r} is already used")
    credential = {"token_hash": token_hash, "episode_id": episode_id, "expires_at": expires_at}
    if insert_new(session, table_of(Credential), [credential]) == 0:
        raise ValueError(f"the token of episode {episode_id!r} is already used by another episode")
    return get_episode(session, episode_id)


def end_episode(session: Session, episode_id: str, end: EpisodeEnd, *, reason: str | None, now: float) -> EpisodeInfo:
    """End an episode. Doing it again with the same ``end`` changes nothing, not even the reason.

    Raises ``EpisodeNotFound``, and ``EpisodeEnded`` when it has ended in another way.
    """
    if end not in get_args(EpisodeEnd):
        raise ValueError(f"{end!r} is no end of an episode; it is one of {', '.join(get_args(EpisodeEnd))}")
    session.execute(
        update(Episode)
        .where(Episode.id == episode_id, Episode.end.is_(None))
        .values(end=end, end_reason=None if reason is None else clean_text(reason), ended_at=now)
        .execution_options(synchronize_session=False)
    )
    info = get_episode(session, episode_id)
    if info.end != end:
        raise EpisodeEnded(f"episode {episode_id!r} has already ended as {info.end!r}; it cannot become {end!r}")
    return info


def set_reward(
    session: Session, episode_id: str, reward: float, *, components: Mapping[str, float] | None, now: float
) -> EpisodeInfo:
    """Give an episode its reward, before or after its end. The last one counts; all are kept in ``rewards``.

    ``components``: named parts of the reward; ``None``: not broken down. Raises ``EpisodeNotFound``, and ``ValueError``
    for a number that is not finite.
    """
    parts = {name: _finite(value, f"reward component {name!r}") for name, value in (components or {}).items()}
    value = _finite(reward, "reward")
    found = session.execute(
        update(Episode)
        .where(Episode.id == episode_id)
        .values(reward=value)
        .returning(Episode.id)
        .execution_options(synchronize_session=False)
    ).all()
    if not found:
        raise _not_found(episode_id)
    session.execute(insert(table_of(Reward)).values(episode_id=episode_id, reward=value, components=parts, set_at=now))
    return get_episode(session, episode_id)


def find_by_token(session: Session, token_hash: str) -> EpisodeInfo | None:
    """The episode that a token opens, also when the token has expired or the episode has ended; ``None``: unknown."""
    row = session.execute(_select_episodes().where(Credential.token_hash == token_hash)).one_or_none()
    return None if row is None else _info(row)


def get_episode(session: Session, episode_id: str) -> EpisodeInfo:
    """Raises ``EpisodeNotFound``."""
    row = session.execute(_select_episodes().where(Episode.id == episode_id)).one_or_none()
    if row is None:
        raise _not_found(episode_id)
    return _info(row)


def read_group(session: Session, group_row: int) -> list[EpisodeInfo]:
    """The episodes of a group in the order in which they were opened; empty for a group that is not there."""
    query = _select_episodes().where(Episode.group_row == group_row).order_by(Episode.opened_at, Episode.row)
    return [_info(row) for row in session.execute(query)]


def list_episodes(session: Session, *, limit: int, task: str | None = None) -> list[EpisodeSummary]:
    """The ``limit`` episodes opened last, newest first, each with what its calls add up to. One query."""
    page = _select_episodes()
    if task is not None:
        page = page.where(Task.name == task)
    newest = page.order_by(Episode.opened_at.desc(), Episode.row.desc()).limit(limit).subquery()
    sums = (
        select(
            Call.episode_id,
            func.count().label("calls"),
            func.coalesce(func.sum(Call.prompt_len), 0).label("prompt_tokens"),
            func.coalesce(func.sum(Call.completion_len), 0).label("completion_tokens"),
        )
        .where(Call.episode_id.in_(select(newest.c.id)))
        .group_by(Call.episode_id)
        .subquery()
    )
    rows = session.execute(
        select(newest, sums.c.calls, sums.c.prompt_tokens, sums.c.completion_tokens)
        .outerjoin(sums, sums.c.episode_id == newest.c.id)
        .order_by(newest.c.opened_at.desc(), newest.c.row.desc())
    )
    return [
        EpisodeSummary(
            episode=_info(row),
            calls=int(row.calls or 0),
            prompt_tokens=int(row.prompt_tokens or 0),
            completion_tokens=int(row.completion_tokens or 0),
        )
        for row in rows
    ]


def sum_calls(session: Session, episode_id: str) -> CallSums:
    """What the calls of one episode add up to; all zero for an episode without calls."""
    rows = session.execute(
        select(Call.status, func.count(), func.sum(Call.prompt_len), func.sum(Call.completion_len))
        .where(Call.episode_id == episode_id)
        .group_by(Call.status)
        .order_by(Call.status)
    ).all()
    return CallSums(
        by_status={cast(CallStatus, status): count for status, count, _, _ in rows},
        prompt_tokens=sum(prompt or 0 for _, _, prompt, _ in rows),
        completion_tokens=sum(completion or 0 for _, _, _, completion in rows),
    )


def abandon_overdue_groups(session: Session, now: float) -> list[str]:
    """End the open episodes of every group past its deadline as ``abandoned``. Returns their ids, in no order.

    One that another transaction is ending at the moment is passed over.
    """
    overdue = select(Group.row).where(Group.deadline <= now)
    left = (
        select(Episode.row)
        .where(Episode.end.is_(None), Episode.group_row.in_(overdue))
        .with_for_update(skip_locked=True)
    )
    return list(
        session.scalars(
            update(Episode)
            .where(Episode.row.in_(left))
            .values(end="abandoned", end_reason="the deadline of its group has passed", ended_at=now)
            .returning(Episode.id)
            .execution_options(synchronize_session=False)
        )
    )


def _check_spec(spec: EpisodeSpec) -> None:
    if spec.task is None and (spec.group, spec.expected, spec.deadline) != (None, None, None):
        raise ValueError("group, expected and deadline need a task; name one")
    for name, text in (("task", spec.task), ("group", spec.group)):
        if text is not None and (not text or "\0" in text):
            raise ValueError(f"{name} {text!r} is empty or holds a NUL character")
    if spec.expected is not None and spec.expected < 1:
        raise ValueError(f"expected is {spec.expected}; a group has at least 1 episode")
    if spec.profile not in get_args(SamplingProfile):
        raise ValueError(f"profile {spec.profile!r} is not one of {', '.join(get_args(SamplingProfile))}")
    if _finite(spec.temperature, "temperature") < 0:
        raise ValueError(f"temperature is {spec.temperature}; it cannot be negative")
    if spec.deadline is not None:
        _finite(spec.deadline, "deadline")
    try:
        json.dumps(spec.metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata cannot be stored as JSON: {error}") from error


def _open_group(session: Session, task: str, spec: EpisodeSpec, now: float) -> int:
    """Row of the spec's group, made when it is new and held to what was said of it before."""
    insert_new(session, table_of(Task), [{"name": task}])
    task_row = session.execute(select(Task.row).where(Task.name == task)).scalar_one()
    said: dict[str, Any] = {"task_row": task_row, "expected": spec.expected, "deadline": spec.deadline}
    if spec.group is None:
        _check_deadline(task, spec, spec.deadline, now)
        inserted = session.execute(insert(table_of(Group)).values(name=None, **said).returning(Group.row))
        return inserted.scalar_one()
    insert_new(session, table_of(Group), [{"name": spec.group, **said}])
    group = session.execute(
        select(Group).where(Group.task_row == task_row, Group.name == spec.group).with_for_update()
    ).scalar_one()
    if spec.expected is not None and group.expected not in (None, spec.expected):
        raise GroupMismatch(
            f"group {spec.group!r} of task {task!r} was opened for {group.expected} episodes, not {spec.expected}; "
            "leave expected out, or name another group"
        )
    if group.completed_at is not None:
        raise GroupMismatch(f"group {spec.group!r} of task {task!r} is complete and takes no more; name another group")
    deadline = max((d for d in (group.deadline, spec.deadline) if d is not None), default=None)
    _check_deadline(task, spec, deadline, now)
    group.expected = group.expected if spec.expected is None else spec.expected
    group.deadline = deadline
    session.flush()
    return group.row


def _check_deadline(task: str, spec: EpisodeSpec, deadline: float | None, now: float) -> None:
    if deadline is not None and deadline <= now:
        raise GroupMismatch(
            f"the deadline of group {spec.group!r} of task {task!r} has passed; give a later one, or name another group"
        )


def _finite(value: float, what: str) -> float:
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{what} is {value!r}; a finite number is needed")
    return float(value)


def _not_found(episode_id: str) -> EpisodeNotFound:
    return EpisodeNotFound(f"there is no episode {episode_id!r} in this store")


def _select_episodes() -> "Select[*tuple[Any, ...]]":
    """Everything that ``_info`` reads. An episode has exactly one credential."""
    episode = (Episode.row, Episode.id, Episode.profile, Episode.temperature, Episode.details.label("details"))
    course = (Episode.opened_at, Episode.ended_at, Episode.end, Episode.end_reason, Episode.reward)
    group = (Group.name.label("group_name"), Group.expected, Group.deadline, Task.name.label("task_name"))
    return (
        select(*episode, *course, *group, Credential.expires_at)
        .join(Credential, Credential.episode_id == Episode.id)
        .outerjoin(Group, Group.row == Episode.group_row)
        .outerjoin(Task, Task.row == Group.task_row)
    )


def _info(row: Row[Any]) -> EpisodeInfo:
    return EpisodeInfo(
        id=row.id,
        spec=EpisodeSpec(
            task=row.task_name,
            group=row.group_name,
            expected=row.expected,
            deadline=row.deadline,
            profile=row.profile,
            temperature=row.temperature,
            metadata=row.details,
        ),
        opened_at=row.opened_at,
        expires_at=row.expires_at,
        ended_at=row.ended_at,
        end=row.end,
        end_reason=row.end_reason,
        reward=row.reward,
    )
