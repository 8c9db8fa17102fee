"""The OpenAI Responses dialect over HTTP, as the SDKs, Codex, pi and OpenCode speak it. Tools are in ``openai_tools``.

Rules of this module: errors name fields as OpenAI does (``input[3].content[0]``). What is read and what is not:

- Ignored, since it changes nothing that the model is shown: ``store`` (nothing is kept), ``include`` but for logprobs,
  ``metadata``, ``client_metadata``, ``prompt_cache_key`` and its kin, ``service_tier``, ``truncation`` (a prompt that
  is too long is an error), ``context_management``, ``reasoning``, ``text.verbosity``, ``max_tool_calls``, ``user``,
  ``safety_identifier``, ``moderation``, ``stream_options``; an item's ``id``, ``status``, ``phase``, annotations and
  Codex's ``internal_…`` fields; an image's ``detail``; a ``configuration_update`` of the reasoning effort.
- An empty text says nothing and makes no part.
- ``instructions`` are the first message. Each item is a message in its place, ``developer`` read as ``system``. But an
  assistant's reasoning, text and calls, which come as items of their own, are one message as long as they come in the
  order in which a reply has them: reasoning before text before calls.
- Reasoning is its ``content`` or else its ``summary``; ``encrypted_content`` is its signature. A reply tells reasoning
  as the summary, which Codex, pi and OpenCode replay, with a signature of ours even if ``include`` did not ask for it.
- ``agent_message`` (Codex's sub-agents) is a user message that names both ends; what it calls ``encrypted_content`` is
  what our own model wrote, verbatim.
- ``compaction`` and ``context_compaction`` are a user message with the summary, if it is ours (``read_summary``); that
  of another provider becomes ``OPAQUE_SUMMARY``.
- Calls that a provider ran itself (web search and the like, from a session that began elsewhere) become a text of the
  assistant's: ``[<type>]`` and the item as JSON.
- A reply that was cut has status ``incomplete`` and ``incomplete_details``, which tell the SDKs, pi and OpenCode. But
  its stream ends with ``response.completed`` too: Codex looks no further, and at ``response.incomplete`` its run fails.
- A reply repeats neither ``tools`` nor ``instructions``: no client reads them, and a stream would have them thrice.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence

from dragoman.addons.errors import ContextTooLong, DragomanError, InvalidRequest, Unsupported
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
    Role,
    Sampling,
    TextDelta,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from dragoman.addons.providers.base import ReplyEncoder, Route, issue_signature, to_dragoman_error
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
from dragoman.addons.providers.openai_chat import OPENAI_CHAT, image_part
from dragoman.addons.providers.openai_errors import REQUEST_ID_HEADER, error_object, error_status
from dragoman.addons.providers.openai_tools import (
    call_item,
    choice_shown,
    read_call,
    read_tool_choice,
    read_tools,
    tools_in,
)
from dragoman.addons.sse import encode_event
from dragoman.store.records import JsonObject, ProviderName

OPAQUE_SUMMARY = (
    "[Earlier conversation was compacted by another provider; its summary is encrypted and unreadable here.]"
)

# OpenRouter puts /api before the version; the last one is Codex with a ChatGPT login.
_PATH = re.compile(r"(?:/api)?/v1/responses|/backend-api/codex/responses")
# Content that is kept at OpenAI, or another way of answering.
_REFUSED = ("background", "conversation", "prompt")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
# A call's field that the stream spells out, and the events that do so.
_SPELT_OUT = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
_RUN_ELSEWHERE = (
    *("web_search_call", "file_search_call", "code_interpreter_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
)


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
        return Route("generate") if _PATH.fullmatch(path) else None

    def parse_request(self, body: JsonObject, route: Route) -> ChatRequest:
        for field in _REFUSED:
            if body.get(field):
                raise Unsupported(f"{field}: {shown(body[field])} is not supported", field=field)
        if as_int(body.get("n"), "n", low=1) not in (None, 1):
            raise InvalidRequest("n: one request gives one sample; send several requests", field="n")
        if (earlier := body.get("previous_response_id")) is not None:
            raise InvalidRequest(
                f"previous_response_id: {shown(earlier)} not found; send the whole conversation as input",
                field="previous_response_id",
            )
        _refuse_logprobs(body)
        tools, tool_choice = read_tool_choice(body, read_tools(body))
        return ChatRequest(
            provider=self.name,
            model=as_name(body.get("model"), "model"),
            messages=_messages(body),
            tools=tools,
            tool_choice=tool_choice,
            response_format=_response_format(body.get("text")),
            sampling=Sampling(
                temperature=as_number(body.get("temperature"), "temperature", low=0, high=2),
                top_p=as_number(body.get("top_p"), "top_p", low=0, high=1, above_low=True),
                max_tokens=as_int(body.get("max_output_tokens"), "max_output_tokens", low=1),
            ),
            stream=as_flag(body.get("stream"), "stream"),
        )

    def render_reply(self, reply: Reply, request: ChatRequest) -> JsonObject:
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


def read_summary(encrypted: str) -> str | None:
    """The text in a compaction's ``encrypted_content`` that is ours: base64 of ``dgm-summary:`` and the summary.

    ``None``: it is not one of ours. Nothing issues one yet; answering ``compaction_trigger`` will.
    """
    try:
        plain = base64.b64decode(encrypted, validate=True).decode()
    except (binascii.Error, ValueError):  # ValueError: not ASCII, or not UTF-8
        return None
    return plain.removeprefix("dgm-summary:") if plain.startswith("dgm-summary:") else None


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


def _messages(body: JsonObject) -> tuple[Message, ...]:
    messages: list[Message] = []
    if (instructions := body.get("instructions")) is not None and as_text(instructions, "instructions"):
        messages.append(Message("system", (TextPart(instructions),)))
    said = body.get("input")
    if isinstance(said, str):
        return (*messages, Message("user", (TextPart(said),) if said else ()))
    for i, value in enumerate(as_list(said, "input")):
        at = f"input[{i}]"
        message = _message(as_object(value, at), at)
        if message is not None:
            messages.append(message)
    if not messages:
        raise InvalidRequest("input: at least one message is required", field="input")
    return _turns(messages)


def _turns(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The same with what belongs to one reply of the assistant's in one message."""
    turns: list[tuple[Role, list[Part]]] = []
    for message in messages:
        if turns and turns[-1][0] == message.role == "assistant" and _goes_on(turns[-1][1], message.parts):
            turns[-1][1].extend(message.parts)
        else:
            turns.append((message.role, list(message.parts)))
    return tuple(Message(role, tuple(parts)) for role, parts in turns)


def _goes_on(parts: Sequence[Part], more: Sequence[Part]) -> bool:
    if not parts or not more:
        return True
    before, after = _place(parts[-1]), _place(more[0])
    return before < after or before == after == 2


def _place(part: Part) -> int:
    """Where a part stands in a reply: reasoning, the text, the calls."""
    return 0 if isinstance(part, ReasoningPart) else 2 if isinstance(part, ToolCallPart) else 1


def _message(item: JsonObject, at: str) -> Message | None:
    """``None``: the item says nothing here."""
    match item.get("type"):
        case None | "message":
            return _plain_message(item, at)
        case "reasoning":
            parts = _reasoning(item, at)
            return Message("assistant", parts) if parts else None
        case "tool_search_call" | "tool_search_output" if item.get("call_id") is None:
            return _run_elsewhere(item, at)
        case str(kind) if kind in _CALLS:
            return Message("assistant", (read_call(item, at),))
        case str(kind) if kind in _OUTPUTS:
            call_id = item.get("id") if item.get("call_id") is None and kind == _OUTPUTS[2] else item.get("call_id")
            output = _shown_parts(item.get("output"), f"{at}.output")
            return Message("tool", (ToolResultPart(as_name(call_id, f"{at}.call_id"), output),))
        case "tool_search_output":
            names = ", ".join(tool.name for tool in tools_in(item.get("tools"), f"{at}.tools", []))
            found = TextPart(f"Tools found: {names}" if names else "No tools found.")
            return Message("tool", (ToolResultPart(as_name(item.get("call_id"), f"{at}.call_id"), (found,)),))
        case "agent_message":
            ends = [as_text(item.get(end), f"{at}.{end}") for end in ("author", "recipient")]
            said = _shown_parts(item.get("content"), f"{at}.content")
            return Message("user", (TextPart(f"Message from {ends[0]} to {ends[1]}:"), *said))
        case str(kind) if kind in _COMPACTIONS:
            encrypted = item.get("encrypted_content")
            summary = None if encrypted is None else read_summary(as_text(encrypted, f"{at}.encrypted_content"))
            return Message("user", (TextPart(OPAQUE_SUMMARY if summary is None else summary),))
        case str(kind) if kind in _RUN_ELSEWHERE:
            return _run_elsewhere(item, at)
        case "additional_tools":
            return None
        case "configuration_update" if item.get("text") is None:
            return None
        case kind:
            raise Unsupported(f"{at}: items of type {shown(kind)} are not supported", field=at)


def _plain_message(item: JsonObject, at: str) -> Message:
    content, place = item.get("content"), f"{at}.content"
    match item.get("role"):
        case "system" | "developer":
            return Message("system", _text_parts(content, place))
        case "user":
            return Message("user", _shown_parts(content, place))
        case "assistant":
            return Message("assistant", _text_parts(content, place))
        case role:
            raise wrong(f"{at}.role", "'system', 'developer', 'user' or 'assistant'", role)


def _blocks(content: object, at: str) -> list[tuple[JsonObject, str]]:
    """The content parts, each with its path; a plain string is one text part."""
    if isinstance(content, str):
        return [({"type": "input_text", "text": content}, at)]
    if not isinstance(content, list):
        raise wrong(at, "a string or an array of content parts", content)
    return [(as_object(part, f"{at}[{i}]"), f"{at}[{i}]") for i, part in enumerate(content)]


def _shown_parts(content: object, at: str) -> tuple[TextPart | ImagePart, ...]:
    """Texts and images of a user message, of a call's output or of an agent's message."""
    parts: list[TextPart | ImagePart] = []
    for part, place in _blocks(content, at):
        if part.get("type") == "input_image":
            if part.get("image_url") is None:
                raise Unsupported(f"{place}: an image must come as image_url, not as file_id", field=place)
            url = as_name(part["image_url"], f"{place}.image_url")
            parts.append(image_part(url, f"{place}.image_url"))
        elif text := _text(part, place):
            parts.append(TextPart(text))
    return tuple(parts)


def _text_parts(content: object, at: str) -> tuple[TextPart, ...]:
    """Texts of a system or an assistant message. A refusal is a text too."""
    return tuple(TextPart(text) for part, place in _blocks(content, at) if (text := _text(part, place)))


def _text(part: JsonObject, at: str) -> str:
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return as_text(part.get("text"), f"{at}.text")
        case "refusal":
            return as_text(part.get("refusal"), f"{at}.refusal")
        case "encrypted_content":
            return as_text(part.get("encrypted_content"), f"{at}.encrypted_content")
        case kind:
            raise Unsupported(f"{at}: content of type {shown(kind)} is not supported here", field=at)


def _reasoning(item: JsonObject, at: str) -> tuple[ReasoningPart, ...]:
    content, summary, encrypted = item.get("content"), item.get("summary"), item.get("encrypted_content")
    texts = () if content is None else _text_parts(content, f"{at}.content")
    if not texts and summary is not None:
        texts = _text_parts(summary, f"{at}.summary")
    text = "\n\n".join(part.text for part in texts)
    signature = None if encrypted is None else as_text(encrypted, f"{at}.encrypted_content")
    return (ReasoningPart(text, signature),) if text or signature else ()


def _run_elsewhere(item: JsonObject, at: str) -> Message:
    said = {key: value for key, value in item.items() if key not in ("type", "id", "status")}
    return Message("assistant", (TextPart(f"[{item['type']}] {as_json(said, at)}"),))


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
    asked = request.sampling
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
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "tool_choice": choice_shown(request.tool_choice, request.tools),
        "tools": [],
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
        "usage": None,
    }


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

    def encode(self, event: ReplyEvent) -> bytes:
        match event:
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
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return encode_event(data, kind)

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
