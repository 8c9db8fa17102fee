"""The models whose templates and tokenizers the rows of several turns are told in."""

import shutil
from pathlib import Path

from dragoman.cli.output import Failure
from dragoman.home import cache_folder
from dragoman.trainer.tiny_model import build_tiny

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = "lib/python3.*/site-packages/trl/chat_templates/qwen3.jinja"
"""Qwen3's own chat template, as ``trl`` ships it; it is not copied into this project."""


def plain_model() -> Path:
    """The tiny model, whose template shows a conversation always alike."""
    return build_tiny(cache_folder() / "models" / "tiny")


def thinking_model(folder: Path) -> Path:
    """The tiny model with Qwen3's chat template, made in ``folder``; it has no weights.

    Raises ``Failure`` without the engine's environment.
    """
    found = sorted((ROOT / ".venv-engine").glob(TEMPLATE))
    if not found:
        raise Failure("Qwen3's chat template comes with trl, which is not in .venv-engine; run: make setup")
    model = folder / "model"
    model.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(plain_model() / name, model / name)
    shutil.copyfile(found[0], model / "chat_template.jinja")
    return model
