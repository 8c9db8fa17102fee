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

    if revision is not None:
        _check_known(connection, revision)
    command.upgrade(alembic_config(connection), "head")
    return revision


def downgrade(connection: Connection, revision: str) -> str | None:
    """Take the database back to an older schema, for an older Dragoman. Returns the revision before.

    Raises ``DataWouldBeLost`` where that schema cannot hold what is stored, ``ValueError`` for a revision that is not
    older than the database's, and ``StoreUnavailable`` as ``upgrade``. End the transaction then.
    """
    from alembic import command

    before = current_revision(connection)
    older = [known for known in _check_known(connection, before) if before is not None and known < before]
    if revision not in older:
        raise ValueError(
            f"{revision!r} is no schema before {before!r}, which the store has; "
            + (f"it is one of {', '.join(older)}" if older else "there is none")
        )
    command.downgrade(alembic_config(connection), revision)
    return before


def _check_known(connection: Connection, revision: str | None) -> list[str]:
    """All revisions, the oldest first. Raises ``StoreUnavailable`` where the database's is none of them."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(alembic_config(connection)).walk_revisions()
    known = sorted(script.revision for script in scripts)
    if revision is not None and revision not in known:
        raise StoreUnavailable(
            f"the store {connection.engine.url!s} has schema {revision!r}, which this Dragoman does not know (it goes "
            f"up to {HEAD!r}): a newer Dragoman has written it. Upgrade Dragoman, or name another store."
        )
    return known


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
