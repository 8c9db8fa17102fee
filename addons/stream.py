"""Joining deltas, so that a client gets few chunks: every chunk costs the proxy about as much as a small request."""

from collections.abc import Sequence

from dragoman.addons.messages import ReasoningDelta, ReplyEvent, TextDelta


def merge_deltas(events: Sequence[ReplyEvent]) -> list[ReplyEvent]:
    """The same events with neighbouring deltas of one kind joined into one."""
    merged: list[ReplyEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            merged[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            merged[-1] = ReasoningDelta(last.text + event.text)
        else:
            merged.append(event)
    return merged
