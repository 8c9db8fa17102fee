"""Records as bytes: the same record comes out, and anything else is refused."""

import contextlib
import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.addons.record_bytes import (
    Record,
    decode_episode,
    decode_record,
    encode_episode,
    encode_record,
    record_size,
)
from dragoman.store.packing import digest, pack_text
from dragoman.store.records import Blob, CallArrival, CallOutcome, EpisodeInfo, EpisodeSpec, PolicySpan

ARRIVAL = CallArrival("c1", "e1", "anthropic", "/v1/messages", 10.5)

texts = st.text(st.characters(exclude_categories=()))  # lone surrogates too: a harness may send anything
times = st.floats(0, 4e9)
json_objects = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
blobs = st.binary(max_size=300).map(lambda data: Blob(digest(data), data))
ids = st.lists(st.integers(0, 2**31 - 1), max_size=50).map(lambda values: np.array(values, np.int32))
logprobs = st.lists(st.floats(-100, 0, width=32), max_size=50).map(lambda values: np.array(values, np.float32))
spans = st.builds(PolicySpan, texts, st.integers(0, 100), st.integers(0, 100))

arrivals = st.builds(
    CallArrival,
    texts,
    texts,
    st.sampled_from(("anthropic", "google")),
    texts,
    times,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.sampled_from(("main", "side")),
)
outcomes = st.builds(
    CallOutcome,
    id=texts,
    status=st.sampled_from(("answered", "failed")),
    http_status=st.none() | st.integers(100, 599),
    finished_at=times,
    error_message=st.none() | texts,
    stream=st.none() | st.booleans(),
    messages=st.lists(blobs, max_size=4).map(tuple),
    messages_kept=st.integers(0, 9),
    tools=st.none() | blobs,
    reply=st.none() | blobs,
    state=st.none() | json_objects,
    sampling_used=st.none() | json_objects,
    constrained=st.booleans(),
    parent_id=st.none() | texts,
    shared_len=st.integers(0, 2**31 - 1),
    fork_reason=st.sampled_from((None, "template")),
    prompt_len=st.none() | st.integers(0, 2**31 - 1),
    prompt_ids=st.none() | ids,
    completion_ids=st.none() | ids,
    logprobs=st.none() | logprobs,
    policy_spans=st.lists(spans, max_size=3).map(tuple),
    first_token_at=st.none() | times,
)


def plain(record: Record) -> dict[str, Any]:
    """Fields with arrays as type and values, so that two records can be compared."""
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {
        name: (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


@given(arrivals | outcomes)
def test_what_goes_in_comes_out(record: Record) -> None:
    again = decode_record(encode_record(record))
    assert type(again) is type(record)
    assert plain(again) == plain(record)


@given(outcomes, st.data())
def test_damaged_bytes_are_a_value_error_or_another_record(record: CallOutcome, data: st.DataObject) -> None:
    good = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):
        decode_record(bytes(good[: data.draw(st.integers(0, len(good)))]))


@pytest.mark.parametrize(
    "header",
    [
        [],
        {},
        {"format": 2},
        {"format": 1, "lengths": [], "record": "arrival", "values": {"id": "c1"}},
        {"format": 1, "lengths": [], "record": "outcome", "values": {}},
    ],
)
def test_what_is_no_record(header: Any) -> None:
    text = json.dumps(header).encode()
    with pytest.raises(ValueError, match=r"no record of a call|format 2"):
        decode_record(pack_text(len(text).to_bytes(4, "little") + text))


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="call 'c1' cannot be written down"):
        encode_record(replace(ARRIVAL, arrived_at=float("nan")))


def test_size_counts_what_is_large() -> None:
    outcome = CallOutcome("c1", "answered", 200, 1.0)
    large = replace(outcome, messages=(Blob(b"", b"x" * 5000),), prompt_ids=np.zeros(1000, np.int32))
    assert record_size(large) - record_size(outcome) == 9000
    assert record_size(ARRIVAL) == record_size(outcome)


def test_an_episode() -> None:
    spec = EpisodeSpec(task="t", group="g", expected=3, deadline=9.5, metadata={"a": [1, {"b": None}]})
    episode = EpisodeInfo("e1", spec, 1.0, 2.5, None, None, None, 0.5)
    assert decode_episode(encode_episode(episode)) == episode
    for text in ("{}", "[]", '{"spec": {"colour": 1}}', "x"):
        with pytest.raises(ValueError, match=r"episode|Expecting value"):
            decode_episode(text)
