"""Dividing money, in whole cents."""

from collections.abc import Sequence
from fractions import Fraction


def split(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` cents by ``weights``: the parts add up to ``total``, and none is a cent or more from its due.

    Cents that rounding down leaves go to those who lost most by it; among equals to the first.
    """
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError("weights are not negative, and one of them is above 0")
    due = [Fraction(total * weight, whole) for weight in weights]
    parts = [int(one // 1) for one in due]
    left = total - sum(parts)
    by_loss = sorted(range(len(due)), key=lambda at: (parts[at] - due[at], at))
    for at in by_loss[:left]:
        parts[at] += 1
    return parts
