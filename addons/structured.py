"""What a reply is held to by the engine: forced tool calls, at most one call, no call, JSON of a schema. Pure.

Rules of this module:

- A call is forced in the model's own form, and its markers as their single ids: a grammar of text would let the model
  spell a marker in several tokens, which no parser takes for one.
- It is always a structural tag, since the engine reads those by xgrammar alone. Given a bare schema that xgrammar does
  not take, vLLM falls back to another library, and then keeps that one for every later request.
- A model that thinks may think first. Reasoning is free, but it cannot open a call or end the reply, and takes at most
  half of the tokens, so that what was forced comes.
- "At most one call" is no grammar: the end of the first call ends the reply. So all tokens were sampled freely, and the
  call can be trained on.
- What cannot be enforced is refused. The one exception is "at most one call" with a model whose calls have no known
  form: Codex asks for it with every request, and every harness runs several calls when it gets them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.addons.call_form import BEGIN, END, CallForm, read_call_form
from dragoman.addons.enforced_schema import enforced_schema
from dragoman.addons.errors import DragomanError, InvalidRequest, Unsupported
from dragoman.addons.messages import ChatRequest, Message, ResponseFormat, Sampling, TextPart, Tool, ToolChoice
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import JsonObject, ProviderName, TokenIds

_FORMAT_FIELD: dict[ProviderName, str] = {
    "anthropic": "output_config.format.schema",
    "openai_chat": "response_format.json_schema.schema",
    "openai_responses": "text.format.schema",
    "google": "generationConfig.responseJsonSchema",
}
_CHOICE_FIELD: dict[ProviderName, str] = {
    "anthropic": "tool_choice",
    "openai_chat": "tool_choice",
    "openai_responses": "tool_choice",
    "google": "toolConfig.functionCallingConfig.mode",
}
_SPACE: JsonObject = {"type": "regex", "pattern": r"[ \n\r\t]{0,8}"}
_MOST_SPACE = 1
"""Characters of white space between two marks of JSON. More would be legal, and at temperature 1 a model that has begun
to indent may spend the whole reply on it; one is the space behind ``:`` and ``,`` that models write, or the line break
around a parameter in XML. (xgrammar takes no 0.)"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one reply is held to."""

    structured: JsonObject | None = None
    """The engine's ``structured_outputs``; ``None``: every token is sampled freely."""
    field: str | None = None
    """The request field that ``structured`` enforces."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end the reply and are part of it."""
    calls: bool = True
    """Whether the reply may hold tool calls; if not, a marker in it is text."""
    unenforced: str | None = None
    """What was asked for and is not enforced."""

    def named(self, error: DragomanError) -> DragomanError:
        """The error to show for one of the engine's: what it refuses of the grammar is about a field."""
        if self.structured is None or type(error) is not InvalidRequest:
            return error
        return InvalidRequest(f"{self.field}: {error.message}", field=self.field)


FREE = Limits()
SUMMARY = Limits(calls=False)
"""The tools stay in the prompt of a compaction, so that the conversation goes on exactly. What looks like a call is a
part of the summary: masking it would make the call one that cannot be trained on."""


def read_limits(request: ChatRequest, codec: TokenCodec, prompt_ids: TokenIds, sampling: Sampling) -> Limits:
    """What the reply to ``prompt_ids`` is held to; ``sampling`` is the one that is used.

    Raises ``Unsupported`` when the request forces what cannot be enforced with this model, ``InvalidRequest`` when a
    schema is none; each names the field.
    """
    if request.details.compaction is not None:
        return SUMMARY
    tools = request.tools
    choice = request.tool_choice if tools else ToolChoice()
    format_field, choice_field = _FORMAT_FIELD[request.provider], _CHOICE_FIELD[request.provider]
    may_call = bool(tools) and choice.mode != "none"
    if request.response_format is None and choice.mode == "none":
        return _without_calls(codec, choice_field)
    if request.response_format is None and choice.mode == "auto" and (choice.parallel or not tools):
        return FREE
    form = read_call_form(codec) if may_call else None
    if request.response_format is None and choice.mode == "auto":
        if form is None:
            return Limits(unenforced=f"at most one tool call, as the calls of {codec.model!r} have no known form")
        return Limits(stop_ids=(form.end,))
    field = choice_field if choice.mode == "required" else format_field
    if may_call and form is None:
        raise Unsupported(
            f"{field}: tool calls cannot be enforced with renderer {codec.renderer_name!r}, as the form in which the "
            f"model {codec.model!r} writes them is not known",
            field=field,
        )
    thinking = [] if request.prompt is not None else _reasoning(codec, prompt_ids.tolist(), sampling, field)
    if choice.mode == "required" and form is not None:
        called = [tool for tool in tools if choice.name in (None, tool.name)]
        body = _calls(form, called, several=choice.parallel and choice.name is None)
        return Limits(_tag(_sequence(*thinking, body)), choice_field)
    assert request.response_format is not None
    body = _json(request.response_format, format_field, form)
    if form is not None:
        body = _either(body, _calls(form, tools, several=choice.parallel))
    return Limits(_tag(_sequence(*thinking, body)), format_field, calls=form is not None)


def reading(codec: TokenCodec, limits: Limits) -> TokenCodec:
    """The codec by which to read a reply that is held to ``limits``."""
    if limits.calls or codec.grammar.tool is None:
        return codec
    return replace(codec, grammar=replace(codec.grammar, tool=None))


def _without_calls(codec: TokenCodec, field: str) -> Limits:
    """The tools stay in the prompt, so that the conversation goes on exactly; the token that opens a call is masked."""
    if codec.grammar.tool is not None:
        return Limits(_tag({"type": "any_tokens", "exclude_tokens": [codec.grammar.tool]}), field)
    if codec.streams:
        return FREE  # a model without calls
    form = read_call_form(codec)
    if form is None:
        raise Unsupported(
            f"{field}: renderer {codec.renderer_name!r} has no known token that opens a tool call, so none can be "
            "forbidden; leave the tools out",
            field=field,
        )
    return Limits(_tag({"type": "any_tokens", "exclude_tokens": [form.begin]}), field)


def _reasoning(codec: TokenCodec, prompt_ids: list[int], sampling: Sampling, field: str) -> list[JsonObject]:
    """What may, or must, come before the forced part."""
    grammar = codec.grammar
    if grammar.think is None or grammar.think_end is None:
        if not codec.streams and not _replies_plainly(codec):
            raise Unsupported(
                f"{field}: nothing can be enforced with renderer {codec.renderer_name!r}, as it is not known how a "
                "reply of this model begins",
                field=field,
            )
        return []
    kept_out = {grammar.think, grammar.think_end, *grammar.stop_ids}
    if grammar.tool is not None:
        kept_out.add(grammar.tool)
    most = max(1, (sampling.max_tokens or 0) // 2)
    thought: JsonObject = {"type": "any_tokens", "exclude_tokens": sorted(kept_out), "max_tokens": most}
    if grammar.opens_reasoning(prompt_ids):
        return [thought, _token(grammar.think_end), _SPACE]
    block = _sequence(_token(grammar.think), thought, _token(grammar.think_end), _SPACE)
    return [{"type": "optional", "content": block}]


def _calls(form: CallForm, tools: Sequence[Tool], *, several: bool) -> JsonObject:
    one = _either(*(_call(form, tool) for tool in tools))
    if not several:
        return one
    return _sequence(one, {"type": "star", "content": _sequence(_text(form.between), one)})


def _call(form: CallForm, tool: Tool) -> JsonObject:
    # Arguments that break a rule are the harness's to refuse, as it does with calls that are not forced.
    schema = enforced_schema(tool.parameters, f"tools[{tool.name!r}]", bounded_strings=False, lenient=True)
    name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if form.style == "json" else tool.name
    return _sequence(
        _token(form.begin),
        _text(f"{form.before}{name}{form.middle}"),
        _value(schema or {"type": "object"}, kept_out=END, style="json" if form.style == "json" else "qwen_xml"),
        _text(form.after),
        _token(form.end),
    )


def _json(asked: ResponseFormat, field: str, form: CallForm | None) -> JsonObject:
    """``form``: that of the calls which the reply may hold instead; its marker is then no part of a string."""
    if asked.schema is None:
        schema: JsonObject = {"type": "object"}
    else:
        schema = enforced_schema(asked.schema, field, bounded_strings=form is None)
    return _value(schema, kept_out=None if form is None else BEGIN)


def _value(schema: JsonObject, *, kept_out: str | None, style: str = "json") -> JsonObject:
    """``kept_out``: text that no string may hold; the engine then takes no other limits of strings."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "max_whitespace_cnt": _MOST_SPACE,
        "excludes": [] if kept_out is None else [kept_out],
    }


def _token(token: int) -> JsonObject:
    return {"type": "token", "token": token}


def _text(text: str) -> JsonObject | None:
    return {"type": "const_string", "value": text} if text else None


def _sequence(*parts: JsonObject | None) -> JsonObject:
    elements = [part for part in parts if part is not None]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _either(*parts: JsonObject) -> JsonObject:
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": list(parts)}


def _tag(body: JsonObject) -> JsonObject:
    tag = {"type": "structural_tag", "format": body}
    return {"structural_tag": json.dumps(tag, ensure_ascii=False)}


def _replies_plainly(codec: TokenCodec) -> bool:
    """Whether the template puts a reply's text right behind the generation prompt."""
    user, reply = Message("user", (TextPart("A question."),)), "An answer zq7"
    prompt = codec.decode(codec.render((user,), ()))
    whole = codec.decode(codec.render((user, Message("assistant", (TextPart(reply),)), user), ()))
    return whole.startswith(prompt + reply)
