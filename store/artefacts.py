"""What a run leaves behind besides its calls: what the harness printed, the diff of its folder.

Rules of this module: functions over a ``Session``; the caller owns the transaction and the clock. An artefact that is
stored again under its name replaces the earlier one, so that whoever lost an answer may send it again.
"""

import re
from collections.abc import Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from dragoman.store.episodes import get_episode
from dragoman.store.errors import ArtefactNotFound
from dragoman.store.models import StoredArtefact, table_of
from dragoman.store.packing import pack_text, unpack_text
from dragoman.store.records import ARTEFACT_LIMIT, Artefact, ArtefactInfo

MOST_ARTEFACTS = 32
"""Of one episode."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,100}")


def write_artefacts(session: Session, episode_id: str, artefacts: Sequence[Artefact], *, now: float) -> None:
    """Store artefacts of an episode, before or after its end.

    Raises ``EpisodeNotFound``, and ``ValueError`` for a name, type or size that cannot be, or for too many.
    """
    for artefact in artefacts:
        _check(artefact)
    get_episode(session, episode_id)
    names = [artefact.name for artefact in artefacts]
    if len(set(names)) < len(names):
        raise ValueError(f"the artefacts {', '.join(names)} are not of different names")
    table = table_of(StoredArtefact)
    session.execute(delete(table).where(table.c.episode_id == episode_id, table.c.name.in_(names)))
    there = len(list_artefacts(session, episode_id))
    if there + len(artefacts) > MOST_ARTEFACTS:
        raise ValueError(f"episode {episode_id!r} would have {there + len(artefacts)} artefacts of {MOST_ARTEFACTS}")
    rows = [
        {
            "episode_id": episode_id,
            "name": artefact.name,
            "content_type": artefact.content_type,
            "size": len(artefact.data),
            "omitted": artefact.omitted,
            "stored_at": now,
            "data": pack_text(artefact.data),
        }
        for artefact in artefacts
    ]
    if rows:
        session.execute(insert(table), rows)


def list_artefacts(session: Session, episode_id: str) -> list[ArtefactInfo]:
    """The artefacts of an episode by name; empty also for an episode that is not there."""
    table = table_of(StoredArtefact)
    rows = session.execute(
        select(table.c.name, table.c.content_type, table.c.size, table.c.omitted, table.c.stored_at)
        .where(table.c.episode_id == episode_id)
        .order_by(table.c.name)
    )
    return [ArtefactInfo(*row) for row in rows]


def read_artefact(session: Session, episode_id: str, name: str) -> Artefact:
    """One artefact with its content. Raises ``ArtefactNotFound``."""
    table = table_of(StoredArtefact)
    row = session.execute(
        select(table.c.content_type, table.c.data, table.c.omitted).where(
            table.c.episode_id == episode_id, table.c.name == name
        )
    ).one_or_none()
    if row is None:
        names = ", ".join(found.name for found in list_artefacts(session, episode_id)) or "none"
        raise ArtefactNotFound(f"episode {episode_id!r} has no artefact {name!r}; it has: {names}")
    return Artefact(name, row.content_type, unpack_text(row.data), row.omitted)


def _check(artefact: Artefact) -> None:
    if not _NAME.fullmatch(artefact.name):
        raise ValueError(f"{artefact.name!r} is no name of an artefact: 1 to 100 of A-Z a-z 0-9 . _ - are")
    if not _CONTENT_TYPE.fullmatch(artefact.content_type):
        raise ValueError(f"artefact {artefact.name!r} has the content type {artefact.content_type!r}")
    if len(artefact.data) > ARTEFACT_LIMIT:
        raise ValueError(
            f"artefact {artefact.name!r} has {len(artefact.data)} bytes; at most {ARTEFACT_LIMIT} are stored: cut it"
        )
    if not 0 <= artefact.omitted < 2**63:
        raise ValueError(f"artefact {artefact.name!r} has {artefact.omitted} bytes left out")
