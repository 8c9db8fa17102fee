"""The conversation in Google's dialect: ``systemInstruction`` and ``contents`` as messages. Pure.

Rules of this module: as in the API, field names are read in camel case and in snake case, a null is a missing field,
and one object may stand for a list of one.

- An empty text says nothing and makes no part. Neighbouring contents of the model are one message, and neighbouring
  texts in it one text: the official SDK's chat keeps every chunk of a stream as a content of its own.
- A user's content that mixes function responses with other parts becomes several messages, in order, as in the
  Anthropic dialect. Media right after a response belongs to it: that is how Gemini CLI sends what a tool has read.
  A response that repeats an earlier one in every part is left out: ``gemini --resume`` sends each of them twice.
- A response ``{"output": …}`` or ``{"error": …}`` means its value, as the API defines; any other is shown as JSON.
- A call without an id gets the id that we gave it, where the signature beside it (or before it) is ours; pi sends no
  ids for models that it does not know. A response without an id belongs to the first unanswered call of its name.
"""

import base64
import binascii
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from dragoman.addons.providers.base import read_signature
from dragoman.addons.providers.fields import as_flag, as_json, as_list, as_name, as_object, as_text, shown, wrong
from dragoman.addons.providers.google_schema import camel_case
from dragoman.store.records import JsonObject

TOOL_CALL_PREFIX = "fc_"
_PART_NOTES = {"thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution", "mediaProcessing"}


def fields_of(value: object, at: str) -> JsonObject:
    """An object of the API's own by its field names in camel case, less nulls."""
    given = as_object(value, at)
    named = {camel_case(key): item for key, item in given.items()}
    if len(named) < len(given):
        raise InvalidRequest(f"{at}: a field is given both in camel case and in snake case", field=at)
    return {key: item for key, item in named.items() if item is not None}


def items_of(value: object, at: str) -> list[tuple[JsonObject, str]]:
    """The objects of a list, each with its path."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(fields_of(value, at), at)]
    return [(fields_of(item, f"{at}[{i}]"), f"{at}[{i}]") for i, item in enumerate(as_list(value, at))]


def _parts(content: JsonObject, at: str) -> list[tuple[str, JsonObject, str]]:
    """The parts of a content, each with the word for its kind and its path."""
    parts = items_of(content.get("parts"), f"{at}.parts")
    if not parts:
        raise InvalidRequest(f"{at}.parts: must hold at least one part", field=f"{at}.parts")
    return [(_kind(part, place), part, place) for part, place in parts]


def _kind(part: JsonObject, at: str) -> str:
    kinds = [key for key in part if key not in _PART_NOTES]
    if len(kinds) != 1:
        raise InvalidRequest(f"{at}: a part must be of exactly one kind, got {shown(kinds)}", field=at)
    return kinds[0]


def _refused(kind: str, at: str, where: str) -> Unsupported:
    return Unsupported(f"{at}: a part of kind {shown(kind)} is not supported in {where}", field=at)


def read_system(value: object) -> tuple[Message, ...]:
    """No message, or one with a part for each text."""
    if value is None:
        return ()
    at = "systemInstruction"
    content = {"parts": [{"text": value}]} if isinstance(value, str) else fields_of(value, at)
    texts = []
    for kind, part, place in _parts(content, at):
        if kind != "text":
            raise _refused(kind, place, "a system instruction")
        texts.append(TextPart(as_text(part["text"], f"{place}.text")))
    said = tuple(text for text in texts if text.text)
    return (Message("system", said),) if said else ()


def read_messages(value: object) -> tuple[Message, ...]:
    contents = [(_role(content, at), content, at) for content, at in items_of(value, "contents")]
    if not contents:
        raise InvalidRequest("contents: at least one content is required", field="contents")
    history = _History()
    messages: list[Message] = []
    for role, run in itertools.groupby(contents, key=lambda content: content[0]):
        parts = [_parts(content, at) for _, content, at in run]
        if role == "model":
            messages.append(history.model_turn(itertools.chain.from_iterable(parts)))
        else:
            messages += itertools.chain.from_iterable(history.user_turn(content) for content in parts)
    return tuple(messages)


def _role(content: JsonObject, at: str) -> str:
    role = content.get("role") or "user"
    if role not in ("user", "model", "function", "tool"):
        raise wrong(f"{at}.role", "'user', 'model' or 'function'", role)
    return "model" if role == "model" else "user"


class _History:
    """Reads a conversation in its order, and knows by then which calls were made and which results have come."""

    def __init__(self) -> None:
        self._calls: set[str] = set()  # ids of all calls
        self._made_up: set[str] = set()  # those of them that the harness gave no id
        self._answered: set[str] = set()  # those that have a result
        self._results: dict[str, ToolResultPart] = {}  # by id of the call
        self._last_turn: dict[str, deque[str]] = {}  # name -> ids of its calls in the model's last turn

    def model_turn(self, parts: Iterable[tuple[str, JsonObject, str]]) -> Message:
        self._last_turn = {}
        said: list[Part] = []
        issued, count = None, 0  # the call of ours that these parts come from, and how many function calls it has had
        for kind, part, at in parts:
            signature = as_text(part.get("thoughtSignature", ""), f"{at}.thoughtSignature") or None
            ours = None if signature is None else read_signature(signature)
            if ours is not None and ours != issued:
                issued, count = ours, 0
            match kind:
                case "text":
                    text = as_text(part["text"], f"{at}.text")
                    thought = as_flag(part.get("thought"), f"{at}.thought")
                    if text or (thought and signature is not None):
                        said.append(ReasoningPart(text, signature) if thought else TextPart(text))
                case "functionCall":
                    said.append(self._call(part["functionCall"], f"{at}.functionCall", issued, count))
                    count += 1
                case _:
                    raise _refused(kind, at, "a content of the model")
        return Message("assistant", tuple(_joined(said)))

    def _call(self, value: object, at: str, issued: str | None, count: int) -> ToolCallPart:
        call = fields_of(value, at)
        if "partialArgs" in call:
            raise Unsupported(f"{at}.partialArgs: send the arguments whole, as args", field=f"{at}.partialArgs")
        given = as_text(call.get("id", ""), f"{at}.id")
        made_up = f"unnamed_{len(self._calls)}" if issued is None else f"{TOOL_CALL_PREFIX}{issued}_{count}"
        part = ToolCallPart(
            id=given or made_up,
            name=as_name(call.get("name"), f"{at}.name"),
            arguments=as_json(as_object(call.get("args", {}), f"{at}.args"), f"{at}.args"),
        )
        self._calls.add(part.id)
        if not given:
            self._made_up.add(part.id)
        self._answered.discard(part.id)  # a harness that uses an id again means a new call
        self._results.pop(part.id, None)
        self._last_turn.setdefault(part.name, deque()).append(part.id)
        return part

    def user_turn(self, parts: Iterable[tuple[str, JsonObject, str]]) -> list[Message]:
        """One message for each run of function responses and for each run of other parts."""
        said: list[tuple[Part, list[ImagePart]]] = []  # each part, with the images that came after a result
        for kind, part, at in parts:
            match kind:
                case "text":
                    if text := as_text(part["text"], f"{at}.text"):
                        said.append((TextPart(text), []))
                case "inlineData":
                    image = _image(part["inlineData"], f"{at}.inlineData")
                    if said and isinstance(said[-1][0], ToolResultPart):
                        said[-1][1].append(image)
                    else:
                        said.append((image, []))
                case "functionResponse":
                    said.append((self._result(part["functionResponse"], f"{at}.functionResponse"), []))
                case _:
                    raise _refused(kind, at, "a user's content")
        if not said:
            return [Message("user", ())]
        kept = [whole for part, images in said if (whole := self._new(part, images)) is not None]
        runs = itertools.groupby(kept, key=lambda part: isinstance(part, ToolResultPart))
        return [Message("tool" if results else "user", tuple(run)) for results, run in runs]

    def _result(self, value: object, at: str) -> ToolResultPart:
        result = fields_of(value, at)
        name = as_name(result.get("name"), f"{at}.name")
        response = as_object(result.get("response", {}), f"{at}.response")
        parts: list[TextPart | ImagePart] = _response_texts(response, f"{at}.response")
        for part, place in items_of(result.get("parts"), f"{at}.parts"):
            kind = _kind(part, place)
            if kind != "inlineData":
                raise _refused(kind, place, "a function response")
            parts.append(_image(part[kind], f"{place}.{kind}"))
        call_id = self._answered_call(as_text(result.get("id", ""), f"{at}.id"), name)
        if call_id is None:
            raise InvalidRequest(f"{at}: no function call of the name {shown(name)} waits for a response", field=at)
        self._answered.add(call_id)
        is_error = bool(response.get("error")) or list(response) == ["error"]
        return ToolResultPart(call_id, tuple(parts), is_error)

    def _answered_call(self, given: str, name: str) -> str | None:
        """The id of the call that a response of this id (empty: it has none) and name answers; ``None``: none does."""
        for known in (given, given.removeprefix(f"{name}__")):  # Gemini CLI's own form of an id
            if known in self._calls:
                return known
        waiting = self._last_turn.get(name, deque())
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        if waiting and (not given or waiting[0] in self._made_up):  # Gemini CLI makes up an id where it got none
            return waiting[0]
        return given or None

    def _new(self, part: Part, images: list[ImagePart]) -> Part | None:
        """The part with its images; ``None``: a result that repeats an earlier one."""
        if not isinstance(part, ToolResultPart):
            return part
        result = replace(part, parts=(*part.parts, *images))
        earlier = self._results.get(result.call_id)
        self._results[result.call_id] = result
        return None if result == earlier else result


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """The deltas of one text, or of one thought, as one part. A second signature means a second thought."""
    for kind, run in itertools.groupby(parts, key=type):
        if kind is TextPart:
            yield TextPart("".join(part.text for part in run if isinstance(part, TextPart)))
        elif kind is ReasoningPart:
            texts: list[str] = []
            signature = None
            for part in run:
                assert isinstance(part, ReasoningPart)
                if signature is not None and part.signature is not None:
                    yield ReasoningPart("".join(texts), signature)
                    texts, signature = [], None
                texts.append(part.text)
                signature = signature or part.signature
            yield ReasoningPart("".join(texts), signature)
        else:
            yield from run


def _response_texts(response: JsonObject, at: str) -> list[TextPart | ImagePart]:
    value: Any = response
    if len(response) == 1:
        value = response.get("output", response.get("error", response))
    if value in ("", {}):
        return []
    return [TextPart(value if isinstance(value, str) else as_json(value, at))]


def _image(value: object, at: str) -> ImagePart:
    blob = fields_of(value, at)
    media_type = as_name(blob.get("mimeType"), f"{at}.mimeType")
    if not media_type.startswith("image/"):
        raise Unsupported(f"{at}.mimeType: {shown(media_type)} cannot be shown to the model", field=f"{at}.mimeType")
    # Base64 may use either alphabet here, and the Python SDK uses the other one.
    data = as_name(blob.get("data"), f"{at}.data").replace("-", "+").replace("_", "/")
    data += "=" * (-len(data) % 4)
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise wrong(f"{at}.data", "base64", blob["data"]) from error
    return ImagePart(media_type, data)
