"""Episodes made by hand for tests: calls are said by what the engine was given and gave, in full."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from dragoman.store.calls import GATEWAY_KILLED, write_arrivals, write_outcomes
from dragoman.store.episodes import open_episode
from dragoman.store.packing import digest
from dragoman.store.records import CallArrival, CallInfo, CallKind, CallOutcome, CallStatus, EpisodeSpec, PolicySpan


@dataclass
class Episode:
    """Calls of one episode, and beside them what every trace must come out as, kept as plain lists."""

    id: str = "e1"
    calls: list[CallInfo] = field(default_factory=list)
    prompts: dict[str, list[int]] = field(default_factory=dict)
    completions: dict[str, list[int]] = field(default_factory=dict)
    logprob: dict[int, float] = field(default_factory=dict)
    """By token id, for episodes in which every sampled token is another one."""
    version: dict[int, str] = field(default_factory=dict)
    """By token id, likewise."""

    def stream(self, call_id: str) -> list[int]:
        return self.prompts[call_id] + self.completions[call_id]

    def add(
        self,
        call_id: str,
        prompt: Sequence[int],
        completion: Sequence[int],
        *,
        parent: str | None = None,
        shared: int | None = None,
        status: CallStatus = "answered",
        kind: CallKind = "main",
        thread: str | None = None,
        spans: tuple[PolicySpan, ...] | None = None,
        **more: Any,
    ) -> None:
        """``shared``: tokens of the parent's stream that the row refers to; ``None``: as many as ``prompt`` has."""
        prompt, completion = list(prompt), list(completion)
        self.prompts[call_id], self.completions[call_id] = prompt, completion
        if shared is None:
            shared = 0 if parent is None else common(self.stream(parent), prompt)
        if spans is None:
            spans = (PolicySpan("base", 0, len(completion)),) if completion else ()
        logprobs = [-(token % 997) / 256 for token in completion]
        for at, token in enumerate(completion):
            self.logprob[token] = logprobs[at]
            self.version.update((token, span.version) for span in spans if span.start <= at < span.end)
        outcome = CallOutcome(
            id=call_id,
            status=status,
            http_status=200,
            finished_at=100.0 + len(self.calls),
            parent_id=parent,
            shared_len=shared,
            prompt_len=len(prompt),
            prompt_ids=np.array(prompt[shared:], np.int32),
            completion_ids=np.array(completion, np.int32),
            logprobs=np.array(logprobs, np.float32),
            policy_spans=spans,
            sampling_used=more.pop("sampling_used", {"temperature": 1.0}),
            finish_reason=more.pop("finish_reason", "stop"),
            **more,
        )
        self._arrive(call_id, kind, thread, outcome)

    def end(self, call_id: str, status: CallStatus, *, kind: CallKind = "main", **more: Any) -> None:
        """A call of which no token is stored; ``arrived``: it has no outcome."""
        self.prompts[call_id], self.completions[call_id] = [], []
        outcome = None
        if status != "arrived":
            outcome = CallOutcome(call_id, status, 200 if status == "answered" else 400, 100.0, **more)
        self._arrive(call_id, kind, None, outcome)

    def _arrive(self, call_id: str, kind: CallKind, thread: str | None, outcome: CallOutcome | None) -> None:
        at = 10.0 + len(self.calls)
        arrival = CallArrival(call_id, self.id, "anthropic", "/v1/messages", at, thread=thread, kind=kind)
        self.calls.append(CallInfo(arrival, outcome))


def write_episode(
    session: Session, episode: Episode, *, opened_at: float = 1.0, task: str | None = None, group: str | None = None
) -> None:
    """Open the episode and store its calls."""
    open_episode(
        session,
        EpisodeSpec(task=task, group=group),
        episode_id=episode.id,
        token_hash=digest(episode.id.encode()).hex() * 2,
        now=opened_at,
        expires_at=opened_at + 3600,
    )
    assert set(write_arrivals(session, [call.arrival for call in episode.calls])) <= {None}
    outcomes = [call.outcome for call in episode.calls if call.outcome is not None]
    assert set(write_outcomes(session, outcomes)) <= {None}


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many items two sequences begin with in common."""
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


KINDS: tuple[CallKind, ...] = ("main", "main", "main", "subagent", "side", "compaction")
STATUSES: tuple[CallStatus, ...] = ("answered",) * 8 + ("aborted", "failed")


@st.composite
def episodes(draw: st.DrawFn, *, most: int = 14, episode_id: str = "e1") -> Episode:
    """Any episode: branches, forks that keep something or nothing, retries, threads, kinds and ends of every sort.

    Every token, sampled or not, is another id, so that a token found in a trace says which call it is of.
    """
    episode = Episode(episode_id)
    fresh = iter(range(1, 100_000))

    def tokens(most: int) -> list[int]:
        return [next(fresh) for _ in range(draw(st.integers(0, most)))]

    for number in range(draw(st.integers(1, most))):
        name = f"{episode_id}c{number}"
        known = [call.arrival.id for call in episode.calls if call.outcome is not None]
        full = [call.outcome.id for call in episode.calls if call.outcome and call.outcome.prompt_ids is not None]
        what = draw(st.sampled_from(("root", *("next",) * 6, *("fork",) * 2, "retry", "copy", "bare")))
        kind = draw(st.sampled_from(KINDS))
        if what == "bare" or (what != "root" and not full):
            status: CallStatus = draw(st.sampled_from(("arrived", "refused", "failed", "aborted")))
            known_of_it: dict[str, Any] = {}
            if status == "aborted" and draw(st.booleans()):
                known_of_it["error_code"] = GATEWAY_KILLED
            if status == "refused":
                known_of_it["prompt_len"] = 70_000  # too long: counted, and its ids are not stored
            episode.end(name, status, kind=kind, **known_of_it)
            continue
        parent = draw(st.sampled_from(full)) if full and what != "root" else None
        if what == "retry":
            episode.end(name, "answered", retry_of=draw(st.sampled_from(known)))
            continue
        if what == "copy":  # a retry whose row repeats the tokens
            assert parent is not None
            original = next(call.outcome for call in episode.calls if call.arrival.id == parent)
            assert original is not None
            episode.add(
                name,
                episode.prompts[parent],
                episode.completions[parent],
                parent=parent,
                shared=len(episode.prompts[parent]),
                spans=original.policy_spans,
                fork_reason="template",
                retry_of=parent,
            )
            continue
        stream = [] if parent is None else episode.stream(parent)
        kept = len(stream) if what == "next" else draw(st.integers(0, len(stream)))
        completion = tokens(5)
        more: dict[str, Any] = {"constrained": draw(st.sampled_from((False, False, False, False, True)))}
        if what == "fork":
            more["fork_reason"] = draw(st.sampled_from(("history_edited", "thinking_policy", "no_close")))
        episode.add(
            name,
            stream[:kept] + tokens(4),
            completion,
            parent=parent,
            shared=kept,
            status=draw(st.sampled_from(STATUSES)),
            kind=kind,
            thread=draw(st.sampled_from((None, "t1", "t2"))),
            spans=draw(span_tuples(len(completion))),
            **more,
        )
    return episode


@st.composite
def span_tuples(draw: st.DrawFn, length: int) -> tuple[PolicySpan, ...]:
    """Policy spans of ``length`` tokens: one version, two, or (seldom) none for the last token."""
    if length == 0:
        return ()
    if draw(st.integers(0, 9)) == 0:
        return (PolicySpan("v1", 0, length - 1),) if length > 1 else ()
    cut = draw(st.integers(1, length))
    if cut == length:
        return (PolicySpan("v1", 0, length),)
    return (PolicySpan("v1", 0, cut), PolicySpan("v2", cut, length))
