"""The Anthropic Messages dialect.

Rules of this module: errors name fields as Anthropic does (``messages.0.content.1``). What is read and what is not:

- Ignored, since it changes nothing that the model is shown: ``cache_control``, ``citations``, ``metadata``,
  ``thinking``, ``context_management``, ``diagnostics``, ``service_tier``, ``container``, ``output_config`` but for its
  format, a message's own ``output_config``, ``caller``, ``strict``, ``defer_loading``, ``eager_input_streaming`` and
  beta headers. A tool that is marked ``defer_loading`` is shown like any other.
- An empty text says nothing and makes no part.
- A user message that mixes tool results with other content becomes several messages, in order: a ``tool`` message for
  each run of results, a ``user`` message for each run of the rest.
- Server tools (web search and the like) run at the real provider. Beside other tools they are left out; a request that
  has nothing else is refused. Other tools that Anthropic defines (``bash_…``) come without a schema and are refused.
- Arguments of a tool call that are not a JSON object: a stream carries the text as it was sampled, and Claude Code
  makes an error result of it. A whole reply must hold an object, so it holds what Claude Code itself would replay,
  ``{"__unparsedToolInput": {"raw": …, "len": …}}``. No arguments at all are ``{}`` in both.
"""

import itertools
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from dragoman.addons.errors import DragomanError, ErrorCode, InvalidRequest, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
    ImagePart,
    Message,
    Part,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyPart,
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
from dragoman.addons.providers.base import (
    ReplyEncoder,
    Route,
    error_text,
    issue_signature,
    object_arguments,
    to_dragoman_error,
)
from dragoman.addons.providers.fields import (
    as_flag,
    as_int,
    as_json,
    as_list,
    as_name,
    as_number,
    as_object,
    as_schema,
    as_text,
    shown,
    wrong,
)
from dragoman.addons.sse import encode_event
from dragoman.store.records import JsonObject, ProviderName

_MODEL_PATH = re.compile(r"/v1/models/(.+)")
_SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_")

_ERROR_TYPES: dict[ErrorCode, str] = {
    "invalid_request": "invalid_request_error",
    "unsupported": "invalid_request_error",
    "context_too_long": "invalid_request_error",
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "not_found": "not_found_error",
    "conflict": "invalid_request_error",
    "too_large": "request_too_large",
    "overloaded": "overloaded_error",
    "engine_failed": "api_error",
    "timeout": "timeout_error",
    "internal": "api_error",
}
# 529 is Anthropic's own status for an overload. The SDKs repeat a 409 by themselves, which a conflict of ours outlives.
_STATUSES: dict[ErrorCode, int] = {"overloaded": 529, "conflict": 400}


class Anthropic:
    name: ProviderName = "anthropic"
    hosts: tuple[str, ...] = ("api.anthropic.com",)
    tool_call_prefix: str = "toolu_"
    request_id_header: str | None = "request-id"

    def route(self, method: str, path: str) -> Route | None:
        match method, path:
            case "POST", "/v1/messages":
                return Route("generate")
            case "POST", "/v1/messages/count_tokens":
                return Route("count_tokens")
            case "GET", "/v1/models":
                return Route("models")
            case "GET", _ if match := _MODEL_PATH.fullmatch(path):
                return Route("model", model=unquote(match[1]))
        return None

    def previous(self, body: JsonObject) -> str | None:
        return None

    def parse_request(self, body: JsonObject, route: Route) -> ChatRequest:
        if body.get("thread") is not None:
            # pi's message threads send no history: this text makes it send everything and stop using threads.
            raise InvalidRequest("thread: Extra inputs are not permitted", field="thread")
        if body.get("mcp_servers"):
            raise Unsupported("mcp_servers: these run at the provider; run them in the client", field="mcp_servers")
        messages = _system(body.get("system")) + _messages(body.get("messages"))
        if route.kind == "generate" and messages[-1].role == "assistant":
            raise Unsupported("messages: the last one must not be the assistant's (no prefill)", field="messages")
        tools = _tools(body.get("tools"))
        return ChatRequest(
            provider=self.name,
            model=as_name(_required(body, "model"), "model"),
            messages=messages,
            tools=tools,
            tool_choice=_tool_choice(body.get("tool_choice"), tools),
            response_format=_response_format(body),
            sampling=_sampling(body, max_tokens_required=route.kind == "generate"),
            stream=as_flag(body.get("stream"), "stream"),
        )

    def render_reply(self, reply: Reply, request: ChatRequest) -> JsonObject:
        return {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": [_block(part, reply.id) for part in reply.parts],
            "stop_reason": _stop_reason(reply),
            "stop_sequence": reply.stop_sequence,
            "usage": _usage(reply.usage),
        }

    def encoder(self, request: ChatRequest) -> ReplyEncoder:
        return _Encoder(self)

    def render_count(self, prompt_tokens: int) -> JsonObject:
        return {"input_tokens": prompt_tokens}

    def render_models(self, models: Sequence[str], created: int) -> JsonObject:
        return {
            "data": [self.render_model(model, created) for model in models],
            "has_more": False,
            "first_id": models[0] if models else None,
            "last_id": models[-1] if models else None,
        }

    def render_model(self, model: str, created: int) -> JsonObject:
        created_at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "model", "id": model, "display_name": model, "created_at": created_at, "lifecycle": "active"}

    def error_body(self, error: DragomanError, call_id: str | None) -> JsonObject:
        return {
            "type": "error",
            "error": {"type": _ERROR_TYPES[error.code], "message": error_text(error)},
            "request_id": None if call_id is None else f"req_{call_id}",
        }

    def error_status(self, error: DragomanError) -> int:
        return _STATUSES.get(error.code, error.status)


ANTHROPIC = Anthropic()

# -- the request -----------------------------------------------------------------------------------------------------


def _required(body: JsonObject, key: str) -> object:
    if body.get(key) is None:
        raise InvalidRequest(f"{key}: Field required", field=key)
    return body[key]


def _system(system: object) -> tuple[Message, ...]:
    """No message, or one with a part for each block."""
    if system is None:
        return ()
    parts = _text_parts(system, "system")
    return (Message("system", parts),) if parts else ()


def _messages(value: object) -> tuple[Message, ...]:
    messages = as_list(value, "messages")
    if not messages:
        raise InvalidRequest("messages: at least one message is required", field="messages")
    return tuple(itertools.chain.from_iterable(_message(m, f"messages.{i}") for i, m in enumerate(messages)))


def _message(value: object, at: str) -> list[Message]:
    message = as_object(value, at)
    content = message.get("content")
    match message.get("role"):
        case "system":
            return [Message("system", _text_parts(content, f"{at}.content"))]
        case "assistant":
            parts = [_assistant_part(block, place) for block, place in _blocks(content, f"{at}.content")]
            return [Message("assistant", tuple(part for part in parts if part is not None))]
        case "user":
            return _user_messages([_user_part(block, place) for block, place in _blocks(content, f"{at}.content")])
        case role:
            raise wrong(f"{at}.role", "'user', 'assistant' or 'system'", role)


def _user_messages(parts: Sequence[Part | None]) -> list[Message]:
    """One message for each run of tool results and for each run of other parts."""
    said = [part for part in parts if part is not None]
    runs = itertools.groupby(said, key=lambda part: isinstance(part, ToolResultPart))
    messages = [Message("tool" if results else "user", tuple(run)) for results, run in runs]
    return messages or [Message("user", ())]


def _blocks(content: object, at: str) -> list[tuple[JsonObject, str]]:
    """The content blocks, each with its path; a plain string is one text block."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, at)]
    if not isinstance(content, list):
        raise wrong(at, "a string or an array of content blocks", content)
    return [(as_object(block, f"{at}.{i}"), f"{at}.{i}") for i, block in enumerate(content)]


def _text_parts(content: object, at: str) -> tuple[TextPart, ...]:
    parts = []
    for block, place in _blocks(content, at):
        if block.get("type") != "text":
            raise Unsupported(f"{place}: only text can stand here, not {shown(block.get('type'))}", field=place)
        parts.append(_text(block, place))
    return tuple(part for part in parts if part is not None)


def _user_part(block: JsonObject, at: str) -> TextPart | ImagePart | ToolResultPart | None:
    if block.get("type") != "tool_result":
        return _shown_part(block, at)
    content = block.get("content")
    results = [] if content is None else [_result_part(b, place) for b, place in _blocks(content, f"{at}.content")]
    return ToolResultPart(
        call_id=as_name(block.get("tool_use_id"), f"{at}.tool_use_id"),
        parts=tuple(part for part in results if part is not None),
        is_error=as_flag(block.get("is_error"), f"{at}.is_error"),
    )


def _result_part(block: JsonObject, at: str) -> TextPart | ImagePart | None:
    if block.get("type") == "tool_reference":
        # Claude Code's ToolSearch answers with these alone; the tools themselves join the next request's list.
        return TextPart(f"Tool found: {as_name(block.get('tool_name'), f'{at}.tool_name')}")
    return _shown_part(block, at)


def _shown_part(block: JsonObject, at: str) -> TextPart | ImagePart | None:
    """A block that can stand both in a user message and in a tool result."""
    match block.get("type"):
        case "text":
            return _text(block, at)
        case "image":
            return _image(as_object(block.get("source"), f"{at}.source"), f"{at}.source")
        case "document":
            return _document(block, at)
        case kind:
            raise Unsupported(f"{at}: content of type {shown(kind)} is not supported here", field=at)


def _assistant_part(block: JsonObject, at: str) -> TextPart | ReasoningPart | ToolCallPart | None:
    match block.get("type"):
        case "text":
            return _text(block, at)
        case "thinking":
            signature = block.get("signature")
            return ReasoningPart(
                text=as_text(block.get("thinking"), f"{at}.thinking"),
                signature=None if signature is None else as_text(signature, f"{at}.signature"),
            )
        case "redacted_thinking":
            return ReasoningPart("", as_text(block.get("data"), f"{at}.data"))
        case "tool_use":
            return ToolCallPart(
                id=as_name(block.get("id"), f"{at}.id"),
                name=as_name(block.get("name"), f"{at}.name"),
                arguments=as_json(as_object(block.get("input"), f"{at}.input"), f"{at}.input"),
            )
        case kind:
            raise Unsupported(f"{at}: content of type {shown(kind)} is not supported here", field=at)


def _text(block: JsonObject, at: str) -> TextPart | None:
    text = as_text(block.get("text"), f"{at}.text")
    return TextPart(text) if text else None


def _image(source: JsonObject, at: str) -> ImagePart:
    match source.get("type"):
        case "base64":
            media_type = as_name(source.get("media_type"), f"{at}.media_type")
            return ImagePart(media_type, as_name(source.get("data"), f"{at}.data"))
        case "url":
            return ImagePart(None, None, as_name(source.get("url"), f"{at}.url"))
        case kind:
            raise Unsupported(f"{at}: an image source of type {shown(kind)} is not supported", field=at)


def _document(block: JsonObject, at: str) -> TextPart:
    """A plain-text document as one text: its title and context, where given, and its data, a line break between."""
    source = as_object(block.get("source"), f"{at}.source")
    if source.get("type") != "text":
        raise Unsupported(f"{at}.source: only text documents are supported, not {shown(source.get('type'))}", field=at)
    texts = [as_text(block[key], f"{at}.{key}") for key in ("title", "context") if block.get(key) is not None]
    return TextPart("\n".join([*texts, as_text(source.get("data"), f"{at}.source.data")]))


def _tools(value: object) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    left_out: list[str] = []
    for i, item in enumerate([] if value is None else as_list(value, "tools")):
        at = f"tools.{i}"
        tool = as_object(item, at)
        kind = tool.get("type")
        if kind is None or kind == "custom":
            description = tool.get("description")
            tools.append(
                Tool(
                    name=as_name(tool.get("name"), f"{at}.name"),
                    description="" if description is None else as_text(description, f"{at}.description"),
                    parameters=as_schema(tool.get("input_schema"), f"{at}.input_schema"),
                )
            )
        elif isinstance(kind, str) and kind.startswith(_SERVER_TOOLS):
            left_out.append(kind)
        else:
            raise Unsupported(f"{at}.type: tools of type {shown(kind)} are not supported", field=f"{at}.type")
    if left_out and not tools:
        raise Unsupported(f"tools: {', '.join(left_out)} runs at the provider and is not supported", field="tools")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: Tool names must be unique.", field="tools")
    return tuple(tools)


def _tool_choice(value: object, tools: tuple[Tool, ...]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    choice = as_object(value, "tool_choice")
    flag = as_flag(choice.get("disable_parallel_tool_use"), "tool_choice.disable_parallel_tool_use")
    kind = choice.get("type")
    match kind:
        case "auto":
            return ToolChoice("auto", parallel=not flag)
        case "none":
            return ToolChoice("none", parallel=not flag)
        case "any" if tools:
            return ToolChoice("required", parallel=not flag)
        case "tool" if tools:
            name = as_name(choice.get("name"), "tool_choice.name")
            if all(tool.name != name for tool in tools):
                raise InvalidRequest(f"tool_choice.name: no tool is named {shown(name)}", field="tool_choice.name")
            return ToolChoice("required", name, parallel=not flag)
        case "any" | "tool":
            raise InvalidRequest(f"tool_choice.type: {kind!r} needs tools", field="tool_choice.type")
    raise wrong("tool_choice.type", "'auto', 'any', 'tool' or 'none'", kind)


def _response_format(body: JsonObject) -> ResponseFormat | None:
    """From ``output_config.format``, or from ``output_format``, its earlier name."""
    config = body.get("output_config")
    at, value = "output_config.format", None if config is None else as_object(config, "output_config").get("format")
    if value is None:
        at, value = "output_format", body.get("output_format")
    if value is None:
        return None
    form = as_object(value, at)
    if form.get("type") != "json_schema":
        raise Unsupported(f"{at}.type: only 'json_schema' is supported, not {shown(form.get('type'))}", field=at)
    return ResponseFormat("json_schema", as_schema(form.get("schema"), f"{at}.schema"))


def _sampling(body: JsonObject, *, max_tokens_required: bool) -> Sampling:
    if max_tokens_required:
        _required(body, "max_tokens")
    stops = body.get("stop_sequences")
    return Sampling(
        temperature=as_number(body.get("temperature"), "temperature", low=0, high=1),
        top_p=as_number(body.get("top_p"), "top_p", low=0, high=1, above_low=True),
        top_k=as_int(body.get("top_k"), "top_k", low=0),
        max_tokens=as_int(body.get("max_tokens"), "max_tokens", low=1),
        stop=tuple(
            as_name(stop, f"stop_sequences.{i}")
            for i, stop in enumerate([] if stops is None else as_list(stops, "stop_sequences"))
        ),
    )


# -- the reply -------------------------------------------------------------------------------------------------------


def _block(part: ReplyPart, call_id: str) -> JsonObject:
    match part:
        case ReasoningPart(text=text):
            return {"type": "thinking", "thinking": text, "signature": issue_signature(call_id)}
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ToolCallPart(id=id, name=name, arguments=arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": object_arguments(arguments)}


def _stop_reason(reply: Reply) -> str:
    match reply.finish_reason:
        case "tool_calls":
            return "tool_use"
        case "length" | "abort":  # the dialect has no word for a reply that the engine broke off
            return "max_tokens"
        case "stop":
            return "end_turn" if reply.stop_sequence is None else "stop_sequence"


def _usage(usage: Usage) -> JsonObject:
    tokens: JsonObject = {
        "input_tokens": usage.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens:
        tokens["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return tokens


# -- the stream ------------------------------------------------------------------------------------------------------


def _event(data: JsonObject) -> bytes:
    return encode_event(data, data["type"])


class _Encoder:
    def __init__(self, provider: Anthropic) -> None:
        self._provider = provider
        self._call_id = ""
        self._index = 0  # of the block that is open, or else of the next
        self._open: str | None = None

    def encode(self, event: ReplyEvent) -> bytes:
        match event:
            case ReplyStarted():
                return self._start(event)
            case ReasoningDelta(text=text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._delta(block, {"type": "thinking_delta", "thinking": text})
            case TextDelta(text=text):
                return self._delta({"type": "text", "text": ""}, {"type": "text_delta", "text": text})
            case ReplyFinished(reply=reply):
                return self._finish(reply)
            case ReplyFailed(error=error):
                return _event(self._provider.error_body(to_dragoman_error(error), self._call_id))

    def keep_alive(self) -> bytes:
        return _event({"type": "ping"})

    def _start(self, event: ReplyStarted) -> bytes:
        self._call_id = event.id
        message: JsonObject = {
            "id": f"msg_{event.id}",
            "type": "message",
            "role": "assistant",
            "model": event.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(event.prompt_tokens, 1)),  # 1, as the API says here; message_delta has the real count
        }
        return _event({"type": "message_start", "message": message})

    def _delta(self, block: JsonObject, delta: JsonObject) -> bytes:
        """A delta for a block of this type; the block that is open is closed before it if it has another type."""
        opening = b""
        if self._open != block["type"]:
            opening = self._close() + self._start_block(block)
        return opening + _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _start_block(self, block: JsonObject) -> bytes:
        self._open = block["type"]
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": issue_signature(self._call_id)}
            signature = _event({"type": "content_block_delta", "index": self._index, "delta": delta})
        stop = _event({"type": "content_block_stop", "index": self._index})
        self._open = None
        self._index += 1
        return signature + stop

    def _finish(self, reply: Reply) -> bytes:
        events = [self._close()]
        for part in reply.parts:
            if isinstance(part, ToolCallPart):
                events.append(self._start_block({"type": "tool_use", "id": part.id, "name": part.name, "input": {}}))
                arguments = {"type": "input_json_delta", "partial_json": part.arguments}
                events.append(_event({"type": "content_block_delta", "index": self._index, "delta": arguments}))
                events.append(self._close())
        stop = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop_sequence}
        events.append(_event({"type": "message_delta", "delta": stop, "usage": _usage(reply.usage)}))
        events.append(_event({"type": "message_stop"}))
        return b"".join(events)
