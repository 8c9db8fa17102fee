"""Calls: written in batches by the recorder, read back whole.

Rules of this module: functions over a ``Session``; the caller owns the transaction. Writing is idempotent, and one bad
record never keeps the others of its batch from being written: each record gets its own answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import ColumnElement, Executable, Row, Table, bindparam, func, literal, null, select, update
from sqlalchemy.orm import Session, aliased

from dragoman.store.call_rows import (
    OUTCOME_COLUMNS,
    Values,
    arrival_values,
    call_info,
    outcome_blobs,
    outcome_values,
    split_digests,
)
from dragoman.store.database import insert_new, lock_out_pruning
from dragoman.store.errors import CallNotFound, StoreError
from dragoman.store.models import Call, Episode, ReplyState, StoredBlob, table_of
from dragoman.store.packing import DIGEST_LENGTH, digest, pack_text, unpack_ids, unpack_text
from dragoman.store.records import CallArrival, CallInfo, CallOutcome, JsonObject, TokenIds

CALLS: Table = table_of(Call)
BLOBS: Table = table_of(StoredBlob)
STATES: Table = table_of(ReplyState)
CHUNK = 500
"""Values in one ``IN`` list; both databases allow thousands."""
Record = TypeVar("Record", CallArrival, CallOutcome)

GATEWAY_KILLED = "gateway_killed"
SET_ASIDE = "set_aside"
"""``error_code`` of a call whose outcome could not be stored; its reason is beside it, the outcome in the outbox."""
REPLACED = (GATEWAY_KILLED, SET_ASIDE)
"""Ends that stand in for one that is not there, and give way to it when it comes."""


def _select_where_in(column: ColumnElement[Any], *columns: ColumnElement[Any]) -> Executable:
    return select(*columns).where(column.in_(bindparam("some", expanding=True)))


# Statements that every batch needs, built once: building them anew took half of the recorder's time.
_EPISODES = table_of(Episode).c
_KNOWN_EPISODES = _select_where_in(_EPISODES.id, _EPISODES.id)
_KNOWN_CALLS = _select_where_in(CALLS.c.id, CALLS.c.id, CALLS.c.episode_id, CALLS.c.arrived_at)
_KNOWN_STATES = _select_where_in(
    CALLS.c.id,
    *(CALLS.c[name] for name in ("row", "id", "episode_id", "status", "error_code", "finished_at")),
    *(CALLS.c[name] for name in ("prompt_len", "completion_len")),
    CALLS.c.prompt_ids.is_not(None).label("has_prompt"),
    (func.coalesce(CALLS.c.messages_kept, 0) + func.coalesce(func.length(CALLS.c.messages), 0) // DIGEST_LENGTH).label(
        "messages_count"
    ),
)
_KNOWN_BLOBS = _select_where_in(BLOBS.c.digest, BLOBS.c.digest)
_READ_BLOBS = _select_where_in(BLOBS.c.digest, BLOBS.c.digest, BLOBS.c.data)
_SAID = ("messages", "tools", "reply")
_STREAM_COLUMNS = [null().label(column.name) if column.name in _SAID else column for column in CALLS.columns]
_COMPLETE = (
    update(CALLS).where(CALLS.c.row == bindparam("at_row")).values({name: bindparam(name) for name in OUTCOME_COLUMNS})
)


def write_arrivals(session: Session, arrivals: Sequence[CallArrival]) -> list[ValueError | None]:
    """Write a row for each call that has arrived. A call that is there already is left as it is.

    The answers align with ``arrivals``: ``None``: the row is there; an error, naming the call: this one is refused (a
    wrong value, an unknown episode, an id that another call has), and the others are written all the same.
    """
    answers, valid = _check_alone(arrivals, arrival_values)
    if not valid:
        return answers
    lock_out_pruning(session)
    rows_there = _find(session, _KNOWN_CALLS, [arrival.id for _, arrival, _ in valid])
    known = {row.id: (row.episode_id, row.arrived_at) for row in rows_there}
    named = [arrival.episode_id for _, arrival, _ in valid]
    episodes = {row.id for row in _find(session, _KNOWN_EPISODES, named)}
    rows: list[Values] = []
    for at, arrival, values in valid:
        identity = (arrival.episode_id, arrival.arrived_at)
        if arrival.episode_id not in episodes:
            answers[at] = ValueError(f"call {arrival.id!r}: there is no episode {arrival.episode_id!r}")
        elif known.setdefault(arrival.id, identity) != identity:
            answers[at] = ValueError(f"call {arrival.id!r}: another call has this id")
        else:
            rows.append(values)
    insert_new(session, CALLS, rows)
    return answers


def write_outcomes(session: Session, outcomes: Sequence[CallOutcome]) -> list[ValueError | None]:
    """Complete the rows of calls that have ended, and store what they said. The same outcome again changes nothing.

    The answers align with ``outcomes``, as in ``write_arrivals``. Refused are wrong values (``call_rows``), a call that
    has not arrived or has ended otherwise, and a parent that cannot give ``shared_len`` tokens. An outcome that comes
    after ``close_open_calls`` has given up its call, or after it was set aside, replaces that.
    """
    answers, valid = _check_alone(outcomes, outcome_values)
    if not valid:
        return answers
    lock_out_pruning(session)
    named = [call_id for _, o, _ in valid for call_id in (o.id, o.parent_id) if call_id is not None]
    stored = {row.id: dict(row._mapping) for row in _find(session, _KNOWN_STATES, named)}
    sent = [blob.digest for _, outcome, _ in valid for blob in outcome_blobs(outcome)]
    have = {row.digest for row in _find(session, _KNOWN_BLOBS, sent)}
    rows: list[Values] = []
    blobs: list[Values] = []
    states: list[Values] = []
    for at, outcome, values in valid:
        try:
            if not _check_state(outcome, stored):
                continue
            new_blobs = _pack_blobs(outcome, have)
        except ValueError as error:
            answers[at] = error
            continue
        have.update(new_blobs)
        blobs += [{"digest": address, "data": data} for address, data in new_blobs.items()]
        count = outcome.messages_kept + len(outcome.messages)
        stored[outcome.id] |= {**values, "has_prompt": values["prompt_ids"] is not None, "messages_count": count}
        rows.append({**values, "at_row": stored[outcome.id]["row"]})
        if outcome.state is not None:
            states.append({"call_id": outcome.id, "state": outcome.state})
    insert_new(session, BLOBS, blobs)
    if rows:
        session.connection().execute(_COMPLETE, rows)
    insert_new(session, STATES, states)
    return answers


def read_call(session: Session, call_id: str) -> CallInfo | None:
    """``None``: no call has that id."""
    call = session.connection().execute(select(CALLS).where(CALLS.c.id == call_id)).one_or_none()
    return None if call is None else _decode(session, [call])[0]


def read_calls(session: Session, episode_id: str) -> list[CallInfo]:
    """The calls of an episode in the order in which they arrived; empty for an unknown episode."""
    query = select(CALLS).where(CALLS.c.episode_id == episode_id).order_by(CALLS.c.arrived_at, CALLS.c.row)
    return _decode(session, session.connection().execute(query).all())


def read_streams(session: Session, episode_id: str) -> list[CallInfo]:
    """As ``read_calls``, but without messages, tools and replies: all that traces are built of, sooner."""
    query = select(*_STREAM_COLUMNS).where(CALLS.c.episode_id == episode_id).order_by(CALLS.c.arrived_at, CALLS.c.row)
    return [call_info(row, {}) for row in session.connection().execute(query)]


def read_calls_of(session: Session, episode_ids: Sequence[str]) -> dict[str, list[CallInfo]]:
    """Episode id → its calls as ``read_calls`` gives them, for several episodes at once; each of the ids is there."""
    query = select(CALLS).where(CALLS.c.episode_id.in_(episode_ids)).order_by(CALLS.c.arrived_at, CALLS.c.row)
    found: dict[str, list[CallInfo]] = {episode_id: [] for episode_id in episode_ids}
    for call in _decode(session, session.connection().execute(query).all()):
        found[call.arrival.episode_id].append(call)
    return found


def read_state(session: Session, call_id: str) -> JsonObject | None:
    """``CallOutcome.state`` as it was written; ``None``: it has none, or there is no such call."""
    return session.scalars(select(ReplyState.state).where(ReplyState.call_id == call_id)).one_or_none()


def read_messages(session: Session, call_id: str) -> list[bytes]:
    """All messages of a call's request as JSON, in order; empty while it is open. Raises ``CallNotFound``."""
    parent = aliased(Call)
    chain = (
        select(Call.row, Call.parent_id, Call.messages_kept, literal(0).label("depth"))
        .where(Call.id == call_id)
        .cte("chain", recursive=True)
    )
    chain = chain.union_all(
        select(parent.row, parent.parent_id, parent.messages_kept, chain.c.depth + 1)
        .join(chain, parent.id == chain.c.parent_id)
        .where(chain.c.messages_kept > 0)
    )
    query = select(Call.messages_kept, Call.messages).join(chain, chain.c.row == Call.row)
    rows = session.execute(query.order_by(chain.c.depth.desc())).all()
    if not rows:
        raise _not_found(call_id)
    digests: list[bytes] = []
    for row in rows:
        if (kept := row.messages_kept or 0) > len(digests):
            raise StoreError(f"the store is damaged: call {call_id!r} keeps more messages than its parent has")
        digests = digests[:kept] + split_digests(row.messages)
    blobs = _read_blobs(session, digests)
    return [blobs[address] for address in digests]


def full_prompt(session: Session, call_id: str) -> TokenIds:
    """Every token of a call's prompt, shape (prompt_len,), put together along its parents in one query.

    Raises ``CallNotFound``, and ``ValueError`` for a call without a prompt (open, or refused before it was rendered).
    """
    parent = aliased(Call)
    chain = (
        select(Call.row, Call.parent_id, Call.shared_len, literal(0).label("depth"))
        .where(Call.id == call_id)
        .cte("chain", recursive=True)
    )
    chain = chain.union_all(
        select(parent.row, parent.parent_id, parent.shared_len, chain.c.depth + 1)
        .join(chain, parent.id == chain.c.parent_id)
        .where(chain.c.shared_len > 0)
    )
    columns = (Call.shared_len, Call.prompt_len, Call.completion_len, Call.prompt_ids, Call.completion_ids)
    query = select(*columns).join(chain, chain.c.row == Call.row).order_by(chain.c.depth.desc())
    rows = session.execute(query).all()
    if not rows:
        raise _not_found(call_id)
    if rows[-1].prompt_ids is None:
        raise ValueError(f"call {call_id!r} has no prompt: it is open, or was refused before its prompt was rendered")
    # Root first: each call keeps `shared_len` tokens of the stream so far and writes its own after them.
    stream = np.empty(max((row.prompt_len or 0) + (row.completion_len or 0) for row in rows), np.int32)
    length = 0
    for row in rows:
        if row.shared_len > length:
            raise StoreError(f"the store is damaged: a prompt of call {call_id!r} keeps more than its parent has")
        length = row.shared_len
        for packed in (row.prompt_ids, row.completion_ids if row is not rows[-1] else None):
            if packed is not None:
                ids = unpack_ids(packed)
                stream[length : length + len(ids)] = ids
                length += len(ids)
    return stream[:length].copy()


def close_open_calls(session: Session, *, started_before: float, now: float) -> int:
    """Mark calls that arrived before ``started_before`` and never ended as ``aborted``: their gateway was killed.

    Returns how many there were. Where several gateways share a store, one that is still at work on such a call
    replaces this by the real outcome.
    """
    statement = (
        update(Call)
        .where(Call.status == "arrived", Call.arrived_at < started_before)
        .values(
            status="aborted",
            finished_at=now,
            error_code=GATEWAY_KILLED,
            error_message="the gateway ended before the call did; nothing is known of what was sampled",
        )
        .returning(Call.row)
        .execution_options(synchronize_session=False)
    )
    return len(session.execute(statement).all())


def _check_alone(
    records: Sequence[Record], to_values: Callable[[Record], Values]
) -> tuple[list[ValueError | None], list[tuple[int, Record, Values]]]:
    """What can be said without the database: an answer per record, and position, record and values of the good ones."""
    answers: list[ValueError | None] = [None] * len(records)
    valid: list[tuple[int, Record, Values]] = []
    for at, record in enumerate(records):
        try:
            valid.append((at, record, to_values(record)))
        except ValueError as error:
            answers[at] = error
    return answers, valid


def _check_state(outcome: CallOutcome, stored: dict[str, Values]) -> bool:
    """True: write it. False: it is there already. Raises ``ValueError`` when it does not fit what is stored."""
    call = stored.get(outcome.id)
    if call is None:
        raise ValueError(f"call {outcome.id!r}: it has not arrived")
    if call["status"] != "arrived" and call["error_code"] not in REPLACED:
        if (call["status"], call["finished_at"]) == (outcome.status, outcome.finished_at):
            return False
        raise ValueError(f"call {outcome.id!r}: it has already ended as {call['status']!r}")
    if outcome.parent_id is not None:
        parent = stored.get(outcome.parent_id)
        if parent is None or parent["episode_id"] != call["episode_id"]:
            raise ValueError(f"call {outcome.id!r}: its parent {outcome.parent_id!r} is not in its episode")
        length = parent["prompt_len"] + (parent["completion_len"] or 0) if parent["has_prompt"] else 0
        if outcome.shared_len > length:
            raise ValueError(
                f"call {outcome.id!r}: shared_len is {outcome.shared_len}, but its parent {outcome.parent_id!r} "
                f"has {length} tokens"
            )
        if outcome.messages_kept > parent["messages_count"]:
            raise ValueError(
                f"call {outcome.id!r}: messages_kept is {outcome.messages_kept}, but its parent {outcome.parent_id!r} "
                f"has {parent['messages_count']} messages"
            )
    return True


def _pack_blobs(outcome: CallOutcome, have: set[bytes]) -> dict[bytes, bytes]:
    """Digest → packed data for the blobs of one outcome that the store does not have."""
    missing = {blob.digest: blob.data for blob in outcome_blobs(outcome) if blob.digest not in have}
    for address, data in missing.items():
        if digest(data) != address:
            raise ValueError(f"call {outcome.id!r}: digest {address.hex()} does not belong to its data")
    return {address: pack_text(data) for address, data in missing.items()}


def _decode(session: Session, calls: Sequence[Row[Any]]) -> list[CallInfo]:
    """Rows of ``calls`` as records. Plain rows: as objects of the ORM they took a third longer to read."""
    digests: set[bytes] = set()
    for call in calls:
        digests.update(split_digests(call.messages))
        digests.update(address for address in (call.tools, call.reply) if address is not None)
    blobs = _read_blobs(session, digests)
    return [call_info(call, blobs) for call in calls]


def _read_blobs(session: Session, digests: Iterable[bytes]) -> dict[bytes, bytes]:
    wanted = set(digests)
    blobs = {row.digest: unpack_text(row.data) for row in _find(session, _READ_BLOBS, wanted)}
    if missing := wanted - blobs.keys():
        raise StoreError(f"the store is damaged: it has no blob {min(missing).hex()}, which a call refers to")
    return blobs


def _find(session: Session, statement: Executable, values: Iterable[Any]) -> Iterator[Row[Any]]:
    """The rows of a ``_select_where_in`` statement for these values, each value once."""
    distinct = list(dict.fromkeys(values))
    for at in range(0, len(distinct), CHUNK):
        yield from session.connection().execute(statement, {"some": distinct[at : at + CHUNK]})


def _not_found(call_id: str) -> CallNotFound:
    return CallNotFound(f"there is no call {call_id!r} in this store")
