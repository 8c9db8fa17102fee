"""Records into the store, in one transaction where that goes.

Rules of this module: one record that the store refuses keeps no other from being written; each gets its own answer. A
store that cannot be used is an exception, and then nothing was written.
"""

import logging
from collections.abc import Sequence

from dragoman.addons.record_bytes import Record
from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallOutcome

log = logging.getLogger(__name__)


def deliver(database: Database, records: Sequence[Record]) -> list[Exception | None]:
    """Write records, arrivals first; a record that is there already is left as it is.

    The answers align with ``records``: ``None``: it is in the store; an error: the store refuses this one, and will
    again. Raises ``StoreUnavailable``.
    """
    try:
        with database.session() as session:
            arrivals = [record for record in records if isinstance(record, CallArrival)]
            outcomes = [record for record in records if isinstance(record, CallOutcome)]
            arrived, ended = iter(write_arrivals(session, arrivals)), iter(write_outcomes(session, outcomes))
            return [next(arrived) if isinstance(record, CallArrival) else next(ended) for record in records]
    except StoreUnavailable:
        raise
    except Exception as error:  # the checks missed something: find the record, so that it stops only itself
        if len(records) > 1:
            return [answer for record in records for answer in deliver(database, [record])]
        log.exception("call %r cannot be recorded", records[0].id)
        return [error]
