"""What outlives a call: the store, the recorder, the engine, who is known, and what is being sampled."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from dragoman.addons.call import Call
from dragoman.addons.earlier import Kept
from dragoman.addons.engine import Engine
from dragoman.addons.errors import DragomanError, Overloaded, Unauthorized
from dragoman.addons.generation import Generation
from dragoman.addons.hop import TICKET_HEADER, Hop, Tickets, read_target
from dragoman.addons.identity import EpisodeCache, check_usable, hash_token, new_id, new_token, read_credentials
from dragoman.addons.keeper import Keeper
from dragoman.addons.lineage import EpisodeLineage
from dragoman.addons.policy import PolicyFollower
from dragoman.addons.providers.base import to_dragoman_error
from dragoman.addons.recorder import Recorder
from dragoman.addons.restore import restore
from dragoman.addons.served import ServedModel
from dragoman.addons.settings import Settings
from dragoman.store import episodes
from dragoman.store.database import Database
from dragoman.store.errors import StoreError
from dragoman.store.records import EpisodeInfo, EpisodeSpec

log = logging.getLogger("dragoman")


DEADLINES_EVERY = 10.0
"""Seconds between looks at the deadlines of groups."""
LINEAGES_KEPT = 1000
"""Episodes whose calls are kept in memory; others are read from the store again when they go on."""


@dataclass(frozen=True, slots=True)
class Running:
    call: Call
    generation: Generation
    task: asyncio.Task[None]


@dataclass(slots=True)
class Gateway:
    """``start`` and ``stop`` belong to the event loop that serves the app."""

    settings: Settings
    tickets: Tickets | None = None
    """``None``: served by itself under an ASGI server, and credentials come with the request."""
    keeper: Keeper = field(init=False)
    database: Database = field(init=False)
    recorder: Recorder = field(init=False)
    engine: Engine = field(init=False)
    model: ServedModel = field(init=False)
    policy: PolicyFollower = field(init=False)
    episodes: EpisodeCache = field(init=False)
    running: dict[str, Running] = field(default_factory=dict)
    """Call id → what is being sampled for it, or was and has not reached its client."""
    lineages: dict[str, EpisodeLineage] = field(default_factory=dict)
    """Episode id → its answered calls; the one used last stands last."""
    unexpected: int = 0
    """How many errors nobody foresaw: each is a defect of the gateway, and is in the log with where it came from."""
    _watching: list[asyncio.Task[None]] = field(default_factory=list)
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened_by_itself: dict[str, str] = field(default_factory=dict)
    """Open mode only: harness session → token."""

    async def start(self) -> None:
        """Open the store and close the calls that a killed gateway left open. Raises ``StoreError``."""
        self.keeper = await asyncio.to_thread(Keeper.open, self.settings)
        if closed := self.keeper.closed_calls:
            log.warning("%d calls were open when the last gateway ended; they are now aborted", closed)
        self.database, self.recorder = self.keeper.database, self.keeper.recorder
        self.engine = Engine(self.settings.engine)
        self.model = ServedModel(self.engine, self.settings)
        self.episodes = EpisodeCache(self.keeper.find_episode)
        self.policy = PolicyFollower(self.database, self.engine)
        self._watching = [asyncio.create_task(self._watch_deadlines(), name="deadlines of groups")]
        if self.settings.observe is None:
            self._watching.append(asyncio.create_task(self.policy.watch(), name="newest policy"))

    async def stop(self) -> None:
        """Stop sampling, record what there is, and close the store."""
        for watching in self._watching:
            watching.cancel()
        for running in list(self.running.values()):
            running.generation.stop()
        if self.running:
            await asyncio.wait([running.task for running in self.running.values()], timeout=10)
        await self.keeper.close()
        await self.engine.close()

    async def _watch_deadlines(self) -> None:
        """Abandon what is missing from groups past their deadline, so that a crashed runner never blocks a trainer."""
        while True:
            try:
                for episode_id in await asyncio.to_thread(self._abandon_overdue, time.time()):
                    log.warning("episode %s was abandoned: its group's deadline has passed", episode_id)
                    self.forget(episode_id)
            except StoreError as error:
                log.warning("deadlines of groups could not be checked: %s", error)
            await asyncio.sleep(DEADLINES_EVERY)

    def _abandon_overdue(self, now: float) -> list[str]:
        with self.database.session() as session:
            return episodes.abandon_overdue_groups(session, now)

    def hop(self, request: HTTPConnection) -> Hop:
        """Who sent this. Raises ``Unauthorized`` for a request that did not come through the proxy's own door."""
        if self.tickets is not None:
            hop = self.tickets.redeem(request.headers.get(TICKET_HEADER))
            if hop is None:
                raise Unauthorized("this port is internal to the gateway; use the gateway's own address")
            return hop
        credentials, _, _ = read_credentials(request.headers, *read_target(request.scope), None)
        return Hop(credentials, None, f"{request.scope['scheme']}://{request.headers.get('host', '')}")

    async def identify(self, hop: Hop, session_name: str | None) -> EpisodeInfo:
        """The open episode that a request belongs to.

        ``session_name``: the harness's own session, which in open mode has an episode of its own.
        Raises ``Unauthorized``, or ``Overloaded`` when the store cannot be asked.
        """
        token = hop.credentials.token()
        try:
            if token is None and self.settings.open_mode:
                token = await self._open_by_itself(session_name or "default")
            if token is None:
                raise Unauthorized(
                    "no episode token: open one with `dragoman episode open`"
                    + (" (the key that was sent is not a dgm_ key)" if hop.credentials.foreign else "")
                )
            episode = self.episodes.peek(token)
            if episode is None:
                episode = await asyncio.to_thread(self.episodes.fetch, token)
        except StoreError as error:
            raise Overloaded(f"the store cannot be used: {error}") from error
        check_usable(episode, time.time())
        return episode

    async def _open_by_itself(self, session_name: str) -> str:
        token = self.opened_by_itself.get(session_name)
        if token is None:
            token = self.opened_by_itself[session_name] = new_token()
            spec = EpisodeSpec(profile="as_asked", metadata={"opened": "by itself", "session": session_name})
            await asyncio.to_thread(self.open_episode, spec, token, self.settings.token_ttl)
        return token

    def open_episode(self, spec: EpisodeSpec, token: str, ttl: float) -> EpisodeInfo:
        """Write a new episode whose token lives ``ttl`` seconds. Blocking; raises ``StoreError``."""
        now = time.time()
        digest = hash_token(token)
        with self.database.session() as session:
            episode = episodes.open_episode(
                session, spec, episode_id=new_id(12), token_hash=digest, now=now, expires_at=now + ttl
            )
        self.keeper.opened(digest, episode)
        return episode

    async def lineage(self, episode_id: str) -> EpisodeLineage:
        """The answered calls of an episode, from memory or from the store. Raises ``Overloaded`` without a store."""
        lineage = self.lineages.pop(episode_id, None)
        if lineage is None:
            async with self._loading:
                lineage = self.lineages.pop(episode_id, None)
                if lineage is None:
                    try:
                        lineage = await asyncio.to_thread(self._restore, episode_id, others=False)
                    except StoreError as error:
                        raise Overloaded(f"the store cannot be used: {error}") from error
        self.lineages[episode_id] = lineage
        while len(self.lineages) > LINEAGES_KEPT:
            del self.lineages[next(iter(self.lineages))]
        return lineage

    async def catch_up(self, episode_id: str, lineage: EpisodeLineage) -> None:
        """Add the calls of an episode that other gateways on the same store have answered to its ``lineage``.

        Without a store nothing is added: what a call goes on from is then a fork, and no reason to refuse it.
        """
        try:
            lineage.adopt(await asyncio.to_thread(self._restore, episode_id, others=True))
        except StoreError as error:
            log.warning("episode %s: the store cannot be asked for other gateways' calls: %s", episode_id, error)

    def _restore(self, episode_id: str, *, others: bool) -> EpisodeLineage:
        return restore(self.keeper.read_calls(episode_id, others=others))

    async def kept(self, episode_id: str, call_id: str) -> Kept | None:
        """What the reply of a call of the episode stands for. Raises ``Overloaded`` without a store.

        ``None``: there is no such call in the episode, or none of its kind.
        """
        try:
            return await asyncio.to_thread(self.keeper.kept, episode_id, call_id)
        except StoreError as error:
            raise Overloaded(f"the store cannot be used: {error}") from error

    def forget(self, episode_id: str) -> None:
        """An episode has ended: nothing more is answered in it."""
        self.episodes.forget(episode_id)
        self.keeper.forget(episode_id)
        self.lineages.pop(episode_id, None)

    def find_retried(self, call: Call) -> Running | None:
        """The generation that ``call`` asks for again, if its client has gone without the closing event.

        While that client is still there, the same request is another sample.
        """
        for running in self.running.values():
            generation = running.generation
            if generation.clients == 0 and not generation.delivered and call.repeats(running.call):
                return running
        return None

    def run(self, call: Call, generation: Generation) -> None:
        """Start a generation and keep it until its client has got it, or nobody can want it any more."""
        task = generation.start()
        self.running[call.id] = Running(call, generation, task)
        task.add_done_callback(lambda done: self._done(call.id, done))

    def release(self, call_id: str) -> None:
        self.running.pop(call_id, None)

    def _done(self, call_id: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._count(error, f"call {call_id}")

    def shown(self, error: Exception) -> DragomanError:
        """What a client is shown of ``error``. One that nobody foresaw is counted and logged, and says nothing."""
        if not isinstance(error, DragomanError):
            self._count(error, "a request")
        return to_dragoman_error(error)

    def _count(self, error: BaseException, where: str) -> None:
        self.unexpected += 1
        log.error("%s: the gateway failed", where, exc_info=error)
