"""What an expression comes to."""

from calc.words import words


def calculate(text: str) -> float:
    """The value. Raises ``ValueError`` for what is no expression, ``ZeroDivisionError`` as numbers do."""
    left = words(text)
    value = _sum(left)
    if left:
        raise ValueError(f"{left[0]!r} is one too many")
    return value


def _sum(left: list[str]) -> float:
    value = _product(left)
    if left and left[0] in "+-":
        value = value + _sum(left) if left.pop(0) == "+" else value - _sum(left)
    return value


def _product(left: list[str]) -> float:
    value = _power(left)
    while left and left[0] in ("*", "/"):
        value = value * _power(left) if left.pop(0) == "*" else value / _power(left)
    return value


def _signed(left: list[str]) -> float:
    if left and left[0] == "-":
        left.pop(0)
        return -_atom(left)
    return _atom(left)


def _power(left: list[str]) -> float:
    value = _signed(left)
    if left and left[0] == "**":
        left.pop(0)
        return float(value ** _signed(left))
    return value


def _atom(left: list[str]) -> float:
    if not left:
        raise ValueError("it ends too early")
    word = left.pop(0)
    if word == "(":
        value = _sum(left)
        if not left or left.pop(0) != ")":
            raise ValueError("a bracket is not closed")
        return value
    return float(word)
