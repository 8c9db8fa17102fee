"""``dragoman rollout``: what is asked of the gateway, what a person sees, and what opens no episode."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SCRIPT = "import sys; prompt = sys.stdin.read(); print('said', prompt); open('out.txt', 'w').write(prompt[:4])"


@dataclass
class Gateway:
    stub: Any
    state: dict[str, Any] = field(default_factory=dict)

    def sent(self, path: str) -> list[Any]:
        return [body for method, asked, body in self.stub.requests if method == "POST" and asked.endswith(path)]


@pytest.fixture
def gateway(serve_stub: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Gateway:
    opened: list[str] = []

    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/dragoman/status":
            return 200, {"version": "1", "engine": "http://e", "store": "s", "outbox_depth": 0, "engine_up": True}
        if path == "/dragoman/episodes":
            opened.append(f"e{len(opened)}")
            environment: dict[str, Any] = {"proxy": {}, "base_url": {}}
            more = {"token": "0" * 32, "api_key": "dgm_", "expires_at": 9.0, "environment": environment}
            return 201, {"id": opened[-1], **more}
        if method == "GET":
            calls = {"answered": 2}
            return 200, {"end": None, "end_reason": None, "calls": calls, "prompt_tokens": 7, "completion_tokens": 5}
        return 200, {}

    stub = serve_stub(answer)
    monkeypatch.setenv("DRAGOMAN_GATEWAY", stub.address)
    return Gateway(stub)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    check = {"kind": "equal", "path": "out.txt", "to": "good"}
    path = tmp_path / "tasks.jsonl"
    lines = [{"id": name, "prompt": name, "checks": [check], "split": name[:3]} for name in ("good", "bad1")]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


OPTIONS = ("--harness", "command", "--mode", "base-url", "--samples", "2", "--isolation", "limits")
PROGRAM = ("--", sys.executable, "-c", SCRIPT)


def test_a_run_and_the_same_command_again(run: Callable[..., Any], gateway: Gateway, tasks: Path, state: Path) -> None:
    result = run("rollout", str(tasks), *OPTIONS, "--temperature", "0.5", "--deadline", "99", *PROGRAM)

    assert result.code == 0, result.err
    opened = gateway.sent("/episodes")
    assert sorted(one["task"] for one in opened) == ["bad1", "bad1", "good", "good"]
    name = next(path.name for path in (state / "rollouts").iterdir())
    assert {(one["group"], one["expected"], one["deadline_seconds"]) for one in opened} == {(f"{name}/command", 2, 99)}
    assert {(one["profile"], one["temperature"]) for one in opened} == {("train", 0.5)}
    assert sorted(one["metadata"]["sample"] for one in opened) == [0, 0, 1, 1]
    assert sorted(one["reward"] for one in gateway.sent("/reward")) == [0, 0, 1, 1]
    assert gateway.sent("/end") == [{"end": "completed"}] * 4
    order = [path.rsplit("/", 1)[1] for method, path, _ in gateway.stub.requests if "/e0/" in path and method == "POST"]
    assert order == ["artefacts", "reward", "end"], "whoever waits for the end finds the rest"
    assert "4/4 done" in result.err
    assert "command  4        4          0       0          0          50%     0.500        8" in result.out

    again = run("rollout", str(tasks), *OPTIONS, "--temperature", "0.5", "--deadline", "99", *PROGRAM)
    assert again.code == 0
    assert f"run {name}" in again.err
    assert "4 samples were done before; --again begins a new run" in again.err
    assert len(gateway.sent("/episodes")) == 4
    new = run("rollout", str(tasks), *OPTIONS, "--temperature", "0.5", "--again", "--task", "good", *PROGRAM)
    assert new.code == 0
    assert len(gateway.sent("/episodes")) == 6


def test_other_options_are_another_run(run: Callable[..., Any], gateway: Gateway, tasks: Path, state: Path) -> None:
    for more in (("--split", "goo"), ("--split", "bad"), ("--split", "goo", "--temperature", "0.7")):
        assert run("rollout", str(tasks), *OPTIONS, *more, *PROGRAM).code == 0
    assert len(list((state / "rollouts").iterdir())) == 3


def test_a_failure_is_one_line_with_its_reason(run: Callable[..., Any], gateway: Gateway, tasks: Path) -> None:
    program = ("--", sys.executable, "-c", "import sys; sys.exit(3)")
    result = run("rollout", str(tasks), *OPTIONS, "--run", "mine", "--task", "good", *program)
    assert result.code == 0, "it ended, if badly"
    assert "good command #0: failed: command exited with 3; `dragoman show e" in result.err
    assert "2 x command exited with N" in result.out
    assert gateway.sent("/end") == [{"end": "failed", "reason": "command exited with 3"}] * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--harness", "nonsuch"], "no harness 'nonsuch'"),
        (["--harness", "command"], "--harness command needs the program"),
        (["--harness", "pi,pi"], "--harness needs names, each once"),
        (["--harness", "command", "--run", "a/b", "--", "true"], "--run: 'a/b' is no name for a run"),
        (["--harness", "command", "--task", "none", "--", "true"], "has no task 'none'"),
        (["--harness", "command", "--split", "none", "--", "true"], "no task has the split 'none'"),
    ],
)
def test_what_cannot_be_opens_no_episode(
    run: Callable[..., Any], gateway: Gateway, tasks: Path, arguments: list[str], says: str
) -> None:
    result = run("rollout", str(tasks), "--mode", "base-url", *arguments)
    assert (result.code, says in result.err) == (1, True), result.err
    assert gateway.sent("/episodes") == []


def test_a_bad_task_file_is_told_before_a_gateway_is_asked(
    run: Callable[..., Any], nobody: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.yaml").write_text("- {id: a}\n")
    result = run("rollout", str(tmp_path / "tasks.yaml"), "--gateway", nobody, "--harness", "pi")
    assert result.code == 1
    assert "tasks.yaml:1: task 'a': 'prompt' is missing" in result.err


def test_an_episode_whose_end_was_not_noted_is_settled(
    run: Callable[..., Any], serve_stub: Callable[..., Any], tmp_path: Path
) -> None:
    """The runner was killed: one episode had ended, one had not."""
    from dragoman.cli.episode import connect
    from dragoman.cli.rollout_run import close_left
    from dragoman.rollout.journal import Journal
    from dragoman.rollout.samples import Sample
    from dragoman.rollout.tasks import Task

    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("e-ended/end"):
            return 409, {"error": {"code": "conflict", "message": "it has already ended"}}
        if path.endswith("e-gone/end"):
            return 404, {"error": {"code": "not_found", "message": "there is none"}}
        if method == "GET":
            counts = {"calls": {"answered": 3}, "prompt_tokens": 7, "completion_tokens": 5}
            return 200, {"end": "completed", "end_reason": None, "reward": 0.5, **counts}
        return 200, {}

    samples = [Sample(Task("t", "x"), "pi", number) for number in range(3)]
    with Journal(tmp_path / "run") as journal, connect(serve_stub(answer).address) as client:
        for sample, episode in zip(samples, ("e-ended", "e-open", "e-gone"), strict=True):
            journal.opened(sample, episode)
        close_left(journal, client)
        assert set(journal.done) == {samples[0].key}
        found = journal.done[samples[0].key]
        assert (found.end, found.reward, found.calls, found.completion_tokens) == ("completed", 0.5, 3, 5)
