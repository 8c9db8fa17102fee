import shutil
from pathlib import Path

import pytest

from dragoman.addons.call_form import CallForm, marker_id, read_call_form
from dragoman.addons.tokens import TokenCodec
from tests.models import tiny_model_folder

BEGIN, END = 7164, 7165
JSON = CallForm(BEGIN, END, "json", '\n{"name": "', '", "arguments": ', "}\n", "\n")
XML = CallForm(BEGIN, END, "xml", "\n<function=", ">\n", "\n</function>\n", "\n")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.mark.parametrize(
    ("renderer", "form"), [("template", JSON), ("qwen3", JSON), ("prime-qwen3", XML), ("nemotron-3", XML)]
)
def test_the_form_is_the_one_that_the_renderer_writes(renderer: str, form: CallForm) -> None:
    assert read_call_form(TokenCodec.load(str(tiny_model_folder()), renderer=renderer)) == form


def _template(folder: Path, old: str, new: str) -> TokenCodec:
    path = folder / "chat_template.jinja"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return TokenCodec.load(str(folder))


def test_what_stands_around_a_call_is_the_templates_own(copied: Path) -> None:
    codec = _template(copied, "{{- '}\\n</tool_call>' }}", "{{- '}</tool_call>\\n\\n' }}")
    form = read_call_form(codec)
    assert form is not None
    assert (form.after, form.between) == ("}", "\n\n\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("{%- for call in message.tool_calls or [] %}", "{%- for call in [] %}", id="writes no calls"),
        pytest.param(
            "{%- for call in message.tool_calls or [] %}", "{%- for call in message.tool_calls[:1] %}", id="one"
        ),
        pytest.param("', \"arguments\": ' }}", "', \"with\": ' }}", id="not what the parser reads"),
        pytest.param(
            "{{- call.function.arguments | tojson }}", "{{- call.function.arguments | string }}", id="no JSON"
        ),
        pytest.param(
            "{%- if content or not loop.first %}{{- '\\n' }}", "{%- if true %}{{- ' and ' }}", id="text between"
        ),
    ],
)
def test_a_form_that_is_not_understood_is_not_known(copied: Path, old: str, new: str) -> None:
    assert read_call_form(_template(copied, old, new)) is None


def test_a_model_without_the_markers_has_no_known_form(copied: Path) -> None:
    tokenizer = copied / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("tool_call>", "tool_used>"))
    codec = TokenCodec.load(str(copied))
    assert marker_id(codec, "<tool_call>") is None
    assert read_call_form(codec) is None


def test_a_template_that_refuses_calls_has_no_known_form(copied: Path) -> None:
    refusal = "{%- for call in message.tool_calls or [] %}{{- raise_exception('no calls') }}"
    codec = _template(copied, "{%- for call in message.tool_calls or [] %}", refusal)
    assert read_call_form(codec) is None
