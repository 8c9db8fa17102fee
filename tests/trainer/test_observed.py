"""Calls that a real provider answered, rendered with our model's template."""

import json
from dataclasses import replace
from typing import Any

from transformers import AutoTokenizer

from dragoman.store.packing import digest
from dragoman.store.records import Blob, CallArrival, CallInfo, CallKind, CallOutcome
from dragoman.trainer.observed import render_calls, render_with, template_messages
from tests.models import tiny_model_folder

TOOLS = [{"name": "ls", "description": "List.", "parameters": {"type": "object", "properties": {}}}]
SYSTEM = {"role": "system", "parts": [{"type": "text", "text": "Be brief."}]}
ASK = {"role": "user", "parts": [{"type": "text", "text": "What is here?"}]}
CALL = {"role": "assistant", "parts": [{"type": "tool_call", "id": "t1", "name": "ls", "arguments": "{}"}]}
RESULT = {
    "role": "user",
    "parts": [
        {"type": "tool_result", "id": "t1", "is_error": False, "parts": [{"type": "text", "text": "a.txt"}]},
        {"type": "text", "text": "Go on."},
    ],
}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "text": "One file."}]}


def blob(value: Any) -> Blob:
    data = json.dumps(value).encode()
    return Blob(digest(data), data)


def observed(name: str, reply: Any, kind: CallKind = "main") -> CallInfo:
    outcome = CallOutcome(name, "observed", 200, 9.0, tools=blob(TOOLS), reply=blob(reply))
    return CallInfo(CallArrival(name, "e", "anthropic", "/v1/messages", 1.0, kind=kind), outcome)


def raw(*messages: Any) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


def test_turns_that_continue_are_one_row_trained_on_the_replies_alone() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    calls = [observed("a", CALL), observed("b", ANSWER), observed("c", ANSWER, kind="side")]
    messages = {"a": raw(SYSTEM, ASK), "b": raw(SYSTEM, ASK, CALL, RESULT), "c": raw(ASK)}
    rows, left_out = render_calls(calls, messages, render_with(tokenizer))
    assert left_out == {"side": 1}
    (row,) = rows
    trained = tokenizer.decode(row.token_ids[row.loss_mask])
    assert trained.count("<|im_end|>") == 2
    assert '"name": "ls"' in trained
    assert "One file." in trained
    assert "What is here?" not in trained
    assert "a.txt" not in trained
    assert "a.txt" in tokenizer.decode(row.token_ids)
    assert len(row.token_ids) == len(row.loss_mask)


def test_other_calls_and_histories_that_changed() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    first = observed("a", CALL)
    assert first.outcome is not None
    answered = replace(first, outcome=replace(first.outcome, id="x", status="answered"))
    changed = {"role": "user", "parts": [{"type": "text", "text": "What else is here?"}]}
    messages = {"a": raw(SYSTEM, ASK), "b": raw(SYSTEM, changed, CALL, RESULT)}
    rows, left_out = render_calls([first, answered, observed("b", ANSWER)], messages, render_with(tokenizer))
    assert len(rows) == 2
    assert not left_out


def test_a_template_that_rewrites_the_prompt_is_left_out_by_name() -> None:
    def render(messages: list[Any], tools: list[Any], prompt: bool) -> list[int]:
        return [1, 2, 3] if prompt else [1, 9, 3, 4]

    assert render_calls([observed("a", ANSWER)], {"a": raw(ASK)}, render) == ([], {"template": 1})


def test_messages_as_a_template_takes_them() -> None:
    thought = {"role": "assistant", "parts": [{"type": "reasoning", "text": "Hm.", "signature": None}]}
    failed = json.loads(json.dumps(RESULT))
    failed["parts"][0]["is_error"] = True
    failed["parts"][0]["parts"].append({"type": "image", "media_type": "image/png", "data": "", "url": None})
    shown = template_messages([SYSTEM, SYSTEM, ASK, thought, CALL, failed, SYSTEM])
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "tool", "user", "user"]
    assert shown[0]["content"] == "Be brief.\n\nBe brief."
    assert shown[2]["reasoning_content"] == "Hm."
    assert shown[2]["tool_calls"][0]["function"] == {"name": "ls", "arguments": {}}
    assert shown[3]["content"] == "[the tool failed]\na.txt\n\n[image: this model cannot see images]"
