"""Process groups: everything that was started is gone afterwards, however it behaves."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import processes
from dragoman.cli.processes import Child, free_port, group_alive, running, start, stop, why_no_listening

# A leader with a grandchild; both announce themselves, so that the test knows that their handlers are in place.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("up", flush=True)
while True:
    time.sleep(60)
"""


def wait_for(child: Child, text: str, times: int) -> None:
    while child.log.read_text().count(text) < times:
        assert child.returncode() is None, child.log.read_text()


def test_stop_ends_the_group_even_if_it_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    child = start([sys.executable, "-c", STUBBORN], os.environ, tmp_path / "log")
    wait_for(child, "up", 2)
    stop(child)
    assert child.returncode() == -signal.SIGKILL
    assert not group_alive(child.process.pid)
    stop(child)  # a second time does nothing


def test_running_stops_when_the_block_raises(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    children: list[Child] = []

    def interrupted() -> None:
        with running(command, os.environ, tmp_path / "logs" / "x.log") as child:
            children.append(child)
            wait_for(child, "up", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert children[0].returncode() == -signal.SIGTERM


def test_a_second_ctrl_c_does_not_stop_the_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_killpg, before = os.killpg, signal.getsignal(signal.SIGINT)

    def killpg(group: int, number: int) -> None:
        real_killpg(group, number)
        signal.raise_signal(signal.SIGINT)

    with running([sys.executable, "-c", STUBBORN], os.environ, tmp_path / "log") as child:
        wait_for(child, "up", 2)
        monkeypatch.setattr(os, "killpg", killpg)
        monkeypatch.setattr(processes, "PATIENCE", 0.2)
    monkeypatch.undo()
    assert not group_alive(child.process.pid)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_while_it_starts_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_popen, started = subprocess.Popen, []

    def popen(*arguments: Any, **options: Any) -> Any:
        started.append(real_popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)  # before anybody holds what was started
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)

    def interrupted() -> None:
        with running([sys.executable, "-c", "import time; time.sleep(60)"], os.environ, tmp_path / "log"):
            pytest.fail("the signal was lost")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not group_alive(started[0].pid)


def test_the_log_holds_both_streams_and_the_environment_is_exactly_ours(tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(set(os.environ) - {'LC_CTYPE'})); print('oh', file=sys.stderr); sys.exit(3)"
    child = start([sys.executable, "-u", "-c", code], {"ONLY": "this"}, tmp_path / "log")
    assert child.process.wait() == 3
    assert child.last_lines(5) == ["['ONLY']", "oh"]
    assert child.last_lines(1) == ["oh"]


def test_ports() -> None:
    port = free_port()
    assert why_no_listening("127.0.0.1", port) is None
    assert why_no_listening("host.invalid", port) is not None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert why_no_listening("127.0.0.1", port) == "Address already in use"
