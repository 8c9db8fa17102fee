import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.addons.tool_calls import ParsedCall, json_call, object_call, raw_members


@pytest.mark.parametrize(
    ("raw", "status", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"a":1.0,  "b": "é"}}', "ok", "f", '{"a":1.0,  "b": "é"}'),
        ('{"arguments": {"a": 1}, "name": "f"}', "ok", "f", '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', "ok", "f", '{"a": 1}'),
        ('{"name": "f"}', "ok", "f", "{}"),
        ('{"name": "f", "arguments": {"a": 1}', "invalid_json", "f", '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": ', "unclosed_block", "f", '{"a": '),
        ('{"name": "f", "argu', "unclosed_block", "f", ""),
        ('{"name": "f', "unclosed_block", None, ""),
        ('{"name": "", "arguments": {}}', "missing_name", None, "{}"),
        ('{"name": 7, "arguments": {}}', "missing_name", None, "{}"),
        ("read the file", "invalid_json", None, ""),
        ('["name"]', "missing_name", None, ""),
        ("", "invalid_json", None, ""),
    ],
)
def test_json_calls(raw: str, status: str, name: str | None, arguments: str) -> None:
    assert json_call(raw, status) == ParsedCall(name, arguments, raw, status)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(members=st.dictionaries(st.text(), JSON), indent=st.sampled_from([None, 1]))
def test_the_source_text_of_every_member_is_found(members: dict[str, object], indent: int | None) -> None:
    text = json.dumps(members, indent=indent)
    found = raw_members(text)
    assert {name: json.loads(source) for name, source in found.items()} == members
    assert all(source in text for source in found.values())


@given(text=st.text(alphabet='{}[]":,\\a1 \n', max_size=40))
def test_no_text_breaks_it(text: str) -> None:
    raw_members(text)


def test_a_call_in_another_format() -> None:
    assert object_call("f", {"a": "é"}, "raw", "ok") == ParsedCall("f", '{"a": "é"}', "raw", "ok")
    assert object_call("", None, "raw", "missing_name") == ParsedCall(None, "{}", "raw", "missing_name")
    assert object_call("f", "{broken", "raw", "invalid_json").arguments == "{broken"
