"""What is found out about a model by trying, on copies of the tiny model with changed files."""

import json
import shutil
from pathlib import Path

import pytest

from dragoman.addons.messages import Message, TextPart, Tool, ToolCallPart
from dragoman.addons.tokens import TokenCodec
from tests.models import tiny_model_folder

TOOL = Tool("read_file", "Reads a file", {"type": "object", "properties": {"path": {"type": "string"}}})
USER = Message("user", (TextPart("Read it."),))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The tiny model's folder without its weights."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def test_the_turn_close_is_found_although_another_token_ends_the_sequence(copied: Path) -> None:
    path = copied / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": "<|endoftext|>"}))
    (copied / "generation_config.json").unlink()
    used = TokenCodec.load(str(copied))
    assert [used.decode([token]) for token in used.stop_ids] == ["<|endoftext|>", "<|im_end|>"]
    assert used.parse([1], used.encode("Hi<|im_end|>\n"), ()).text == "Hi"


def test_the_generation_config_can_name_more_ends(copied: Path) -> None:
    (copied / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert TokenCodec.load(str(copied)).stop_ids == (0, 2)


def test_a_template_without_tools_is_found_out(copied: Path) -> None:
    (copied / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    used = TokenCodec.load(str(copied))
    assert not used.template_has_tools
    assert used.tool_parser == "qwen3", "by its marker, since the template writes no calls"


XML_CALL = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}"
    "{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>\\n' + v + '\\n</parameter>\\n' }}"
    "{% endfor %}"
    "{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_the_parser_is_the_one_that_reads_the_templates_own_calls(copied: Path) -> None:
    (copied / "chat_template.jinja").write_text(XML_CALL)
    used = TokenCodec.load(str(copied))
    assert used.tool_parser == "qwen3.5"
    assert not used.broken_arguments, "it wants the members of an object"
    broken = Message("assistant", (ToolCallPart("c1", "read_file", '{"path": '),))
    assert '<parameter=malformed>\n{"path": \n</parameter>' in used.render_text((USER, broken), ())
    reply = "Yes.\n<tool_call>\n<function=read_file>\n<parameter=path>\n12\n</parameter>\n</function>\n</tool_call>"
    (call,) = used.parse([1], used.encode(reply), (TOOL,)).tool_calls
    assert (call.name, call.arguments, call.status) == ("read_file", '{"path": "12"}', "ok")
