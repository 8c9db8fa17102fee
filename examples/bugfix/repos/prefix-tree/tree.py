"""Words by their beginnings."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Node:
    word: bool = False
    below: dict[str, "Node"] = field(default_factory=dict)


class Tree:
    def __init__(self) -> None:
        self._root = Node()

    def add(self, word: str) -> None:
        node = self._root
        for char in word:
            node = node.below.setdefault(char, Node())
        node.word = True

    def remove(self, word: str) -> bool:
        """Take a word out, and all that was there for it alone; whether it was there."""
        node = self._root
        for char in word[:-1]:
            if char not in node.below:
                return False
            node = node.below[char]
        return node.below.pop(word[-1:], None) is not None

    def starting(self, prefix: str) -> list[str]:
        """All words that begin so, in order."""
        node = self._root
        for char in prefix:
            if char not in node.below:
                return []
            node = node.below[char]
        return sorted(self._words(node, prefix))

    def nodes(self) -> int:
        """How many nodes there are, the root included."""
        return self._count(self._root)

    def _words(self, node: Node, text: str) -> Iterator[str]:
        if node.word:
            yield text
        for char, child in node.below.items():
            yield from self._words(child, text + char)

    def _count(self, node: Node) -> int:
        return 1 + sum(self._count(child) for child in node.below.values())
