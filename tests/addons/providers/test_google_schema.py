"""``providers/google_schema.py``."""

from typing import Any

import pytest

from dragoman.addons.providers.google_schema import camel_case, to_json_schema


@pytest.mark.parametrize(
    ("schema", "converted"),
    [
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": ["STRING", "NULL"]}, {"type": ["string", "null"]}),
        ({"type": "OBJECT", "properties": {"type": {"type": "NUMBER"}}}, None),
        ({"type": "ARRAY", "items": {"type": "BOOLEAN"}}, {"type": "array", "items": {"type": "boolean"}}),
        (
            {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}], "description": "STRING", "enum": ["A"]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "STRING", "enum": ["A"]},
        ),
        ({"default": {"type": "STRING"}}, {"default": {"type": "STRING"}}),
        (
            {"properties": [], "items": "x", "anyOf": 1, "type": None},
            {"properties": [], "items": "x", "anyOf": 1, "type": None},
        ),
    ],
)
@pytest.mark.parametrize("googles_own", [True, False])
def test_types_are_lower_case(schema: dict[str, Any], converted: dict[str, Any] | None, googles_own: bool) -> None:
    expected = converted or {"type": "object", "properties": {"type": {"type": "number"}}}
    assert to_json_schema(schema, googles_own=googles_own) == expected


def test_googles_own_form() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "first_name": {"type": "STRING", "nullable": True, "min_length": "3", "maxLength": "9" * 5000},
            "any_of": {"any_of": [{"type": "STRING", "nullable": False}, {"nullable": True}]},
        },
        "property_ordering": ["first_name", "any_of"],
        "required": ["first_name"],
        "min_properties": 1,
    }
    assert to_json_schema(schema, googles_own=True) == {
        "type": "object",
        "properties": {
            "first_name": {"type": ["string", "null"], "minLength": 3, "maxLength": "9" * 5000},
            "any_of": {"anyOf": [{"type": "string"}, {"nullable": True}]},
        },
        "propertyOrdering": ["first_name", "any_of"],
        "required": ["first_name"],
        "minProperties": 1,
    }


def test_json_schema_keeps_what_only_looks_like_googles_own() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "nullable": True, "minLength": "3"}},
        "$defs": {"B": {"type": "integer"}},
        "x_note": 1,
    }
    assert to_json_schema(schema, googles_own=False) == schema


def test_the_schema_given_is_not_changed() -> None:
    schema = {"type": "STRING", "nullable": True, "items": {"type": "STRING"}}
    to_json_schema(schema, googles_own=True)
    assert schema == {"type": "STRING", "nullable": True, "items": {"type": "STRING"}}


@pytest.mark.parametrize(
    ("name", "camel"),
    [
        ("inline_data", "inlineData"),
        ("inlineData", "inlineData"),
        ("top_k", "topK"),
        ("_responseJsonSchema", "_responseJsonSchema"),
        ("a__b", "a__b"),
        ("", ""),
    ],
)
def test_camel_case(name: str, camel: str) -> None:
    assert camel_case(name) == camel
