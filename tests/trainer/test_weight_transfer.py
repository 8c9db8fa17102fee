"""The order of a transfer, with TRL's client replaced: there is no GPU here. What it sends was never run."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.trainer.weight_transfer import Transfer
from dragoman.trainer.weights import add

ENGINE = "http://127.0.0.1:8000"


class Client:
    """Stands in for ``trl.generation.vllm_client.VLLMClient``, and for what is asked of the engine itself."""

    log: list[str]
    fail = False

    def __init__(self, base_url: str, connection_timeout: float) -> None:
        assert base_url == ENGINE

    def init_communicator(self, device: Any) -> None:
        self.log.append(f"communicator {device}")

    def update_model_params(self, model: Any) -> None:
        if self.fail:
            raise RuntimeError("NCCL says no")
        self.log.append(f"params {model}")

    def reset_prefix_cache(self) -> None:
        self.log.append("reset")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(f"sqlite:///{tmp_path}/dragoman.db")
    yield opened
    opened.close()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    module = ModuleType("trl.generation.vllm_client")
    module.VLLMClient = type("VLLMClient", (Client,), {"log": said})  # type: ignore[attr-defined]
    for name, one in (("trl", ModuleType("trl")), ("trl.generation", ModuleType("trl.generation"))):
        monkeypatch.setitem(sys.modules, name, one)
    monkeypatch.setitem(sys.modules, "trl.generation.vllm_client", module)

    class Answer:
        def raise_for_status(self) -> None:
            pass

    class Http:
        def __init__(self, **_: Any) -> None:
            pass

        def __enter__(self) -> "Http":
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def post(self, path: str, json: Any = None) -> Answer:
            said.append(path if json is None else f"{path} {json['new_version']}")
            return Answer()

    monkeypatch.setattr("dragoman.trainer.weight_transfer.httpx.Client", Http)
    return said


def test_a_transfer_pauses_updates_clears_labels_and_resumes(
    database: Database, log: list[str], tmp_path: Path
) -> None:
    policy = add(database, path=tmp_path, kind="full", run="r", step=1, metrics={})
    published = Transfer(ENGINE, "cuda:0").push(database, "model", policy)
    assert published.serving
    assert log == [
        *("communicator cuda:0", "/pause?mode=keep", "params model", "reset"),
        *("/update_weight_version policy-v1", "/resume"),
    ]
    with database.reading() as session:
        assert [load.status for load in policies.list_loads(session, 1)] == ["serving"]


def test_one_that_fails_resumes_the_engine_and_is_told(
    database: Database, log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "fail", True)
    policy = add(database, path=tmp_path, kind="full", run="r", step=1, metrics={})
    published = Transfer(ENGINE, "cuda:0").push(database, "model", policy)
    assert (published.serving, published.reason) == (False, "the transfer failed: NCCL says no")
    assert log[-1] == "/resume"
    with database.reading() as session:
        assert [load.status for load in policies.list_loads(session, 1)] == ["failed"]


def test_a_load_that_another_process_is_at_is_left_to_it(database: Database, log: list[str], tmp_path: Path) -> None:
    policy = add(database, path=tmp_path, kind="full", run="r", step=1, metrics={})
    with database.session() as session:
        policies.claim_load(session, 1, ENGINE, now=time.time())
    assert "another process" in (Transfer(ENGINE, "cuda:0").push(database, "model", policy).reason or "")
    assert log == ["communicator cuda:0"]
