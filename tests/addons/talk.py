"""An episode that is asked and answered by the gateway's own functions, without a gateway or an engine."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dragoman.addons.blobs import message_blob, tools_blob
from dragoman.addons.bridge import Thinking
from dragoman.addons.call import Call, answered
from dragoman.addons.engine import EngineInfo
from dragoman.addons.generation import Sampled
from dragoman.addons.lineage import EpisodeLineage, Node
from dragoman.addons.messages import (
    ChatRequest,
    Completion,
    Message,
    ReplyPart,
    Sampling,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.addons.prompt import make_prompt, seed_of
from dragoman.addons.providers.anthropic import ANTHROPIC
from dragoman.addons.reply import build_reply
from dragoman.addons.served import Served
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import CallArrival, CallInfo, PolicySpan, TokenIds
from dragoman.trainer.tiny_model import TEMPLATE

TOOLS = tuple(Tool(name, f"To {name}.", {"type": "object", "properties": {}}) for name in ("look", "touch"))
SYSTEM = Message("system", (TextPart("Be an agent."),))
END = "<|im_end|>"

OLD_REASONING_DROPPED = (
    "{% set asked = namespace(at=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set asked.at = loop.index0 %}{% endif %}{% endfor %}"
) + TEMPLATE.read_text().replace(
    "{%- if message.reasoning_content %}", "{%- if message.reasoning_content and loop.index0 > asked.at %}"
)
"""Our template with Qwen3's policy: reasoning goes once there is a new user message."""


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def results(reply: Message, *texts: str) -> Message:
    """A result for each call of ``reply``; ``ok`` where no text is given."""
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    said = [*texts, *["ok"] * (len(calls) - len(texts))]
    return Message("tool", tuple(ToolResultPart(c.id, (TextPart(t),)) for c, t in zip(calls, said, strict=True)))


def tool_call(name: str = "look", **arguments: str) -> str:
    """A call as the tiny model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def spelt(codec: TokenCodec, text: str) -> TokenIds:
    """The ids of ``text`` as no tokenizer would choose them: each character by itself, markers whole."""
    pieces = (piece if piece.startswith("<") else list(piece) for piece in re.split(r"(<[^<>\n]+>)", text))
    return np.concatenate(
        [codec.encode(one) for piece in pieces for one in ([piece] if isinstance(piece, str) else piece)]
    )


@dataclass(slots=True)
class Talk:
    """Every request sees all calls that were answered before it."""

    codec: TokenCodec
    thinking: Thinking = "template"
    lineage: EpisodeLineage = field(default_factory=EpisodeLineage)
    rows: list[CallInfo] = field(default_factory=list)
    """What the store would be given, in order."""
    episode_id: str = "e1"
    asked: int = 0

    def ask(
        self, messages: Sequence[Message], *, tools: tuple[Tool, ...] = TOOLS, lineage: EpisodeLineage | None = None
    ) -> Call:
        """``lineage``: where to look instead of this episode's own."""
        blobs = tools_blob(tools)
        seed = seed_of(blobs.digest if blobs else None, self.codec.tokenizer_hash, self.codec.template_hash)
        request = ChatRequest("anthropic", "m", tuple(messages), tools)
        found = (lineage or self.lineage).find(request.messages, seed)
        prompt = make_prompt(self.codec, request, found, self.thinking)
        self.asked += 1
        arrival = CallArrival(f"{self.asked:020d}", self.episode_id, "anthropic", "/v1/messages", float(self.asked))
        served = Served(EngineInfo("m", "m", 65536), self.codec, {})
        stored = tuple(message_blob(message) for message in request.messages)
        return Call(arrival, ANTHROPIC, request, served, stored, blobs, seed, found, prompt, Sampling())

    def answer(self, call: Call, sampled: str | TokenIds, *, stop: tuple[str, ...] = ()) -> Message:
        """What was sampled becomes the call's reply; returns it as a harness would replay it."""
        ids = self.codec.encode(sampled) if isinstance(sampled, str) else sampled
        ended = len(ids) > 0 and ids[-1] in self.codec.stop_ids
        completion = Completion(
            prompt_ids=call.prompt.ids,
            completion_ids=ids,
            logprobs=np.zeros(len(ids), dtype=np.float32),
            finish_reason="stop" if ended else "length",
            policy_spans=(PolicySpan("base", 0, len(ids)),),
        )
        stream = self.codec.text_stream(call.prompt.ids, call.request.tools, stop=stop)
        stream.feed([int(token) for token in ids])
        _, parsed, stopped_by = stream.finish()
        _, reply = build_reply(
            call_id=call.id,
            model="m",
            created=call.created,
            tool_call_prefix=call.provider.tool_call_prefix,
            parsed=parsed,
            completion=completion,
            stop_sequence=stopped_by,
            show_completion=False,
        )
        sample = Sampled(completion, parsed, stopped_by, call.arrival.arrived_at, None)
        self.lineage.add(call.node(sample, reply))
        self.rows.append(CallInfo(call.arrival, answered(call, sample, reply, call.arrival.arrived_at)))
        parts: tuple[ReplyPart, ...] = reply.parts
        return Message("assistant", parts)

    def turn(self, messages: Sequence[Message], sampled: str | TokenIds) -> tuple[Call, Message]:
        call = self.ask(messages)
        return call, self.answer(call, sampled)

    def node(self, call: Call) -> Node:
        return self.lineage.nodes[call.id]


def continues(call: Call, earlier: Node) -> bool:
    """Whether the prompt is the stream of ``earlier`` to the token, with something new behind it."""
    stream = earlier.stream()
    prompt = call.prompt
    exact = len(prompt.ids) > len(stream) and prompt.ids[: len(stream)].tolist() == stream.tolist()
    assert exact == (prompt.parent is earlier and prompt.shared_len == len(stream)) or prompt.parent is not earlier
    return exact and prompt.parent is earlier and prompt.fork_reason is None
