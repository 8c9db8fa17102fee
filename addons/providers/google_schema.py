"""The two forms of schema in Google's dialect, as JSON schema. Pure.

Rules of this module: only what JSON schema would not understand is changed. In both forms upper-case types become lower
case. In a schema of Google's own (an OpenAPI subset: ``parameters``, ``responseSchema``) keywords may be in snake case,
counts may be strings, and ``nullable`` becomes a type. Anything but an object stands as it is: what is wrong with a
schema is for its user to say.
"""

import re
from typing import Any

from dragoman.store.records import JsonObject

# Keywords that hold schemas: one, a list of them, or one for each name.
_ONE = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
_LIST = {"anyOf", "oneOf", "allOf", "prefixItems"}
_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "defs"}
_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_SNAKE = re.compile(r"(?<=[A-Za-z0-9])_([a-z0-9])")


def camel_case(name: str) -> str:
    """A field name in camel case, whichever of the API's two spellings it came in."""
    return _SNAKE.sub(lambda match: match[1].upper(), name) if "_" in name else name


def to_json_schema(schema: JsonObject, *, googles_own: bool) -> JsonObject:
    """The schema as JSON schema; ``googles_own`` tells which of the two forms it has."""
    named = {camel_case(key) if googles_own else key: value for key, value in schema.items()}
    result = {key: _converted(key, value, googles_own) for key, value in named.items()}
    if googles_own and isinstance(result.get("type"), str) and result.pop("nullable", False) is True:
        result["type"] = [result["type"], "null"]
    return result


def _converted(key: str, value: Any, googles_own: bool) -> Any:
    if key == "type":
        return [_lower(item) for item in value] if isinstance(value, list) else _lower(value)
    if key in _ONE:
        return _schema(value, googles_own)
    if key in _LIST and isinstance(value, list):
        return [_schema(item, googles_own) for item in value]
    if key in _NAMED and isinstance(value, dict):
        return {name: _schema(item, googles_own) for name, item in value.items()}
    if googles_own and key in _COUNTS and isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)  # an int64 is a string in Google's JSON
    return value


def _schema(value: Any, googles_own: bool) -> Any:
    return to_json_schema(value, googles_own=googles_own) if isinstance(value, dict) else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
