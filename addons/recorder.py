"""Makes calls durable, off the event loop: one writer thread that commits everything waiting in one transaction.

Rules of this module: a record's future resolves when its row is committed, and not before: a gateway may let out what a
harness acts on only then. Records stay in the queue, in order, until they are committed; a failing database is tried
again for ever (until ``close`` gives up) and loses nothing. A record that is refused fails its own future only.

Where records are committed is not known here: a SQLite store (``delivery.deliver``), or the outbox of a PostgreSQL one.
Nor does the queue refuse anything; ``keeper`` holds new calls back while ``queued_bytes`` is too much.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from dragoman.addons.record_bytes import Record, record_size
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallOutcome

FIRST_DELAY = 0.05
LONGEST_DELAY = 1.0
"""Seconds between tries while the database fails; each is twice as long as the one before."""

log = logging.getLogger(__name__)

Commit = Callable[[Sequence[Record]], list[Exception | None]]
"""Makes records durable in one transaction. The answers align; an error: this record is refused, and the others are
written. Raises ``StoreUnavailable``, and nothing was written then."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    record: Record
    future: asyncio.Future[None]
    """Belongs to the loop that ``arrive`` or ``finish`` was called on; only that loop's thread may resolve it."""
    size: int


class Recorder:
    """Takes records from any number of event loops and threads that run one."""

    def __init__(self, commit: Commit, *, max_batch: int = 256) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        """Guards ``_queue``, ``_queued_bytes`` and ``_give_up_at``."""
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
    def queued_bytes(self) -> int:
        """About how much memory those records take."""
        return self._queued_bytes

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
        waiting = _Waiting(record, future, record_size(record))
        with self._changed:
            if self._give_up_at is not None or self._thread.ident is None:
                raise RuntimeError(f"call {record.id!r} cannot be recorded: the recorder is closed or not started")
            self._queue.append(waiting)
            self._queued_bytes += waiting.size
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
                    self._queued_bytes -= self._queue.popleft().size
            _resolve(answered)

    def _next_batch(self) -> list[_Waiting]:
        """Everything queued, up to ``max_batch``, without taking it out. Waits for some; empty: closed and drained."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._give_up_at is not None)
            return list(islice(self._queue, self._max_batch))

    def _abandon(self, error: StoreUnavailable) -> None:
        """Give up for good: fail every future that is left, and take no more records."""
        with self._changed:
            self._error = error
            self._give_up_at = time.monotonic()
            left = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
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
