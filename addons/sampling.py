"""From what a harness asked of sampling to what is used, by the episode's sampling profile. Pure.

``train``: the distribution that the trainer corrects for must be simple and known, so temperature comes from the run
and nothing else shapes it: top_p 1, no top_k, min_p or penalties, a harness's seed dropped (every sample of a group
would be the same). ``as_asked``: what the harness said, with the engine's neutral values where it said nothing.
Stop strings are kept in both: they end a reply, and the ids before them were sampled freely.
"""

from dataclasses import replace

from dragoman.addons.errors import ContextTooLong
from dragoman.addons.messages import Sampling
from dragoman.store.records import EpisodeSpec


def resolve_sampling(
    asked: Sampling, spec: EpisodeSpec, *, prompt_len: int, context_len: int, max_reply_tokens: int
) -> Sampling:
    """The sampling to use, with ``temperature``, ``top_p`` and ``max_tokens`` always set.

    Args:
        prompt_len: tokens in the prompt.
        context_len: the engine's limit for prompt and reply together.
        max_reply_tokens: the operator's cap.

    Raises:
        ContextTooLong: when not one token of reply fits.
    """
    room = context_len - prompt_len
    if room < 1:
        raise ContextTooLong(prompt_len, context_len - 1)
    max_tokens = min(asked.max_tokens or max_reply_tokens, max_reply_tokens, room)
    if spec.profile == "train":
        return Sampling(temperature=spec.temperature, top_p=1.0, max_tokens=max_tokens, stop=asked.stop)
    return replace(
        asked,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        max_tokens=max_tokens,
    )
