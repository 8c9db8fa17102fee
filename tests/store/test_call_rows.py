"""What a call record must be like to be written; each refusal names the call and the field."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman.store.call_rows import OUTCOME_COLUMNS, arrival_values, outcome_values, split_digests
from dragoman.store.packing import digest, unpack_ids
from dragoman.store.records import Blob, CallArrival, CallOutcome, PolicySpan

ARRIVAL = CallArrival(id="c1", episode_id="e1", provider="anthropic", path="/v1/messages", arrived_at=1.0)
ANSWERED = CallOutcome(
    id="c2",
    status="answered",
    http_status=200,
    finished_at=2.0,
    parent_id="c1",
    shared_len=5,
    prompt_len=7,
    prompt_ids=np.array([8, 9], np.int32),
    completion_ids=np.array([1, 2, 3], np.int32),
    logprobs=np.array([-0.5, 0.0, -9998.0], np.float32),
    finish_reason="stop",
    policy_spans=(PolicySpan("base", 0, 2), PolicySpan("policy-v1", 2, 3)),
)


def test_an_answered_call_passes() -> None:
    values = outcome_values(ANSWERED)
    assert values.keys() == OUTCOME_COLUMNS
    assert (values["shared_len"], values["prompt_len"], values["completion_len"]) == (5, 7, 3)
    assert unpack_ids(values["prompt_ids"]).tolist() == [8, 9]
    assert values["policy_spans"] == [["base", 0, 2], ["policy-v1", 2, 3]]


def test_a_refused_call_needs_no_ids_and_may_know_its_length() -> None:
    values = outcome_values(CallOutcome(id="c1", status="refused", http_status=400, finished_at=2.0, prompt_len=99))
    assert (values["prompt_len"], values["prompt_ids"], values["completion_len"]) == (99, None, None)


def test_an_answer_may_be_empty() -> None:
    nothing = replace(
        ANSWERED, completion_ids=np.array([], np.int32), logprobs=np.array([], np.float32), policy_spans=()
    )
    assert outcome_values(nothing)["completion_len"] == 0


def test_numbers_of_numpy_become_plain_ones() -> None:
    numbers: dict[str, Any] = {"shared_len": np.int64(5), "prompt_len": np.int64(7), "finished_at": np.float64(2)}
    values = outcome_values(replace(ANSWERED, **numbers))
    assert [type(values[name]) for name in ("shared_len", "prompt_len", "finished_at")] == [int, int, float]


def test_characters_that_a_database_cannot_hold_are_escaped() -> None:
    values = arrival_values(replace(ARRIVAL, path="/v1/\0", thread="a\ud800b", harness="ünïcode ✓"))
    assert (values["path"], values["thread"], values["harness"]) == ("/v1/\\x00", "a\\ud800b", "ünïcode ✓")


def test_digests_are_packed_in_order() -> None:
    blobs = tuple(Blob(digest(data), data) for data in (b"b", b"a", b"b"))
    assert split_digests(outcome_values(replace(ANSWERED, messages=blobs))["messages"]) == [b.digest for b in blobs]
    assert split_digests(None) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"id": "C-1"}, r"call 'C-1': id 'C-1' is not made of", id="id"),
        pytest.param({"id": "a\0"}, "is not made of", id="NUL in id"),
        pytest.param({"episode_id": ""}, "episode_id '' is not made of", id="episode id"),
        pytest.param({"provider": "acme"}, "call 'c1': provider 'acme' is not one of anthropic", id="provider"),
        pytest.param({"kind": "other"}, "kind 'other' is not one of main", id="kind"),
        pytest.param({"arrived_at": math.nan}, "arrived_at is nan", id="time"),
    ],
)
def test_a_bad_arrival_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        arrival_values(replace(ARRIVAL, **change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"status": "arrived"}, "'arrived' is no outcome", id="no outcome"),
        pytest.param({"status": "lost"}, "status 'lost' is not one of", id="status"),
        pytest.param({"finish_reason": "eos"}, "finish_reason 'eos' is not one of stop", id="finish reason"),
        pytest.param({"fork_reason": "luck"}, "fork_reason 'luck' is not one of", id="fork reason"),
        pytest.param({"finished_at": math.inf}, "finished_at is inf", id="time"),
        pytest.param({"http_status": -1}, "http_status is -1", id="negative"),
        pytest.param({"echo_changed": 2**31}, "echo_changed is 2147483648", id="too large"),
        pytest.param({"echo_changed": 1.5}, "float", id="no integer"),
        pytest.param({"prompt_ids": None}, "answered, but has no prompt_ids", id="no prompt ids"),
        pytest.param(
            {"completion_ids": None, "logprobs": None}, "no completion_ids and no logprobs", id="no completion"
        ),
        pytest.param({"status": "aborted", "logprobs": None}, "come together or not at all", id="ids alone"),
        pytest.param({"status": "failed", "prompt_ids": None, "shared_len": 0}, "no prompt_ids", id="completion alone"),
        pytest.param({"logprobs": np.zeros(2, np.float32)}, "3 completion ids but 2 logprobs", id="lengths"),
        pytest.param({"logprobs": np.array([0, math.nan, 0])}, "logprob 1 is nan", id="NaN"),
        pytest.param({"logprobs": np.array([0, -9999.0, 0])}, "'no evidence'", id="no evidence"),
        pytest.param({"completion_ids": np.array([1, -2, 3])}, "token id -2 is outside", id="negative id"),
        pytest.param({"prompt_ids": np.array([1, 2**31])}, "token id 2147483648 is outside", id="large id"),
        pytest.param({"prompt_len": 6}, r"prompt_len is 6, but shared_len 5 \+ 2 ids is 7", id="prompt length"),
        pytest.param({"prompt_len": None}, "prompt_len is None", id="no prompt length"),
        pytest.param({"parent_id": None}, "shared_len is 5 without a parent_id", id="no parent"),
        pytest.param({"parent_id": "c2"}, "its own parent", id="own parent"),
        pytest.param(
            {"parent_id": None, "shared_len": 0, "prompt_len": 2, "messages_kept": 1},
            "messages_kept is 1 without a parent_id",
            id="messages of no parent",
        ),
        pytest.param({"messages_kept": -1}, "messages_kept is -1", id="negative messages"),
        pytest.param({"parent_id": "x y"}, "parent_id 'x y' is not made of", id="parent id"),
        pytest.param({"shared_len": -1, "prompt_len": 1}, "shared_len is -1", id="negative shared"),
        pytest.param({"policy_spans": (PolicySpan("a", 0, 4),)}, "0..4 is out of order or outside 3", id="long span"),
        pytest.param({"policy_spans": (PolicySpan("a", 1, 1),)}, "1..1 is out of order", id="empty span"),
        pytest.param(
            {"policy_spans": (PolicySpan("a", 0, 2), PolicySpan("b", 1, 3))}, "1..3 is out of order", id="overlap"
        ),
        pytest.param({"messages": (Blob(b"short", b""),)}, "a digest has 5 bytes, not 16", id="digest"),
        pytest.param(
            {"sampling_used": {"top_p": math.nan}}, "sampling_used cannot be stored as JSON", id="NaN in JSON"
        ),
        pytest.param({"sampling_asked": {"a": b""}}, "sampling_asked cannot be stored as JSON", id="no JSON"),
    ],
)
def test_a_bad_outcome_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)^(?=call .c2.: ).*{says}"):
        outcome_values(replace(ANSWERED, **change))
