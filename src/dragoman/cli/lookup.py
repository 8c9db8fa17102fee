"""Finding rows for a person: by the start of an id, in the store that they mean.

Rules of this module: reads only, and every way of not finding something is a ``Failure`` that says what to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.output import Failure

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@contextmanager
def reading(store: str | None) -> Iterator[tuple["Session", str]]:
    """A read-only transaction of the store at a URL (``None``: the state folder's), and the URL without its password.

    Raises ``Failure`` when there is no store yet or it cannot be read.
    """
    from dragoman.home import default_store_url
    from dragoman.store.database import Database
    from dragoman.store.errors import StoreError

    url = store or default_store_url()
    # Looking at a store must not make one.
    scheme, _, path = url.partition(":///")
    if scheme.startswith("sqlite") and not Path(path).exists():
        raise Failure(
            f"there is no database at {path} yet: `dragoman serve` makes it; --store names another, "
            "DRAGOMAN_HOME another state folder"
        )
    try:
        database = Database.open(url)
        try:
            with database.reading() as session:
                yield session, database.url
        finally:
            database.close()
    except StoreError as error:
        raise Failure(str(error)) from error


def find_id(session: "Session", start: str) -> tuple[str, str | None]:
    """The episode, or the call, whose id is ``start`` or alone begins with it: ``(episode id, call id or None)``.

    Raises ``Failure`` when there is none, or several.
    """
    from sqlalchemy import select

    from dragoman.store.models import Call, Episode

    if not start.isalnum():
        raise Failure(f"{start!r} is no id: ids are letters and digits")
    episodes = session.scalars(
        select(Episode.id).where(Episode.id.startswith(start)).order_by(Episode.id).limit(6)
    ).all()
    calls = session.execute(
        select(Call.episode_id, Call.id).where(Call.id.startswith(start)).order_by(Call.id).limit(6)
    ).all()
    if start in episodes:
        return start, None
    found = [(episode, None) for episode in episodes] + [(episode, call) for episode, call in calls]
    if not found:
        raise Failure(f"no episode or call has an id that begins with {start!r}; `dragoman episodes` lists them")
    if len(found) > 1:
        names = ", ".join(call or episode for episode, call in found)
        raise Failure(f"several ids begin with {start!r}: {names}; give more of it")
    return found[0]


def harness_names(session: "Session", episode_ids: Sequence[str]) -> dict[str, str]:
    """Which harnesses called in each episode, by episode id; an episode of unknown callers is absent."""
    from sqlalchemy import select

    from dragoman.store.models import Call

    rows = session.execute(
        select(Call.episode_id, Call.harness)
        .where(Call.episode_id.in_(episode_ids), Call.harness.is_not(None))
        .distinct()
        .order_by(Call.episode_id, Call.harness)
    )
    names: dict[str, list[str]] = {}
    for episode_id, harness in rows:
        names.setdefault(episode_id, []).append(str(harness))
    return {episode_id: ", ".join(found) for episode_id, found in names.items()}
