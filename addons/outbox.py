"""The outbox: call records that are durable on this machine, until a PostgreSQL store has them and as long as their
episode is open.

Rules of this module: what ``commit`` has answered survives ``kill -9``. Records leave ``pending`` in the order in which
they came, and only when the store has them or refuses them for good; one that it refuses, or that cannot be read, is
set aside with its reason and never deleted. Records of open episodes stay, up to ``KEPT_LIMIT``. Blocking; safe to
share between threads.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.addons.outbox_file import OutboxFile
from dragoman.addons.record_bytes import Record, decode_episode, decode_record, encode_episode, encode_record
from dragoman.store.call_rows import arrival_values, outcome_values
from dragoman.store.calls import GATEWAY_KILLED
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallInfo, CallOutcome, EpisodeInfo

KEPT_LIMIT = 256 * 1024 * 1024
"""Bytes of records that the store has already; beyond it the episodes that were quiet longest are dropped."""
EPISODES_KEPT = 20_000
"""Open episodes whose identity is remembered."""

log = logging.getLogger(__name__)

_Row = tuple[str, str, str, float, int, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that the store does not have yet."""

    number: int
    call_id: str
    what: str
    """``arrival`` or ``outcome``."""
    record: Record | ValueError
    """The error: its bytes are damaged."""


@dataclass(frozen=True, slots=True)
class SetAside:
    number: int
    call_id: str
    episode_id: str
    what: str
    reason: str


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


@dataclass(frozen=True, slots=True)
class OutboxState:
    """For people. Sizes in bytes, as stored."""

    path: str
    records: int
    bytes: int
    kept_bytes: int
    """Records of open episodes that the store has already."""
    oldest_at: float | None
    """When the first waiting record was made; ``None``: none waits."""
    set_aside: int


class Outbox:
    """One gateway's; ``OutboxFile`` keeps others out."""

    def __init__(self, path: Path, store: str, *, fsync: bool = False) -> None:
        """Open it for the store with the URL ``store`` (its password hidden). Raises ``StoreUnavailable``."""
        self.added = threading.Event()
        """Set when there may be something to deliver or to forget."""
        self._file = OutboxFile(path, fsync=fsync)
        self._forgotten: set[str] = set()
        self._counting = threading.Lock()
        try:
            self._belong_to(store)
            self._load()
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        return self._file.path

    def _belong_to(self, store: str) -> None:
        with self._file.writing() as db:
            facts = dict(db.execute("SELECT name, value FROM facts"))
            known = facts.get("store", store)
            if known != store:
                (waiting,) = db.execute("SELECT count(*) FROM pending").fetchone()
                if waiting:
                    raise StoreUnavailable(
                        f"the outbox {self.path} holds {waiting} records for the store {known}, not for {store}; run "
                        f"`dragoman outbox --drain --store URL` with that store's URL first, or name another --outbox"
                    )
                db.execute("DELETE FROM facts")
                db.execute("DELETE FROM episodes")
                db.execute("DELETE FROM records WHERE number NOT IN (SELECT number FROM set_aside)")
                facts = {}
            db.execute("INSERT OR REPLACE INTO facts VALUES ('store', ?)", (store,))
        self.reached = "reached" in facts

    def _load(self) -> None:
        with self._file.reading() as db:
            rows, size = db.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM pending JOIN records USING (number)"
            ).fetchone()
            (total,) = db.execute("SELECT coalesce(sum(size), 0) FROM records").fetchone()
            self._open = dict(db.execute("SELECT call_id, episode_id FROM open_calls"))
            remembered = db.execute("SELECT token_hash, whole, info FROM episodes").fetchall()
        self._rows: int = rows
        self._bytes: int = size
        self._kept: int = total - size
        self._episodes: dict[str, EpisodeInfo] = {}
        self._whole: set[str] = set()
        for token_hash, whole, info in remembered:
            try:
                episode = self._episodes[token_hash] = decode_episode(info)
            except ValueError:  # the store knows it still
                continue
            if whole:
                self._whole.add(episode.id)
        if rows:
            self.added.set()

    def set_reached(self) -> None:
        """The store has answered: from now on a gateway may start with this outbox while the store is away."""
        if not self.reached:
            with self._file.writing() as db:
                db.execute("INSERT OR REPLACE INTO facts VALUES ('reached', 'yes')")
            self.reached = True

    # -- records ----------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """How many records wait for the store."""
        return self._rows

    @property
    def bytes(self) -> int:
        """Their size as stored."""
        return self._bytes

    def commit(self, records: Sequence[Record]) -> list[Exception | None]:
        """Make records durable, in one transaction. The answers align; an error: this one is wrong. Raises
        ``StoreUnavailable``."""
        answers: list[Exception | None] = [None] * len(records)
        opened: dict[str, str] = {}
        ended: set[str] = set()
        rows: list[_Row] = []
        now = time.time()
        for at, record in enumerate(records):
            try:
                if isinstance(record, CallArrival):
                    arrival_values(record)
                    episode_id = opened[record.id] = record.episode_id
                else:
                    outcome_values(record)
                    known = opened.get(record.id) or self._open.get(record.id)
                    if known is None or record.id in ended:
                        raise ValueError(f"call {record.id!r}: it has not arrived, or has ended already")
                    episode_id = known
                payload = encode_record(record)
            except Exception as error:
                if not isinstance(error, ValueError):
                    log.exception("call %r cannot be recorded", record.id)
                answers[at] = error
                continue
            if isinstance(record, CallOutcome):
                ended.add(record.id)
            what = "arrival" if isinstance(record, CallArrival) else "outcome"
            checksum = _checksum(record.id, episode_id, what, payload)
            rows.append((record.id, episode_id, what, now, len(payload), checksum, payload))
        self._insert(rows, opened, ended)
        return answers

    def _insert(self, rows: Sequence[_Row], opened: dict[str, str], ended: set[str]) -> None:
        if not rows:
            return
        with self._file.writing() as db:
            for row in rows:
                number = db.execute(
                    "INSERT INTO records (call_id, episode_id, what, at, size, checksum, payload) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                ).lastrowid
                db.execute("INSERT INTO pending VALUES (?)", (number,))
            db.executemany("INSERT OR REPLACE INTO open_calls VALUES (?, ?)", opened.items())
            db.executemany("DELETE FROM open_calls WHERE call_id = ?", ((call_id,) for call_id in ended))
        self._open.update(opened)
        for call_id in ended:
            self._open.pop(call_id, None)
        self._count(rows=len(rows), size=sum(len(row[-1]) for row in rows), kept=0)
        self.added.set()

    def _count(self, *, rows: int, size: int, kept: int) -> None:
        with self._counting:
            self._rows += rows
            self._bytes += size
            self._kept += kept

    def close_open_calls(self, now: float) -> int:
        """End the calls that a killed gateway left open, as ``aborted``. To be called before the first record."""
        outcomes = [
            CallOutcome(
                id=call_id,
                status="aborted",
                http_status=None,
                finished_at=now,
                error_code=GATEWAY_KILLED,
                error_message="the gateway ended before the call did; nothing is known of what was sampled",
            )
            for call_id in self._open
        ]
        self.commit(outcomes)
        return len(outcomes)

    def next_batch(self, rows: int, size: int) -> list[Pending]:
        """The first waiting records, at most ``rows``, and about ``size`` bytes. Empty: none waits."""
        found = []
        with self._file.reading() as db:
            for row in db.execute(
                "SELECT number, call_id, episode_id, what, checksum, payload FROM pending JOIN records USING (number) "
                "ORDER BY number LIMIT ?",
                (rows,),
            ):
                found.append(row)
                size -= len(row[5])
                if size <= 0:
                    break
        return [
            Pending(number, call_id, what, _read(call_id, episode_id, what, checksum, payload))
            for number, call_id, episode_id, what, checksum, payload in found
        ]

    def delivered(self, numbers: Sequence[int]) -> None:
        """The store has these. Only those of open episodes are kept."""
        self._leave(numbers)

    def set_aside(self, number: int, reason: str, now: float) -> None:
        """The store will not get this one; it stays here with its reason."""
        self._leave([number], (number, now, reason))

    def _leave(self, numbers: Sequence[int], aside: tuple[int, float, str] | None = None) -> None:
        with self._file.writing() as db:
            ids = json.dumps(list(numbers))
            some = "(SELECT value FROM json_each(?))"
            rows, size = db.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM pending JOIN records USING (number) "
                f"WHERE number IN {some}",
                (ids,),
            ).fetchone()
            db.execute(f"DELETE FROM pending WHERE number IN {some}", (ids,))
            if aside is not None:
                db.execute("INSERT OR REPLACE INTO set_aside VALUES (?, ?, ?)", aside)
            gone = db.execute(
                f"DELETE FROM records WHERE number IN {some} AND episode_id NOT IN (SELECT id FROM episodes) "
                "AND number NOT IN (SELECT number FROM set_aside) RETURNING size",
                (ids,),
            ).fetchall()
        self._count(rows=-rows, size=-size, kept=size - sum(one for (one,) in gone))

    def set_asides(self) -> list[SetAside]:
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT number, call_id, episode_id, what, reason FROM set_aside JOIN records USING (number) "
                "ORDER BY number"
            ).fetchall()
        return [SetAside(*row) for row in rows]

    def retry(self) -> int:
        """What was set aside waits for the store again. Returns how many records that are."""
        with self._file.writing() as db:
            db.execute("INSERT OR IGNORE INTO pending SELECT number FROM set_aside")
            count = db.execute("DELETE FROM set_aside").rowcount
        self._load()
        return count

    # -- what open episodes need --------------------------------------------------------------------------------------

    def remember(self, token_hash: str, episode: EpisodeInfo, *, opened: bool = False) -> None:
        """Keep an open episode's identity and its records from now on. ``opened``: it has no calls yet."""
        if self._episodes.get(token_hash) == episode or episode.ended_at is not None:
            return
        with self._file.writing() as db:
            if opened:
                self._whole.add(episode.id)
            db.execute(
                "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?)",
                (token_hash, episode.id, episode.expires_at, episode.id in self._whole, encode_episode(episode)),
            )
            self._episodes[token_hash] = episode

    def find_episode(self, token_hash: str) -> EpisodeInfo | None:
        """An episode as it was when the store was last asked; ``None``: not remembered."""
        return self._episodes.get(token_hash)

    def forget(self, episode_id: str) -> None:
        """An episode has ended: nothing of it is kept here once the store has it. Returns at once."""
        self._episodes = {key: one for key, one in self._episodes.items() if one.id != episode_id}
        self._forgotten.add(episode_id)
        self.added.set()

    @property
    def untidy(self) -> bool:
        return bool(self._forgotten)

    def tidy(self, now: float) -> None:
        """Delete what no open episode needs any more. To be called now and then, by one thread."""
        forgotten = {self._forgotten.pop() for _ in range(len(self._forgotten))}
        forgotten |= {episode.id for episode in self._episodes.values() if episode.expires_at <= now}
        surplus = len(self._episodes) - len(forgotten) - EPISODES_KEPT
        if surplus > 0:
            forgotten |= {episode.id for episode in list(self._episodes.values())[:surplus]}
        if forgotten:
            self._drop(forgotten, identity=True)
        while self._kept > KEPT_LIMIT and (quiet := self._quietest()):
            log.warning("outbox: episode %s is no longer kept here, to stay below %d bytes", quiet, KEPT_LIMIT)
            self._drop({quiet}, identity=False)

    def _quietest(self) -> str | None:
        with self._file.reading() as db:
            row = db.execute(
                "SELECT episode_id FROM records WHERE number NOT IN (SELECT number FROM pending) AND number NOT IN "
                "(SELECT number FROM set_aside) GROUP BY episode_id ORDER BY max(number) LIMIT 1"
            ).fetchone()
        return None if row is None else str(row[0])

    def _drop(self, episode_ids: Iterable[str], *, identity: bool) -> None:
        ids = json.dumps(sorted(episode_ids))
        some = "(SELECT value FROM json_each(?))"
        with self._file.writing() as db:
            if identity:
                db.execute(f"DELETE FROM episodes WHERE id IN {some}", (ids,))
            else:
                db.execute(f"UPDATE episodes SET whole = 0 WHERE id IN {some}", (ids,))
            gone = db.execute(
                f"DELETE FROM records WHERE episode_id IN {some} AND number NOT IN (SELECT number FROM pending) "
                "AND number NOT IN (SELECT number FROM set_aside) RETURNING size",
                (ids,),
            ).fetchall()
        named = set(json.loads(ids))
        self._whole -= named
        if identity:
            self._episodes = {key: one for key, one in self._episodes.items() if one.id not in named}
        self._count(rows=0, size=0, kept=-sum(size for (size,) in gone))
        self._file.shrink()

    def read_episode(self, episode_id: str) -> Here:
        """What is here of an episode's calls."""
        with self._file.reading() as db:
            (whole,) = db.execute("SELECT max(whole) FROM episodes WHERE id = ?", (episode_id,)).fetchone()
            rows = db.execute(
                "SELECT call_id, episode_id, what, checksum, payload FROM records WHERE episode_id = ? ORDER BY number",
                (episode_id,),
            ).fetchall()
        arrivals: dict[str, CallArrival] = {}
        outcomes: dict[str, CallOutcome] = {}
        for call_id, _, what, checksum, payload in rows:
            record = _read(call_id, episode_id, what, checksum, payload)
            if isinstance(record, CallArrival):
                arrivals[call_id] = record
            elif isinstance(record, CallOutcome):
                outcomes[call_id] = record
            else:
                whole = False  # the store may have it
        return Here(arrivals, outcomes, bool(whole))

    def state(self) -> OutboxState:
        with self._file.reading() as db:
            (oldest,) = db.execute(
                "SELECT at FROM records WHERE number = (SELECT min(number) FROM pending)"
            ).fetchone() or (None,)
            (aside,) = db.execute("SELECT count(*) FROM set_aside").fetchone()
        return OutboxState(str(self.path), self._rows, self._bytes, self._kept, oldest, aside)

    def close(self) -> None:
        self._file.close()


def _checksum(call_id: str, episode_id: str, what: str, payload: bytes) -> bytes:
    return hashlib.sha256(f"{call_id} {episode_id} {what} ".encode() + payload).digest()[:16]


def _read(call_id: str, episode_id: str, what: str, checksum: bytes, payload: bytes) -> Record | ValueError:
    """A row's record, or what is wrong with the row."""
    try:
        if _checksum(call_id, episode_id, what, payload) != checksum:
            return ValueError(f"the outbox's {what} of call {call_id!r} is damaged: its checksum is wrong")
        return decode_record(payload)
    except (TypeError, ValueError) as error:
        return ValueError(f"the outbox's {what} of call {call_id!r} is damaged: {error}")
