"""Random JSON schemas of the kinds that harnesses send, and of some that they do not."""

from random import Random
from typing import Any

from dragoman.store.records import JsonObject

PATTERNS = ("^a+$", "[0-9]{2}", r"^\d{3}-\w+$", "^(foo|bar)$", "a|b", "^[^x]{1,4}$", "^[A-Z][a-z]*$", "^.{2,5}$")
FORMATS = ("date", "email", "uuid", "ipv4", "time", "regex", "int32", "uri", "hostname", "date-time")
VALUES: tuple[Any, ...] = ("a", "b", 1, None, True, {"x": 1}, [1], 1.5, 'é"')
NAMES = ("a", "b", "c d", "é", 'e"f')


def random_schema(chance: Random) -> JsonObject:
    """A schema that may refer to its own definitions, one of which contains itself."""
    inner = _any(chance, 0)
    schema: JsonObject = {"type": "object", "properties": {"r": inner}, "required": ["r"]}
    if isinstance(inner, dict) and chance.random() < 0.5:
        schema = dict(inner)
    nested = {"anyOf": [{"$ref": "#/$defs/nested"}, {"type": "null"}]}
    definitions = {
        "nested": {"type": "object", "properties": {"n": nested}, "required": ["n"]},
        "other": _any(chance, 2),
    }
    return {**schema, "$defs": definitions}


def bounded_schema(chance: Random) -> JsonObject:
    """An object whose values are short, so that a weak model comes to their end."""
    kinds: tuple[JsonObject, ...] = (
        {"type": "string", "maxLength": chance.randint(3, 12)},
        {"type": "integer", "minimum": chance.randint(-5, 0), "maximum": chance.randint(1, 500)},
        {"type": "boolean"},
        {"enum": chance.sample(["red", "green", "blue", 7, None], 3)},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 3},
        {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False},
        {"anyOf": [{"type": "string", "format": "date"}, {"const": "never"}]},
    )
    names = [f"field_{i}" for i in range(chance.randint(1, 3))]
    return {
        "type": "object",
        "properties": {name: chance.choice(kinds) for name in names},
        "required": [name for name in names if chance.random() < 0.8],
        "additionalProperties": False,
    }


def _any(chance: Random, depth: int) -> Any:
    def sometimes(share: float, **keywords: Any) -> JsonObject:
        return keywords if chance.random() < share else {}

    simple = ("string", "integer", "enum", "boolean")
    deep = (
        "number",
        "null",
        "const",
        "object",
        "map",
        "array",
        "tuple",
        "anyOf",
        "oneOf",
        "allOf",
        "types",
        "none",
        "ref",
    )
    match chance.choice(simple + deep if depth < 3 else simple):
        case "string":
            return {
                "type": "string",
                **sometimes(0.3, minLength=chance.randint(0, 3)),
                **sometimes(0.3, maxLength=chance.randint(3, 8)),
                **sometimes(0.15, pattern=chance.choice(PATTERNS)),
                **sometimes(0.15, format=chance.choice(FORMATS)),
            }
        case "integer" | "number" as type_:
            return {
                "type": type_,
                **sometimes(0.3, minimum=chance.randint(-5, 5)),
                **sometimes(0.3, maximum=chance.randint(5, 50)),
                **sometimes(0.1, exclusiveMinimum=chance.randint(-5, 4)),
                **sometimes(0.1, multipleOf=chance.choice([2, 5])),
            }
        case "boolean" | "null" as type_:
            return {"type": type_, **sometimes(0.3, description="words")}
        case "enum":
            return {"enum": chance.sample(VALUES, chance.randint(1, 3)), **sometimes(0.3, type="string")}
        case "const":
            return {"const": chance.choice(VALUES)}
        case "object":
            names = chance.sample(NAMES, chance.randint(0, 3))
            return {
                "properties": {name: _any(chance, depth + 1) for name in names},
                "required": [name for name in names if chance.random() < 0.6]
                + (["zz"] if chance.random() < 0.1 else []),
                **sometimes(0.9, type="object"),
                **sometimes(0.5, additionalProperties=chance.choice([False, True, {"type": "integer"}])),
                **sometimes(0.1, minProperties=1),
                **sometimes(0.1, maxProperties=3),
            }
        case "map":
            return {
                "type": "object",
                "additionalProperties": chance.choice([True, _any(chance, depth + 1)]),
                **sometimes(0.3, minProperties=chance.randint(0, 2)),
                **sometimes(0.3, maxProperties=chance.randint(2, 3)),
                **sometimes(0.2, propertyNames={"type": "string"}),
                **sometimes(0.2, required=["q"]),
            }
        case "array":
            return {
                "type": "array",
                **sometimes(0.8, items=_any(chance, depth + 1)),
                **sometimes(0.3, minItems=chance.randint(0, 2)),
                **sometimes(0.5, maxItems=chance.randint(2, 3)),
                **sometimes(0.1, uniqueItems=chance.random() < 0.5),
            }
        case "tuple":
            return {
                "type": "array",
                "prefixItems": [_any(chance, depth + 1) for _ in range(chance.randint(1, 2))],
                **sometimes(0.5, items=chance.choice([False, True, _any(chance, depth + 1)])),
                **sometimes(0.3, minItems=chance.randint(0, 3)),
                **sometimes(0.3, maxItems=3),
            }
        case "anyOf" | "oneOf" | "allOf" as keyword:
            most = 3 if keyword == "anyOf" else 2
            return {
                keyword: [_any(chance, depth + 1) for _ in range(chance.randint(1, most))],
                **sometimes(0.2, type="string"),
                **sometimes(0.2, description="words"),
            }
        case "types":
            types = chance.sample(["string", "null", "integer", "object", "array"], 2)
            return {"type": types, "minimum": 0, "maxLength": 5, **sometimes(0.3, properties={"a": {"type": "null"}})}
        case "none":
            return chance.choice([{}, {"minimum": 3}, {"maxLength": 2}, {"items": {"type": "integer"}}, True])
        case _:
            return {"$ref": chance.choice(["#/$defs/nested", "#/$defs/other"])}
