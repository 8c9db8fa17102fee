"""What was seen of a run of a probe, and what is made of it, as plain typed records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dragoman.rollout.probe.tools import OfferedTool
from dragoman.rollout.setups import Mode
from dragoman.store.records import CallKind, CallStatus, JsonObject, ProviderName

__all__ = ["CaseRun", "Echo", "Finding", "Mark", "Report", "SeenCall", "SeenRequest", "Verdict", "Weight"]

Mark = Literal["none", "same", "changed", "missing"]
"""``none``: there was nothing to replay. ``missing``: it was left out."""
Weight = Literal["good", "plain", "bad", "not tried"]
Verdict = Literal["trainable as is", "trainable with these settings", "not trainable"]


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request for a reply, as the proxy saw it."""

    at: float
    """Unix seconds at which it began."""
    provider: ProviderName
    way: Mode
    """Whether it went to the gateway itself or to a provider's own host."""
    host: str
    status: int | None
    """``None``: the client left before the reply began."""
    call_id: str | None
    """The id that the reply carries; ``None``: an error, or no reply."""
    headers: Mapping[str, str]
    """Lower-case names; credentials are taken out."""
    body: JsonObject
    """Empty where it is no JSON object."""
    socket: bool = False
    """It went over a WebSocket."""


@dataclass(frozen=True, slots=True)
class Echo:
    """How a later request replays a reply."""

    text: Mark
    arguments: Mark
    """``changed``: serialised anew or repaired."""
    reasoning: Mark
    signature: Mark
    tool_ids: Mark
    """``changed``: ours is in it, with something around it."""
    call: str = ""
    """The first tool call as it was replayed: name and arguments; empty: none was."""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A stored call."""

    id: str
    kind: CallKind
    status: CallStatus
    error: str | None
    """What was said to the harness in place of a reply."""
    provider: ProviderName
    harness: str | None
    """Name by its User-Agent, where that is known."""
    thread: str | None
    stream: bool | None
    parent_id: str | None
    turn: str
    """``start``, ``exact``, or the reason of its fork."""
    tools: tuple[OfferedTool, ...]
    said: str
    """The text of the reply."""
    marks: frozenset[int]
    """Which commands' output the model was shown."""
    echoes: tuple[Echo, ...] = ()
    """Of the replies in its history that no earlier call replayed."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run of the harness."""

    case: str
    mode: Mode
    exit_code: int | None
    """``None``: stopped at the time limit; negative: ended by a signal."""
    seconds: float
    requests: tuple[SeenRequest, ...]
    calls: tuple[SeenCall, ...]
    steps: tuple[int | None, ...]
    """Of each request that reached the engine, which step of the script answered it."""
    hosts: tuple[str, ...]
    """Each host that is no provider and was asked, through the proxy."""
    secure: bool
    """Some request came through a TLS connection that the gateway answered."""
    distrusted: tuple[str, ...]
    """Hosts whose certificate by the gateway's CA was refused."""
    names: tuple[str, ...] | None
    """Names that were looked up past the proxy; ``None``: not watched."""
    no_route: int | None
    """How often something wanted to send to an address outside; ``None``: not watched."""
    made: bool
    """The file that the model's command writes is there."""
    stdout: str
    stderr: str
    """The end of each."""

    @property
    def answered(self) -> tuple[SeenCall, ...]:
        return tuple(call for call in self.calls if call.status == "answered")

    @property
    def main(self) -> tuple[SeenCall, ...]:
        return tuple(call for call in self.answered if call.kind == "main")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was asked about the harness, and the answer."""

    about: str
    """A short name that stays the same from harness to harness."""
    answer: str
    weight: Weight = "plain"
    detail: str = ""
    mode: Mode | None = None
    """``None``: it holds for each mode, or has nothing to do with it."""


@dataclass(frozen=True, slots=True)
class Report:
    what: str
    """The harness's name, or the command."""
    version: str | None
    variant: str | None
    isolated: bool
    """Each run had a network with nothing but loopback."""
    findings: tuple[Finding, ...]
    verdict: Verdict
    settings: tuple[str, ...]
    """What must be set for it; empty unless the verdict says so."""
    because: tuple[str, ...]
    """Why it is not trainable; empty unless the verdict says so."""
    notes: tuple[str, ...] = field(default=())
    """What is worth knowing all the same."""
