"""Opening a store, its transactions, and how each kind of failure is told."""

import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, insert, make_url, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dragoman.store import database as database_module
from dragoman.store import schema
from dragoman.store.database import Database, insert_new
from dragoman.store.errors import StoreUnavailable
from dragoman.store.models import Base, Task, table_of


def add(session: Session, name: str) -> None:
    session.execute(insert(table_of(Task)).values(name=name))


def names(session: Session) -> set[str]:
    return set(session.scalars(select(Task.name)))


def test_a_session_commits_at_its_end_and_not_before(database: Database) -> None:
    with database.session() as session:
        add(session, "a")
        with database.reading() as other:
            assert names(other) == set()
    with database.reading() as session:
        assert names(session) == {"a"}


def test_a_session_that_raises_writes_nothing(database: Database) -> None:
    def fail() -> None:
        with database.session() as session:
            add(session, "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.reading() as session:
        assert names(session) == set()


def test_reading_sees_one_state_while_others_write(database: Database) -> None:
    with database.reading() as session:
        assert names(session) == set()
        with database.session() as writer:
            add(writer, "a")
        assert names(session) == set()
    with database.reading() as session:
        assert names(session) == {"a"}


def test_reading_cannot_write_and_spoils_no_later_session(database: Database) -> None:
    with pytest.raises(StoreUnavailable, match=r"read-?only"), database.reading() as session:
        add(session, "a")
    with database.session() as session:
        add(session, "b")
    with database.reading() as session:
        assert names(session) == {"b"}


def test_writers_that_read_first_wait_for_each_other(tmp_path: Path) -> None:
    """Without the write lock at the start, SQLite fails the second one at once with "database is locked"."""
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    threads, times = 4, 25
    together = threading.Barrier(threads)

    def write(_: int) -> None:
        together.wait()
        for _ in range(times):
            with database.session() as session:
                count = session.execute(select(func.count()).select_from(Task)).scalar_one()
                add(session, f"number {count}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    with database.reading() as session:
        assert names(session) == {f"number {n}" for n in range(threads * times)}
    database.close()


def test_what_breaks_a_constraint_is_no_outage(database: Database) -> None:
    with database.session() as session:
        add(session, "a")
    with pytest.raises(IntegrityError), database.session() as session:
        add(session, "a")


def test_foreign_keys_are_enforced(database: Database) -> None:
    with pytest.raises(IntegrityError), database.session() as session:
        session.execute(insert(Base.metadata.tables["groups"]).values(task_row=99))


def test_insert_new_says_how_many_were_new(database: Database) -> None:
    tasks = table_of(Task)
    with database.session() as session:
        assert insert_new(session, tasks, []) == 0
        assert insert_new(session, tasks, [{"name": "a"}]) == 1
        assert insert_new(session, tasks, [{"name": "a"}]) == 0
        assert insert_new(session, tasks, [{"name": "a"}, {"name": "b"}, {"name": "b"}]) == 1


def test_a_second_open_finds_what_the_first_wrote(database: Database, store_url: str) -> None:
    with database.session() as session:
        add(session, "a")
    again = Database.open(store_url)
    with again.reading() as session:
        assert names(session) == {"a"}
    again.close()


OPENER = """
import sys
from dragoman.store.database import Database
from dragoman.store.models import Task
print("ready", flush=True)
url = sys.stdin.readline().strip()
database = Database.open(url)
with database.session() as session:
    session.add(Task(name=sys.argv[1]))
database.close()
"""


def test_processes_that_open_one_new_store_at_once_all_succeed(store_url: str) -> None:
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, f"task {n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write(store_url + "\n")
        opener.stdin.flush()
    assert [opener.wait() for opener in openers] == [0, 0, 0, 0]
    for opener in openers:
        opener.communicate()
    database = Database.open(store_url)
    with database.reading() as session:
        assert names(session) == {f"task {n}" for n in range(4)}
        assert schema.current_revision(session.connection()) == schema.HEAD
    database.close()


@pytest.mark.parametrize(("fsync", "level"), [(False, 1), (True, 2)])
def test_sqlite_settings(tmp_path: Path, fsync: bool, level: int) -> None:
    path = tmp_path / "new" / "folder" / "a.db"
    database = Database.open(f"sqlite:///{path}", fsync=fsync)
    with database.session() as session:
        for name, value in {
            "journal_mode": "wal",
            "synchronous": level,
            "foreign_keys": 1,
            "busy_timeout": 30_000,
        }.items():
            assert session.execute(text(f"PRAGMA {name}")).scalar_one() == value, name
        for file in path.parent.iterdir():  # the WAL and its index too
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    database.close()


def test_a_locked_store_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.01)
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        pytest.raises(StoreUnavailable, match=r"a\.db cannot be used .*locked.*end that process"),
        database.session() as session,
    ):
        add(session, "a")
    with database.reading() as session:  # readers are not held up
        assert names(session) == set()
    holder.close()
    with database.session() as session:
        add(session, "a")
    database.close()


def test_opening_a_current_store_waits_for_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that looks at a store must not stop the gateway, nor be stopped by it."""
    Database.open(f"sqlite:///{tmp_path}/a.db").close()
    monkeypatch.setattr(database_module, "OPEN_SECONDS", 0.01)
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    Database.open(f"sqlite:///{tmp_path}/a.db").close()
    holder.close()


def test_writers_of_one_process_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/a.db")

    def write(number: int) -> None:
        with database.session() as session:
            add(session, str(number))

    with ThreadPoolExecutor(8) as pool:
        with database.session():
            waiting = [pool.submit(write, number) for number in range(40)]
            with monkeypatch.context() as patched:
                patched.setattr(database_module, "BUSY_SECONDS", 0.01)
                with pytest.raises(StoreUnavailable, match="locked by this process"), database.session():
                    pass
        for one in waiting:
            one.result(timeout=30)
    with database.reading() as session:
        assert len(names(session)) == 40
    database.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("these are notes and no database " * 100)
    with pytest.raises(StoreUnavailable, match=r"a\.db cannot be used .*not a database.*name another file"):
        Database.open(f"sqlite:///{tmp_path}/a.db")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"file/a\.db cannot be opened .*name another place"):
        Database.open(f"sqlite:///{tmp_path}/file/a.db")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        pytest.param("dragoman.db", "no store URL", id="a path"),
        pytest.param("nosql://host/a", "no store URL", id="unknown database"),
        pytest.param("mysql+pymysql://host/a", "no store URL|only sqlite and postgresql", id="another database"),
        pytest.param("sqlite://", "is no file", id="memory"),
        pytest.param("sqlite:///:memory:", "is no file", id="memory by name"),
        pytest.param("postgresql://u:secret@/d?host=/nowhere", "check that PostgreSQL runs there", id="no server"),
        pytest.param("postgresql://u:secret@h:x/d", "no store URL", id="bad port"),
    ],
)
def test_urls_that_cannot_be_opened(url: str, says: str) -> None:
    with pytest.raises(StoreUnavailable, match=says) as caught:
        Database.open(url)
    assert "secret" not in str(caught.value)


def test_a_lost_connection_is_replaced(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    with database.session() as session:
        add(session, "a")
    admin = Database.open(postgres_url)
    with admin.session() as session:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :n AND pid <> pg_backend_pid()"
        session.execute(text(others), {"n": make_url(postgres_url).database})
    admin.close()
    with database.session() as session:
        add(session, "b")
    with database.reading() as session:
        assert names(session) == {"a", "b"}
    database.close()
