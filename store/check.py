"""Whether a store is whole: every row readable, everything that a row refers to there, every ledger balanced.

Rules of this module: functions over a ``Session`` that only read. Each problem is one sentence that names the call,
episode or row, and one problem never hides another. The calls are read an episode at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Table, exists, select, text
from sqlalchemy.orm import Session

from dragoman.store.call_rows import call_info, split_digests
from dragoman.store.ledger import audit
from dragoman.store.models import Base, Call, Credential, Episode, StoredArtefact, StoredBlob, table_of
from dragoman.store.packing import DIGEST_LENGTH, digest, unpack_ids, unpack_logprobs, unpack_text
from dragoman.store.records import CallInfo


class _NoBlobs(dict[bytes, bytes]):
    """For decoding calls without their messages."""

    def __missing__(self, address: bytes) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at, and what was wrong."""

    episodes: int
    calls: int
    blobs: int
    problems: tuple[str, ...]


def check(session: Session) -> Checked:
    """Read everything in the store. Takes about as long as reading its file."""
    problems = [*_database(session), *_references(session), *_episodes(session), *_artefacts(session)]
    blobs: dict[bytes, str | None] = {}
    for row in session.connection().execute(select(StoredBlob.digest, StoredBlob.data)).yield_per(1000):
        blobs[row.digest] = _blob(row.digest, row.data)
    problems += [f"blob {address.hex()} {problem}" for address, problem in blobs.items() if problem is not None]
    episode_ids = session.scalars(select(Episode.id).order_by(Episode.opened_at, Episode.row)).all()
    calls = 0
    for episode_id in episode_ids:
        rows, unreadable = _rows(session, episode_id)
        calls += len(rows) + len(unreadable)
        problems += [*unreadable, *_calls(rows, blobs, complete=not unreadable)]
        session.expunge_all()  # their arrays would stay in memory
    return Checked(len(episode_ids), calls, len(blobs), tuple(problems))


def _database(session: Session) -> Iterator[str]:
    """What SQLite itself finds wrong with its file. PostgreSQL has no such question to ask."""
    if session.connection().dialect.name == "sqlite":
        for said in session.scalars(text("PRAGMA integrity_check")):
            if said != "ok":
                yield f"SQLite's integrity check says: {said}"


def _references(session: Session) -> Iterator[str]:
    """Rows whose foreign key leads nowhere: possible where a file was changed without the keys being enforced."""
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            target = key.column.table.alias("target")
            missing = ~exists().where(target.c[key.column.name] == key.parent)
            name = _name(table)
            query = select(table.c[name], key.parent.label("refers_to")).where(key.parent.is_not(None), missing)
            for found in session.connection().execute(query):
                thing = "call" if table.name == "calls" else f"the row of {table.name}"
                yield (
                    f"{thing} {found[0]!r} has the {key.parent.name} {found.refers_to!r}, which is not in "
                    f"{key.column.table.name}"
                )


def _name(table: Table) -> str:
    """The column that names a row for a person."""
    return "id" if "id" in table.c else next(iter(table.primary_key)).name


def _episodes(session: Session) -> Iterator[str]:
    """Episodes without a credential: no list would show them."""
    without = ~exists().where(Credential.episode_id == Episode.id)
    for episode_id in session.scalars(select(Episode.id).where(without).order_by(Episode.id)):
        yield f"episode {episode_id!r} has no credential"


def _artefacts(session: Session) -> Iterator[str]:
    table = table_of(StoredArtefact).c
    query = select(table.episode_id, table.name, table.size, table.data).order_by(table.row)
    for row in session.connection().execute(query).yield_per(10):
        try:
            length = len(unpack_text(row.data))
        except ValueError as error:
            yield f"artefact {row.name!r} of episode {row.episode_id!r} cannot be read: {error}"
        else:
            if length != row.size:
                yield f"artefact {row.name!r} of episode {row.episode_id!r} has {length} bytes instead of {row.size}"


def _blob(address: bytes, data: bytes) -> str | None:
    """What is wrong with a blob; ``None``: nothing."""
    try:
        plain = unpack_text(data)
    except ValueError as error:
        return f"cannot be read: {error}"
    return None if digest(plain) == address else "holds something else than its digest says"


def _rows(session: Session, episode_id: str) -> tuple[Sequence[Call], list[str]]:
    """The calls of an episode in order of arrival, and a sentence for each that is no row any more."""
    order = (Call.arrived_at, Call.row)
    try:
        return session.scalars(select(Call).where(Call.episode_id == episode_id).order_by(*order)).all(), []
    except ValueError:  # a JSON column of one of them
        rows: list[Call] = []
        problems: list[str] = []
        for call_id in session.scalars(select(Call.id).where(Call.episode_id == episode_id).order_by(*order)):
            try:
                rows.append(session.scalars(select(Call).where(Call.id == call_id)).one())
            except ValueError as error:
                problems.append(f"call {call_id!r} cannot be read: {error}")
        return rows, problems


def _calls(rows: Sequence[Call], blobs: dict[bytes, str | None], *, complete: bool) -> Iterator[str]:
    """The problems of one episode's calls, and its ledger where all of them can be read."""
    kept = {row.id: (row.messages_kept or 0) + len(split_digests(row.messages)) for row in rows}
    infos: list[CallInfo] = []
    for row in rows:
        yield from (f"call {row.id!r} {problem}" for problem in _messages(row, kept, blobs))
        try:
            _arrays(row)
            infos.append(call_info(row, _NoBlobs()))
        except (TypeError, ValueError) as error:
            yield f"call {row.id!r} cannot be read: {error}"
    if complete and len(infos) == len(rows):  # one that is missing would make the others wrong, too
        yield from audit(infos).problems


def _messages(row: Call, kept: dict[str, int], blobs: dict[bytes, str | None]) -> Iterator[str]:
    if len(row.messages or b"") % DIGEST_LENGTH:
        yield f"has {len(row.messages or b'')} bytes of digests, not a multiple of {DIGEST_LENGTH}"
    for address in (*split_digests(row.messages), row.tools, row.reply):
        if address is None:
            continue
        if address not in blobs:
            yield f"has no blob {address.hex()}"
        elif blobs[address] is not None:
            yield f"needs blob {address.hex()}, which {blobs[address]}"
    if row.messages_kept and row.messages_kept > kept.get(row.parent_id or "", 0):
        yield f"keeps {row.messages_kept} messages of its parent {row.parent_id!r}, which has not as many there"


def _arrays(row: Call) -> None:
    """Raises ``ValueError`` where a call's arrays cannot be unpacked or have not the lengths that are stored."""
    if row.prompt_ids is not None:
        added = (row.prompt_len or 0) - (row.shared_len or 0)
        _length("prompt_ids", len(unpack_ids(row.prompt_ids)), added)
    if row.completion_ids is not None:
        _length("completion_ids", len(unpack_ids(row.completion_ids)), row.completion_len)
    if row.logprobs is not None:
        _length("logprobs", len(unpack_logprobs(row.logprobs)), row.completion_len)


def _length(column: str, found: int, stored: int | None) -> None:
    if found != stored:
        raise ValueError(f"{column} holds {found} values instead of {stored}")
