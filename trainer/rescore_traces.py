"""Score whole traces again with the weights that sampled them, and compare with the log-probabilities in the store.

One forward pass in float32 over all of a trace's ids: so a number that agrees says, beyond what ``rescore`` says of a
call, that the prefix which stands in the trace is the prefix that the policy saw. Needs torch.

``python -m dragoman.trainer.rescore_traces --store URL --model FOLDER [--episode ID]… [--turns N] [--limit N]
[--tolerance X] [--published] [--json]``
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from dragoman.store.calls import read_streams
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from dragoman.store.policies import get_policy, version_number
from dragoman.store.records import JsonObject, Logprobs, PolicySpan
from dragoman.store.traces import Trace, build_traces
from dragoman.trainer.rescore import changed_by, load_model


@dataclass(frozen=True, slots=True)
class RescoredTrace:
    """One trace. Differences are absolute, in nats."""

    call_ids: tuple[str, ...]
    """Its trained calls."""
    length: int
    """All of its tokens."""
    tokens: int
    """Trained ones, which were compared; 0 when it was skipped."""
    context: tuple[str, ...]
    """What is not plain about it: ``branch`` (it begins with a turn, or a part of one, that another trace trains),
    ``fork`` (it has a turn that could not continue), ``constrained`` (it goes on from a reply that a grammar limited),
    ``cut`` (it goes on from a trained reply that was ended by its length)."""
    versions: tuple[str, ...]
    """Policy versions that sampled it; the comparison means nothing with the weights of another one."""
    largest: float | None
    mean: float | None
    skipped: str | None = None
    """Why it was not scored; the differences are then ``None``."""


def rescore_trace(model: Any, trace: Trace) -> Logprobs:
    """The log-probability of every trained token after all that stands before it in ``trace``, shape (trained,),
    float32; each at its turn's own temperature, 0 as 1 (the engine does not scale when it takes the likeliest token).

    ``model``: a causal language model of transformers, in float32.
    """
    import torch

    ids = torch.from_numpy(trace.token_ids.astype(np.int64)).to(model.device)
    at = torch.from_numpy(np.flatnonzero(trace.loss_mask)).to(model.device)
    temperatures = np.ones(len(ids), np.float32)
    for turn in trace.turns:
        temperatures[turn.completion_start : turn.end] = turn.temperature or 1.0
    scale = torch.from_numpy(temperatures).to(model.device)[at]
    with torch.inference_mode():
        # A trained token is sampled, so it never stands first: its distribution is the one at the token before it.
        logits = model(input_ids=ids[None], logits_to_keep=at - 1).logits[0].float()
        chosen = torch.log_softmax(logits / scale[:, None], dim=-1).gather(1, ids[at][:, None])[:, 0]
    scored: Logprobs = chosen.cpu().numpy().astype(np.float32)
    return scored


def compare(models: Callable[[str], Any], trace: Trace, context: tuple[str, ...]) -> RescoredTrace:
    """Score a trace again, each token with the weights of the version that sampled it, and compare.

    ``models``: version → model; versions may share one. ``context``: what ``context_of`` says of the trace.
    """
    versions = tuple(dict.fromkeys(span.version for span in trace.policy_spans))
    skipped = why_skipped(trace)
    if skipped is not None:
        return RescoredTrace(trace.call_ids, len(trace.token_ids), 0, context, versions, None, None, skipped)
    scored = np.empty(trace.trained_tokens, np.float64)
    place = np.cumsum(trace.loss_mask) - 1  # position in the trace → place among its trained tokens
    for model, spans in _by_model(models, trace):
        again = rescore_trace(model, trace)
        for span in spans:
            part = slice(place[span.start], place[span.end - 1] + 1)
            scored[part] = again[part]
    difference = np.abs(scored - trace.logprobs[trace.loss_mask])
    return RescoredTrace(
        trace.call_ids,
        len(trace.token_ids),
        len(difference),
        context,
        versions,
        largest=float(difference.max()),
        mean=float(difference.mean()),
    )


def _by_model(models: Callable[[str], Any], trace: Trace) -> list[tuple[Any, list[PolicySpan]]]:
    """The spans of a trace by the model that scores them, so that each model reads it once."""
    found: dict[int, tuple[Any, list[PolicySpan]]] = {}
    for span in trace.policy_spans:
        model = models(span.version)
        found.setdefault(id(model), (model, []))[1].append(span)
    return list(found.values())


def published_models(database: Database, base: str, device: str) -> Callable[[str], Any]:
    """Version → model, from the folders that the store names; ``base``: the folder of the first weights.

    The function raises ``ValueError`` for a version that no policy has.
    """

    @cache
    def load(version: str) -> Any:
        number = version_number(version)
        if number == 0:
            return load_model(base, device)
        with database.reading() as session:
            policy = None if number is None else get_policy(session, number)
        if policy is None:
            raise ValueError(f"tokens were sampled by {version!r}, and the store has no such policy")
        if policy.kind == "full":
            return load_model(policy.path, device)
        from peft import PeftModel

        return PeftModel.from_pretrained(load_model(base, device), policy.path).eval()

    return load


def why_skipped(trace: Trace) -> str | None:
    """Why a trace cannot be compared; ``None``: it can."""
    return next((why for turn in trace.turns if turn.trained and (why := changed_by(turn.sampling))), None)


def context_of(trace: Trace, finish_reasons: dict[str, str | None], forks: frozenset[str]) -> tuple[str, ...]:
    """``finish_reasons``: call id → how it ended. ``forks``: the calls that could not continue."""
    last = len(trace.turns) - 1
    found = {
        "branch": any(not turn.trained and not turn.constrained for turn in trace.turns),
        "fork": any(turn.call_id in forks for turn in trace.turns),
        "constrained": trace.constrained,
        "cut": any(turn.trained and finish_reasons[turn.call_id] == "length" for turn in trace.turns[:last]),
    }
    return tuple(name for name, there in found.items() if there)


def stored_traces(
    database: Database, episodes: Sequence[str] = (), *, turns: int = 1, limit: int = 1000
) -> list[tuple[Trace, tuple[str, ...]]]:
    """At most ``limit`` traces of at least ``turns`` trained calls, of these episodes or (none named) of all, each with
    its context. Those of many turns come first.
    """
    found: list[tuple[Trace, tuple[str, ...]]] = []
    with database.reading() as session:
        for episode_id in episodes or [each.episode.id for each in list_episodes(session, limit=1_000_000)]:
            calls = read_streams(session, episode_id)
            outcomes = [call.outcome for call in calls if call.outcome is not None]
            forks = frozenset(outcome.id for outcome in outcomes if outcome.fork_reason is not None)
            reasons: dict[str, str | None] = {outcome.id: outcome.finish_reason for outcome in outcomes}
            found += [
                (trace, context_of(trace, reasons, forks))
                for trace in build_traces(calls).traces
                if len(trace.call_ids) >= turns
            ]
    found.sort(key=lambda one: -len(one[0].call_ids))
    return found[:limit]


def summary(rescored: Sequence[RescoredTrace]) -> JsonObject:
    """Over all traces that were scored; the mean is over tokens."""
    scored = [one for one in rescored if one.largest is not None and one.mean is not None]
    tokens = sum(one.tokens for one in scored)
    kinds = ("branch", "fork", "constrained", "cut")
    return {
        "traces": len(scored),
        "skipped": len(rescored) - len(scored),
        "turns": sum(len(one.call_ids) for one in scored),
        "tokens": tokens,
        "largest": max((one.largest or 0.0 for one in scored), default=None),
        "mean": sum((one.mean or 0.0) * one.tokens for one in scored) / tokens if tokens else None,
        "context": {kind: sum(kind in one.context for one in scored) for kind in kinds},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dragoman.trainer.rescore_traces", description=__doc__)
    parser.add_argument("--store", required=True, help="SQLAlchemy URL")
    parser.add_argument("--model", required=True, help="folder of the weights that sampled the calls")
    parser.add_argument("--episode", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--turns", type=int, default=1, help="trained calls that a trace has at least")
    parser.add_argument("--limit", type=int, default=1000, help="traces at most")
    parser.add_argument(
        "--tolerance", type=float, help="exit 1 when a difference is larger, or when nothing was scored"
    )
    parser.add_argument(
        "--published", action="store_true", help="score each token with the policy that sampled it; --model is the base"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    database = Database.open(options.store)
    traces = stored_traces(database, options.episode, turns=options.turns, limit=options.limit)
    if options.published:
        models = published_models(database, options.model, options.device)
    else:
        model = load_model(options.model, options.device)
        models = lambda _: model  # noqa: E731
    rescored = []
    for trace, context in traces:
        rescored.append(compare(models, trace, context))
        if not options.json:
            print(_line(rescored[-1]), flush=True)
    total = summary(rescored)
    if options.json:
        print(json.dumps({"traces": [asdict(one) for one in rescored], "summary": total}))
    else:
        print(json.dumps(total))
    if options.tolerance is not None and (total["largest"] is None or total["largest"] > options.tolerance):
        sys.exit(1)


def _line(one: RescoredTrace) -> str:
    about = f"{one.call_ids[0]}  {len(one.call_ids):3} turns  {one.tokens:6} of {one.length:6} tokens"
    about += f"  {','.join(one.versions)}  {','.join(one.context) or 'plain'}"
    if one.largest is None:
        return f"{about}  skipped: {one.skipped}"
    return f"{about}  largest {one.largest:.2e}  mean {one.mean:.2e}"


if __name__ == "__main__":
    main()
