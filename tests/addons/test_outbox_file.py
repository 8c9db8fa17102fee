"""The outbox's file: one owner, every failure named, nothing half written."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.addons.outbox_file import OutboxFile, checksum_of, looking, read_row
from dragoman.addons.record_bytes import encode_record
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    first = OutboxFile(tmp_path / "o.db", fsync=False)
    with pytest.raises(StoreUnavailable, match=r"belongs to another gateway that runs.*--outbox"):
        OutboxFile(tmp_path / "o.db", fsync=False)
    OutboxFile(tmp_path / "other.db", fsync=False).close()
    first.close()
    OutboxFile(tmp_path / "o.db", fsync=False).close()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom dragoman.addons.outbox_file import OutboxFile\n"
        "file = OutboxFile(Path(sys.argv[1]), fsync=False)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "o.db")])
    OutboxFile(tmp_path / "o.db", fsync=False).close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "o.db", fsync=True)

    def fail() -> None:
        with file.writing() as db:
            db.execute("INSERT INTO facts VALUES ('a', 'b')")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    with file.reading() as db:
        assert db.execute("SELECT * FROM facts").fetchall() == []
    with file.writing() as db:
        db.execute("INSERT INTO facts VALUES ('a', 'b')")
    with looking(tmp_path / "o.db") as db:
        assert db.execute("SELECT * FROM facts").fetchall() == [("a", "b")]
    file.close()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "o.db", fsync=False)

    def write() -> None:
        with file.writing() as db:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to be full
            db.execute("INSERT INTO facts VALUES ('a', ?)", ("x" * 100_000,))

    with pytest.raises(StoreUnavailable, match=r"full.*free some disk space"):
        write()
    with file.writing() as db:
        db.execute("PRAGMA max_page_count = 1000000")
        db.execute("INSERT INTO facts VALUES ('a', ?)", ("x" * 100_000,))
    file.close()


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, and long enough to be looked at" * 100)
    with pytest.raises(StoreUnavailable, match=r"not a database.*--outbox"):
        OutboxFile(tmp_path / "text.db", fsync=False)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        OutboxFile(tmp_path / "text.db" / "o.db", fsync=False)
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StoreUnavailable, match=r"version 99.*Upgrade Dragoman"):
        OutboxFile(tmp_path / "newer.db", fsync=False)
    with pytest.raises(StoreUnavailable, match="unable to open"), looking(tmp_path / "none.db"):
        pass


def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    OutboxFile(tmp_path / "o.db", fsync=False).close()
    assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {"o.db": 0, "o.db.lock": 0}


def test_a_row_says_when_it_is_damaged() -> None:
    arrival = CallArrival("c1", "e1", "anthropic", "/v1/messages", 10.0)
    payload = encode_record(arrival)
    checksum = checksum_of("c1", "e1", "arrival", payload)
    assert read_row("c1", "e1", "arrival", checksum, payload) == arrival
    for row in (("c2", "e1", "arrival", checksum, payload), ("c1", "e1", "arrival", checksum, payload[:-1])):
        assert "damaged: its checksum is wrong" in str(read_row(*row))
    assert "damaged" in str(read_row("c1", "e1", "arrival", checksum_of("c1", "e1", "arrival", b"x"), b"x"))
