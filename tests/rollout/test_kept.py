"""The beginning and the end of a stream: all of a short one, never more than the limit of a long one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.rollout.kept import Kept, cut


@given(
    pieces=st.lists(st.binary(max_size=300), max_size=60),
    limit=st.integers(120, 2000),
)
def test_whatever_comes_in_whatever_pieces(pieces: list[bytes], limit: int) -> None:
    whole = b"".join(pieces)
    kept = Kept(limit)
    for piece in pieces:
        kept.add(piece)

    content, omitted = kept.content()

    assert len(content) <= limit
    assert (content, omitted) == cut(whole, limit)
    if len(whole) <= limit:
        assert (content, omitted) == (whole, 0)
    else:
        mark = b"\n[... %d bytes left out ...]\n" % omitted
        head, found, end = content.partition(mark)
        assert found == mark
        assert whole.startswith(head)
        assert whole.endswith(end)
        assert len(head) + omitted + len(end) == len(whole)
        assert min(len(head), len(end)) >= limit // 2 - 61


def test_the_smallest_limit_leaves_the_end_no_room() -> None:
    content, omitted = cut(b"x" * 121, 120)
    assert (content.count(b"x"), omitted) == (60, 61)
    assert len(content) <= 120


def test_memory_stays_within_a_few_limits() -> None:
    kept = Kept(1000)
    for _ in range(5000):
        kept.add(b"x" * 100)

    assert len(kept._head) + len(kept._tail) <= 3 * 1000
    assert kept.content()[1] > 490_000


@pytest.mark.parametrize("size", [1000, 1001])
def test_the_limit_itself_is_not_cut(size: int) -> None:
    assert cut(b"y" * size, 1000)[1] == (0 if size == 1000 else 61)
