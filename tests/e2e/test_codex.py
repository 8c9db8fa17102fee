"""A row of ``make e2e-codex``: the real Codex over WebSockets, whose connection is cut in mid-reply."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.harness
def test_codex_goes_on_after_its_socket_was_cut_and_nothing_is_sampled_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.e2e_codex", "--folder", str(tmp_path), "--only", "builtin-base-url-cut"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads((tmp_path / "builtin-base-url-cut" / "outcome.json").read_text())
    assert (outcome["exit_codes"], outcome["sockets"], outcome["asked"]) == ([0], 2, 2)
    assert outcome["calls"][-1] == "main main retry"
