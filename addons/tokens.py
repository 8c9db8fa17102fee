"""Message ↔ token ids for the model being served.

The ``renderers`` package knows the templates of many model lines by hand; for any other model the chat template that
came with it is used (``template``). What was sampled is never encoded again: ids only ever become text here, and text
only ever becomes ids where a harness wrote it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import renderers
from jinja2.exceptions import TemplateError
from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import DefaultRendererConfig, config_from_name
from transformers import AutoTokenizer

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import Message, TextPart, Tool
from dragoman.addons.template_messages import template_messages, template_tools
from dragoman.addons.template_probes import has_tools, read_grammar, read_stop_ids, read_tool_parser, read_turn_close
from dragoman.addons.text_stream import Grammar, ParsedReply, TextStream
from dragoman.addons.tool_calls import ParsedCall, object_call
from dragoman.store.records import JsonObject, TokenIds

__all__ = ["ParsedCall", "ParsedReply", "TextStream", "TokenCodec"]

TEMPLATE = "template"
"""The renderer name that means: the model's own chat template, by Jinja."""
_STREAMED = {"qwen3": "qwen3"}
"""Renderers besides ``template`` whose format the stream's rules cover, and their tool parser."""


@dataclass(frozen=True, slots=True)
class TokenCodec:
    """Immutable; may be used from several threads."""

    model: str
    renderer_name: str
    """``template``, or the name of the hand-written renderer."""
    tool_parser: str | None
    """How tool calls are read (``qwen3``: each is a JSON object); ``None``: by the renderer, or the model has none."""
    tokenizer_hash: str
    """16 hex digits over the vocabulary: equal hashes mean that every id means the same."""
    template_hash: str
    """16 hex digits over the chat template and the renderer."""
    template_has_tools: bool
    """Whether a tool that is offered shows up in the prompt."""
    stop_ids: tuple[int, ...]
    """Every id that ends a turn: the end-of-sequence ids and the template's own turn close."""
    close_id: int | None
    """The id with which the template closes an assistant's turn; ``None``: it writes none."""
    streams: bool
    """Whether text is given out while it arrives; else only at the end, since just the renderer knows the format."""
    grammar: Grammar
    _tokenizer: Any
    _renderer: Any

    @classmethod
    def load(cls, model: str, *, renderer: str = "auto") -> "TokenCodec":
        """Load the tokenizer of ``model``, a folder or a name in the local model cache; nothing is downloaded.

        ``renderer``: a name of the ``renderers`` package, ``template``, or ``auto`` for what the package has for a
        model of exactly this name, else ``template``.

        Raises ``OSError`` when the files are not there, ``ValueError`` when they cannot be used (no chat template, a
        renderer that does not fit).
        """
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        name = MODEL_RENDERER_MAP.get(model, TEMPLATE) if renderer == "auto" else renderer
        if name == TEMPLATE and not tokenizer.chat_template:
            raise ValueError(f"model {model!r} has no chat template; choose a renderer for its model line by name")
        rendering = _create_renderer(tokenizer, name)
        probe = partial(_render, rendering)
        stop_ids = read_stop_ids(model, tokenizer, rendering.get_stop_token_ids(), probe)
        parser = read_tool_parser(tokenizer, probe) if name == TEMPLATE else _STREAMED.get(name)
        return cls(
            model=model,
            renderer_name=name,
            tool_parser=parser,
            tokenizer_hash=_hash(sorted(tokenizer.get_vocab().items())),
            template_hash=_hash([name, "" if name == TEMPLATE else renderers.__version__, tokenizer.chat_template]),
            template_has_tools=has_tools(tokenizer, probe),
            stop_ids=stop_ids,
            close_id=read_turn_close(tokenizer, probe),
            streams=name == TEMPLATE or name in _STREAMED,
            grammar=read_grammar(tokenizer, stop_ids, parser),
            _tokenizer=tokenizer,
            _renderer=rendering,
        )

    def render(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, continue_final: bool = False
    ) -> TokenIds:
        """The prompt for the next reply, shape (P,).

        ``continue_final``: the last message is the beginning of the reply, to be continued. Raises ``Unsupported`` when
        the model cannot be shown the conversation.
        """
        beginning: list[int] = []
        if continue_final:
            *earlier, last = messages
            if last.role != "assistant" or not all(isinstance(part, TextPart) for part in last.parts):
                raise Unsupported("only an assistant's text can be continued", field=f"messages[{len(earlier)}]")
            messages = tuple(earlier)
            beginning = self._encode(template_messages((last,))[0]["content"])
        shown = template_messages(messages)
        if not shown:
            raise InvalidRequest("there are no messages", field="messages")
        try:
            ids = _render(self._renderer, shown, template_tools(tools), add_generation_prompt=True)
        except TemplateError as error:
            raise Unsupported(
                f"the model's chat template refused the conversation: {error}", field="messages"
            ) from error
        return np.array(ids + beginning, dtype=np.int32)

    def render_text(self, shown: list[JsonObject], tools: list[JsonObject]) -> str:
        """The prompt for ``shown`` (as ``template_messages`` gives it) as text, special tokens and all.

        Raises jinja2's ``TemplateError`` when the chat template refuses it.
        """
        if self.renderer_name == TEMPLATE:
            text = self._tokenizer.apply_chat_template(
                shown, tools=tools or None, add_generation_prompt=True, tokenize=False
            )
            return str(text)
        return self.decode(_render(self._renderer, shown, tools, add_generation_prompt=True))

    def native_bridge(
        self, prompt_ids: TokenIds, completion_ids: TokenIds, shown: list[JsonObject], tools: list[JsonObject]
    ) -> TokenIds | None:
        """The next prompt by a hand-written renderer's own bridge; ``None``: it has none for these messages."""
        bridged = self._renderer.bridge_to_next_turn(
            prompt_ids.tolist(), completion_ids.tolist(), shown, tools=tools or None
        )
        return None if bridged is None else np.array(bridged.token_ids, dtype=np.int32)

    def thinking_is_open(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> bool:
        """Whether a completion ends inside reasoning."""
        think, end = self.grammar.think, self.grammar.think_end
        if think is None or end is None:
            return False
        ids = completion_ids.tolist()
        opened = think in ids or self.grammar.opens_reasoning(prompt_ids.tolist())
        return opened and end not in ids

    def plain_prompt(self, prompt: str | Sequence[int]) -> TokenIds:
        """A prompt without a conversation: text, or ids as they are. Raises ``InvalidRequest`` on an unknown id."""
        if isinstance(prompt, str):
            ids = self._encode(prompt)
        else:
            ids = list(prompt)
            for token in ids:
                if not 0 <= token < len(self._tokenizer):
                    raise InvalidRequest(f"{token!r} is no token id of this model", field="prompt")
        if not ids:
            raise InvalidRequest("the prompt is empty", field="prompt")
        return np.array(ids, dtype=np.int32)

    def encode(self, text: str) -> TokenIds:
        """Text that a harness or a test wrote, without anything around it; shape (n,)."""
        return np.array(self._encode(text), dtype=np.int32)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        """Text of ``ids``, special tokens shown."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def parse(
        self, prompt_ids: Sequence[int] | TokenIds, completion_ids: Sequence[int] | TokenIds, tools: tuple[Tool, ...]
    ) -> ParsedReply:
        """What a completion says. The same as feeding it to ``text_stream`` in any pieces."""
        stream = self.text_stream(prompt_ids, tools, stop=())
        stream.feed([int(token) for token in completion_ids])
        return stream.finish()[1]

    def text_stream(
        self,
        prompt_ids: Sequence[int] | TokenIds,
        tools: tuple[Tool, ...],
        *,
        stop: tuple[str, ...],
        plain: bool = False,
    ) -> TextStream:
        """A stream for the reply to ``prompt_ids``. ``plain``: all of it is text (legacy completions)."""
        prompt = [int(token) for token in prompt_ids]
        if plain:
            return TextStream(replace(self.grammar, think=None, think_end=None, tool=None), prompt, stop=stop)
        offered = template_tools(tools)
        whole = None if self.streams else partial(self._parse_whole, prompt, offered)
        return TextStream(self.grammar, prompt, tools=offered, stop=stop, parse_whole=whole)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _parse_whole(self, prompt_ids: list[int], tools: list[JsonObject], ids: Sequence[int]) -> ParsedReply:
        parsed = self._renderer.parse_response(list(ids), tools=tools or None, prompt_ids=prompt_ids)
        calls = tuple(object_call(call.name, call.arguments, call.raw, str(call.status)) for call in parsed.tool_calls)
        return ParsedReply(parsed.reasoning_content or None, parsed.content or "", calls)


def _create_renderer(tokenizer: Any, name: str) -> Any:
    if name == TEMPLATE:
        config: Any = DefaultRendererConfig()
    elif name in ("auto", "default"):
        raise ValueError(f"{name!r} is no renderer; use {TEMPLATE!r}")
    else:
        config = config_from_name(name)  # a ValueError lists the names
    try:
        return renderers.create_renderer(tokenizer, config)
    except Exception as error:  # a renderer that misses its tokens or files fails in its own way
        raise ValueError(f"renderer {name!r} does not fit this model: {error!r}") from error


def _render(
    renderer: Any, messages: list[JsonObject], tools: list[JsonObject] | None = None, *, add_generation_prompt: bool
) -> list[int]:
    ids = renderer.render_ids(messages, tools=tools or None, add_generation_prompt=add_generation_prompt)
    return [int(token) for token in ids]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:16]
