"""The folders of the two test models, built in the cache on first use; and a real engine serving one of them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from dragoman.cli.engine_process import EngineOptions, EnginePython, engine_command, engine_environment, wait_ready
from dragoman.cli.engine_process import warm_up as warm_up_engine
from dragoman.cli.processes import free_port, running
from dragoman.home import cache_folder
from dragoman.trainer.tiny_model import build_tiny


@cache
def tiny_model_folder() -> Path:
    """The tiny model; needs neither torch nor the engine environment."""
    return build_tiny(cache_folder() / "models" / "tiny")


@cache
def smollm2_folder() -> Path:
    """SmolLM2; for tests marked ``engine``, since the engine environment builds it."""
    folder = cache_folder() / "models" / "smollm2"
    command = [str(engine_python()), "-m", "dragoman.trainer.tiny_model", "smollm2", str(folder)]
    if wheel := os.environ.get("DRAGOMAN_SMOLLM2_WHEEL"):
        command += ["--wheel", wheel]
    subprocess.run(command, check=True)
    return folder


def engine_python() -> Path:
    """The Python that has vLLM and torch: ``DRAGOMAN_ENGINE_PYTHON``, else that of the checkout's ``.venv-engine``."""
    checkout = Path(__file__).resolve().parents[1]
    return Path(os.environ.get("DRAGOMAN_ENGINE_PYTHON", checkout / ".venv-engine" / "bin" / "python"))


@contextmanager
def real_engine(model: Path, folder: Path, *extra: str, max_model_len: int | None = None) -> Iterator[str]:
    """A warm vLLM on the CPU serving ``model``; yields its address. Its log is kept in ``folder``."""
    python = EnginePython(engine_python(), cpu=True)
    port = int(os.environ.get("DRAGOMAN_TEST_ENGINE_PORT", "0")) or free_port()
    options = EngineOptions(str(model), port=port, max_model_len=max_model_len, extra=extra)
    environment = engine_environment(python, str(model), os.environ)
    with running(engine_command(python, options), environment, folder / "engine.log") as child:
        address = f"http://127.0.0.1:{port}"
        wait_ready(child, address, 300, lambda line: None)
        warm_up_engine(address)
        yield address
