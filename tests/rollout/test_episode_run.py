"""One run in one episode: its typed end, what is kept of it, and that an interrupted one is ended all the same."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway_client import GatewayClient, GatewayError, OpenedEpisode
from dragoman.rollout import episode_run
from dragoman.rollout.episode_run import EpisodeRun, how_it_ended, run_in_episode
from dragoman.rollout.harnesses import find_harness
from dragoman.rollout.process import HarnessResult, Launch, Stream
from dragoman.store.records import Artefact, EpisodeEnd

TOKEN = "0123456789abcdef" * 2


@dataclass
class Client(GatewayClient):
    """A gateway that only remembers what it was told."""

    refuses: tuple[str, ...] = ()
    opened_with: dict[str, Any] = field(default_factory=dict)
    ends: list[tuple[str, str | None]] = field(default_factory=list)
    kept: dict[str, Artefact] = field(default_factory=dict)

    def open_episode(self, **settings: Any) -> OpenedEpisode:
        self.opened_with = settings
        return OpenedEpisode("e1", TOKEN, f"dgm_{TOKEN}", 9.0, {}, {})

    def add_artefacts(self, episode_id: str, artefacts: Sequence[Artefact]) -> None:
        if "artefacts" in self.refuses:
            raise GatewayError("the disk is full")
        assert not self.ends, "whoever waits for the end must find them"
        self.kept |= {artefact.name: artefact for artefact in artefacts}

    def end_episode(self, episode_id: str, end: EpisodeEnd, reason: str | None = None) -> None:
        if "end" in self.refuses:
            raise GatewayError("it has ended already", "conflict")
        self.ends.append((end, reason))


def _run(tmp_path: Path, script: str, **changes: Any) -> EpisodeRun:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)

    def prepare(token: str, home: Path) -> Launch:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "TOKEN": token}
        return Launch((sys.executable, "-c", script), env, ((home / "config", "x"),), work, "")

    return replace(EpisodeRun("tool", None, prepare, work, 60.0), **changes)


def test_a_run_that_goes_well(tmp_path: Path) -> None:
    client, seen = Client(), list[tuple[Stream, bytes]]()
    wanted = _run(
        tmp_path,
        "import sys; print('out'); print('err', file=sys.stderr); open('new.txt', 'w').write('new\\n')",
        about={"mode": "proxy"},
        task="t",
        temperature=0.5,
    )
    subprocess.run(["git", "init", "-q"], cwd=wanted.workdir, check=True)
    opened: list[str] = []

    finished = run_in_episode(
        client,
        wanted,
        on_opened=lambda episode: opened.append(episode.id),
        on_output=lambda stream, data: seen.append((stream, data)),
    )

    assert (finished.end, finished.reason, finished.result.exit_code, finished.problems) == ("completed", None, 0, ())
    assert opened == [finished.episode_id] == ["e1"]
    assert sorted(seen) == [("stderr", b"err\n"), ("stdout", b"out\n")]
    assert client.ends == [("completed", None)]
    assert client.opened_with["metadata"] == {"harness": "tool", "mode": "proxy"}
    assert (client.opened_with["task"], client.opened_with["temperature"]) == ("t", 0.5)
    assert sorted(client.kept) == ["changes.diff", "run.json", "stderr.txt", "stdout.txt"]
    assert client.kept["stdout.txt"].data == b"out\n"
    assert b"+++ b/new.txt\n" in client.kept["changes.diff"].data
    facts = json.loads(client.kept["run.json"].data)
    assert (facts["exit_code"], facts["harness"], facts["mode"], facts["problems"]) == (0, "tool", "proxy", [])


def test_outside_a_repository_there_is_no_diff(tmp_path: Path) -> None:
    client = Client()
    run_in_episode(client, _run(tmp_path, ""))

    assert sorted(client.kept) == ["run.json", "stderr.txt", "stdout.txt"]


def test_the_home_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    client = Client()
    run_in_episode(client, _run(tmp_path, "import os; print(os.environ['HOME'], os.listdir(os.environ['HOME']))"))

    home, listed = client.kept["stdout.txt"].data.decode().split(" ", 1)
    assert listed == "['config']\n"
    assert not Path(home).exists()
    run_in_episode(client, _run(tmp_path, "", home=tmp_path / "mine"), on_opened=lambda _: client.ends.clear())
    assert (tmp_path / "mine" / "config").read_text() == "x"


def test_the_token_is_not_kept(tmp_path: Path) -> None:
    client = Client()
    run_in_episode(client, _run(tmp_path, "import os; print('key', 'dgm_' + os.environ['TOKEN'])"))

    assert client.kept["stdout.txt"].data == b"key dgm_<token>\n"


def test_long_output_is_cut_and_the_cut_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_run, "ARTEFACT_LIMIT", 1000)
    client = Client()
    run_in_episode(client, _run(tmp_path, "print('a' * 5000 + 'z')"))

    kept = client.kept["stdout.txt"]
    assert len(kept.data) <= 1000
    assert (kept.omitted > 4000, kept.data[:3], kept.data[-3:]) == (True, b"aaa", b"az\n")


@pytest.mark.parametrize(
    ("code", "end", "reason"),
    [
        (0, "completed", None),
        (3, "failed", "tool exited with 3"),
        (-9, "failed", "tool was ended by signal 9"),
        (None, "timed_out", "tool was stopped after 60 s"),
    ],
)
def test_how_it_ended(tmp_path: Path, code: int | None, end: str, reason: str | None) -> None:
    assert how_it_ended(_run(tmp_path, ""), HarnessResult(code, "", "", 1.0)) == (end, reason)


def test_a_harness_that_says_that_it_failed_is_believed(tmp_path: Path) -> None:
    harness = replace(find_harness("mini"), failure_signs=("gave up",))
    wanted = _run(tmp_path, "", harness=harness, name="mini")

    assert how_it_ended(wanted, HarnessResult(0, "", "I gave up.", 1.0)) == (
        "failed",
        "mini exited with 0, but said 'gave up'",
    )
    assert how_it_ended(wanted, HarnessResult(0, "done", "", 1.0)) == ("completed", None)


def test_the_time_limit_is_a_typed_end_with_what_was_printed(tmp_path: Path) -> None:
    client = Client()
    finished = run_in_episode(
        client, _run(tmp_path, "import time; print('begun', flush=True); time.sleep(600)", timeout=3.0)
    )

    assert (finished.end, finished.result.exit_code) == ("timed_out", None)
    assert client.ends == [("timed_out", "tool was stopped after 3 s")]
    assert client.kept["stdout.txt"].data in (b"begun\n", b"")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    client = Client()
    wanted = _run(tmp_path, "")
    missing = replace(wanted, prepare=lambda token, home: replace(wanted.prepare(token, home), command=("/no/such",)))

    with pytest.raises(FileNotFoundError):
        run_in_episode(client, missing)

    assert client.ends[0][0] == "failed"
    assert "could not be started" in str(client.ends[0][1])


@pytest.mark.parametrize(
    ("number", "reason", "error"),
    [
        (signal.SIGINT, "interrupted by Ctrl-C", KeyboardInterrupt),
        (signal.SIGTERM, "the launcher was told to end", SystemExit),
    ],
)
def test_a_signal_abandons_the_episode_and_ends_all_that_was_started(
    tmp_path: Path, number: int, reason: str, error: type[BaseException]
) -> None:
    def unwind(*_: object) -> None:
        raise SystemExit(143)

    previous = signal.signal(signal.SIGTERM, unwind)
    client = Client()
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

    def on_output(stream: Stream, data: bytes) -> None:
        threading.Timer(0, os.kill, (os.getpid(), number)).start()

    try:
        with pytest.raises(error):
            run_in_episode(client, _run(tmp_path, script), on_output=on_output)
    finally:
        signal.signal(signal.SIGTERM, previous)

    assert client.ends == [("abandoned", reason)]
    with pytest.raises(ProcessLookupError):
        os.kill(int(client.kept["stdout.txt"].data), 0)
    assert json.loads(client.kept["run.json"].data)["exit_code"] is None


def test_a_second_signal_waits_until_the_episode_is_ended(tmp_path: Path) -> None:
    @dataclass
    class Impatient(Client):
        def add_artefacts(self, episode_id: str, artefacts: Sequence[Artefact]) -> None:
            signal.raise_signal(signal.SIGINT)
            super().add_artefacts(episode_id, artefacts)

    client = Impatient()
    with pytest.raises(KeyboardInterrupt):
        run_in_episode(client, _run(tmp_path, ""))

    assert client.ends == [("completed", None)]


def test_an_output_that_nobody_reads_ends_the_run(tmp_path: Path) -> None:
    def closed(stream: Stream, data: bytes) -> None:
        raise BrokenPipeError

    client = Client()
    with pytest.raises(BrokenPipeError):
        run_in_episode(client, _run(tmp_path, "import time; print(1, flush=True); time.sleep(600)"), on_output=closed)

    assert client.ends == [("abandoned", "nobody read its output any more")]


@pytest.mark.parametrize(
    ("refuses", "says"),
    [
        ("artefacts", "its output is not kept: the disk is full"),
        ("end", "the episode was not ended as completed: it has"),
    ],
)
def test_what_the_gateway_refuses_is_told_with_the_run(tmp_path: Path, refuses: str, says: str) -> None:
    client = Client(refuses=(refuses,))
    finished = run_in_episode(client, _run(tmp_path, "print(1)"))

    assert finished.result.exit_code == 0
    (problem,) = finished.problems
    assert problem.startswith(says)
    assert bool(client.ends) is (refuses == "artefacts")


def test_a_diff_that_git_cannot_make_is_told_and_kept_as_a_fact(tmp_path: Path) -> None:
    client = Client()
    script = "import subprocess; subprocess.run(['git', 'init', '-q', 'inner'])"
    wanted = _run(tmp_path, script)
    subprocess.run(["git", "init", "-q"], cwd=wanted.workdir, check=True)

    finished = run_in_episode(client, wanted)

    assert finished.end == "completed"
    (problem,) = finished.problems
    assert problem.startswith("no diff is kept: git add ended with")
    assert json.loads(client.kept["run.json"].data)["problems"] == [problem]
