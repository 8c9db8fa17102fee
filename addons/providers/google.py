"""Google's Gemini API dialect: generateContent, streamGenerateContent, countTokens and models.

Rules of this module: errors name fields as Google does (``contents[0].parts[1].text``). What is read and what is not
(``google_contents`` says it of the conversation, ``google_schema`` of schemas):

- The path names the model and whether the reply streams; the query names the form of the stream: ``alt=sse`` asks for
  server-sent events, anything else for one JSON array, sent element by element.
- Ignored, since it changes nothing that the model is shown: ``safetySettings``, ``labels``, ``store``, ``serviceTier``,
  ``toolConfig.retrievalConfig``, all of ``thinkingConfig`` but ``includeThoughts``, ``mediaResolution`` and other notes
  on a part, a function's ``response`` schema and ``behavior``, the ``willContinue`` and ``scheduling`` of a response,
  signatures that stand beside anything but a thought. ``mode: VALIDATED`` is read as ``AUTO``.
- Tools that run at the provider (``googleSearch`` and the like) are left out beside functions; a request that has
  nothing else is refused. ``allowedFunctionNames`` may name one function or all of them.
- Arguments of a call must be an object here. For those that are none, the call holds what Claude Code itself makes of
  such text (``object_arguments``): Gemini CLI's tools answer that a required field is missing, and it goes on.
- Thoughts are shown to those who asked for them. The signature stands on the first thought and the first call.
"""

import re
from collections.abc import Sequence
from typing import Literal
from urllib.parse import parse_qs, unquote

import orjson

from dragoman.addons.errors import ContextTooLong, DragomanError, ErrorCode, InvalidRequest, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
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
    Usage,
)
from dragoman.addons.providers.base import (
    ReplyEncoder,
    Route,
    RouteKind,
    issue_signature,
    object_arguments,
    to_dragoman_error,
)
from dragoman.addons.providers.fields import (
    as_flag,
    as_int,
    as_list,
    as_name,
    as_number,
    as_schema,
    as_text,
    shown,
    wrong,
)
from dragoman.addons.providers.google_contents import (
    TOOL_CALL_PREFIX,
    fields_of,
    items_of,
    read_messages,
    read_system,
)
from dragoman.addons.providers.google_schema import to_json_schema
from dragoman.addons.sse import encode_event
from dragoman.store.records import JsonObject, ProviderName

_LIKELIEST = 1e-6
"""For ``topP`` 0, which Google takes and vLLM does not: the likeliest token alone, as any number so small says."""
_PATH = re.compile(r"/(?:v1|v1beta)/(models|tunedModels)(?:/(.+))?")
_HOSTED_TOOLS = {
    *("googleSearch", "googleSearchRetrieval", "enterpriseWebSearch", "parallelAiSearch", "exaAiSearch"),
    *("urlContext", "codeExecution", "googleMaps", "fileSearch", "retrieval", "mcpServers"),
}

_STATUSES: dict[ErrorCode, tuple[int, str]] = {
    "invalid_request": (400, "INVALID_ARGUMENT"),
    "unsupported": (400, "INVALID_ARGUMENT"),
    "context_too_long": (400, "INVALID_ARGUMENT"),
    "unauthorized": (401, "UNAUTHENTICATED"),
    "forbidden": (403, "PERMISSION_DENIED"),
    "not_found": (404, "NOT_FOUND"),
    "conflict": (400, "FAILED_PRECONDITION"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "overloaded": (503, "UNAVAILABLE"),
    "engine_failed": (500, "INTERNAL"),
    "timeout": (504, "DEADLINE_EXCEEDED"),
    "internal": (500, "INTERNAL"),
}


class Google:
    name: ProviderName = "google"
    hosts: tuple[str, ...] = ("generativelanguage.googleapis.com",)
    tool_call_prefix: str = TOOL_CALL_PREFIX
    request_id_header: str | None = None

    def route(self, method: str, path: str) -> Route | None:
        match = _PATH.fullmatch(unquote(path))
        if match is None:
            return None
        if method == "GET":
            return Route("model", model=_model(match[1], match[2])) if match[2] else Route("models")
        name, _, verb = (match[2] or "").rpartition(":")
        if method != "POST" or not name or verb not in ("generateContent", "streamGenerateContent", "countTokens"):
            return None
        kind: RouteKind = "count_tokens" if verb == "countTokens" else "generate"
        return Route(kind, model=_model(match[1], name), stream=verb == "streamGenerateContent")

    def previous(self, body: JsonObject) -> str | None:
        return None

    def parse_request(self, body: JsonObject, route: Route) -> ChatRequest:
        request = fields_of(body, "body")
        if route.kind == "count_tokens" and "generateContentRequest" in request:
            if "contents" in request:
                raise InvalidRequest("contents: cannot stand beside generateContentRequest", field="contents")
            request = fields_of(request["generateContentRequest"], "generateContentRequest")
        for field in ("cachedContent", "continuationToken"):
            if field in request:
                raise Unsupported(f"{field}: nothing is kept here between requests; send the contents", field=field)
        config = fields_of(request.get("generationConfig", {}), "generationConfig")
        tools = _tools(request.get("tools"))
        messages = read_system(request.get("systemInstruction")) + read_messages(request.get("contents"))
        if route.kind == "generate" and messages[-1].role == "assistant":
            raise Unsupported("contents: must end with a user's content or a function response", field="contents")
        return ChatRequest(
            provider=self.name,
            model=as_name(route.model, "model"),
            messages=messages,
            tools=tools,
            tool_choice=_tool_choice(request.get("toolConfig", {}), tools),
            response_format=_response_format(config),
            sampling=_sampling(config),
            stream=bool(route.stream),
            stream_form=_stream_form(route),
            show_reasoning=_show_reasoning(config),
        )

    def render_reply(self, reply: Reply, request: ChatRequest) -> JsonObject:
        parts: list[JsonObject] = []
        for part in reply.parts:
            match part:
                case ReasoningPart(text=text) if request.show_reasoning:
                    parts.append(_thought(text, reply.id))
                case TextPart(text=text):
                    parts.append({"text": text})
        parts += _calls(reply)
        return _chunk(reply.id, reply.model, parts, _usage(reply.usage), _finish_reason(reply))

    def encoder(self, request: ChatRequest) -> ReplyEncoder:
        return _Encoder(self, request)

    def render_count(self, prompt_tokens: int) -> JsonObject:
        return {"totalTokens": prompt_tokens}

    def render_models(self, models: Sequence[str], created: int) -> JsonObject:
        return {"models": [self.render_model(model, created) for model in models]}

    def render_model(self, model: str, created: int) -> JsonObject:
        return {
            "name": model if model.startswith("tunedModels/") else f"models/{model}",
            "version": "001",
            "displayName": model,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def error_body(self, error: DragomanError, call_id: str | None) -> JsonObject:
        code, status = _STATUSES[error.code]
        message = error.message
        if isinstance(error, ContextTooLong):
            message = (
                f"The input token count ({error.prompt_tokens}) exceeds the maximum number of tokens allowed "
                f"({error.limit})."
            )
        body: JsonObject = {"code": code, "message": message, "status": status}
        if error.retry_after is not None:  # Gemini CLI waits as long as this says, and does not read Retry-After
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            body["details"] = [{"@type": kind, "retryDelay": f"{error.retry_after}s"}]
        return {"error": body}

    def error_status(self, error: DragomanError) -> int:
        return _STATUSES[error.code][0]


GOOGLE = Google()

# -- the request ------------------------------------------------------------------------------------------------------


def _model(collection: str, name: str) -> str:
    """The name without ``models/``, which some clients put before it a second time."""
    return f"tunedModels/{name}" if collection == "tunedModels" else name.removeprefix("models/")


def _tools(value: object) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    left_out: list[str] = []
    for item, at in items_of(value, "tools"):
        for key, given in item.items():
            if key == "functionDeclarations":
                tools += [_tool(tool, place) for tool, place in items_of(given, f"{at}.{key}")]
            elif key in _HOSTED_TOOLS:
                left_out.append(key)
            else:
                raise Unsupported(f"{at}: tools of kind {shown(key)} are not supported", field=at)
    if left_out and not tools:
        raise Unsupported(f"tools: {', '.join(left_out)} runs at the provider and is not supported", field="tools")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"tools: Duplicate function declaration found: {shown(twice)}", field="tools")
    return tuple(tools)


def _tool(tool: JsonObject, at: str) -> Tool:
    if "parameters" in tool and "parametersJsonSchema" in tool:
        raise InvalidRequest(f"{at}: give parameters or parametersJsonSchema, not both", field=at)
    schema: JsonObject = {"type": "object", "properties": {}}
    for key in ("parameters", "parametersJsonSchema"):
        if key in tool:
            schema = to_json_schema(as_schema(tool[key], f"{at}.{key}"), googles_own=key == "parameters")
    return Tool(
        name=as_name(tool.get("name"), f"{at}.name"),
        description=as_text(tool.get("description", ""), f"{at}.description"),
        parameters=schema,
    )


def _tool_choice(value: object, tools: tuple[Tool, ...]) -> ToolChoice:
    at = "toolConfig.functionCallingConfig"
    choice = fields_of(fields_of(value, "toolConfig").get("functionCallingConfig", {}), at)
    mode = choice.get("mode", "AUTO")
    if mode == "NONE":
        return ToolChoice("none")
    if mode not in ("MODE_UNSPECIFIED", "AUTO", "VALIDATED", "ANY"):
        raise wrong(f"{at}.mode", "'AUTO', 'ANY', 'NONE' or 'VALIDATED'", mode)
    if mode == "ANY" and not tools:
        raise InvalidRequest(f"{at}.mode: 'ANY' needs functionDeclarations", field=f"{at}.mode")
    names, at = {tool.name for tool in tools}, f"{at}.allowedFunctionNames"
    allowed = {
        as_name(name, f"{at}[{i}]") for i, name in enumerate(as_list(choice.get("allowedFunctionNames", []), at))
    }
    if allowed - names:
        raise InvalidRequest(f"{at}: no function is named {shown(min(allowed - names))}", field=at)
    if mode == "ANY" and len(allowed) == 1:
        return ToolChoice("required", min(allowed))
    if allowed and allowed != names:
        raise Unsupported(f"{at}: may name all functions, or with mode ANY one; declare only those allowed", field=at)
    return ToolChoice("required" if mode == "ANY" else "auto")


def _response_format(config: JsonObject) -> ResponseFormat | None:
    at = "generationConfig."
    mime_type = config.get("responseMimeType", "text/plain")
    given = [key for key in ("responseSchema", "responseJsonSchema", "_responseJsonSchema") if key in config]
    if mime_type not in ("text/plain", "application/json"):
        raise Unsupported(f"{at}responseMimeType: {shown(mime_type)} is not supported", field=f"{at}responseMimeType")
    if not given:
        return ResponseFormat("json_object") if mime_type == "application/json" else None
    if len(given) > 1:
        raise InvalidRequest(f"{at}{given[0]}: cannot stand beside {given[1]}", field=f"{at}{given[0]}")
    if mime_type != "application/json":
        raise InvalidRequest(f"{at}{given[0]}: needs responseMimeType 'application/json'", field=f"{at}{given[0]}")
    schema = as_schema(config[given[0]], f"{at}{given[0]}")
    return ResponseFormat("json_schema", to_json_schema(schema, googles_own=given[0] == "responseSchema"))


def _sampling(config: JsonObject) -> Sampling:
    at = "generationConfig."
    if as_int(config.get("candidateCount"), f"{at}candidateCount", low=1) not in (None, 1):
        field = f"{at}candidateCount"
        raise InvalidRequest(f"{field}: one request gives one candidate; send several requests", field=field)
    if as_flag(config.get("responseLogprobs"), f"{at}responseLogprobs"):
        raise Unsupported(f"{at}responseLogprobs: not supported in this API", field=f"{at}responseLogprobs")
    modalities = as_list(config.get("responseModalities", []), f"{at}responseModalities")
    if any(modality not in ("TEXT", "MODALITY_UNSPECIFIED") for modality in modalities):
        field = f"{at}responseModalities"
        raise Unsupported(f"{field}: the model gives text only, not {shown(modalities)}", field=field)
    top_p = as_number(config.get("topP"), f"{at}topP", low=0, high=1)
    top_k = config.get("topK")
    if isinstance(top_k, float) and top_k.is_integer():  # the Python SDK sends 64.0
        top_k = int(top_k)
    stops = as_list(config.get("stopSequences", []), f"{at}stopSequences")
    return Sampling(
        temperature=as_number(config.get("temperature"), f"{at}temperature", low=0, high=2),
        top_p=_LIKELIEST if top_p == 0 else top_p,
        top_k=as_int(top_k, f"{at}topK", low=0),
        presence_penalty=as_number(config.get("presencePenalty"), f"{at}presencePenalty", low=-2, high=2),
        frequency_penalty=as_number(config.get("frequencyPenalty"), f"{at}frequencyPenalty", low=-2, high=2),
        seed=as_int(config.get("seed"), f"{at}seed", low=-(2**31)),
        max_tokens=as_int(config.get("maxOutputTokens"), f"{at}maxOutputTokens", low=1),
        stop=tuple(as_name(stop, f"{at}stopSequences[{i}]") for i, stop in enumerate(stops)),
    )


def _stream_form(route: Route) -> Literal["sse", "json_array"]:
    return "json_array" if route.stream and parse_qs(route.query).get("alt") != ["sse"] else "sse"


def _show_reasoning(config: JsonObject) -> bool:
    at = "generationConfig.thinkingConfig"
    return as_flag(fields_of(config.get("thinkingConfig", {}), at).get("includeThoughts"), f"{at}.includeThoughts")


# -- the reply --------------------------------------------------------------------------------------------------------


def _thought(text: str, call_id: str) -> JsonObject:
    return {"text": text, "thought": True, "thoughtSignature": issue_signature(call_id)}


def _calls(reply: Reply) -> list[JsonObject]:
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    parts: list[JsonObject] = [
        {"functionCall": {"id": call.id, "name": call.name, "args": object_arguments(call.arguments)}} for call in calls
    ]
    if parts:
        parts[0]["thoughtSignature"] = issue_signature(reply.id)
    return parts


def _finish_reason(reply: Reply) -> str:
    # The dialect has no word for a reply that the engine broke off ("OTHER" makes pi fail).
    return "MAX_TOKENS" if reply.finish_reason in ("length", "abort") else "STOP"


def _usage(usage: Usage) -> JsonObject:
    tokens: JsonObject = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.reasoning_tokens:
        tokens["thoughtsTokenCount"] = usage.reasoning_tokens
    return tokens


def _chunk(
    call_id: str, model: str, parts: list[JsonObject], usage: JsonObject, finish_reason: str | None = None
) -> JsonObject:
    """A whole reply, or an element of a stream. There is always a part: without one the SDK's chat forgets the turn."""
    candidate: JsonObject = {"content": {"parts": parts or [{"text": ""}], "role": "model"}}
    if finish_reason is not None:
        candidate["finishReason"] = finish_reason
    candidate["index"] = 0
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": call_id}


# -- the stream -------------------------------------------------------------------------------------------------------


class _Encoder:
    """Server-sent events, or the elements of one JSON array."""

    def __init__(self, provider: Google, request: ChatRequest) -> None:
        self._provider = provider
        self._array = request.stream_form == "json_array"
        self._show_reasoning = request.show_reasoning
        self._started = ReplyStarted("", request.model, 0, 0)
        self._thinking = False
        self._sent = False

    def encode(self, event: ReplyEvent) -> bytes:
        match event:
            case ReplyStarted():
                self._started = event
                return b"[" if self._array else b""
            case ReasoningDelta(text=text):
                return self._reason(text)
            case TextDelta(text=text):
                return self._send_parts([{"text": text}])
            case ReplyFinished(reply=reply):
                finish = _finish_reason(reply)
                last = self._send(_chunk(reply.id, reply.model, _calls(reply), _usage(reply.usage), finish))
                return last + b"]" if self._array else last
            case ReplyFailed(error=error):
                return self._fail(self._provider.error_body(to_dragoman_error(error), None))

    def keep_alive(self) -> bytes:
        return self._send_parts([{"text": ""}])

    def _reason(self, text: str) -> bytes:
        if not self._show_reasoning:
            return self.keep_alive()
        part = {"text": text, "thought": True} if self._thinking else _thought(text, self._started.id)
        self._thinking = True
        return self._send_parts([part])

    def _fail(self, error: JsonObject) -> bytes:
        if self._array:
            return self._send(error) + b"]"
        # As the API does: not as an event. Gemini CLI's SDK overlooks an error in an event, and after a tool result
        # the CLI then takes half a reply for a whole one; told like this, it asks again (all measured with 0.61.0).
        # No blank line may follow: pi's SDK would drop the object as an event without data.
        return orjson.dumps(error) + b"\n"

    def _send_parts(self, parts: list[JsonObject]) -> bytes:
        started = self._started
        usage = {"promptTokenCount": started.prompt_tokens, "totalTokenCount": started.prompt_tokens}
        return self._send(_chunk(started.id, started.model, parts, usage))

    def _send(self, value: JsonObject) -> bytes:
        if not self._array:
            return encode_event(value)
        separator = b",\n" if self._sent else b""
        self._sent = True
        return separator + orjson.dumps(value)
