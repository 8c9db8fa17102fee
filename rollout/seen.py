"""What checks are told of an episode: how the harness ended, what it printed and changed, and its calls.

Rules of this module: plain data that goes through JSON unchanged, since functions of a task run in a process of their
own.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.records import CallInfo, JsonObject

__all__ = ["EpisodeSeen", "ReplySeen", "from_json", "read_replies", "to_json"]


@dataclass(frozen=True)
class ReplySeen:
    """One answered call."""

    call_id: str
    kind: str
    """``main``, ``subagent``, ``side``, …"""
    text: str
    """All text parts of the reply."""
    tool_calls: tuple[tuple[str, str], ...]
    """Name and arguments (as the harness got them) of each."""


@dataclass(frozen=True)
class EpisodeSeen:
    id: str
    task: str
    prompt: str
    metadata: JsonObject = field(default_factory=dict)
    """The task's."""
    harness: str = ""
    end: str = "completed"
    exit_code: int | None = None
    """None: the harness was killed."""
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""
    diff: str = ""
    replies: tuple[ReplySeen, ...] | None = None
    """Answered calls in the order of their arrival. None: the store cannot be read from here."""

    @property
    def reply(self) -> str:
        """The last thing that the model said in the main thread; without the store, what the harness printed."""
        if self.replies is None:
            return self.stdout
        return next((one.text for one in reversed(self.replies) if one.kind == "main" and one.text), "")


def read_replies(database: Database, episode_id: str) -> tuple[ReplySeen, ...]:
    """The answered calls of an episode. Raises ``StoreError``."""
    with database.reading() as session:
        return tuple(_reply(call) for call in read_calls(session, episode_id) if _answered(call))


def _answered(call: CallInfo) -> bool:
    return call.outcome is not None and call.outcome.reply is not None


def _reply(call: CallInfo) -> ReplySeen:
    assert call.outcome is not None
    assert call.outcome.reply is not None
    parts = json.loads(call.outcome.reply.data).get("parts", [])
    text = "".join(part.get("text", "") for part in parts if part.get("type") == "text")
    calls = tuple((str(p.get("name")), str(p.get("arguments"))) for p in parts if p.get("type") == "tool_call")
    return ReplySeen(call.arrival.id, call.arrival.kind, text, calls)


def to_json(episode: EpisodeSeen) -> JsonObject:
    return asdict(episode)


def from_json(value: dict[str, Any]) -> EpisodeSeen:
    replies = value["replies"]
    if replies is not None:
        replies = tuple(
            ReplySeen(one["call_id"], one["kind"], one["text"], tuple((name, args) for name, args in one["tool_calls"]))
            for one in replies
        )
    return EpisodeSeen(**{**value, "replies": replies})
