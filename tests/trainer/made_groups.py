"""Groups of episodes made by hand for the trainer's tests, sampled from a small random model, with noise.

Every call is said by its full prompt and what was sampled, so that a reference can be computed from it without traces.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.episodes import end_episode, open_episode, set_reward
from dragoman.store.leases import LeasedEpisode, LeasedGroup
from dragoman.store.packing import digest
from dragoman.store.records import (
    CallArrival,
    CallInfo,
    CallKind,
    CallOutcome,
    EpisodeEnd,
    EpisodeInfo,
    EpisodeSpec,
    ForkReason,
    PolicySpan,
)

VOCABULARY = 97
Score = Callable[[Sequence[int]], list[float]]
"""Tokens → the log-probability of each but the first, after those before it."""


@dataclass(frozen=True)
class MadeCall:
    id: str
    prompt: tuple[int, ...]
    """All of it."""
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: str
    parent: str | None = None
    fork: ForkReason | None = None
    kind: CallKind = "main"
    constrained: bool = False
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0})

    @property
    def stream(self) -> tuple[int, ...]:
        return self.prompt + self.completion


@dataclass(frozen=True)
class MadeEpisode:
    id: str
    calls: tuple[MadeCall, ...]
    reward: float | None
    end: EpisodeEnd = "completed"
    sequences: tuple[tuple[str, ...], ...] = ()
    """The ids of its trained calls, one tuple for each way down that continues exactly; said by who made it."""


@dataclass(frozen=True)
class MadeGroup:
    row: int
    episodes: tuple[MadeEpisode, ...]

    @property
    def name(self) -> str:
        return f"g{self.row}"


class Maker:
    """Makes calls with random tokens, scored by ``score`` and blurred as another build or an older policy would."""

    def __init__(self, score: Score, *, seed: int = 0, noise: float = 0.3, temperature: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.score = score
        self.noise = noise
        self.temperature = temperature
        self.made = 0

    def tokens(self, most: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(3, VOCABULARY) for _ in range(self.random.randint(2, most)))

    def call(self, prompt: Sequence[int], version: str = "base", **more: Any) -> MadeCall:
        completion = self.tokens(7)
        scored = self.score([*prompt, *completion])[len(prompt) - 1 :]
        logprobs = tuple(min(0.0, one + self.random.gauss(0, self.noise)) for one in scored)
        self.made += 1
        more.setdefault("sampling", {"temperature": self.temperature})
        return MadeCall(f"c{self.made:019}", tuple(prompt), completion, logprobs, version, **more)

    def chain(self, turns: int, version: str = "base", start: Sequence[int] | None = None) -> list[MadeCall]:
        """Calls that continue one another, with tool results between them."""
        calls = [self.call(start or self.tokens(9), version)]
        for _ in range(turns - 1):
            last = calls[-1]
            calls.append(self.call(last.stream + self.tokens(5), version, parent=last.id))
        return calls

    def simple(
        self, name: str, reward: float | None, *, turns: int = 1, version: str = "base", **more: Any
    ) -> MadeEpisode:
        calls = self.chain(turns, version)
        return MadeEpisode(name, tuple(calls), reward, sequences=(tuple(call.id for call in calls),), **more)

    def forked(self, name: str, reward: float, version: str = "base") -> MadeEpisode:
        """Three turns, an edit of the history that begins anew, and a sub-agent: three sequences."""
        main = self.chain(3, version)
        edited = self.call(main[0].prompt + self.tokens(4), version, parent=main[1].id, fork="history_edited")
        other = self.call(self.tokens(9), version, kind="subagent")
        sequences = (tuple(call.id for call in main), (edited.id,), (other.id,))
        return MadeEpisode(name, (*main, edited, other), reward, sequences=sequences)

    def branched(self, name: str, reward: float, version: str = "base") -> MadeEpisode:
        """Two calls that continue one, a side call, and a turn behind a forced call."""
        root = self.call(self.tokens(6), version)
        one = self.call(root.stream + self.tokens(3), version, parent=root.id)
        two = self.call(root.stream + self.tokens(3), version, parent=root.id)
        side = self.call(self.tokens(4), version, kind="side")
        forced = self.call(one.stream + self.tokens(3), version, parent=one.id, constrained=True)
        last = self.call(forced.stream + self.tokens(3), version, parent=forced.id)
        sequences = ((root.id, one.id, last.id), (two.id,))
        return MadeEpisode(name, (root, one, two, side, forced, last), reward, sequences=sequences)


def gradient_groups(make: Maker) -> list[MadeGroup]:
    """Three groups of 3, 5 and 2 that are trained, one without variance and one that is stale. Newest: policy-v5."""
    old, new = "policy-v3", "policy-v5"
    return [
        MadeGroup(
            1,
            (
                make.forked("e00000000011", 1.0, new),
                make.simple("e00000000012", 0.0),
                make.branched("e00000000013", 0.25, old),
            ),
        ),
        MadeGroup(
            2,
            (
                make.simple("e00000000021", 0.9, turns=2, version=new),
                make.simple("e00000000022", 5.0, end="failed"),
                make.simple("e00000000023", None, turns=3, end="timed_out"),
                make.forked("e00000000024", 0.4, old),
                make.simple("e00000000025", 0.4, version=new),
            ),
        ),
        MadeGroup(3, (make.branched("e00000000031", 0.0, new), make.simple("e00000000032", 2.0, turns=2, version=old))),
        MadeGroup(4, (make.simple("e00000000041", 1.0), make.simple("e00000000042", 1.0))),
        MadeGroup(5, (make.simple("e00000000051", 1.0, version="policy-v0old"), make.simple("e00000000052", 0.0))),
    ]


VERSIONS = {"base": 2, "policy-v0old": 0, "policy-v3": 3, "policy-v5": 5}
"""As a store would say it, but for a base that is not too old to be trained."""
NEWEST = 5


def leased(group: MadeGroup) -> LeasedGroup:
    """The group as a lease gives it."""
    episodes = tuple(LeasedEpisode(episode_info(one, group), call_infos(one)) for one in group.episodes)
    return LeasedGroup(group.row, "task", group.name, 100.0, episodes)


def episode_info(episode: MadeEpisode, group: MadeGroup) -> EpisodeInfo:
    spec = EpisodeSpec("task", group.name, expected=len(group.episodes))
    return EpisodeInfo(episode.id, spec, 1.0, 1e9, 50.0, episode.end, None, episode.reward)


def call_infos(episode: MadeEpisode) -> tuple[CallInfo, ...]:
    streams = {call.id: call.stream for call in episode.calls}
    found = []
    for number, call in enumerate(episode.calls):
        shared = 0
        if call.parent is not None:
            for mine, theirs in zip(streams[call.parent], call.prompt, strict=False):
                if mine != theirs:
                    break
                shared += 1
        outcome = CallOutcome(
            id=call.id,
            status="answered",
            http_status=200,
            finished_at=20.0 + number,
            parent_id=call.parent,
            shared_len=shared,
            fork_reason=call.fork,
            prompt_len=len(call.prompt),
            prompt_ids=np.array(call.prompt[shared:], np.int32),
            completion_ids=np.array(call.completion, np.int32),
            logprobs=np.array(call.logprobs, np.float32),
            policy_spans=(PolicySpan(call.version, 0, len(call.completion)),),
            sampling_used=call.sampling,
            constrained=call.constrained,
            finish_reason="stop",
        )
        arrival = CallArrival(call.id, episode.id, "anthropic", "/v1/messages", 10.0 + number, kind=call.kind)
        found.append(CallInfo(arrival, outcome))
    return tuple(found)


def store_group(session: Session, group: MadeGroup, *, task: str = "task", at: float = 1.0) -> None:
    """Write a group as gateway and runner would: opened, called, ended, rewarded."""
    for number, episode in enumerate(group.episodes):
        open_episode(
            session,
            EpisodeSpec(task, group.name, expected=len(group.episodes)),
            episode_id=episode.id,
            token_hash=digest(episode.id.encode()).hex() * 2,
            now=at + number,
            expires_at=at + 1e9,
        )
        calls = call_infos(episode)
        assert set(write_arrivals(session, [call.arrival for call in calls])) <= {None}
        assert set(write_outcomes(session, [call.outcome for call in calls if call.outcome is not None])) <= {None}
        if episode.reward is not None:
            set_reward(session, episode.id, episode.reward, components=None, now=at + 30)
        end_episode(session, episode.id, episode.end, reason=None, now=at + 40)


def small_model(folder: Path, *, seed: int = 0, hidden: int = 64, vocabulary: int = VOCABULARY) -> Path:
    """A random Qwen3-shaped model with the tiny model's tokenizer beside it; its ids are below ``VOCABULARY``."""
    import torch
    import transformers
    from transformers import AutoTokenizer, Qwen3Config

    from tests.models import tiny_model_folder

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.3,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    build: Any = transformers.Qwen3ForCausalLM
    model = build(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_folder()).save_pretrained(folder)
    return folder


def scorer(folder: Path, *, temperature: float = 1.0) -> Score:
    """Log-probabilities under the model of ``folder``."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()

    def score(tokens: Sequence[int]) -> list[float]:
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0, :-1].float() / temperature, -1)
        found: list[float] = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found

    return score


def flat(made: Maker, row: int, rewards: Sequence[float], *, version: str = "base", turns: int = 2) -> MadeGroup:
    """A group of simple episodes with these rewards."""
    episodes = [
        replace(made.simple(f"e{row:05}{number:06}", reward, turns=turns, version=version))
        for number, reward in enumerate(rewards)
    ]
    return MadeGroup(row, tuple(episodes))
