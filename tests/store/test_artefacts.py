"""Artefacts: stored and read back byte by byte, replaced by name, refused when they cannot be."""

import os
from dataclasses import replace

import pytest

from dragoman.store.artefacts import MOST_ARTEFACTS, list_artefacts, read_artefact, write_artefacts
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode
from dragoman.store.errors import ArtefactNotFound, EpisodeNotFound
from dragoman.store.records import ARTEFACT_LIMIT, Artefact, ArtefactInfo, EpisodeSpec

OUT = Artefact("stdout.txt", "text/plain; charset=utf-8", b"caf\xe9\0\n", omitted=3_000_000_000)


@pytest.fixture
def filled(database: Database) -> Database:
    with database.session() as session:
        for episode_id, digit in (("e1", "a"), ("e2", "b")):
            open_episode(session, EpisodeSpec(), episode_id=episode_id, token_hash=digit * 64, now=1.0, expires_at=9.0)
    return database


def test_what_is_stored_is_read_back_also_after_the_end(filled: Database) -> None:
    with filled.session() as session:
        end_episode(session, "e1", "completed", reason=None, now=2.0)
        write_artefacts(session, "e1", [OUT, Artefact("a.diff", "text/x-diff", b"")], now=3.0)

    with filled.reading() as session:
        assert read_artefact(session, "e1", "stdout.txt") == OUT
        assert list_artefacts(session, "e1") == [
            ArtefactInfo("a.diff", "text/x-diff", 0, 0, 3.0),
            ArtefactInfo("stdout.txt", OUT.content_type, 6, 3_000_000_000, 3.0),
        ]
        assert list_artefacts(session, "e2") == []


def test_the_same_name_again_replaces_in_its_own_episode_only(filled: Database) -> None:
    with filled.session() as session:
        write_artefacts(session, "e1", [OUT], now=3.0)
        write_artefacts(session, "e2", [OUT], now=3.0)
        write_artefacts(session, "e1", [replace(OUT, data=b"new")], now=4.0)

    with filled.reading() as session:
        assert read_artefact(session, "e1", "stdout.txt").data == b"new"
        assert read_artefact(session, "e2", "stdout.txt") == OUT
        assert [info.stored_at for info in list_artefacts(session, "e1")] == [4.0]


def test_the_largest_one_is_stored_and_a_larger_one_is_refused(filled: Database) -> None:
    noise = os.urandom(ARTEFACT_LIMIT)
    with filled.session() as session:
        write_artefacts(session, "e1", [replace(OUT, data=noise)], now=3.0)
    with filled.reading() as session:
        assert read_artefact(session, "e1", "stdout.txt").data == noise

    with pytest.raises(ValueError, match="has 4194305 bytes; at most 4194304 are stored"), filled.session() as session:
        write_artefacts(session, "e1", [replace(OUT, data=noise + b"x")], now=3.0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        pytest.param([replace(OUT, name="../x")], "no name of an artefact", id="a path"),
        pytest.param([replace(OUT, name="")], "no name of an artefact", id="no name"),
        pytest.param([replace(OUT, name="x\n")], "no name of an artefact", id="a line break"),
        pytest.param([replace(OUT, content_type="a\r\nb")], "content type", id="content type"),
        pytest.param([replace(OUT, omitted=-1)], "left out", id="omitted"),
        pytest.param([OUT, OUT], "not of different names", id="one name twice"),
        pytest.param(
            [replace(OUT, name=str(n)) for n in range(MOST_ARTEFACTS + 1)], "33 artefacts of 32", id="too many"
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(filled: Database, wrong: list[Artefact], says: str) -> None:
    with pytest.raises(ValueError, match=says), filled.session() as session:
        write_artefacts(session, "e1", wrong, now=3.0)
    with filled.reading() as session:
        assert list_artefacts(session, "e1") == []


def test_an_unknown_episode_or_name_is_told(filled: Database) -> None:
    with pytest.raises(EpisodeNotFound), filled.session() as session:
        write_artefacts(session, "nobody", [OUT], now=3.0)
    with filled.session() as session:
        write_artefacts(session, "e1", [OUT], now=3.0)
    with filled.reading() as session, pytest.raises(ArtefactNotFound, match=r"no artefact 'x'; it has: stdout\.txt"):
        read_artefact(session, "e1", "x")
