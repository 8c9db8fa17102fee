"""What a run leaves behind besides its calls: artefacts."""

import sqlalchemy as sa
from alembic import op

from dragoman.store.migrations.loss import refuse_loss

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artefacts",
        sa.Column("row", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("omitted", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("row", name="pk_artefacts"),
        sa.UniqueConstraint("episode_id", "name", name="uq_artefacts_episode_id_name"),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.id"], name="fk_artefacts_episode_id_episodes"),
    )


def downgrade() -> None:
    refuse_loss(down_revision, "artefacts")
    op.drop_table("artefacts")
