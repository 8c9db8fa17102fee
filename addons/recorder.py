"""Makes calls durable, off the event loop: one writer thread that commits everything waiting in one transaction.

Rules of this module: a record's future resolves when its row is committed, and not before: a gateway may let out what a
harness acts on only then. Records stay in the queue, in order, until they are committed; a failing database is tried
again for ever (until ``close`` gives up) and loses nothing. A record that the store refuses fails its own future only.

For now a PostgreSQL store is written to directly by the same thread, so a reply waits while PostgreSQL is away. The
local outbox that lifts this is a later step.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallOutcome

FIRST_DELAY = 0.05
LONGEST_DELAY = 1.0
"""Seconds between tries while the database fails; each is twice as long as the one before."""

log = logging.getLogger(__name__)

Record = CallArrival | CallOutcome


@dataclass(frozen=True, slots=True)
class _Waiting:
    record: Record
    future: asyncio.Future[None]
    """Belongs to the loop that ``arrive`` or ``finish`` was called on; only that loop's thread may resolve it."""


class Recorder:
    """Takes records from any number of event loops and threads that run one."""

    def __init__(self, database: Database, *, max_batch: int = 256) -> None:
        self._database = database
        self._max_batch = max_batch
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        """Guards ``_queue`` and ``_give_up_at``."""
        self._give_up_at: float | None = None
        """Monotonic time until which closing waits for a failing database; ``None``: not closing."""
        self._error: StoreUnavailable | None = None
        self._thread = threading.Thread(target=self._write, name="dragoman-recorder", daemon=True)

    def start(self) -> None:
        """Start the writer thread; once."""
        self._thread.start()

    async def close(self, *, grace: float = 10.0) -> None:
        """Commit everything that waits, then stop. Takes no more records from now on.

        When the database still fails after ``grace`` seconds, the futures that are left and this call raise
        ``StoreUnavailable``.
        """
        with self._changed:
            self._give_up_at = time.monotonic() + grace
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        if self._error is not None:
            raise self._error

    def arrive(self, arrival: CallArrival) -> asyncio.Future[None]:
        """Queue a call's arrival. The future fails with ``ValueError`` when the store refuses the record."""
        return self._put(arrival)

    def finish(self, outcome: CallOutcome) -> asyncio.Future[None]:
        """Queue a call's outcome, after its arrival. The future: as in ``arrive``."""
        return self._put(outcome)

    @property
    def depth(self) -> int:
        """How many records are queued or in the commit that is under way."""
        return len(self._queue)

    @property
    def healthy(self) -> bool:
        """False from the first failed commit to the next good one."""
        return self._error is None

    @property
    def last_error(self) -> str | None:
        """Why commits fail; ``None`` while they do not."""
        return None if self._error is None else str(self._error)

    def _put(self, record: Record) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._give_up_at is not None or self._thread.ident is None:
                raise RuntimeError(f"call {record.id!r} cannot be recorded: the recorder is closed or not started")
            self._queue.append(_Waiting(record, future))
            self._changed.notify()
        return future

    def _write(self) -> None:
        """The writer thread. Should it ever break, nobody is left waiting for it."""
        try:
            self._run()
        except BaseException as error:
            self._abandon(StoreUnavailable(f"the recorder broke: {error!r}"))
            raise

    def _run(self) -> None:
        delay = FIRST_DELAY
        while batch := self._next_batch():
            try:
                answers = self._commit([waiting.record for waiting in batch])
            except StoreUnavailable as error:
                if self._error is None:
                    log.warning("records wait until the store can be written again: %s", error)
                self._error = error
                if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
                    self._abandon(error)
                    return
                time.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)
                continue
            if self._error is not None:
                log.warning("the store can be written again; %d records waited", len(self._queue))
            self._error, delay = None, FIRST_DELAY
            answered = list(zip(batch, answers, strict=True))
            with self._changed:
                for _ in batch:
                    self._queue.popleft()
            _resolve(answered)

    def _next_batch(self) -> list[_Waiting]:
        """Everything queued, up to ``max_batch``, without taking it out. Waits for some; empty: closed and drained."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._give_up_at is not None)
            return list(islice(self._queue, self._max_batch))

    def _commit(self, records: Sequence[Record]) -> list[Exception | None]:
        """Write records in one transaction; the answers align with them. Raises ``StoreUnavailable``."""
        try:
            with self._database.session() as session:
                arrivals = [record for record in records if isinstance(record, CallArrival)]
                outcomes = [record for record in records if isinstance(record, CallOutcome)]
                arrived, ended = iter(write_arrivals(session, arrivals)), iter(write_outcomes(session, outcomes))
                answers = [next(arrived) if isinstance(record, CallArrival) else next(ended) for record in records]
        except StoreUnavailable:
            raise
        except Exception as error:  # the checks missed something: find the record, so that it stops only itself
            if len(records) > 1:
                return [answer for record in records for answer in self._commit([record])]
            log.exception("call %r cannot be recorded", records[0].id)
            return [error]
        return list(answers)

    def _abandon(self, error: StoreUnavailable) -> None:
        """Give up for good: fail every future that is left, and take no more records."""
        with self._changed:
            self._error = error
            self._give_up_at = time.monotonic()
            left = list(self._queue)
            self._queue.clear()
        log.error("%d records are lost: %s", len(left), error)
        _resolve([(waiting, error) for waiting in left])


def _resolve(answered: Sequence[tuple[_Waiting, Exception | None]]) -> None:
    """Resolve futures on the loops they belong to, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
    for waiting, answer in answered:
        by_loop.setdefault(waiting.future.get_loop(), []).append((waiting.future, answer))
    for loop, resolved in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_results, resolved)
        except RuntimeError:
            if not loop.is_closed():
                raise
            log.info("%d records were committed after their event loop had closed", len(resolved))


def _set_results(resolved: Sequence[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for future, answer in resolved:
        if future.done():  # its caller was cancelled; the row is there all the same
            continue
        if answer is None:
            future.set_result(None)
        else:
            future.set_exception(answer)
