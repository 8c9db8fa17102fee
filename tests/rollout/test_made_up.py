"""Values for schemas."""

from typing import Any

import jsonschema
import pytest

from dragoman.rollout.made_up import made_up

SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer", "minimum": 3},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["b", "a"]},
    {"const": 7},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]},
    {
        "$ref": "#/$defs/one",
        "$defs": {"one": {"type": "object", "properties": {"n": {"$ref": "#/$defs/two"}}, "required": ["n"]},
                  "two": {"type": "integer"}},
    },
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_the_value_is_one_that_the_schema_allows(schema: dict[str, Any]) -> None:
    jsonschema.validate(made_up(schema), schema)


def test_what_is_given_stands_and_the_rest_is_what_is_required() -> None:
    schema = {
        "type": "object",
        "properties": {"command": {"type": "string"}, "why": {"type": "string"}, "dir": {"type": "string"}},
        "required": ["command", "why"],
    }

    assert made_up(schema, {"command": "ls", "unknown": 1}, text="said") == {"command": "ls", "why": "said"}


def test_a_schema_that_holds_itself_ends() -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}},
        "required": ["next"],
    }

    assert made_up(schema)["next"]["next"]["next"] is not None


def test_no_schema_at_all() -> None:
    assert made_up(True) is None
