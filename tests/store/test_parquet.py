"""A Parquet file holds what the JSON rows hold, in as many row groups as its size needs."""

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.store import parquet
from dragoman.store.export import trace_row
from dragoman.store.parquet import ParquetFile
from dragoman.store.records import EpisodeInfo, EpisodeSpec, JsonObject
from dragoman.store.traces import build_traces
from tests.store_calls import Episode, episodes

pytest.importorskip("pyarrow", reason="an extra")

INFO = EpisodeInfo("e1", EpisodeSpec("t", "g", metadata={"seed": 1}), 1.0, 9.0, 5.0, "completed", None, 0.5)
BARE = EpisodeInfo("e2", EpisodeSpec(metadata={"ü": ["\u2028"]}), 1.0, 9.0, None, None, None, None)


def written(rows: list[JsonObject]) -> Any:
    import pyarrow.parquet

    file = io.BytesIO()
    with ParquetFile(file) as writer:
        for row in rows:
            writer.add(row)
    return pyarrow.parquet.ParquetFile(io.BytesIO(file.getvalue()))


def as_json(row: dict[str, Any]) -> JsonObject:
    """A row as it was read, in the words of the JSON rows."""
    spans = {name: [list(span.values()) for span in row[name]] for name in ("policy_spans", "temperature_spans")}
    return {**row, **spans, "metadata": json.loads(row["metadata"])}


@settings(max_examples=25, deadline=None)
@given(episode=episodes(), info=st.sampled_from((INFO, BARE)))
def test_it_holds_what_the_json_rows_hold(episode: Episode, info: EpisodeInfo) -> None:
    rows = [trace_row(info, trace) for trace in build_traces(episode.calls).traces]
    read = written(rows).read().to_pylist()
    assert [as_json(row) for row in read] == rows
    assert all(list(row) == list(found) for row, found in zip(rows, read, strict=True))


def test_a_temperature_that_is_not_known() -> None:
    episode = Episode()
    episode.add("a", [1], [2], sampling_used=None)
    (trace,) = build_traces(episode.calls).traces
    row = trace_row(INFO, trace)
    assert as_json(written([row]).read().to_pylist()[0]) == row
    assert row["temperature_spans"] == [[None, 1, 2]]


def test_it_is_written_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_TOKENS", 10)
    episode = Episode()
    episode.add("a", [1, 2, 3], [4])
    (trace,) = build_traces(episode.calls).traces
    file = written([trace_row(INFO, trace)] * 7)
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [3, 3, 1]
    assert written([]).metadata.num_rows == 0
