"""Policies: the weights that a trainer has published, and what became of each in each engine.

Rules of this module: functions over a ``Session``; the caller owns the transaction and the clock. A trainer adds rows;
each gateway makes its engine follow the newest one and says here how that went. ``BASE`` is what an engine was started
with: it has no row, and its number is 0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from sqlalchemy import Row, Select, and_, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from dragoman.store.database import insert_new
from dragoman.store.models import Policy, PolicyLoad, table_of
from dragoman.store.packing import clean_text

PolicyKind = Literal["lora", "full"]
"""``lora``: a folder with an adapter, which the engine loads under the policy's version as its name. ``full``: a folder
with all weights, which take the place of the engine's own."""
LoadStatus = Literal["loading", "serving", "failed"]

BASE = "base"
STALE_LOAD = 20.0
"""Seconds without a sign of its gateway after which a load counts as given up: the gateway was killed."""
_VERSION = re.compile(r"policy-v([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    number: int
    """1 and up, in the order of publishing; greater is newer."""
    version: str
    """``policy-v<number>``: the label of the tokens that it samples."""
    kind: PolicyKind
    path: str
    """The folder of its weights, as the engine's machine sees it."""
    parent: str | None
    """The version that it was trained from; ``None``: not said."""
    run: str | None
    """Name of the training run; ``None``: published by hand."""
    step: int | None
    """Optimizer steps of the run until then."""
    metrics: Mapping[str, float]
    created_at: float


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """What became of a policy in one engine."""

    engine: str
    """Its address, as the gateway knows it."""
    status: LoadStatus
    reason: str | None
    """Why it failed."""
    at: float


def version_name(number: int) -> str:
    return BASE if number == 0 else f"policy-v{number}"


def version_number(version: str) -> int | None:
    """The number of a version; ``None``: it is no version of ours."""
    if version == BASE:
        return 0
    found = _VERSION.fullmatch(version)
    return None if found is None else int(found[1])


def add_policy(
    session: Session,
    *,
    kind: PolicyKind,
    path: Path,
    parent: str | None,
    run: str | None,
    step: int | None,
    metrics: Mapping[str, float],
    now: float,
) -> PolicyInfo:
    """Publish the weights in ``path`` under the next version. Gateways on this store pick them up by themselves.

    Raises ``ValueError`` for a path that is not absolute, and for a kind that there is not.
    """
    if kind not in get_args(PolicyKind):
        raise ValueError(f"{kind!r} is no kind of policy; it is one of {', '.join(get_args(PolicyKind))}")
    if not path.is_absolute():
        raise ValueError(f"the policy's folder {str(path)!r} is not absolute; an engine could not find it")
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE policies IN SHARE ROW EXCLUSIVE MODE"))  # two trainers, one next number
    number = (session.scalar(select(func.max(Policy.number))) or 0) + 1
    values = {
        "number": number,
        "kind": kind,
        "path": str(path),
        "parent": parent,
        "run": run,
        "step": step,
        "metrics": {name: float(value) for name, value in metrics.items()},
        "created_at": now,
    }
    session.execute(insert(table_of(Policy)).values(**values))
    policy = get_policy(session, number)
    assert policy is not None
    return policy


def get_policy(session: Session, number: int) -> PolicyInfo | None:
    """``None``: no policy has that number."""
    row = session.execute(_select_policies().where(Policy.number == number)).one_or_none()
    return None if row is None else _info(row)


def list_policies(session: Session, *, limit: int) -> list[tuple[PolicyInfo, tuple[LoadInfo, ...]]]:
    """The newest first, each with its loads."""
    rows = session.execute(_select_policies().order_by(Policy.number.desc()).limit(limit)).all()
    return [(info, list_loads(session, info.number)) for info in map(_info, rows)]


def newest_policy(session: Session, engine: str) -> PolicyInfo | None:
    """What the engine at this address should serve: the newest policy that it has not failed to load; ``None``: the
    weights that it was started with."""
    failed = and_(PolicyLoad.policy == Policy.number, PolicyLoad.engine == engine, PolicyLoad.status == "failed")
    row = session.execute(
        _select_policies().where(~select(PolicyLoad.row).where(failed).exists()).order_by(Policy.number.desc()).limit(1)
    ).one_or_none()
    return None if row is None else _info(row)


def list_loads(session: Session, number: int) -> tuple[LoadInfo, ...]:
    """What became of a policy, by engine; empty: no gateway has picked it up."""
    columns = (PolicyLoad.engine, PolicyLoad.status, PolicyLoad.reason, PolicyLoad.at)
    rows = session.execute(select(*columns).where(PolicyLoad.policy == number).order_by(PolicyLoad.engine))
    return tuple(LoadInfo(row.engine, cast(LoadStatus, row.status), row.reason, row.at) for row in rows)


def claim_load(session: Session, number: int, engine: str, *, now: float) -> bool:
    """Say that this gateway is about to load a policy. False: another one is at it, so wait for what it says.

    Two gateways that reload one engine at once would let it sample from half of each.
    """
    claim = {"policy": number, "engine": engine, "status": "loading", "reason": None, "at": now}
    if insert_new(session, table_of(PolicyLoad), [claim]):
        return True
    taken = session.execute(
        update(PolicyLoad)
        .where(
            PolicyLoad.policy == number,
            PolicyLoad.engine == engine,
            or_(PolicyLoad.status != "loading", PolicyLoad.at < now - STALE_LOAD),
        )
        .values(status="loading", reason=None, at=now)
        .returning(PolicyLoad.row)
        .execution_options(synchronize_session=False)
    ).all()
    return bool(taken)


def touch_load(session: Session, number: int, engine: str, *, now: float) -> None:
    """A sign that a claimed load is still under way."""
    _update_load(session, number, engine, at=now)


def drop_load(session: Session, number: int, engine: str) -> None:
    """Give a claim back: nothing was tried."""
    session.execute(
        delete(PolicyLoad)
        .where(PolicyLoad.policy == number, PolicyLoad.engine == engine)
        .execution_options(synchronize_session=False)
    )


def finish_load(
    session: Session, number: int, engine: str, status: LoadStatus, *, reason: str | None, now: float
) -> None:
    """Say how a claimed load ended."""
    _update_load(session, number, engine, status=status, reason=None if reason is None else clean_text(reason), at=now)


def newest_of_run(session: Session, run: str, *, served: bool = False) -> PolicyInfo | None:
    """The newest policy of a training run; ``served``: of those that an engine serves or has served; ``None``: none."""
    query = _select_policies().where(Policy.run == run).order_by(Policy.number.desc()).limit(1)
    if served:
        loads = select(PolicyLoad.policy).where(PolicyLoad.status == "serving")
        query = query.where(Policy.number.in_(loads))
    row = session.execute(query).one_or_none()
    return None if row is None else _info(row)


def newest_served(session: Session) -> int:
    """The number of the newest policy that some engine serves or has served; 0: none has."""
    return session.scalar(select(func.max(PolicyLoad.policy)).where(PolicyLoad.status == "serving")) or 0


def version_numbers(session: Session) -> dict[str, int]:
    """The number of every version that there is, ``base`` (0) included."""
    numbers = session.scalars(select(Policy.number).order_by(Policy.number))
    return {BASE: 0} | {version_name(number): number for number in numbers}


def _update_load(session: Session, number: int, engine: str, **values: Any) -> None:
    session.execute(
        update(PolicyLoad)
        .where(PolicyLoad.policy == number, PolicyLoad.engine == engine)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def _select_policies() -> "Select[*tuple[Any, ...]]":
    """Everything that ``_info`` reads."""
    weights = (Policy.number, Policy.kind, Policy.path, Policy.parent)
    return select(*weights, Policy.run, Policy.step, Policy.metrics, Policy.created_at)


def _info(row: Row[Any]) -> PolicyInfo:
    return PolicyInfo(
        number=row.number,
        version=version_name(row.number),
        kind=cast(PolicyKind, row.kind),
        path=row.path,
        parent=row.parent,
        run=row.run,
        step=row.step,
        metrics=row.metrics,
        created_at=row.created_at,
    )
