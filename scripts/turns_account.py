"""What became of the calls of a row of several turns, from the store alone. Pure.

The sums are ``dragoman ledger``'s own: it is run as a person would run it, with the flows that the proxy saved.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.store.branches import TRAINED_KINDS
from dragoman.store.records import CallInfo, JsonObject
from dragoman.store.traces import build_traces


@dataclass(frozen=True)
class Account:
    calls: dict[str, int]
    """Answered calls by kind."""
    exact: int
    """Calls of trained kinds that continue an earlier one with exactly its tokens."""
    starts: int
    """Those that begin a conversation, without a parent and without a fork."""
    forks: tuple[str, ...]
    """The reasons of the others, in order of arrival."""
    echo_changed: int
    """How many of them came back changed, under the echo rules."""
    traces: dict[str, int]
    """By kind."""
    sampled: int
    """Tokens, as are the next two."""
    traced: int
    excluded: dict[str, int]
    """By reason."""
    images: int
    """Images that the harness sent."""
    printed: tuple[str, ...]
    """What tools printed and the model was shown (``ran-42``, …), sorted."""
    note: bool
    """The note was written as the model said it."""
    flow_calls: int
    """Calls in the saved flows."""
    problems: tuple[str, ...]
    """Why the ledger does not balance."""


def read_account(values: dict[str, Any]) -> Account:
    """From its JSON."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Account(**(values | lists))


def account_of(calls: Sequence[CallInfo], ledger: JsonObject, *, note: bool) -> Account:
    """``calls``: of one episode, in order of arrival; ``ledger``: what ``dragoman ledger --json`` says of it."""
    answered = [call for call in calls if call.outcome is not None and call.outcome.status == "answered"]
    trained = [call for call in answered if call.arrival.kind in TRAINED_KINDS]
    changed = {call.arrival.id: call.outcome.echo_changed for call in answered if call.outcome is not None}
    exact, starts, forks, echo_changed = 0, 0, [], 0
    for call in trained:
        assert call.outcome is not None
        if call.outcome.fork_reason is not None:
            forks.append(call.outcome.fork_reason)
        elif call.outcome.parent_id is None:
            starts += 1
        else:
            exact += 1
            # a call counts the changed replies of its whole history
            echo_changed += call.outcome.echo_changed - changed.get(call.outcome.parent_id, 0)
    traces = build_traces(calls).traces
    # what several calls share is stored with the first of them
    messages = {blob.digest: blob.data for call in calls if call.outcome for blob in call.outcome.messages}.values()
    return Account(
        calls=dict(Counter(call.arrival.kind for call in answered)),
        exact=exact,
        starts=starts,
        forks=tuple(forks),
        echo_changed=echo_changed,
        traces=dict(Counter(trace.kind for trace in traces)),
        sampled=ledger["sampled_tokens"],
        traced=ledger["traced_tokens"],
        excluded=dict(ledger["excluded_tokens"]),
        images=sum(data.count(b'{"type":"image",') for data in messages),
        printed=tuple(sorted({found.decode() for data in messages for found in re.findall(rb"ran-\d+", data)})),
        note=note,
        flow_calls=ledger["flow_calls"] or 0,
        problems=tuple(ledger["problems"]),
    )
