"""``dragoman quickstart``: its parts with stand-ins, and the whole thing with the real engine and the real harness."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import processes
from dragoman.cli.output import Failure
from dragoman.cli.quickstart import install_harness, report
from dragoman.rollout.process import HarnessResult

DONE = HarnessResult(0, "hello\nthere", "", 1.0)
EPISODE = "abcdefgh1234"


def test_an_unknown_harness() -> None:
    with pytest.raises(Failure, match="no harness 'emacs'"):
        install_harness("emacs")


def test_the_report_has_the_numbers_and_the_next_commands(
    filled_store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report(EPISODE, DONE)
    said = capsys.readouterr().out
    for text in ("6 in, 4 out", "-0.8125", "base, policy-v1", filled_store, "  there", "dragoman serve"):
        assert text in said
    assert f"dragoman show {EPISODE} --messages" in said


def test_a_run_without_an_answered_call_is_no_success(filled_store: str) -> None:
    from dragoman.store.database import Database
    from dragoman.store.episodes import end_episode

    database = Database.open(filled_store)
    with database.session() as session:
        end_episode(session, "abzzzzzzzzzz", "completed", reason=None, now=1.0)
    database.close()
    with pytest.raises(Failure, match="made no call that was answered") as caught:
        report("abzzzzzzzzzz", HarnessResult(0, "", "could not connect", 1.0))
    assert "could not connect" in str(caught.value)


def test_a_missing_engine_ends_it_with_a_reason_and_nothing_left(
    run: Callable[..., Any], nobody: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dragoman.cli import gateway_process, quickstart

    monkeypatch.setattr(quickstart, "install_harness", lambda name: tmp_path)
    monkeypatch.setattr(gateway_process, "GATEWAY_SECONDS", 5)
    children: list[processes.Child] = []
    real_start = processes.start

    def start(*arguments: Any) -> processes.Child:
        children.append(real_start(*arguments))
        return children[-1]

    monkeypatch.setattr(processes, "start", start)
    result = run("quickstart", "--engine", nobody)
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("  log: ")
    assert "dragoman: the gateway is not ready: " in result.err
    (child,) = children
    assert not processes.group_alive(child.process.pid)


def started(state: Path) -> list[int]:
    """Ids of the processes whose environment names this test's state folder."""
    mark = f"DRAGOMAN_HOME={state}".encode()
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environment and pid != os.getpid():
            found.append(pid)
    return found


@pytest.mark.engine
@pytest.mark.harness
def test_the_whole_path(state: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "dragoman", "quickstart"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = {line[:13].strip(): line[13:].strip() for line in done.stdout.splitlines() if line[13:14] == " "}
    assert int(facts["calls"]) >= 1
    assert facts["end"] == "completed"
    assert float(facts["mean logprob"]) < 0
    assert facts["policy"] not in ("", "-")
    assert facts["database"] == f"sqlite:///{state}/dragoman.db"
    assert started(state) == []


@pytest.mark.engine
@pytest.mark.harness
def test_a_signal_leaves_nothing_running(state: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "quickstart", "--model", "tiny"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("✓ warming up"):
            break
    assert len(started(state)) > 1
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert started(state) == []
