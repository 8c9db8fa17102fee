"""Every error that a harness can be shown, and the HTTP status it carries.

Rules of this module: one small hierarchy. An error says what was wrong and names it with ``repr``; the provider
turns it into its own body in ``Provider.error_body``, and ``addons.app`` is the one place that does so.
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

    status, code = 400, "invalid_request"


class Unsupported(InvalidRequest):
    """The body is legal in the dialect, but holds something that cannot be shown to the model."""

    code = "unsupported"


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for a reply. Shaped so that a harness compacts its history."""

    code = "context_too_long"

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {limit} maximum", field="messages")
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class Unauthorized(DragomanError):
    """No credential, an unknown or expired one, or several that disagree."""

    status, code = 401, "unauthorized"


class Forbidden(DragomanError):
    """A known credential without the right to do this, or traffic that the egress policy blocks."""

    status, code = 403, "forbidden"


class NotFound(DragomanError):
    status, code = 404, "not_found"


class Conflict(DragomanError):
    """The thing is there, but not in a state that allows this (an episode that has ended)."""

    status, code = 409, "conflict"


class TooLarge(DragomanError):
    status, code = 413, "too_large"


class Overloaded(DragomanError):
    """The engine or the store cannot take the call now; the same request may succeed later."""

    status, code, retry_after = 503, "overloaded", 5


class EngineFailed(DragomanError):
    """The engine broke its protocol, or gave up in the middle of a reply."""

    status, code = 502, "engine_failed"


class EngineTimeout(DragomanError):
    status, code = 504, "timeout"
