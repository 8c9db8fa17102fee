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
    values = {sign: value for value, sign in SIGNS if len(sign) == 1}
    total = 0
    for here, there in zip(text, [*text[1:], ""], strict=True):
        value = values.get(here, 0)
        total += -value if value < values.get(there, 0) else value
    if total == 0:
        raise ValueError(f"{text!r} is no Roman numeral")
    return total
