"""The open episodes that an outbox remembers: who they are, and their records, so that they go on without the store.

Rules of this module: an episode's records stay in the outbox after the store has them, until the episode ends or its
token expires, or all of them together are too much: then the episodes that were quiet longest are dropped, and what is
left knows that it is not whole. Blocking; safe to share between threads.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dragoman.addons.outbox_file import OutboxFile, read_row
from dragoman.addons.record_bytes import decode_episode, encode_episode
from dragoman.store.records import CallArrival, CallInfo, CallOutcome, EpisodeInfo

KEPT_LIMIT = 256 * 1024 * 1024
"""Bytes of records that the store has already."""
EPISODES_KEPT = 20_000

log = logging.getLogger(__name__)

_KEPT = "number NOT IN (SELECT number FROM pending) AND number NOT IN (SELECT number FROM set_aside)"


@dataclass(frozen=True, slots=True)
class Here:
    """What the outbox has of one episode."""

    arrivals: dict[str, CallArrival] = field(default_factory=dict)
    outcomes: dict[str, CallOutcome] = field(default_factory=dict)
    whole: bool = False
    """Whether that is every call that this gateway took."""

    def over(self, stored: Sequence[CallInfo]) -> list[CallInfo]:
        """These calls and the ``stored`` ones as one list, in order of arrival; what is here is the newer."""
        calls = {call.arrival.id: call for call in stored}
        for call_id, arrival in self.arrivals.items():
            calls.setdefault(call_id, CallInfo(arrival, None))
        return [CallInfo(call.arrival, self.outcomes.get(call_id, call.outcome)) for call_id, call in calls.items()]


class OpenEpisodes:
    """Of one outbox file."""

    def __init__(self, file: OutboxFile) -> None:
        self._file = file
        self._known: dict[str, EpisodeInfo] = {}
        """By token hash."""
        self._whole: set[str] = set()
        self._forgotten: set[str] = set()
        with file.reading() as db:
            remembered = db.execute("SELECT token_hash, whole, info FROM episodes").fetchall()
        for token_hash, whole, info in remembered:
            try:
                episode = self._known[token_hash] = decode_episode(info)
            except ValueError:  # another version of Dragoman wrote it; the store knows it still
                continue
            if whole:
                self._whole.add(episode.id)

    def remember(self, token_hash: str, episode: EpisodeInfo, *, opened: bool = False) -> None:
        """Keep an open episode's identity and its records from now on. ``opened``: it has no calls yet."""
        if self._known.get(token_hash) == episode or episode.ended_at is not None:
            return
        if opened:
            self._whole.add(episode.id)
        whole = episode.id in self._whole
        with self._file.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?)",
                (token_hash, episode.id, episode.expires_at, whole, encode_episode(episode)),
            )
        self._known[token_hash] = episode

    def find(self, token_hash: str) -> EpisodeInfo | None:
        """An episode as it was when the store was last asked; ``None``: not remembered."""
        return self._known.get(token_hash)

    def forget(self, episode_id: str) -> None:
        """An episode has ended: nothing of it is kept here once the store has it. Returns at once."""
        self._known = {key: one for key, one in self._known.items() if one.id != episode_id}
        self._forgotten.add(episode_id)

    @property
    def untidy(self) -> bool:
        """Whether ``tidy`` has something to forget."""
        return bool(self._forgotten)

    def tidy(self, now: float) -> None:
        """Delete what no open episode needs any more. To be called now and then, by one thread."""
        forgotten = {self._forgotten.pop() for _ in range(len(self._forgotten))}
        known = list(self._known.values())
        forgotten |= {episode.id for episode in known if episode.expires_at <= now}
        forgotten |= {episode.id for episode in known[: max(0, len(known) - EPISODES_KEPT)]}
        if forgotten:
            self._drop(forgotten, identity=True)
        while (quiet := self._too_much()) is not None:
            log.warning("outbox: episode %s is no longer kept here, to stay below %d bytes", quiet, KEPT_LIMIT)
            self._drop({quiet}, identity=False)

    def _too_much(self) -> str | None:
        """The episode to drop; ``None``: there is room."""
        with self._file.reading() as db:
            (size,) = db.execute(f"SELECT coalesce(sum(size), 0) FROM records WHERE {_KEPT}").fetchone()
            if size <= KEPT_LIMIT:
                return None
            (episode_id,) = db.execute(
                f"SELECT episode_id FROM records WHERE {_KEPT} GROUP BY episode_id ORDER BY max(number) LIMIT 1"
            ).fetchone()
        return str(episode_id)

    def _drop(self, episode_ids: Iterable[str], *, identity: bool) -> None:
        named = set(episode_ids)
        some = "(SELECT value FROM json_each(?))"
        ids = json.dumps(sorted(named))
        with self._file.writing() as db:
            if identity:
                db.execute(f"DELETE FROM episodes WHERE id IN {some}", (ids,))
            else:
                db.execute(f"UPDATE episodes SET whole = 0 WHERE id IN {some}", (ids,))
            db.execute(f"DELETE FROM records WHERE episode_id IN {some} AND {_KEPT}", (ids,))
        self._whole -= named
        if identity:
            self._known = {key: one for key, one in self._known.items() if one.id not in named}
        self._file.shrink()

    def read(self, episode_id: str) -> Here:
        """What is here of an episode's calls."""
        with self._file.reading() as db:
            (whole,) = db.execute("SELECT max(whole) FROM episodes WHERE id = ?", (episode_id,)).fetchone()
            rows = db.execute(
                "SELECT call_id, what, checksum, payload FROM records WHERE episode_id = ? ORDER BY number",
                (episode_id,),
            ).fetchall()
        arrivals: dict[str, CallArrival] = {}
        outcomes: dict[str, CallOutcome] = {}
        for call_id, what, checksum, payload in rows:
            record = read_row(call_id, episode_id, what, checksum, payload)
            if isinstance(record, CallArrival):
                arrivals[call_id] = record
            elif isinstance(record, CallOutcome):
                outcomes[call_id] = record
            else:
                whole = False  # the store may have it
        return Here(arrivals, outcomes, bool(whole))
