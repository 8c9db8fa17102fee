"""In a network with no route out the gateway works, and tries to send nothing to any other address, whatever it is
asked for. (The real harnesses do so in the rows of ``make e2e-harnesses``, under the same watch.)"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_gateway_alone_in_a_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.e2e.no_way_out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("the system does not let us make a network namespace")

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["calls"] == {"base url": 200, "anthropic": 200, "openai": 200, "google": 200}
    assert seen["no_route"] == 0, seen
    assert seen["names"] == []
    assert seen["with one attempt"] == 1
    # Every one of them was answered by the gateway itself: with a refusal, or with a known harmless answer.
    assert len(seen["others"]) == 14
    assert "ConnectError" not in seen["others"].values()
    assert not any(isinstance(answer, int) and answer >= 500 for answer in seen["others"].values()), seen["others"]
