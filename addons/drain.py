"""Empties the outbox into the store, in the background, for as long as it takes.

Rules of this module: records go in the order in which they were made, a batch a transaction, and leave the outbox only
after the store's commit, so one may be delivered twice and is stored once. A store that is away is asked again for
ever, soon. A record that the store refuses is set aside with a loud error, and the call that it belongs to is ended in
the store as failed, with the reason; the rest goes on.
"""

import logging
import threading
import time
from collections.abc import Callable

from dragoman.addons.delivery import deliver
from dragoman.addons.outbox import Outbox, Pending
from dragoman.store.calls import SET_ASIDE
from dragoman.store.database import Database, migrate
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallOutcome

ROWS = 256
SIZE = 16 * 1024 * 1024
"""Records and bytes in one transaction, about."""
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds between tries while the store is away; each is twice as long as the one before."""
TIDY_EVERY = 10.0

log = logging.getLogger(__name__)


class Drain:
    """One thread."""

    def __init__(self, outbox: Outbox, database: Database, url: str | None) -> None:
        """``url``: of the store when it has not been opened yet, and must be migrated first; ``None``: it is open."""
        self._outbox = outbox
        self._database = database
        self._unopened = url
        self._error: StoreUnavailable | None = None
        self._give_up_at: float | None = None
        """Monotonic time until which closing waits for the store; ``None``: not closing."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dragoman-drain", daemon=True)

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def close(self, *, grace: float) -> None:
        """Deliver what waits, for at most ``grace`` seconds, and stop. The rest is there for the next start."""
        self._give_up_at = time.monotonic() + grace
        self._closing.set()
        self._outbox.added.set()
        if self._thread.ident is not None:
            self._thread.join(grace + 1)  # a store that hangs must not keep the gateway from ending

    @property
    def last_error(self) -> str | None:
        """Why nothing can be delivered; ``None``: nothing is wrong, as far as is known."""
        return None if self._error is None else str(self._error)

    def _run(self) -> None:
        delay = FIRST_DELAY
        tidied = 0.0
        while True:
            try:
                if self._outbox.episodes.untidy or time.monotonic() - tidied > TIDY_EVERY:
                    self._outbox.episodes.tidy(time.time())
                    tidied = time.monotonic()
                self._outbox.added.clear()
                batch = self._outbox.next_batch(ROWS, SIZE)
                if batch:
                    self.deliver(batch)
                    self._recovered()
                    delay = FIRST_DELAY
            except StoreUnavailable as error:
                self._failed(error)
                if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
                    return
                self._closing.wait(delay) if self._give_up_at is None else time.sleep(FIRST_DELAY)
                delay = min(2 * delay, LONGEST_DELAY)
                continue
            except Exception as error:  # a defect of ours; what waits is still there
                log.exception("the drain of the outbox failed; it goes on")
                self._failed(StoreUnavailable(f"the drain failed: {error!r}"))
                if self._give_up_at is not None:
                    return
                self._closing.wait(LONGEST_DELAY)
                continue
            if not batch:
                if self._give_up_at is not None:
                    return
                self._outbox.added.wait(TIDY_EVERY)
            elif self._give_up_at is not None and time.monotonic() >= self._give_up_at:
                return

    def deliver(self, batch: list[Pending]) -> None:
        """One batch into the store and out of the outbox. Raises ``StoreUnavailable``."""
        if self._unopened is not None:
            migrate(self._unopened)
            self._unopened = None
        good = [(one, one.record) for one in batch if not isinstance(one.record, ValueError)]
        refused = [(one, str(one.record)) for one in batch if isinstance(one.record, ValueError)]
        answers = deliver(self._database, [record for _, record in good])
        self._outbox.set_reached()
        refused += [(one, str(error)) for (one, _), error in zip(good, answers, strict=True) if error is not None]
        self._outbox.delivered([one.number for (one, _), error in zip(good, answers, strict=True) if error is None])
        for one, reason in refused:
            self._set_aside(one, reason)

    def _set_aside(self, one: Pending, reason: str) -> None:
        log.error("outbox: the %s of call %s cannot be stored and is set aside: %s", one.what, one.call_id, reason)
        now = time.time()
        if one.what == "outcome":  # so that the call is accounted for where people look
            ended = CallOutcome(one.call_id, "failed", None, now, error_code=SET_ASIDE, error_message=reason)
            if (answer := deliver(self._database, [ended])[0]) is not None:
                log.error("outbox: call %s cannot be ended in the store either: %s", one.call_id, answer)
        self._outbox.set_aside(one.number, reason, now)

    def _failed(self, error: StoreUnavailable) -> None:
        if str(error) != self.last_error:
            log.warning("records wait in the outbox until the store can be written again: %s", error)
        self._error = error

    def _recovered(self) -> None:
        if self._error is not None:
            log.warning("the store can be written again; %d records wait in the outbox", self._outbox.rows)
        self._error = None


def drain_now(outbox: Outbox, database: Database, said: Callable[[int], None]) -> None:
    """Deliver everything that waits, in this thread. ``said`` is told how many wait, after each batch. Raises
    ``StoreUnavailable``."""
    drain = Drain(outbox, database, None)
    while batch := outbox.next_batch(ROWS, SIZE):
        drain.deliver(batch)
        said(outbox.rows)
