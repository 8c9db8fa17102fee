"""Whose call is it: credentials to an episode, and the harness's own headers to a thread.

Rules of this module: reading credentials is pure. Only ``dgm_`` keys are identities; a provider key that a harness
happens to hold is ignored, never stored, and alone it is not enough. Credentials that disagree are refused. A token is
kept as its SHA-256 only.
"""

import base64
import binascii
import hashlib
import re
import secrets
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from dragoman.addons.errors import Unauthorized
from dragoman.store.records import CallKind, EpisodeInfo

KEY_PREFIX = "dgm_"
OPERATOR_PREFIX = "dgo_"
CREDENTIAL_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "proxy-authorization", "cookie"})
"""Request headers that never leave the edge: not to the app, not into a saved flow."""

_TOKEN = re.compile(r"[0-9a-f]{32}")
_PATH_PREFIX = re.compile(r"^/e/([^/]*)(/.*)?$")
_ALPHABET = string.ascii_lowercase + string.digits


def new_token() -> str:
    """A fresh episode token: 128 random bits as 32 hex digits."""
    return secrets.token_hex(16)


def new_id(length: int) -> str:
    """A random id of ``[a-z0-9]``: 12 characters for an episode, 20 (103 bits) for a call."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def hash_token(token: str) -> str:
    """What the store keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request brought along to say who it is."""

    tokens: frozenset[str] = frozenset()
    """Every distinct episode token found; more than one means that they disagree."""
    operator: str | None = None
    foreign: bool = False
    """Whether there was a key that is not ours (a provider's own)."""

    def token(self) -> str | None:
        """The one token, ``None`` if there is none. Raises ``Unauthorized`` when several disagree."""
        if len(self.tokens) > 1:
            raise Unauthorized("the credentials of this request name different episodes; send one token only")
        return next(iter(self.tokens), None)


def read_proxy_user(proxy_authorization: str | None) -> str | None:
    """The user name of a ``Proxy-Authorization: Basic`` header; ``None``: absent or unreadable."""
    scheme, _, payload = (proxy_authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(payload, validate=True).decode().partition(":")[0] or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _as_token(text: str) -> str | None:
    token = text.removeprefix(KEY_PREFIX)
    return token if _TOKEN.fullmatch(token) else None


def read_credentials(
    headers: Mapping[str, str], path: str, query: str, proxy_user: str | None
) -> tuple[Credentials, str, str]:
    """Find every credential of a request.

    Args:
        headers: lower-case names.
        path: without query. ``/e/<token>/…`` is taken off, each one that is there.
        query: without ``?``. ``key=`` is taken off.
        proxy_user: user name of the proxy credentials, if the request came through a proxy connection.

    Returns:
        The credentials, and the path and query without them.
    """
    tokens: set[str] = set()
    operator: str | None = None
    foreign = False
    if proxy_user is not None:
        # Not a token: it still must not pass for "no credential", so it becomes a token nobody has.
        tokens.add(_as_token(proxy_user) or f"not-a-token:{hash_token(proxy_user)}")
    while match := _PATH_PREFIX.match(path):
        tokens.add(_as_token(match[1]) or f"not-a-token:{hash_token(match[1])}")
        path = match[2] or "/"
    pairs = parse_qsl(query, keep_blank_values=True)
    keys = [value for name, value in pairs if name == "key"]
    if keys:
        query = urlencode([(name, value) for name, value in pairs if name != "key"])
    authorization = headers.get("authorization", "")
    scheme, _, bearer = authorization.partition(" ")
    keys += [bearer.strip()] if scheme.lower() == "bearer" else ([authorization] if authorization else [])
    keys += [headers[name] for name in ("x-api-key", "x-goog-api-key") if name in headers]
    for key in keys:
        if key.startswith(KEY_PREFIX):
            tokens.add(_as_token(key) or f"not-a-token:{hash_token(key)}")
        elif key.startswith(OPERATOR_PREFIX):
            operator = key
        elif key:
            foreign = True
    return Credentials(frozenset(tokens), operator, foreign), path, query


@dataclass(frozen=True, slots=True)
class Harness:
    """What a request's headers say about the program that sent it."""

    name: str | None = None
    version: str | None = None
    thread: str | None = None
    kind: CallKind = "main"


# User-Agent product → our name for the harness, spelt as real requests have it.
_AGENTS = {
    "claude-cli": "claude",
    "claude-code": "claude",
    "codex_exec": "codex",
    "codex_cli_rs": "codex",
    "codex-cli": "codex",
    "codex-mcp-client": "codex",
    "geminicli": "gemini",
    "geminicli-tui": "gemini",
    "qwencode": "qwen",
    "opencode": "opencode",
    "pi": "pi",
    "litellm": "litellm",
}
# Headers that name a session or thread, most specific first.
_THREADS = (
    "x-claude-code-agent-id",
    "thread-id",
    "x-session-id",
    "session-id",
    "x-claude-code-session-id",
)
_SUBAGENT = ("x-claude-code-agent-id", "x-codex-parent-thread-id", "x-openai-subagent", "x-parent-session-id")


def message_headers(handshake: Mapping[str, str], metadata: object) -> dict[str, str]:
    """The headers that a WebSocket's message would have had as a request of its own.

    ``metadata`` is the message's ``client_metadata``, in which Codex says what its headers say over HTTP. What the
    handshake said of the turn was about the first message.
    """
    said = metadata if isinstance(metadata, dict) else {}
    named = {"thread_id": "thread-id", "session_id": "session-id"}
    headers = {name: value for name, value in handshake.items() if name != "x-codex-turn-metadata"}
    for name, value in said.items():
        name = named.get(name, str(name).lower())
        if isinstance(value, str) and (name in named.values() or name.startswith(("x-codex-", "x-openai-"))):
            headers[name] = value
    return headers


def read_harness(headers: Mapping[str, str]) -> Harness:
    """Name, version, thread and kind of the caller, from lower-case headers alone."""
    agent = headers.get("user-agent", "").split(" ", 1)[0]
    product, version, *_ = [*agent.split("/"), ""]
    name = _AGENTS.get(product.lower())
    thread = next((headers[header] for header in _THREADS if headers.get(header)), None)
    kind: CallKind = "main"
    if any(headers.get(header) for header in _SUBAGENT):
        kind = "subagent"
    elif headers.get("x-claude-1p-request-class") == "summary-extraction":
        kind = "compaction"
    elif headers.get("x-claude-code-request-class") == "auxiliary":
        kind = "side"
    elif '"request_kind":"compaction"' in headers.get("x-codex-turn-metadata", "").replace(" ", ""):
        kind = "compaction"
    return Harness(name=name, version=(version or None) if name else None, thread=thread, kind=kind)


@dataclass(slots=True)
class EpisodeCache:
    """Token → episode, remembered for a few seconds so that a call costs no query.

    An episode that is ended or changed through this gateway is forgotten at once; one ended by another process is
    noticed when its entry expires.
    """

    lookup: Callable[[str], EpisodeInfo | None]
    """Finds an episode by token hash in the store; called in a worker thread by the owner."""
    lifetime: float = 5.0
    limit: int = 10_000
    _entries: dict[str, tuple[float, EpisodeInfo]] = field(default_factory=dict)

    def peek(self, token: str) -> EpisodeInfo | None:
        """The remembered episode, if its entry is fresh."""
        entry = self._entries.get(hash_token(token))
        if entry is None or entry[0] < time.monotonic():
            return None
        return entry[1]

    def fetch(self, token: str) -> EpisodeInfo:
        """Ask the store. Raises ``Unauthorized`` for an unknown token. May be called from any thread."""
        digest = hash_token(token)
        episode = self.lookup(digest)
        if episode is None:
            raise Unauthorized("unknown episode token; open an episode with `dragoman episode open`")
        if len(self._entries) >= self.limit:
            self._entries.clear()
        self._entries[digest] = (time.monotonic() + self.lifetime, episode)
        return episode

    def forget(self, episode_id: str) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry[1].id != episode_id}


def check_usable(episode: EpisodeInfo, now: float) -> None:
    """Raises ``Unauthorized`` when the episode's token has expired or the episode has ended."""
    if episode.ended_at is not None:
        raise Unauthorized(f"episode {episode.id!r} has ended; open a new one")
    if now >= episode.expires_at:
        raise Unauthorized(f"the token of episode {episode.id!r} has expired; open a new one")


def environments(gateway: str, token: str, trust: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The two ready-made environments that point a harness at an episode.

    Args:
        gateway: ``http://host:port`` as the harness reaches it.
        trust: variables that make runtimes trust our CA (``certs.trust``).
    """
    scheme, _, address = gateway.partition("://")
    address = address.rstrip("/")
    proxy = f"{scheme}://{token}:x@{address}"
    base = f"{scheme}://{address}"
    key = KEY_PREFIX + token
    return {
        "proxy": {
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            "HTTP_PROXY": proxy,
            "http_proxy": proxy,
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
            **trust,
        },
        "base_url": {
            "ANTHROPIC_BASE_URL": base,
            "ANTHROPIC_API_KEY": key,
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_BASE": f"{base}/v1",
            "OPENAI_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": base,
            "GEMINI_API_KEY": key,
        },
    }
