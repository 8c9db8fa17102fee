"""The exact prompt of a request, from where it hangs in its episode. Pure, but for the tokenizer's work."""

import hashlib
from dataclasses import dataclass

from dragoman.addons.bridge import Behind, Thinking, bridge
from dragoman.addons.lineage import Found, Node, shared_prefix
from dragoman.addons.messages import ChatRequest, ReasoningPart
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import ForkReason, TokenIds


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: TokenIds
    """All of it, shape (P,)."""
    parent: Node | None
    shared_len: int
    """How many tokens of the parent's stream ``ids`` begins with; all of them when the parent is continued exactly."""
    fork_reason: ForkReason | None
    has_reasoning: bool
    """Whether reasoning of an earlier reply is part of it."""

    @property
    def own_ids(self) -> TokenIds:
        """What it adds to the parent's stream, shape (P - shared_len,)."""
        return self.ids[self.shared_len :]


def make_prompt(codec: TokenCodec, request: ChatRequest, found: Found, thinking: Thinking) -> Prompt:
    """Continue the parent exactly where that is possible, else render in full and say why.

    Raises ``Unsupported`` or ``InvalidRequest`` when the model cannot be shown the conversation.
    """
    if request.prompt is not None:
        return Prompt(codec.plain_prompt(request.prompt), None, 0, None, has_reasoning=False)
    parent, reason = found.parent, found.fork_reason
    if parent is not None and reason is None:
        behind = Behind(parent.prompt(), parent.completion_ids, parent.reply, parent.has_reasoning)
        bridged = bridge(codec, behind, found.new_messages, request.tools, thinking)
        if not isinstance(bridged, str):
            return Prompt(bridged, parent, parent.stream_len, None, parent.has_reasoning)
        reason = bridged
    ids = codec.render(request.messages, request.tools)
    shared = shared_prefix(parent.stream(), ids) if parent is not None else 0
    replayed = any(isinstance(part, ReasoningPart) for message in request.messages for part in message.parts)
    return Prompt(ids, parent, shared, reason, has_reasoning=replayed)


def seed_of(tools_digest: bytes | None, tokenizer_hash: str | None, template_hash: str | None) -> bytes:
    """What a prompt is made of beside its messages: requests that differ in it never continue each other."""
    text = f"{(tools_digest or b'').hex()}:{tokenizer_hash}:{template_hash}"
    return hashlib.sha256(text.encode()).digest()[:16]
