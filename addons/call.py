"""A call, and the row it becomes. Pure: times come in as arguments."""

from dataclasses import dataclass, replace

import numpy as np

from dragoman.addons.blobs import message_blob, reply_blob, tools_blob
from dragoman.addons.canonical import CANONICAL_VERSION, carried
from dragoman.addons.earlier import state_of
from dragoman.addons.errors import DragomanError
from dragoman.addons.generation import Sampled
from dragoman.addons.lineage import Found, Node, system_key
from dragoman.addons.messages import ChatRequest, Reply, Sampling
from dragoman.addons.prompt import Prompt
from dragoman.addons.providers.base import Provider
from dragoman.addons.served import Served
from dragoman.addons.structured import FREE, Limits
from dragoman.store.records import Blob, CallArrival, CallOutcome, JsonObject


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call once all its 4xx checks have passed."""

    arrival: CallArrival
    provider: Provider
    request: ChatRequest
    served: Served
    messages: tuple[Blob, ...]
    """The request's messages as they are stored, in order."""
    tools: Blob | None
    seed: bytes
    found: Found
    prompt: Prompt
    sampling: Sampling
    """What is used, by the episode's sampling profile."""
    limits: Limits = FREE
    """What the engine holds the reply to."""

    @property
    def id(self) -> str:
        return self.arrival.id

    @property
    def created(self) -> int:
        return int(self.arrival.arrived_at)

    def repeats(self, earlier: "Call") -> bool:
        """Whether this is the same request as ``earlier``, from the same thread of the same episode."""
        mine, theirs = self.request, earlier.request
        return (
            self.arrival.episode_id == earlier.arrival.episode_id
            and self.arrival.thread == earlier.arrival.thread
            and self.found.key == earlier.found.key
            and (mine.sampling, mine.tool_choice, mine.response_format, mine.prompt)
            == (theirs.sampling, theirs.tool_choice, theirs.response_format, theirs.prompt)
        )

    def node(self, sampled: Sampled, reply: Reply) -> Node:
        """This call as later ones may continue it."""
        prompt = self.prompt
        return Node(
            call_id=self.id,
            key=self.found.key,
            seed=self.seed,
            system=system_key(carried(self.request.messages)),
            reply=reply.parts,
            parent=prompt.parent,
            shared_len=prompt.shared_len,
            prompt_ids=prompt.own_ids,
            completion_ids=sampled.completion.completion_ids,
            message_digests=tuple(blob.digest for blob in self.messages),
        )


def answered(call: Call, sampled: Sampled, reply: Reply, now: float) -> CallOutcome:
    """The reply is complete and about to be let out."""
    outcome = _outcome(call, sampled, now)
    return replace(
        outcome,
        status="answered",
        finish_reason=reply.finish_reason,
        reply=reply_blob(reply.parts),
        state=state_of(call.request),
    )


def warmed_up(arrival: CallArrival, request: ChatRequest, now: float) -> CallOutcome:
    """Nothing is sampled for it, and no prompt made; a later call may go on from it."""
    nothing = np.empty(0, np.int32)
    return CallOutcome(
        id=arrival.id,
        status="answered",
        http_status=200,
        finished_at=now,
        model=request.model,
        stream=request.stream,
        messages=tuple(message_blob(message) for message in request.messages),
        tools=tools_blob(request.tools),
        prompt_len=0,
        prompt_ids=nothing,
        completion_ids=nothing,
        logprobs=np.empty(0, np.float32),
        state=state_of(request),
    )


def failed(call: Call, sampled: Sampled, error: DragomanError, now: float) -> CallOutcome:
    """The engine or the gateway gave up; what was sampled until then is kept. Or the engine refused the request."""
    never_sampled = error.status < 500 and not len(sampled.completion.completion_ids)
    return replace(
        _outcome(call, sampled, now),
        status="refused" if never_sampled else "failed",
        http_status=call.provider.error_status(error),
        error_code=error.code,
        error_message=error.message,
    )


def aborted(call: Call, sampled: Sampled, now: float) -> CallOutcome:
    """The client left and did not come back."""
    return replace(
        _outcome(call, sampled, now),
        status="aborted",
        http_status=499,
        finish_reason="abort",
        error_code="client_left",
        error_message="the client left before the reply was complete",
    )


def retried(arrival: CallArrival, original: CallOutcome, now: float) -> CallOutcome:
    """The request came again after its client had gone: it is given the reply of ``original``, and samples nothing.

    What becomes of the original becomes of it: where nobody waited for the end, neither was answered.
    """
    return CallOutcome(
        id=arrival.id,
        status=original.status,
        http_status=original.http_status,
        finished_at=now,
        error_code=original.error_code,
        error_message=original.error_message,
        retry_of=original.id,
        model=original.model,
    )


def refused(arrival: CallArrival, provider: Provider, error: DragomanError, now: float) -> CallOutcome:
    """The call never reached the engine: its own fault (4xx), or ours."""
    return CallOutcome(
        id=arrival.id,
        status="refused" if error.status < 500 else "failed",
        http_status=provider.error_status(error),
        finished_at=now,
        error_code=error.code,
        error_message=error.message,
    )


def left_early(arrival: CallArrival, now: float) -> CallOutcome:
    """The client left while it was still sending its request."""
    return CallOutcome(
        id=arrival.id,
        status="aborted",
        http_status=499,
        finished_at=now,
        error_code="client_left",
        error_message="the client left while sending its request",
    )


def _outcome(call: Call, sampled: Sampled, now: float) -> CallOutcome:
    """Everything but how it ended."""
    request, codec, completion, prompt = call.request, call.served.codec, sampled.completion, call.prompt
    before = prompt.parent.message_digests if prompt.parent is not None else ()
    kept = _same_start(before, tuple(blob.digest for blob in call.messages))
    return CallOutcome(
        id=call.id,
        status="failed",
        http_status=200,
        finished_at=now,
        model=request.model,
        stream=request.stream,
        messages=call.messages[kept:],
        messages_kept=kept,
        tools=call.tools,
        sampling_asked=sampling_json(request.sampling),
        sampling_used=sampling_json(call.sampling),
        constrained=call.limits.structured is not None,
        parent_id=prompt.parent.call_id if prompt.parent is not None else None,
        shared_len=prompt.shared_len,
        fork_reason=prompt.fork_reason,
        echo_changed=call.found.echo_changed,
        prompt_len=len(prompt.ids),
        prompt_ids=prompt.own_ids,
        completion_ids=completion.completion_ids,
        logprobs=completion.logprobs,
        policy_spans=completion.policy_spans,
        engine_started_at=sampled.started_at,
        first_token_at=sampled.first_token_at,
        tokenizer_hash=codec.tokenizer_hash,
        template_hash=codec.template_hash,
        canonical_version=CANONICAL_VERSION,
    )


def _same_start(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    """How many items two tuples begin with in common."""
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return min(len(one), len(other))


def sampling_json(sampling: Sampling) -> JsonObject:
    """The knobs that are set."""
    values = {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and value != ()
    }
