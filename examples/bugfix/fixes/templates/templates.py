"""Texts with places for values."""

import re
from collections.abc import Mapping

PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")


class TemplateError(ValueError):
    """A brace without its partner, or a name without a value."""


def fill(template: str, values: Mapping[str, object]) -> str:
    """``{name}`` becomes its value; ``{{`` and ``}}`` become single braces. Values are taken as they are."""

    def one(match: re.Match[str]) -> str:
        found, name = match.group(0), match.group(1)
        if found in ("{{", "}}"):
            return found[0]
        if name is None:
            raise TemplateError(f"a brace stands alone at {match.start()}")
        if name not in values:
            raise TemplateError(f"there is no value for {name!r}")
        return str(values[name])

    return PLACE.sub(one, template)
