"""An expression in its words."""

import re

WORD = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|(\*\*|[-+*/()]))")


def words(text: str) -> list[str]:
    """Numbers and signs in order. Raises ``ValueError`` for anything else."""
    found, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = WORD.match(text, at)
        if match is None:
            raise ValueError(f"what is {text[at:].strip()!r}?")
        found.append(match.group(1) or match.group(2))
        at = match.end()
    return found
