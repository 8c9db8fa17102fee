"""A call, and the row it becomes. Pure: times come in as arguments."""

from dataclasses import dataclass, replace

from dragoman.addons.blobs import message_blob, reply_blob, tools_blob
from dragoman.addons.errors import DragomanError
from dragoman.addons.generation import Sampled
from dragoman.addons.messages import ChatRequest, Reply, Sampling
from dragoman.addons.providers.base import Provider
from dragoman.addons.served import Served
from dragoman.store.records import CallArrival, CallOutcome, JsonObject, TokenIds


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call once all its 4xx checks have passed."""

    arrival: CallArrival
    provider: Provider
    request: ChatRequest
    served: Served
    prompt_ids: TokenIds
    """The full prompt, shape (P,)."""
    sampling: Sampling
    """What is used, by the episode's sampling profile."""

    @property
    def id(self) -> str:
        return self.arrival.id

    @property
    def created(self) -> int:
        return int(self.arrival.arrived_at)


def answered(call: Call, sampled: Sampled, reply: Reply, now: float) -> CallOutcome:
    """The reply is complete and about to be let out."""
    outcome = _outcome(call, sampled, now)
    return replace(outcome, status="answered", finish_reason=reply.finish_reason, reply=reply_blob(reply.parts))


def failed(call: Call, sampled: Sampled, error: DragomanError, now: float) -> CallOutcome:
    """The engine or the gateway gave up; what was sampled until then is kept."""
    return replace(
        _outcome(call, sampled, now),
        status="failed",
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
    request, codec, completion = call.request, call.served.codec, sampled.completion
    return CallOutcome(
        id=call.id,
        status="failed",
        http_status=200,
        finished_at=now,
        model=request.model,
        stream=request.stream,
        messages=tuple(message_blob(message) for message in request.messages),
        tools=tools_blob(request.tools),
        sampling_asked=_sampling_json(request.sampling),
        sampling_used=_sampling_json(call.sampling),
        constrained=request.response_format is not None,
        prompt_len=len(call.prompt_ids),
        prompt_ids=call.prompt_ids,
        completion_ids=completion.completion_ids,
        logprobs=completion.logprobs,
        policy_spans=completion.policy_spans,
        engine_started_at=sampled.started_at,
        first_token_at=sampled.first_token_at,
        tokenizer_hash=codec.tokenizer_hash,
        template_hash=codec.template_hash,
    )


def _sampling_json(sampling: Sampling) -> JsonObject:
    """The knobs that are set."""
    values = {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and value != ()
    }
