"""The example's model: small enough for two CPU cores, with a tokenizer that makes a harness's prompt short.

Rules of this module: everything that the harness says again and again becomes few tokens (byte-level BPE over whole
lines, not words, trained on prompts that the harness really sent), and each of the tasks' words is one token. The
weights are random, and the output head begins as a copy of the embeddings: so a network this small soon learns to copy
a word. It knows nothing of files, tools or harnesses.

Runs in the engine environment: ``python -m examples.tinyloop.model FOLDER --texts PROMPTS.json [--seed S]``
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from dragoman.trainer.tiny_model import MARKERS, SPECIAL, write_tokenizer_config
from examples.tinyloop.words import CONTENTS, NAMES

VOCABULARY = 8192
CONTEXT = 32768
CONFIG: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def build_tokenizer(folder: Path, texts: Sequence[str]) -> int:
    """Train the tokenizer on ``texts`` and write it into ``folder``; returns the size of its vocabulary."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split(Regex(r"[^\n]*\n|[^\n]+"), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([lines, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    words = [AddedToken(word, special=False, normalized=False) for word in (*NAMES, *CONTENTS)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS) - len(words),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    tokenizer.add_tokens(words)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokenizer_config(folder, max_length=CONTEXT)
    return int(tokenizer.get_vocab_size())


def _pieces(texts: Sequence[str]) -> Iterator[str]:
    """The texts, cut where an added token stands."""
    added = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKERS, *NAMES, *CONTENTS))))
    for text in texts:
        yield from (piece for piece in added.split(text) if piece)


def build(folder: Path, texts: Sequence[str], *, seed: int) -> int:
    """Make tokenizer and weights in ``folder``; returns the number of parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    size = build_tokenizer(folder, texts)
    torch.manual_seed(seed)
    model = cast(Any, Qwen3ForCausalLM)(Qwen3Config(vocab_size=-(-size // 64) * 64, dtype="float32", **CONFIG))
    with torch.no_grad():
        model.lm_head.weight.copy_(model.get_input_embeddings().weight)
    model.save_pretrained(folder)
    return int(sum(weight.numel() for weight in model.parameters()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.tinyloop.model", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON list of prompts and replies")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count = build(options.folder, json.loads(options.texts.read_text()), seed=options.seed)
    print(f"{options.folder}: {count:,} parameters")


if __name__ == "__main__":
    main()
