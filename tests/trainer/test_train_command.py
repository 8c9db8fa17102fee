"""``dragoman train`` where torch is: no mitmproxy, and mistakes in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MODULES = ("run", "sft", "config", "grpo", "callbacks")


def test_the_whole_trainer_imports_no_mitmproxy_and_no_gateway() -> None:
    code = (
        f"import sys, dragoman.cli.train, {', '.join(f'dragoman.trainer.{name}' for name in MODULES)}; "
        "print([n for n in sys.modules if n.split('.')[0] == 'mitmproxy' or n.startswith('dragoman.addons')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model_name_or_path: m\ngroups_per_stp: 3\n")
    command = [sys.executable, "-m", "dragoman", "train", "grpo", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("there is no option 'groups_per_stp'; did you mean 'groups_per_step'?")
    assert "Traceback" not in done.stderr
