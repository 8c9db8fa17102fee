"""Long lists, page by page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Page:
    number: int
    """From 1."""
    pages: int
    items: tuple[Any, ...]

    @property
    def first(self) -> bool:
        return self.number == 1

    @property
    def last(self) -> bool:
        return self.number == self.pages


def page(items: Sequence[Any], number: int, size: int) -> Page:
    """Page ``number`` of the items; where there is no such page the nearest one. Nothing at all is one empty page."""
    if size < 1:
        raise ValueError("a page holds at least one item")
    pages = max(-(-len(items) // size), 1)
    number = min(max(number, 1), pages)
    return Page(number, pages, tuple(items[(number - 1) * size : number * size]))
