"""The tables, as SQLAlchemy 2 models.

Rules of this module: columns and constraints only. Times are unix seconds; packed columns hold what
``store.packing`` makes; ``NULL`` means "not known" or "does not apply". A change here needs a migration
(``store/migrations/versions``); a test compares the two. Words from closed sets (``status``, ``kind``, …) are checked
before writing, in ``call_rows`` and ``episodes``, so that a new word needs no migration.
"""

from typing import cast

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dragoman.store.records import JsonObject

ROW_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER column


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        str: Text,
        bytes: LargeBinary,
        float: Double,
        JsonObject: JSON(none_as_null=True),
    }


def table_of(model: type[Base]) -> Table:
    """The table behind a model, for statements that do not go through objects."""
    return cast(Table, model.__table__)


class Task(Base):
    __tablename__ = "tasks"

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Group(Base):
    """Episodes of one task that are compared with each other."""

    __tablename__ = "groups"
    __table_args__ = (UniqueConstraint("task_row", "name"),)

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    task_row: Mapped[int] = mapped_column(ForeignKey("tasks.row"))
    name: Mapped[str | None]
    """``NULL``: the group of one episode that named none; any number of those may exist in a task."""
    expected: Mapped[int | None]
    deadline: Mapped[float | None] = mapped_column(index=True)
    completed_at: Mapped[float | None] = mapped_column(index=True)
    """When it was found to be complete; ``NULL``: it is still open, or nobody has looked since."""


class Episode(Base):
    __tablename__ = "episodes"

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    group_row: Mapped[int | None] = mapped_column(ForeignKey("groups.row"), index=True)
    """``NULL``: an ad-hoc episode without task and group."""
    profile: Mapped[str]
    temperature: Mapped[float]
    details: Mapped[JsonObject] = mapped_column("metadata")
    opened_at: Mapped[float] = mapped_column(index=True)
    ended_at: Mapped[float | None]
    end: Mapped[str | None]
    end_reason: Mapped[str | None]
    reward: Mapped[float | None]
    """The reward that was set last; ``rewards`` has them all."""


class Lease(Base):
    """What a consumer, which is a training run, does or did with a complete group. No row: nothing yet."""

    __tablename__ = "leases"

    group_row: Mapped[int] = mapped_column(ForeignKey("groups.row"), primary_key=True)
    consumer: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    """``leased``, ``consumed`` or ``set_aside``; the last two are for good."""
    holder: Mapped[str]
    """The process of the consumer that has it, or had it last."""
    expires_at: Mapped[float | None]
    """From then on another holder may take a ``leased`` one; ``NULL`` in the other states."""
    reason: Mapped[str | None]
    """Why it was set aside."""
    step: Mapped[int | None]
    """Optimizer step that it was consumed in."""
    at: Mapped[float]
    """When it came into this state."""


class Credential(Base):
    """A token that opens one episode. The token itself is never stored."""

    __tablename__ = "credentials"

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the token in lower-case hex."""
    episode_id: Mapped[str] = mapped_column(ForeignKey("episodes.id"), unique=True)
    expires_at: Mapped[float]


class Reward(Base):
    """One row for every time that a reward was set."""

    __tablename__ = "rewards"

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    episode_id: Mapped[str] = mapped_column(ForeignKey("episodes.id"), index=True)
    reward: Mapped[float]
    components: Mapped[JsonObject]
    """Name → finite float; empty when the reward was not broken down."""
    set_at: Mapped[float]


class StoredArtefact(Base):
    """What a run left behind besides its calls."""

    __tablename__ = "artefacts"
    __table_args__ = (UniqueConstraint("episode_id", "name"),)

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    episode_id: Mapped[str] = mapped_column(ForeignKey("episodes.id"))
    name: Mapped[str]
    content_type: Mapped[str]
    size: Mapped[int]
    """Bytes before compression."""
    omitted: Mapped[int] = mapped_column(BigInteger)
    stored_at: Mapped[float]
    data: Mapped[bytes]
    """Packed by ``packing.pack_text``."""


class StoredBlob(Base):
    """A message, tool list or reply, once per content however many calls carry it."""

    __tablename__ = "blobs"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    data: Mapped[bytes]
    """Packed JSON (``packing.pack_text``)."""


class Call(Base):
    """A call: written on arrival, completed once by its outcome. Field meanings: ``records``.

    The long columns stand last, so that SQLite reads lengths and times without walking through them.
    """

    __tablename__ = "calls"

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    """Grows with every call; calls of one ``arrived_at`` are ordered by it."""
    id: Mapped[str] = mapped_column(unique=True)
    episode_id: Mapped[str] = mapped_column(ForeignKey("episodes.id"))
    status: Mapped[str]
    provider: Mapped[str]
    path: Mapped[str]
    arrived_at: Mapped[float]
    harness: Mapped[str | None]
    harness_version: Mapped[str | None]
    thread: Mapped[str | None]
    kind: Mapped[str]

    http_status: Mapped[int | None]
    finished_at: Mapped[float | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    model: Mapped[str | None]
    stream: Mapped[bool | None]
    constrained: Mapped[bool | None]
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("calls.id"), index=True)
    shared_len: Mapped[int | None]
    fork_reason: Mapped[str | None]
    echo_changed: Mapped[int | None]
    retry_of: Mapped[str | None]
    messages_kept: Mapped[int | None]
    prompt_len: Mapped[int | None]
    completion_len: Mapped[int | None]
    finish_reason: Mapped[str | None]
    first_token_at: Mapped[float | None]
    engine_started_at: Mapped[float | None]
    tokenizer_hash: Mapped[str | None]
    template_hash: Mapped[str | None]
    canonical_version: Mapped[int | None]
    policy_spans: Mapped[list[list[str | int]] | None] = mapped_column(JSON(none_as_null=True))
    """``[[version, start, end], …]``"""
    sampling_asked: Mapped[JsonObject | None]
    sampling_used: Mapped[JsonObject | None]

    # Digests have no foreign key: a list cannot have one, and each is written in one transaction with its blob.
    tools: Mapped[bytes | None]
    reply: Mapped[bytes | None]
    messages: Mapped[bytes | None]
    """The digests of the messages in order, 16 bytes each, without the first ``messages_kept``."""
    prompt_ids: Mapped[bytes | None]
    completion_ids: Mapped[bytes | None]
    logprobs: Mapped[bytes | None]


class ReplyState(Base):
    """What a later request needs to go on from a call's reply by its id, beside the call itself."""

    __tablename__ = "reply_states"

    call_id: Mapped[str] = mapped_column(ForeignKey("calls.id"), primary_key=True)
    state: Mapped[JsonObject]
    """In the words of the dialect (``addons.earlier``)."""


class Policy(Base):
    """Weights that a trainer has published."""

    __tablename__ = "policies"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Its version is ``policy-v<number>``."""
    kind: Mapped[str]
    path: Mapped[str]
    """Of the folder with the weights."""
    parent: Mapped[str | None]
    """Version that it was trained from."""
    run: Mapped[str | None]
    step: Mapped[int | None]
    metrics: Mapped[JsonObject]
    """Name → finite float."""
    created_at: Mapped[float]


class PolicyLoad(Base):
    """What became of a policy in one engine."""

    __tablename__ = "policy_loads"
    __table_args__ = (UniqueConstraint("policy", "engine"),)

    row: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    policy: Mapped[int] = mapped_column(ForeignKey("policies.number"))
    engine: Mapped[str]
    """Address of the engine."""
    status: Mapped[str]
    reason: Mapped[str | None]
    at: Mapped[float]


Index("ix_leases_consumer_state", Lease.consumer, Lease.state)
Index("ix_calls_episode_id_arrived_at_row", Call.episode_id, Call.arrived_at, Call.row)
Index(
    "ix_calls_open",
    Call.arrived_at,
    sqlite_where=Call.status == "arrived",
    postgresql_where=Call.status == "arrived",
)
