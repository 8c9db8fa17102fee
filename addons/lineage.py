"""Which earlier call does a request continue: from messages to an exact parent, or a named fork.

Rules of this module: pure but for the episode's own memory of its calls. Nothing is looked up outside the episode. The
longest parent wins, over all calls and not only the last. An assistant message is the echo of a call when that call was
asked with exactly the messages before it; its tool-call ids, where it has any, must say so too. A request that replays
an assistant message which is no exact echo is a fork, and the reason is named.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dragoman.addons.canonical import carried, compare_echo, digest, echoed_call_ids
from dragoman.addons.messages import Message, ReplyPart
from dragoman.store.records import ForkReason, TokenIds

_CALL_ID = re.compile(r"[a-z0-9]{20}(?=_\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """One answered call of an episode, as later calls may continue it."""

    call_id: str
    key: bytes
    """The rolling hash of its request: seed, messages, and the calls that its assistant messages are echoes of."""
    seed: bytes
    """Tools, template and tokenizer: what else the prompt was made of."""
    system: bytes
    """Hash of its system messages."""
    reply: tuple[ReplyPart, ...]
    parent: "Node | None"
    shared_len: int
    """Tokens of the parent's stream that the prompt keeps."""
    prompt_ids: TokenIds
    """What the prompt adds to them."""
    completion_ids: TokenIds
    message_digests: tuple[bytes, ...]
    """Of every message of the request as it was sent, in order."""

    @property
    def stream_len(self) -> int:
        return self.shared_len + len(self.prompt_ids) + len(self.completion_ids)

    def stream(self) -> TokenIds:
        """Prompt and completion, shape (P + C,)."""
        return np.concatenate([self.prompt(), self.completion_ids])

    def prompt(self) -> TokenIds:
        """The full prompt, shape (P,)."""
        pieces: list[TokenIds] = []
        node: Node | None = self
        keep = None
        while node is not None:
            own = np.concatenate([node.prompt_ids, node.completion_ids]) if node is not self else node.prompt_ids
            pieces.append(own if keep is None else own[: max(0, keep - node.shared_len)])
            keep = node.shared_len if keep is None else min(keep, node.shared_len)
            node = node.parent if keep else None
        return np.concatenate(pieces[::-1])


@dataclass(frozen=True, slots=True)
class Found:
    """Where a request hangs in its episode."""

    key: bytes
    """The request's own rolling hash: equal for identical requests."""
    parent: Node | None
    """The call it continues, or the one it forks from; ``None``: it starts anew."""
    position: int
    """How many carried messages the parent covers, its reply included."""
    new_messages: tuple[Message, ...]
    """The carried messages behind them."""
    echo_changed: int
    """How many of the replayed replies came back changed, under the echo rules."""
    fork_reason: ForkReason | None
    """``None``: it starts anew without a parent, or continues the parent exactly as far as messages go."""


@dataclass(frozen=True, slots=True)
class _State:
    key: bytes
    parent: Node | None
    position: int
    changed: int


@dataclass(slots=True)
class EpisodeLineage:
    """The answered calls of one episode."""

    nodes: dict[str, Node] = field(default_factory=dict)
    _by_key: dict[bytes, list[Node]] = field(default_factory=lambda: defaultdict(list))

    def add(self, node: Node) -> None:
        """A call was answered; from now on it can be continued."""
        self.nodes[node.call_id] = node
        self._by_key[node.key].append(node)

    def adopt(self, other: "EpisodeLineage") -> None:
        """Calls of the same episode that ``other`` knows and this does not: another gateway answered them."""
        for node in other.nodes.values():
            if node.call_id not in self.nodes:
                self.add(node)

    def find(self, messages: tuple[Message, ...], seed: bytes) -> Found:
        """Find the longest exact parent of a request, else what it forks from and why."""
        said = carried(messages)
        best = self._walk(said, seed)
        rest = tuple(message for message in said[best.position :] if message.parts)
        if all(message.role != "assistant" for message in rest):
            return Found(best.key, best.parent, best.position, rest, best.changed, None)
        origin, reason = self._explain(said, best.position, seed)
        return Found(best.key, origin or best.parent, best.position, rest, best.changed, reason)

    def _walk(self, messages: Sequence[Message], seed: bytes) -> _State:
        """Follow the messages through the calls that they replay. Several calls may fit one echo: keep them all."""
        states = [_State(_roll(b"", seed), None, 0, 0)]
        for index, message in enumerate(messages):
            own = digest(message)
            if message.role != "assistant":
                states = [_State(_roll(s.key, own), s.parent, s.position, s.changed) for s in states]
                continue
            followed: list[_State] = []
            named = self._named(message)
            for state in states:
                for node in self._by_key.get(state.key, ()):
                    echo = compare_echo(node.reply, message.parts)
                    if echo is None or (named and node.call_id not in named):
                        continue
                    changed = state.changed + (echo == "changed")
                    followed.append(_State(_roll(state.key, node.call_id.encode()), node, index + 1, changed))
            # Words of an assistant that nobody here sampled: part of the request like any other message. No words are
            # the echo of an empty reply, or nothing.
            if followed or message.parts:
                states = followed or [_State(_roll(s.key, own), s.parent, s.position, s.changed) for s in states]
        return max(states, key=lambda state: state.position)

    def _named(self, message: Message) -> set[str]:
        """The call ids that stand in the message's tool-call ids, whether they are of this episode or not."""
        return {call_id for text in echoed_call_ids(message) for call_id in _CALL_ID.findall(text)}

    def _explain(self, said: Sequence[Message], position: int, seed: bytes) -> tuple[Node | None, ForkReason]:
        """Why the first assistant message behind the parent is no exact echo, and which call it comes from."""
        at = next(at for at in range(position, len(said)) if said[at].role == "assistant" and said[at].parts)
        named = self._named(said[at])
        ours = [self.nodes[call_id] for call_id in named if call_id in self.nodes]
        origin = ours[0] if ours else self._same_words(said[at]) if not named else None
        if origin is None:
            return None, "unknown_parent"
        if origin.seed != seed:
            return origin, "tools_changed"
        if origin.system != system_key(said[:at]):
            return origin, "system_changed"
        return origin, "history_edited"

    def _same_words(self, message: Message) -> Node | None:
        """The newest call with this reply, whatever it was asked."""
        return next((node for node in reversed(self.nodes.values()) if compare_echo(node.reply, message.parts)), None)


def system_key(messages: Sequence[Message]) -> bytes:
    """Hash of the system messages among ``messages``, in order."""
    return _roll(b"", *(digest(message) for message in messages if message.role == "system"))


def shared_prefix(one: TokenIds, other: TokenIds) -> int:
    """How many tokens two sequences begin with in common."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _roll(key: bytes, *values: bytes) -> bytes:
    hasher = hashlib.sha256(key)
    for value in values:
        hasher.update(len(value).to_bytes(4, "big") + value)
    return hasher.digest()[:16]
