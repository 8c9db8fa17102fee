"""Sizes: rows and tokens are counted as they are stored, bytes are the database's own."""

from pathlib import Path

import pytest
from sqlalchemy import make_url

from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode
from dragoman.store.packing import digest
from dragoman.store.records import EpisodeSpec
from dragoman.store.sizes import measure
from tests.store_calls import Episode, write_episode


def test_an_empty_store(database: Database) -> None:
    with database.reading() as session:
        sizes = measure(session)

    assert [table.name for table in sizes.tables] == sorted(table.name for table in sizes.tables)
    assert {table.rows for table in sizes.tables} == {0}
    assert (sizes.stored_tokens, sizes.token_bytes, sizes.bytes_per_token) == (0, 0, None)
    assert (sizes.ends, sizes.oldest, sizes.newest) == ({}, None, None)


def test_tokens_are_counted_as_stored_and_in_full(database: Database) -> None:
    episode = Episode()
    episode.add("a", [1, 2, 3], [11, 12])
    episode.add("b", [*episode.stream("a"), 4], [13, 14, 15], parent="a")
    episode.end("no", "refused", prompt_len=70_000)
    episode.end("open", "arrived")
    with database.session() as session:
        write_episode(session, episode, opened_at=5.0)
        end_episode(session, "e1", "completed", reason=None, now=9.0)
        token_hash = digest(b"e2").hex() * 2
        open_episode(session, EpisodeSpec(), episode_id="e2", token_hash=token_hash, now=7.0, expires_at=9.0)

    with database.reading() as session:
        sizes = measure(session)

    assert (sizes.prompt_tokens, sizes.stored_prompt_tokens, sizes.completion_tokens) == (3 + 6, 3 + 1, 2 + 3)
    assert sizes.stored_tokens == 9
    assert sizes.token_bytes > 9 * 4
    assert sizes.bytes_per_token == sizes.bytes / 9
    assert sizes.ends == {"completed": 1, None: 1}
    assert (sizes.oldest, sizes.newest) == (5.0, 7.0)
    rows = {table.name: table.rows for table in sizes.tables}
    assert (rows["calls"], rows["episodes"], rows["credentials"], rows["tasks"]) == (4, 2, 2, 0)


def test_the_bytes_are_those_of_the_file(database: Database, store_url: str) -> None:
    with database.reading() as session:
        sizes = measure(session)
    if make_url(store_url).get_backend_name() != "sqlite":
        assert sizes.free_bytes is None
        assert sizes.bytes > sum(table.bytes or 0 for table in sizes.tables) > 0
        return
    file = make_url(store_url).database
    assert file is not None
    database.close()  # which writes the log into the file

    assert sizes.bytes == Path(file).stat().st_size
    if any(table.bytes is None for table in sizes.tables):
        pytest.skip("this SQLite has no dbstat")
    assert 0 < sum(table.bytes or 0 for table in sizes.tables) < sizes.bytes
