"""A row has everything of its trace, as plain JSON, and whose lists fit together."""

import json

from hypothesis import given, settings

from dragoman.store.export import trace_row
from dragoman.store.records import EpisodeInfo, EpisodeSpec, PolicySpan
from dragoman.store.traces import build_traces
from tests.store_calls import Episode, episodes

INFO = EpisodeInfo("e1", EpisodeSpec("t", "g", metadata={"seed": 1}), 1.0, 9.0, 5.0, "completed", None, 0.5)


def test_a_row() -> None:
    episode = Episode()
    episode.add("a", [1, 2, 3], [256, 512], thread="main-1")
    spans = (PolicySpan("v1", 0, 1), PolicySpan("v2", 1, 2))
    episode.add("b", [*episode.stream("a"), 4], [5, 6], parent="a", spans=spans, finish_reason="length")
    (trace,) = build_traces(episode.calls).traces

    assert json.loads(json.dumps(trace_row(INFO, trace))) == {
        "format": 1,
        "episode": "e1",
        "task": "t",
        "group": "g",
        "end": "completed",
        "reward": 0.5,
        "kind": "main",
        "thread": "main-1",
        "calls": ["a", "b"],
        "token_ids": [1, 2, 3, 256, 512, 4, 5, 6],
        "loss_mask": [0, 0, 0, 1, 1, 0, 1, 1],
        "logprobs": [0.0, 0.0, 0.0, -1.0, -2.0, 0.0, -5 / 256, -6 / 256],
        "policy_spans": [["base", 3, 5], ["v1", 6, 7], ["v2", 7, 8]],
        "prompt_length": 3,
        "temperature_spans": [[1.0, 3, 5], [1.0, 6, 8]],
        "finish_reason": "length",
        "metadata": {"seed": 1},
    }


@settings(max_examples=60, deadline=None)
@given(episode=episodes())
def test_rows_of_any_episode_fit_together(episode: Episode) -> None:
    for trace in build_traces(episode.calls).traces:
        row = trace_row(INFO, trace)

        assert json.loads(json.dumps(row, allow_nan=False)) == row
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        for spans in ("policy_spans", "temperature_spans"):
            assert sum(row["loss_mask"]) == sum(end - start for _, start, end in row[spans])
        assert not any(row["loss_mask"][: row["prompt_length"]])
        assert row["prompt_length"] == len(row["token_ids"]) or row["loss_mask"][row["prompt_length"]] == 1
