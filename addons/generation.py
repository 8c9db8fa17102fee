"""One reply being sampled: a task of its own, with its events kept so that a client can attach at any time.

Rules of this module: the task never depends on a client being connected. Events before ``ReplyFinished`` are things
a harness cannot act on; ``ReplyFinished`` is published only after the record is durable. A generation ends in
exactly one of ``ReplyFinished`` and ``ReplyFailed``, and is recorded exactly once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dragoman.addons.engine import Engine, SampledChunk
from dragoman.addons.errors import AdapterMissing, DragomanError, EngineFailed, EngineTimeout, Overloaded
from dragoman.addons.messages import Completion, ReplyEvent, ReplyFailed, ReplyFinished, Sampling
from dragoman.addons.policy import PolicyFollower
from dragoman.addons.structured import Limits
from dragoman.addons.tokens import ParsedReply, TextStream
from dragoman.store.records import CallArrival, CallOutcome, Logprobs, PolicySpan, TokenIds


@dataclass(frozen=True, slots=True)
class Sampled:
    """A finished (or stopped) generation, before it is made into a reply."""

    completion: Completion
    parsed: ParsedReply
    stop_sequence: str | None
    started_at: float
    """Unix seconds when the engine was asked."""
    first_token_at: float | None
    """``None``: nothing was sampled."""


@dataclass(slots=True)
class Generation:
    """Runs the engine for one call and publishes reply events to whoever is attached."""

    engine: Engine
    policy: PolicyFollower
    call_id: str
    prompt_ids: TokenIds
    sampling: Sampling
    stop_ids: tuple[int, ...]
    limits: Limits
    text: TextStream
    grace: float
    """Seconds to go on without a client before stopping."""
    on_sampled: Callable[[Sampled], Awaitable[tuple[ReplyEvent, ...]]]
    """Makes the reply and records it as answered; returns the closing events once the record is durable."""
    on_failed: Callable[[DragomanError, Sampled], Awaitable[None]]
    on_aborted: Callable[[Sampled], Awaitable[None]]
    on_released: Callable[[], None]
    """Called once when nobody can want the events any more."""
    events: list[ReplyEvent] = field(default_factory=list)
    clients: int = 0
    delivered: bool = False
    """Whether a client has got the closing event."""
    retries: list[CallArrival] = field(default_factory=list)
    """Requests that came again and were given this one's events. Each is recorded with the end that this one has."""
    outcome: CallOutcome | None = None
    """How it ended, from the moment when its record is on its way; a retry that comes later is recorded at once."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _attached: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _expiry: asyncio.TimerHandle | None = None
    _committing: bool = False
    _ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _finish_reason: Literal["stop", "length", "abort"] = "abort"
    _spans: tuple[PolicySpan, ...] = ()
    _started_at: float = 0.0
    _first_token_at: float | None = None

    def start(self) -> asyncio.Task[None]:
        """Start sampling. The caller keeps the returned task referenced until it is done."""
        self._task = asyncio.create_task(self._run(), name=f"generation {self.call_id}")
        return self._task

    @property
    def finished(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], ReplyFinished | ReplyFailed)

    def attach(self) -> None:
        self.clients += 1
        self._attached.set()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def detach(self, *, delivered: bool) -> None:
        """A client left, with the closing event or without it.

        When it was the last one and has not got it, generation goes on and the events are kept for the grace period:
        the same request may come again.
        """
        self.clients -= 1
        self.delivered |= delivered
        if self.clients > 0:
            return
        if self.delivered:
            self.on_released()
        else:
            self._attached.clear()
            self._expiry = asyncio.get_running_loop().call_later(self.grace, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self.finished:
            self.on_released()
        else:
            self.stop()

    def stop(self) -> None:
        """Stop sampling and record what there is; a generation already being recorded ends by itself."""
        if self._task is not None and not self._committing:
            self._task.cancel()

    async def next_events(self, seen: int, wait: float) -> list[ReplyEvent]:
        """Events after the first ``seen``; empty when none came within ``wait`` seconds."""
        if len(self.events) == seen:
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                return []
        return self.events[seen:]

    async def wait_finished(self, wait: float) -> bool:
        """Wait at most ``wait`` seconds for the closing event; whether it has come."""
        if not self.finished:
            await asyncio.wait([self._task] if self._task else [], timeout=wait)
        return self.finished

    def _publish(self, *events: ReplyEvent) -> None:
        if events:
            self.events.extend(events)
            self._changed.set()

    async def _run(self) -> None:
        try:
            await self._sample()
            if self._finish_reason == "abort":  # the policy has not ended it, and no harness should take it for whole
                raise EngineFailed("the engine broke the reply off; it was told to abort, or is being stopped")
            deltas, parsed, stop_sequence = self.text.finish()
            self._publish(*deltas)
            if self.clients == 0:
                await self._attached.wait()  # cancelled by the grace period when nobody comes
            self._committing = True
            self._publish(*await self.on_sampled(self._sampled(parsed, stop_sequence)))
        except asyncio.CancelledError:
            _, parsed, stop_sequence = self.text.finish()
            self._finish_reason = "abort"
            await self.on_aborted(self._sampled(parsed, stop_sequence))
            self._publish(ReplyFailed(EngineFailed("the client left; generation was stopped")))
        except DragomanError as error:
            await self._fail(self.limits.named(error))
        except Exception as error:
            await self._fail(DragomanError(f"the gateway failed while answering: {error!r}"))
            raise
        finally:
            if self.clients == 0 and self._expiry is None:
                self.on_released()

    async def _fail(self, error: DragomanError) -> None:
        _, parsed, stop_sequence = self.text.finish()
        try:
            await self.on_failed(error, self._sampled(parsed, stop_sequence))
        finally:
            self._publish(ReplyFailed(error))

    async def _sample(self) -> None:
        """Sample with the weights of now: held here while they change, and again when the engine has lost them."""
        self._started_at = time.time()
        try:
            try:
                await self._sample_from(await self.policy.model())
            except AdapterMissing:  # so it was restarted, and nothing is sampled yet
                self.policy.suspect()
                await self._sample_from(await self.policy.model())
        except (EngineFailed, EngineTimeout, Overloaded):
            self.policy.suspect()
            raise

    async def _sample_from(self, adapter: str | None) -> None:
        self._started_at = time.time()
        chunks = self.engine.generate(
            prompt_ids=self.prompt_ids,
            sampling=self.sampling,
            stop_ids=self.stop_ids,
            request_id=self.call_id,
            model=adapter,
            structured=self.limits.structured,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                self._take(chunk)

    def _take(self, chunk: SampledChunk) -> None:
        if chunk.token_ids and self._first_token_at is None:
            self._first_token_at = time.time()
        self._ids.extend(chunk.token_ids)
        self._logprobs.extend(chunk.logprobs)
        if chunk.policy_spans is not None:
            self._spans = chunk.policy_spans
        if chunk.finish_reason is not None:
            self._finish_reason = chunk.finish_reason
        self._publish(*self.text.feed(chunk.token_ids))

    def _sampled(self, parsed: ParsedReply, stop_sequence: str | None) -> Sampled:
        ids = np.array(self._ids, dtype=np.int32)
        logprobs: Logprobs = np.array(self._logprobs, dtype=np.float32)
        completion = Completion(self.prompt_ids, ids, logprobs, self._finish_reason, self._spans)
        return Sampled(completion, parsed, stop_sequence, self._started_at, self._first_token_at)
