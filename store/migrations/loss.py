"""What a downgrade would lose.

Rules of this module: a migration's ``downgrade`` calls ``refuse_loss`` before it drops anything, so that going back
never takes data along. The whole downgrade is one transaction, so a refusal leaves the store as it was.
"""

from alembic import op
from sqlalchemy import text

from dragoman.store.errors import DataWouldBeLost


def refuse_loss(to: str, *tables: str) -> None:
    """Raises ``DataWouldBeLost`` where one of the tables has rows. ``to``: the schema that has no place for them."""
    for table in tables:
        rows = op.get_bind().execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
        if rows:
            raise DataWouldBeLost(
                f"schema {to} has no place for what is in the table {table} ({rows} row{'' if rows == 1 else 's'}); "
                "nothing was changed. Stay with this schema, or move on in another store and keep this one"
            )
