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
from dragoman.trainer.weights import Published

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

    def save(_model: Any, _tokenizer: Any, path: Path, _kind: str) -> None:
        said.append(f"saved {path}")

    monkeypatch.setattr("dragoman.trainer.weight_transfer.httpx.Client", Http)
    monkeypatch.setattr("dragoman.trainer.weight_transfer.save_policy", save)
    return said


def publish(database: Database, folder: Path, **changed: Any) -> Published:
    options: dict[str, Any] = {"folder": folder, "kind": "full", "run": "r", "step": 1, "metrics": {}, "timeout": 1}
    return Transfer(ENGINE, "cuda:0").publish(database, "model", None, **{**options, **changed})


def test_a_transfer_pauses_updates_clears_labels_and_resumes(
    database: Database, log: list[str], tmp_path: Path
) -> None:
    assert publish(database, tmp_path).serving
    assert log == [
        *("communicator cuda:0", f"saved {tmp_path / 'step-1'}", "/pause?mode=keep", "params model", "reset"),
        *("/update_weight_version policy-v1", "/resume"),
    ]
    with database.reading() as session:
        assert [load.status for load in policies.list_loads(session, 1)] == ["serving"]


def test_one_that_fails_resumes_the_engine_and_is_told(
    database: Database, log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "fail", True)
    published = publish(database, tmp_path)
    assert (published.serving, published.reason) == (False, "the transfer failed: NCCL says no")
    assert log[-1] == "/resume"
    with database.reading() as session:
        assert [load.status for load in policies.list_loads(session, 1)] == ["failed"]


@pytest.mark.parametrize(("changed", "message"), [({"kind": "lora"}, "adapter"), ({"state_dict": {}}, "sharded")])
def test_what_cannot_be_sent_is_refused(
    database: Database, log: list[str], tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        publish(database, tmp_path, **changed)
    with database.reading() as session:
        assert policies.list_policies(session, limit=1) == []


def test_no_gateway_can_take_it_up_meanwhile(
    database: Database, log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[bool] = []

    def claim(*_: Any) -> None:
        with database.session() as session:
            claims.append(policies.claim_load(session, 1, ENGINE, now=time.time()))

    monkeypatch.setattr(Client, "update_model_params", claim)
    assert publish(database, tmp_path).serving
    assert claims == [False]
