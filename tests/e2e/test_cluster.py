"""`dragoman rollout --ray`: `make e2e-cluster` in small, and what Ctrl-C leaves behind."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dragoman.cli import processes
from dragoman.cli.gateway_process import gateway
from dragoman.rollout.journal import Journal
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from scripts.e2e_cluster import TOY, engine, run

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

NAMES = ("DRAGOMAN_HOME", "HF_HUB_OFFLINE", "RAY_USAGE_STATS_ENABLED")


def test_every_sample_is_there_once_though_a_node_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "1")  # so that what the run sets is undone
    account = run(tmp_path, tasks=5, samples=4, concurrency=4)
    assert account.wrong == []
    assert account.ends["completed"] == 20
    assert account.killed_at is not None


def test_ctrl_c_ends_what_runs_on_nodes_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tasks = tmp_path / "tasks.jsonl"
    check = {"kind": "equal", "path": "hello.txt", "to": "hello"}
    behaviours = {"quick": "good", "slow": "hang"}
    tasks.write_text(
        "\n".join(json.dumps({"id": name, "prompt": prompt, "checks": [check]}) for name, prompt in behaviours.items())
    )
    journal = tmp_path / "state" / "rollouts" / "r" / "journal.jsonl"
    with engine(tmp_path) as model, gateway(model, 64) as address:
        command = [sys.executable, "-m", "dragoman", "rollout", str(tasks), "--harness", "command", "--run", "r"]
        command += ["--mode", "base-url", "--gateway", address, "--samples", "1", "--ray", "local", "--ray-cpus", "0.1"]
        (tmp_path / "scratch").mkdir()
        command += ["--scratch", str(tmp_path / "scratch"), "--", sys.executable, str(TOY)]
        with processes.running(command, os.environ, tmp_path / "rollout.log") as child:
            limit = time.monotonic() + 180
            while not (journal.is_file() and calls(tmp_path) == 2 and '"ended"' in journal.read_text()):
                assert child.returncode() is None, child.last_lines(20)
                assert time.monotonic() < limit, child.last_lines(20)
                time.sleep(0.1)
            assert agents(tmp_path / "scratch")
            os.kill(child.process.pid, signal.SIGINT)
            assert child.process.wait(90) == 130, child.last_lines(20)
        with Journal(journal.parent) as noted:
            assert {key[0]: outcome.end for key, outcome in noted.done.items()} == {"quick": "completed"}
        assert ends(tmp_path) == {"quick": "completed", "slow": "abandoned"}
        assert agents(tmp_path / "scratch") == []


def calls(folder: Path) -> int:
    """How many the episodes have made."""
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            return sum(one.calls for one in list_episodes(session, limit=10))
    finally:
        database.close()


def ends(folder: Path) -> dict[str | None, str | None]:
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            return {one.episode.spec.task: one.episode.end for one in list_episodes(session, limit=10)}
    finally:
        database.close()


def agents(scratch: Path) -> list[str]:
    """Processes that have their home in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={scratch}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(bytes(1), b" ").decode())
        except OSError:
            continue
    return found
