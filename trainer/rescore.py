"""Score stored calls again with the weights that sampled them, and compare with the log-probabilities in the store.

It is the end-to-end proof that a stored number is the one the policy sampled with: the prompt put together from the
store, the sampled ids, the temperature actually used, one forward pass in float32. Needs torch.

``python -m dragoman.trainer.rescore --store URL --model FOLDER [--episode ID] [--limit N] [--tolerance X] [--json]``
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dragoman.store.calls import full_prompt, read_calls
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from dragoman.store.records import CallOutcome, JsonObject, Logprobs, TokenIds

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
}
"""Values of the knobs beside temperature that leave the distribution as it is."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """One call. Differences are absolute, in nats."""

    call_id: str
    temperature: float
    tokens: int
    versions: tuple[str, ...]
    """Policy versions that sampled it; the comparison means nothing with the weights of another one."""
    largest: float | None
    mean: float | None
    skipped: str | None = None
    """Why it was not scored; the differences are then ``None``."""


def rescore(model: Any, prompt_ids: TokenIds, completion_ids: TokenIds, temperature: float) -> Logprobs:
    """The log-probability of each completion id after what stands before it, shape (C,), float32.

    ``model``: a causal language model of transformers, in float32. ``temperature`` 0 is scored as 1: the engine does
    not scale the distribution when it takes the likeliest token.
    """
    import torch

    ids = torch.from_numpy(np.concatenate([prompt_ids, completion_ids]).astype(np.int64)).to(model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids[None], logits_to_keep=len(completion_ids) + 1).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        chosen = logprobs.gather(1, ids[len(prompt_ids) :, None])[:, 0]
    scored: Logprobs = chosen.cpu().numpy().astype(np.float32)
    return scored


def load_model(folder: str, device: str = "cpu") -> Any:
    """The model of ``folder`` in float32, ready to score."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.to(device).eval()


def rescore_call(model: Any, outcome: CallOutcome, prompt_ids: TokenIds) -> Rescored:
    """Score a stored call again. ``prompt_ids``: its full prompt."""
    used: JsonObject = outcome.sampling_used or {}
    temperature = float(used.get("temperature", 1.0))
    ids, stored = outcome.completion_ids, outcome.logprobs
    versions = tuple(dict.fromkeys(span.version for span in outcome.policy_spans))
    skipped = why_skipped(outcome)
    if skipped is not None or ids is None or stored is None:
        return Rescored(outcome.id, temperature, 0 if ids is None else len(ids), versions, None, None, skipped)
    difference = np.abs(rescore(model, prompt_ids, ids, temperature).astype(np.float64) - stored)
    return Rescored(
        outcome.id, temperature, len(ids), versions, largest=float(difference.max()), mean=float(difference.mean())
    )


def why_skipped(outcome: CallOutcome) -> str | None:
    """Why a call cannot be compared; ``None``: it can."""
    if outcome.completion_ids is None or outcome.logprobs is None or len(outcome.completion_ids) == 0:
        return "nothing was sampled"
    if outcome.constrained:
        return "constrained"
    return changed_by(outcome.sampling_used)


def changed_by(used: JsonObject | None) -> str | None:
    """The knob of a sampling that changes the distribution beyond its temperature; ``None``: none does."""
    given = used or {}
    return next(
        (f"{name} {given[name]!r}" for name, neutral in _NEUTRAL.items() if given.get(name, neutral[0]) not in neutral),
        None,
    )


def stored_calls(database: Database, episode: str | None, limit: int) -> list[tuple[CallOutcome, TokenIds]]:
    """At most ``limit`` calls with sampled tokens, of one episode or of all, the newest episode first, each with its
    full prompt.
    """
    found: list[tuple[CallOutcome, TokenIds]] = []
    with database.reading() as session:
        episodes = [episode] if episode else [each.episode.id for each in list_episodes(session, limit=1_000_000)]
        for episode_id in episodes:
            for call in read_calls(session, episode_id):
                if call.outcome is None or call.outcome.completion_ids is None or len(call.outcome.completion_ids) == 0:
                    continue
                if len(found) == limit:
                    return found
                found.append((call.outcome, full_prompt(session, call.arrival.id)))
    return found


def summary(rescored: list[Rescored]) -> JsonObject:
    """Over all calls that were scored; the mean is over tokens."""
    scored = [one for one in rescored if one.largest is not None and one.mean is not None]
    tokens = sum(one.tokens for one in scored)
    return {
        "calls": len(scored),
        "skipped": len(rescored) - len(scored),
        "tokens": tokens,
        "largest": max((one.largest or 0.0 for one in scored), default=None),
        "mean": sum((one.mean or 0.0) * one.tokens for one in scored) / tokens if tokens else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dragoman.trainer.rescore", description=__doc__)
    parser.add_argument("--store", required=True, help="SQLAlchemy URL")
    parser.add_argument("--model", required=True, help="folder of the weights that sampled the calls")
    parser.add_argument("--episode", help="only this one")
    parser.add_argument("--limit", type=int, default=1000, help="calls at most")
    parser.add_argument(
        "--tolerance", type=float, help="exit 1 when a difference is larger, or when nothing was scored"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    database = Database.open(options.store)
    model = load_model(options.model, options.device)
    rescored = []
    for outcome, prompt_ids in stored_calls(database, options.episode, options.limit):
        rescored.append(rescore_call(model, outcome, prompt_ids))
        if not options.json:
            print(_line(rescored[-1]), flush=True)
    total = summary(rescored)
    database.close()
    if options.json:
        print(json.dumps({"calls": [asdict(one) for one in rescored], "summary": total}))
    else:
        print(
            f"{total['calls']} calls, {total['tokens']} tokens, {total['skipped']} skipped: "
            f"largest difference {_number(total['largest'])}, mean {_number(total['mean'])}"
        )
    if options.tolerance is not None and (total["largest"] is None or total["largest"] > options.tolerance):
        sys.exit(1)


def _line(one: Rescored) -> str:
    about = f"{one.call_id}  {one.tokens:5} tokens  T={one.temperature:g}  {','.join(one.versions)}"
    if one.skipped is not None:
        return f"{about}  skipped: {one.skipped}"
    return f"{about}  largest {_number(one.largest)}  mean {_number(one.mean)}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2e}"


if __name__ == "__main__":
    main()
