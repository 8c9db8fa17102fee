"""The exact prompt of a request, from where it hangs in its episode. Pure, but for the tokenizer's work."""

import hashlib
from dataclasses import dataclass, replace

from dragoman.addons.bridge import Behind, Thinking, bridge
from dragoman.addons.canonical import carried, compare_echo
from dragoman.addons.errors import InvalidRequest
from dragoman.addons.lineage import Found, Node, shared_prefix
from dragoman.addons.messages import ChatRequest, Message, Part, ReplyPart, ToolCallPart
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import ForkReason, ProviderName, TokenIds

_CONVERSATION_FIELD: dict[ProviderName, str] = {
    "anthropic": "messages",
    "openai_chat": "messages",
    "openai_responses": "input",
    "google": "contents",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: TokenIds
    """All of it, shape (P,)."""
    parent: Node | None
    shared_len: int
    """How many tokens of the parent's stream ``ids`` begins with; all of them when the parent is continued exactly."""
    fork_reason: ForkReason | None

    @property
    def own_ids(self) -> TokenIds:
        """What it adds to the parent's stream, shape (P - shared_len,)."""
        return self.ids[self.shared_len :]


def make_prompt(codec: TokenCodec, request: ChatRequest, found: Found, thinking: Thinking) -> Prompt:
    """Continue the parent exactly where that is possible, else render in full and say why.

    Raises ``Unsupported`` or ``InvalidRequest`` naming the request's field when the model cannot be shown it.
    """
    try:
        return _make_prompt(codec, request, found, thinking)
    except InvalidRequest as error:
        raise _named(error, request) from error


def render_prompt(codec: TokenCodec, request: ChatRequest) -> TokenIds:
    """The prompt of a request that hangs nowhere, shape (P,). Raises as ``make_prompt`` does."""
    try:
        return codec.render(request.messages, request.tools)
    except InvalidRequest as error:
        raise _named(error, request) from error


def _named(error: InvalidRequest, request: ChatRequest) -> InvalidRequest:
    """The codec knows no dialect, so what it refuses is named here."""
    field = _CONVERSATION_FIELD[request.provider] if request.prompt is None else "prompt"
    return type(error)(f"{field}: {error.message}", field=field)


def _make_prompt(codec: TokenCodec, request: ChatRequest, found: Found, thinking: Thinking) -> Prompt:
    if request.prompt is not None:
        return Prompt(codec.plain_prompt(request.prompt), None, 0, None)
    parent, reason = found.parent, found.fork_reason
    if parent is not None and reason is None:
        behind = Behind(parent.prompt(), parent.completion_ids, _in_stream(request.messages, found.position, parent))
        bridged = bridge(codec, behind, found.new_messages, request.tools, thinking)
        if not isinstance(bridged, str):
            return Prompt(bridged, parent, parent.stream_len, None)
        reason = bridged
    ids = codec.render(request.messages, request.tools)
    shared = shared_prefix(parent.stream(), ids) if parent is not None else 0
    return Prompt(ids, parent, shared, reason)


def _in_stream(messages: tuple[Message, ...], position: int, parent: Node) -> tuple[Message, ...]:
    """The conversation up to the parent's reply as its stream holds it.

    Replies are as they were sampled, back to where the stream was rendered in full; before that they are as the harness
    replayed them, which is what was rendered.
    """
    history = list(carried(messages)[:position])
    node: Node | None = parent
    for at in range(position - 1, -1, -1):
        if node is None or history[at].role != "assistant":
            continue
        if compare_echo(node.reply, history[at].parts) is not None:  # else an empty message that echoes nothing
            history[at] = replace(history[at], parts=_issued(node.reply, history[at].parts))
            exact = node.parent is not None and node.shared_len == node.parent.stream_len
            node = node.parent if exact else None
    return tuple(history)


def _issued(reply: tuple[ReplyPart, ...], echo: tuple[Part, ...]) -> tuple[Part, ...]:
    """The reply, with the ids that the harness calls its tool calls by."""
    ids = iter([part.id for part in echo if isinstance(part, ToolCallPart)])
    return tuple(replace(part, id=next(ids)) if isinstance(part, ToolCallPart) else part for part in reply)


def seed_of(tools_digest: bytes | None, tokenizer_hash: str | None, template_hash: str | None) -> bytes:
    """What a prompt is made of beside its messages: requests that differ in it never continue each other."""
    text = f"{(tools_digest or b'').hex()}:{tokenizer_hash}:{template_hash}"
    return hashlib.sha256(text.encode()).digest()[:16]
