"""Durations as people write them: ``2d4h``, ``1h30m``, ``45s``."""

import re

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse(text: str) -> int:
    """Seconds. Raises ``ValueError`` for anything but numbers with units, each unit once, the larger first."""
    if not re.fullmatch(r"(\d+d)?(\d+h)?(\d+m)?(\d+s)?", text) or not text:
        raise ValueError(f"{text!r} is no duration")
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))


def show(seconds: int) -> str:
    """The shortest text that ``parse`` reads as ``seconds``, with no unit above its usual number."""
    if seconds < 0:
        raise ValueError("a duration is not negative")
    parts = []
    left = seconds
    for unit, size in UNITS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
