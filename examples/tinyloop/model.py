"""The example's model: small enough for two CPU cores, with a tokenizer that makes a harness's prompt short.

Rules of this module: everything that the harness says again and again becomes few tokens (byte-level BPE over whole
lines, not words, trained on prompts that the harness really sent), and each of the tasks' words is one token. The
weights start at random and are pretrained on one thing: to copy words (sequences of words that repeat), since a
network this small would not learn that from some hundred episodes. It knows nothing of files, tools or harnesses.

Runs in the engine environment: ``python -m examples.tinyloop.model FOLDER --texts PROMPTS.json [--seed S]``
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.trainer.tiny_model import MARKERS, SPECIAL, _write_tokenizer_config
from examples.tinyloop.words import CONTENTS, NAMES

VOCABULARY = 8192
CONTEXT = 32768
CONFIG: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
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
    _write_tokenizer_config(folder, max_length=CONTEXT)
    return int(tokenizer.get_vocab_size())


def _pieces(texts: Sequence[str]) -> Iterator[str]:
    """The texts, cut where an added token stands."""
    import re

    added = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKERS, *NAMES, *CONTENTS))))
    for text in texts:
        yield from (piece for piece in added.split(text) if piece)


def build(folder: Path, texts: Sequence[str], *, seed: int, steps: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    size = build_tokenizer(folder, texts)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=-(-size // 64) * 64, dtype="float32", **CONFIG))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    pretrain(model, [ids[word] for word in (*NAMES, *CONTENTS)], size, seed=seed, steps=steps)
    model.save_pretrained(folder)


def pretrain(model: Any, words: Sequence[int], size: int, *, seed: int, steps: int) -> None:
    """Teach copying: random tokens with some words among them, and the words again, in order, behind other tokens."""
    import torch

    random = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    model.train()
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100)
        rows, masks = zip(*(copying(random, words, size) for _ in range(16)), strict=True)
        ids = torch.from_numpy(np.stack(rows))
        labels = torch.where(torch.from_numpy(np.stack(masks)), ids, -100)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"copying: step {step}, loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)


def copying(random: np.random.Generator, words: Sequence[int], size: int) -> tuple[Any, Any]:
    """One row of 96 tokens and where it can be foretold. Cues (any other tokens) stand before each word both times."""
    length, pairs = 96, 6
    row = random.integers(3, size, length)
    mask = np.zeros(length, bool)
    chosen = random.choice(words, pairs, replace=False)
    cues = random.integers(3, size, (pairs, 1))
    first = np.sort(random.choice(np.arange(1, length // 2 - 2), pairs, replace=False) // 2 * 2)
    first = np.unique(first)[:pairs]
    again = length // 2 + 3 * np.arange(len(first))
    order = random.permutation(len(first))
    for at, place in enumerate(first):
        row[place], row[place + 1] = cues[at, 0], chosen[at]
    for at, place in zip(order, again, strict=True):
        row[place], row[place + 1] = cues[at, 0], chosen[at]
        mask[place + 1] = True
    return row.astype(np.int64), mask


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.tinyloop.model", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON list of prompts and replies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretrain-steps", type=int, default=1500)
    options = parser.parse_args()
    build(options.folder, json.loads(options.texts.read_text()), seed=options.seed, steps=options.pretrain_steps)
    print(options.folder)


if __name__ == "__main__":
    main()
