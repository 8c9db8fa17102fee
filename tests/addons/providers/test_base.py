import base64

from hypothesis import given
from hypothesis import strategies as st

from dragoman.addons.errors import EngineFailed, InvalidRequest, Overloaded
from dragoman.addons.providers.base import error_text, issue_signature, read_signature, to_dragoman_error


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1))
def test_a_signature_gives_its_call_id_back(call_id: str) -> None:
    signature = issue_signature(call_id)
    assert base64.b64decode(signature, validate=True)
    assert read_signature(signature) == call_id


@given(st.text() | st.binary().map(lambda data: base64.b64encode(data).decode()))
def test_any_other_text_is_no_signature(text: str) -> None:
    call_id = read_signature(text)
    assert call_id is None or issue_signature(call_id) == text


def test_what_looks_like_ours_but_is_not() -> None:
    for inner in (b"dgm:", b"dgm:UPPER", b"dgm:abc ", b"xdgm:abc", b"dgm:abc\n"):
        assert read_signature(base64.b64encode(inner).decode()) is None
    assert read_signature("\N{SNOWMAN}") is None
    assert read_signature(issue_signature("abc")[:-1]) is None


def test_an_unforeseen_error_says_nothing_of_itself() -> None:
    known = EngineFailed("the engine is gone")
    assert to_dragoman_error(known) is known
    shown = to_dragoman_error(KeyError("secret"))
    assert shown.status == 500
    assert "secret" not in shown.message


def test_what_may_go_well_later_says_so_in_the_words_of_providers() -> None:
    assert error_text(EngineFailed("it is gone")) == "Internal server error: it is gone"
    assert error_text(Overloaded("paused")) == "Overloaded: paused"
    assert error_text(InvalidRequest("x: wrong")) == "x: wrong"
