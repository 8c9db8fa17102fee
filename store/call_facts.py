"""What decides where a call is trained, or why nowhere: a stored call without its arrays and messages.

Rules of this module: facts come from decoded calls or straight from columns, and are the same either way; the second
is quick enough for a whole store. The arrays themselves are read by ``calls``.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Table, Text, case, cast, false, func, literal, select
from sqlalchemy.orm import Session

from dragoman.store.models import Call, table_of
from dragoman.store.records import CallInfo, CallKind, CallStatus, ForkReason

CALLS: Table = table_of(Call)
_AS_STORED = (
    *("id", "episode_id", "path", "arrived_at", "kind", "thread"),
    *("status", "http_status", "error_code", "parent_id", "fork_reason", "retry_of"),
)


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Field meanings: ``records``."""

    id: str
    episode_id: str
    path: str
    arrived_at: float
    kind: CallKind
    thread: str | None
    status: CallStatus
    http_status: int | None = None
    error_code: str | None = None
    parent_id: str | None = None
    fork_reason: ForkReason | None = None
    retry_of: str | None = None
    shared_len: int = 0
    constrained: bool = False
    prompt_len: int = 0
    """Tokens of the full prompt, 0 where its ids are not stored."""
    completion_len: int = 0
    """Sampled tokens that are stored."""
    policy_known: bool = True
    """Whether the policy version of every sampled token is stored."""

    @property
    def stream_len(self) -> int:
        """Tokens of prompt and completion."""
        return self.prompt_len + self.completion_len

    def continues(self, parent: "CallFacts") -> bool:
        """Whether this call's prompt begins with all of ``parent``'s stream, and says so."""
        return self.fork_reason is None and self.shared_len == parent.stream_len


def facts_of(call: CallInfo) -> CallFacts:
    """The facts of a decoded call."""
    arrival, outcome = call.arrival, call.outcome
    known = (arrival.id, arrival.episode_id, arrival.path, arrival.arrived_at, arrival.kind, arrival.thread)
    if outcome is None:
        return CallFacts(*known, "arrived")
    sampled = 0 if outcome.completion_ids is None else len(outcome.completion_ids)
    return CallFacts(
        *known,
        outcome.status,
        outcome.http_status,
        outcome.error_code,
        outcome.parent_id,
        outcome.fork_reason,
        outcome.retry_of,
        shared_len=outcome.shared_len,
        constrained=outcome.constrained,
        prompt_len=0 if outcome.prompt_ids is None else outcome.shared_len + len(outcome.prompt_ids),
        completion_len=sampled,
        policy_known=_length((span.version, span.start, span.end) for span in outcome.policy_spans) == sampled,
    )


def read_facts(session: Session, episode_ids: Sequence[str] | None = None) -> dict[str, list[CallFacts]]:
    """Episode id → its calls in the order in which they arrived; ``None``: all episodes that have calls."""
    calls = CALLS.c
    zero = literal(0)
    columns = {  # in the order of the fields
        **{name: calls[name] for name in _AS_STORED},
        "shared_len": func.coalesce(calls.shared_len, zero),
        "constrained": func.coalesce(calls.constrained, false()),
        "prompt_len": case((calls.prompt_ids.is_not(None), calls.prompt_len), else_=zero),
        "completion_len": func.coalesce(calls.completion_len, zero),
        "policy_spans": cast(calls.policy_spans, Text),
    }
    query = select(*columns.values()).order_by(calls.episode_id, calls.arrived_at, calls.row)
    if episode_ids is not None:
        query = query.where(calls.episode_id.in_(episode_ids))
    found: dict[str, list[CallFacts]] = {}
    # No objects, no named columns, and no JSON read twice: where a whole store is read, they take most of the time.
    for *values, spans in session.connection().execute(query).all():
        values.append(_length_in(spans) == values[-1])
        call = CallFacts(*values)
        found.setdefault(call.episode_id, []).append(call)
    return found


@lru_cache(maxsize=4096)
def _length_in(spans: str | None) -> int:
    return 0 if spans is None else _length(json.loads(spans))


def _length(spans: Iterable[Sequence[Any]]) -> int:
    """Tokens that stored policy spans, which never overlap, are about."""
    length = 0
    for _, start, end in spans:
        length += end - start
    return length
