"""Roman numerals from 1 to 3999."""

SIGNS = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip


def write(number: int) -> str:
    """Raises ``ValueError`` outside of 1 to 3999."""
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} has no Roman numeral")
    text = ""
    for value, sign in SIGNS:
        count, number = divmod(number, value)
        text += sign * count
    return text


def read(text: str) -> int:
    """The number whose numeral ``text`` is. Raises ``ValueError`` for any other text."""
    total, left = 0, text
    for value, sign in SIGNS:
        while left.startswith(sign):
            total, left = total + value, left[len(sign) :]
    if left or not 1 <= total <= 3999 or write(total) != text:
        raise ValueError(f"{text!r} is no Roman numeral")
    return total
