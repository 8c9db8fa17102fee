import gzip
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dragoman.addons.bodies import decode_body, read_json_object
from dragoman.addons.errors import InvalidRequest, TooLarge

ENCODERS: dict[str | None, Callable[[bytes], bytes]] = {
    None: lambda data: data,
    "identity": lambda data: data,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@given(st.binary(max_size=2000), st.sampled_from(list(ENCODERS)))
def test_every_encoding_comes_back(data: bytes, encoding: str | None) -> None:
    assert decode_body(ENCODERS[encoding](data), encoding, 2000) == data


@pytest.mark.parametrize("encoding", list(ENCODERS))
def test_a_bomb_is_stopped_at_the_limit(encoding: str | None) -> None:
    with pytest.raises(TooLarge, match="1000 bytes"):
        decode_body(ENCODERS[encoding](b"a" * 10_000_000), encoding, 1000)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_damaged_and_unknown_encodings_are_named(encoding: str) -> None:
    with pytest.raises(InvalidRequest, match=encoding):
        decode_body(b"not compressed at all", encoding, 1000)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_cut_data_is_refused(encoding: str) -> None:
    whole = ENCODERS[encoding](bytes(range(256)) * 10)
    with pytest.raises(InvalidRequest, match="ends in the middle"):
        decode_body(whole[:-10], encoding, 10_000)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "not list"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_json_object(body)


def test_an_object_is_read() -> None:
    assert read_json_object(b'{"a": 1}') == {"a": 1}
