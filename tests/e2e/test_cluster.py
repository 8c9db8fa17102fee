"""`dragoman rollout --ray` over two real Ray nodes, one of which is killed half-way: `make e2e-cluster` in small."""

from pathlib import Path

import pytest

from scripts.e2e_cluster import run

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")


def test_every_sample_is_there_once_though_a_node_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAGOMAN_HOME", "HF_HUB_OFFLINE", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "1")  # so that what the run sets is undone
    account = run(tmp_path, tasks=5, samples=4, concurrency=4)
    assert account.wrong == []
    assert account.ends["completed"] == 20
    assert account.killed_at is not None
