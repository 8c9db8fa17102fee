"""What a chat template and a tokenizer do, found by trying: once per model, when it is loaded.

Nothing here is assumed of a model line. A template is rendered with a made-up conversation, and what comes out is
looked at.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from jinja2.exceptions import TemplateError
from renderers.parsers import TOOL_PARSERS, get_tool_parser
from renderers.parsing import parse_qwen35
from transformers.utils.hub import cached_file

from dragoman.addons.text_stream import Grammar
from dragoman.addons.tool_calls import ParsedCall, json_call, object_call
from dragoman.store.records import JsonObject

_TOOL_START = {
    "qwen3": "<tool_call>",
    "qwen3.5": "<tool_call>",
    "glm": "<tool_call>",
    "deepseek-v3": "<\uff5ctool\u2581calls\u2581begin\uff5c>",
}
"""The token that opens the first call, for each tool parser of the ``renderers`` package."""

REFUSED = (TemplateError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""What a chat template or a hand-written renderer raises for a conversation that it cannot show: some say so
(``raise_exception``), in others a string and an object just do not add up."""


class Render(Protocol):
    def __call__(
        self, messages: list[JsonObject], tools: list[JsonObject] | None = None, *, add_generation_prompt: bool
    ) -> list[int]: ...


_USER: JsonObject = {"role": "user", "content": "A question."}


def has_tools(tokenizer: Any, render: Render) -> bool:
    """Offer a tool with a name that occurs nowhere else, and look for it in the prompt."""
    name = "probe_zq7"
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}
    try:
        return name in tokenizer.decode(render([_USER], [tool], add_generation_prompt=True))
    except REFUSED:
        return False


def wants_argument_text(render: Render) -> bool:
    """Whether the template takes a call's arguments as JSON text only, not as an object (DeepSeek's)."""
    for arguments in ({"path": "a.txt"}, '{"path": "a.txt"}'):
        call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        try:
            render([_USER, {"role": "assistant", "content": "", "tool_calls": [call]}], add_generation_prompt=False)
        except REFUSED:
            continue
        return isinstance(arguments, str)
    return False


def takes_broken_arguments(render: Render) -> bool:
    """Whether a call can be shown whose arguments are a text that is no JSON (the templates with XML calls refuse)."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": '}}
    try:
        render([_USER, {"role": "assistant", "content": "", "tool_calls": [call]}], add_generation_prompt=False)
    except REFUSED:
        return False
    return True


def takes_later_system(render: Render) -> bool:
    """Whether a system message may stand behind others (Qwen3.5's template refuses one)."""
    system: JsonObject = {"role": "system", "content": "A rule."}
    try:
        render([system, system, _USER, {"role": "assistant", "content": "Yes."}, system], add_generation_prompt=True)
    except REFUSED:
        return False
    return True


def read_tool_parser(tokenizer: Any, render: Render) -> str | None:
    """The parser that reads back a call as the template writes it; else by the marker alone; else ``None``."""
    arguments = {"path": "a.txt"}
    call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    try:
        ids = render([_USER, {"role": "assistant", "content": "", "tool_calls": [call]}], add_generation_prompt=False)
    except REFUSED:
        ids = []
    for name in TOOL_PARSERS:
        calls = get_tool_parser(name, tokenizer).extract(ids)[1]
        if [(found.name, found.arguments) for found in calls] == [("read_file", arguments)]:
            return str(name)
    return "qwen3" if _single_id(tokenizer, "<tool_call>") is not None else None


def read_stop_ids(model: str, tokenizer: Any, known: Iterable[int], render: Render) -> tuple[int, ...]:
    """The tokenizer's, the renderer's and the generation config's end ids, and the close that the template writes."""
    stop = set(known)
    if tokenizer.eos_token_id is not None:
        stop.add(tokenizer.eos_token_id)
    path = cached_file(
        model, "generation_config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False
    )
    if path is not None:
        configured = json.loads(Path(path).read_text()).get("eos_token_id")
        stop.update(configured if isinstance(configured, list) else [configured] if configured is not None else [])
    close = read_turn_close(tokenizer, render)
    if close is not None:
        stop.add(close)
    if not stop:
        raise ValueError(f"model {model!r} has no token that ends a turn: no eos token, and its template writes none")
    return tuple(sorted(int(token) for token in stop))


def read_turn_close(tokenizer: Any, render: Render) -> int | None:
    """The first added token behind an assistant's text, as the template writes it; ``None``: there is none.

    It is not always the end-of-sequence token, and then a model that follows its template never seems to stop.
    """
    text = "An answer zq7"
    try:
        ids = render([_USER, {"role": "assistant", "content": text}], add_generation_prompt=False)
    except REFUSED:
        return None
    added = set(tokenizer.added_tokens_decoder)
    close = None
    for at in range(len(ids) - 1, -1, -1):
        if ids[at] in added:
            if tokenizer.decode(ids[:at]).rstrip().endswith(text):
                close = ids[at]
        elif tokenizer.decode([ids[at]]).strip():
            break
    return close


def read_grammar(tokenizer: Any, stop_ids: tuple[int, ...], parser_name: str | None) -> Grammar:
    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    think, think_end = _single_id(tokenizer, "<think>"), _single_id(tokenizer, "</think>")
    return Grammar(
        decode=decode,
        stop_ids=frozenset(stop_ids),
        think=think if think_end is not None else None,
        think_end=think_end if think is not None else None,
        tool=None if parser_name is None else _single_id(tokenizer, _TOOL_START[parser_name]),
        read_calls=partial(read_calls, tokenizer, parser_name),
    )


def read_calls(
    tokenizer: Any, parser_name: str | None, ids: Sequence[int], tools: list[JsonObject]
) -> tuple[ParsedCall, ...]:
    """The calls in ids that begin with the first call's marker, in the format of ``parser_name``."""
    if parser_name is None:
        return ()
    if parser_name == "qwen3":
        calls = get_tool_parser(parser_name, tokenizer).extract(list(ids))[1]
        return tuple(json_call(call.raw, str(call.status)) for call in calls)
    if parser_name == "qwen3.5":
        # this format writes values without quotes: only the tools say which of them are strings
        calls = parse_qwen35(
            tokenizer,
            list(ids),
            stop_ids=set(),
            think_id=-1,
            think_end_id=-1,
            tool_call_id=_single_id(tokenizer, "<tool_call>"),
            tool_call_end_id=_single_id(tokenizer, "</tool_call>"),
            tools=tools,
        ).tool_calls
    else:
        calls = get_tool_parser(parser_name, tokenizer).extract(list(ids))[1]
    return tuple(object_call(call.name, call.arguments, call.raw, str(call.status)) for call in calls)


def _single_id(tokenizer: Any, text: str) -> int | None:
    """The id of a token with exactly this text, or ``None``."""
    token = tokenizer.get_vocab().get(text)
    return None if token is None else int(token)
