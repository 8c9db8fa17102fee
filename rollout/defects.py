"""How a small model goes wrong: a broken reply for each way, as a step of the scripted engine. Pure.

Rules of this module: one table, which the tests of real harnesses and the probe of unknown ones both play. A defect is
told by the good reply that it takes the place of, whose first tool call it spoils.
"""

import json

from dragoman.store.records import JsonObject


def defect(kind: str, good: JsonObject) -> JsonObject | None:
    """The step that spoils ``good``; ``None``: ``kind`` is no defect of a model's.

    ``good`` is a step with or without ``tool_calls``; without one, what would spoil a call has an empty name.
    """
    call = good["tool_calls"][0] if "tool_calls" in good else None
    name = call["name"] if call else ""
    arguments = json.dumps(call["arguments"]) if call else ""
    match kind:
        case "broken-json":
            return {"raw": f'<tool_call>\n{{"name": "{name}", "arguments": {arguments[:-1]}, }}\n</tool_call>'}
        case "wrong-args":
            return {"tool_calls": [{"name": name, "arguments": {"wrong": 1}}]}
        case "unknown-tool":
            return {"tool_calls": [{"name": "no_such_tool", "arguments": {"path": "x"}}]}
        case "empty":
            return {"raw": ""}
        case "cut-text":
            return {"text": "I will write the file, and for that I", "end": False}
        case "cut-call":
            return {"raw": f'<tool_call>\n{{"name": "{name}", "arguments": {arguments[:25]}', "end": False}
        case "stream-failure":
            return {"text": "I will write the file now.", "error_after": 3}
    return None


def slow(good: JsonObject, seconds: float) -> JsonObject:
    """``good``, all at once after ``seconds`` without a token."""
    return {**good, "delay": seconds, "chunk": 10_000}
