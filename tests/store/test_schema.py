"""The migrations lead to the schema that the models describe, and a store of a newer Dragoman is refused."""

import re

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from dragoman.store import schema
from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from dragoman.store.models import Base


def test_autogenerate_finds_no_difference(database: Database) -> None:
    with database.reading() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrated_tables_are_word_for_word_those_of_the_models() -> None:
    """Stricter than autogenerate, which does not look at partial indexes."""

    def statements(prepare: str) -> set[str]:
        engine = create_engine("sqlite://")
        with engine.begin() as connection:
            if prepare == "migrate":
                schema.upgrade(connection)
            else:
                Base.metadata.create_all(connection)
            rows = connection.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
            return {re.sub(r"[\s\"]+", " ", row.sql) for row in rows if "alembic_version" not in row.sql}

    assert statements("migrate") == statements("create_all")


def test_head_is_the_newest_revision(database: Database) -> None:
    with database.reading() as session:
        config = schema.alembic_config(session.connection())
        assert ScriptDirectory.from_config(config).get_current_head() == schema.HEAD
        assert schema.current_revision(session.connection()) == schema.HEAD


def test_downgrade_takes_everything_away_and_upgrade_brings_it_back(database: Database) -> None:
    with database.session() as session:
        command.downgrade(schema.alembic_config(session.connection()), "base")
    with database.reading() as session:
        context = MigrationContext.configure(session.connection())
        assert {change[0] for change in compare_metadata(context, Base.metadata)} == {"add_table", "add_index"}
    with database.session() as session:
        schema.upgrade(session.connection())


def test_a_store_of_the_first_schema_gets_the_later_tables_and_keeps_its_rows(
    database: Database, store_url: str
) -> None:
    with database.session() as session:
        command.downgrade(schema.alembic_config(session.connection()), "0001")
        session.execute(text("INSERT INTO tasks (name) VALUES ('kept')"))

    again = Database.open(store_url)

    with again.reading() as session:
        assert schema.current_revision(session.connection()) == schema.HEAD
        assert session.execute(text("SELECT name FROM tasks")).scalars().all() == ["kept"]
        assert session.execute(text("SELECT count(*) FROM artefacts")).scalar() == 0
    again.close()


def test_a_newer_schema_is_refused_by_name(database: Database, store_url: str) -> None:
    with database.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnavailable, match=r"schema '9999'.*Upgrade Dragoman"):
        Database.open(store_url)
