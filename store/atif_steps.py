"""The steps of an ATIF trajectory, from stored messages. No I/O.

Rules of this module: messages are the JSON that the gateway stores (``role`` and ``parts``), which no provider's names
are left in. A result of a tool belongs to the step that asked for it, found by the call's id, which a harness may have
put something in front of; one that nobody asked for is kept without an id, and its own is in its ``extra``.
"""

import json
from collections.abc import Iterable
from typing import Any

from dragoman.store.records import JsonObject

IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""The types that the format knows."""


class Steps:
    """A trajectory's steps while they are added. ``done`` is what the format calls ``steps``."""

    def __init__(self) -> None:
        self.done: list[JsonObject] = []

    def say(self, message: JsonObject, *, copied: bool) -> None:
        """Add a message of a request. ``copied``: an earlier trajectory has it already."""
        results = [part for part in message["parts"] if part["type"] == "tool_result"]
        for part in results:
            self._result(part)
        rest = [part for part in message["parts"] if part["type"] != "tool_result"]
        if message["role"] == "assistant":  # nothing that is known to be sampled: it must not be trained on
            self._agent(rest, {"is_copied_context": True})
        elif rest or not results:
            source = "user" if message["role"] == "user" else "system"
            self._add(source, {"message": content(rest), **({"is_copied_context": True} if copied else {})})

    def reply(self, message: JsonObject, **fields: Any) -> None:
        """Add the agent step of a call; ``None`` among the fields is left out."""
        self._agent(message["parts"], {name: value for name, value in fields.items() if value is not None})

    def _agent(self, parts: list[JsonObject], fields: JsonObject) -> None:
        said = {"message": content(part for part in parts if part["type"] in ("text", "image"))}
        thought = [part["text"] for part in parts if part["type"] == "reasoning" and part["text"]]
        if thought:
            said["reasoning_content"] = "\n".join(thought)
        calls = [_tool_call(part) for part in parts if part["type"] == "tool_call"]
        if calls:
            said["tool_calls"] = calls
        self._add("agent", {**said, **fields})

    def _add(self, source: str, fields: JsonObject) -> None:
        self.done.append({"step_id": len(self.done) + 1, "source": source, **fields})

    def _result(self, part: JsonObject) -> None:
        result: JsonObject = {"content": content(part["parts"])}
        asked = next((step for step in reversed(self.done) if _asked(step, part["id"])), None)
        if asked is not None:
            result["source_call_id"] = _asked(asked, part["id"])
        else:
            result["extra"] = {"tool_call_id": part["id"]}
            if not self.done:
                self._add("system", {"message": ""})
            asked = self.done[-1]
        if part["is_error"]:
            result["extra"] = {**result.get("extra", {}), "is_error": True}
        asked.setdefault("observation", {"results": []})["results"].append(result)


def content(parts: Iterable[JsonObject]) -> str | list[JsonObject]:
    """Text as it is where there is one, else a list of the format's ``ContentPart``."""
    known = [_part(part) for part in parts]
    if not known:
        return ""
    if len(known) == 1 and known[0]["type"] == "text":
        return str(known[0]["text"])
    return known


def tool_definition(tool: JsonObject) -> JsonObject:
    """A stored tool as OpenAI writes functions."""
    return {"type": "function", "function": tool}


def _part(part: JsonObject) -> JsonObject:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part["type"] == "image" and part["media_type"] in IMAGES:
        path = part["url"] or f"data:{part['media_type']};base64,{part['data']}"
        return {"type": "image", "source": {"media_type": part["media_type"], "path": path}}
    return {"type": "text", "text": f"[{part['type']} {part.get('media_type') or part.get('url') or ''}]"}


def _tool_call(part: JsonObject) -> JsonObject:
    call: JsonObject = {"tool_call_id": part["id"], "function_name": part["name"]}
    try:
        arguments = json.loads(part["arguments"])
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {**call, "arguments": arguments}
    return {**call, "arguments": {}, "extra": {"arguments": part["arguments"]}}  # malformed, kept as it was sampled


def _asked(step: JsonObject, result_id: str) -> str | None:
    """The id of the step's tool call that a result is of."""
    ids: list[str] = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    return next((known for known in ids if known == result_id), next((k for k in ids if k and k in result_id), None))
