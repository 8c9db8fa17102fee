"""The beginning and the end of a stream that may be endless."""

from dataclasses import dataclass, field

__all__ = ["Kept", "cut"]

MARK = b"\n[... %d bytes left out ...]\n"
ROOM_FOR_MARK = 60


@dataclass
class Kept:
    """Takes any number of bytes and keeps at most ``limit``: half from the beginning, half from the end."""

    limit: int
    """At least ``2 * ROOM_FOR_MARK``."""
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _seen: int = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = max(self.limit // 2 - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self.limit:  # not at every call, so that each byte is moved about once
            del self._tail[: -self.limit]

    def content(self) -> tuple[bytes, int]:
        """What was kept, with a mark where something is missing, and how many bytes are missing."""
        if self._seen <= self.limit:
            return bytes(self._head + self._tail), 0
        room = self.limit - self.limit // 2 - ROOM_FOR_MARK
        end = bytes(self._tail[max(len(self._tail) - room, 0) :])  # not [-room:], which with no room would be all
        omitted = self._seen - len(self._head) - len(end)
        return bytes(self._head) + MARK % omitted + end, omitted


def cut(data: bytes, limit: int) -> tuple[bytes, int]:
    """``data`` within ``limit`` bytes, and how many are missing."""
    kept = Kept(limit)
    kept.add(data)
    return kept.content()
