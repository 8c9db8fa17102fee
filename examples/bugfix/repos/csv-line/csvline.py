"""One line of comma-separated values, with quotes."""


def split_line(line: str) -> list[str]:
    """The fields of a line. A quoted field may hold commas, and a doubled quote for a quote."""
    fields: list[str] = []
    field: list[str] = []
    quoted = False
    at = 0
    while at < len(line):
        char = line[at]
        if quoted:
            if char == '"' and line[at + 1 : at + 2] == '"':
                at += 1
            elif char == '"':
                quoted = False
            else:
                field.append(char)
        elif char == '"':
            quoted = True
        elif char == ",":
            fields.append("".join(field))
            field = []
        else:
            field.append(char)
        at += 1
    if quoted:
        raise ValueError("a quote is not closed")
    return [*fields, "".join(field)]


def join_line(fields: list[str]) -> str:
    """The line that ``split_line`` takes apart into ``fields``."""
    return ",".join(_quoted(field) if set(field) & {",", '"', "\n"} else field for field in fields)


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'
