"""The first schema: tasks, groups, episodes, credentials, rewards, blobs, calls."""

import sqlalchemy as sa
from alembic import op

from dragoman.store.migrations.loss import refuse_loss

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _row() -> sa.Column[int]:
    return sa.Column("row", ROW_ID, nullable=False)


def upgrade() -> None:
    op.create_table(
        "tasks",
        _row(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("row", name="pk_tasks"),
        sa.UniqueConstraint("name", name="uq_tasks_name"),
    )
    op.create_table(
        "groups",
        _row(),
        sa.Column("task_row", ROW_ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("expected", sa.Integer(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("row", name="pk_groups"),
        sa.UniqueConstraint("task_row", "name", name="uq_groups_task_row_name"),
        sa.ForeignKeyConstraint(["task_row"], ["tasks.row"], name="fk_groups_task_row_tasks"),
    )
    op.create_index("ix_groups_deadline", "groups", ["deadline"])
    op.create_table(
        "episodes",
        _row(),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("group_row", ROW_ID, nullable=True),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("end", sa.Text(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("row", name="pk_episodes"),
        sa.UniqueConstraint("id", name="uq_episodes_id"),
        sa.ForeignKeyConstraint(["group_row"], ["groups.row"], name="fk_episodes_group_row_groups"),
    )
    op.create_index("ix_episodes_group_row", "episodes", ["group_row"])
    op.create_index("ix_episodes_opened_at", "episodes", ["opened_at"])
    op.create_table(
        "credentials",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_credentials"),
        sa.UniqueConstraint("episode_id", name="uq_credentials_episode_id"),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.id"], name="fk_credentials_episode_id_episodes"),
    )
    op.create_table(
        "rewards",
        _row(),
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=False),
        sa.Column("components", sa.JSON(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("row", name="pk_rewards"),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.id"], name="fk_rewards_episode_id_episodes"),
    )
    op.create_index("ix_rewards_episode_id", "rewards", ["episode_id"])
    op.create_table(
        "blobs",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_blobs"),
    )
    op.create_table(
        "calls",
        _row(),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("arrived_at", sa.Double(), nullable=False),
        sa.Column("harness", sa.Text(), nullable=True),
        sa.Column("harness_version", sa.Text(), nullable=True),
        sa.Column("thread", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("http_status", sa.Integer(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("stream", sa.Boolean(), nullable=True),
        sa.Column("constrained", sa.Boolean(), nullable=True),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("shared_len", sa.Integer(), nullable=True),
        sa.Column("fork_reason", sa.Text(), nullable=True),
        sa.Column("echo_changed", sa.Integer(), nullable=True),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("messages_kept", sa.Integer(), nullable=True),
        sa.Column("prompt_len", sa.Integer(), nullable=True),
        sa.Column("completion_len", sa.Integer(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("first_token_at", sa.Double(), nullable=True),
        sa.Column("engine_started_at", sa.Double(), nullable=True),
        sa.Column("tokenizer_hash", sa.Text(), nullable=True),
        sa.Column("template_hash", sa.Text(), nullable=True),
        sa.Column("canonical_version", sa.Integer(), nullable=True),
        sa.Column("policy_spans", sa.JSON(), nullable=True),
        sa.Column("sampling_asked", sa.JSON(), nullable=True),
        sa.Column("sampling_used", sa.JSON(), nullable=True),
        sa.Column("tools", sa.LargeBinary(), nullable=True),
        sa.Column("reply", sa.LargeBinary(), nullable=True),
        sa.Column("messages", sa.LargeBinary(), nullable=True),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=True),
        sa.Column("completion_ids", sa.LargeBinary(), nullable=True),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("row", name="pk_calls"),
        sa.UniqueConstraint("id", name="uq_calls_id"),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.id"], name="fk_calls_episode_id_episodes"),
        sa.ForeignKeyConstraint(["parent_id"], ["calls.id"], name="fk_calls_parent_id_calls"),
    )
    op.create_index("ix_calls_parent_id", "calls", ["parent_id"])
    op.create_index("ix_calls_episode_id_arrived_at_row", "calls", ["episode_id", "arrived_at", "row"])
    is_open = sa.text("status = 'arrived'")
    op.create_index("ix_calls_open", "calls", ["arrived_at"], sqlite_where=is_open, postgresql_where=is_open)


def downgrade() -> None:
    refuse_loss("base", "tasks", "episodes", "blobs")
    for table in ("calls", "blobs", "rewards", "credentials", "episodes", "groups", "tasks"):
        op.drop_table(table)
