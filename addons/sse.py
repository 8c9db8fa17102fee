"""Server-sent events: encode ours, split those of others. Pure.

Rules of this module: bytes in, bytes out. The splitter follows the HTML standard ("interpreting an event stream"): a
line ends with LF, CRLF or CR; a line that starts with a colon is a comment; several ``data`` lines are joined with LF;
an event without a ``data`` line is no event; ``id`` and ``retry`` mean nothing here. An event that the stream cuts off
before its blank line is never given out.
"""

import re
from dataclasses import dataclass

import orjson

from dragoman.store.records import JsonObject

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SseEvent:
    event: str | None
    """The event's name; ``None``: it has none."""
    data: bytes


def encode_event(data: bytes | JsonObject, event: str | None = None) -> bytes:
    """One event. A dict is written as compact JSON; bytes stand as they are, one ``data`` line for each of their lines.

    ``event`` is a name of ours: one line of text.
    """
    payload = data if isinstance(data, bytes) else orjson.dumps(data)
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"".join(b"data: " + line + b"\n" for line in _LINE_END.split(payload)) + b"\n"


class SseSplitter:
    """Gives the events of a byte stream as soon as each is complete, whatever the chunks. Takes linear time."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of the line that has not ended yet
        self._skip_line_feed = False  # the last chunk ended with CR: an LF at the start of the next belongs to it
        self._at_start = True
        self._event: str | None = None
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that ``chunk`` completes, in order; often none."""
        if not chunk:
            return []
        ends_with_cr = chunk.endswith(b"\r")
        if self._skip_line_feed:
            chunk = chunk.removeprefix(b"\n")
        self._skip_line_feed = ends_with_cr
        first, *others = _LINE_END.split(chunk)
        self._line.append(first)
        events = []
        for following in others:
            event = self._end_line(b"".join(self._line))
            self._line = [following]
            if event is not None:
                events.append(event)
        return events

    def _end_line(self, line: bytes) -> SseEvent | None:
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            event = SseEvent(self._event, b"\n".join(self._data)) if self._data else None
            self._event, self._data = None, []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        return None
