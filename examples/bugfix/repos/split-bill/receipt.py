"""A receipt: who pays what."""

from bill import split


def receipt(total: int, people: dict[str, int]) -> str:
    """One line for each person with a part in it, in euros."""
    parts = split(total, list(people.values()))
    return "\n".join(f"{name}: {cents // 100}.{cents % 100:02d}" for name, cents in zip(people, parts, strict=True))
