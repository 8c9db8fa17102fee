"""Alembic's entry: runs migrations on the connection that ``store.schema`` hands over, in its transaction."""

from alembic import context

from dragoman.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
)
with context.begin_transaction():
    context.run_migrations()
