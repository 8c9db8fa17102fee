"""Texts with places for values."""

import re
from collections.abc import Mapping

PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")


class TemplateError(ValueError):
    """A brace without its partner, or a name without a value."""


def fill(template: str, values: Mapping[str, object]) -> str:
    """``{name}`` becomes its value; ``{{`` and ``}}`` become single braces. Values are taken as they are."""
    text = template
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    for match in PLACE.finditer(text):
        if match.group(1) is not None:
            raise TemplateError(f"there is no value for {match.group(1)!r}")
        if len(match.group(0)) == 1 and len(text.replace("{{", "").replace("}}", "")) == len(text):
            raise TemplateError(f"a brace stands alone at {match.start()}")
    return text.replace("{{", "{").replace("}}", "}")
