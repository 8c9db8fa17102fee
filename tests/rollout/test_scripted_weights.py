"""Weights of a scripted engine: names and labels as vLLM has them, and replies that are frozen in the middle."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.scripted import Scripted, scripted_engine


def post(engine: Scripted, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return httpx.post(f"{engine.address}{path}", json=body, trust_env=False, timeout=10)


def generate(engine: Scripted, model: str | None = None) -> httpx.Response:
    body = {"token_ids": [5], "sampling_params": {"max_tokens": 100, "logprobs": 0}, "model": model}
    return post(engine, "/inference/v1/generate", body)


def test_an_adapter_can_be_asked_for_once_it_is_loaded(tmp_path: Path) -> None:
    with scripted_engine([{"text": "x", "repeat": True}]) as engine:
        assert generate(engine, "policy-v1").status_code == 404
        adapter = {"lora_name": "policy-v1", "lora_path": str(tmp_path)}
        assert post(engine, "/v1/load_lora_adapter", adapter).status_code == 200
        assert generate(engine, "policy-v1").status_code == 200
        _, listed = httpx.get(f"{engine.address}/v1/models", trust_env=False).json()["data"]
        assert (listed["id"], listed["root"]) == ("policy-v1", str(tmp_path))
        assert listed["parent"] is not None
        assert post(engine, "/v1/unload_lora_adapter", {"lora_name": "policy-v1"}).status_code == 200
        assert generate(engine, "policy-v1").status_code == 404


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with scripted_engine([{"text": "x"}]) as engine:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "missing")}}
        refused = post(engine, "/collective_rpc", reload)
        assert refused.status_code == 500
        assert "missing" in refused.json()["error"]["message"]


def test_a_reply_that_is_frozen_by_a_pause_goes_on_as_another_version() -> None:
    with (
        scripted_engine([{"text": "one two three", "chunk": 1, "hold": "last"}]) as engine,
        ThreadPoolExecutor() as pool,
    ):
        reply = pool.submit(generate, engine)
        engine.wait_for_state(0, "running")
        assert post(engine, "/pause?mode=keep").status_code == 200
        engine.release()
        assert post(engine, "/update_weight_version", {"new_version": "policy-v1"}).status_code == 200
        assert not reply.done()
        assert post(engine, "/resume").status_code == 200
        choice = reply.result().json()["choices"][0]
        length = len(choice["token_ids"])
        assert choice["weight_versions"][-1] == {"version": "policy-v1", "start": length - 1, "end": length}
        assert engine.told() == ["/pause", "/update_weight_version", "/resume"]
