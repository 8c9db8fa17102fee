"""Calls that a real provider answered, as tokens to imitate: rendered once, with the chat template of our model.

Such calls have messages and no tokens of ours, so nothing here is on-policy: it is for SFT only, and marked so
(``Rendered``). The rules:

- A call becomes the prompt that our model would see, and behind it what it would have had to sample for this reply. A
  reply whose rendering does not begin with its prompt is left out with the reason ``template``.
- A call whose prompt begins with all of an earlier one, token for token, goes on in its row.
- Messages are read as the gateway stores them. Images become a placeholder, as for a text model in the gateway.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.store.records import CallInfo, JsonObject, TokenIds
from dragoman.store.traces import LossMask

IMAGE_PLACEHOLDER = "[image: this model cannot see images]"
TOOL_ERROR_PREFIX = "[the tool failed]\n"
KINDS = ("main", "subagent")

Render = Callable[[list[JsonObject], list[JsonObject], bool], list[int]]
"""(messages, tools, whether to add the generation prompt) → token ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """One row; arrays of shape (N,)."""

    token_ids: TokenIds
    loss_mask: LossMask
    """True on the replies."""


def render_calls(
    calls: Sequence[CallInfo], messages: Mapping[str, Sequence[bytes]], render: Render
) -> tuple[list[Rendered], Counter[str]]:
    """The rows of an episode's observed calls, and how many calls were left out, by reason.

    ``messages``: call id → its request's messages, as ``calls.read_messages`` gives them. Other calls are passed over.
    """
    rows: list[tuple[list[int], list[bool]]] = []
    left_out: Counter[str] = Counter()
    for call in calls:
        outcome = call.outcome
        if outcome is None or outcome.status != "observed" or outcome.reply is None:
            continue
        if call.arrival.kind not in KINDS:
            left_out[call.arrival.kind] += 1
            continue
        tools = [] if outcome.tools is None else _tools(json.loads(outcome.tools.data))
        asked = template_messages([json.loads(message) for message in messages[call.arrival.id]])
        reply = template_messages([json.loads(outcome.reply.data)])
        prompt = render(asked, tools, True)
        whole = render([*asked, *reply], tools, False)
        if len(whole) <= len(prompt) or whole[: len(prompt)] != prompt:
            left_out["template"] += 1
            continue
        mask = [False] * len(prompt) + [True] * (len(whole) - len(prompt))
        earlier = next((n for n, (ids, _) in enumerate(rows) if prompt[: len(ids)] == ids), None)
        if earlier is not None:
            mask[: len(rows[earlier][1])] = rows[earlier][1]
            rows[earlier] = (whole, mask)
        else:
            rows.append((whole, mask))
    return [Rendered(np.array(ids, np.int32), np.array(mask, np.bool_)) for ids, mask in rows], left_out


def render_with(tokenizer: Any) -> Render:
    """Rendering by a tokenizer's own chat template."""

    def render(messages: list[JsonObject], tools: list[JsonObject], prompt: bool) -> list[int]:
        text = tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=prompt, tokenize=False
        )
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return render


def template_messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Stored messages as a chat template takes them: one system message first, tool results as messages of their own,
    one message for neighbouring replies."""
    shown: list[JsonObject] = []
    for message in messages:
        parts = message["parts"]
        if message["role"] == "assistant":
            reply = _reply(parts)
            if shown and shown[-1]["role"] == "assistant":
                shown[-1] = _joined_reply(shown[-1], reply)
            else:
                shown.append(reply)
            continue
        for part in parts:
            if part["type"] == "tool_result":
                prefix = TOOL_ERROR_PREFIX if part["is_error"] else ""
                shown.append({"role": "tool", "tool_call_id": part["id"], "content": prefix + _text(part["parts"])})
        others = [part for part in parts if part["type"] != "tool_result"]
        if others or not parts:
            leading = message["role"] == "system" and all(one["role"] == "system" for one in shown)
            if leading and shown:
                shown[0] = {"role": "system", "content": _paragraphs([shown[0]["content"], _text(others)])}
            else:
                shown.append({"role": "system" if leading else "user", "content": _text(others)})
    return shown


def _reply(parts: Sequence[JsonObject]) -> JsonObject:
    reply: JsonObject = {"role": "assistant", "content": _text([p for p in parts if p["type"] in ("text", "image")])}
    if reasoning := _paragraphs([part["text"] for part in parts if part["type"] == "reasoning"]):
        reply["reasoning_content"] = reasoning
    calls = [part for part in parts if part["type"] == "tool_call"]
    if calls:
        reply["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _arguments(call["arguments"])},
            }
            for call in calls
        ]
    return reply


def _joined_reply(one: JsonObject, other: JsonObject) -> JsonObject:
    joined = {**one, "content": _paragraphs([one["content"], other["content"]])}
    if reasoning := _paragraphs([one.get("reasoning_content", ""), other.get("reasoning_content", "")]):
        joined["reasoning_content"] = reasoning
    if calls := [*one.get("tool_calls", []), *other.get("tool_calls", [])]:
        joined["tool_calls"] = calls
    return joined


def _text(parts: Sequence[JsonObject]) -> str:
    return _paragraphs([part["text"] if part["type"] == "text" else IMAGE_PLACEHOLDER for part in parts])


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _arguments(text: str) -> Any:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text


def _tools(tools: Sequence[JsonObject]) -> list[JsonObject]:
    return [{"type": "function", "function": tool} for tool in tools]
