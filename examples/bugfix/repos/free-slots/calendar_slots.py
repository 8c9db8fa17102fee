"""Busy and free times of a day, as half-open pairs of minutes."""

from collections.abc import Iterable

Span = tuple[int, int]
"""From the first minute up to, and without, the last."""


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same minutes in as few spans as can be, in order. Spans that touch become one; empty ones vanish."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def free(day: Span, busy: Iterable[Span], at_least: int = 1) -> list[Span]:
    """What is left of the day between the busy spans, of at least so many minutes."""
    found, at = [], day[0]
    for start, end in merge(busy):
        found.append((at, min(start, day[1])))
        at = max(at, end)
    found.append((at, day[1]))
    return [(start, end) for start, end in found if end - start >= at_least]
