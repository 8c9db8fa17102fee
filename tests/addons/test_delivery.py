"""Records into the store: in one transaction, and a bad one alone."""

from dataclasses import replace

import numpy as np
import pytest

from dragoman.addons.delivery import deliver
from dragoman.addons.record_bytes import Record
from dragoman.store.database import Database
from dragoman.store.errors import StoreUnavailable
from tests.addons.test_recorder import answered, arrival, open_one, stored


def test_delivered_twice_is_stored_once(database: Database) -> None:
    open_one(database)
    records: list[Record] = [arrival("c1"), answered("c1"), arrival("c2")]
    assert deliver(database, records) == [None] * 3
    assert deliver(database, records) == [None] * 3
    assert stored(database) == {"c1": "answered", "c2": "arrived"}


def test_a_bad_record_fails_alone(database: Database) -> None:
    open_one(database)
    answers = deliver(
        database,
        [
            arrival("c1"),
            arrival("c2", episode_id="e9"),
            answered("c2"),
            replace(answered("c1"), logprobs=np.array([np.nan], np.float32)),
            answered("c1", messages=(None,)),  # an AttributeError inside the transaction
            arrival("c3"),
        ],
    )
    assert [type(answer) for answer in answers] == [
        type(None),
        ValueError,
        ValueError,
        ValueError,
        AttributeError,
        type(None),
    ]
    assert stored(database) == {"c1": "arrived", "c3": "arrived"}


def test_a_store_that_cannot_be_used_is_no_answer(tmp_path: object) -> None:
    database = Database.later("postgresql://nobody@/nothing?host=/nowhere")
    with pytest.raises(StoreUnavailable):
        deliver(database, [arrival("c1")])
    database.close()
