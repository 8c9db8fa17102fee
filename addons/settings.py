"""What an operator can set about a gateway; one frozen value, made by the CLI, the addon's options or a test."""

from dataclasses import dataclass
from pathlib import Path

from dragoman.addons.bridge import Thinking
from dragoman.home import DEFAULT_ENGINE


@dataclass(frozen=True, slots=True)
class Settings:
    store: str
    """SQLAlchemy URL."""
    operator_key: str
    """The credential that opens and ends episodes; never logged."""
    engine: str = DEFAULT_ENGINE
    model: str | None = None
    """Folder or name of the tokenizer's model; ``None``: the engine's own (``root`` of its /v1/models)."""
    observe: str | None = None
    """Calls are only looked at and go to ``provider`` or this address; ``None``: they are answered here."""
    renderer: str = "auto"
    thinking: Thinking = "template"
    """Whether earlier reasoning that the template drops is dropped (a fork), or kept as it was sampled."""
    max_reply_tokens: int = 4096
    open_mode: bool = False
    """Open an episode by itself for traffic without a credential (loopback only; for a person trying a tool)."""
    token_ttl: float = 24 * 3600.0
    """Seconds until an episode's token expires."""
    fsync: bool = False
    """Survive power loss too, not only a killed process."""
    outbox: Path | None = None
    """File in which records wait for a PostgreSQL store; ``None``: ``outbox.db`` in the state folder."""
    outbox_limit: int = 1024**3
    """Bytes of waiting records from which no new call begins."""
    keep_alive: float = 15.0
    """Seconds of silence before a keep-alive is sent."""
    coalesce: float = 0.05
    """At most one text delta per this many seconds."""
    patience: float = 20.0
    """Seconds that a whole reply may take before its headers and white space are sent."""
    grace: float = 30.0
    """Seconds that generation goes on after its client has left."""
    request_limit: int = 64 * 1024 * 1024
    """Largest request body in bytes, after decompression; and largest message of a WebSocket."""
    websockets: bool = True
    """Whether WebSockets are taken. If not they are answered 426, on which Codex takes HTTP."""
    socket_idle: float = 3600.0
    """Seconds without a message after which a WebSocket is closed."""
