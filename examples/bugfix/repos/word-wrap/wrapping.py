"""Breaking text into lines."""


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters, broken between words. A longer word has a line of its own, whole."""
    if width < 1:
        raise ValueError("a line holds at least one character")
    lines: list[str] = []
    line = ""
    for word in text.split():
        if len(line) + len(word) <= width:
            line = f"{line} {word}".strip()
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines
