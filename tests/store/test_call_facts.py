"""Facts read from columns are the facts of the decoded calls."""

from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.store.call_facts import facts_of, read_facts
from dragoman.store.calls import read_calls, write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import open_episode
from dragoman.store.ledger import audit, audit_facts
from dragoman.store.packing import digest
from dragoman.store.records import EpisodeSpec
from dragoman.store.traces import build_traces
from tests.store_calls import Episode, episodes

numbers = count()


def write(database: Database, *written: Episode) -> None:
    with database.session() as session:
        for episode in written:
            token_hash = digest(episode.id.encode()).hex() * 2
            open_episode(session, EpisodeSpec(), episode_id=episode.id, token_hash=token_hash, now=1.0, expires_at=9.0)
            arrivals = [call.arrival for call in episode.calls]
            outcomes = [call.outcome for call in episode.calls if call.outcome is not None]
            assert write_arrivals(session, arrivals) == [None] * len(arrivals)
            assert write_outcomes(session, outcomes) == [None] * len(outcomes)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_episode_comes_back_with_its_facts_its_traces_and_its_ledger(
    database: Database, data: st.DataObject
) -> None:
    names = [f"t{next(numbers)}", f"t{next(numbers)}"]
    written = [data.draw(episodes(most=8, episode_id=name)) for name in names]
    write(database, *written)
    with database.reading() as session:
        facts = read_facts(session, names)
        calls = {name: read_calls(session, name) for name in names}
        assert read_facts(session, names[:1]) == {names[0]: facts[names[0]]}
        everything = read_facts(session)
        assert {name: everything[name] for name in names} == facts
    for name, episode in zip(names, written, strict=True):
        assert facts[name] == [facts_of(call) for call in calls[name]]
        assert facts[name] == [facts_of(call) for call in episode.calls]
        for trace, expected in zip(build_traces(calls[name]).traces, build_traces(episode.calls).traces, strict=True):
            assert trace.token_ids.tolist() == expected.token_ids.tolist()
            assert trace.loss_mask.tolist() == expected.loss_mask.tolist()
            assert trace.logprobs.tolist() == expected.logprobs.tolist()
            assert trace.policy_spans == expected.policy_spans
        assert audit_facts(facts[name]) == audit(calls[name])


def test_an_episode_without_calls_is_absent(database: Database) -> None:
    write(database, Episode("e1"))
    with database.reading() as session:
        assert read_facts(session) == {}
        assert read_facts(session, ["e1", "e9"]) == {}


def test_lengths() -> None:
    episode = Episode()
    episode.add("a", [1, 2, 3], [4, 5])
    episode.add("b", [1, 2, 3, 4, 5, 6], [7], parent="a")
    episode.end("c", "refused", prompt_len=70_000)
    a, b, c = (facts_of(call) for call in episode.calls)
    assert (a.stream_len, b.shared_len, b.prompt_len, b.completion_len) == (5, 5, 6, 1)
    assert (b.continues(a), a.continues(a)) == (True, False)
    assert (c.prompt_len, c.stream_len) == (0, 0)  # its ids are not stored: nothing can be kept of it
