"""Whole runs in real processes: killed and resumed, on two ranks, stopped, waiting, and through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from sqlalchemy import select

from dragoman.store.database import Database
from dragoman.store.leases import count_groups
from dragoman.store.models import Lease
from dragoman.trainer.checkpoints import MARKER, last_complete
from tests.trainer.made_groups import Maker, flat, scorer, small_model, store_group

STEPS = 6
GROUPS = 2 * STEPS
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


def filled_store(folder: Path, model: Path, groups: int = GROUPS) -> str:
    url = f"sqlite:///{folder}/a.db"
    database = Database.open(url)
    make = Maker(scorer(model))
    with database.session() as session:
        for row in range(1, groups + 1):
            store_group(session, flat(make, row, [1.0, 0.0, 0.25]), at=100.0 * row)
    database.close()
    return url


def config(folder: Path, model: Path, store: str, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    options = {
        "model_name_or_path": str(model),
        "output_dir": str(folder / "out"),
        "store": store,
        "groups_per_step": 2,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "gradient_checkpointing": False,
        "max_steps": STEPS,
        "save_steps": 2,
        "push_every": 0,
        "poll_seconds": 0.05,
        "report_to": "none",
        **more,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(options))
    return path


def run(path: Path, moment: str = "never", step: int = 0, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.trainer.killed", str(path), moment, str(step), *overrides]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def leases(store: str, consumer: str = "out") -> dict[int, tuple[str, int | None]]:
    """Group → state and step, as the store has it."""
    database = Database.open(store)
    with database.reading() as session:
        query = select(Lease.group_row, Lease.state, Lease.step).where(Lease.consumer == consumer)
        found = {row.group_row: (row.state, row.step) for row in session.execute(query)}
    database.close()
    return found


def weights(folder: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = load_file(folder / "out" / f"checkpoint-{step}" / "model.safetensors")
    return loaded


EXPECTED = {row: ("consumed", (row + 1) // 2) for row in range(1, GROUPS + 1)}


def test_killed_at_any_moment_it_trains_each_group_once_and_ends_with_the_same_weights(
    model: Path, tmp_path: Path
) -> None:
    store = filled_store(tmp_path, model)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = run(config(whole, model, store, consumer="whole"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert leases(store, "whole") == EXPECTED

    path = config(broken, model, store, consumer="broken")
    # The steps are those of the process: each goes on from the checkpoint at 2, or 4.
    assert run(path, "middle", 4).returncode == -signal.SIGKILL
    consumed = {row: found for row, found in leases(store, "broken").items() if found[0] == "consumed"}
    assert consumed == {row: EXPECTED[row] for row in range(1, 5)}
    assert len(leases(store, "broken")) == 8  # what was trained after the checkpoint, and is lost with it
    assert run(path, "marker", 4).returncode == -signal.SIGKILL
    assert (broken / "out" / "checkpoint-4").exists()
    assert last_complete(broken / "out") == broken / "out" / "checkpoint-2"
    assert run(path, "consume", 4).returncode == -signal.SIGKILL
    assert last_complete(broken / "out") == broken / "out" / "checkpoint-4"
    assert leases(store, "broken")[7] == ("leased", None)
    done = run(path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "4 groups trained" in done.stderr
    assert leases(store, "broken") == EXPECTED
    kept, wanted = weights(broken), weights(whole)
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    assert not torch.equal(weights(whole, 4)["lm_head.weight"], wanted["lm_head.weight"])


def test_two_ranks_through_one_store(model: Path, tmp_path: Path) -> None:
    store = filled_store(tmp_path, model)
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(config(one, model, store, consumer="one", optim="sgd")).returncode == 0
    path = config(two, model, store, consumer="two", optim="sgd")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.trainer.killed", str(path), "never", "0"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert leases(store, "two") == leases(store, "one") == EXPECTED
    kept, wanted = weights(two), weights(one)
    assert all(torch.allclose(kept[name], wanted[name], atol=1e-5) for name in wanted)


def test_the_command_line_waits_says_so_and_stops_with_a_checkpoint(model: Path, tmp_path: Path) -> None:
    store = filled_store(tmp_path, model, groups=5)
    path = config(tmp_path / "a", model, store, max_steps=-1, save_steps=100, report_to="tensorboard")
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "dragoman", "train", "grpo", str(path)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        wait_for(tmp_path / "log", "waiting for groups: 1 of 2 in hand", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    said = (tmp_path / "log").read_text()
    assert "groups: 4 trained" in said
    assert "step 2 · reward 0.417" in said
    database = Database.open(store)
    with database.reading() as session:
        counts = count_groups(session, "out", time.time())
    database.close()
    assert (counts.consumed, counts.ready, counts.leased) == (4, 1, 0)
    assert (tmp_path / "a" / "out" / "checkpoint-2" / MARKER).exists()
    state = json.loads((tmp_path / "a" / "out" / "checkpoint-2" / "trainer_state.json").read_text())
    logged = set(state["log_history"][0])
    assert {"reward", "policy_lag", "tokens_per_second", "groups/waiting", "logp_difference", "dropped/stale"} <= logged
    assert list((tmp_path / "a" / "out").glob("runs/*/events*"))


def wait_for(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    while text not in path.read_text():
        assert process.poll() is None, path.read_text()[-3000:]
        time.sleep(0.1)
