"""Waiting for a gateway that we started: ready, gone, or never ready."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import processes
from dragoman.cli.gateway_process import wait_for_gateway
from dragoman.cli.output import Failure


def test_a_gateway_that_exits(tmp_path: Path, nobody: str) -> None:
    command = [sys.executable, "-c", "import sys; print('bad option'); sys.exit(2)"]
    with (
        processes.running(command, os.environ, tmp_path / "log") as child,
        pytest.raises(Failure, match="the gateway exited with 2\n  bad option"),
    ):
        wait_for_gateway(child, nobody, 60)


def test_a_gateway_whose_engine_never_comes(serve_stub: Callable[..., Any], tmp_path: Path) -> None:
    status = {"version": "1", "engine": "http://e", "store": "s", "outbox_depth": 0, "model": None}
    stub = serve_stub(lambda method, path, body: (200, status))
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with processes.running(command, os.environ, tmp_path / "log") as child:
        with pytest.raises(Failure, match="has not loaded the engine's model"):
            wait_for_gateway(child, stub.address, 0.5)
        status["model"] = "/m"
        wait_for_gateway(child, stub.address, 60)
