"""The error object that OpenAI's dialects share, and its statuses. Pure."""

from dragoman.addons.errors import ContextTooLong, DragomanError, ErrorCode
from dragoman.addons.providers.base import error_text
from dragoman.store.records import JsonObject

REQUEST_ID_HEADER = "x-request-id"
"""Qwen Code goes on after an error inside a stream only when the reply has this header (checked)."""

_TYPES: dict[ErrorCode, tuple[str, str | None]] = {
    "invalid_request": ("invalid_request_error", None),
    "unsupported": ("invalid_request_error", "unsupported_value"),
    "context_too_long": ("invalid_request_error", "context_length_exceeded"),
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "forbidden": ("invalid_request_error", "forbidden"),
    "not_found": ("invalid_request_error", "not_found"),
    "conflict": ("invalid_request_error", "conflict"),
    "too_large": ("invalid_request_error", "request_too_large"),
    # Not "server_is_overloaded" or "slow_down": on these two Codex gives up at once.
    "overloaded": ("server_error", "overloaded"),
    "engine_failed": ("server_error", None),
    "timeout": ("server_error", "timeout"),
    "internal": ("server_error", None),
}


def error_object(error: DragomanError) -> JsonObject:
    """What stands under ``error`` in a reply's body."""
    kind, code = _TYPES[error.code]
    message = error_text(error)
    if isinstance(error, ContextTooLong):
        # OpenAI's wording, by which harnesses know that they must compact.
        message = (
            f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
            f"{error.prompt_tokens} tokens. Please reduce the length of the messages."
        )
    return {"message": message, "type": kind, "param": error.field, "code": code}


def error_status(error: DragomanError) -> int:
    # The SDKs repeat a 409 by themselves, which a conflict of ours outlives.
    return 400 if error.code == "conflict" else error.status
