"""Two rows of ``make e2e-harnesses``: real harnesses, whose own tool really runs, by way of its own command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.harness
def test_pi_by_proxy_and_codex_by_base_url(tmp_path: Path) -> None:
    document = tmp_path / "harnesses.md"
    command = [sys.executable, "-m", "scripts.e2e_harnesses", "--folder", str(tmp_path), "--document", str(document)]
    command += ["--only", "pi-anthropic-proxy", "--only", "codex-builtin-base-url"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    pi = json.loads((tmp_path / "pi-anthropic-proxy-works" / "outcome.json").read_text())
    codex = json.loads((tmp_path / "codex-builtin-base-url-works" / "outcome.json").read_text())
    # pi tries the server-side threads of Anthropic's own host once; Codex warms its WebSocket up, which is a call that
    # samples nothing.
    assert (pi["exit_code"], pi["calls"]) == (0, ["refused 400", "answered", "answered"])
    assert (codex["exit_code"], codex["calls"]) == (0, ["answered", "answered", "answered"])
    assert (pi["turns"], codex["turns"]) == (["start", "exact"], ["start", "start", "exact"])
    assert "I wrote the file." in pi["stdout"]
    assert not document.exists()  # two rows are no table
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["result", "ok", "ok"]
