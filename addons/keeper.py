"""What makes the gateway's calls durable and finds them again: a SQLite store by itself, or an outbox before a
PostgreSQL one.

Rules of this module: what this gateway has taken is looked for here first (the outbox) and in the store only where that
does not have it all. A store that is away or silent never keeps an open episode waiting for what is here. Calls that a
killed gateway left open are closed by whoever can know that it is gone: the next gateway with the same outbox, or the
only gateway on a SQLite file. Blocking, but for ``room`` and ``close``; ``open`` and ``close`` come once each.
"""

import asyncio
import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import make_url
from sqlalchemy.orm import Session

from dragoman.addons.delivery import deliver
from dragoman.addons.drain import Drain
from dragoman.addons.earlier import Kept, read_kept
from dragoman.addons.errors import Overloaded
from dragoman.addons.outbox import Outbox
from dragoman.addons.outbox_episodes import Here
from dragoman.addons.recorder import Recorder
from dragoman.addons.settings import Settings
from dragoman.home import state_folder
from dragoman.store import calls, episodes
from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallInfo, CallOutcome, EpisodeInfo, JsonObject

QUEUE_LIMIT = 64 * 1024 * 1024
"""Bytes of records in memory from which no new call begins."""
ROOM_SECONDS = 20.0
"""How long a new call waits for room before it is refused."""
STORE_SECONDS = 5.0
"""How long a store behind an outbox is given for an answer."""
SILENT_SECONDS = 30.0
"""How long a store that gave none is not asked for what is here as well."""

log = logging.getLogger("dragoman")
T = TypeVar("T")


@dataclass(slots=True)
class Keeper:
    database: Database
    recorder: Recorder
    outbox: Outbox | None
    """``None``: the store is SQLite, and written to directly."""
    drain: Drain | None
    outbox_limit: int
    closed_calls: int
    """How many calls of a killed gateway were found open and are now aborted."""
    _alone: int | None = None
    """Descriptor by whose lock other gateways on a SQLite store see this one."""
    _silent_until: float = 0.0
    _warned_at: float = -math.inf

    @classmethod
    def open(cls, settings: Settings) -> "Keeper":
        """Open the store, and the outbox where it needs one. Raises ``StoreError``.

        With an outbox whose store has answered before, the store may be away now.
        """
        if not settings.store.startswith("postgresql"):
            return cls._open_sqlite(settings)
        later = Database.later(settings.store)
        outbox = Outbox(settings.outbox or state_folder() / "outbox.db", later.url, fsync=settings.fsync)
        unopened: str | None = None
        try:
            Database.open(settings.store).close()
        except StoreUnavailable as error:
            if not outbox.reached:
                outbox.close()
                raise
            unopened = settings.store
            log.warning("the gateway starts without its store, and records wait in the outbox: %s", error)
        closed = outbox.close_open_calls(time.time())
        recorder, drain = Recorder(outbox.commit), Drain(outbox, later, unopened)
        recorder.start()
        drain.start()
        return cls(later, recorder, outbox, drain, settings.outbox_limit, closed)

    @classmethod
    def _open_sqlite(cls, settings: Settings) -> "Keeper":
        database = Database.open(settings.store, fsync=settings.fsync)
        path = Path(str(make_url(settings.store).database))
        file = os.open(path.with_name(path.name + ".gateways"), os.O_RDWR | os.O_CREAT, 0o600)
        closed = 0
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning(
                "another gateway uses this store; calls that a killed one left open stay so until one starts alone"
            )
        else:
            with database.session() as session:
                closed = calls.close_open_calls(session, started_before=math.inf, now=time.time())
        fcntl.flock(file, fcntl.LOCK_SH)
        recorder = Recorder(partial(deliver, database))
        recorder.start()
        return cls(database, recorder, None, None, 0, closed, file)

    async def close(self, *, grace: float = 10.0) -> None:
        """Make everything durable that waits, and stop. Raises ``StoreUnavailable`` when records are lost."""
        try:
            await self.recorder.close(grace=grace)
        finally:
            if self.drain is not None and self.outbox is not None:
                await asyncio.to_thread(self.drain.close, grace=grace)
                if self.outbox.rows:
                    log.warning("%d records wait in the outbox for the next start", self.outbox.rows)
                self.outbox.close()
            self.database.close()
            if self._alone is not None:
                os.close(self._alone)

    # -- room -------------------------------------------------------------------------------------------------------

    @property
    def why_full(self) -> str | None:
        """Why no new call can be taken; ``None``: there is room."""
        if (size := self.recorder.queued_bytes) > QUEUE_LIMIT:
            return f"{size} bytes of records wait in memory: {self.recorder.last_error or 'commits are slow'}"
        if self.outbox is not None and (size := self.outbox.bytes) > self.outbox_limit:
            why = (self.drain and self.drain.last_error) or "it takes them slowly"
            return f"{size} bytes of records wait in the outbox for the store, more than {self.outbox_limit}: {why}"
        return None

    async def room(self) -> None:
        """Wait until a new call can be recorded. Raises ``Overloaded`` when that takes ``ROOM_SECONDS``."""
        give_up = time.monotonic() + ROOM_SECONDS
        while (why := self.why_full) is not None:
            if time.monotonic() - self._warned_at > SILENT_SECONDS:
                self._warned_at = time.monotonic()
                log.error("new calls wait: %s", why)
            if time.monotonic() >= give_up:
                raise Overloaded(f"calls cannot be recorded now: {why}")
            await asyncio.sleep(0.1)

    # -- finding ----------------------------------------------------------------------------------------------------

    def find_episode(self, token_hash: str) -> EpisodeInfo | None:
        """The episode of a token, as the store has it, or as it had when it was last asked; ``None``: there is none.

        Raises ``StoreUnavailable`` when it is not remembered either.
        """
        known = None if self.outbox is None else self.outbox.episodes.find(token_hash)
        if known is not None and self._away():
            return known
        try:
            found = self._ask(lambda session: episodes.find_by_token(session, token_hash))
        except StoreUnavailable:
            if known is None:
                raise
            return known
        if found is not None and found.ended_at is None:
            self._remember(token_hash, found)
        elif known is not None:
            self.forget(known.id)
        return found

    def opened(self, token_hash: str, episode: EpisodeInfo) -> None:
        """This gateway has opened an episode."""
        self._remember(token_hash, episode, opened=True)

    def _remember(self, token_hash: str, episode: EpisodeInfo, *, opened: bool = False) -> None:
        if self.outbox is None:
            return
        try:
            self.outbox.episodes.remember(token_hash, episode, opened=opened)
        except StoreUnavailable as error:  # it only helps while the store is away
            log.warning("episode %s is not remembered: %s", episode.id, error)

    def forget(self, episode_id: str) -> None:
        if self.outbox is not None:
            self.outbox.episodes.forget(episode_id)
            self.outbox.added.set()

    def read_calls(self, episode_id: str, *, others: bool) -> list[CallInfo]:
        """The calls of an episode, in order of arrival.

        ``others``: also those that other gateways on the store have taken since. Raises ``StoreUnavailable``.
        """
        here = Here() if self.outbox is None else self.outbox.episodes.read(episode_id)
        if here.whole and not others:
            return here.over(())
        return here.over(self._ask(lambda session: calls.read_calls(session, episode_id)))

    def kept(self, episode_id: str, call_id: str) -> Kept | None:
        """What the reply of a call of the episode stands for. Raises ``StoreUnavailable``.

        ``None``: there is no such call in the episode, or none of its kind.
        """
        here = Here() if self.outbox is None else self.outbox.episodes.read(episode_id)
        outcome = here.outcomes.get(call_id)
        if outcome is None or call_id not in here.arrivals:
            return None if here.whole else self._ask(lambda session: _kept(session, episode_id, call_id))
        if outcome.state is None:
            return None
        return read_kept(CallInfo(here.arrivals[call_id], outcome), self._messages(here, call_id), outcome.state)

    def _messages(self, here: Here, call_id: str) -> list[bytes]:
        """All messages of a call that is ``here``, in order, where its parents may be in the store only."""
        line: list[CallOutcome] = []
        at: str | None = call_id
        while at is not None and (outcome := here.outcomes.get(at)) is not None:
            line.append(outcome)
            at = outcome.parent_id if outcome.messages_kept else None
        root = at
        said = [] if root is None else self._ask(lambda session: calls.read_messages(session, root))
        for outcome in reversed(line):
            said = [*said[: outcome.messages_kept], *(blob.data for blob in outcome.messages)]
        return said

    def _away(self) -> bool:
        return time.monotonic() < self._silent_until or (self.drain is not None and self.drain.last_error is not None)

    def _ask(self, question: Callable[[Session], T]) -> T:
        """Ask the store. Raises ``StoreUnavailable``, also when a store behind an outbox gives no answer."""

        def ask() -> T:
            with self.database.reading() as session:
                return question(session)

        if self.outbox is None:
            return ask()
        if time.monotonic() < self._silent_until:
            raise StoreUnavailable(f"the store {self.database.url} does not answer")
        answer: Future[T] = Future()

        def answering() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        # A thread of its own: one that hangs with the store keeps neither the others nor the end of the process up.
        threading.Thread(target=answering, name="dragoman-store", daemon=True).start()
        try:
            return answer.result(STORE_SECONDS)
        except NoAnswer as error:
            self._silent_until = time.monotonic() + SILENT_SECONDS
            raise StoreUnavailable(
                f"the store {self.database.url} has not answered in {STORE_SECONDS:.0f} seconds"
            ) from error

    # -- for people -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many records the store does not have yet."""
        return self.recorder.depth + (self.outbox.rows if self.outbox is not None else 0)

    def status(self) -> JsonObject:
        """``queue``: records in memory; ``outbox``: ``OutboxState`` and why it does not empty, or ``None``."""
        queue = {
            "records": self.recorder.depth,
            "bytes": self.recorder.queued_bytes,
            "limit": QUEUE_LIMIT,
            "error": self.recorder.last_error,
        }
        outbox: JsonObject | None = None
        if self.outbox is not None and self.drain is not None:
            outbox = {**asdict(self.outbox.state()), "limit": self.outbox_limit, "error": self.drain.last_error}
        return {"queue": queue, "outbox": outbox, "full": self.why_full}


def _kept(session: Session, episode_id: str, call_id: str) -> Kept | None:
    found = calls.read_call(session, call_id)
    state = calls.read_state(session, call_id)
    if found is None or state is None or found.arrival.episode_id != episode_id:
        return None
    return read_kept(found, calls.read_messages(session, call_id), state)
