import pytest

from dragoman.addons.schema_types import TYPES, disjoint, is_type, types_of, wider
from dragoman.store.records import JsonObject

DEFINITIONS: dict[str, JsonObject] = {"d0": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}


def test_a_whole_number_has_two_types_and_a_boolean_is_no_number() -> None:
    assert [type_ for type_ in TYPES if is_type(3, type_)] == ["number", "integer"]
    assert [type_ for type_ in TYPES if is_type(3.0, type_)] == ["number", "integer"]
    assert [type_ for type_ in TYPES if is_type(3.5, type_)] == ["number"]
    assert [type_ for type_ in TYPES if is_type(True, type_)] == ["boolean"]
    assert [type_ for type_ in TYPES if is_type(float("inf"), type_)] == []
    assert [type_ for type_ in TYPES if is_type(None, type_)] == ["null"]


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "number"}, {"number", "integer"}),
        ({"type": "integer"}, {"integer"}),
        ({"enum": ["a", 1]}, {"string", "number", "integer"}),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d0"}]}, {"null", "string"}),
        ({"$ref": "#/$defs/not-there-yet"}, set(TYPES)),
        ({"$ref": "#/$defs/loop"}, set(TYPES)),
        ({}, set(TYPES)),
    ],
)
def test_the_types_that_a_value_may_have(schema: JsonObject, types: set[str]) -> None:
    assert types_of(schema, DEFINITIONS) == types


def test_number_covers_integer() -> None:
    assert wider(("number", "null")) == {"number", "integer", "null"}
    assert wider(("integer",)) == {"integer"}


def _kind(word: str, *, required: bool = True) -> JsonObject:
    names = ["kind"] if required else []
    return {"type": "object", "properties": {"kind": {"enum": [word]}}, "required": names}


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ({"type": "string"}, {"type": "integer"}, True),
        ({"type": "number"}, {"type": "integer"}, False),
        ({"$ref": "#/$defs/d0"}, {"type": "null"}, True),
        ({"enum": ["a", 1]}, {"enum": ["b", 2]}, True),
        ({"enum": ["a", 1]}, {"enum": ["b", 1.0]}, False),
        (_kind("a"), _kind("b"), True),
        (_kind("a"), _kind("a"), False),
        (_kind("a"), _kind("b", required=False), False),
        ({"type": "string"}, {}, False),
        ({"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}, False),
    ],
)
def test_whether_no_value_matches_both(one: JsonObject, other: JsonObject, apart: bool) -> None:
    assert disjoint(one, other, DEFINITIONS) is apart
    assert disjoint(other, one, DEFINITIONS) is apart
