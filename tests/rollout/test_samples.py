"""One sample: whatever a harness does, its episode ends typed, with the reward that its work is worth."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.home import operator_key
from dragoman.rollout.box import Isolation, Resources, find_isolation
from dragoman.rollout.health import Health
from dragoman.rollout.process import Stopped
from dragoman.rollout.samples import Outcome, Sample, Setting, group_name, run_one
from dragoman.rollout.tasks import CommandCheck, EqualCheck, FilesWorkspace, FunctionCheck, RegexCheck, Task
from dragoman.store.artefacts import read_artefact
from dragoman.store.database import Database
from dragoman.store.episodes import get_episode
from dragoman.store.records import EpisodeInfo
from tests.gateway import RunningGateway, running_gateway
from tests.scripted import scripted_engine

TOY = Path(__file__).resolve().parents[1] / "toys" / "chaos_harness.py"
SECONDS = str(10_000_000 + os.getpid())
"""In the command of every process of these tests, and of no other."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    home = tmp_path_factory.mktemp("samples") / "state"
    with (
        scripted_engine([{"text": "I am done.", "repeat": True}]) as engine,
        running_gateway(home, engine.address) as one,
    ):
        yield one


@pytest.fixture(params=["namespaces", "limits"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    try:
        return find_isolation(request.param)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture
def setting(gateway: RunningGateway, isolation: Isolation) -> Setting:
    return Setting(
        run="test",
        gateway=gateway.address,
        operator_key=operator_key(gateway.home),
        samples=1,
        mode="base-url",
        command=(sys.executable, str(TOY), SECONDS),
        time_limit=60,
        check_time_limit=60,
        isolation=isolation,
        output_bytes=50_000_000,
        disk_bytes=100_000_000,
        resources=Resources(file_bytes=80_000_000),
        hidden=(gateway.home,),
        store=gateway.store_url,
        path=os.environ.get("PATH", os.defpath),
    )


@pytest.fixture
def health(gateway: RunningGateway) -> Iterator[Health]:
    with gateway.client() as client:
        yield Health(client, lambda line: None)


def _task(behaviour: str, **more: object) -> Task:
    checks = (EqualCheck(name="hello", path="hello.txt", content=b"hello"),)
    return replace(Task(f"task-{time.time_ns()}", behaviour, checks=checks), **more)  # type: ignore[arg-type]


def _stored(gateway: RunningGateway, outcome: Outcome, artefact: str) -> tuple[EpisodeInfo, bytes]:
    assert outcome.episode_id is not None
    database = Database.open(gateway.store_url)
    try:
        with database.reading() as session:
            info = get_episode(session, outcome.episode_id)
            return info, read_artefact(session, outcome.episode_id, artefact).data
    finally:
        database.close()


def _left() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if SECONDS.encode() in command:
            found.append(f"{path.parent.name} {command!r:.200}")
    return found


@pytest.mark.parametrize(
    ("behaviour", "end", "reason", "reward"),
    [
        ("good", "completed", None, 1.0),
        ("nothing", "completed", None, 0.0),
        ("crash", "failed", "command exited with 7", 0.0),
        ("hang", "timed_out", "command was stopped after 3 s", 0.0),
        ("daemons", "completed", None, 1.0),
        ("fill", "failed", "command was stopped: it wrote more than 100,000,000 bytes", 0.0),
        ("big_file", "failed", ("command was ended by signal 25", "command exited with 1"), 0.0),
        (
            "loud",
            "failed",
            ("command was stopped: it printed more than 50,000,000 bytes", "command exited with 1"),
            0.0,
        ),
    ],
)
def test_whatever_it_does_it_ends_typed_and_nothing_is_left(
    gateway: RunningGateway,
    setting: Setting,
    health: Health,
    tmp_path: Path,
    behaviour: str,
    end: str,
    reason: str | tuple[str, ...] | None,
    reward: float,
) -> None:
    task = _task(behaviour, time_limit=3.0 if behaviour == "hang" else 60.0)
    seen: list[str] = []
    outcome = run_one(
        Sample(task, "command", 0),
        replace(setting, scratch=tmp_path),
        health,
        on_opened=lambda _, one: seen.append(one),
    )

    assert _left() == []
    assert outcome.reason in (reason if isinstance(reason, tuple) else (reason,))
    assert (outcome.end, outcome.reward, outcome.problems, outcome.again) == (end, reward, (), False)
    assert outcome.calls == (0 if behaviour == "nothing" else 1), "also one that timed out keeps its calls"
    assert seen == [outcome.episode_id]
    assert list(tmp_path.iterdir()) == [], "workspace and home are gone"
    info, checks = _stored(gateway, outcome, "checks.txt")
    assert (info.end, info.reward, info.spec.group) == (end, reward, "test/command")
    assert checks.startswith(f"== hello: {reward:g}".encode())
    if behaviour == "good":
        assert b"+hello" in _stored(gateway, outcome, "changes.diff")[1]


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="namespaces")
def test_as_many_processes_as_it_can_get_are_ended_too(
    gateway: RunningGateway, setting: Setting, health: Health
) -> None:
    if setting.isolation != "namespaces":
        pytest.skip("root is held to no limit of processes but in namespaces")
    limited = replace(setting, resources=Resources(processes=400), time_limit=3)
    outcome = run_one(Sample(_task("fork"), "command", 0), limited, health)
    assert (outcome.end, outcome.reward) == ("timed_out", 0.0)
    assert _left() == []


def test_a_stop_abandons_the_episode(gateway: RunningGateway, setting: Setting, health: Health) -> None:
    opened: list[str] = []
    begun = time.monotonic()
    with pytest.raises(Stopped):
        run_one(
            Sample(_task("hang"), "command", 0),
            setting,
            health,
            stopped=lambda: bool(opened) and time.monotonic() > begun + 1,
            on_opened=lambda sample, one: opened.append(one),
        )
    database = Database.open(gateway.store_url)
    with database.reading() as session:
        info = get_episode(session, opened[0])
    database.close()
    assert (info.end, info.end_reason) == ("abandoned", "the launcher was told to end")
    assert _left() == []


def test_a_setup_that_fails_is_a_typed_end_with_what_it_said(
    gateway: RunningGateway, setting: Setting, health: Health
) -> None:
    outcome = run_one(Sample(_task("good", setup="echo no such thing >&2; exit 3"), "command", 0), setting, health)
    assert (outcome.end, outcome.reward) == ("failed", None)
    assert "the task's setup ended with 3: no such thing" in str(outcome.reason)
    assert _stored(gateway, outcome, "run.json")[0].end == "failed"


def test_setup_is_part_of_what_the_agent_finds_and_not_of_its_changes(
    gateway: RunningGateway, setting: Setting, health: Health
) -> None:
    task = _task("good", setup="echo made > made.txt", workspace=FilesWorkspace((("a.txt", b"a\n"),)))
    check = CommandCheck(name="c", run="test -f made.txt && test -f a.txt && test -f hello.txt")
    outcome = run_one(Sample(replace(task, checks=(check,)), "command", 0), setting, health)
    assert outcome.reward == 1.0
    diff = _stored(gateway, outcome, "changes.diff")[1]
    assert b"hello.txt" in diff
    assert b"made.txt" not in diff


def test_a_function_sees_the_episode_with_its_replies(
    gateway: RunningGateway, setting: Setting, health: Health, tmp_path: Path
) -> None:
    (tmp_path / "judges.py").write_text(
        "def look(episode, workspace):\n"
        "    (reply,) = episode.replies\n"
        "    assert episode.reply == 'I am done.', episode.reply\n"
        "    assert (workspace / 'hello.txt').read_text() == 'hello\\n'\n"
        "    return {'reward': 0.5, 'length': len(episode.reply), f'turn/{reply.call_id}': 0.25}\n"
    )
    function = FunctionCheck(name="look", function="judges:look", folder=tmp_path)
    reply = RegexCheck(name="reply", pattern="^I am done", where="reply")
    outcome = run_one(Sample(_task("good", checks=(function, reply)), "command", 0), setting, health)
    assert outcome.problems == ()
    assert outcome.reward == 0.75, outcome
    (turn,) = [name for name in outcome.components if name.startswith("turn/")]
    assert outcome.components == {"look": 0.5, "look/length": 10.0, turn: 0.25, "reply": 1.0}


def test_a_check_that_cannot_be_made_fails_the_episode_without_a_reward(
    setting: Setting, health: Health, tmp_path: Path
) -> None:
    function = FunctionCheck(name="look", function="nowhere:look", folder=tmp_path)
    outcome = run_one(Sample(_task("good", checks=(function,)), "command", 0), setting, health)
    assert (outcome.end, outcome.reward) == ("failed", None)
    assert "nowhere" in str(outcome.reason)


def test_an_agent_sees_neither_the_state_folder_nor_the_task_file(
    gateway: RunningGateway, setting: Setting, health: Health, tmp_path: Path
) -> None:
    if setting.isolation != "namespaces":
        pytest.skip("needs namespaces")
    source = tmp_path / "tasks" / "tasks.yaml"
    source.parent.mkdir()
    source.write_text("secret")
    script = (
        "import os, socket, sys\n"
        f"print(os.path.exists({str(source)!r}), os.path.exists({str(gateway.home / 'operator.key')!r}))\n"
        "try:\n    socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError as error: print(error.strerror)\n"
        "sys.path.insert(0, sys.argv.pop())\nimport chaos_harness\nchaos_harness.good()\n"
    )
    task = _task(
        "good",
        source=source,
        checks=(RegexCheck(name="r", pattern="^False False\nNetwork is unreachable\nI am done", where="output"),),
    )
    outcome = run_one(
        Sample(task, "command", 0), replace(setting, command=(sys.executable, "-c", script, str(TOY.parent))), health
    )
    assert (outcome.end, outcome.reward) == ("completed", 1.0), outcome


def test_an_agent_does_not_see_other_samples(setting: Setting, health: Health) -> None:
    if setting.isolation != "namespaces":
        pytest.skip("needs namespaces")
    scratch = Path(__file__).resolve().parents[2] / ".run" / "samples-test"  # in no temporary folder
    (scratch / "another-sample").mkdir(parents=True, exist_ok=True)
    script = f"import os; print(len(os.listdir({str(scratch)!r})))"
    task = _task("good", checks=(RegexCheck(name="r", pattern="^1$", where="output"),))
    command = (sys.executable, "-c", script)
    outcome = run_one(Sample(task, "command", 0), replace(setting, scratch=scratch, command=command), health)
    assert (outcome.end, outcome.reward) == ("completed", 1.0), outcome
    assert [path.name for path in scratch.iterdir()] == ["another-sample"]


def test_groups_are_named_by_run_harness_and_round(setting: Setting) -> None:
    sample = Sample(_task("good"), "pi", 0)
    assert group_name(setting, sample) == "test/pi"
    assert group_name(setting, replace(sample, round=3)) == "test/pi/3"
