import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.addons.sse import SseEvent, SseSplitter, encode_event


def split(*chunks: bytes) -> list[SseEvent]:
    splitter = SseSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data: one\n\ndata: two\n\n", [SseEvent(None, b"one"), SseEvent(None, b"two")], id="lf"),
        pytest.param(
            b"data: one\r\n\r\ndata: two\r\n\r\n", [SseEvent(None, b"one"), SseEvent(None, b"two")], id="crlf"
        ),
        pytest.param(b"data: one\r\rdata: two\r\r", [SseEvent(None, b"one"), SseEvent(None, b"two")], id="cr"),
        pytest.param(b"event: a\r\ndata: 1\r\ndata: 2\r\n\r\n", [SseEvent("a", b"1\n2")], id="crlf-is-one-line-end"),
        pytest.param(b"event: ping\ndata: {}\n\n", [SseEvent("ping", b"{}")], id="named"),
        pytest.param(
            b"event: ping\ndata: 1\n\ndata: 2\n\n", [SseEvent("ping", b"1"), SseEvent(None, b"2")], id="name-ends"
        ),
        pytest.param(b": hello\n\ndata: 1\n: between\ndata: 2\n\n", [SseEvent(None, b"1\n2")], id="comment"),
        pytest.param(b"data: a\ndata:\ndata\ndata:  b\n\n", [SseEvent(None, b"a\n\n\n b")], id="many-lines"),
        pytest.param(b"data:\n\n", [SseEvent(None, b"")], id="empty-data"),
        pytest.param(b"event: ping\n\nid: 7\nretry: 5\n\n", [], id="no-data"),
        pytest.param(b"\xef\xbb\xbfdata: 1\n\n", [SseEvent(None, b"1")], id="byte-order-mark"),
        pytest.param(b"data: 1\n\ndata: cut\n", [SseEvent(None, b"1")], id="cut"),
        pytest.param(b"data: a:b: c\n\n", [SseEvent(None, b"a:b: c")], id="colon-in-data"),
        pytest.param(b"event: \xff\ndata: \xff\n\n", [SseEvent("\N{REPLACEMENT CHARACTER}", b"\xff")], id="not-utf8"),
        pytest.param(
            "data: \u2028\x0b\x85\n\n".encode(), [SseEvent(None, "\u2028\x0b\x85".encode())], id="other-breaks"
        ),
    ],
)
def test_split(stream: bytes, events: list[SseEvent]) -> None:
    assert split(stream) == events
    assert split(*(stream[i : i + 1] for i in range(len(stream)))) == events


def test_split_gives_an_event_with_the_byte_that_completes_it() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: 1\r\n\r") == [SseEvent(None, b"1")]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"") == []
    assert splitter.feed(b"data: 2\n\n") == [SseEvent(None, b"2")]


@given(
    st.lists(
        st.sampled_from([b"data: x", b"event: y", b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\xe2", b"{}"])
    ),
    st.data(),
)
def test_split_is_the_same_for_any_chunks(pieces: list[bytes], draw: st.DataObject) -> None:
    stream = b"".join(pieces)
    whole = split(stream)
    assert split(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)))))
    assert split(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))) == whole


def test_encode_json_is_one_compact_line() -> None:
    assert encode_event({"a": "x\ny", "b": [1]}) == b'data: {"a":"x\\ny","b":[1]}\n\n'
    assert encode_event({}, "ping") == b"event: ping\ndata: {}\n\n"


def test_encode_bytes_stand_as_they_are() -> None:
    assert encode_event(b"[DONE]") == b"data: [DONE]\n\n"
    assert encode_event(b"one\ntwo") == b"data: one\ndata: two\n\n"


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.text()), st.sampled_from([None, "a", "b.c"]))))
def test_what_is_encoded_is_split_again(events: list[tuple[dict[str, str], str | None]]) -> None:
    stream = b"".join(encode_event(data, name) for data, name in events)
    assert [(orjson.loads(event.data), event.event) for event in split(stream)] == events
