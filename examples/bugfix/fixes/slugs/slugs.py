"""Titles as parts of web addresses."""

import re
import unicodedata
from collections.abc import Container


def slug(title: str) -> str:
    """Small letters and digits with single dashes between words, without accents; ``untitled`` when none is left."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "untitled"


def unique(title: str, taken: Container[str]) -> str:
    """The title's slug, or the first of ``slug-2``, ``slug-3``, … that is not taken."""
    found, number = slug(title), 1
    while found in taken:
        number += 1
        found = f"{slug(title)}-{number}"
    return found
