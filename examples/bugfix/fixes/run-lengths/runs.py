"""Run lengths: ``aaab`` is ``3ab``."""

import re
from itertools import groupby


def pack(text: str) -> str:
    """Each run as its length and its character; a single character as itself. The text holds no digits."""
    if re.search(r"\d", text):
        raise ValueError("a text with digits cannot be packed")
    packed = []
    for char, run in groupby(text):
        length = sum(1 for _ in run)
        packed.append(char if length == 1 else f"{length}{char}")
    return "".join(packed)


def unpack(packed: str) -> str:
    """What ``pack`` packed. Raises ``ValueError`` for a length without a character."""
    if re.search(r"\d\Z", packed):
        raise ValueError("the last length has no character")
    return "".join(char * int(length or 1) for length, char in re.findall(r"(\d*)(\D)", packed))
