"""Which weights calls are answered with: the engine is made to follow the newest policy in the store.

Rules of this module: a call asks ``model`` right before it is sampled, and waits there while weights change or while an
engine that came back without them gets them again. A policy that an engine does not take is marked as failed there, and
the one before goes on. Without a store nothing changes. What sampled a token is never taken from here: the engine says
it (``engine.ChunkReader``).
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field

from dragoman.addons import engine_weights
from dragoman.addons.engine import Engine
from dragoman.addons.errors import DragomanError, EngineFailed
from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.store.errors import StoreError, StoreUnavailable
from dragoman.store.policies import BASE, PolicyInfo

POLL = 0.5
"""Seconds between looks for a newer policy."""
PATIENCE = 5.0
"""Seconds that the store may take to say which policy is the newest; then it counts as away."""
CHECK = 5.0
"""Seconds between looks whether the engine still has what it was given."""

log = logging.getLogger("dragoman")


@dataclass(slots=True)
class PolicyFollower:
    """One per gateway; belongs to the event loop that serves the app."""

    database: Database
    engine: Engine
    serving: PolicyInfo | None = None
    """``None``: the weights that the engine was started with."""
    error: str | None = None
    """Why the newest policy is not served; ``None``: it is."""
    _known: bool = False
    """Whether the engine is known to have ``serving``. While it is not, calls wait."""
    _checked_at: float = 0.0
    """Monotonic."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def version(self) -> str:
        return BASE if self.serving is None else self.serving.version

    @property
    def holding(self) -> bool:
        """Whether calls wait for weights."""
        return not self._known

    async def model(self) -> str | None:
        """The adapter to ask the engine for; ``None``: its own weights. Waits until it has what it should have.

        Raises ``Overloaded`` while the engine cannot be reached, ``EngineFailed`` when it cannot be given its weights.
        """
        while not self._known:
            async with self._lock:
                if not self._known:  # else whoever had the lock before has seen to it, for all that wait
                    await self._follow()
        return self.serving.version if self.serving is not None and self.serving.kind == "lora" else None

    def suspect(self) -> None:
        """The engine has failed, so it may be another process by now: look at what it has before the next call."""
        self._known = False

    async def watch(self) -> None:
        """Follow the store for ever; what goes wrong is logged once and tried again."""
        said: str | None = None
        while True:
            await asyncio.sleep(POLL if said is None else CHECK)
            try:
                if time.monotonic() - self._checked_at > CHECK:
                    await self._check()
                await self.follow()
                said = None
            except DragomanError as error:
                self.error = error.message
                if error.message != said:
                    log.warning("weights: %s", error.message)
                    said = error.message
            except Exception:
                log.exception("weights: the gateway failed while following the store")

    async def follow(self) -> None:
        """Bring the engine to the newest policy that it takes. Raises as ``model`` does."""
        async with self._lock:
            await self._follow()

    async def _follow(self) -> None:
        try:
            while not await self._step():
                pass
        except StoreError as error:
            if self._known:
                return
            if self.serving is not None:
                await self._apply(self.serving)
            log.warning("the store cannot be asked for policies, so %s goes on: %s", self.version, error)
            self._known = True

    async def _step(self) -> bool:
        """Whether the engine has what it should have; False: look again."""
        wanted = await self._ask_store()
        if wanted is None and not self._known:
            await self._warn_of_other_weights()
        if wanted is None or (self._known and self.serving == wanted):
            self.serving, self._known = wanted, True
            return True
        if not await asyncio.to_thread(self._claim, wanted.number):
            if self._known:
                return True  # another gateway is at it; the one before goes on until it is done
            await asyncio.sleep(POLL / 5)
            return False
        return await self._take(wanted)

    async def _warn_of_other_weights(self) -> None:
        """This store knows of no policy; the engine may have one of another store's all the same."""
        try:
            label = await engine_weights.weight_version(self.engine)
        except DragomanError:
            return  # it is away, or does not say; each reply says what sampled it
        if label != BASE:
            log.warning(
                "the engine has weights labelled %s, and this store has no policy: replies are recorded under that "
                "label, and cannot be trained on. Restart the engine, or name the store that it belongs to",
                label,
            )

    async def _ask_store(self) -> PolicyInfo | None:
        """Raises ``StoreError``, also when the store says nothing: calls wait for this."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.to_thread(self._newest)
        except TimeoutError as error:
            raise StoreUnavailable(f"the store {self.database.url} does not answer") from error

    async def _check(self) -> None:
        """Look whether the engine still has what it was given; it may have been restarted between two calls."""
        self._checked_at = time.monotonic()
        if self.serving is None or not self._known:
            return
        try:
            there = await self._has(self.serving)
        except DragomanError:
            self._known = False  # it may be about to come back without
            raise
        if not there:
            log.warning("the engine has lost %s; it is given it again", self.serving.version)
            self._known = False

    async def _take(self, wanted: PolicyInfo) -> bool:
        """Load ``wanted``, which is claimed, and serve it. False: the engine does not take it."""
        beat = asyncio.create_task(self._beat(wanted.number))
        try:
            await self._apply(wanted)
        except EngineFailed as error:
            if wanted == self.serving:  # it came back unable to take what it had: nothing else may answer unseen
                await asyncio.to_thread(self._drop, wanted.number)
                raise
            log.error("the engine does not take %s, so %s goes on: %s", wanted.version, self.version, error.message)
            self.error = f"{wanted.version}: {error.message}"
            await asyncio.to_thread(self._finish, wanted.number, error.message)
            return False
        except BaseException:  # the engine is away, or the gateway stops
            await asyncio.shield(asyncio.to_thread(self._drop, wanted.number))
            raise
        finally:
            beat.cancel()
        await asyncio.to_thread(self._finish, wanted.number, None)
        log.info("calls are answered by %s now, from %s", wanted.version, wanted.path)
        if wanted != self.serving:  # else it is the one before, put back after a newer one failed
            self.serving, self.error = wanted, None
        self._known = True
        self._checked_at = time.monotonic()
        return True

    async def _beat(self, number: int) -> None:
        while True:
            await asyncio.sleep(policies.STALE_LOAD / 4)
            with suppress(StoreError):  # it is tried again; the claim lasts for four of them
                await asyncio.to_thread(self._touch, number)

    async def _apply(self, wanted: PolicyInfo) -> None:
        if await self._has(wanted):
            return
        if wanted.kind == "lora":  # the one before goes on until the new one is there
            await engine_weights.load_adapter(self.engine, wanted.version, wanted.path)
            return
        before = self.serving
        root = before.path if before is not None and before.kind == "full" else (await self.engine.info()).root
        self._known = False
        await engine_weights.reload_weights(self.engine, wanted.path, wanted.version, before=root)

    async def _has(self, policy: PolicyInfo) -> bool:
        if policy.kind == "lora":
            return (await engine_weights.adapter_paths(self.engine)).get(policy.version) == policy.path
        return await engine_weights.weight_version(self.engine) == policy.version

    def _newest(self) -> PolicyInfo | None:
        with self.database.reading() as session:
            return policies.newest_policy(session, self.engine.base_url)

    def _claim(self, number: int) -> bool:
        with self.database.session() as session:
            return policies.claim_load(session, number, self.engine.base_url, now=time.time())

    def _touch(self, number: int) -> None:
        with self.database.session() as session:
            policies.touch_load(session, number, self.engine.base_url, now=time.time())

    def _drop(self, number: int) -> None:
        with self.database.session() as session:
            policies.drop_load(session, number, self.engine.base_url)

    def _finish(self, number: int, failure: str | None) -> None:
        status: policies.LoadStatus = "serving" if failure is None else "failed"
        with self.database.session() as session:
            policies.finish_load(session, number, self.engine.base_url, status, reason=failure, now=time.time())
