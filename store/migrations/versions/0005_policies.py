"""Policies that a trainer has published, and what became of each in each engine."""

import sqlalchemy as sa
from alembic import op

from dragoman.store.migrations.loss import refuse_loss

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "policies",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_policies"),
    )
    op.create_table(
        "policy_loads",
        sa.Column("row", ROW_ID, nullable=False),
        sa.Column("policy", sa.Integer(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("row", name="pk_policy_loads"),
        sa.UniqueConstraint("policy", "engine", name="uq_policy_loads_policy_engine"),
        sa.ForeignKeyConstraint(["policy"], ["policies.number"], name="fk_policy_loads_policy_policies"),
    )


def downgrade() -> None:
    refuse_loss(down_revision, "policies")
    op.drop_table("policy_loads")
    op.drop_table("policies")
