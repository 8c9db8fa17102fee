"""A value that a JSON schema allows, made up: for replies that nobody samples and calls that nobody meant. Pure.

It is the smallest that is plausible, and no validator: what a schema says beside types, enums, constants, references,
lengths of lists and smallest numbers is not read.
"""

from collections.abc import Mapping
from typing import Any

from dragoman.store.records import JsonObject

__all__ = ["made_up"]

MOST_DEEP = 12


def made_up(schema: Any, given: Mapping[str, Any] | None = None, *, text: str = "x") -> Any:
    """A value for ``schema``. Of an object the required properties and those of ``given``, which has their values.

    ``text``: for strings. ``None`` is the value for a schema that allows it, and where a schema goes too deep.
    """
    return _value(schema, schema if isinstance(schema, dict) else {}, given or {}, text, 0)


def _value(schema: Any, root: JsonObject, given: Mapping[str, Any], text: str, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > MOST_DEEP:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return _value(_named(root, reference), root, given, text, depth + 1)
    if "const" in schema:
        return schema["const"]
    if isinstance(values := schema.get("enum"), list) and values:
        return values[0]
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(word), list) and choices and "properties" not in schema:
            return _value(choices[0], root, given, text, depth + 1)
    kinds = schema.get("type")
    kinds = [str(kind).lower() for kind in (kinds if isinstance(kinds, list) else [kinds])]
    if "null" in kinds or schema.get("nullable") is True:
        return None
    if "object" in kinds or "properties" in schema:
        properties = schema.get("properties") or {}
        wanted = [*schema.get("required", ()), *(name for name in given if name in properties)]
        return {
            name: given[name] if name in given else _value(properties.get(name), root, {}, text, depth + 1)
            for name in dict.fromkeys(wanted)
        }
    if "array" in kinds:
        return [_value(schema.get("items"), root, {}, text, depth + 1)] * int(schema.get("minItems", 0))
    if "integer" in kinds or "number" in kinds:
        return schema.get("minimum", 1)
    return False if "boolean" in kinds else text


def _named(root: JsonObject, reference: str) -> Any:
    """What ``#/…`` names in the whole schema; ``None``: nothing."""
    place: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) and step else place
    return place
