"""The generation task against an engine that says exactly what a test tells it to, step by step."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dragoman.addons.engine import SampledChunk
from dragoman.addons.errors import AdapterMissing, DragomanError, EngineFailed
from dragoman.addons.generation import Generation, Sampled
from dragoman.addons.messages import Reply, ReplyFailed, ReplyFinished, Sampling, TextDelta, TextPart, Usage
from dragoman.addons.structured import FREE
from dragoman.addons.text_stream import ParsedReply

Step = SampledChunk | Exception


def chunk(*ids: int, finish: Any = None) -> SampledChunk:
    return SampledChunk(ids, tuple(-0.5 for _ in ids), finish, None, None)


class ToldEngine:
    """Hands out queued steps; a test decides when each comes."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.asked: list[str | None] = []
        """The adapter of each request."""

    async def generate(self, *, model: str | None, **_: Any) -> AsyncIterator[SampledChunk]:
        self.asked.append(model)
        try:
            while True:
                step = await self.steps.get()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.finish_reason is not None:
                    return
        finally:
            self.closed.set()


class ToldPolicy:
    """Says which adapter is served, when a test lets it."""

    def __init__(self) -> None:
        self.adapters: list[str | None] = [None]
        """The next to be served; the last one stays."""
        self.ready = asyncio.Event()
        self.ready.set()
        self.suspected = 0

    async def model(self) -> str | None:
        await self.ready.wait()
        return self.adapters.pop(0) if len(self.adapters) > 1 else self.adapters[0]

    def suspect(self) -> None:
        self.suspected += 1


class LetterStream:
    """Every id is one letter."""

    def __init__(self) -> None:
        self.text = ""

    def feed(self, ids: tuple[int, ...]) -> tuple[TextDelta, ...]:
        new = "".join(chr(token) for token in ids)
        self.text += new
        return (TextDelta(new),) if new else ()

    def finish(self) -> tuple[tuple[TextDelta, ...], ParsedReply, None]:
        return (), ParsedReply(None, self.text, ()), None


@dataclass
class Scene:
    grace: float = 30.0
    log: list[str] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    commit: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.engine = ToldEngine()
        self.policy = ToldPolicy()
        self.commit.set()
        self.generation = Generation(
            engine=self.engine,  # type: ignore[arg-type]
            policy=self.policy,  # type: ignore[arg-type]
            call_id="abc",
            prompt_ids=np.array([1, 2], dtype=np.int32),
            sampling=Sampling(max_tokens=5),
            stop_ids=(0,),
            limits=FREE,
            text=LetterStream(),  # type: ignore[arg-type]
            grace=self.grace,
            on_sampled=self.answered,
            on_failed=self.failed,
            on_aborted=self.aborted,
            on_released=lambda: self.log.append("released"),
        )

    async def answered(self, sampled: Sampled) -> tuple[ReplyFinished]:
        self.sampled.append(sampled)
        self.log.append("commit begins")
        await self.commit.wait()
        self.log.append("committed")
        reply = Reply("abc", "m", 0, (TextPart(sampled.parsed.text),), "stop", Usage(2, 2))
        return (ReplyFinished(reply),)

    async def failed(self, error: DragomanError, sampled: Sampled) -> None:
        self.sampled.append(sampled)
        self.log.append(f"failed {error.code}")

    async def aborted(self, sampled: Sampled) -> None:
        self.sampled.append(sampled)
        self.log.append("aborted")


async def test_deltas_come_while_the_engine_still_samples_and_the_end_only_after_the_commit() -> None:
    scene = Scene()
    scene.commit.clear()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h")))
    assert await scene.generation.next_events(0, 5) == [TextDelta("h")]
    scene.engine.steps.put_nowait(chunk(ord("i"), finish="stop"))
    assert await scene.generation.next_events(1, 5) == [TextDelta("i")]
    while "commit begins" not in scene.log:
        await asyncio.sleep(0)
    assert not scene.generation.finished
    scene.commit.set()
    await task
    assert scene.log == ["commit begins", "committed"]
    assert isinstance(scene.generation.events[-1], ReplyFinished)
    completion = scene.sampled[0].completion
    assert completion.completion_ids.tolist() == [ord("h"), ord("i")]
    assert completion.finish_reason == "stop"


async def test_silence_gives_no_events() -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    assert await scene.generation.next_events(0, 0.01) == []
    scene.generation.stop()
    await asyncio.wait([task])


@pytest.mark.parametrize("sampled_first", [False, True])
async def test_an_engine_error_is_recorded_with_what_was_sampled_and_ends_the_stream(sampled_first: bool) -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    if sampled_first:
        scene.engine.steps.put_nowait(chunk(ord("h")))
    scene.engine.steps.put_nowait(EngineFailed("gone"))
    await task
    assert scene.log == ["failed engine_failed"]
    assert len(scene.sampled[0].completion.completion_ids) == int(sampled_first)
    assert isinstance(scene.generation.events[-1], ReplyFailed)


async def test_a_bug_is_recorded_and_not_swallowed() -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(RuntimeError("bug"))
    with pytest.raises(RuntimeError, match="bug"):
        await task
    assert scene.log == ["failed internal"]
    assert isinstance(scene.generation.events[-1], ReplyFailed)


async def test_without_a_client_it_stops_after_the_grace_period_and_records_what_was_sampled() -> None:
    scene = Scene(grace=0.0)
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h")))
    await scene.generation.next_events(0, 5)
    scene.generation.detach(delivered=False)
    await asyncio.wait([task])
    assert scene.log == ["aborted", "released"]
    assert scene.sampled[0].completion.completion_ids.tolist() == [ord("h")]
    assert scene.sampled[0].completion.finish_reason == "abort"
    assert scene.engine.closed.is_set()


async def test_a_client_that_comes_back_in_time_gets_everything_from_the_first_event() -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h")))
    await scene.generation.next_events(0, 5)
    scene.generation.detach(delivered=False)
    scene.engine.steps.put_nowait(chunk(ord("i"), finish="stop"))
    await scene.engine.closed.wait()
    await asyncio.sleep(0)
    assert scene.log == []  # nobody there: nothing is recorded as answered yet
    scene.generation.attach()
    await task
    assert scene.log == ["commit begins", "committed"]
    events = await scene.generation.next_events(0, 5)
    assert events[:2] == [TextDelta("h"), TextDelta("i")]


async def test_it_is_released_once_the_closing_event_was_delivered() -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h"), finish="stop"))
    await task
    assert "released" not in scene.log
    scene.generation.detach(delivered=True)
    assert scene.log[-1] == "released"


async def test_an_undelivered_reply_is_kept_for_the_grace_period_only() -> None:
    scene = Scene(grace=0.01)
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h"), finish="stop"))
    await task
    scene.generation.detach(delivered=False)
    assert "released" not in scene.log
    while "released" not in scene.log:
        await asyncio.sleep(0)
    assert scene.log.count("released") == 1


async def test_a_stop_during_the_commit_lets_it_end() -> None:
    scene = Scene()
    scene.commit.clear()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h"), finish="stop"))
    while not scene.log:
        await asyncio.sleep(0)
    scene.generation.stop()
    scene.commit.set()
    await task
    assert scene.log == ["commit begins", "committed"]


async def test_it_waits_while_weights_change_and_asks_for_the_adapter_of_then() -> None:
    scene = Scene()
    scene.policy.ready.clear()
    scene.policy.adapters = ["policy-v2"]
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h"), finish="stop"))
    assert await scene.generation.next_events(0, 0.01) == []
    assert scene.engine.asked == []
    scene.policy.ready.set()
    await task
    assert scene.engine.asked == ["policy-v2"]


async def test_an_adapter_that_the_engine_has_lost_is_asked_for_again_once_it_is_back() -> None:
    scene = Scene()
    scene.policy.adapters = ["policy-v1", "policy-v1"]
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(AdapterMissing("no model 'policy-v1'"))
    scene.engine.steps.put_nowait(chunk(ord("h"), finish="stop"))
    await task
    assert scene.log == ["commit begins", "committed"]
    assert (scene.engine.asked, scene.policy.suspected) == (["policy-v1", "policy-v1"], 1)


async def test_after_a_failure_of_the_engine_its_weights_are_looked_at() -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(EngineFailed("gone"))
    await task
    assert scene.policy.suspected == 1


async def test_a_reply_that_the_engine_broke_off_is_no_answer() -> None:
    scene = Scene()
    scene.generation.attach()
    task = scene.generation.start()
    scene.engine.steps.put_nowait(chunk(ord("h"), finish="abort"))
    await task
    assert scene.log == ["failed engine_failed"]
    assert scene.sampled[0].completion.completion_ids.tolist() == [ord("h")]
