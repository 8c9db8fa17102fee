"""Between call records and database rows, with every check that a record must pass before it is written. Pure.

Rules of this module: a record that breaks a rule is a ``ValueError`` that names the call and the field. What can only
be known with the database at hand (does the episode exist, is the parent long enough) is checked in ``calls``.
"""

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from dragoman.store.models import Call, table_of
from dragoman.store.packing import (
    DIGEST_LENGTH,
    clean_text,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)
from dragoman.store.records import (
    Blob,
    CallArrival,
    CallInfo,
    CallKind,
    CallOutcome,
    CallStatus,
    FinishReason,
    ForkReason,
    JsonObject,
    PolicySpan,
    ProviderName,
)

ID = re.compile(r"[a-z0-9]{1,40}")
NO_EVIDENCE = -9999.0
"""What vLLM says where it has no log-probability. Never data."""

Values = dict[str, Any]

OUTCOME_COLUMNS = (
    {column.name for column in table_of(Call).columns} - {"row"} - {field.name for field in fields(CallArrival)}
) | {"status"}
"""The columns that ``outcome_values`` gives."""


def arrival_values(arrival: CallArrival) -> Values:
    """The columns that a call has from its arrival on."""
    try:
        return {
            "id": _id(arrival.id, "id"),
            "episode_id": _id(arrival.episode_id, "episode_id"),
            "status": "arrived",
            "provider": _word(arrival.provider, ProviderName, "provider"),
            "path": clean_text(arrival.path),
            "arrived_at": _time(arrival.arrived_at, "arrived_at"),
            "harness": _text(arrival.harness),
            "harness_version": _text(arrival.harness_version),
            "thread": _text(arrival.thread),
            "kind": _word(arrival.kind, CallKind, "kind"),
        }
    except (TypeError, ValueError) as error:
        raise ValueError(f"call {arrival.id!r}: {error}") from error


def outcome_values(outcome: CallOutcome) -> Values:
    """The columns that an outcome fills in. ``messages``, ``tools`` and ``reply`` are digests here."""
    try:
        _id(outcome.id, "id")
        _json(outcome.state, "state")
        return {
            "status": _status(outcome),
            "http_status": _count(outcome.http_status, "http_status"),
            "finished_at": _time(outcome.finished_at, "finished_at"),
            "error_code": _text(outcome.error_code),
            "error_message": _text(outcome.error_message),
            "model": _text(outcome.model),
            "stream": None if outcome.stream is None else bool(outcome.stream),
            "constrained": bool(outcome.constrained),
            "parent_id": None if outcome.parent_id is None else _id(outcome.parent_id, "parent_id"),
            "fork_reason": _word(outcome.fork_reason, ForkReason, "fork_reason"),
            "echo_changed": _count(outcome.echo_changed, "echo_changed"),
            "retry_of": None if outcome.retry_of is None else _id(outcome.retry_of, "retry_of"),
            "messages_kept": _messages_kept(outcome),
            "finish_reason": _word(outcome.finish_reason, FinishReason, "finish_reason"),
            "first_token_at": _time(outcome.first_token_at, "first_token_at"),
            "engine_started_at": _time(outcome.engine_started_at, "engine_started_at"),
            "tokenizer_hash": _text(outcome.tokenizer_hash),
            "template_hash": _text(outcome.template_hash),
            "canonical_version": _count(outcome.canonical_version, "canonical_version"),
            "sampling_asked": _json(outcome.sampling_asked, "sampling_asked"),
            "sampling_used": _json(outcome.sampling_used, "sampling_used"),
            "tools": _digest(outcome.tools),
            "reply": _digest(outcome.reply),
            "messages": b"".join(_digest(blob) or b"" for blob in outcome.messages) or None,
            **_prompt(outcome),
            **_completion(outcome),
        }
    except (TypeError, ValueError) as error:
        raise ValueError(f"call {outcome.id!r}: {error}") from error


def outcome_blobs(outcome: CallOutcome) -> list[Blob]:
    """Every blob that the outcome refers to."""
    return [*outcome.messages, *(blob for blob in (outcome.tools, outcome.reply) if blob is not None)]


def split_digests(packed: bytes | None) -> list[bytes]:
    """The digests in a ``messages`` column, in order."""
    return [packed[at : at + DIGEST_LENGTH] for at in range(0, len(packed), DIGEST_LENGTH)] if packed else []


def call_info(call: Any, blobs: Mapping[bytes, bytes]) -> CallInfo:
    """A row of ``calls``, plain or as a ``Call``, as the record it was made from.

    ``blobs``: digest → JSON, for every digest in the row.
    """
    # Words of closed sets were checked before they were written.
    arrival = CallArrival(
        id=call.id,
        episode_id=call.episode_id,
        provider=call.provider,
        path=call.path,
        arrived_at=call.arrived_at,
        harness=call.harness,
        harness_version=call.harness_version,
        thread=call.thread,
        kind=call.kind,
    )
    if call.status == "arrived" or call.finished_at is None:
        return CallInfo(arrival, None)
    outcome = CallOutcome(
        id=call.id,
        status=call.status,
        http_status=call.http_status,
        finished_at=call.finished_at,
        error_code=call.error_code,
        error_message=call.error_message,
        model=call.model,
        stream=call.stream,
        messages=tuple(Blob(digest, blobs[digest]) for digest in split_digests(call.messages)),
        tools=None if call.tools is None else Blob(call.tools, blobs[call.tools]),
        reply=None if call.reply is None else Blob(call.reply, blobs[call.reply]),
        sampling_asked=call.sampling_asked,
        sampling_used=call.sampling_used,
        constrained=bool(call.constrained),
        parent_id=call.parent_id,
        shared_len=call.shared_len or 0,
        fork_reason=call.fork_reason,
        echo_changed=call.echo_changed or 0,
        retry_of=call.retry_of,
        messages_kept=call.messages_kept or 0,
        prompt_len=call.prompt_len,
        prompt_ids=None if call.prompt_ids is None else unpack_ids(call.prompt_ids),
        completion_ids=None if call.completion_ids is None else unpack_ids(call.completion_ids),
        logprobs=None if call.logprobs is None else unpack_logprobs(call.logprobs),
        finish_reason=call.finish_reason,
        policy_spans=tuple(PolicySpan(str(v), int(start), int(end)) for v, start, end in call.policy_spans or ()),
        first_token_at=call.first_token_at,
        engine_started_at=call.engine_started_at,
        tokenizer_hash=call.tokenizer_hash,
        template_hash=call.template_hash,
        canonical_version=call.canonical_version,
    )
    return CallInfo(arrival, outcome)


def _id(value: str, field: str) -> str:
    if not ID.fullmatch(value):
        raise ValueError(f"{field} {value!r} is not made of 1 to 40 of a-z and 0-9")
    return value


def _digest(blob: Blob | None) -> bytes | None:
    if blob is not None and len(blob.digest) != DIGEST_LENGTH:
        raise ValueError(f"a digest has {len(blob.digest)} bytes, not {DIGEST_LENGTH}")
    return None if blob is None else blob.digest


def _status(outcome: CallOutcome) -> str | None:
    if outcome.status == "arrived":
        raise ValueError("'arrived' is no outcome")
    if outcome.status == "answered" and outcome.retry_of is None:
        fields = {name: getattr(outcome, name) for name in ("prompt_ids", "completion_ids", "logprobs")}
        if missing := [name for name, value in fields.items() if value is None]:
            raise ValueError(f"it was answered, but has no {' and no '.join(missing)}")
    return _word(outcome.status, CallStatus, "status")


def _messages_kept(outcome: CallOutcome) -> int | None:
    if outcome.messages_kept and outcome.parent_id is None:
        raise ValueError(f"messages_kept is {outcome.messages_kept} without a parent_id")
    return _count(outcome.messages_kept, "messages_kept")


def _prompt(outcome: CallOutcome) -> Values:
    shared = operator.index(outcome.shared_len)
    if shared < 0 or (shared and outcome.parent_id is None):
        raise ValueError(f"shared_len is {shared}" + (" without a parent_id" if outcome.parent_id is None else ""))
    if outcome.parent_id == outcome.id:
        raise ValueError("it is its own parent")
    if outcome.prompt_ids is None:
        if shared:
            raise ValueError(f"shared_len is {shared}, but there are no prompt_ids")
        return {"shared_len": 0, "prompt_len": _count(outcome.prompt_len, "prompt_len"), "prompt_ids": None}
    added = len(outcome.prompt_ids)
    if outcome.prompt_len != shared + added:
        raise ValueError(
            f"prompt_len is {outcome.prompt_len}, but shared_len {shared} + {added} ids is {shared + added}"
        )
    return {"shared_len": shared, "prompt_len": shared + added, "prompt_ids": pack_ids(outcome.prompt_ids)}


def _completion(outcome: CallOutcome) -> Values:
    ids, logprobs = outcome.completion_ids, outcome.logprobs
    if ids is None or logprobs is None:
        if ids is not None or logprobs is not None or outcome.policy_spans:
            raise ValueError("completion_ids, logprobs and policy_spans come together or not at all")
        return dict.fromkeys(("completion_len", "completion_ids", "logprobs", "policy_spans"))
    if outcome.prompt_ids is None:
        raise ValueError("it has completion_ids, but no prompt_ids")
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} completion ids but {len(logprobs)} logprobs")
    packed = pack_logprobs(logprobs)
    lowest = float(np.min(logprobs, initial=0.0))
    if lowest <= NO_EVIDENCE:
        raise ValueError(f"a logprob is {lowest}, the engine's word for 'no evidence'")
    return {
        "completion_len": len(ids),
        "completion_ids": pack_ids(ids),
        "logprobs": packed,
        "policy_spans": _spans(outcome.policy_spans, len(ids)),
    }


def _spans(spans: Sequence[PolicySpan], length: int) -> list[list[str | int]] | None:
    at = 0
    for span in spans:
        if not at <= span.start < span.end <= length:
            raise ValueError(f"policy span {span.start}..{span.end} is out of order or outside {length} tokens")
        at = span.end
    return [[clean_text(s.version), operator.index(s.start), operator.index(s.end)] for s in spans] or None


def _word(value: str | None, closed_set: Any, field: str) -> str | None:
    if value is not None and value not in get_args(closed_set):
        raise ValueError(f"{field} {value!r} is not one of {', '.join(get_args(closed_set))}")
    return value


def _text(value: str | None) -> str | None:
    return None if value is None else clean_text(value)


def _time(value: float | None, field: str) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{field} is {value}")
    return None if value is None else float(value)


def _count(value: int | None, field: str) -> int | None:
    if value is None:
        return None
    number = operator.index(value)
    if not 0 <= number < 2**31:
        raise ValueError(f"{field} is {number}")
    return number


def _json(value: JsonObject | None, field: str) -> JsonObject | None:
    if value is None:
        return None
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{field} cannot be stored as JSON: {error}") from error
    return value
