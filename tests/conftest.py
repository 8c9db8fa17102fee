"""Fixtures of the store: a test that asks for ``database`` or ``store_url`` runs over SQLite and over PostgreSQL."""

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import create_engine, make_url, text

from dragoman.store.database import Database

# An example that takes long says that the machine is busy, and nothing else.
hypothesis.settings.register_profile("dragoman", deadline=None)
hypothesis.settings.load_profile("dragoman")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C works in tests: a shell lets what it runs in the background ignore SIGINT, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server of our own, without a database name. Skips where PostgreSQL is not installed."""
    found = [str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")]
    if on_path := shutil.which("pg_ctl"):
        found.append(on_path)
    if not found:
        pytest.skip("no PostgreSQL: neither /usr/lib/postgresql/*/bin nor PATH has pg_ctl")
    pg_ctl = Path(found[0]).resolve()
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    folder = tempfile.mkdtemp(prefix="dragoman-postgres-")  # short: the socket's path may have 107 characters
    if user:
        shutil.chown(folder, user)

    def run(*command: str) -> None:
        log = Path(folder, "server.log")
        done = subprocess.run(
            command, user=user, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout + (log.read_text() if log.exists() else "")

    run(
        str(pg_ctl.parent / "initdb"),
        "-D",
        f"{folder}/data",
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    )
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
    run(str(pg_ctl), "-D", f"{folder}/data", "-w", "-l", f"{folder}/server.log", "-o", options, "start")
    try:
        yield f"postgresql://postgres@/?host={folder}"
    finally:
        run(str(pg_ctl), "-D", f"{folder}/data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """URL of an empty PostgreSQL database."""
    server = make_url(postgres)
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server.set(drivername="postgresql+psycopg", database="postgres"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store that does not exist yet (SQLite) or is empty (PostgreSQL)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/dragoman.db"
    url = request.getfixturevalue("postgres_url")
    assert isinstance(url, str)
    return url


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    """An open, empty store."""
    opened = Database.open(store_url)
    yield opened
    opened.close()
