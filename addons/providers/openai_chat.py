"""The OpenAI Chat Completions dialect, with legacy completions, vLLM's extra knobs and OpenRouter's paths.

Rules of this module: errors name fields as OpenAI does (``messages[0].content[1]``). What is read and what is not:

- Ignored, since it changes nothing that the model is shown: a message's ``name``, an image's ``detail``, a tool's
  ``strict``, ``reasoning_details`` (OpenRouter's second copy of the reasoning), ``reasoning_effort``, ``reasoning``,
  ``verbosity``, ``prediction``, ``store``, ``metadata``, ``user``, ``service_tier``, ``prompt_cache_key``,
  ``safety_identifier``, ``logit_bias``, OpenRouter's ``provider``, ``transforms`` and ``usage``.
- Reasoning is read from ``reasoning_content`` or ``reasoning`` and is sent as ``reasoning_content``, which pi, qwen
  and opencode read.
- An empty text says nothing and makes no part.
- ``n`` and ``best_of`` above 1, and lists of prompts, are refused: one call is one sample.
- ``logprobs`` show the sampled token of every position, reasoning and tool calls included; alternatives
  (``top_logprobs`` above 0) are refused. The token's text is not known here, so ``token`` is ``token_id:<id>``, as
  vLLM writes it too, and ``bytes`` is null. A stream has all of them in the chunk with the finish reason.
- ``return_token_ids`` (vLLM's) adds ``prompt_token_ids`` to the reply and ``token_ids`` to its choice; a stream has
  both in the chunk with the finish reason. Nobody else gets ids.
"""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from dragoman.addons.errors import DragomanError, InvalidRequest, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
    Completion,
    ImagePart,
    Message,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyStarted,
    ResponseFormat,
    Sampling,
    TextDelta,
    TextPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    Usage,
)
from dragoman.addons.providers.base import ReplyEncoder, Route, to_dragoman_error
from dragoman.addons.providers.fields import (
    as_flag,
    as_int,
    as_list,
    as_name,
    as_number,
    as_object,
    as_schema,
    as_text,
    shown,
    wrong,
)
from dragoman.addons.providers.openai_errors import REQUEST_ID_HEADER, error_object, error_status
from dragoman.addons.sse import encode_event
from dragoman.store.records import JsonObject, ProviderName

# OpenRouter puts /api before the version.
_PATH = re.compile(r"(?:/api)?/v1/(?:(chat/completions|completions)|models(?:/(.+))?)")
_DONE = encode_event(b"[DONE]")
# Content and constraints that cannot be honoured: to leave them out in silence would change what the model does.
_REFUSED = (
    *("functions", "function_call", "web_search_options", "plugins", "audio", "suffix"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("chat_template", "chat_template_kwargs", "documents", "continue_final_message"),
)


class OpenAIChat:
    name: ProviderName = "openai_chat"
    hosts: tuple[str, ...] = ("api.openai.com", "openrouter.ai")
    tool_call_prefix: str = "call_"
    request_id_header: str | None = REQUEST_ID_HEADER

    def route(self, method: str, path: str) -> Route | None:
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        if match[1]:
            variant = "chat" if match[1] == "chat/completions" else "completions"
            return Route("generate", variant=variant) if method == "POST" else None
        if method != "GET":
            return None
        return Route("model", model=unquote(match[2])) if match[2] else Route("models")

    def previous(self, body: JsonObject) -> str | None:
        return None

    def parse_request(self, body: JsonObject, route: Route) -> ChatRequest:
        for field in _REFUSED:
            if body.get(field):
                raise Unsupported(f"{field}: {shown(body[field])} is not supported", field=field)
        for field in ("n", "best_of"):
            if as_int(body.get(field), field, low=1) not in (None, 1):
                raise InvalidRequest(f"{field}: one request gives one sample; send several requests", field=field)
        if route.variant == "completions":
            return self._parse_completions(body)
        tools = _tools(body.get("tools"))
        return ChatRequest(
            provider=self.name,
            model=as_name(body.get("model"), "model"),
            messages=_messages(body.get("messages")),
            tools=tools,
            tool_choice=_tool_choice(body, tools),
            response_format=_response_format(body.get("response_format")),
            sampling=_sampling(body),
            stream=as_flag(body.get("stream"), "stream"),
            include_usage=_include_usage(body),
            top_logprobs=_top_logprobs(body),
            return_token_ids=as_flag(body.get("return_token_ids"), "return_token_ids"),
        )

    def _parse_completions(self, body: JsonObject) -> ChatRequest:
        if as_flag(body.get("echo"), "echo"):
            raise Unsupported("echo: the prompt cannot be part of the reply", field="echo")
        asked = as_int(body.get("logprobs"), "logprobs", low=0)
        return ChatRequest(
            provider=self.name,
            model=as_name(body.get("model"), "model"),
            messages=(),
            response_format=_response_format(body.get("response_format")),
            sampling=_sampling(body),
            stream=as_flag(body.get("stream"), "stream"),
            include_usage=_include_usage(body),
            top_logprobs=_no_alternatives(asked, "logprobs"),
            return_token_ids=as_flag(body.get("return_token_ids"), "return_token_ids"),
            prompt=_prompt(body.get("prompt")),
        )

    def render_reply(self, reply: Reply, request: ChatRequest) -> JsonObject:
        if request.prompt is None:
            choice: JsonObject = {"index": 0, "message": _message_of(reply)}
        else:
            choice = {"index": 0, "text": _legacy_text(reply)}
        choice |= _ending(reply, request)
        return {
            **_head(reply, request, chunk=False),
            "choices": [choice],
            "usage": _usage(reply.usage),
            **_prompt_ids(reply, request),
        }

    def encoder(self, request: ChatRequest) -> ReplyEncoder:
        return _Encoder(self, request)

    def render_count(self, prompt_tokens: int) -> JsonObject:
        """The dialect has no route that counts; this is the field of its usage object."""
        return {"prompt_tokens": prompt_tokens}

    def render_models(self, models: Sequence[str], created: int) -> JsonObject:
        return {"object": "list", "data": [self.render_model(model, created) for model in models]}

    def render_model(self, model: str, created: int) -> JsonObject:
        return {"id": model, "object": "model", "created": created, "owned_by": "dragoman"}

    def error_body(self, error: DragomanError, call_id: str | None) -> JsonObject:
        return {"error": error_object(error)}

    def error_status(self, error: DragomanError) -> int:
        return error_status(error)


OPENAI_CHAT = OpenAIChat()

# -- the request -----------------------------------------------------------------------------------------------------


def _messages(value: object) -> tuple[Message, ...]:
    messages = as_list(value, "messages")
    if not messages:
        raise InvalidRequest("messages: at least one message is required", field="messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _message(value: object, at: str) -> Message:
    message = as_object(value, at)
    content, place = message.get("content"), f"{at}.content"
    match message.get("role"):
        case "system" | "developer":
            return Message("system", _text_parts(content, place))
        case "user":
            return Message("user", _shown_parts(content, place))
        case "assistant":
            return _assistant(message, at)
        case "tool":
            call_id = as_name(message.get("tool_call_id"), f"{at}.tool_call_id")
            return Message("tool", (ToolResultPart(call_id, _shown_parts(content, place)),))
        case "function":
            raise Unsupported(f"{at}.role: 'function' is not supported; use 'tool'", field=f"{at}.role")
        case role:
            raise wrong(f"{at}.role", "'system', 'developer', 'user', 'assistant' or 'tool'", role)


def _assistant(message: JsonObject, at: str) -> Message:
    if message.get("function_call") is not None or message.get("audio") is not None:
        field = "audio" if message.get("function_call") is None else "function_call"
        raise Unsupported(f"{at}.{field}: not supported", field=f"{at}.{field}")
    content = message.get("content")
    refusal = message.get("refusal")
    calls = message.get("tool_calls")
    texts = () if content is None else _text_parts(content, f"{at}.content")
    refusals = () if refusal is None else _text_parts(refusal, f"{at}.refusal")
    places = [] if calls is None else as_list(calls, f"{at}.tool_calls")
    tool_calls = [_tool_call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(places)]
    return Message("assistant", (*_reasoning(message, at), *texts, *refusals, *tool_calls))


def _reasoning(message: JsonObject, at: str) -> tuple[ReasoningPart, ...]:
    said = []
    for field in ("reasoning_content", "reasoning"):
        if message.get(field) is not None and (text := as_text(message[field], f"{at}.{field}")):
            said.append(text)
    if len(set(said)) > 1:
        raise InvalidRequest(f"{at}: reasoning_content and reasoning differ; send one of them", field=at)
    return (ReasoningPart(said[0]),) if said else ()


def _tool_call(value: object, at: str) -> ToolCallPart:
    call = as_object(value, at)
    if call.get("type", "function") != "function":  # without a type it can be nothing else
        raise Unsupported(f"{at}.type: calls of type {shown(call['type'])} are not supported", field=f"{at}.type")
    function = as_object(call.get("function"), f"{at}.function")
    return ToolCallPart(
        id=as_name(call.get("id"), f"{at}.id"),
        name=as_name(function.get("name"), f"{at}.function.name"),
        arguments=as_text(function.get("arguments"), f"{at}.function.arguments"),
    )


def _blocks(content: object, at: str) -> list[tuple[JsonObject, str]]:
    """The content parts, each with its path; a plain string is one text part."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, at)]
    if not isinstance(content, list):
        raise wrong(at, "a string or an array of content parts", content)
    return [(as_object(part, f"{at}[{i}]"), f"{at}[{i}]") for i, part in enumerate(content)]


def _text_parts(content: object, at: str) -> tuple[TextPart, ...]:
    """Texts of a system or an assistant message. A refusal is a text too."""
    parts = []
    for part, place in _blocks(content, at):
        kind = part.get("type")
        if kind not in ("text", "refusal"):
            raise Unsupported(f"{place}: only text can stand here, not {shown(kind)}", field=place)
        parts.append(TextPart(as_text(part.get(kind), f"{place}.{kind}")))
    return tuple(part for part in parts if part.text)


def _shown_parts(content: object, at: str) -> tuple[TextPart | ImagePart, ...]:
    """Texts and images of a user message or a tool result."""
    parts: list[TextPart | ImagePart] = []
    for part, place in _blocks(content, at):
        match part.get("type"):
            case "text":
                if text := as_text(part.get("text"), f"{place}.text"):
                    parts.append(TextPart(text))
            case "image_url":
                image = as_object(part.get("image_url"), f"{place}.image_url")
                parts.append(image_part(as_name(image.get("url"), f"{place}.image_url.url"), place))
            case kind:
                raise Unsupported(f"{place}: content of type {shown(kind)} is not supported here", field=place)
    return tuple(parts)


def image_part(url: str, at: str) -> ImagePart:
    """The image at a URL, or in a data URL."""
    if not url.startswith("data:"):
        return ImagePart(None, None, url)
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidRequest(f"{at}: a data URL must hold base64 ('data:image/png;base64,…')", field=at)
    return ImagePart(head.removeprefix("data:").partition(";")[0] or None, data)


def _tools(value: object) -> tuple[Tool, ...]:
    tools = []
    for i, item in enumerate([] if value is None else as_list(value, "tools")):
        at = f"tools[{i}]"
        tool = as_object(item, at)
        if tool.get("type") != "function":
            raise Unsupported(f"{at}.type: only 'function' is supported, not {shown(tool.get('type'))}", field=at)
        function = as_object(tool.get("function"), f"{at}.function")
        description, parameters = function.get("description"), function.get("parameters")
        tools.append(
            Tool(
                name=as_name(function.get("name"), f"{at}.function.name"),
                description="" if description is None else as_text(description, f"{at}.function.description"),
                # "Omitting parameters defines a function with an empty parameter list."
                parameters={"type": "object", "properties": {}}
                if parameters is None
                else as_schema(parameters, f"{at}.function.parameters"),
            )
        )
    return tuple(tools)


def _tool_choice(body: JsonObject, tools: tuple[Tool, ...]) -> ToolChoice:
    parallel = as_flag(body.get("parallel_tool_calls"), "parallel_tool_calls", default=True)
    choice = body.get("tool_choice")
    match choice:
        case None | "auto":
            return ToolChoice("auto", parallel=parallel)
        case "none":
            return ToolChoice("none", parallel=parallel)
        case "required":
            if not tools:
                raise InvalidRequest("tool_choice: 'required' needs tools", field="tool_choice")
            return ToolChoice("required", parallel=parallel)
        case {"type": "function"}:
            function = as_object(choice.get("function"), "tool_choice.function")
            name = as_name(function.get("name"), "tool_choice.function.name")
            if all(tool.name != name for tool in tools):
                raise InvalidRequest(f"tool_choice: no tool is named {shown(name)}", field="tool_choice")
            return ToolChoice("required", name, parallel=parallel)
        case {"type": kind}:
            raise Unsupported(f"tool_choice.type: {shown(kind)} is not supported", field="tool_choice.type")
    raise wrong("tool_choice", "'auto', 'none', 'required' or a function", choice)


def _response_format(value: object) -> ResponseFormat | None:
    if value is None:
        return None
    form = as_object(value, "response_format")
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return ResponseFormat("json_object")
        case "json_schema":
            inner = as_object(form.get("json_schema"), "response_format.json_schema")
            return ResponseFormat("json_schema", as_schema(inner.get("schema"), "response_format.json_schema.schema"))
        case kind:
            raise Unsupported(f"response_format.type: {shown(kind)} is not supported", field="response_format.type")


def _sampling(body: JsonObject) -> Sampling:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else as_list(stop, "stop")
    newer = as_int(body.get("max_completion_tokens"), "max_completion_tokens", low=1)
    older = as_int(body.get("max_tokens"), "max_tokens", low=1)
    return Sampling(
        temperature=as_number(body.get("temperature"), "temperature", low=0, high=2),
        top_p=as_number(body.get("top_p"), "top_p", low=0, high=1, above_low=True),
        top_k=as_int(body.get("top_k"), "top_k", low=-1),
        min_p=as_number(body.get("min_p"), "min_p", low=0, high=1),
        presence_penalty=as_number(body.get("presence_penalty"), "presence_penalty", low=-2, high=2),
        frequency_penalty=as_number(body.get("frequency_penalty"), "frequency_penalty", low=-2, high=2),
        repetition_penalty=as_number(
            body.get("repetition_penalty"), "repetition_penalty", low=0, high=2, above_low=True
        ),
        seed=as_int(body.get("seed"), "seed", low=-(2**63), high=2**63 - 1),
        max_tokens=older if newer is None else newer,
        stop=tuple(as_name(text, f"stop[{i}]") for i, text in enumerate(stops)),
    )


def _include_usage(body: JsonObject) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    return as_flag(as_object(options, "stream_options").get("include_usage"), "stream_options.include_usage")


def _top_logprobs(body: JsonObject) -> int | None:
    asked = as_int(body.get("top_logprobs"), "top_logprobs", low=0, high=20)
    if not as_flag(body.get("logprobs"), "logprobs"):
        if asked is not None:
            raise InvalidRequest("top_logprobs: needs logprobs to be true", field="top_logprobs")
        return None
    return _no_alternatives(asked or 0, "top_logprobs")


def _no_alternatives(asked: int | None, at: str) -> int | None:
    if asked:
        raise Unsupported(f"{at}: {asked} alternatives were asked for; only sampled tokens can be shown (0)", field=at)
    return asked


def _prompt(value: object) -> str | tuple[int, ...]:
    """A string, a list of token ids, or a list that holds just one of these."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        if len(value) > 1:
            raise InvalidRequest(f"prompt: {len(value)} prompts in one request; send one request each", field="prompt")
        value = value[0]
    if not value or not isinstance(value, str | list):
        raise wrong("prompt", "a string or a list of token ids that is not empty", value)
    if isinstance(value, str):
        return value
    ids = [as_int(token, f"prompt[{i}]", low=0) for i, token in enumerate(value)]
    if None in ids:
        raise wrong("prompt", "token ids", value)
    return tuple(token for token in ids if token is not None)


# -- the reply -------------------------------------------------------------------------------------------------------


def _head(of: Reply | ReplyStarted, request: ChatRequest, *, chunk: bool) -> JsonObject:
    if request.prompt is not None:
        return {"id": f"cmpl-{of.id}", "object": "text_completion", "created": of.created, "model": of.model}
    kind = "chat.completion.chunk" if chunk else "chat.completion"
    return {"id": f"chatcmpl-{of.id}", "object": kind, "created": of.created, "model": of.model}


def _message_of(reply: Reply) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
    calls = []
    for part in reply.parts:
        match part:
            case ReasoningPart(text=text):
                message["reasoning_content"] = text
            case TextPart(text=text):
                message["content"] = text
            case ToolCallPart():
                calls.append(_call(part))
    if calls:
        message["tool_calls"] = calls
    return message


def _call(part: ToolCallPart) -> JsonObject:
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}


def _legacy_text(reply: Reply) -> str:
    texts = []
    for part in reply.parts:
        if isinstance(part, ToolCallPart):
            raise ValueError(f"a legacy completion is plain text, but the reply has a call of {part.name!r}")
        texts.append(part.text)
    return "".join(texts)


def _ending(reply: Reply, request: ChatRequest) -> JsonObject:
    """The fields of a choice that both forms have at its end."""
    # The dialect has no word for a reply that the engine broke off.
    ending: JsonObject = {"finish_reason": "length" if reply.finish_reason == "abort" else reply.finish_reason}
    ending["logprobs"] = None
    if request.top_logprobs is not None:
        ending["logprobs"] = _logprobs(_completion(reply), legacy=request.prompt is not None)
    if request.return_token_ids:
        ending["token_ids"] = _completion(reply).completion_ids.tolist()
    return ending


def _prompt_ids(reply: Reply, request: ChatRequest) -> JsonObject:
    return {"prompt_token_ids": _completion(reply).prompt_ids.tolist()} if request.return_token_ids else {}


def _completion(reply: Reply) -> Completion:
    if reply.completion is None:
        raise ValueError("token ids or logprobs were asked for, but the reply has no completion")
    return reply.completion


def _logprobs(completion: Completion, *, legacy: bool) -> JsonObject:
    tokens = [f"token_id:{token}" for token in completion.completion_ids.tolist()]
    values = completion.logprobs.tolist()
    if legacy:
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": None}
    return {
        "content": [
            {"token": token, "bytes": None, "logprob": value, "top_logprobs": []}
            for token, value in zip(tokens, values, strict=True)
        ],
        "refusal": None,
    }


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


# -- the stream ------------------------------------------------------------------------------------------------------


class _Encoder:
    def __init__(self, provider: OpenAIChat, request: ChatRequest) -> None:
        self._provider = provider
        self._request = request
        self._head: JsonObject | None = None  # the fields that all chunks have; None: not started

    def encode(self, event: ReplyEvent) -> bytes:
        match event:
            case ReplyStarted():
                self._head = _head(event, self._request, chunk=True)
                if self._request.include_usage:
                    self._head["usage"] = None  # in every chunk but the one that has it
                return b"" if self._legacy else self._delta({"role": "assistant", "content": None})
            case ReasoningDelta(text=text):
                return self._text(text) if self._legacy else self._delta({"reasoning_content": text})
            case TextDelta(text=text):
                return self._text(text)
            case ReplyFinished(reply=reply):
                return self._finish(reply)
            case ReplyFailed(error=error):
                return encode_event(self._provider.error_body(to_dragoman_error(error), None))

    def keep_alive(self) -> bytes:
        return self._text("")

    @property
    def _legacy(self) -> bool:
        return self._request.prompt is not None

    def _text(self, text: str) -> bytes:
        return self._choice({"text": text}) if self._legacy else self._delta({"content": text})

    def _delta(self, delta: JsonObject) -> bytes:
        return self._choice({"delta": delta})

    def _choice(self, choice: JsonObject) -> bytes:
        return self._chunk({"choices": [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]})

    def _chunk(self, fields: JsonObject) -> bytes:
        if self._head is None:
            raise RuntimeError("a chunk was asked for before ReplyStarted")
        return encode_event({**self._head, **fields})

    def _finish(self, reply: Reply) -> bytes:
        chunks = []
        if self._legacy:
            _legacy_text(reply)  # raises where the reply cannot be shown
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        for index, call in enumerate(calls):  # as OpenAI does: the name with empty arguments, then the arguments
            opened = {**_call(call), "function": {"name": call.name, "arguments": ""}}
            chunks.append(self._delta({"tool_calls": [{"index": index, **opened}]}))
            chunks.append(self._delta({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]}))
        last: JsonObject = {"text": ""} if self._legacy else {"delta": {}}
        ending = {"index": 0, **last, **_ending(reply, self._request)}
        chunks.append(self._chunk({"choices": [ending], **_prompt_ids(reply, self._request)}))
        if self._request.include_usage:
            chunks.append(self._chunk({"choices": [], "usage": _usage(reply.usage)}))
        return b"".join((*chunks, _DONE))
