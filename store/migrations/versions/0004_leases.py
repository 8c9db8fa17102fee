"""Leases of complete groups; calls that were only looked at get a status of their own."""

import sqlalchemy as sa
from alembic import op

from dragoman.store.migrations.loss import refuse_loss

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("groups", sa.Column("completed_at", sa.Double(), nullable=True))
    op.create_index("ix_groups_completed_at", "groups", ["completed_at"])
    op.create_table(
        "leases",
        sa.Column("group_row", ROW_ID, nullable=False),
        sa.Column("consumer", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("group_row", "consumer", name="pk_leases"),
        sa.ForeignKeyConstraint(["group_row"], ["groups.row"], name="fk_leases_group_row_groups"),
    )
    op.create_index("ix_leases_consumer_state", "leases", ["consumer", "state"])
    op.execute("UPDATE calls SET status = 'observed', error_code = NULL WHERE error_code = 'observed'")


def downgrade() -> None:
    refuse_loss(down_revision, "leases")
    op.execute("UPDATE calls SET status = 'answered', error_code = 'observed' WHERE status = 'observed'")
    op.drop_table("leases")
    op.drop_index("ix_groups_completed_at", "groups")
    op.drop_column("groups", "completed_at")  # settling groups finds it again
