"""Ids by their beginning, and stores that are not there."""

from pathlib import Path

import pytest

from dragoman.cli.lookup import find_id, harness_names, reading
from dragoman.cli.output import Failure

EPISODE = "abcdefgh1234"
FIRST_CALL = "call0000000000000001"


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (EPISODE, (EPISODE, None)),
        ("abc", (EPISODE, None)),
        ("abz", ("abzzzzzzzzzz", None)),
        (FIRST_CALL, (EPISODE, FIRST_CALL)),
        ("d", (EPISODE, "dall0000000000000004")),
    ],
)
def test_the_beginning_of_an_id_is_enough(filled_store: str, start: str, found: tuple[str, str | None]) -> None:
    with reading(filled_store) as (session, url):
        assert find_id(session, start) == found
        assert url == filled_store


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("ab", "several ids begin with 'ab': abcdefgh1234, abzzzzzzzzzz"),
        ("call", f"several ids begin with 'call': {FIRST_CALL}"),
        ("zz", "no episode or call has an id that begins with 'zz'"),
        ("%", "'%' is no id"),
        ("", "'' is no id"),
    ],
)
def test_what_is_not_found_is_explained(filled_store: str, start: str, says: str) -> None:
    with reading(None) as (session, _), pytest.raises(Failure) as caught:
        find_id(session, start)
    assert str(caught.value).startswith(says)


def test_harness_names(filled_store: str) -> None:
    with reading(None) as (session, _):
        assert harness_names(session, [EPISODE, "abzzzzzzzzzz"]) == {EPISODE: "pi"}


def test_looking_makes_no_database(state: Path, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="there is no database at"), reading(None):
        pytest.fail("opened")
    assert not (state / "dragoman.db").exists()
    broken = tmp_path / "broken.db"
    broken.write_text("this is not SQLite" * 100)
    with pytest.raises(Failure, match="not a database"), reading(f"sqlite:///{broken}"):
        pytest.fail("opened")
    with pytest.raises(Failure, match="only sqlite and postgresql"), reading("mysql://h/d"):
        pytest.fail("opened")
