"""Tokenizers of the model lines that the bridges are tried on, built in code, and what a model of each line writes.

Each is a small byte-level BPE with the line's own special tokens. The chat templates are not copied into this project:
they are read where the engine environment's packages ship them (``trl``); where they are not, the test is skipped.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from dragoman.addons.messages import ToolCallPart
from dragoman.addons.tokens import TokenCodec
from dragoman.trainer.tiny_model import TEMPLATE as CHATML
from tests.models import engine_python


@dataclass(frozen=True, slots=True)
class Family:
    """A model line's tokens, and how its models write: this one as Qwen3 does."""

    special: tuple[str, ...]
    """Added tokens that a decoder may skip."""
    eos: str
    ends: tuple[str, ...]
    """What ``generation_config.json`` says ends a reply."""
    bos: str | None = None
    markers: tuple[str, ...] = ()
    """Added tokens that a decoder keeps."""

    def reply(
        self,
        reasoning: str | None,
        text: str,
        calls: Sequence[ToolCallPart],
        *,
        prompt: str,
        cut: bool = False,
    ) -> str:
        """What is sampled behind ``prompt``.

        ``reasoning``: ``None`` writes no thinking block unless the prompt has opened one, empty text an empty one.
        ``cut``: the limit came before the end.
        """
        written = self.thinks(reasoning, opened=prompt.rstrip().endswith("<think>"))
        written += text + (self.calls(calls, text) if calls else "")
        return written if cut else written + self.close(calls)

    def thinks(self, reasoning: str | None, *, opened: bool) -> str:
        if opened:
            return f"{reasoning or ''}\n</think>\n\n"
        return "" if reasoning is None else f"<think>\n{reasoning}\n</think>\n\n"

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        blocks = (f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>' for c in calls)
        return ("\n" if text else "") + "\n".join(blocks)

    def close(self, calls: Sequence[ToolCallPart]) -> str:
        return self.eos


class Qwen35(Family):
    """Calls are XML."""

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        blocks = []
        for call in calls:
            values = json.loads(call.arguments).items()
            inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
            blocks.append(f"<tool_call>\n<function={call.name}>\n{inner}</function>\n</tool_call>")
        return ("\n\n" if text else "") + "\n".join(blocks)


class Llama3(Family):
    """A call is bare JSON, one a reply."""

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        return "".join(f'{{"name": "{call.name}", "parameters": {call.arguments}}}' for call in calls)


class Gemma4(Family):
    """Reasoning is a channel; a call is closed by the opening of its result."""

    def thinks(self, reasoning: str | None, *, opened: bool) -> str:
        return "" if reasoning is None else f"<|channel>thought\n{reasoning}\n<channel|>"

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        written = ""
        for call in calls:
            values = ",".join(f'{key}:<|"|>{value}<|"|>' for key, value in json.loads(call.arguments).items())
            written += f"<|tool_call>call:{call.name}{{{values}}}<tool_call|>"
        return written

    def close(self, calls: Sequence[ToolCallPart]) -> str:
        return "<|tool_response>" if calls else "<turn|>"


class Glm45(Family):
    """A reply ends with the marker of whoever speaks next, and always has a thinking block."""

    def thinks(self, reasoning: str | None, *, opened: bool) -> str:
        return f"\n<think>{reasoning or ''}</think>\n"

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        blocks = []
        for call in calls:
            values = json.loads(call.arguments).items()
            inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values)
            blocks.append(f"<tool_call>{call.name}\n{inner}</tool_call>")
        return ("\n" if text else "") + "\n".join(blocks)

    def close(self, calls: Sequence[ToolCallPart]) -> str:
        return "<|observation|>" if calls else "<|user|>"


class Glm45ByHand(Glm45):
    """As the hand-written renderer has it: beside text, no line break between calls."""

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        written = Glm45.calls(self, calls, text)
        return written.replace("</tool_call>\n", "</tool_call>") if text else written


class Glm5(Glm45):
    """The same without white space."""

    def thinks(self, reasoning: str | None, *, opened: bool) -> str:
        return f"{reasoning or ''}</think>"

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        return Glm45.calls(self, calls, text).replace("\n", "")


def _deepseek(*names: str) -> tuple[str, ...]:
    bar = "\uff5c"
    return tuple(f"<{bar}{name.replace(' ', '▁')}{bar}>" for name in names)


class DeepSeek(Family):
    between = "\n"

    def calls(self, calls: Sequence[ToolCallPart], text: str) -> str:
        begin, end, separator, all_begin, all_end = _deepseek(
            "tool call begin", "tool call end", "tool sep", "tool calls begin", "tool calls end"
        )
        blocks = (f"{begin}function{separator}{c.name}\n```json\n{c.arguments}\n```{end}" for c in calls)
        return all_begin + self.between.join(blocks) + all_end


class DeepSeekByHand(DeepSeek):
    """As the hand-written renderer has it: no line break between calls."""

    between = ""


_QWEN_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN3 = Family(_CHATML, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), markers=_QWEN_MARKERS)
_QWEN35 = Qwen35((*_CHATML, *_VISION), "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), markers=_QWEN_MARKERS)
_LLAMA3 = Llama3(
    (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    ),
    "<|eot_id|>",
    ("<|eot_id|>", "<|eom_id|>"),
    "<|begin_of_text|>",
)
_GEMMA4 = Gemma4(
    (
        *("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|think|>", "<|image>", "<|image|>", "<image|>"),
        *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
        *("<|channel>", "<channel|>", '<|"|>'),
    ),
    "<eos>",
    ("<eos>", "<turn|>", "<|tool_response>"),
    "<bos>",
)
_GLM_TOKENS = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM_MARKERS = (*_QWEN_MARKERS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
_GLM45 = Glm45(_GLM_TOKENS, "<|endoftext|>", _GLM_ENDS, markers=_GLM_MARKERS)
_GLM45_BY_HAND = Glm45ByHand(_GLM_TOKENS, "<|endoftext|>", _GLM_ENDS, markers=_GLM_MARKERS)
_GLM5 = Glm5(_GLM_TOKENS, "<|endoftext|>", _GLM_ENDS, markers=_GLM_MARKERS)
_DEEPSEEK_TOKENS = _deepseek(
    *("begin of sentence", "end of sentence", "User", "Assistant", "tool calls begin", "tool calls end"),
    *("tool call begin", "tool call end", "tool sep", "tool outputs begin", "tool outputs end"),
    *("tool output begin", "tool output end"),
)
_BOS, _EOS = _DEEPSEEK_TOKENS[:2]
_R1 = DeepSeek(_DEEPSEEK_TOKENS, _EOS, (_EOS,), _BOS, markers=("<think>", "</think>"))
_R1_BY_HAND = DeepSeekByHand(_DEEPSEEK_TOKENS, _EOS, (_EOS,), _BOS, markers=("<think>", "</think>"))
_V3_BY_HAND = DeepSeekByHand(_DEEPSEEK_TOKENS, _EOS, (_EOS,), _BOS)

FAMILIES: dict[str, tuple[Family, str, str | None]] = {
    # name → how it writes, the renderer, and with `template` the name of the template among trl's (None: our ChatML)
    "chatml": (_QWEN3, "template", None),
    "qwen3": (_QWEN3, "template", "qwen3"),
    "qwen3-by-hand": (_QWEN3, "qwen3", None),
    "qwen3.5": (_QWEN35, "template", "qwen3_5_think"),
    "qwen3.5-by-hand": (_QWEN35, "qwen3.5", None),
    "qwen3.5-no-think": (_QWEN35, "template", "qwen3_5_nothink"),
    "llama-3": (_LLAMA3, "template", "llama3_2"),
    "llama-3-by-hand": (_LLAMA3, "llama-3", None),
    "gemma-4": (_GEMMA4, "template", "gemma4_v5"),
    "gemma-4-by-hand": (_GEMMA4, "gemma4", None),
    "glm-4.5": (_GLM45, "template", "glm4moe"),
    "glm-4.5-by-hand": (_GLM45_BY_HAND, "glm-4.5", None),
    "glm-5-by-hand": (_GLM5, "glm-5", None),
    "deepseek-r1": (_R1, "template", "deepseekv3"),
    "deepseek-r1-by-hand": (_R1_BY_HAND, "deepseek-r1", None),
    "deepseek-v3-by-hand": (_V3_BY_HAND, "deepseek-v3", None),
}


def load(name: str) -> tuple[Family, TokenCodec]:
    """Skips the test when no installed package has the family's chat template."""
    family, renderer, template = FAMILIES[name]
    text = None
    if renderer == "template":
        text = CHATML.read_text() if template is None else _shipped(template)
    return family, codec(family, renderer, text)


@cache
def codec(family: Family, renderer: str, template: str | None, *, pieces: bool = False) -> TokenCodec:
    """The codec of a model of ``family`` with this chat template. ``pieces``: not of bytes, but of sentence pieces."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tokenizer = Tokenizer.from_str(_pieces() if pieces else _bytes())
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.markers])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": family.eos, "bos_token": family.bos}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        ends = [tokenizer.token_to_id(text) for text in family.ends]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        return TokenCodec.load(str(folder), renderer=renderer)


def _shipped(name: str) -> str:
    folders = (engine_python().parents[1] / "lib").glob("python3.*/site-packages/trl/chat_templates")
    path = next((folder / f"{name}.jinja" for folder in folders if (folder / f"{name}.jinja").exists()), None)
    if path is None:
        pytest.skip(f"no {name}.jinja: {engine_python()} is not there, or its trl does not ship it")
    return path.read_text()


_CORPUS = ("the question and the answer", "system user assistant tool", "a function call with arguments") * 4


@cache
def _bytes() -> str:
    """A byte-level BPE without special tokens, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer.to_str()


@cache
def _pieces() -> str:
    """A BPE of sentence pieces, which puts a space before the first word of a text and no other; ASCII only."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    alphabet = ["\n", *(chr(number) for number in range(33, 127))]
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer.to_str()
