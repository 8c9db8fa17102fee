"""What a provider is: one dialect, as pure functions between its JSON and ``addons.messages``.

Rules of this package: no I/O, clock, randomness or database. Ids, times and token counts are passed in. One file per
dialect and one entry in ``providers.PROVIDERS``. Unknown content raises ``Unsupported`` naming it; unknown sampling
knobs are ignored. Streamed and whole replies are made from the same ``Reply``.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import orjson

from dragoman.addons.errors import DragomanError, ErrorCode
from dragoman.addons.messages import ChatRequest, Earlier, Reply, ReplyEvent
from dragoman.store.records import JsonObject, ProviderName

# In a stream there is no status, so that a harness goes by the text of an error when it decides whether to try again:
# pi looks for "server error", "overloaded" and "timed out" (checked), and gives up where none of them is there.
_TRANSIENT: dict[ErrorCode, str] = {
    "overloaded": "Overloaded",
    "engine_failed": "Internal server error",
    "timeout": "Request timed out",
    "internal": "Internal server error",
}
_SIGNATURE = re.compile(rb"dgm:([a-z0-9]+)")

RouteKind = Literal["generate", "count_tokens", "models", "model"]


@dataclass(frozen=True, slots=True)
class Route:
    """What a request path means in a dialect."""

    kind: RouteKind
    model: str | None = None
    """The model named in the path, for dialects that do so and for ``model`` routes."""
    stream: bool | None = None
    """Whether the path itself says that the reply streams; ``None``: the body says it."""
    variant: str = ""
    """Which of several request forms this is (``chat`` or ``completions``), for the provider's own use."""
    query: str = ""
    """The request's query string, put in by ``find_provider`` for the dialects in which it says something."""
    earlier: Earlier | None = None
    """What the reply that ``Provider.previous`` names stands for; ``None``: it names none, or one that is not there."""


class ReplyEncoder(Protocol):
    """Turns one reply's events into the bytes of its stream. Holds only the state of that stream."""

    def encode(self, event: ReplyEvent) -> bytes:
        """Bytes for one event, possibly empty. The closing event carries the stream's end marker too."""
        ...

    def keep_alive(self) -> bytes:
        """A data event in the dialect's own form that changes nothing (never an SSE comment)."""
        ...


class Provider(Protocol):
    name: ProviderName
    hosts: tuple[str, ...]
    """Host names of the real provider, for proxy mode."""
    tool_call_prefix: str
    """Put before ``<call id>_<n>`` to make a tool-call id in the dialect's own style."""
    request_id_header: str | None
    """Name of the reply's header that carries ``req_<call id>``; ``None``: the provider sends none."""

    def route(self, method: str, path: str) -> Route | None:
        """The route that ``path`` (no query) means, or ``None``: not one of ours."""
        ...

    def previous(self, body: JsonObject) -> str | None:
        """The call whose reply the request goes on from by its id, and an empty text for an id that is not ours.

        ``None``: it names none. Raises ``InvalidRequest``.
        """
        ...

    def parse_request(self, body: JsonObject, route: Route) -> ChatRequest:
        """Raises ``InvalidRequest`` or ``Unsupported``, each naming the field."""
        ...

    def render_reply(self, reply: Reply, request: ChatRequest) -> JsonObject: ...

    def encoder(self, request: ChatRequest) -> ReplyEncoder: ...

    def render_count(self, prompt_tokens: int) -> JsonObject: ...

    def render_models(self, models: Sequence[str], created: int) -> JsonObject: ...

    def render_model(self, model: str, created: int) -> JsonObject: ...

    def error_body(self, error: DragomanError, call_id: str | None) -> JsonObject:
        """The dialect's error object for ``error``; ``call_id`` as request id where the dialect shows one."""
        ...

    def error_status(self, error: DragomanError) -> int:
        """The status of this dialect for ``error`` (Anthropic says 529 where others say 503)."""
        ...


def issue_signature(call_id: str) -> str:
    """The reasoning signature of a call's reply: valid base64, as clients demand, of ``dgm:`` and the call id."""
    return base64.b64encode(f"dgm:{call_id}".encode()).decode()


def read_signature(signature: str) -> str | None:
    """The call id in a signature that we issued; ``None``: it is not one of ours."""
    try:
        match = _SIGNATURE.fullmatch(base64.b64decode(signature, validate=True))
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return None
    return match[1].decode() if match else None


def object_arguments(arguments: str) -> JsonObject:
    """A tool call's arguments for a dialect that has them as an object.

    None at all are ``{}``. Text that is not a JSON object becomes what Claude Code itself makes of it:
    ``{"__unparsedToolInput": {"raw": <the text>, "len": <its length in UTF-16 units>}}``.
    """
    if not arguments:
        return {}
    try:
        value = orjson.loads(arguments)
        orjson.dumps([[[[[[[[value]]]]]]]])  # refuses what is too deep to be written where it will stand in a reply
    except (orjson.JSONDecodeError, TypeError):
        value = None
    if isinstance(value, dict):
        return value
    return {"__unparsedToolInput": {"raw": arguments, "len": len(arguments.encode("utf-16-le")) // 2}}


def to_dragoman_error(error: Exception) -> DragomanError:
    """The error to show for one that ended a stream; what an unforeseen one says is not for the harness."""
    return error if isinstance(error, DragomanError) else DragomanError("the gateway failed while making this reply")


def error_text(error: DragomanError) -> str:
    """The message to show. What may go well at the next try begins with the words that providers use for it."""
    start = _TRANSIENT.get(error.code)
    return error.message if start is None else f"{start}: {error.message}"
