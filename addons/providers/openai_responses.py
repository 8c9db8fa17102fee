"""The OpenAI Responses dialect, as the SDKs, Codex, pi and OpenCode speak it over HTTP and over WebSockets. What its
input says is in ``openai_items``, its tools are in ``openai_tools``.

Rules of this module: errors name fields as OpenAI does (``input[3].content[0]``). What is read and what is not:

- Ignored, since it changes nothing that the model is shown: ``include`` but for logprobs, ``metadata``,
  ``client_metadata`` (``identity`` reads it), ``prompt_cache_key`` and its kin, ``service_tier``, ``truncation`` (a
  prompt that is too long is an error), ``context_management``, ``reasoning``, ``text.verbosity``, ``max_tool_calls``,
  ``user``, ``safety_identifier``, ``moderation``, ``stream_options``.
- ``instructions`` are the first message.
- ``previous_response_id`` stands for the messages of that request and its reply, and for the tools that came with its
  input, but for neither its ``instructions`` nor its ``tools``: a client sends those again. The caller looks it up
  (``Route.earlier``). An id that cannot be used is a 400 with the code ``previous_response_not_found``.
- ``store: false`` means that no later request may name the reply, but for those on the same socket. It says nothing of
  our own record.
- A reply tells reasoning as the summary, which Codex, pi and OpenCode replay, with a signature of ours even if
  ``include`` did not ask for it.
- A reply that was cut has status ``incomplete`` and ``incomplete_details``, which tell the SDKs, pi and OpenCode. But
  its stream ends with ``response.completed`` too: Codex looks no further, and at ``response.incomplete`` its run fails.
- A reply repeats neither ``tools`` nor ``instructions``: no client reads them, and a stream would have them thrice.
- Compaction, by an input that ends in ``compaction_trigger`` or by a ``/compact`` path: the model is asked for a
  summary behind the conversation, with its tools still in the prompt. The reply is one ``compaction`` item and nothing
  else (Codex fails on any other), with the summary as its ``encrypted_content``.
- Over a WebSocket each event is one message, in the words of the stream. A message is the body of a request with a
  ``type``; it always streams. ``generate: false`` prepares and samples nothing.
"""

import re
from collections.abc import Sequence

import orjson

from dragoman.addons.errors import ContextTooLong, DragomanError, InvalidRequest, Unsupported
from dragoman.addons.messages import (
    ChatRequest,
    ReasoningDelta,
    ReasoningPart,
    Reply,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyPart,
    ReplyStarted,
    ResponseFormat,
    ResponsesDetails,
    Sampling,
    TextDelta,
    TextPart,
    ToolCallPart,
    Usage,
)
from dragoman.addons.providers.base import ReplyEncoder, Route, issue_signature, to_dragoman_error
from dragoman.addons.providers.fields import (
    as_flag,
    as_int,
    as_list,
    as_name,
    as_number,
    as_object,
    as_schema,
    shown,
)
from dragoman.addons.providers.openai_chat import OPENAI_CHAT
from dragoman.addons.providers.openai_errors import REQUEST_ID_HEADER, error_object, error_status
from dragoman.addons.providers.openai_items import SUMMARISE, issue_summary, read_input, summary_of
from dragoman.addons.providers.openai_tools import call_item, choice_shown, read_tool_choice, read_tools
from dragoman.addons.sse import encode_event
from dragoman.store.records import JsonObject, ProviderName

# OpenRouter puts /api before the version; the last one is Codex with a ChatGPT login.
_PATH = re.compile(r"(?:(?:/api)?/v1|/backend-api/codex)/responses(?P<compact>/compact)?")
_RESPONSE_ID = re.compile(r"resp_([a-z0-9]{20})")
# Content that is kept at OpenAI, or another way of answering.
_REFUSED = ("background", "conversation", "prompt")
# A call's field that the stream spells out, and the events that do so.
_SPELT_OUT = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
_SOCKET, _COMPACT = "socket", "compact"
ON_SOCKET = Route("generate", variant=_SOCKET)
"""The route of a request that came over a WebSocket."""


class OpenAIResponses:
    name: ProviderName = "openai_responses"
    hosts: tuple[str, ...] = ("api.openai.com", "chatgpt.com", "openrouter.ai")
    tool_call_prefix: str = "call_"
    request_id_header: str | None = REQUEST_ID_HEADER

    def route(self, method: str, path: str) -> Route | None:
        if method != "POST":
            return None
        if path == "/v1/responses/input_tokens":
            return Route("count_tokens")
        match = _PATH.fullmatch(path)
        return match and Route("generate", variant=_COMPACT if match["compact"] else "")

    def previous(self, body: JsonObject) -> str | None:
        if (previous := body.get("previous_response_id")) is None:
            return None
        match = _RESPONSE_ID.fullmatch(as_name(previous, "previous_response_id"))
        return match[1] if match else ""

    def parse_request(self, body: JsonObject, route: Route) -> ChatRequest:
        for field in _REFUSED:
            if body.get(field):
                raise Unsupported(f"{field}: {shown(body[field])} is not supported", field=field)
        if as_int(body.get("n"), "n", low=1) not in (None, 1):
            raise InvalidRequest("n: one request gives one sample; send several requests", field="n")
        previous, earlier = body.get("previous_response_id"), route.earlier
        if previous is not None and earlier is None:
            message = f"Previous response with id {shown(previous)} not found."
            raise InvalidRequest(message, field="previous_response_id")
        _refuse_logprobs(body)
        found, input_tools = read_tools(body, () if earlier is None else earlier.tools)
        tools, tool_choice = read_tool_choice(body, found)
        messages = read_input(body, () if earlier is None else earlier.messages)
        compacts = messages[-1:] == (SUMMARISE,)
        if route.variant == _COMPACT and not compacts:
            messages = (*messages, SUMMARISE)
        socket = route.variant == _SOCKET
        return ChatRequest(
            provider=self.name,
            model=as_name(body.get("model"), "model"),
            messages=messages,
            tools=tools,
            tool_choice=tool_choice,
            response_format=_response_format(body.get("text")),
            sampling=Sampling(
                temperature=as_number(body.get("temperature"), "temperature", low=0, high=2),
                top_p=as_number(body.get("top_p"), "top_p", low=0, high=1, above_low=True),
                max_tokens=as_int(body.get("max_output_tokens"), "max_output_tokens", low=1),
            ),
            stream=socket or (as_flag(body.get("stream"), "stream") and route.variant != _COMPACT),
            stream_form="messages" if socket else "sse",
            responses=ResponsesDetails(
                previous=previous,
                kept=as_flag(body.get("store"), "store", default=True),
                instructions=bool(body.get("instructions")),
                input_tools=tuple(tool.name for tool in tools if tool.name in input_tools),
                warm_up=socket and not as_flag(body.get("generate"), "generate", default=True),
                stream_id=as_name(body["stream_id"], "stream_id") if socket and body.get("stream_id") else None,
                compaction="list" if route.variant == _COMPACT else "item" if compacts else None,
            ),
        )

    def render_reply(self, reply: Reply, request: ChatRequest) -> JsonObject:
        compaction = request.details.compaction
        if compaction is not None:
            items = [_compaction_item(reply)]
            if compaction == "list":
                return {
                    "id": f"resp_{reply.id}",
                    "object": "response.compaction",
                    "created_at": reply.created,
                    "output": items,
                    "usage": _usage(reply.usage),
                }
            response = _response(reply, request, "completed")
            return {**response, "output": items, "usage": _usage(reply.usage)}
        cut = reply.finish_reason in ("length", "abort")  # the dialect has no word for what the engine broke off
        last = len(reply.parts) - 1
        return {
            **_response(reply, request, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [
                _item(part, reply.id, request, "incomplete" if cut and i == last else "completed")
                for i, part in enumerate(reply.parts)
            ],
            "usage": _usage(reply.usage),
        }

    def encoder(self, request: ChatRequest) -> ReplyEncoder:
        return _Encoder(self, request)

    def render_count(self, prompt_tokens: int) -> JsonObject:
        return {"object": "response.input_tokens", "input_tokens": prompt_tokens}

    def render_models(self, models: Sequence[str], created: int) -> JsonObject:
        return OPENAI_CHAT.render_models(models, created)

    def render_model(self, model: str, created: int) -> JsonObject:
        return OPENAI_CHAT.render_model(model, created)

    def error_body(self, error: DragomanError, call_id: str | None) -> JsonObject:
        return {"error": _error(error)}

    def error_status(self, error: DragomanError) -> int:
        return error_status(error)


OPENAI_RESPONSES = OpenAIResponses()


def socket_error(error: DragomanError, call_id: str | None, stream_id: str | None) -> bytes:
    """The message for a request on a socket that is refused before its reply begins, as one line.

    Codex reads the status and the ``headers`` at the top; the SDK has the headers under ``error``.
    """
    headers = {} if call_id is None else {REQUEST_ID_HEADER: f"req_{call_id}"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    fields = {**_error(error), "headers": headers}
    event = {"type": "error", "status": error_status(error), "error": fields, "headers": headers, **_lane(stream_id)}
    return orjson.dumps(event) + b"\n"


def _lane(stream_id: str | None) -> JsonObject:
    return {} if stream_id is None else {"stream_id": stream_id}


def _error(error: DragomanError) -> JsonObject:
    fields = error_object(error)
    if isinstance(error, ContextTooLong):
        # OpenAI's wording for this dialect, by which harnesses know that they must compact.
        fields["param"] = "input"
        fields["message"] = (
            "Your input exceeds the context window of this model. Please adjust your input and try again. "
            f"({error.prompt_tokens} tokens; the limit is {error.limit})"
        )
    if error.field == "previous_response_id":
        fields["code"] = "previous_response_not_found"
    return fields


# -- the request -----------------------------------------------------------------------------------------------------


def _response_format(value: object) -> ResponseFormat | None:
    form = None if value is None else as_object(value, "text").get("format")
    if form is None:
        return None
    form = as_object(form, "text.format")
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return ResponseFormat("json_object")
        case "json_schema":
            return ResponseFormat("json_schema", as_schema(form.get("schema"), "text.format.schema"))
        case kind:
            raise Unsupported(f"text.format.type: {shown(kind)} is not supported", field="text.format.type")


def _refuse_logprobs(body: JsonObject) -> None:
    wanted = body.get("include")
    if "message.output_text.logprobs" in ([] if wanted is None else as_list(wanted, "include")):
        raise Unsupported("include: 'message.output_text.logprobs' is not supported", field="include")
    if as_int(body.get("top_logprobs"), "top_logprobs", low=0, high=20):
        raise Unsupported("top_logprobs: logprobs are not supported here", field="top_logprobs")


# -- the reply -------------------------------------------------------------------------------------------------------


def _response(of: Reply | ReplyStarted, request: ChatRequest, status: str) -> JsonObject:
    """The response object before anything is in it."""
    asked, details = request.sampling, request.details
    return {
        "id": f"resp_{of.id}",
        "object": "response",
        "created_at": of.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": asked.max_tokens,
        "metadata": {},
        "model": of.model,
        "output": [],
        "parallel_tool_calls": request.tool_choice.parallel,
        "previous_response_id": details.previous,
        "store": details.kept,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "tool_choice": choice_shown(request.tool_choice, request.tools),
        "tools": [],
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _compaction_item(reply: Reply) -> JsonObject:
    return {"id": f"cmp_{reply.id}", "type": "compaction", "encrypted_content": issue_summary(summary_of(reply.parts))}


def _item(part: ReplyPart, call_id: str, request: ChatRequest, status: str) -> JsonObject:
    match part:
        case ReasoningPart(text=text):
            summary = [{"type": "summary_text", "text": text}]
            return {**_reasoning_item(call_id), "summary": summary, "encrypted_content": issue_signature(call_id)}
        case TextPart(text=text):
            return {**_message_item(call_id), "status": status, "content": [_output_text(text)]}
        case ToolCallPart():
            return call_item(part, request.tools)


def _reasoning_item(call_id: str) -> JsonObject:
    return {"id": f"rs_{call_id}", "type": "reasoning", "summary": []}


def _message_item(call_id: str) -> JsonObject:
    return {"id": f"msg_{call_id}", "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def _output_text(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


# -- the stream ------------------------------------------------------------------------------------------------------


class _Encoder:
    def __init__(self, provider: OpenAIResponses, request: ChatRequest) -> None:
        self._provider = provider
        self._request = request
        self._started: ReplyStarted | None = None
        self._sequence = 0
        self._index = 0  # of the item that is open, or else of the next
        self._open: type[ReasoningPart] | type[TextPart] | None = None
        self._text: list[str] = []  # of the item that is open
        self._stream_id = request.details.stream_id
        self._whole = request.details.compaction is not None  # whether the text is told at the end only

    def encode(self, event: ReplyEvent) -> bytes:
        match event:
            case ReasoningDelta() | TextDelta() if self._whole:
                return b""
            case ReplyStarted():
                self._started = event
                return self._event("response.created", response=self._progress()) + self.keep_alive()
            case ReasoningDelta(text=text):
                return self._delta(ReasoningPart, text)
            case TextDelta(text=text):
                return self._delta(TextPart, text)
            case ReplyFinished(reply=reply):
                return self._finish(reply)
            case ReplyFailed(error=error):
                return self._fail(to_dragoman_error(error))

    def keep_alive(self) -> bytes:
        return self._event("response.in_progress", response=self._progress())

    def _progress(self) -> JsonObject:
        return _response(self._start, self._request, "in_progress")

    @property
    def _start(self) -> ReplyStarted:
        if self._started is None:
            raise RuntimeError("an event was asked for before ReplyStarted")
        return self._started

    def _event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **_lane(self._stream_id), **fields}
        self._sequence += 1
        return orjson.dumps(data) + b"\n" if self._request.stream_form == "messages" else encode_event(data, kind)

    def _item_event(self, kind: str, item: JsonObject) -> bytes:
        return self._event(f"response.output_item.{kind}", output_index=self._index, item=item)

    def _part_event(self, kind: str, **fields: object) -> bytes:
        """An event about the one part of the item that is open."""
        item_id, index = ("rs", "summary_index") if self._open is ReasoningPart else ("msg", "content_index")
        place = {"item_id": f"{item_id}_{self._start.id}", "output_index": self._index, index: 0}
        return self._event(f"response.{kind}", **place, **fields)

    def _delta(self, kind: type[ReasoningPart] | type[TextPart], text: str) -> bytes:
        opening = b"" if self._open is kind else self._close("completed") + self._begin(kind)
        self._text.append(text)
        if kind is ReasoningPart:
            return opening + self._part_event("reasoning_summary_text.delta", delta=text)
        return opening + self._part_event("output_text.delta", delta=text, logprobs=[])

    def _begin(self, kind: type[ReasoningPart] | type[TextPart]) -> bytes:
        self._open = kind
        if kind is ReasoningPart:
            added = self._item_event("added", _reasoning_item(self._start.id))
            return added + self._part_event("reasoning_summary_part.added", part={"type": "summary_text", "text": ""})
        added = self._item_event("added", _message_item(self._start.id))
        return added + self._part_event("content_part.added", part=_output_text(""))

    def _close(self, status: str) -> bytes:
        """End the item that is open, if one is."""
        if self._open is None:
            return b""
        text = "".join(self._text)
        if self._open is ReasoningPart:
            part = {"type": "summary_text", "text": text}
            done = self._part_event("reasoning_summary_text.done", text=text)
            done += self._part_event("reasoning_summary_part.done", part=part)
        else:
            done = self._part_event("output_text.done", text=text, logprobs=[])
            done += self._part_event("content_part.done", part=_output_text(text))
        done += self._item_event("done", _item(self._open(text), self._start.id, self._request, status))
        self._open, self._text = None, []
        self._index += 1
        return done

    def _finish(self, reply: Reply) -> bytes:
        response = self._provider.render_reply(reply, self._request)
        if self._whole:
            (item,) = response["output"]
            told = self._item_event("added", {**item, "encrypted_content": ""}) + self._item_event("done", item)
            return told + self._event("response.completed", response=response)
        calls = response["output"][sum(not isinstance(part, ToolCallPart) for part in reply.parts) :]
        events = [self._close("completed" if calls else response["status"])]
        events += [self._call(item) for item in calls]
        return b"".join((*events, self._event("response.completed", response=response)))

    def _call(self, item: JsonObject) -> bytes:
        """A whole call, from its beginning to its end."""
        field, kind = _SPELT_OUT.get(item["type"], ("", ""))
        if field:
            place = {"item_id": item["id"], "output_index": self._index}
            said = item[field]
            events = self._item_event("added", {**item, "status": "in_progress", field: ""})
            events += self._event(f"response.{kind}.delta", **place, delta=said)
            events += self._event(f"response.{kind}.done", **place, **{field: said})
        else:
            events = self._item_event("added", {**item, "status": "in_progress"})
        events += self._item_event("done", item)
        self._index += 1
        return events

    def _fail(self, error: DragomanError) -> bytes:
        """Both forms: the SDKs, pi and OpenCode act on the first, Codex on the second, whose code says if to retry."""
        fields = _error(error)
        if not isinstance(error, ContextTooLong):
            fields["code"] = "invalid_prompt" if error.status < 500 else "server_error"
        # The API's own event has all fields under error; the SDK's type for it has them beside it.
        beside = {name: fields[name] for name in ("code", "message", "param")}
        failed = _response(self._start, self._request, "failed")
        failed["error"] = {"code": fields["code"], "message": fields["message"]}
        return self._event("error", **beside, error=fields) + self._event("response.failed", response=failed)
