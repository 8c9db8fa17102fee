"""`dragoman rollout` with a real gateway: what it does when the engine, the gateway or itself is killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from dragoman.cli.processes import Child, free_port, start, stop
from dragoman.store.database import Database
from dragoman.store.groups import settle_groups
from tests.models import tiny_model_folder

TOY = Path(__file__).resolve().parents[1] / "toys" / "chaos_harness.py"
SECONDS = str(10_000_000 + os.getpid())
"""In the command of every process of these tests, and of no other."""


@dataclass
class World:
    """An engine, a gateway and a state folder, each of which can be killed and started again at its address."""

    folder: Path
    engine_port: int = field(default_factory=free_port)
    gateway_port: int = field(default_factory=free_port)
    children: dict[str, Child] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "DRAGOMAN_HOME": str(self.folder / "state"), "HF_HUB_OFFLINE": "1"}

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    def start_engine(self) -> None:
        script = self.folder / "script.json"
        script.write_text(json.dumps([{"text": "Done.", "repeat": True}]))
        command = ["dragoman.rollout.scripted_engine", "--model", str(tiny_model_folder()), "--script", str(script)]
        self._start("engine", [*command, "--port", str(self.engine_port)])
        wait_until(lambda: answers(f"http://127.0.0.1:{self.engine_port}/health"), "the engine answers")

    def start_gateway(self) -> None:
        listen, engine = f"127.0.0.1:{self.gateway_port}", f"http://127.0.0.1:{self.engine_port}"
        self._start("gateway", ["dragoman", "serve", "--listen", listen, "--engine", engine])
        wait_until(lambda: answers(self.gateway), "the gateway answers")

    def _start(self, name: str, command: list[str]) -> None:
        self.children[name] = start([sys.executable, "-m", *command], self.env, self.folder / f"{name}.log")

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()

    def rollout(self, behaviour: str, *options: str, tasks: int = 2) -> Child:
        """Start it with tasks of one behaviour; its output is in ``rollout.log``."""
        return self.rollout_of({f"t{number}": behaviour for number in range(tasks)}, *options)

    def rollout_of(self, behaviours: dict[str, str], *options: str) -> Child:
        """The same with a behaviour for each task."""
        task_file = self.folder / "tasks.jsonl"
        check = {"kind": "equal", "path": "hello.txt", "to": "hello"}
        tasks = [{"id": name, "prompt": prompt, "checks": [check]} for name, prompt in behaviours.items()]
        task_file.write_text("\n".join(json.dumps(task) for task in tasks))
        command = [sys.executable, "-m", "dragoman", "rollout", str(task_file), "--harness", "command"]
        command += ["--mode", "base-url", "--gateway", self.gateway, "--run", "chaos", *options]
        child = start([*command, "--", sys.executable, str(TOY), SECONDS], self.env, self.folder / "rollout.log")
        self.children["rollout"] = child
        return child

    def journal(self) -> list[dict[str, object]]:
        path = self.folder / "state" / "rollouts" / "chaos" / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def episodes(self) -> list[tuple[str, str | None, str | None, float | None]]:
        """Task, end, reason and reward of each."""
        with sqlite3.connect(self.folder / "state" / "dragoman.db") as database:
            return database.execute(
                "SELECT tasks.name, end, end_reason, reward FROM episodes JOIN groups ON groups.row = group_row "
                "JOIN tasks ON tasks.row = task_row ORDER BY episodes.row"
            ).fetchall()

    def calls(self) -> int:
        with sqlite3.connect(self.folder / "state" / "dragoman.db") as database:
            return int(database.execute("SELECT count(*) FROM calls").fetchone()[0])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    try:
        found.start_engine()
        found.start_gateway()
        yield found
    finally:
        for child in found.children.values():
            stop(child)


def answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    return True


def wait_until(what: Callable[[], bool], text: str, seconds: float = 90.0) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, f"not in {seconds} s: {text}"
        time.sleep(0.05)


def toys() -> list[str]:
    done = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if SECONDS in line and "rollout " not in line]


def log(child: Child) -> str:
    return child.log.read_text(errors="replace")


def test_a_run_outlives_its_engine_and_its_gateway(world: World) -> None:
    child = world.rollout("many", "--samples", "3", "--concurrency", "3")
    wait_until(lambda: world.calls() > 5, "calls are made")
    world.kill("engine")
    wait_until(lambda: "paused: the engine at" in log(child), "it says that it waits")
    wait_until(lambda: not toys(), "those that ran have ended")
    ended = len(world.journal())
    world.start_engine()
    wait_until(lambda: "it is back" in log(child), "it goes on")
    calls = world.calls()
    wait_until(lambda: world.calls() > calls + 5, "calls are made again")
    world.kill("gateway")
    wait_until(lambda: "paused: no gateway answers" in log(child), "it says that it waits")
    world.start_gateway()

    assert child.process.wait(180) == 0, log(child)
    said = log(child)
    assert "6/6 done" in said, said
    assert "passed 100%" in said
    completed = [one for one in world.episodes() if one[1] == "completed"]
    assert [(task, reward) for task, _, _, reward in sorted(completed)] == [("t0", 1.0)] * 3 + [("t1", 1.0)] * 3
    others = [one for one in world.episodes() if one[1] != "completed"]
    assert others, "some were disturbed"
    assert {end for _, end, _, _ in others} == {"abandoned"}, others
    assert ended
    database = Database.open(f"sqlite:///{world.folder / 'state' / 'dragoman.db'}")
    with database.session() as session:
        assert len(settle_groups(session, time.time())) == 2, "both groups are complete"
    database.close()


def test_a_harness_that_is_patient_comes_through(world: World) -> None:
    child = world.rollout("stubborn", "--samples", "1", "--concurrency", "2")
    wait_until(lambda: world.calls() > 0, "it calls")  # it may be too short to be seen in a list of processes
    world.kill("gateway")
    world.start_gateway()
    assert child.process.wait(120) == 0, log(child)
    assert "2/2 done" in log(child)


def test_a_runner_that_is_killed_leaves_nothing_and_the_same_command_goes_on(world: World) -> None:
    options = ("--samples", "2", "--concurrency", "4", "--time-limit", "4")
    world.rollout("hang", *options)
    wait_until(lambda: world.calls() == 4, "all hang")
    world.kill("rollout")
    wait_until(lambda: not toys(), "nothing of it is left", seconds=10)
    assert [end for _, end, _, _ in world.episodes()] == [None] * 4

    child = world.rollout("hang", *options)
    assert child.process.wait(90) == 0, log(child)
    assert "4 episodes of an earlier start were not ended" in log(child)
    ends = [end for _, end, _, _ in world.episodes()]
    assert ends == ["abandoned"] * 4 + ["timed_out"] * 4
    again = world.rollout("hang", *options)
    assert again.process.wait(60) == 0
    assert "4 samples were done before" in log(again)
    assert len(world.episodes()) == 8


def test_groups_of_a_killed_runner_are_complete_at_their_deadline(world: World) -> None:
    world.rollout("hang", "--samples", "2", "--concurrency", "2", "--deadline", "3", tasks=1)
    wait_until(lambda: world.calls() == 2, "both hang")
    world.kill("rollout")
    wait_until(lambda: [end for _, end, _, _ in world.episodes()] == ["abandoned"] * 2, "they are abandoned", 60)
    database = Database.open(f"sqlite:///{world.folder / 'state' / 'dragoman.db'}")
    with database.session() as session:
        assert len(settle_groups(session, time.time())) == 1
    database.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_end_abandons_what_runs_and_goes_on_later(world: World, number: int) -> None:
    child = world.rollout("hang", "--samples", "2", "--concurrency", "2", "--time-limit", "5", tasks=1)
    wait_until(lambda: world.calls() == 2, "both hang")
    child.process.send_signal(number)
    assert child.process.wait(60) == 130, log(child)
    assert not toys()
    assert "the same command goes on with chaos" in log(child)
    assert {(end, reason) for _, end, reason, _ in world.episodes()} == {("abandoned", "the launcher was told to end")}
    again = world.rollout("hang", "--samples", "2", "--concurrency", "2", "--time-limit", "5", tasks=1)
    assert again.process.wait(60) == 0, log(again)
    assert [end for _, end, _, _ in world.episodes()][2:] == ["timed_out"] * 2


EVERYTHING = {
    "good": ("completed", None, 1.0),
    "nothing": ("completed", None, 0.0),
    "crash": ("failed", "command exited with 7", 0.0),
    "hang": ("timed_out", "command was stopped after 15 s", 0.0),
    "daemons": ("completed", None, 1.0),
    "fill": ("failed", "command was stopped: it wrote more than 214,748,364 bytes", 0.0),
    "loud": ("failed", "command was stopped: it printed more than 268,435,456 bytes", 0.0),
    "many": ("completed", None, 1.0),
    "stubborn": ("completed", None, 1.0),
}


def test_one_run_with_everything(world: World) -> None:
    """Every kind of harness in one run; meanwhile engine, gateway and runner are killed once each: ``make chaos``."""
    behaviours = {name: name for name in EVERYTHING}
    options = ("--samples", "2", "--concurrency", "4", "--time-limit", "15", "--disk", "0.2")
    child = world.rollout_of(behaviours, *options)
    wait_until(lambda: world.calls() >= 3, "calls are made")
    world.kill("engine")
    wait_until(lambda: "paused: the engine at" in log(child), "it waits")
    world.start_engine()
    done = len(world.journal())
    wait_until(lambda: len(world.journal()) > done + 4, "it goes on")
    world.kill("rollout")
    wait_until(lambda: not toys(), "nothing is left", seconds=20)
    child = world.rollout_of(behaviours, *options)
    done = len(world.journal())
    wait_until(lambda: len(world.journal()) > done + 3, "it goes on")
    world.kill("gateway")
    wait_until(lambda: "paused: no gateway answers" in log(child), "it waits")
    world.start_gateway()

    assert child.process.wait(400) == 0, log(child)
    assert not toys()
    ended = [one for one in world.episodes() if one[1] != "abandoned"]
    assert sorted(ended) == sorted([(name, *found) for name, found in EVERYTHING.items()] * 2), log(child)
    print(log(child))
