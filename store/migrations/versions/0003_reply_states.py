"""Reply states: what a later request needs to go on from a reply by its id."""

import sqlalchemy as sa
from alembic import op

from dragoman.store.migrations.loss import refuse_loss

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reply_states",
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", name="pk_reply_states"),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name="fk_reply_states_call_id_calls"),
    )


def downgrade() -> None:
    refuse_loss(down_revision, "reply_states")
    op.drop_table("reply_states")
