"""Breaking text into lines."""


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters, broken between words. A longer word has a line of its own, whole."""
    if width < 1:
        raise ValueError("a line holds at least one character")
    lines: list[str] = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines
