"""Configuration files: ``[section]``, ``name = value``, ``# comment``."""

import re

COMMENT = re.compile(r"(^|\s)#.*$")


class SettingsError(ValueError):
    """A line that cannot be read; the message begins with its number."""


def read(text: str) -> dict[str, dict[str, str]]:
    """Section → name → value. What stands before the first section is in section ``""``. The last value holds."""
    found: dict[str, dict[str, str]] = {"": {}}
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = COMMENT.sub("", raw).strip()
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            found.setdefault(section, {})
            continue
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise SettingsError(f"{number}: {raw!r} is no setting")
        found[section][name.strip()] = value.strip()
    return found
