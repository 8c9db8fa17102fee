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
from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import config_from_name
from transformers import AutoTokenizer

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import Message, TextPart, Tool
from dragoman.addons.template_messages import (
    system_first,
    template_messages,
    template_tools,
    with_argument_objects,
    with_argument_text,
)
from dragoman.addons.template_probes import (
    REFUSED,
    has_tools,
    read_grammar,
    read_stop_ids,
    read_tool_parser,
    read_turn_close,
    takes_broken_arguments,
    takes_later_system,
    wants_argument_text,
)
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
    broken_arguments: bool
    """Whether arguments that are no JSON object can be shown; if not, they are shown as one (``malformed``)."""
    later_system: bool
    """Whether a system message may come later than first; if not, it is shown as a user message."""
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
            broken_arguments=takes_broken_arguments(probe),
            later_system=takes_later_system(probe),
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
            ids = _render(self._renderer, self._placed(shown), template_tools(tools), add_generation_prompt=True)
        except REFUSED as error:
            raise _unsupported(error) from error
        return np.array(ids + beginning, dtype=np.int32)

    def render_text(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt for ``messages`` as text, special tokens and all. Raises ``Unsupported`` as ``render`` does."""
        shown, offered = self._placed(template_messages(messages)), template_tools(tools)
        try:
            if isinstance(self._renderer, _Template):
                return self._renderer.render_text(shown, offered, add_generation_prompt=add_generation_prompt)
            return self.decode(_render(self._renderer, shown, offered, add_generation_prompt=add_generation_prompt))
        except REFUSED as error:
            raise _unsupported(error) from error

    def _placed(self, shown: list[JsonObject]) -> list[JsonObject]:
        """``shown`` as this model's template takes it."""
        if not self.broken_arguments:
            shown = with_argument_objects(shown)
        return shown if self.later_system else system_first(shown)

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


class _Template:
    """The model's own chat template, with those methods of a hand-written renderer that are used here."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._argument_text = False
        self._argument_text = wants_argument_text(partial(_render, self))

    def render_ids(
        self, messages: list[JsonObject], *, tools: list[JsonObject] | None, add_generation_prompt: bool
    ) -> list[int]:
        ids = self._apply(
            messages, tools, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
        return list(ids)

    def render_text(self, messages: list[JsonObject], tools: list[JsonObject], *, add_generation_prompt: bool) -> str:
        return str(self._apply(messages, tools, add_generation_prompt=add_generation_prompt, tokenize=False))

    def get_stop_token_ids(self) -> list[int]:
        """The template itself knows of none."""
        return []

    def _apply(self, messages: list[JsonObject], tools: list[JsonObject] | None, **options: bool) -> Any:
        shown = with_argument_text(messages) if self._argument_text else messages
        return self._tokenizer.apply_chat_template(shown, tools=tools or None, **options)


def _create_renderer(tokenizer: Any, name: str) -> Any:
    if name == TEMPLATE:
        return _Template(tokenizer)
    if name in ("auto", "default"):
        raise ValueError(f"{name!r} is no renderer; use {TEMPLATE!r}")
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


def _unsupported(error: Exception) -> Unsupported:
    return Unsupported(f"the model's chat template refused the conversation: {error}", field="messages")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:16]
