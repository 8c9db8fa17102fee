"""`dragoman harbor run` with a real gateway: with a stand-in for Harbor, and with Harbor itself where there is one.

Harbor has an environment of its own: `DRAGOMAN_HARBOR` names its `harbor` program, else it is looked for on the PATH.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.cli.gateway_process import gateway
from dragoman.store.artefacts import list_artefacts
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from dragoman.store.groups import settle_groups
from scripts.e2e_cluster import engine

TOYS = Path(__file__).resolve().parents[1] / "toys"
HARBOR = os.environ.get("DRAGOMAN_HARBOR") or shutil.which("harbor")
TASKS = {"crash": "crash after it", "hello": "Write hello.txt.", "wrong": "wrong: do nothing"}
TEST = """#!/bin/bash
if [ "$(cat /app/hello.txt)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
echo checked
"""


def write_tasks(folder: Path) -> None:
    for name, prompt in TASKS.items():
        for part in ("environment", "tests"):
            (folder / name / part).mkdir(parents=True)
        (folder / name / "task.toml").write_text('schema_version = "1.4"\n[agent]\ntimeout_sec = 60.0\n')
        (folder / name / "instruction.md").write_text(prompt)
        (folder / name / "tests" / "test.sh").write_text(TEST)


@pytest.mark.parametrize("kind", ["stand-in", "harbor"])
def test_trials_are_episodes_with_harbors_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "our own")
    if kind == "stand-in":
        program = tmp_path / "harbor"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {TOYS / "fake_harbor.py"} "$@"\n')
        program.chmod(0o700)
    elif HARBOR is None:
        pytest.skip("Harbor is not installed: uv tool install harbor, then DRAGOMAN_HARBOR=…/bin/harbor")
    else:
        program = Path(HARBOR)
    write_tasks(tmp_path / "tasks")
    with engine(tmp_path) as model, gateway(model, 64) as address:
        command = [sys.executable, "-m", "dragoman", "harbor", "run", str(tmp_path / "tasks"), "--gateway", address]
        command += ["--agent", "harbor_agent:ToyAgent", "--sandbox", "local", "--env", f"PYTHONPATH={TOYS}"]
        command += ["--samples", "2", "--concurrency", "2", "--jobs", str(tmp_path / "jobs"), "--harbor", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        again = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "6 trials, 6 of them done before" in again.stderr
    database = Database.open(f"sqlite:///{tmp_path / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            found = list_episodes(session, limit=100)
            kept = {one.name for one in list_artefacts(session, found[0].episode.id)}
            complete = len(settle_groups(session, time.time()))
    finally:
        database.close()
    seen = sorted((one.episode.spec.task, one.episode.end, one.episode.reward, one.calls) for one in found)
    assert seen == [
        *2 * [("crash", "failed", 1.0, 1)],
        *2 * [("hello", "completed", 1.0, 1)],
        *2 * [("wrong", "completed", 0.0, 1)],
    ]
    assert complete == 3
    assert {"harbor-result.json", "checks.txt", "stdout.txt"} <= kept
    for path in tmp_path.joinpath("jobs").rglob("*"):
        leaked = path.is_file() and re.search(rb"dgm_[0-9a-f]{32}", path.read_bytes())
        assert not leaked, f"the episode's key is in {path}"
