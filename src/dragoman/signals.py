"""What becomes of Ctrl-C, SIGTERM and SIGHUP while something must not be left half done.

Rules of this module: standard library only, and no import from the rest of Dragoman. Each function is for a ``with``
block, and gives the earlier handlers back at its end.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def postponed() -> Iterator[None]:
    """A Ctrl-C, SIGTERM or SIGHUP that comes inside the block takes effect at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals only ever reach the main thread
        return
    arrived: list[int] = []
    previous = {number: signal.signal(number, lambda number, frame: arrived.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside the block a further Ctrl-C, SIGTERM or SIGHUP is ignored, so that nothing is left running."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals only ever reach the main thread
        return
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that ``finally`` blocks run."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
