"""Reading the fields of a request body that nobody has checked yet. Pure.

Rules of this module: every function takes a value and ``at``, its path in the dialect's own notation. It gives the
value back with a type, or raises ``InvalidRequest`` naming the path, what was expected and what was there.
"""

from typing import Any

import orjson

from dragoman.addons.errors import InvalidRequest
from dragoman.store.records import JsonObject

MAX_INT = 2**31 - 1


def shown(value: object) -> str:
    """A value for an error message: its ``repr``, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def wrong(at: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{at}: expected {expected}, got {shown(value)}", field=at)


def as_text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise wrong(at, "a string", value)
    return value


def as_name(value: object, at: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(at, "a string that is not empty", value)
    return value


def as_object(value: object, at: str) -> JsonObject:
    if not isinstance(value, dict):
        raise wrong(at, "an object", value)
    return value


def as_list(value: object, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(at, "an array", value)
    return value


def as_flag(value: object, at: str, *, default: bool = False) -> bool:
    """``default`` stands for null and for a missing field."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(at, "true or false", value)
    return value


def as_int(value: object, at: str, *, low: int, high: int = MAX_INT) -> int | None:
    """A whole number from ``low`` to ``high``; ``None`` for null and for a missing field."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(at, f"a whole number from {low} to {high}", value)
    return value


def as_number(value: object, at: str, *, low: float, high: float, above_low: bool = False) -> float | None:
    """A number from ``low`` (not ``low`` itself with ``above_low``) to ``high``; ``None`` as in ``as_int``."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(at, f"a number from {low} to {high}", value)
    if above_low and value == low:
        raise wrong(at, f"a number above {low}", value)
    return float(value)


def as_schema(value: object, at: str) -> JsonObject:
    """A JSON schema, kept as it was sent. One too deeply nested to be written again inside a request is refused."""
    schema = as_object(value, at)
    as_json([[[[[[[[schema]]]]]]]], at)  # in a list of tools, say
    return schema


def as_json(value: object, at: str) -> str:
    """The value as compact JSON text."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:  # what came from JSON can fail for one reason only
        raise InvalidRequest(f"{at}: nested too deeply", field=at) from error
