"""``docs/store.md`` is what the models say, and its way to rebuild a prompt works."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.store.calls import full_prompt
from dragoman.store.database import Database
from dragoman.store.export import trace_row
from dragoman.store.models import Base
from dragoman.store.records import EpisodeInfo, EpisodeSpec
from dragoman.store.traces import build_traces
from scripts.store_page import PAGE, page, undocumented, unused
from tests.store_calls import Episode, write_episode


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m scripts.store_page`"


def test_every_column_is_explained_and_no_other() -> None:
    assert undocumented() == []
    assert unused() == []


def test_every_table_and_column_has_its_line() -> None:
    sections = re.split(r"^### ", page(), flags=re.MULTILINE)[1:]
    found = {section.split()[0]: re.findall(r"^\| (\w+) \|", section, re.MULTILINE)[1:] for section in sections}

    assert found == {name: [column.name for column in table.columns] for name, table in Base.metadata.tables.items()}


def test_null_is_explained_where_a_column_may_be_null_and_only_there() -> None:
    lines = re.findall(r"^\| (\w+) \| [^|]* \| ([^|]*) \|", page().split("## Tables")[1], re.MULTILINE)
    means = [(name, null.strip()) for name, null in lines if name != "column"]
    columns = [column for table in Base.metadata.sorted_tables for column in table.columns]

    assert [name for name, _ in means] == [column.name for column in columns]
    assert [bool(null) for _, null in means] == [bool(column.nullable) for column in columns]
    assert "None" not in page().split("## Tables")[1]


def test_every_field_of_an_exported_row_is_in_the_page() -> None:
    episode = Episode()
    episode.add("a", [1], [2])
    info = EpisodeInfo("e1", EpisodeSpec(), 1.0, 9.0, None, None, None, None)
    (trace,) = build_traces(episode.calls).traces
    section = page().split("| field | meaning |\n|---|---|\n")[1].split("\n\n")[0]

    named = [name for line in section.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]

    assert sorted(named) == sorted(trace_row(info, trace))


def test_the_code_of_the_page_rebuilds_a_prompt(tmp_path: Path) -> None:
    episode = Episode()
    episode.add("a", [1, 2, 70_000], [11, 12])
    episode.add("b", [*episode.stream("a"), 4], [13, 14], parent="a")
    episode.add("c", [*episode.stream("b")[:4], 9], [15], parent="b", fork_reason="history_edited")
    database = Database.open(f"sqlite:///{tmp_path}/store.db")
    with database.session() as session:
        write_episode(session, episode)
    (code,) = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    connection = sqlite3.connect(tmp_path / "store.db")

    with database.reading() as session:
        for call_id in "abc":
            rebuilt = scope["full_prompt"](connection, call_id)
            assert rebuilt.tolist() == episode.prompts[call_id]
            assert np.array_equal(rebuilt, full_prompt(session, call_id))
    (packed,) = connection.execute("SELECT logprobs FROM calls WHERE id = 'b'").fetchone()
    assert scope["unpack"](packed, "<f4").tolist() == [-13 / 256, -14 / 256]
    connection.close()
    database.close()
