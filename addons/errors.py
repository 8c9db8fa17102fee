"""Every error that a harness can be shown, and the HTTP status it carries.

Rules of this module: one small hierarchy. An error says what was wrong and names it with ``repr``; the provider
turns it into its own body in ``Provider.error_body``, for ``addons.respond``. Beside calls there are bodies of our own:
the control API's, and the proxy's for requests that it refuses itself.
"""

from typing import Literal

ErrorCode = Literal[
    "invalid_request",
    "unsupported",
    "context_too_long",
    "unauthorized",
    "forbidden",
    "not_found",
    "conflict",
    "too_large",
    "overloaded",
    "engine_failed",
    "timeout",
    "internal",
]


class DragomanError(Exception):
    """Base of all errors that become a reply. ``message`` is shown to the harness as it is."""

    status: int = 500
    code: ErrorCode = "internal"
    retry_after: int | None = None
    """Seconds for a ``Retry-After`` header; ``None``: no header."""

    def __init__(self, message: str, *, field: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        """JSON path of the request field that is wrong (``messages[2].content``), where one is."""
        if retry_after is not None:
            self.retry_after = retry_after


class InvalidRequest(DragomanError):
    """The body is malformed or breaks the dialect's rules."""

    status: int = 400
    code: ErrorCode = "invalid_request"


class Unsupported(InvalidRequest):
    """The body is legal in the dialect, but holds something that cannot be shown to the model."""

    code: ErrorCode = "unsupported"


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for a reply. Shaped so that a harness compacts its history."""

    code: ErrorCode = "context_too_long"

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {limit} maximum", field="messages")
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class Unauthorized(DragomanError):
    """No credential, an unknown or expired one, or several that disagree."""

    status: int = 401
    code: ErrorCode = "unauthorized"


class Forbidden(DragomanError):
    """A known credential without the right to do this, or traffic that the egress policy blocks."""

    status: int = 403
    code: ErrorCode = "forbidden"


class NoSockets(DragomanError):
    """A WebSocket where none is taken. The status is the one on which Codex takes HTTP at once."""

    status: int = 426
    code: ErrorCode = "unsupported"


class NotFound(DragomanError):
    status: int = 404
    code: ErrorCode = "not_found"


class Conflict(DragomanError):
    """The thing is there, but not in a state that allows this (an episode that has ended)."""

    status: int = 409
    code: ErrorCode = "conflict"


class TooLarge(DragomanError):
    status: int = 413
    code: ErrorCode = "too_large"


class Overloaded(DragomanError):
    """The engine or the store cannot take the call now; the same request may succeed later."""

    status: int = 503
    code: ErrorCode = "overloaded"
    retry_after: int | None = 5


class EngineFailed(DragomanError):
    """The engine broke its protocol, or gave up in the middle of a reply."""

    status: int = 502
    code: ErrorCode = "engine_failed"


class AdapterMissing(EngineFailed):
    """The engine does not have the adapter that a call asked for; nothing was sampled."""


class WeightsRefused(EngineFailed):
    """The engine did not take other weights, or cannot take any."""


class EngineTimeout(DragomanError):
    status: int = 504
    code: ErrorCode = "timeout"
