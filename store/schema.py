"""Brings a database to the schema that this version of Dragoman uses, with Alembic.

Rules of this module: everything happens on one connection in the caller's transaction, which must exclude other
openers (``database`` sees to that). Alembic is imported only when there is something to do; it costs 0.3 s.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from dragoman.store.errors import StoreUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0005"
"""The newest revision in ``migrations/versions``; a test keeps the two equal."""


def current_revision(connection: Connection) -> str | None:
    """The revision that the database was migrated to; ``None``: an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection) -> str | None:
    """Migrate to ``HEAD``. Returns the revision before; ``None``: the database was empty.

    Raises ``StoreUnavailable`` when a newer Dragoman has migrated the database further.
    """
    revision = current_revision(connection)
    if revision == HEAD:
        return revision
    from alembic import command
    from alembic.script import ScriptDirectory

    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreUnavailable(
            f"the store {connection.engine.url!s} has schema {revision!r}, which this Dragoman does not know (it goes "
            f"up to {HEAD!r}): a newer Dragoman has written it. Upgrade Dragoman, or name another store."
        )
    command.upgrade(config, "head")
    return revision


def alembic_config(connection: Connection) -> "Config":
    """Alembic's settings, without an ini file. ``connection`` is where its commands run.

    To write the next migration: open a database of the last schema, then
    ``alembic.command.revision(alembic_config(connection), "what changes", autogenerate=True, rev_id="0003")``, read and
    correct the file, and set ``HEAD``.
    """
    from alembic.config import Config

    config = Config()
    folder = str(Path(__file__).resolve().parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))  # the option file format interpolates
    config.attributes["connection"] = connection
    return config
