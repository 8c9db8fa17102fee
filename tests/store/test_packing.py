"""Packed ids and logprobs come back exactly, and what must not be stored is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dragoman.store.packing import (
    FORMAT,
    MAX_ID,
    digest,
    pack_ids,
    pack_logprobs,
    pack_text,
    unpack_ids,
    unpack_logprobs,
    unpack_text,
)

ids = arrays(np.int32, st.integers(0, 300), elements=st.integers(0, MAX_ID))
logprobs = arrays(np.float32, st.integers(0, 300), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(ids)
def test_ids_come_back(array: np.ndarray) -> None:
    back = unpack_ids(pack_ids(array))
    assert back.dtype == np.int32
    assert np.array_equal(back, array)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_an_unpacked_array_is_its_callers_own(length: int) -> None:
    packed = pack_ids([7] * length)
    unpack_ids(packed)[:] = 8
    assert unpack_ids(packed).tolist() == [7] * length


def test_what_is_damaged_spoils_nothing_that_comes_after_it() -> None:
    """Each thread keeps its unpacker."""
    packed = pack_ids([1, 2, 3])
    with pytest.raises(ValueError, match="damaged"):
        unpack_ids(packed[:-2])
    assert unpack_ids(packed).tolist() == [1, 2, 3]


@given(logprobs)
def test_logprobs_come_back_bit_for_bit(array: np.ndarray) -> None:
    back = unpack_logprobs(pack_logprobs(array))
    assert back.dtype == np.float32
    assert back.tobytes() == array.tobytes()  # -0.0 and denormals too


@given(st.binary(max_size=2000))
def test_text_comes_back(data: bytes) -> None:
    assert unpack_text(pack_text(data)) == data


@given(ids.filter(len), st.integers(0, 10**6), st.sampled_from([-1, -(2**31), 2**31, 2**40]))
def test_an_id_out_of_range_is_refused_wherever_it_stands(array: np.ndarray, at: int, bad: int) -> None:
    wide = array.astype(np.int64)
    wide[at % len(wide)] = bad
    with pytest.raises(ValueError, match="is outside 0"):
        pack_ids(wide)


@given(logprobs.filter(len), st.integers(0, 10**6), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_logprob_that_is_not_finite_is_refused_by_position(array: np.ndarray, at: int, bad: float) -> None:
    array[at % len(array)] = bad
    with pytest.raises(ValueError, match=f"logprob {at % len(array)} is"):
        pack_logprobs(array)


def test_a_double_too_large_for_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        pack_logprobs(np.array([0.0, -1e300]))


def test_lists_and_other_integer_types_pack_alike() -> None:
    expected = pack_ids(np.array([1, 2, 70000], np.int32))
    assert pack_ids([1, 2, 70000]) == expected
    assert pack_ids(np.array([1, 2, 70000], ">u4")) == expected
    assert pack_ids([]) == pack_ids(np.empty(0, np.int32))


@pytest.mark.parametrize("bad", [[1.0, 2.0], [[1], [2]], [True], ["a"], 5], ids=str)
def test_ids_of_another_type_or_shape_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="token ids have"):
        pack_ids(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [["a"], [[0.5]], 0.5], ids=str)
def test_logprobs_of_another_type_or_shape_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="logprobs have"):
        pack_logprobs(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "no bytes", id="empty"),
        pytest.param(bytes([FORMAT + 1]) + pack_ids([1])[1:], f"format {FORMAT + 1}", id="newer format"),
        pytest.param(pack_ids([1, 2, 3])[:-2], "damaged", id="cut"),
        pytest.param(pack_text(b"abc"), "whole 32-bit", id="not an array"),
    ],
)
def test_other_bytes_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unpack_ids(data)


def test_size_of_random_ids() -> None:
    """Ids from a vocabulary of 151,936 hold 2.15 bytes of entropy each; stored in under 2.6."""
    array = np.random.default_rng(0).integers(0, 151_936, 1280)
    assert len(pack_ids(array)) < 2.6 * len(array)


def test_digest_is_the_head_of_sha256() -> None:
    assert digest(b"").hex() == "e3b0c44298fc1c149afbf4c8996fb924"
