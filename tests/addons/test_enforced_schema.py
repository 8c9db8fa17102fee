"""Schemas made enforceable: a table of forms; and random schemas, whose grammars are walked by the engine's Python."""

import json
import random
from typing import Any

import jsonschema
import pytest

from dragoman.addons.enforced_schema import enforced_schema
from dragoman.addons.errors import DragomanError, InvalidRequest, Unsupported
from dragoman.store.records import JsonObject
from tests.grammar_walk import decode, walk_grammars
from tests.models import tiny_model_folder
from tests.random_schemas import random_schema

STRING: JsonObject = {"type": "string"}


def object_of(required: tuple[str, ...] = (), **properties: object) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "enforced"),
    [
        pytest.param({"title": "t", "description": "d", "default": 1, "x-order": 2}, {}, id="descriptions"),
        pytest.param({"properties": {"a": {"type": "string"}}}, object_of(a=STRING), id="a type by its keywords"),
        pytest.param({"minimum": 3}, {"type": "number", "minimum": 3}, id="a number by its keywords"),
        pytest.param({"type": "object"}, {"type": "object"}, id="any object"),
        pytest.param({"type": "object", "properties": {}}, object_of(), id="no arguments"),
        pytest.param(
            {"type": "object", "properties": {}, "additionalProperties": True}, {"type": "object"}, id="any arguments"
        ),
        pytest.param(
            {"type": "object", "properties": {"a": True}, "required": ["a", "b"], "additionalProperties": STRING},
            object_of(("a", "b"), a={}, b=STRING),
            id="what is required is declared, and closed",
        ),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
            id="a map",
        ),
        pytest.param({"type": "object", "propertyNames": {"type": "string"}}, {"type": "object"}, id="idle keyword"),
        pytest.param({"type": "array", "minItems": 1}, {"type": "array", "items": {}, "minItems": 1}, id="a list"),
        pytest.param(
            {"type": "array", "prefixItems": [STRING], "items": False},
            {"type": "array", "prefixItems": [STRING], "items": False},
            id="a tuple",
        ),
        pytest.param({"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}, id="two types"),
        pytest.param(
            {"type": ["integer", "null"], "minimum": 1, "maxLength": 3},
            {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
            id="keywords go to their type",
        ),
        pytest.param(
            {"type": "string", "minLength": 1, "maxLength": 9}, {"type": "string", "pattern": "^.{1,9}$"}, id="length"
        ),
        pytest.param({"type": "string", "minLength": 2}, {"type": "string", "pattern": "^.{2}.*$"}, id="least length"),
        pytest.param({"type": "string", "minLength": 0}, STRING, id="any length"),
        pytest.param({"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a+$"}, id="pattern"),
        pytest.param({"type": "string", "format": "date"}, {"type": "string", "format": "date"}, id="format"),
        pytest.param({"type": "string", "format": "int32"}, STRING, id="a format that describes"),
        pytest.param({"enum": ["a", 1], "type": "string"}, {"enum": ["a"]}, id="enum of a type"),
        pytest.param({"const": {"a": 1}}, {"enum": [{"a": 1}]}, id="const"),
        pytest.param({"allOf": [STRING], "description": "d"}, STRING, id="one of all"),
        pytest.param({"anyOf": [STRING, True]}, {"anyOf": [STRING, {}]}, id="any of"),
        pytest.param({"oneOf": [STRING, {"const": 1}]}, {"anyOf": [STRING, {"enum": [1]}]}, id="one of, apart"),
        pytest.param({"type": "integer", "minimum": 2.0}, {"type": "integer", "minimum": 2}, id="whole bound"),
        pytest.param({"type": "integer", "multipleOf": 5}, {"type": "integer", "multipleOf": 5}, id="multiples"),
        pytest.param(
            {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}},
            {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "null"}}},
            id="a reference",
        ),
        pytest.param(
            {"type": "object", "properties": {"next": {"$ref": "#"}}},
            {
                **object_of(next={"$ref": "#/$defs/d0"}),
                "$defs": {"d0": object_of(next={"$ref": "#/$defs/d0"})},
            },
            id="a schema that contains itself",
        ),
    ],
)
def test_what_comes_out(given: JsonObject, enforced: JsonObject) -> None:
    before = json.dumps(given)
    assert enforced_schema(given, "s") == enforced
    assert json.dumps(given) == before, "what the harness sent is never changed"


REFUSED = [
    ({"not": STRING}, "s.not", {}),
    ({"type": "array", "uniqueItems": True}, "s.uniqueItems", {"type": "array"}),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "s.dependentRequired", {"type": "object"}),
    ({"type": "object", "patternProperties": {"^a": {}}}, "s.patternProperties", {"type": "object"}),
    ({"type": "array", "items": [STRING]}, "s.items", {"type": "array"}),
    ({"allOf": [STRING, {"maxLength": 3}]}, "s.allOf", {}),
    ({"oneOf": [STRING, {"maxLength": 3}]}, "s.oneOf", {"anyOf": [STRING, {"type": "string", "pattern": "^.{0,3}$"}]}),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "s.oneOf", None),
    ({"oneOf": [{"type": "object"}, {"maxItems": 3}]}, "s.oneOf", None),  # an object matches the second, too
    ({"anyOf": [STRING], "type": "integer"}, "s.anyOf", STRING),
    ({"anyOf": [{"required": ["a"]}], "type": "object", "properties": {"a": {}}}, "s.anyOf", object_of(a={})),
    ({"enum": ["a"], "maxLength": 3}, "s.enum", {"enum": ["a"]}),
    ({"$ref": "http://x/y"}, "s.$ref", {}),
    ({"$ref": "#anchor"}, "s.$ref", {}),
    ({"type": "string", "pattern": "^(?!a)b$"}, "s.pattern", STRING),
    ({"type": "string", "pattern": r"^(a)\1$"}, "s.pattern", STRING),
    ({"type": "string", "pattern": r"\ba"}, "s.pattern", STRING),
    ({"type": "string", "pattern": "^a$|^b$"}, "s.pattern", STRING),
    ({"type": "string", "pattern": '"'}, "s.pattern", STRING),
    ({"type": "string", "pattern": r"\x22"}, "s.pattern", STRING),
    ({"type": "string", "pattern": r"[\x22]"}, "s.pattern", STRING),
    ({"type": "string", "pattern": r"a\\b"}, "s.pattern", STRING),
    ({"type": "string", "pattern": "(a{30}){30}"}, "s.pattern", STRING),
    ({"type": "string", "pattern": "a(?P<n>"}, "s.pattern", STRING),
    ({"type": "string", "pattern": "a", "format": "date"}, "s.pattern", {"type": "string", "format": "date"}),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "s.maxLength", {"type": "string", "pattern": "a"}),
    ({"type": "string", "maxLength": 5000}, "s.maxLength", STRING),
    ({"type": "number", "multipleOf": 0.5}, "s.multipleOf", {"type": "number"}),
    ({"type": "integer", "multipleOf": 5, "minimum": 1}, "s.multipleOf", {"type": "integer", "minimum": 1}),
    ({"type": "integer", "minimum": 1.5}, "s.minimum", {"type": "integer"}),
    ({"type": "integer", "maximum": 2**63}, "s.maximum", {"type": "integer"}),
    ({"type": "number", "exclusiveMinimum": True}, "s.exclusiveMinimum", {"type": "number"}),
    ({**object_of(a={}), "minProperties": 2}, "s.minProperties", object_of(a={})),
    ({"type": "object", "properties": {"x": {"items": {"if": {}}}}}, "s.properties.x.items.if", None),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, "s.$defs.a.not", None),
]


@pytest.mark.parametrize(
    ("schema", "place", "lenient"), REFUSED, ids=[f"{place} {i}" for i, (_, place, _) in enumerate(REFUSED)]
)
def test_what_cannot_be_enforced_is_refused_or_left_out(
    schema: JsonObject, place: str, lenient: JsonObject | None
) -> None:
    with pytest.raises(Unsupported, match="cannot be enforced by the engine") as raised:
        enforced_schema(schema, "s")
    assert raised.value.field == place
    assert raised.value.message.startswith(f"{place}: ")
    left = enforced_schema(schema, "s", lenient=True)
    assert lenient is None or left == lenient


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "strin"}, "s.type"),
        ({"type": []}, "s.type"),
        ({"type": 5}, "s.type"),
        ({"type": "object", "properties": [1]}, "s.properties"),
        ({"type": "object", "properties": {"a": 1}}, "s.properties.a"),
        ({"type": "object", "required": "a"}, "s.required"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "s.additionalProperties"),
        ({"type": "array", "items": 3}, "s.items"),
        ({"type": "array", "prefixItems": {}}, "s.prefixItems"),
        ({"type": "array", "prefixItems": [], "items": False, "minItems": 1}, "s.minItems"),
        ({"type": "array", "minItems": -1}, "s.minItems"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "s.minItems"),
        ({"type": "string", "pattern": 3}, "s.pattern"),
        ({"type": "string", "maxLength": "3"}, "s.maxLength"),
        ({"type": "integer", "minimum": "3"}, "s.minimum"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "s"),
        ({"enum": []}, "s.enum"),
        ({"enum": ["a"], "type": "integer"}, "s.enum"),
        ({"anyOf": {}}, "s.anyOf"),
        ({"anyOf": [False]}, "s.anyOf[0]"),
        ({"$ref": 1}, "s.$ref"),
        ({"$ref": "#/$defs/no"}, "s.$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "s.$ref"),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_what_is_no_schema_or_permits_nothing_is_refused(schema: JsonObject, place: str, lenient: bool) -> None:
    with pytest.raises(InvalidRequest) as raised:
        enforced_schema(schema, "s", lenient=lenient)
    assert not isinstance(raised.value, Unsupported)
    assert raised.value.field == place


def test_where_a_marker_is_kept_out_no_string_has_other_limits() -> None:
    for limit in ({"maxLength": 3}, {"pattern": "^a$"}, {"format": "date"}):
        with pytest.raises(Unsupported, match="where tools may be called too"):
            enforced_schema({"type": "string", **limit}, "s", bounded_strings=False)
        assert enforced_schema({"type": "string", **limit}, "s", bounded_strings=False, lenient=True) == STRING


def test_a_schema_nested_too_deep_is_refused_before_it_is_walked() -> None:
    schema: JsonObject = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(Unsupported, match="nested deeper"):
        enforced_schema(schema, "s", lenient=True)


@pytest.mark.engine
@pytest.mark.parametrize("seed", range(3))
def test_what_the_grammar_lets_through_is_valid(seed: int) -> None:
    """Random walks through xgrammar's grammars of random schemas, each value checked against the schema as given."""
    chance = random.Random(seed)
    given: list[JsonObject] = []
    jobs: list[dict[str, Any]] = []
    while len(jobs) < 100:
        schema = random_schema(chance)
        try:
            enforced = enforced_schema(schema, "s")
        except DragomanError:
            continue
        given.append(schema)
        tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": enforced}}
        jobs.append({"structured": {"structural_tag": json.dumps(tag)}, "walks": 4, "stop_ids": [2]})
    walks = 0
    for schema, answer in zip(given, walk_grammars(tiny_model_folder(), jobs), strict=True):
        assert "error" not in answer, (answer, schema)
        for ids in answer["walks"]:
            text = decode(ids[:-1])
            if "\ufffd" in text:
                continue  # bytes that are no character, which are counted as one and decoded as several
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            walks += 1
    assert walks > 250
