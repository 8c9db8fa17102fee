"""Which traces are scored again, and what is said of them. The scoring itself: ``tests/e2e``."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import open_episode
from dragoman.store.records import EpisodeSpec
from dragoman.store.traces import Trace, build_traces
from dragoman.trainer.rescore_traces import RescoredTrace, stored_traces, summary, why_skipped
from tests.store_calls import Episode


def branched() -> Episode:
    """Two samples of a second turn, of which one is cut and gone on with; an edit; a turn behind a forced call."""
    episode = Episode("e1")
    episode.add("a", [1, 2], [10])
    episode.add("b", [1, 2, 10, 3], [11], parent="a", finish_reason="length")
    episode.add("c", [1, 2, 10, 3], [12], parent="a")
    episode.add("d", [*episode.stream("b"), 4], [13], parent="b")
    episode.add("e", [*episode.stream("c"), 4], [14], parent="c")
    episode.add("f", [1, 9, 10, 3], [15], parent="a", fork_reason="history_edited")
    episode.add("g", [5], [16], constrained=True)
    episode.add("h", [*episode.stream("g"), 6], [17], parent="g")
    return episode


def stored(folder: Path, *episodes: Episode) -> Database:
    database = Database.open(f"sqlite:///{folder}/a.db")
    with database.session() as session:
        for at, episode in enumerate(episodes):
            digest = f"{at:064}"
            open_episode(
                session, EpisodeSpec(), episode_id=episode.id, token_hash=digest, now=1.0 + at, expires_at=99.0
            )
            assert set(write_arrivals(session, [call.arrival for call in episode.calls])) == {None}
            outcomes = [call.outcome for call in episode.calls if call.outcome is not None]
            assert set(write_outcomes(session, outcomes)) == {None}
    return database


def named(episode: Episode) -> Episode:
    """With call ids as a store takes them, by which the calls can still be told."""
    renamed = Episode(episode.id)
    for call in episode.calls:
        assert call.outcome is not None
        outcome = call.outcome
        renamed.add(
            call_id(call.arrival.id),
            episode.prompts[outcome.id],
            episode.completions[outcome.id],
            parent=None if outcome.parent_id is None else call_id(outcome.parent_id),
            finish_reason=outcome.finish_reason,
            fork_reason=outcome.fork_reason,
            constrained=outcome.constrained,
        )
    return renamed


def call_id(name: str) -> str:
    return name * 20


def test_traces_of_many_turns_come_first_and_each_says_what_it_goes_on_from(tmp_path: Path) -> None:
    other = Episode("e2")
    other.add("z" * 20, [1], [2])
    database = stored(tmp_path, named(branched()), other)
    found = [("".join(one[0] for one in trace.call_ids), context) for trace, context in stored_traces(database)]
    assert found[0] == ("abd", ("cut",))
    assert sorted(found[1:]) == [("ce", ("branch",)), ("f", ("branch", "fork")), ("h", ("constrained",)), ("z", ())]
    assert [trace.episode_id for trace, _ in stored_traces(database, ["e2"])] == ["e2"]
    assert [len(trace.call_ids) for trace, _ in stored_traces(database, turns=2)] == [3, 2]
    assert [len(trace.call_ids) for trace, _ in stored_traces(database, limit=1)] == [3]
    database.close()


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"temperature": 0.7, "top_p": 1.0}, None),
        ({"top_k": 5}, "top_k 5"),
        (None, None),
    ],
)
def test_a_trace_with_a_turn_of_another_distribution_is_skipped(used: Any, reason: str | None) -> None:
    episode = Episode()
    episode.add("a", [1], [2])
    episode.add("b", [1, 2, 3], [4], parent="a", sampling_used=used)
    assert why_skipped(only(episode)) == reason


def test_a_turn_that_is_not_trained_is_no_reason_to_skip() -> None:
    episode = Episode()
    episode.add("a", [1], [2], constrained=True, sampling_used={"top_k": 5})
    episode.add("b", [1, 2, 3], [4], parent="a")
    assert why_skipped(only(episode)) is None


def only(episode: Episode) -> Trace:
    (trace,) = build_traces(episode.calls).traces
    return trace


def test_the_summary_is_over_what_was_scored() -> None:
    found = [
        RescoredTrace(("a", "b"), 40, 10, ("fork", "cut"), ("base",), largest=0.2, mean=0.1),
        RescoredTrace(("c",), 90, 30, ("cut",), ("base",), largest=0.1, mean=0.02),
        RescoredTrace(("d",), 5, 0, ("branch",), ("base",), None, None, skipped="top_k 5"),
    ]
    assert summary(found) == {
        "traces": 2,
        "skipped": 1,
        "turns": 3,
        "tokens": 40,
        "largest": 0.2,
        "mean": pytest.approx(0.04),
        "context": {"branch": 0, "fork": 1, "constrained": 0, "cut": 2},
    }
    assert summary([])["largest"] is None
