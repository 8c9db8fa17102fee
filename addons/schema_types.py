"""Which values a JSON schema lets through, as far as its types say it. Pure.

The schemas here are those that ``enforced_schema`` makes: each is empty, or has one of ``$ref``, ``anyOf``, ``enum``
and a single ``type``.
"""

import math
from collections.abc import Iterable, Mapping

from dragoman.store.records import JsonObject

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_FAR = 8
"""How many steps a schema that contains itself is followed."""


def is_type(value: object, type_: str) -> bool:
    """Whether a JSON value has a type; a whole number has two."""
    match type_:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return type_ == "number" or value == int(value)


def wider(types: Iterable[str]) -> frozenset[str]:
    """The types with ``integer`` wherever ``number`` is."""
    named = frozenset(types)
    return named | {"integer"} if "number" in named else named


def types_of(schema: JsonObject, definitions: Mapping[str, JsonObject], steps: int = 0) -> frozenset[str]:
    """The types that a value may have. ``definitions``: what references name; one that is missing may be anything."""
    if not schema or steps > _FAR:
        return frozenset(TYPES)
    if "$ref" in schema:
        return types_of(_target(schema, definitions), definitions, steps + 1)
    if "anyOf" in schema:
        return frozenset[str]().union(*(types_of(branch, definitions, steps + 1) for branch in schema["anyOf"]))
    if "enum" in schema:
        return frozenset(type_ for type_ in TYPES if any(is_type(value, type_) for value in schema["enum"]))
    return wider((schema["type"],))


def disjoint(one: JsonObject, other: JsonObject, definitions: Mapping[str, JsonObject], steps: int = 0) -> bool:
    """Whether no value matches both; false where that is not easily seen."""
    one, other = _target(one, definitions), _target(other, definitions)
    if steps > _FAR:
        return False
    if not types_of(one, definitions) & types_of(other, definitions):
        return True
    if "enum" in one and "enum" in other:
        return not any(value == another for value in one["enum"] for another in other["enum"])
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    return any(disjoint(one["properties"][name], other["properties"][name], definitions, steps + 1) for name in shared)


def _target(schema: JsonObject, definitions: Mapping[str, JsonObject]) -> JsonObject:
    return definitions.get(schema["$ref"].rpartition("/")[2], {}) if "$ref" in schema else schema
