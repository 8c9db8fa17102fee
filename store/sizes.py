"""What a store holds and how much room it takes.

Rules of this module: functions over a ``Session`` that only read. Sizes are what the database itself says of its files,
indexes included, so they are larger than what is in the rows.
"""

from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from dragoman.store.models import Base, Call, Episode, table_of

CALLS = table_of(Call).c
EPISODES = table_of(Episode).c


@dataclass(frozen=True, slots=True)
class TableSize:
    name: str
    rows: int
    bytes: int | None
    """With its indexes; ``None``: this SQLite was built without its ``dbstat`` table."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sums of a whole store."""

    tables: tuple[TableSize, ...]
    """By name."""
    bytes: int
    """Of the database: SQLite's file without its write-ahead log, or what PostgreSQL says of the database."""
    free_bytes: int | None
    """In SQLite's file, for rows to come; ``None``: PostgreSQL, which does not say."""
    prompt_tokens: int
    """Sum of the full prompts: a token that is sent again in the next turn counts again."""
    stored_prompt_tokens: int
    """Prompt tokens as stored: each call only what it adds to its parent."""
    completion_tokens: int
    token_bytes: int
    """Of the packed prompt ids, completion ids and log-probabilities."""
    ends: dict[str | None, int]
    """End → episodes; ``None``: open, which stands first."""
    oldest: float | None
    """When the first episode was opened, unix seconds; ``None``: there is none."""
    newest: float | None

    @property
    def stored_tokens(self) -> int:
        return self.stored_prompt_tokens + self.completion_tokens

    @property
    def bytes_per_token(self) -> float | None:
        """Of the whole database, for each stored token; ``None``: no token is stored."""
        return self.bytes / self.stored_tokens if self.stored_tokens else None


def measure(session: Session) -> Sizes:
    """Count everything. It reads the lengths of all calls, but not their contents."""
    sqlite = session.connection().dialect.name == "sqlite"
    table_bytes = _sqlite_bytes(session) if sqlite else _postgres_bytes(session)
    tables = tuple(
        TableSize(
            name,
            session.execute(select(func.count()).select_from(table)).scalar_one(),
            None if table_bytes is None else table_bytes[name],
        )
        for name, table in sorted(Base.metadata.tables.items())
    )
    packed = [func.sum(func.coalesce(func.length(CALLS[name]), 0)) for name in _PACKED]
    prompts, stored, completions, *lengths = session.execute(
        select(
            func.sum(CALLS.prompt_len),
            func.sum(CALLS.prompt_len - CALLS.shared_len),
            func.sum(func.coalesce(CALLS.completion_len, 0)),
            *packed,
        ).where(CALLS.prompt_ids.is_not(None))
    ).one()
    ends = session.execute(select(EPISODES.end, func.count().label("number")).group_by(EPISODES.end)).all()
    oldest, newest = session.execute(select(func.min(EPISODES.opened_at), func.max(EPISODES.opened_at))).one()
    page = _pragma(session, "page_size") if sqlite else 0
    return Sizes(
        tables=tables,
        bytes=page * _pragma(session, "page_count")
        if sqlite
        else session.execute(select(func.pg_database_size(func.current_database()))).scalar_one(),
        free_bytes=page * _pragma(session, "freelist_count") if sqlite else None,
        prompt_tokens=int(prompts or 0),
        stored_prompt_tokens=int(stored or 0),
        completion_tokens=int(completions or 0),
        token_bytes=sum(int(length or 0) for length in lengths),
        ends={row.end: row.number for row in sorted(ends, key=lambda row: row.end or "")},
        oldest=oldest,
        newest=newest,
    )


_PACKED = ("prompt_ids", "completion_ids", "logprobs")


def _pragma(session: Session, name: str) -> int:
    return int(session.execute(text(f"PRAGMA {name}")).scalar_one())


def _sqlite_bytes(session: Session) -> dict[str, int] | None:
    query = text("SELECT tbl_name, sum(pgsize) FROM dbstat JOIN sqlite_schema USING (name) GROUP BY tbl_name")
    try:
        return {name: int(size) for name, size in session.execute(query)}
    except OperationalError as error:
        if "no such table: dbstat" in str(error.orig):
            return None
        raise


def _postgres_bytes(session: Session) -> dict[str, int]:
    names = list(Base.metadata.tables)
    query = text("SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE oid = ANY(:tables ::regclass[])")
    return {name: int(found) for name, found in session.execute(query, {"tables": names})}
