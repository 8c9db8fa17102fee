"""The one coroutine that every call walks through, top to bottom, whatever transport it came over.

Rules of this module: it knows nothing of how the reply goes out. Everything that can be refused is refused here, so
before a byte of the reply leaves, and each refusal is recorded; an error that nobody foresaw is counted, and recorded
as the call's outcome. No event that a harness can act on leaves before the call's record is durable.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cache

from starlette.requests import ClientDisconnect

from dragoman.addons import call as rows
from dragoman.addons.blobs import message_blob, tools_blob
from dragoman.addons.bodies import read_json_object
from dragoman.addons.call import Call
from dragoman.addons.classify import classify
from dragoman.addons.errors import DragomanError, Overloaded
from dragoman.addons.gateway import Gateway
from dragoman.addons.generation import Generation, Sampled
from dragoman.addons.identity import Harness, new_id
from dragoman.addons.lineage import EpisodeLineage
from dragoman.addons.messages import ChatRequest, Earlier, ReplyEvent, ReplyFinished, Sampling, TextDelta
from dragoman.addons.prompt import Prompt, make_prompt, seed_of
from dragoman.addons.providers.base import Provider, Route
from dragoman.addons.reply import build_reply
from dragoman.addons.sampling import resolve_sampling
from dragoman.addons.structured import Limits, read_limits, reading
from dragoman.store.records import CallArrival, CallOutcome, EpisodeInfo, JsonObject

log = logging.getLogger("dragoman")
LARGE_BODY = 1024 * 1024
"""Bytes from which a body is parsed off the event loop."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body, read but not understood."""

    value: JsonObject
    size: int
    """In bytes, as JSON text."""


@dataclass(slots=True)
class OwnReplies:
    """The replies that went out on one socket: its later messages may name them even where nobody else may."""

    ids: set[str] = field(default_factory=set)
    last: tuple[str, str, Earlier] | None = None
    """Episode and call of the newest, which the next message most likely names; the others are read from the store."""

    def add(self, arrival: CallArrival, earlier: Earlier) -> None:
        self.ids.add(arrival.id)
        self.last = (arrival.episode_id, arrival.id, earlier)


@dataclass(frozen=True, slots=True)
class Asked:
    """An authenticated request on a generation route."""

    provider: Provider
    route: Route
    path: str
    """Without query and credentials."""
    episode: EpisodeInfo
    harness: Harness
    read: Callable[[], Awaitable[Body]]
    """Raises ``InvalidRequest`` or ``TooLarge``, and ``ClientDisconnect`` when the client left while sending."""
    own: OwnReplies | None = None
    """``None``: it did not come over a socket."""


@dataclass(frozen=True, slots=True)
class Answering:
    """The reply is being sampled. Whoever gets this is attached to the generation and must detach."""

    call: Call
    generation: Generation


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """There is nothing to sample, and the record is durable."""

    arrival: CallArrival
    request: ChatRequest


@dataclass(frozen=True, slots=True)
class Refused:
    error: DragomanError
    call_id: str


async def load_body(data: bytes) -> Body:
    """Raises ``InvalidRequest`` for what is no JSON object."""
    value = read_json_object(data) if len(data) < LARGE_BODY else await asyncio.to_thread(read_json_object, data)
    return Body(value, len(data))


async def answer_call(gateway: Gateway, asked: Asked) -> Answering | WarmedUp | Refused:
    """A call, from its arrival row to the point where its reply can begin. Raises ``ClientDisconnect``."""
    recorder, provider = gateway.recorder, asked.provider
    arrival = _arrival(asked)
    arrived: asyncio.Future[None] | None = None
    try:
        await gateway.keeper.room()
    except Overloaded as error:  # its record cannot be waited for: what it waits for is the reason
        recorder.arrive(arrival)
        recorder.finish(rows.refused(arrival, provider, error, time.time()))
        return Refused(error, arrival.id)
    try:
        chat = await _parse(gateway, asked, await asked.read())
        arrival = replace(arrival, kind=classify(asked.harness, chat))
        arrived = recorder.arrive(arrival)
        if chat.details.warm_up:
            await recorder.finish(rows.warmed_up(arrival, chat, time.time()))
            return WarmedUp(arrival, chat)
        lineage = await gateway.lineage(asked.episode.id)
        call = await _prepare(gateway, provider, chat, asked.episode, arrival, lineage)
        generation = _generation(gateway, call, lineage)
    except Exception as error:
        if arrived is None:
            recorder.arrive(arrival)
        if isinstance(error, ClientDisconnect):
            await recorder.finish(rows.left_early(arrival, time.time()))
            raise
        shown = gateway.shown(error)
        await recorder.finish(rows.refused(arrival, provider, shown, time.time()))
        return Refused(shown, arrival.id)
    if (running := gateway.find_retried(call)) is not None:
        generation = running.generation
        generation.attach()
        if generation.outcome is None:
            generation.retries.append(arrival)
        else:
            await recorder.finish(rows.retried(arrival, generation.outcome, time.time()))
        return Answering(replace(call, arrival=running.call.arrival), generation)
    generation.attach()
    gateway.run(call, generation)
    try:
        await arrived
    except BaseException:
        generation.detach(delivered=False)
        raise
    return Answering(call, generation)


async def parse_body(provider: Provider, body: Body, route: Route) -> ChatRequest:
    """Normalise a body; a large one in a thread, so that one client's huge request does not stop the others."""
    if body.size < LARGE_BODY:
        return provider.parse_request(body.value, route)
    return await asyncio.to_thread(provider.parse_request, body.value, route)


async def _parse(gateway: Gateway, asked: Asked, body: Body) -> ChatRequest:
    """Understand a request, with the conversation that it names put in."""
    route = asked.route
    if call_id := asked.provider.previous(body.value):
        route = replace(route, earlier=await _find_earlier(gateway, asked, call_id))
    return await parse_body(asked.provider, body, route)


async def _find_earlier(gateway: Gateway, asked: Asked, call_id: str) -> Earlier | None:
    """What the reply of ``call_id`` stands for; ``None``: this request cannot name it."""
    own = asked.own
    if own is not None and own.last is not None and own.last[:2] == (asked.episode.id, call_id):
        return own.last[2]
    kept = await gateway.kept(asked.episode.id, call_id)
    if kept is None or not (kept.anyone or (own is not None and call_id in own.ids)):
        return None
    return kept.earlier


async def _prepare(
    gateway: Gateway,
    provider: Provider,
    chat: ChatRequest,
    episode: EpisodeInfo,
    arrival: CallArrival,
    lineage: EpisodeLineage,
) -> Call:
    """Find what the request continues, make the prompt, and check it; with the parser every 4xx is raised here."""
    served = await gateway.model.get()
    codec = served.codec
    messages = tuple(message_blob(message) for message in chat.messages)
    tools = tools_blob(chat.tools)
    seed = seed_of(tools.digest if tools else None, codec.tokenizer_hash, codec.template_hash)
    found = lineage.find(chat.messages, seed)
    if found.fork_reason in ("unknown_parent", "history_edited"):  # or another gateway on this store answered it
        await gateway.catch_up(episode.id, lineage)
        found = lineage.find(chat.messages, seed)

    def made() -> tuple[Prompt, Sampling, Limits]:
        prompt = make_prompt(codec, chat, found, gateway.settings.thinking)
        sampling = resolve_sampling(
            chat.sampling,
            episode.spec,
            prompt_len=len(prompt.ids),
            context_len=served.info.max_model_len,
            max_reply_tokens=gateway.settings.max_reply_tokens,
        )
        return prompt, sampling, read_limits(chat, codec, prompt.ids, sampling)

    prompt, sampling, limits = await asyncio.to_thread(made)
    if limits.unenforced:
        _warn(limits.unenforced)
    return Call(arrival, provider, chat, served, messages, tools, seed, found, prompt, sampling, limits)


def _generation(gateway: Gateway, call: Call, lineage: EpisodeLineage) -> Generation:
    """The task that samples the reply, and what it does at its end."""

    async def end(outcome: CallOutcome) -> None:
        generation.outcome = outcome
        await gateway.recorder.finish(outcome)
        for arrival in generation.retries:
            await gateway.recorder.finish(rows.retried(arrival, outcome, outcome.finished_at))

    async def answered(sampled: Sampled) -> tuple[ReplyEvent, ...]:
        unsent, reply = build_reply(
            call_id=call.id,
            model=call.request.model,
            created=call.created,
            tool_call_prefix=call.provider.tool_call_prefix,
            parsed=sampled.parsed,
            completion=sampled.completion,
            stop_sequence=sampled.stop_sequence,
            show_completion=call.request.return_token_ids or call.request.top_logprobs is not None,
            never_empty=call.arrival.harness == "qwen",
        )
        await end(rows.answered(call, sampled, reply, time.time()))
        lineage.add(call.node(sampled, reply))
        return (TextDelta(unsent), ReplyFinished(reply)) if unsent else (ReplyFinished(reply),)

    async def failed(error: DragomanError, sampled: Sampled) -> None:
        await end(rows.failed(call, sampled, error, time.time()))

    async def aborted(sampled: Sampled) -> None:
        await end(rows.aborted(call, sampled, time.time()))

    request, codec, limits = call.request, call.served.codec, call.limits
    generation = Generation(
        engine=gateway.engine,
        policy=gateway.policy,
        call_id=call.id,
        prompt_ids=call.prompt.ids,
        sampling=call.sampling,
        stop_ids=codec.stop_ids + limits.stop_ids,
        limits=limits,
        text=reading(codec, limits).text_stream(
            call.prompt.ids, request.tools, stop=call.sampling.stop, plain=request.prompt is not None
        ),
        grace=gateway.settings.grace,
        on_sampled=answered,
        on_failed=failed,
        on_aborted=aborted,
        on_released=lambda: gateway.release(call.id),
    )
    return generation


@cache
def _warn(unenforced: str) -> None:
    """Once for each thing."""
    log.warning("a harness asked for what is not enforced: %s", unenforced)


def _arrival(asked: Asked) -> CallArrival:
    harness = asked.harness
    return CallArrival(
        id=new_id(20),
        episode_id=asked.episode.id,
        provider=asked.provider.name,
        path=asked.path,
        arrived_at=time.time(),
        harness=harness.name,
        harness_version=harness.version,
        thread=harness.thread,
        kind=harness.kind,
    )
