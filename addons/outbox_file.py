"""The outbox's file: a small SQLite database of this gateway alone, opened, locked and guarded against failures.

Rules of this module: it knows the tables, and how a row says that it is whole. One process has the file at a time, by a
lock that the kernel lets go of however that process ends. A failure of SQLite is a ``StoreUnavailable`` with a remedy,
and then nothing was written.
"""

import fcntl
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.addons.record_bytes import Record, decode_record
from dragoman.store.errors import StoreUnavailable

VERSION = 1
BUSY_SECONDS = 30.0

TABLES = """
CREATE TABLE records (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    call_id TEXT NOT NULL,
    episode_id TEXT NOT NULL,
    what TEXT NOT NULL,
    at REAL NOT NULL,
    size INTEGER NOT NULL,
    checksum BLOB NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX records_of_episode ON records (episode_id, number, size);
CREATE TABLE pending (number INTEGER PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE set_aside (number INTEGER PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE open_calls (call_id TEXT PRIMARY KEY, episode_id TEXT NOT NULL);
CREATE TABLE episodes (
    token_hash TEXT PRIMARY KEY, id TEXT NOT NULL, expires_at REAL NOT NULL, whole INTEGER NOT NULL, info TEXT NOT NULL
);
CREATE INDEX episodes_by_id ON episodes (id);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
"""``records`` are kept in the order in which they were made; ``pending`` numbers those that the store does not have
yet, ``set_aside`` those that it will not get. ``episodes`` are open ones: their records stay when the store has them,
so that an episode goes on while the store is away. ``whole``: every call of it that this gateway took is here."""


class OutboxFile:
    """Safe to share between threads. Writers take turns; a reader sees one state and stops nobody."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        """Open or make the file. Raises ``StoreUnavailable``."""
        self.path = path
        self._writing, self._reading = threading.Lock(), threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreUnavailable(
                f"the outbox {path} cannot be opened ({error.strerror}); make the file and its folder writable, or "
                "name another with --outbox"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StoreUnavailable(
                f"the outbox {path} belongs to another gateway that runs; give this one a file of its own with --outbox"
            ) from error
        try:
            with _failures(path):
                self._writer, self._reader = self._connect(fsync), self._connect(fsync)
                self._make_tables()
        except BaseException:
            os.close(self._lock)
            raise

    def _connect(self, fsync: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS, cached_statements=64
        )
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before the first table
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is whole conversations
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        return connection

    def _make_tables(self) -> None:
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._writer.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise StoreUnavailable(
                f"the outbox {self.path} has version {version}; this Dragoman reads {VERSION}: a newer one made it. "
                "Upgrade Dragoman, or name another file with --outbox"
            )

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, committed at the end of the block and rolled back when it raises."""
        with self._writing, _failures(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # SQLite ends it by itself where the disk is full
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._reading, _failures(self.path):
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    def shrink(self) -> None:
        """Give free pages back to the file system."""
        with self._writing, _failures(self.path):
            self._writer.execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        os.close(self._lock)


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection]:
    """An outbox for reading only, also while its gateway runs. Raises ``StoreUnavailable``."""
    with _failures(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()


def checksum_of(call_id: str, episode_id: str, what: str, payload: bytes) -> bytes:
    return hashlib.sha256(f"{call_id} {episode_id} {what} ".encode() + payload).digest()[:16]


def read_row(call_id: str, episode_id: str, what: str, checksum: bytes, payload: bytes) -> Record | ValueError:
    """A row's record, or what is wrong with the row."""
    try:
        if checksum_of(call_id, episode_id, what, payload) != checksum:
            return ValueError(f"the outbox's {what} of call {call_id!r} is damaged: its checksum is wrong")
        return decode_record(payload)
    except (TypeError, ValueError) as error:
        return ValueError(f"the outbox's {what} of call {call_id!r} is damaged: {error}")


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        remedies = {
            "full": "free some disk space",
            "I/O": "free some disk space, or look at the disk",
            "readonly": "make the file and its folder writable",
            "locked": "end the process that holds it",
            "unable to open": "name the file with --outbox",
            "malformed": "move the file away and look into it with sqlite3",
            "not a database": "move the file away, or name another with --outbox",
        }
        remedy = next((remedy for word, remedy in remedies.items() if word in said), "see the message before this")
        raise StoreUnavailable(f"the outbox {path} cannot be used ({said}); {remedy}") from error
