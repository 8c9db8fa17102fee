"""How the command line speaks: results on stdout, progress and errors on stderr, failures in plain words.

Rules of this module: no import from the rest of Dragoman, and rich only inside functions, so that ``--help`` is quick.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Failure(Exception):
    """Something the user can act on: shown as one plain message, without a traceback, and exit code 1."""


def console() -> "Console":
    """For results. Made on each use, because tests and pipes replace ``sys.stdout``."""
    from rich.console import Console

    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = 200  # a pipe has no width, and a table must not be folded for it
    return out


def progress() -> "Console":
    """For progress and remarks, on stderr, so that stdout can be piped or given to ``eval``."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, stderr=True)


def say(text: str) -> None:
    """One line of progress on stderr, as it is (no markup)."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


class Step:
    """A step of work that is going on; ``note`` shows what it is at, beside ``text``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = ""
        self.started = time.monotonic()

    def note(self, at: str) -> None:
        self.at = at

    def elapsed(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self.started

    def __rich__(self) -> "Text":
        from rich.text import Text

        line = Text(self.text, no_wrap=True, overflow="ellipsis")
        return line.append(f" {self.elapsed():.0f} s" + (f" · {self.at}" if self.at else ""), style="dim")


@contextmanager
def step(text: str) -> Iterator[Step]:
    """A live line with a spinner and the seconds gone; at the end one line saying that it was done.

    Where stderr is no terminal there is one line at the start and one at the end.
    """
    from rich.live import Live
    from rich.spinner import Spinner

    current = Step(text)
    out = progress()
    if not out.is_terminal:
        say(f"… {text}")
        yield current
    else:
        with Live(Spinner("dots", text=current), console=out, transient=True, refresh_per_second=8):
            yield current
    say(f"✓ {current.text} ({current.elapsed():.1f} s)")
