"""What the store keeps, as plain typed records, and the closed sets of words used in it.

Rules of this module: no SQLAlchemy, no I/O. The gateway hands these records to the recorder; the recorder
hands them to ``store.calls``. Times are unix seconds (float, UTC). Token arrays are int32, log-probabilities
float32. ``None`` always means "not known" or "does not apply", never zero.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

JsonObject = dict[str, Any]
"""A JSON object whose shape is not ours (a tool's JSON schema, a task's metadata). Never mutate one."""

TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]

ProviderName = Literal["anthropic", "openai_chat", "openai_responses", "google"]
FinishReason = Literal["stop", "length", "tool_calls", "abort"]
CallStatus = Literal["arrived", "answered", "observed", "refused", "failed", "aborted"]
"""``arrived``: a row without an outcome yet. ``observed``: the real provider answered while we looked on, so there are
messages and no tokens. ``refused``: answered with a 4xx before any sampling.
``failed``: the engine or the gateway failed. ``aborted``: the client left and generation was stopped."""
CallKind = Literal["main", "subagent", "side", "compaction", "warm_up"]
"""``warm_up``: sent ahead so that a later call goes on from it; nothing is sampled, and its completion is empty."""
ForkReason = Literal[
    "history_edited", "system_changed", "tools_changed", "thinking_policy", "no_close", "unknown_parent", "template"
]
EpisodeEnd = Literal["completed", "failed", "timed_out", "abandoned"]
SamplingProfile = Literal["train", "as_asked"]


@dataclass(frozen=True, slots=True)
class PolicySpan:
    """Which policy version sampled the completion tokens ``start`` (inclusive) to ``end`` (exclusive)."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Blob:
    """A content-addressed piece of JSON (a message, a tool list): stored once however often it is sent."""

    digest: bytes
    """The first 16 bytes of the SHA-256 of ``data``."""
    data: bytes
    """Canonical UTF-8 JSON, uncompressed; the store compresses it."""


@dataclass(frozen=True, slots=True)
class CallArrival:
    """An authenticated request on a generation route, as known before its body is read."""

    id: str
    """Call id: 20 characters of ``[a-z0-9]``, unique everywhere."""
    episode_id: str
    provider: ProviderName
    path: str
    """Request path without credentials or query."""
    arrived_at: float
    harness: str | None = None
    """Name of the harness by its User-Agent (``claude``, ``pi``, …); ``None``: unknown."""
    harness_version: str | None = None
    thread: str | None = None
    """The harness's own session, thread or sub-agent id, as its headers name it."""
    kind: CallKind = "main"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended. Written once per call, replacing the arrival's open state."""

    id: str
    status: CallStatus
    http_status: int | None
    """``None``: the gateway was killed before it could answer."""
    finished_at: float
    error_code: str | None = None
    error_message: str | None = None
    model: str | None = None
    """The model name that the harness asked for."""
    stream: bool | None = None
    messages: tuple[Blob, ...] = ()
    """The request's messages in order, system included, without the first ``messages_kept``."""
    messages_kept: int = 0
    """How many messages this request begins with that its parent's request begins with too; they are stored there."""
    tools: Blob | None = None
    reply: Blob | None = None
    """The reply's parts as the harness got them."""
    state: JsonObject | None = None
    """What a later request needs beside this call to go on from its reply by its id; ``None``: none can. Written with
    the call, and read by ``calls.read_state`` only."""
    sampling_asked: JsonObject | None = None
    sampling_used: JsonObject | None = None
    constrained: bool = False
    """True when a grammar or forced tool limited what could be sampled."""
    parent_id: str | None = None
    shared_len: int = 0
    """How many tokens of the parent's stream (its full prompt + completion) this call's prompt keeps."""
    fork_reason: ForkReason | None = None
    echo_changed: int = 0
    retry_of: str | None = None
    """The call whose reply this one was given too: the same request again, after its client had gone."""
    prompt_len: int | None = None
    """Length of the full prompt in tokens: ``shared_len + len(prompt_ids)``."""
    prompt_ids: TokenIds | None = None
    """Only what this call adds to ``shared_len`` tokens of its parent's stream (all of it when there is no parent)."""
    completion_ids: TokenIds | None = None
    """Every sampled id in order, stop ids included."""
    logprobs: Logprobs | None = None
    """One per completion id, of the distribution that was sampled from; always finite."""
    finish_reason: FinishReason | None = None
    policy_spans: tuple[PolicySpan, ...] = ()
    first_token_at: float | None = None
    engine_started_at: float | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    canonical_version: int | None = None


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What an operator says when opening an episode."""

    task: str | None = None
    """Name of the task; rows of one name are one task. ``None``: an ad-hoc episode without a group."""
    group: str | None = None
    """Name of the group within the task; ``None``: a group of its own."""
    expected: int | None = None
    """How many episodes the group waits for; ``None``: not said."""
    deadline: float | None = None
    """Unix seconds after which missing episodes of the group count as abandoned; ``None``: never."""
    profile: SamplingProfile = "train"
    temperature: float = 1.0
    """Used by the ``train`` profile only."""
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """An episode as the gateway and the CLI see it."""

    id: str
    """Episode id: 12 characters of ``[a-z0-9]``."""
    spec: EpisodeSpec
    opened_at: float
    expires_at: float
    ended_at: float | None
    end: EpisodeEnd | None
    end_reason: str | None
    reward: float | None


ARTEFACT_LIMIT = 4 * 1024 * 1024
"""Bytes of one artefact, before compression. Whoever stores a longer one cuts it and says how much is missing."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """Something that a run left behind besides its calls: what the harness printed, a diff."""

    name: str
    """1 to 100 characters of ``[A-Za-z0-9._-]``, unique in its episode."""
    content_type: str
    data: bytes
    """At most ``ARTEFACT_LIMIT`` bytes."""
    omitted: int = 0
    """Bytes that were left out of ``data`` to keep within the limit."""


@dataclass(frozen=True, slots=True)
class ArtefactInfo:
    """A stored artefact without its content."""

    name: str
    content_type: str
    size: int
    """Bytes of its content, as stored."""
    omitted: int
    stored_at: float


@dataclass(frozen=True, slots=True)
class CallSums:
    """What an episode's calls add up to."""

    by_status: dict[CallStatus, int]
    """Only statuses that occur."""
    prompt_tokens: int
    """Sum of the full prompt lengths."""
    completion_tokens: int

    @property
    def calls(self) -> int:
        return sum(self.by_status.values())


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode and what its calls add up to."""

    episode: EpisodeInfo
    calls: int
    """Every call that arrived, open and refused ones included."""
    prompt_tokens: int
    """Sum of the full prompt lengths, so a token that is sent again in the next turn counts again."""
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A stored call, decoded: the arrival, and the outcome when there is one."""

    arrival: CallArrival
    outcome: CallOutcome | None
    """``None``: still open, or its gateway was killed before it ended."""
