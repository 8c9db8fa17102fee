"""Opening the store and running transactions in it: SQLite by default, PostgreSQL by URL.

Rules of this module: the only place that knows how the two databases differ in connecting, locking and failing. Outside
it there are ``Session`` objects, and every failure of the database itself (locked, full, read-only, gone) is a
``StoreUnavailable``. Errors that are a record's own fault (``IntegrityError``, ``DataError``) pass unchanged.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Insert, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from dragoman.store import schema
from dragoman.store.errors import StoreUnavailable

BUSY_SECONDS = 30.0
"""How long a SQLite transaction that writes waits for another one, of this process or of another."""
OPEN_SECONDS = 60.0
"""How long opening waits for another process that is migrating the same database."""
CONNECT_SECONDS = 10
"""How long PostgreSQL is given to take a connection, where the URL says no ``connect_timeout``."""
MIGRATION_LOCK = 0x647261676F6D616E
"""PostgreSQL advisory lock held while migrating ("dragoman" in ASCII)."""


PRUNING_LOCK = MIGRATION_LOCK + 1
"""PostgreSQL advisory lock: shared while rows are added that refer to others, alone while rows are pruned."""


class Database:
    """An open, migrated store. Safe to share between threads; a ``Session`` is not."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = _reader(engine)
        self._writing = threading.Lock() if engine.dialect.name == "sqlite" else None
        """Writers of one process take turns by it: SQLite lets them poll, up to 0.1 s apart and unfairly."""

    @classmethod
    def open(cls, url: str, *, fsync: bool = False) -> "Database":
        """Open the store at a SQLAlchemy URL, creating and migrating it where needed.

        ``sqlite:////folder/file.db`` or ``postgresql://user@host/name``. ``fsync``: a SQLite commit also survives power
        loss, not only ``kill -9`` (PostgreSQL does what its own ``synchronous_commit`` says). Several processes may
        open one store at once. Raises ``StoreUnavailable``.
        """
        migrate(url, fsync=fsync)
        return cls(_make_engine(_read_url(url), fsync=fsync))

    @classmethod
    def later(cls, url: str) -> "Database":
        """The store at ``url`` without asking whether it is there. Whoever writes first calls ``migrate`` before."""
        return cls(_make_engine(_read_url(url), fsync=False))

    @property
    def url(self) -> str:
        """The URL with its password hidden."""
        return str(self._engine.url)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction that may write: committed at the end of the block, rolled back when it raises.

        On SQLite it holds the one write lock from its beginning (a transaction that reads first and locks later fails
        as soon as another process has written in between), so keep it short, and use ``reading`` to read.
        Raises ``StoreUnavailable``; nothing was written then.
        """
        with (
            _failures(self._engine.url),
            self._turn(),
            Session(self._engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._writing is None:
            yield
            return
        if not self._writing.acquire(timeout=BUSY_SECONDS):
            raise StoreUnavailable(_describe(self._engine.url, TimeoutError("database is locked by this process")))
        try:
            yield
        finally:
            self._writing.release()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One read-only transaction that sees one state of the store throughout and blocks no writer.

        Raises ``StoreUnavailable``, also when something tries to write in it.
        """
        with _failures(self._engine.url), Session(self._reader, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def outside_transactions(self) -> Iterator[Connection]:
        """A connection for statements that no transaction may hold, such as ``VACUUM``. Raises ``StoreUnavailable``."""
        with _failures(self._engine.url), self._turn(), _bare(self._engine).connect() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections. A session that is still open keeps its own until it ends."""
        self._engine.dispose()


def migrate(url: str, *, fsync: bool = False) -> str | None:
    """Create the store where needed and bring it to the newest schema.

    Returns the revision that it had before; ``None``: it was empty. Raises ``StoreUnavailable``.
    """
    parsed = _read_url(url)
    if parsed.get_backend_name() == "sqlite":
        _create_file(parsed)
    with _migrator(parsed, fsync=fsync) as migrator:
        with migrator.connect() as connection:
            _use_wal(connection)
        with _reader(migrator).begin() as connection:  # nearly always enough, and it stops no writer
            if (revision := schema.current_revision(connection)) == schema.HEAD:
                return revision
        with _migrating(migrator) as connection:
            return schema.upgrade(connection)


def downgrade(url: str, revision: str) -> str | None:
    """Take the store back to an older schema, for an older Dragoman, and only where nothing is lost by it.

    No other process may use the store meanwhile; this Dragoman migrates it forward again when it opens it next.
    Returns the revision that it had before. Raises as ``schema.downgrade``, and ``StoreUnavailable``.
    """
    parsed = _read_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise StoreUnavailable(f"the store {parsed.database} is not there; name one that is")
    with _migrator(parsed, fsync=False) as migrator, _migrating(migrator) as connection:
        return schema.downgrade(connection, revision)


@contextmanager
def _migrator(url: URL, *, fsync: bool) -> Iterator[Engine]:
    with _failures(url):
        engine = _make_engine(url, fsync=fsync, migrating=True)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """A transaction in which nobody else migrates this store."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        yield connection


def lock_out_pruning(session: Session) -> None:
    """Until this transaction ends, no row that it finds and refers to is pruned (an episode, a blob, a group).

    Call it before anything else. SQLite has one writer at a time anyway.
    """
    _lock_pruning(session, "pg_advisory_xact_lock_shared")


def lock_out_writers(session: Session) -> None:
    """Wait for the transactions that called ``lock_out_pruning`` to end, and let no new one begin until this ends."""
    _lock_pruning(session, "pg_advisory_xact_lock")


def _lock_pruning(session: Session, function: str) -> None:
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"SELECT {function}(:key)"), {"key": PRUNING_LOCK})


def insert_new(session: Session, table: Table, rows: list[dict[str, Any]]) -> int:
    """Insert ``rows``, passing over those whose unique key is there already. Returns how many were inserted."""
    if not rows:
        return 0
    connection = session.connection()
    statement = _insert_new(table, connection.dialect.name)
    # Without this option the count of an INSERT is lost once the driver's cursor is closed.
    return connection.execute(statement, rows, execution_options={"preserve_rowcount": True}).rowcount


@cache
def _insert_new(table: Table, dialect: str) -> Insert:
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(table).on_conflict_do_nothing()


def _reader(engine: Engine) -> Engine:
    """The same connections, in transactions that only read."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(dragoman_read_only=True)
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _bare(engine: Engine) -> Engine:
    """The same connections, without transactions."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(dragoman_bare=True)
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _read_url(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise StoreUnavailable(
            f"{_hide_password(url)!r} is no store URL ({error}); say sqlite:////folder/file.db "
            "or postgresql://user@host/name"
        ) from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreUnavailable(f"the store cannot be {backend!r}: only sqlite and postgresql are supported")
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise StoreUnavailable(f"the store {parsed!s} is no file; say sqlite:////folder/file.db")
    return parsed


def _hide_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if separator and "@" in rest else url


def _create_file(url: URL) -> None:
    """Make the file and its folder, for this user only: it will hold whole conversations."""
    assert url.database is not None
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreUnavailable(
            f"the store {path} cannot be opened ({error.strerror}); make the file and its folder writable, "
            "or name another place"
        ) from error


def _make_engine(url: URL, *, fsync: bool, migrating: bool = False) -> Engine:
    serializer = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # made once: it is called a lot
    if url.get_backend_name() == "postgresql":
        connect = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_SECONDS}
        return create_engine(url, json_serializer=serializer, pool_pre_ping=True, connect_args=connect)
    engine = create_engine(
        url,
        json_serializer=serializer,
        # The driver's own transaction handling is off (isolation_level None); `begin` below starts them.
        connect_args={"isolation_level": None, "timeout": OPEN_SECONDS if migrating else BUSY_SECONDS},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        # A migration may rebuild a table, and dropping the old one must not count as deleting what refers to it.
        connection.execute(f"PRAGMA foreign_keys = {'OFF' if migrating else 'ON'}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        read_only = options.get("dragoman_read_only", False)
        connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if read_only else 'OFF'}")
        if not options.get("dragoman_bare", False):
            connection.exec_driver_sql("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE")

    return engine


def _use_wal(connection: Connection) -> None:
    """Switch a SQLite file to write-ahead logging. The file remembers it, so this is work only for the first opener."""
    if connection.dialect.name != "sqlite":
        return
    raw = connection.connection.dbapi_connection
    assert isinstance(raw, sqlite3.Connection)
    give_up = time.monotonic() + OPEN_SECONDS
    while True:  # changing the mode does not wait for a lock as other statements do
        try:
            (mode,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise StoreUnavailable(_describe(connection.engine.url, error)) from error
            time.sleep(0.05)
    if mode != "wal":
        raise StoreUnavailable(
            f"the store {connection.engine.url!s} cannot use write-ahead logging (SQLite chose {mode!r}); "
            "put it on a local disk"
        )


@contextmanager
def _failures(url: URL) -> Iterator[None]:
    """Turn a failure of the database into ``StoreUnavailable``."""
    try:
        yield
    except (IntegrityError, DataError):
        raise
    except DBAPIError as error:
        raise StoreUnavailable(_describe(url, error.orig or error)) from error
    except PoolTimeout as error:
        raise StoreUnavailable(f"the store {url!s} has no free connection: {error}") from error


def _describe(url: URL, error: BaseException) -> str:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if url.get_backend_name() == "postgresql":
        return f"the store {url!s} cannot be used ({said}); check that PostgreSQL runs there and lets this user in"
    remedies = {
        "locked": "another process holds it for too long; end that process",
        "full": "free some disk space",
        "readonly": "make the file and its folder writable",
        "unable to open": "make the file and its folder readable and writable",
        "not a database": "the file is something else or damaged; name another file",
        "malformed": "the file is damaged; restore a backup or name another file",
    }
    remedy = next((remedy for word, remedy in remedies.items() if word in said), "see the message before this")
    return f"the store {url.database} cannot be used ({said}); {remedy}"
