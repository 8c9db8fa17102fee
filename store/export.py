"""Episodes as rows for another trainer, one for each trace. Pure.

Rules of this module: plain JSON values only. ``loss_mask`` and ``logprobs`` are as long as ``token_ids``; spans are
positions in it, the end not included. The field names are part of the file format that ``docs/store.md`` documents.
"""

from dragoman.store.records import EpisodeInfo, JsonObject
from dragoman.store.traces import Trace

FORMAT = 1
"""``format`` of every row; it grows when a field changes its meaning."""


def trace_row(episode: EpisodeInfo, trace: Trace) -> JsonObject:
    """One trace with what is known of its episode. ``None`` means not known or none, as in the records."""
    return {
        "format": FORMAT,
        "episode": episode.id,
        "task": episode.spec.task,
        "group": episode.spec.group,
        "end": episode.end,
        "reward": episode.reward,
        "kind": trace.kind,
        "thread": trace.thread,
        "calls": list(trace.call_ids),
        "token_ids": trace.token_ids.tolist(),
        "loss_mask": [int(trained) for trained in trace.loss_mask.tolist()],
        "logprobs": trace.logprobs.tolist(),
        "policy_spans": [[span.version, span.start, span.end] for span in trace.policy_spans],
        "prompt_length": _prompt_length(trace),
        "temperature_spans": [
            [turn.temperature, turn.completion_start, turn.end] for turn in trace.turns if turn.trained
        ],
        "finish_reason": trace.finish_reason,
        "metadata": episode.spec.metadata,
    }


def _prompt_length(trace: Trace) -> int:
    """Tokens before the first trained one."""
    trained = trace.loss_mask.nonzero()[0]
    return int(trained[0]) if len(trained) else len(trace.token_ids)
