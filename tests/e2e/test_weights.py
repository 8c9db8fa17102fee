"""New weights in a real vLLM while harnesses wait: what each token was sampled by is what the store says.

Every trained token is scored again with the weights of the version that its span names.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.cli.processes import free_port
from dragoman.store.database import Database
from dragoman.store.policies import PolicyKind
from dragoman.store.records import CallInfo
from dragoman.trainer.weights import Published, add, wait_served
from tests.gateway import RunningGateway, running_gateway
from tests.models import engine_python, real_engine, smollm2_folder

pytestmark = pytest.mark.engine
LORA = ("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[RunningGateway]:
    with (
        real_engine(smollm2_folder(), folder, *LORA) as engine,
        running_gateway(folder / "home", engine, settings={"dragoman_max_reply_tokens": "400"}) as running,
    ):
        yield running


def other_weights(folder: Path, kind: PolicyKind, seed: int) -> Path:
    target = folder / f"{kind}-{seed}"
    command = [str(engine_python()), str(Path(__file__).with_name("other_weights.py"))]
    command += [kind, str(smollm2_folder()), str(target), str(seed)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return target


def push(store: str, path: Path, kind: PolicyKind) -> Published:
    database = Database.open(store)
    try:
        policy = add(database, path=path, kind=kind, run="test", step=1, metrics={})
        return wait_served(database, policy, timeout=120)
    finally:
        database.close()


def ask(gateway: RunningGateway, key: str, tokens: int, text: str = "Tell a long story about a fox.") -> str:
    with openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=key, max_retries=0, timeout=300) as client:
        said: Any = [{"role": "user", "content": text}]
        chunks = client.chat.completions.create(model="m", messages=said, max_tokens=tokens, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def spans(call: CallInfo) -> list[str]:
    assert call.outcome is not None
    assert call.outcome.status == "answered"
    return [span.version for span in call.outcome.policy_spans]


def rescored(store: str, episode_id: str) -> dict[str, Any]:
    command = [str(engine_python()), "-m", "dragoman.trainer.rescore_traces", "--store", store, "--published", "--json"]
    command += ["--model", str(smollm2_folder()), "--episode", episode_id]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)["summary"]
    return summary


def test_adapters_and_whole_weights_serve_the_next_call_and_a_reply_in_the_middle_has_both(
    gateway: RunningGateway, folder: Path
) -> None:
    episode = gateway.open(task="weights")
    ask(gateway, episode.api_key, 20)

    adapter = other_weights(folder, "lora", 1)
    assert push(gateway.store_url, adapter, "lora") == Published("policy-v1", 1, True, None)
    ask(gateway, episode.api_key, 20)
    second = push(gateway.store_url, other_weights(folder, "lora", 2), "lora")
    assert second.serving
    ask(gateway, episode.api_key, 20)

    # A reply of the engine's own weights, in the middle of which they change.
    assert push(gateway.store_url, other_weights(folder, "full", 3), "full") == Published("policy-v3", 3, True, None)
    whole = other_weights(folder, "full", 4)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ask, gateway, episode.api_key, 300, f"Tell story {at}.") for at in range(3)]
        _wait_sampling(gateway, 3)
        assert push(gateway.store_url, whole, "full").serving
        for job in jobs:
            job.result()
    ask(gateway, episode.api_key, 20)

    versions = [spans(call) for call in gateway.calls(episode.id)]
    assert versions[:3] == [["base"], ["policy-v1"], ["policy-v2"]]
    assert ["policy-v3", "policy-v4"] in versions[3:6]
    assert versions[6] == ["policy-v4"]
    summary = rescored(gateway.store_url, episode.id)
    print(summary)
    assert (summary["traces"], summary["skipped"]) == (7, 0)
    assert summary["largest"] <= 1e-3


def test_weights_that_the_engine_does_not_take_leave_the_old_ones_serving(
    gateway: RunningGateway, folder: Path
) -> None:
    with gateway.client() as client:
        before = client.status().policy_version or ""
    for kind in ("lora", "full"):
        published = push(gateway.store_url, folder / "missing", kind)
        assert not published.serving
        assert published.reason
        print(published.reason)
        with gateway.client() as client:
            status = client.status()
        assert status.policy_version == before
        assert published.version in (status.policy_error or "")
    damaged = folder / "damaged"
    damaged.mkdir()
    for file in (folder / "full-4").iterdir():
        if file.name != "model.safetensors":
            (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "model.safetensors").write_bytes((folder / "full-4" / "model.safetensors").read_bytes()[: 1 << 20])
    assert not push(gateway.store_url, damaged, "full").serving

    episode = gateway.open(task="after failures")
    ask(gateway, episode.api_key, 20)
    assert [spans(call) for call in gateway.calls(episode.id)] == [[before]]
    assert rescored(gateway.store_url, episode.id)["largest"] <= 1e-3


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_an_engine_that_is_restarted_has_its_weights_back_before_it_answers(
    folder: Path, tmp_path: Path, kind: PolicyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_TEST_ENGINE_PORT", str(free_port()))
    weights = other_weights(tmp_path, kind, 5)
    address = f"http://127.0.0.1:{os.environ['DRAGOMAN_TEST_ENGINE_PORT']}"
    with running_gateway(tmp_path / "home", address) as gateway:
        episode = gateway.open(task="restart")
        with real_engine(smollm2_folder(), folder, *LORA):
            assert push(gateway.store_url, weights, kind).serving
            ask(gateway, episode.api_key, 20)
        with real_engine(smollm2_folder(), folder, *LORA):
            ask(gateway, episode.api_key, 20)
        assert [spans(call) for call in gateway.calls(episode.id)] == [["policy-v1"], ["policy-v1"]]
        assert rescored(gateway.store_url, episode.id)["largest"] <= 1e-3


def _wait_sampling(gateway: RunningGateway, replies: int) -> None:
    """Until that many replies are being sampled, each with some tokens out."""
    limit = time.monotonic() + 120
    with gateway.client() as client:
        engine = client.status().engine
        while time.monotonic() < limit:
            metrics = httpx.get(f"{engine}/metrics", trust_env=False).text
            running = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running{")]
            if running and float(running[0].split()[-1]) >= replies:
                return
    raise AssertionError(f"{replies} replies are not being sampled")
