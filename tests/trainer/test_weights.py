"""Weights as a policy: the folder whole or not at all, what an engine cannot take refused, what gateways say told."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from dragoman.home import cache_folder
from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.trainer import weights
from dragoman.trainer.tiny_model import build_tiny
from dragoman.trainer.weights import Published, add, publish, save_policy, wait_served

ENGINE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def source() -> Path:
    return build_tiny(cache_folder() / "models" / "tiny")


@pytest.fixture
def model(source: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(source: Path) -> Any:
    return AutoTokenizer.from_pretrained(source)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(f"sqlite:///{tmp_path}/dragoman.db")
    yield opened
    opened.close()


def with_adapter(model: Any, **more: Any) -> Any:
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], **more))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    return adapted


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits


def say(database: Database, number: int, status: policies.LoadStatus, reason: str | None = None) -> None:
    with database.session() as session:
        policies.claim_load(session, number, ENGINE, now=time.time())
        policies.finish_load(session, number, ENGINE, status, reason=reason, now=time.time())


def test_full_weights_come_back_as_they_were(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    save_policy(model, tokenizer, tmp_path / "p", "full")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "p", dtype=torch.float32)
    assert torch.equal(logits(again), logits(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "p").get_vocab() == tokenizer.get_vocab()
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_an_adapter_is_saved_alone(model: Any, tokenizer: Any, source: Path, tmp_path: Path) -> None:
    adapted = with_adapter(model)
    save_policy(adapted, tokenizer, tmp_path / "p", "lora")
    assert (tmp_path / "p" / "adapter_config.json").is_file()
    assert not (tmp_path / "p" / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    assert torch.equal(logits(PeftModel.from_pretrained(base, tmp_path / "p")), logits(adapted))


def test_an_adapter_is_merged_into_full_weights_and_goes_on_being_trained_unchanged(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    adapted = with_adapter(model)
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    save_policy(adapted, tokenizer, tmp_path / "p", "full")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "p", dtype=torch.float32)
    assert torch.allclose(logits(merged), logits(adapted), atol=1e-4)
    assert all(torch.equal(weight, before[name]) for name, weight in adapted.named_parameters())


def test_what_an_engine_cannot_take_is_refused(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no adapter to push"):
        save_policy(model, tokenizer, tmp_path / "p", "lora")
    whole = with_adapter(model, modules_to_save=["lm_head"])
    with pytest.raises(ValueError, match="whole modules \\(lm_head\\)"):
        save_policy(whole, tokenizer, tmp_path / "p", "lora")
    assert not (tmp_path / "p").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU reloads a tied head")
def test_a_tied_head_is_refused_where_the_engine_would_keep_the_old_one(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    model.config.tie_word_embeddings = True
    with pytest.raises(ValueError, match="untie them"):
        save_policy(model, tokenizer, tmp_path / "p", "full")


def test_a_save_that_fails_leaves_no_folder(
    model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(model, "save_pretrained", broken)
    with pytest.raises(OSError, match="disk full"):
        save_policy(model, tokenizer, tmp_path / "p", "full")
    assert not (tmp_path / "p").exists()


def test_publishing_adds_a_row_and_waits(
    model: Any, tokenizer: Any, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "wait_served", lambda _, policy, timeout: Published(policy.version, 1, True, None))
    for version in ("policy-v1", "policy-v2"):
        published = publish(
            database, model, tokenizer, folder=tmp_path, kind="full", run="r", step=3, metrics={"a": 1.0}, timeout=1
        )
        assert published.version == version
    with database.reading() as session:
        (second, _), (first, _) = policies.list_policies(session, limit=5)
    assert (first.parent, second.parent) == ("base", "policy-v1")
    assert [Path(policy.path).name for policy in (first, second)] == ["step-3", "step-3-2"]


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("serving", None, Published("policy-v1", 1, True, None)),
        ("failed", "no", Published("policy-v1", 1, False, f"{ENGINE}: no")),
    ],
)
def test_what_a_gateway_said_is_told(
    database: Database, tmp_path: Path, status: policies.LoadStatus, reason: str | None, expected: Published
) -> None:
    policy = add(database, path=tmp_path, kind="lora", run=None, step=None, metrics={})
    assert wait_served(database, policy, timeout=30, sleep=lambda _: say(database, 1, status, reason)) == expected


def test_without_a_gateway_it_says_what_is_missing(database: Database, tmp_path: Path) -> None:
    policy = add(database, path=tmp_path, kind="lora", run=None, step=None, metrics={})
    published = wait_served(database, policy, timeout=0)
    assert not published.serving
    assert "does `dragoman serve` run on this store?" in (published.reason or "")
    with database.session() as session:
        policies.claim_load(session, 1, ENGINE, now=time.time())
    assert "still loading it" in (wait_served(database, policy, timeout=0).reason or "")
