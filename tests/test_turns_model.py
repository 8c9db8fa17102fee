"""The model with Qwen3's template: the tiny model's tokenizer, and thinking that goes when a new question comes."""

from pathlib import Path

import pytest

from dragoman.addons.bridge import probe
from dragoman.addons.tokens import TokenCodec
from dragoman.cli.output import Failure
from scripts import turns_model
from scripts.turns_model import ROOT, TEMPLATE, plain_model, thinking_model


def test_the_plain_template_always_bridges() -> None:
    outcomes = probe(TokenCodec.load(str(plain_model())), "template")

    assert {outcome for kind, outcome in outcomes.items() if "truncated" not in kind} == {"exact"}


@pytest.mark.skipif(not list((ROOT / ".venv-engine").glob(TEMPLATE)), reason="no trl in .venv-engine")
def test_qwen3_drops_thinking_only_when_a_question_comes(tmp_path: Path) -> None:
    codec = TokenCodec.load(str(thinking_model(tmp_path)))

    outcomes = probe(codec, "template")

    assert outcomes["tool result after reasoning"] == "exact"
    assert outcomes["text after reasoning"] == "thinking_policy"
    assert codec.tokenizer_hash == TokenCodec.load(str(plain_model())).tokenizer_hash


def test_without_the_template_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_model, "ROOT", tmp_path)

    with pytest.raises(Failure, match="make setup"):
        thinking_model(tmp_path)
