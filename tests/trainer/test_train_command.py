"""``dragoman train`` where torch is: no mitmproxy, and mistakes in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MODULES = ("run", "sft", "config", "grpo", "callbacks")


def imported(modules: str) -> list[str]:
    """What importing ``modules`` brings in of mitmproxy and the gateway."""
    code = (
        f"import sys, {modules}; "
        "print(*(n for n in sys.modules if n.split('.')[0] == 'mitmproxy' or n.startswith('dragoman.addons')), sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [name for name in done.stdout.splitlines()[-1].split(",") if name]


def test_the_trainer_imports_no_mitmproxy_and_nothing_of_the_gateway() -> None:
    assert imported(", ".join(f"dragoman.trainer.{name}" for name in MODULES)) == []
    assert not [name for name in imported("dragoman.cli.train, dragoman.cli.db") if name.startswith("mitmproxy")]


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model_name_or_path: m\ngroups_per_stp: 3\n")
    command = [sys.executable, "-m", "dragoman", "train", "grpo", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("there is no option 'groups_per_stp'; did you mean 'groups_per_step'?")
    assert "Traceback" not in done.stderr
