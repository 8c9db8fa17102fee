"""The outbox: durable when it answers, in order, whole, and nothing is lost that a store refuses."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.addons.outbox import Outbox, look
from dragoman.addons.record_bytes import Record
from dragoman.store.errors import StoreUnavailable
from dragoman.store.records import CallArrival, CallOutcome, EpisodeInfo, EpisodeSpec

STORE = "postgresql://user@host/name"


def arrival(call_id: str, at: float = 10.0, episode_id: str = "e1") -> CallArrival:
    return CallArrival(id=call_id, episode_id=episode_id, provider="anthropic", path="/v1/messages", arrived_at=at)


def answered(call_id: str, parent_id: str | None = None, shared_len: int = 0) -> CallOutcome:
    return CallOutcome(
        id=call_id,
        status="answered",
        http_status=200,
        finished_at=20.0,
        parent_id=parent_id,
        shared_len=shared_len,
        prompt_ids=np.array([1, 2], np.int32),
        prompt_len=2 + shared_len,
        completion_ids=np.array([3], np.int32),
        logprobs=np.array([-0.5], np.float32),
    )


def episode(episode_id: str = "e1", expires_at: float = 1e12) -> EpisodeInfo:
    return EpisodeInfo(episode_id, EpisodeSpec(), 1.0, expires_at, None, None, None, None)


def names(outbox: Outbox) -> list[tuple[str, str]]:
    return [(one.call_id, one.what) for one in outbox.next_batch(1000, 10**9)]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "o.db", STORE)
    yield opened
    opened.close()


def put(outbox: Outbox, *records: Record) -> None:
    assert outbox.commit(records) == [None] * len(records)


def test_records_wait_in_order_until_they_are_delivered(outbox: Outbox) -> None:
    put(outbox, arrival("c1"), arrival("c2"), answered("c1"))
    put(outbox, answered("c2"))
    assert names(outbox) == [("c1", "arrival"), ("c2", "arrival"), ("c1", "outcome"), ("c2", "outcome")]
    assert outbox.rows == 4
    assert outbox.bytes > 0
    batch = outbox.next_batch(3, 10**9)
    assert batch[0].record == arrival("c1")
    outbox.delivered([one.number for one in batch])
    assert names(outbox) == [("c2", "outcome")]
    outbox.delivered([one.number for one in outbox.next_batch(3, 10**9)])
    assert (outbox.rows, outbox.bytes, outbox.state().kept_bytes) == (0, 0, 0)


def test_a_batch_is_bounded_by_bytes_and_never_empty(outbox: Outbox) -> None:
    put(outbox, *(arrival(f"c{n}") for n in range(10)))
    assert len(outbox.next_batch(100, 1)) == 1
    assert 1 < len(outbox.next_batch(100, outbox.bytes // 2)) < 10


def test_wrong_records_are_refused_at_once_and_alone(outbox: Outbox) -> None:
    answers = outbox.commit(
        [
            arrival("c1"),
            replace(arrival("c2"), kind="odd"),  # type: ignore[arg-type]
            answered("c2"),
            replace(answered("c1"), logprobs=np.array([np.nan], np.float32)),
            answered("c1"),
            answered("c1"),
            replace(arrival("c3"), path=None),  # type: ignore[arg-type]
            answered("c9"),
        ]
    )
    assert [str(answer) if answer else None for answer in answers] == [
        None,
        "call 'c2': kind 'odd' is not one of main, subagent, side, compaction, warm_up",
        "call 'c2': it has not arrived, or has ended already",
        "call 'c1': logprob 0 is nan; every logprob must be finite",
        None,
        "call 'c1': it has not arrived, or has ended already",
        str(answers[6]),
        "call 'c9': it has not arrived, or has ended already",
    ]
    assert answers[6] is not None
    assert names(outbox) == [("c1", "arrival"), ("c1", "outcome")]


def test_everything_is_there_after_it_was_closed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.db", STORE)
    put(outbox, arrival("c1"), answered("c1"), arrival("c2"))
    outbox.episodes.remember("hash", episode())
    outbox.set_aside(1, "no", 5.0)
    outbox.set_reached()
    size = outbox.bytes
    outbox.close()
    again = Outbox(tmp_path / "o.db", STORE)
    assert names(again) == [("c1", "outcome"), ("c2", "arrival")]
    assert (again.rows, again.bytes, again.reached) == (2, size, True)
    assert again.added.is_set()
    assert again.episodes.find("hash") == episode()
    assert again.commit([answered("c2"), answered("c1")])[0] is None
    again.close()


def test_calls_that_were_open_are_closed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.db", STORE)
    put(outbox, arrival("c1"), answered("c1"), arrival("c2"), arrival("c3"))
    outbox.delivered([one.number for one in outbox.next_batch(100, 10**9)])  # also when the store has them already
    outbox.close()
    again = Outbox(tmp_path / "o.db", STORE)
    assert again.close_open_calls(30.0) == 2
    ended = [one.record for one in again.next_batch(100, 10**9)]
    assert [(one.id, one.status, one.error_code) for one in ended if isinstance(one, CallOutcome)] == [
        ("c2", "aborted", "gateway_killed"),
        ("c3", "aborted", "gateway_killed"),
    ]
    assert again.close_open_calls(30.0) == 0
    again.close()


def test_another_store(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.db", STORE)
    put(outbox, arrival("c1"), answered("c1"))
    outbox.episodes.remember("hash", episode())
    outbox.set_reached()
    outbox.close()
    with pytest.raises(StoreUnavailable, match="holds 2 records for the store postgresql://user@host/name"):
        Outbox(tmp_path / "o.db", "postgresql://user@elsewhere/name")
    again = Outbox(tmp_path / "o.db", STORE)
    again.delivered([one.number for one in again.next_batch(10, 10**9)])
    again.close()
    other = Outbox(tmp_path / "o.db", "postgresql://user@elsewhere/name")
    assert (other.reached, other.episodes.find("hash"), other.state().kept_bytes) == (False, None, 0)
    other.close()


def test_what_is_set_aside_stays_with_its_reason_and_can_be_tried_again(outbox: Outbox) -> None:
    put(outbox, arrival("c1"), answered("c1"))
    first, second = outbox.next_batch(10, 10**9)
    outbox.set_aside(second.number, "the store says no", 5.0)
    outbox.delivered([first.number])
    assert outbox.rows == 0
    (aside,) = outbox.set_asides()
    assert (aside.call_id, aside.episode_id, aside.what, aside.reason) == ("c1", "e1", "outcome", "the store says no")
    assert outbox.retry() == 1
    assert names(outbox) == [("c1", "outcome")]
    assert outbox.set_asides() == []


def test_a_damaged_row_is_told_from_the_others(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.db", STORE)
    put(outbox, arrival("c1"), answered("c1"), arrival("c2"))
    outbox.close()
    damage(tmp_path / "o.db", 2)
    again = Outbox(tmp_path / "o.db", STORE)
    records = [one.record for one in again.next_batch(10, 10**9)]
    assert records[0] == arrival("c1")
    assert "the outbox's outcome of call 'c1' is damaged" in str(records[1])
    assert records[2] == arrival("c2")
    again.close()


def damage(path: Path, number: int) -> None:
    """Change one byte in the middle of a record."""
    db = sqlite3.connect(path)
    (payload,) = db.execute("SELECT payload FROM records WHERE number = ?", (number,)).fetchone()
    changed = bytearray(payload)
    changed[len(changed) // 2] ^= 1
    db.execute("UPDATE records SET payload = ? WHERE number = ?", (bytes(changed), number))
    db.commit()
    db.close()


def test_looking_in_while_it_is_used(outbox: Outbox) -> None:
    put(outbox, arrival("c1"), answered("c1"))
    outbox.set_aside(2, "no", 5.0)
    state, aside, store = look(outbox.path)
    assert state == outbox.state()
    assert (state.records, state.set_aside, store) == (1, 1, STORE)
    assert state.oldest_at is not None
    assert aside == outbox.set_asides()


VICTIM = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_outbox import STORE, Outbox, answered, arrival

outbox = Outbox(Path(sys.argv[1]), STORE)
assert outbox.commit([arrival("c1"), answered("c1"), arrival("c2")]) == [None] * 3
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-c", VICTIM, str(tmp_path / "o.db"), os.path.dirname(__file__)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    outbox = Outbox(tmp_path / "o.db", STORE)
    assert names(outbox) == [("c1", "arrival"), ("c1", "outcome"), ("c2", "arrival")]
    assert outbox.close_open_calls(30.0) == 1
    outbox.close()
