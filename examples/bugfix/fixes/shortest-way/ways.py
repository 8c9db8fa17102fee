"""The shortest way through a net of roads."""

import heapq
from collections.abc import Mapping

Roads = Mapping[str, Mapping[str, int]]
"""From → to → length, none negative; a road leads one way."""


def shortest(roads: Roads, start: str, goal: str) -> tuple[int, list[str]] | None:
    """Length and stations of the shortest way, both ends included; None where there is no way."""
    queue: list[tuple[int, list[str]]] = [(0, [start])]
    settled: set[str] = set()
    while queue:
        length, way = heapq.heappop(queue)
        here = way[-1]
        if here == goal:
            return length, way
        if here in settled:
            continue
        settled.add(here)
        for there, more in roads.get(here, {}).items():
            if there not in settled:
                heapq.heappush(queue, (length + more, [*way, there]))
    return None
