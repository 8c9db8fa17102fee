"""Calls as a person reads them: facts of one call, its messages as text, its tokens with their log-probabilities.

Rules of this module: pure functions of stored records; no database, no printing.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from dragoman.store.records import Blob, CallInfo, JsonObject

NONE = "-"


def mean_logprob(calls: Sequence[CallInfo]) -> float | None:
    """Mean log-probability over all sampled tokens of the calls; ``None``: nothing was sampled."""
    arrays = [call.outcome.logprobs for call in calls if call.outcome is not None and call.outcome.logprobs is not None]
    count = sum(len(array) for array in arrays)
    return sum(float(array.sum(dtype=float)) for array in arrays) / count if count else None


def token_counts(calls: Sequence[CallInfo]) -> tuple[int, int]:
    """Prompt tokens and sampled tokens, summed; a call that was never rendered counts none."""
    outcomes = [call.outcome for call in calls if call.outcome is not None]
    sampled = [outcome.completion_ids for outcome in outcomes if outcome.completion_ids is not None]
    return sum(outcome.prompt_len or 0 for outcome in outcomes), sum(len(ids) for ids in sampled)


def policy_versions(calls: Sequence[CallInfo]) -> list[str]:
    """Every policy version that sampled something, in order of appearance."""
    spans = [span for call in calls if call.outcome is not None for span in call.outcome.policy_spans]
    return list(dict.fromkeys(span.version for span in spans))


def status_word(call: CallInfo) -> str:
    return "arrived" if call.outcome is None else call.outcome.status


def trouble(call: CallInfo) -> str | None:
    """Why the call gave nothing to train on, or is marked; ``None`` for one that went well."""
    outcome = call.outcome
    if outcome is None:
        return "no outcome yet: it is running, or its gateway was killed"
    if outcome.status == "observed":
        said = "answered by the real provider"
        return f"{said}: {outcome.error_message}" if outcome.error_message else said
    if outcome.status != "answered":
        said = ": ".join(word for word in (outcome.error_code, outcome.error_message) if word)
        status = f"{outcome.status} with {outcome.http_status}" if outcome.http_status else outcome.status
        return f"{status}: {said}" if said else status
    if outcome.retry_of is not None:
        return f"a retry: it was given the reply of call {outcome.retry_of}"
    if call.arrival.kind != "main":
        return f"{call.arrival.kind} call"
    return None


def call_facts(call: CallInfo) -> dict[str, str]:
    """What the table of an episode shows of a call: column → text."""
    arrival, outcome = call.arrival, call.outcome
    facts = {
        "call": arrival.id[:10],
        "status": status_word(call),
        "provider": arrival.provider,
        "path": arrival.path,
        "in": NONE,
        "out": NONE,
        "logprob": NONE,
        "finish": NONE,
        "policy": NONE,
        "fork": NONE,
        "first": NONE,
        "total": NONE,
    }
    if outcome is None:
        return facts
    prompt_tokens, sampled = token_counts([call])
    mean = mean_logprob([call])
    facts["in"] = NONE if outcome.prompt_len is None else f"{prompt_tokens:,}"
    facts["out"] = NONE if outcome.completion_ids is None else f"{sampled:,}"
    facts["logprob"] = NONE if mean is None else f"{mean:.3f}"
    facts["finish"] = outcome.finish_reason or NONE
    facts["policy"] = ", ".join(policy_versions([call])) or NONE
    facts["fork"] = outcome.fork_reason or NONE
    facts["first"] = _seconds(arrival.arrived_at, outcome.first_token_at)
    facts["total"] = _seconds(arrival.arrived_at, outcome.finished_at)
    return facts


def call_json(call: CallInfo, *, tokens: bool, messages: bool) -> JsonObject:
    """A call as JSON; arrays and messages only when asked for. Times are unix seconds."""
    arrival, outcome = call.arrival, call.outcome
    value: JsonObject = {
        "id": arrival.id,
        "episode": arrival.episode_id,
        "status": status_word(call),
        "provider": arrival.provider,
        "path": arrival.path,
        "harness": arrival.harness,
        "harness_version": arrival.harness_version,
        "thread": arrival.thread,
        "kind": arrival.kind,
        "arrived_at": arrival.arrived_at,
        "trouble": trouble(call),
    }
    if outcome is None:
        return value
    prompt_tokens, sampled = token_counts([call])
    value |= {
        "http_status": outcome.http_status,
        "error_code": outcome.error_code,
        "error_message": outcome.error_message,
        "model": outcome.model,
        "stream": outcome.stream,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "mean_logprob": mean_logprob([call]),
        "finish_reason": outcome.finish_reason,
        "policy_spans": [[span.version, span.start, span.end] for span in outcome.policy_spans],
        "parent": outcome.parent_id,
        "shared_len": outcome.shared_len,
        "fork_reason": outcome.fork_reason,
        "retry_of": outcome.retry_of,
        "echo_changed": outcome.echo_changed,
        "sampling_asked": outcome.sampling_asked,
        "sampling_used": outcome.sampling_used,
        "constrained": outcome.constrained,
        "engine_started_at": outcome.engine_started_at,
        "first_token_at": outcome.first_token_at,
        "finished_at": outcome.finished_at,
    }
    if tokens:
        for name in ("prompt_ids", "completion_ids", "logprobs"):
            array = getattr(outcome, name)
            value[name] = None if array is None else array.tolist()
    if messages:
        value["messages_kept"] = outcome.messages_kept
        value["messages"] = [json.loads(blob.data) for blob in outcome.messages]
        value["tools"] = _load(outcome.tools)
        value["reply"] = _load(outcome.reply)
    return value


def message_lines(call: CallInfo) -> list[str]:
    """The conversation of a call as text: each message under its role, the tools by name, then the reply."""
    outcome = call.outcome
    if outcome is None:
        return []
    lines = []
    if tools := _load(outcome.tools):
        lines.append("tools: " + ", ".join(tool["name"] for tool in tools))
    if outcome.messages_kept:
        lines.append(f"({outcome.messages_kept} before these, as in call {outcome.parent_id})")
    for blob in outcome.messages:
        lines += _message(json.loads(blob.data), "")
    if outcome.reply is not None:
        lines += _message(_load(outcome.reply), " (the reply)")
    return lines


def token_lines(call: CallInfo, decode: Callable[[int], str] | None) -> list[str]:
    """One line a sampled token: position, id, log-probability, and its text where ``decode`` is given."""
    outcome = call.outcome
    if outcome is None or outcome.completion_ids is None or outcome.logprobs is None:
        return []
    lines = []
    for position, (token, logprob) in enumerate(zip(outcome.completion_ids, outcome.logprobs, strict=True)):
        text = f"  {decode(int(token))!r}" if decode else ""
        lines.append(f"{position:5d} {int(token):7d} {float(logprob):9.4f}{text}")
    return lines


def _message(message: Any, note: str) -> list[str]:
    lines = [f"[{message['role']}]{note}"]
    for part in message["parts"]:
        lines += [f"  {line}" for line in _part(part).splitlines()]
    return lines


def _part(part: Any) -> str:
    match part["type"]:
        case "text":
            return str(part["text"])
        case "reasoning":
            return f"<reasoning> {part['text']}"
        case "tool_call":
            return f"→ {part['name']} {part['arguments']}  ({part['id']})"
        case "tool_result":
            inner = "\n".join(_part(entry) for entry in part["parts"])
            return f"← {'error ' if part['is_error'] else ''}({part['id']})\n{inner}"
        case "image":
            return f"<image {part['media_type'] or part['url']}>"
        case other:
            raise ValueError(f"a stored message holds a part of unknown type {other!r}")


def _load(blob: Blob | None) -> Any:
    return None if blob is None else json.loads(blob.data)


def _seconds(start: float, end: float | None) -> str:
    return NONE if end is None else f"{end - start:.2f} s"
