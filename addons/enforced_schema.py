"""From a harness's JSON schema to one whose every keyword the engine's grammar (xgrammar) holds a reply to. Pure.

The grammar leaves out in silence what it does not know, so it is not shown any of that. Rules:

- What comes out may permit less than the schema, never more. An object with declared properties has no others; the
  properties come in their order; a pattern matches the whole string; a string with a pattern or a length holds no
  character that JSON escapes; a keyword says the type that it is about.
- Keywords that only describe (and formats that are not in ``FORMATS``, which describe too) are left out.
- A keyword that limits values and cannot be enforced is refused with ``Unsupported``, by its place in the schema; with
  ``lenient`` it is left out instead. What is no JSON schema, or permits nothing, is refused in any case.
- ``$ref`` goes to places within the schema; what they name is converted once, so a schema may contain itself.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.schema_types import TYPES, disjoint, is_type, types_of, wider
from dragoman.store.records import JsonObject

FORMATS = (
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"),
    *("uri-template", "json-pointer", "relative-json-pointer"),
)
_LIMITS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""The keywords that are about one type; those of ``number`` are about ``integer`` too."""
_NEVER = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "additionalItems", "uniqueItems", "contains", "minContains"),
    *("maxContains", "$dynamicRef", "$recursiveRef"),
)
"""They limit values, and the grammar ignores them."""
_IDLE: dict[str, Any] = {"uniqueItems": False, "propertyNames": {"type": "string"}, "unevaluatedProperties": True}
"""Values with which they limit nothing."""
_COMBINATIONS = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_UNSAFE = re.compile(r'\(\?(?!:)|\\[1-9bBkpP\\]|["\x00-\x1f^]|(?<!\\)\$')
"""In a pattern without its classes: look-around, back-references and anchors that the grammar ignores or refuses, and
characters that it would let into a string unescaped."""
_UNSAFE_ANYWHERE = re.compile(r"\\[xuc]")
"""An escaped code may be such a character too."""
_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")
_LONGEST = 200
"""The most repetitions in a pattern: the engine needs a second for twice as many, and half a minute for 4,000."""
_INT64 = 2**63
_DEEPEST = 60
"""The engine refuses schemas that are nested deeper than 64."""


def enforced_schema(
    schema: JsonObject, place: str, *, bounded_strings: bool = True, lenient: bool = False
) -> JsonObject:
    """The schema to give the engine, made of new objects.

    Args:
        place: where the request holds the schema; errors name places below it.
        bounded_strings: whether strings can be held to a length, a pattern or a format where it will be used.
        lenient: leave out what cannot be enforced instead of refusing it.

    Raises:
        InvalidRequest: what is there is no JSON schema, or permits nothing.
        Unsupported: it holds a keyword that cannot be enforced.
    """
    if _nested_deeper(schema, _DEEPEST):
        raise Unsupported(f"{place}: a schema nested deeper than {_DEEPEST} cannot be enforced", field=place)
    converter = _Converter(schema, place, bounded_strings, lenient)
    converted = converter.convert(schema, place)
    if converter.definitions:
        converted = {**converted, "$defs": converter.definitions}
    return converted


@dataclass(slots=True)
class _Converter:
    root: JsonObject
    place: str
    bounded_strings: bool
    lenient: bool
    definitions: dict[str, JsonObject] = field(default_factory=dict)
    """What references name, converted."""
    names: dict[str, str] = field(default_factory=dict)
    """Reference → key in ``definitions``."""
    guessed: bool = False
    """Whether a schema without a type was given one; a value of another type matched it, too."""

    def refuse(self, place: str, why: str) -> None:
        if not self.lenient:
            raise Unsupported(f"{place}: {why} cannot be enforced by the engine", field=place)

    def convert(self, node: object, place: str) -> JsonObject:
        if node is True:
            return {}
        if node is False:
            raise InvalidRequest(f"{place}: a schema that is false permits nothing", field=place)
        if not isinstance(node, dict):
            raise InvalidRequest(f"{place}: {node!r} is no JSON schema", field=place)
        for keyword in _NEVER:
            if keyword in node and node[keyword] != _IDLE.get(keyword, ...):
                self.refuse(f"{place}.{keyword}", "this keyword")
        types = _types(node, place)
        limits = {keyword for keyword, type_ in _all_limits() if keyword in node and (not types or type_ in types)}
        combinations = [keyword for keyword in _COMBINATIONS if keyword in node]
        if not combinations:
            return self.typed(node, types, place)
        keyword, *more = combinations
        if more or limits:
            self.refuse(f"{place}.{keyword}", f"this keyword together with {', '.join([*more, *sorted(limits)])}")
            if keyword.endswith("Of"):
                return self.typed(node, types, place)
        return self.combined(node, keyword, types, f"{place}.{keyword}")

    # -- one keyword that stands for the whole -----------------------------------------------------------------------

    def combined(self, node: JsonObject, keyword: str, types: tuple[str, ...], place: str) -> JsonObject:
        value = node[keyword]
        if keyword == "$ref":
            named = self.reference(value, place)
            if types and not types_of(named, self.definitions) <= wider(types):
                self.refuse(place, f"this keyword beside the type {types!r}")
            return named
        if keyword == "const":
            value = [value]
        if not isinstance(value, list) or not value:
            raise InvalidRequest(f"{place}: {value!r} is no list with something in it", field=place)
        if keyword in ("enum", "const"):
            values = [one for one in value if not types or any(is_type(one, type_) for type_ in types)]
            if not values:
                raise InvalidRequest(f"{place}: none of these values has the type {types!r}", field=place)
            return {"enum": values}
        branches = [self.convert(branch, f"{place}[{i}]") for i, branch in enumerate(value)]
        if keyword == "allOf" and len(branches) > 1:
            self.refuse(place, "more than one schema here")
            return {}
        if keyword == "oneOf" and not all(
            not self.guessed and disjoint(one, other, self.definitions)
            for i, one in enumerate(branches)
            for other in branches[i + 1 :]
        ):
            self.refuse(place, "this keyword (anyOf can), as a value may match several of the schemas here: it")
        if types and not all(types_of(branch, self.definitions) <= wider(types) for branch in branches):
            self.refuse(place, f"this keyword beside the type {types!r}")
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def reference(self, pointer: object, place: str) -> JsonObject:
        if not isinstance(pointer, str):
            raise InvalidRequest(f"{place}: {pointer!r} is no reference", field=place)
        if pointer != "#" and not pointer.startswith("#/"):
            self.refuse(place, f"a reference like {pointer!r}, which is no path within the schema,")
            return {}
        if pointer not in self.names:
            target = self.resolve(pointer, place)
            seen = {pointer}
            while isinstance(target, dict) and isinstance(inner := target.get("$ref"), str) and inner.startswith("#"):
                if inner in seen:
                    raise InvalidRequest(f"{place}: {pointer!r} leads back to itself", field=place)
                seen.add(inner)
                target = self.resolve(inner, place)
            name = self.names[pointer] = f"d{len(self.names)}"
            self.definitions[name] = self.convert(target, f"{self.place}{pointer[1:].replace('/', '.')}")
        return {"$ref": f"#/$defs/{self.names[pointer]}"}

    def resolve(self, pointer: str, place: str) -> object:
        node: object = self.root
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise InvalidRequest(f"{place}: there is nothing at {pointer!r} in the schema", field=place)
        return node

    # -- values of one type, or of some ------------------------------------------------------------------------------

    def typed(self, node: JsonObject, types: tuple[str, ...], place: str) -> JsonObject:
        if not types:
            types = tuple(type_ for type_, keywords in _LIMITS.items() if any(keyword in node for keyword in keywords))
            if not types and node.get("format") in FORMATS:
                types = ("string",)
            self.guessed = self.guessed or bool(types)
        branches = [self.one_type(node, type_, place) for type_ in types]
        if not branches:
            return {}
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def one_type(self, node: JsonObject, type_: str, place: str) -> JsonObject:
        match type_:
            case "object":
                return self.object(node, place)
            case "array":
                return self.array(node, place)
            case "string":
                return self.string(node, place)
            case "number" | "integer":
                return self.number(node, type_, place)
        return {"type": type_}

    def object(self, node: JsonObject, place: str) -> JsonObject:
        given = node.get("properties", {})
        if not isinstance(given, dict):
            raise InvalidRequest(f"{place}.properties: {given!r} is no object of schemas", field=f"{place}.properties")
        required = node.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidRequest(f"{place}.required: {required!r} is no list of names", field=f"{place}.required")
        others = node.get("additionalProperties", True)
        properties = {name: self.convert(one, f"{place}.properties.{name}") for name, one in given.items()}
        for name in required:
            if name not in properties:
                properties[name] = self.convert(others, f"{place}.additionalProperties")
        converted: JsonObject = {"type": "object"}
        if patterns := node.get("patternProperties"):
            self.refuse(f"{place}.patternProperties", f"this keyword with {list(patterns)!r}")
        if properties or others is False or ("properties" in node and "additionalProperties" not in node):
            converted |= {"properties": properties, "required": list(dict.fromkeys(required))}
            converted["additionalProperties"] = False
        elif others is not True:
            converted["additionalProperties"] = self.convert(others, f"{place}.additionalProperties")
        sizes = self.sizes(node, "minProperties", "maxProperties", place)
        if sizes and not properties:
            converted.setdefault("additionalProperties", True)
        if sizes.get("minProperties", 0) > len(properties) and converted.get("additionalProperties") is False:
            self.refuse(f"{place}.minProperties", "more properties than are declared")
            del sizes["minProperties"]
        return converted | sizes

    def array(self, node: JsonObject, place: str) -> JsonObject:
        converted: JsonObject = {"type": "array"}
        if isinstance(node.get("items"), list):
            self.refuse(f"{place}.items", "a list of schemas here (prefixItems can)")
            return converted
        if "prefixItems" in node:
            first = node["prefixItems"]
            if not isinstance(first, list):
                raise InvalidRequest(
                    f"{place}.prefixItems: {first!r} is no list of schemas", field=f"{place}.prefixItems"
                )
            converted["prefixItems"] = [self.convert(one, f"{place}.prefixItems[{i}]") for i, one in enumerate(first)]
        sizes = self.sizes(node, "minItems", "maxItems", place)
        items = node.get("items", True)
        if items is False:
            if sizes.get("minItems", 0) > len(converted.get("prefixItems", ())):
                raise InvalidRequest(f"{place}.minItems: more items than are permitted", field=f"{place}.minItems")
            converted["items"] = False
        elif "items" in node or sizes or "prefixItems" in node:
            converted["items"] = self.convert(items, f"{place}.items")
        return converted | sizes

    def string(self, node: JsonObject, place: str) -> JsonObject:
        limits: dict[str, str] = {}
        if node.get("format") in FORMATS:
            limits["format"] = node["format"]
        if "pattern" in node:
            pattern, at = node["pattern"], f"{place}.pattern"
            if not isinstance(pattern, str):
                raise InvalidRequest(f"{at}: {pattern!r} is no regular expression", field=at)
            if not _is_plain(pattern):
                self.refuse(at, f"the pattern {pattern!r}")
            elif "format" in limits:
                self.refuse(at, "a pattern together with a format")
            else:
                limits["pattern"] = pattern
        sizes = self.sizes(node, "minLength", "maxLength", place)
        least, most = sizes.get("minLength", 0), sizes.get("maxLength")
        if least or most is not None:
            at = f"{place}.{'minLength' if most is None or least > _LONGEST else 'maxLength'}"
            if limits:
                self.refuse(at, "the length of a string with a pattern or a format")
            elif max(least, most or 0) > _LONGEST:
                self.refuse(at, f"a length of more than {_LONGEST} characters")
            else:
                # the engine's own minLength and maxLength would let raw tabs into the string
                limits["pattern"] = f"^.{{{least}}}.*$" if most is None else f"^.{{{least},{most}}}$"
        if limits and not self.bounded_strings:
            self.refuse(f"{place}.{next(iter(limits))}", "a limit of a string, where tools may be called too,")
            limits = {}
        return {"type": "string", **limits}

    def number(self, node: JsonObject, type_: str, place: str) -> JsonObject:
        converted: JsonObject = {"type": type_}
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            if keyword not in node:
                continue
            value, at = node[keyword], f"{place}.{keyword}"
            if isinstance(value, bool) and keyword.startswith("exclusive"):
                self.refuse(at, "true or false, as in an old form of JSON schema,")
                continue
            if not is_type(value, "number"):
                raise InvalidRequest(f"{at}: {value!r} is no number", field=at)
            if keyword == "multipleOf" and (type_ == "number" or len(converted) > 1 or value != int(value)):
                self.refuse(at, "this keyword with a number that is no integer, or beside a range,")
            elif type_ == "integer" and (value != int(value) or abs(value) >= _INT64):
                self.refuse(at, f"the value {value!r} for an integer")
            else:
                converted[keyword] = int(value) if type_ == "integer" else value
        low = max(converted.get("minimum", -float("inf")), converted.get("exclusiveMinimum", -float("inf")))
        high = min(converted.get("maximum", float("inf")), converted.get("exclusiveMaximum", float("inf")))
        if low > high:
            raise InvalidRequest(f"{place}: no number is at least {low} and at most {high}", field=place)
        return converted

    def sizes(self, node: JsonObject, least: str, most: str, place: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for keyword in (least, most):
            if keyword in node:
                value = node[keyword]
                if not is_type(value, "integer") or value < 0:
                    raise InvalidRequest(
                        f"{place}.{keyword}: {value!r} is no number of things", field=f"{place}.{keyword}"
                    )
                found[keyword] = int(value)
        if found.get(least, 0) > found.get(most, _INT64):
            raise InvalidRequest(f"{place}.{least}: more than {most} permits", field=f"{place}.{least}")
        return found


def _types(node: JsonObject, place: str) -> tuple[str, ...]:
    """The types that a schema names; none: it names none."""
    if "type" not in node:
        return ()
    types = node["type"] if isinstance(node["type"], list) else [node["type"]]
    for type_ in types:
        if type_ not in TYPES:
            raise InvalidRequest(f"{place}.type: {type_!r} is no JSON type", field=f"{place}.type")
    if not types:
        raise InvalidRequest(f"{place}.type: no type permits nothing", field=f"{place}.type")
    return tuple(dict.fromkeys(types))


def _all_limits() -> list[tuple[str, str]]:
    """Keyword and type; those about numbers once for each of their two types."""
    pairs = [(keyword, type_) for type_, keywords in _LIMITS.items() for keyword in keywords]
    return [*pairs, *((keyword, "integer") for keyword in _LIMITS["number"])]


def _is_plain(pattern: str) -> bool:
    """Whether the grammar takes a pattern as it is meant, but for matching the whole string."""
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
    if not inner or _UNSAFE_ANYWHERE.search(inner) or _UNSAFE.search(_CLASS.sub(".", inner)):
        return False
    if math.prod(max(1, *(int(count or 1) for count in counts)) for counts in _COUNTS.findall(inner)) > _LONGEST:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _nested_deeper(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
    return any(isinstance(inner, dict | list) for inner in level)
