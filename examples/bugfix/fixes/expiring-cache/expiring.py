"""A cache whose entries grow old. The clock is passed in."""

from collections.abc import Callable
from typing import Any


class Expiring:
    """Entries hold for ``seconds``: at that age and beyond they are gone."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._entries: dict[Any, tuple[float, Any]] = {}

    def put(self, key: Any, value: Any) -> None:
        self._entries[key] = (self._clock(), value)

    def get(self, key: Any, default: Any = None) -> Any:
        entry = self._entries.get(key)
        if entry is None or self._old(entry):
            self._entries.pop(key, None)
            return default
        return entry[1]

    def __len__(self) -> int:
        """How many entries still hold."""
        return sum(not self._old(entry) for entry in self._entries.values())

    def _old(self, entry: tuple[float, Any]) -> bool:
        return self._clock() - entry[0] >= self.seconds
