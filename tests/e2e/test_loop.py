"""`dragoman loop`, whole: real pi, a real vLLM, the trainer, weights pushed while harnesses run; and a trainer killed.

The model's weights are random, and the reward says whether a reply has a certain letter often: enough for groups that
differ, and so for gradients. What is looked at is the bookkeeping, to the token: which version sampled what.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.cli.processes import Child, start, stop
from dragoman.store.policies import version_number
from tests.gateway import RunningGateway, running_gateway
from tests.models import engine_python, real_engine, tiny_model_folder

pytestmark = [pytest.mark.engine, pytest.mark.harness]
LORA = ("--enable-lora", "--max-loras", "8", "--max-lora-rank", "16")
VERSIONS = 3


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    """One for each test: what it was given stays in it."""
    with real_engine(tiny_model_folder(), tmp_path, *LORA, max_model_len=16384) as address:
        yield address


@pytest.fixture
def gateway(engine: str, tmp_path: Path) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path / "home", engine, settings={"dragoman_max_reply_tokens": "24"}) as running:
        yield running


def written(folder: Path, **grpo: Any) -> Path:
    check = {"name": "letters", "kind": "regex", "in": "reply", "pattern": "(?s)(a.*){4}"}
    rows = [
        {"id": f"{split}-{number}", "prompt": f"Say something, number {number}.", "checks": [check], "split": split}
        for split, count in (("train", 4), ("held-out", 2))
        for number in range(count)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = {
        "model_name_or_path": str(tiny_model_folder()),
        "groups_per_step": 1,
        "learning_rate": 1e-3,
        "beta": 0.0,
        "save_steps": 2,
        "report_to": "none",
        **grpo,
    }
    (folder / "grpo.yaml").write_text(yaml.safe_dump(trainer))
    loop = {
        "run": "loop",
        "tasks": "tasks.jsonl",
        "trainer": "grpo.yaml",
        "harnesses": ["pi"],
        "eval_splits": ["held-out"],
        "samples": 4,
        "eval_samples": 1,
        "ahead": 2,
        "eval_every": VERSIONS,
        "stop_versions": VERSIONS,
        "time_limit": 120,
    }
    (folder / "loop.yaml").write_text(yaml.safe_dump(loop))
    return folder / "loop.yaml"


def started(config: Path, gateway: RunningGateway) -> Child:
    environment = {**os.environ, "DRAGOMAN_HOME": str(gateway.home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dragoman", "loop", str(config), "--gateway", gateway.address]
    return start(command, environment, config.parent / "loop.log")


def ended(child: Child) -> int:
    try:
        return child.process.wait(1200)
    finally:
        stop(child)


def wait_until(what: Callable[[], bool], child: Child, text: str) -> None:
    limit = time.monotonic() + 900
    while not what():
        assert child.returncode() is None, child.log.read_text(errors="replace")
        assert time.monotonic() < limit, text
        time.sleep(0.1)


def asked(gateway: RunningGateway, query: str) -> list[Any]:
    with sqlite3.connect(gateway.home / "dragoman.db") as database:
        return database.execute(query).fetchall()


def check_books(gateway: RunningGateway) -> None:
    """Every call counted, no group trained twice, every token scored again with the version that sampled it."""
    ledger = [sys.executable, "-m", "dragoman", "ledger", "--all", "--store", gateway.store_url]
    balanced = subprocess.run(ledger, capture_output=True, text=True)
    assert balanced.returncode == 0, balanced.stdout + balanced.stderr
    consumed = asked(gateway, "SELECT group_row, count(*) FROM leases WHERE state = 'consumed' GROUP BY group_row")
    assert all(count == 1 for _, count in consumed)
    # A step is one group. A killed trainer's steps behind its checkpoint are trained again, as other versions.
    ((steps,),) = asked(gateway, "SELECT step FROM policies ORDER BY number DESC LIMIT 1")
    assert len(consumed) == steps
    spans = [json.loads(row[0] or "[]") for row in asked(gateway, "SELECT policy_spans FROM calls")]
    versions = {version_number(span[0]) for call in spans for span in call}
    assert 0 in versions
    assert max(number or 0 for number in versions) >= VERSIONS
    command = [str(engine_python()), "-m", "dragoman.trainer.rescore_traces", "--store", gateway.store_url]
    command += ["--published", "--json", "--model", str(tiny_model_folder())]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    print(summary)
    assert summary["traces"] > 0
    assert summary["largest"] <= 1e-3


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_it_trains_while_it_samples_and_evaluates_before_and_after(
    kind: str, gateway: RunningGateway, tmp_path: Path
) -> None:
    adapter = {"use_peft": True, "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"]} if kind == "lora" else {}
    child = started(written(tmp_path, push_kind=kind, **adapter), gateway)
    assert ended(child) == 0, child.log.read_text(errors="replace")
    said = child.log.read_text(errors="replace")
    assert "version 0, held-out: mean reward" in said
    last = int(re.findall(r"version (\d+), held-out: mean reward", said)[-1])
    assert last >= VERSIONS  # what was on its way is trained before the evaluation
    assert f"the run is over: version {last} of {VERSIONS} is there" in said
    check_books(gateway)
    assert asked(gateway, "SELECT count(*) FROM leases WHERE state = 'consumed'")[0][0] >= VERSIONS


def test_a_killed_trainer_and_a_killed_loop_go_on_where_they_were(gateway: RunningGateway, tmp_path: Path) -> None:
    config = written(tmp_path)
    child = started(config, gateway)
    try:
        wait_until(lambda: bool(asked(gateway, "SELECT number FROM policies")), child, "a policy is published")
        (trainer,) = _trainers(child)
        os.killpg(trainer, signal.SIGKILL)
        log = child.log
        wait_until(lambda: "started again" in log.read_text(errors="replace"), child, "the trainer is started again")
        os.killpg(child.process.pid, signal.SIGINT)
        assert child.process.wait(400) == 130
    finally:
        stop(child)
    assert "the same command goes on where it was" in log.read_text(errors="replace")
    again = started(config, gateway)
    assert ended(again) == 0, again.log.read_text(errors="replace")
    check_books(gateway)


def _trainers(loop: Child) -> list[int]:
    """Process groups of the loop's trainers."""
    listed = subprocess.run(["ps", "-eo", "ppid,pid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    return [int(pid) for parent, pid, args in rows if int(parent) == loop.process.pid and "train grpo" in args]
