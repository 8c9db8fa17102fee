"""The outbox: call records that are durable on this machine, until a PostgreSQL store has them and as long as their
episode is open.

Rules of this module: what ``commit`` has answered survives ``kill -9``. Records leave ``pending`` in the order in which
they came, and only when the store has them or refuses them for good; one that it refuses, or that cannot be read, is
set aside with its reason and never deleted. Blocking; safe to share between threads.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.addons.outbox_episodes import OpenEpisodes
from dragoman.addons.outbox_file import OutboxFile, checksum_of, looking, read_row
from dragoman.addons.record_bytes import Record, encode_record
from dragoman.store.call_rows import arrival_values, outcome_values
from dragoman.store.calls import GATEWAY_KILLED
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallOutcome

log = logging.getLogger(__name__)

_Row = tuple[str, str, str, float, int, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that the store does not have yet."""

    number: int
    call_id: str
    what: str
    """``arrival`` or ``outcome``."""
    record: Record | ValueError
    """The error: its bytes are damaged."""


@dataclass(frozen=True, slots=True)
class SetAside:
    number: int
    call_id: str
    episode_id: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutboxState:
    """For people. Sizes in bytes, as stored."""

    path: str
    records: int
    bytes: int
    kept_bytes: int
    """Records that are not waiting: of open episodes, or set aside."""
    oldest_at: float | None
    """When the first waiting record was made, in unix seconds; ``None``: none waits."""
    set_aside: int


class Outbox:
    """One gateway's; ``OutboxFile`` keeps others out."""

    def __init__(self, path: Path, store: str, *, fsync: bool = False, moved: bool = False) -> None:
        """Open it for the store with the URL ``store`` (its password hidden).

        ``moved``: it is the store that the records are for, whatever its URL was before. Raises ``StoreUnavailable``.
        """
        self.path = path
        self.added = threading.Event()
        """Set when there may be something to deliver or to forget."""
        self._file = OutboxFile(path, fsync=fsync)
        self._counting = threading.Lock()
        self._rows = self._bytes = 0
        try:
            self._belong_to(store, moved)
            self.episodes = OpenEpisodes(self._file)
            with self._file.reading() as db:
                self._open: dict[str, str] = dict(db.execute("SELECT call_id, episode_id FROM open_calls"))
                """Call id → episode id."""
                rows, size = _waiting(db)
        except BaseException:
            self._file.close()
            raise
        self._count(rows, size)

    def _belong_to(self, store: str, moved: bool) -> None:
        with self._file.writing() as db:
            facts = dict(db.execute("SELECT name, value FROM facts"))
            known = facts.get("store", store)
            if known != store and not moved:
                waiting, _ = _waiting(db)
                if waiting:
                    raise StoreUnavailable(
                        f"the outbox {self.path} holds {waiting} records for the store {known}, not for {store}; "
                        "deliver them first (`dragoman outbox --deliver --store URL`), or name another with --outbox"
                    )
                db.execute("DELETE FROM facts")
                db.execute("DELETE FROM episodes")
                db.execute("DELETE FROM open_calls")
                db.execute("DELETE FROM records WHERE number NOT IN (SELECT number FROM set_aside)")
                facts = {}
            db.execute("INSERT OR REPLACE INTO facts VALUES ('store', ?)", (store,))
        self.reached = "reached" in facts
        """Whether the store has ever taken records from here."""

    def set_reached(self) -> None:
        """The store has answered: from now on a gateway may start with this outbox while the store is away."""
        if not self.reached:
            with self._file.writing() as db:
                db.execute("INSERT OR REPLACE INTO facts VALUES ('reached', 'yes')")
            self.reached = True

    @property
    def rows(self) -> int:
        """How many records wait for the store."""
        return self._rows

    @property
    def bytes(self) -> int:
        """Their size as stored."""
        return self._bytes

    def commit(self, records: Sequence[Record]) -> list[Exception | None]:
        """Make records durable, in one transaction; the answers align with them.

        An error: this record is wrong, and will never be anything else. Raises ``StoreUnavailable``.
        """
        answers: list[Exception | None] = [None] * len(records)
        opened: dict[str, str] = {}
        ended: set[str] = set()
        rows: list[_Row] = []
        now = time.time()
        for at, record in enumerate(records):
            try:
                if isinstance(record, CallArrival):
                    arrival_values(record)
                    what, episode_id = "arrival", record.episode_id
                else:
                    outcome_values(record)
                    known = None if record.id in ended else opened.get(record.id) or self._open.get(record.id)
                    if known is None:
                        raise ValueError(f"call {record.id!r}: it has not arrived, or has ended already")
                    what, episode_id = "outcome", known
                payload = encode_record(record)
            except Exception as error:
                if not isinstance(error, ValueError):
                    log.exception("call %r cannot be recorded", record.id)
                answers[at] = error
                continue
            if what == "arrival":
                opened[record.id] = episode_id
            else:
                ended.add(record.id)
            checksum = checksum_of(record.id, episode_id, what, payload)
            rows.append((record.id, episode_id, what, now, len(payload), checksum, payload))
        if rows:
            self._insert(rows, opened, ended)
        return answers

    def _insert(self, rows: Sequence[_Row], opened: dict[str, str], ended: set[str]) -> None:
        with self._file.writing() as db:
            for row in rows:
                number = db.execute(
                    "INSERT INTO records (call_id, episode_id, what, at, size, checksum, payload) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                ).lastrowid
                db.execute("INSERT INTO pending VALUES (?, ?)", (number, len(row[-1])))
            db.executemany("INSERT OR REPLACE INTO open_calls VALUES (?, ?)", opened.items())
            db.executemany("DELETE FROM open_calls WHERE call_id = ?", ((call_id,) for call_id in ended))
        self._open.update(opened)
        for call_id in ended:
            self._open.pop(call_id, None)
        self._count(len(rows), sum(len(row[-1]) for row in rows))

    def _count(self, rows: int, size: int) -> None:
        with self._counting:
            self._rows += rows
            self._bytes += size
        if rows > 0:
            self.added.set()

    def close_open_calls(self, now: float) -> int:
        """End the calls that a killed gateway left open, as ``aborted``. To be called before the first record."""
        outcomes = [
            CallOutcome(
                id=call_id,
                status="aborted",
                http_status=None,
                finished_at=now,
                error_code=GATEWAY_KILLED,
                error_message="the gateway ended before the call did; nothing is known of what was sampled",
            )
            for call_id in self._open
        ]
        self.commit(outcomes)
        return len(outcomes)

    def next_batch(self, rows: int, size: int) -> list[Pending]:
        """The first waiting records, at most ``rows``, and about ``size`` bytes. Empty: none waits."""
        found = []
        with self._file.reading() as db:
            for row in db.execute(
                "SELECT number, call_id, episode_id, what, checksum, payload FROM pending JOIN records USING (number) "
                "ORDER BY number LIMIT ?",
                (rows,),
            ):
                found.append(row)
                size -= len(row[-1])
                if size <= 0:
                    break
        return [Pending(row[0], row[1], row[3], read_row(*row[1:])) for row in found]

    def delivered(self, numbers: Sequence[int]) -> None:
        """The store has these. Only those of open episodes are kept."""
        some = "(SELECT value FROM json_each(?))"
        ids = json.dumps(list(numbers))
        with self._file.writing() as db:
            gone = db.execute(f"DELETE FROM pending WHERE number IN {some} RETURNING size", (ids,)).fetchall()
            db.execute(
                f"DELETE FROM records WHERE number IN {some} AND episode_id NOT IN (SELECT id FROM episodes)", (ids,)
            )
        self._count(-len(gone), -sum(size for (size,) in gone))

    def set_aside(self, number: int, reason: str, now: float) -> None:
        """The store will not get this one; it stays here with its reason."""
        with self._file.writing() as db:
            gone = db.execute("DELETE FROM pending WHERE number = ? RETURNING size", (number,)).fetchall()
            db.execute("INSERT OR REPLACE INTO set_aside VALUES (?, ?, ?)", (number, now, reason))
        self._count(-len(gone), -sum(size for (size,) in gone))

    def retry(self) -> int:
        """What was set aside waits for the store again. Returns how many records that are."""
        with self._file.writing() as db:
            again = db.execute("SELECT number, size FROM set_aside JOIN records USING (number)").fetchall()
            db.executemany("INSERT OR IGNORE INTO pending VALUES (?, ?)", again)
            db.execute("DELETE FROM set_aside")
        self._count(len(again), sum(size for _, size in again))
        return len(again)

    def set_asides(self) -> list[SetAside]:
        with self._file.reading() as db:
            return _set_asides(db)

    def state(self) -> OutboxState:
        with self._file.reading() as db:
            return _state(db, self.path)

    def close(self) -> None:
        self._file.close()


def look(path: Path) -> tuple[OutboxState, list[SetAside], str | None]:
    """What is in an outbox, whose gateway may be running, and the URL of its store. Raises ``StoreUnavailable``."""
    with looking(path) as db:
        store = db.execute("SELECT value FROM facts WHERE name = 'store'").fetchone()
        return _state(db, path), _set_asides(db), None if store is None else store[0]


def _waiting(db: sqlite3.Connection) -> tuple[int, int]:
    rows, size = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM pending").fetchone()
    return rows, size


def _set_asides(db: sqlite3.Connection) -> list[SetAside]:
    rows = db.execute(
        "SELECT number, call_id, episode_id, what, reason FROM set_aside JOIN records USING (number) ORDER BY number"
    )
    return [SetAside(*row) for row in rows]


def _state(db: sqlite3.Connection, path: Path) -> OutboxState:
    rows, size = _waiting(db)
    (total,) = db.execute("SELECT coalesce(sum(size), 0) FROM records").fetchone()
    oldest = db.execute("SELECT at FROM records WHERE number = (SELECT min(number) FROM pending)").fetchone()
    (aside,) = db.execute("SELECT count(*) FROM set_aside").fetchone()
    return OutboxState(str(path), rows, size, total - size, None if oldest is None else oldest[0], aside)
