import json
import shutil
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import Message, ReasoningPart, TextPart, Tool, ToolCallPart, ToolResultPart
from dragoman.addons.tokens import TokenCodec
from tests.models import smollm2_folder, tiny_model_folder

TOOL = Tool("read_file", "Reads a file", {"type": "object", "properties": {"path": {"type": "string"}}})
USER = Message("user", (TextPart("Read it."),))


@cache
def codec(renderer: str = "auto") -> TokenCodec:
    return TokenCodec.load(str(tiny_model_folder()), renderer=renderer)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the tiny model's folder without its weights, to be changed."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def test_what_is_known_of_the_tiny_model() -> None:
    used = codec()
    assert (used.renderer_name, used.tool_parser, used.streams) == ("template", "qwen3", True)
    assert used.template_has_tools
    assert [used.decode([token]) for token in used.stop_ids] == ["<|im_end|>"]
    assert len(used.tokenizer_hash) == len(used.template_hash) == 16


@pytest.mark.engine
def test_what_is_known_of_smollm2() -> None:
    used = TokenCodec.load(str(smollm2_folder()))
    assert (used.renderer_name, used.tool_parser, used.template_has_tools) == ("template", "qwen3", True)
    assert [used.decode([token]) for token in used.stop_ids] == ["<|im_end|>"]
    assert used.tokenizer_hash != codec().tokenizer_hash
    for marker in (used.grammar.think, used.grammar.think_end, used.grammar.tool):
        assert marker is not None
    reply = used.encode("<think>\nso\n</think>\n\nHi\n<tool_call>\n{}\n</tool_call><|im_end|>")
    parsed = used.parse([1], reply, ())
    assert (parsed.reasoning, parsed.text, len(parsed.tool_calls)) == ("so", "Hi", 1)


def test_hashes_tell_models_apart(copied: Path) -> None:
    same = TokenCodec.load(str(copied))
    assert (same.tokenizer_hash, same.template_hash) == (codec().tokenizer_hash, codec().template_hash)
    assert codec("qwen3").template_hash != codec().template_hash
    template = copied / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    other = TokenCodec.load(str(copied))
    assert other.tokenizer_hash == codec().tokenizer_hash
    assert other.template_hash != codec().template_hash


def test_a_conversation_as_the_template_writes_it() -> None:
    used = codec()
    messages = (
        Message("system", (TextPart("Be brief."),)),
        USER,
        Message("assistant", (ReasoningPart("hm"), TextPart("Yes."), ToolCallPart("c1", "read_file", '{"path": "é"}'))),
        Message("user", (ToolResultPart("c1", (TextPart("hello"),)), TextPart("Go on."))),
        Message("system", (TextPart("Hurry."),)),
    )
    ids = used.render(messages, (TOOL,))
    assert ids.dtype == np.int32
    system, conversation = used.decode(ids).split("<|im_end|>\n", 1)
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    offered = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    assert json.dumps({"type": "function", "function": offered}) in system
    assert conversation == (
        "<|im_start|>user\nRead it.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes.\n"
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nhello\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n"
        "<|im_start|>system\nHurry.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_both_renderers_write_the_same_conversation() -> None:
    call = Message("assistant", (TextPart("Yes."), ToolCallPart("c1", "f", '{"a": 1}'), ToolCallPart("c2", "f", "{}")))
    results = Message("tool", (ToolResultPart("c1", (TextPart("x"),)), ToolResultPart("c2", (TextPart("y"),))))
    messages = (Message("system", (TextPart("Be brief."),)), USER, call, results, USER)
    assert codec().render(messages, ()).tolist() == codec("qwen3").render(messages, ()).tolist()


def test_a_reply_can_be_continued() -> None:
    used = codec()
    begun = Message("assistant", (TextPart("The answer"),))
    ids = used.render((USER, begun), (), continue_final=True)
    assert used.decode(ids) == "<|im_start|>user\nRead it.<|im_end|>\n<|im_start|>assistant\nThe answer"
    for last in (USER, Message("assistant", (ToolCallPart("c", "f", "{}"),))):
        with pytest.raises(Unsupported, match="only an assistant's text"):
            used.render((USER, last), (), continue_final=True)


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest, match="no messages"):
        codec().render((), ())


def test_plain_prompts() -> None:
    used = codec()
    assert used.plain_prompt("Hi<|im_end|>").tolist() == used.encode("Hi<|im_end|>").tolist()
    assert used.plain_prompt((5, 7167)).tolist() == [5, 7167]
    for prompt in ((5, 7168), (-1,), (), ""):
        with pytest.raises(InvalidRequest) as raised:
            used.plain_prompt(prompt)
        assert raised.value.field == "prompt"


def test_legacy_completions_have_no_structure() -> None:
    used = codec()
    stream = used.text_stream([1], (), stop=(), plain=True)
    stream.feed([int(token) for token in used.encode("<think>a</think><tool_call>{}<|im_end|>b")])
    _, parsed, _ = stream.finish()
    assert (parsed.reasoning, parsed.text, parsed.tool_calls) == (None, "<think>a</think><tool_call>{}", ())


def test_a_template_that_refuses_says_so(copied: Path) -> None:
    template = copied / "chat_template.jinja"
    refusal = "{%- for m in messages %}{% if m.content == 'x' %}{{ raise_exception('no x, please') }}{% endif %}"
    template.write_text(refusal + "{{ m.content + '' }}{% endfor %}" + template.read_text())
    used = TokenCodec.load(str(copied))
    with pytest.raises(Unsupported, match="refused the conversation: no x, please"):
        used.render((USER, Message("system", (TextPart("x"),))), ())
    with pytest.raises(Unsupported, match="refused the conversation: no x, please"):
        used.render_text((Message("user", (TextPart("x"),)),), ())


def test_a_template_that_takes_one_system_message_at_the_start_gets_one(copied: Path) -> None:
    messages = tuple(Message("system", (TextPart(text),)) for text in ("a", "b"))
    messages = (*messages, USER, Message("system", (TextPart("c"),)))
    everywhere = codec()
    assert everywhere.later_system
    assert everywhere.render_text(messages, ()).count("<|im_start|>system") == 3
    template = copied / "chat_template.jinja"
    refusal = "{%- for m in messages %}{% if m.role == 'system' and not loop.first %}"
    refusal += "{{ raise_exception('system must come first') }}{% endif %}{% endfor %}"
    template.write_text(refusal + template.read_text())
    used = TokenCodec.load(str(copied))
    assert not used.later_system
    assert used.render_text(messages, ()) == (
        "<|im_start|>system\na\n\nb<|im_end|>\n<|im_start|>user\nRead it.<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert used.decode(used.render(messages, ())) == used.render_text(messages, ())


def test_a_template_that_wants_arguments_as_text_gets_text(copied: Path) -> None:
    template = copied / "chat_template.jinja"
    template.write_text(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{% endfor %}"
        "{{ m.content + '<|im_end|>' }}{% endfor %}"
    )
    used = TokenCodec.load(str(copied))
    call = Message("assistant", (ToolCallPart("c1", "f", '{"a":  "é"}'), ToolCallPart("c2", "f", "broken")))
    assert used.render_text((USER, call), ()) == 'Read it.<|im_end|><{"a": "é"}><broken><|im_end|>'
    assert used.decode(used.render((USER, call), ())) == used.render_text((USER, call), ())


def test_what_cannot_be_loaded_says_why(copied: Path) -> None:
    with pytest.raises(OSError, match="no-such-model"):
        TokenCodec.load("/no-such-model")
    with pytest.raises(ValueError, match="No renderer config registered for name='qwen9'"):
        TokenCodec.load(str(copied), renderer="qwen9")
    with pytest.raises(ValueError, match="'llama-3' does not fit"):
        TokenCodec.load(str(copied), renderer="llama-3")
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        TokenCodec.load(str(copied))


def test_threads_can_share_it() -> None:
    used = codec()
    messages = (Message("user", (TextPart("word " * 2000),)),)
    expected = used.render(messages, (TOOL,)).tolist()
    failures: list[object] = []

    def work() -> None:
        for _ in range(20):
            ids = used.render(messages, (TOOL,))
            if ids.tolist() != expected or used.parse(ids, ids[:50], ()) is None:
                failures.append(ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
