"""What the engine's grammars let through, without a model: random walks, and whether given tokens are accepted.

``walk_grammars`` runs this file by the engine's Python, which has xgrammar.
"""

import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy

LIMIT = 600
"""Longest walk, in tokens."""
CLOSING = ('"', '"}', '"]', "]", "}", ",", '",', '":', "</", "</think>", "</tool_call>")


def walk_grammars(model: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each ``{"structured": …, "stop_ids": […], "walks": n, "accept": [[id, …], …]}``, with the model's tokenizer:
    ``{"error": text}``, or ``{"walks": [[id, …], …], "accepted": [bool, …]}``.

    A walk prefers tokens that close something; one that comes to no end is left out. A sequence is accepted when the
    whole of it is, and the reply ends with it.
    """
    from tests.models import engine_python

    command = [str(engine_python()), __file__, str(model)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def decode(ids: list[int]) -> str:
    """Text of ids of the tiny model."""
    return str(_tokenizer().decode(ids))


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    from tests.models import tiny_model_folder

    return AutoTokenizer.from_pretrained(tiny_model_folder(), local_files_only=True)


def main() -> None:
    import xgrammar
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
    size = len(tokenizer)
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size))
    closing = [token for token in range(size) if str(tokenizer.decode([token])).strip() in CLOSING]
    chance = random.Random(1)
    answers: list[dict[str, Any]] = []
    for job in json.load(sys.stdin):
        try:
            grammar = compiler.compile_structural_tag(job["structured"]["structural_tag"])
        except Exception as error:
            answers.append({"error": str(error)})
            continue

        def matcher(grammar: Any = grammar, stop_ids: list[int] = job["stop_ids"]) -> Any:
            return xgrammar.GrammarMatcher(grammar, override_stop_tokens=stop_ids)

        walks = [_walk(xgrammar, matcher(), size, [*closing, *job["stop_ids"]], chance) for _ in range(job["walks"])]
        accepted = [_accepts(matcher(), ids) for ids in job.get("accept", ())]
        answers.append({"walks": [ids for ids in walks if ids is not None], "accepted": accepted})
    json.dump(answers, sys.stdout)


def _walk(xgrammar: Any, matcher: Any, size: int, closing: list[int], chance: random.Random) -> list[int] | None:
    mask = xgrammar.allocate_token_bitmask(1, size)
    ids: list[int] = []
    while not matcher.is_terminated():
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask, 0)
        bits = numpy.unpackbits(mask[0].numpy().view(numpy.uint8), bitorder="little")
        allowed = numpy.flatnonzero(bits[:size]).tolist()
        if not allowed:
            raise AssertionError(f"nothing is allowed after {ids}")
        if len(ids) >= LIMIT:
            return None
        liked = sorted(set(allowed) & set(closing))
        token = chance.choice(liked if liked and chance.random() < 0.5 else allowed)
        assert matcher.accept_token(token)
        ids.append(token)
    return ids


def _accepts(matcher: Any, ids: list[int]) -> bool:
    return all(matcher.accept_token(token) for token in ids) and matcher.is_terminated()


if __name__ == "__main__":
    main()
