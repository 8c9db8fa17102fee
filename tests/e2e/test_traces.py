"""Traces of a real session: what stands before a trained token is what the engine says it was asked."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.store.call_facts import read_facts
from dragoman.store.ledger import audit, audit_facts
from dragoman.store.traces import build_traces, per_call
from tests.addons.test_app import Served, anthropic, serve
from tests.addons.test_continuation import OTHER_TOOL, STEPS, TOOL, echo, results, stored, turn, until_first_delta
from tests.scripted import Scripted, scripted_engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine(STEPS) as running:
        yield running


async def session(served: Served, engine: Scripted) -> None:
    """Six turns; then two samples of one request, an edited history, another tool list, a retry, and a refusal."""
    said: list[Any] = [{"role": "user", "content": "start"}]
    for new in ("", "TEXT", "PARALLEL", "BROKEN", "CUT", "more"):
        reply = await turn(served, said)
        said += [echo(reply), results(reply, {"type": "text", "text": new or "go on"})]
    await turn(served, said)
    await turn(served, said)
    await turn(served, [{"role": "user", "content": "start, reminded"}, *said[1:]])
    await turn(served, said, tools=(TOOL, OTHER_TOOL))
    served.gateway.lineages.clear()  # as after a restart
    await turn(served, [*said, echo(await turn(served, said)), {"role": "user", "content": "on"}])
    body = anthropic("HOLD", stream=True)
    await until_first_delta(served, body)
    (running,) = served.gateway.running.values()
    while running.generation.clients:
        await asyncio.sleep(0.01)
    again = asyncio.create_task(served.http.post("/v1/messages", json=body))
    while not running.generation.clients:
        await asyncio.sleep(0.01)
    engine.release()
    await again
    assert (await served.http.post("/v1/messages", json={"model": "m", "messages": 5})).status_code == 400


async def test_a_session(tmp_path: Path, engine: Scripted) -> None:
    async with serve(tmp_path, engine.address) as served:
        await session(served, engine)
        calls = stored(served)
        with served.gateway.database.session() as store:
            (facts,) = read_facts(store).values()
    asked = {request["request_id"]: request["prompt_ids"] for request in engine.requests()}
    sampled = {
        call.arrival.id: call.outcome.completion_ids.tolist()
        for call in calls
        if call.outcome is not None and call.outcome.completion_ids is not None
    }
    assert sampled.keys() == asked.keys()
    traces = build_traces(calls)
    for trace in (*traces.traces, *per_call(calls).traces):
        for turn_ in trace.turns:
            if turn_.trained:
                assert trace.token_ids[: turn_.completion_start].tolist() == asked[turn_.call_id]
                assert trace.token_ids[turn_.completion_start : turn_.end].tolist() == sampled[turn_.call_id]
    assert [len(trace.call_ids) for trace in traces.traces] == [7, 1, 1, 1, 2, 1]
    assert [entry.reason for entry in traces.excluded] == ["retry", "refused"]
    ledger = audit(calls)
    assert ledger.problems == ()
    assert (ledger.arrived, ledger.answered, ledger.refused) == (15, 14, 1)
    assert ledger.traced_tokens == sum(len(ids) for ids in sampled.values())
    assert audit_facts(facts) == ledger
