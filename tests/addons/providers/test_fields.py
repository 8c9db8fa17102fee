from collections.abc import Callable
from typing import Any

import pytest

from dragoman.addons.errors import InvalidRequest
from dragoman.addons.providers import fields


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (fields.as_text, ["", "a"], [None, 1, []]),
        (fields.as_name, ["a"], [None, "", 1]),
        (fields.as_object, [{}, {"a": 1}], [None, [], "a"]),
        (fields.as_list, [[], [1]], [None, {}, "a"]),
        (fields.as_schema, [{}, {"type": "object"}], [None, []]),
    ],
)
def test_types(read: Callable[[object, str], Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert read(value, "a.b") is value
    for value in bad:
        with pytest.raises(InvalidRequest, match=r"^a\.b: expected .*, got ") as caught:
            read(value, "a.b")
        assert caught.value.field == "a.b"


def test_flag() -> None:
    assert fields.as_flag(None, "x") is False
    assert fields.as_flag(None, "x", default=True) is True
    assert fields.as_flag(True, "x") is True
    bad: list[object] = [0, 1, "true", []]
    for value in bad:
        with pytest.raises(InvalidRequest, match="x: expected true or false"):
            fields.as_flag(value, "x")


def test_int() -> None:
    assert fields.as_int(None, "x", low=1) is None
    assert fields.as_int(1, "x", low=1) == 1
    assert fields.as_int(2**31 - 1, "x", low=1) == 2**31 - 1
    for value in (0, 2**31, 1.0, True, "1"):
        with pytest.raises(InvalidRequest, match="x: expected a whole number from 1 to 2147483647"):
            fields.as_int(value, "x", low=1)


def test_number() -> None:
    assert fields.as_number(None, "x", low=0, high=1) is None
    assert [fields.as_number(value, "x", low=0, high=1) for value in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    for value in (-0.1, 1.1, True, "0"):
        with pytest.raises(InvalidRequest, match="x: expected a number from 0 to 1"):
            fields.as_number(value, "x", low=0, high=1)
    with pytest.raises(InvalidRequest, match="x: expected a number above 0"):
        fields.as_number(0, "x", low=0, high=1, above_low=True)


def test_json_is_compact_and_not_too_deep() -> None:
    assert fields.as_json({"b": [1, "é"], "a": None}, "x") == '{"b":[1,"é"],"a":null}'
    value: Any = {}
    for _ in range(300):
        value = {"a": value}
    for read in (fields.as_json, fields.as_schema):
        with pytest.raises(InvalidRequest, match="x: nested too deeply"):
            read(value, "x")


def test_a_schema_can_be_written_inside_a_request() -> None:
    written = 0
    schema: Any = {}
    for _ in range(300):
        schema = {"items": schema}
        try:
            fields.as_schema(schema, "x")
        except InvalidRequest:
            continue
        fields.as_json([{"tools": [{"function": {"parameters": schema}}]}], "x")
        written += 1
    assert 100 < written < 300


def test_long_values_are_cut_in_messages() -> None:
    assert fields.shown("a") == "'a'"
    assert len(fields.shown("a" * 1000)) == 80
