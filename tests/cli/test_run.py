"""``dragoman run``: what is asked of the gateway, what a person sees, and the exit code."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.run import exit_code
from dragoman.rollout.harnesses import find_harness

OPENED = {"id": "e1", "token": "0" * 32, "api_key": "dgm_" + "0" * 32, "expires_at": 9.0}
STATUS = {"version": "1", "engine": "http://e", "store": "s", "outbox_depth": 0, "max_model_len": 5000}
STATE = {"end": "completed", "end_reason": None, "calls": {"answered": 2, "refused": 1}}


@pytest.fixture
def gateway(serve_stub: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/dragoman/status":
            return 200, STATUS | {"max_reply_tokens": 77}
        if path == "/dragoman/episodes":
            return 201, OPENED | {"environment": {"proxy": {}, "base_url": {}}}
        if method == "GET":
            return 200, STATE | {"prompt_tokens": 1234, "completion_tokens": 5}
        return 200, {}

    stub = serve_stub(answer)
    monkeypatch.setenv("DRAGOMAN_GATEWAY", stub.address)
    return stub


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the installed program, which says how it was started."""
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "harnesses" / f"claude-{find_harness('claude').version}"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "claude"
    program.write_text('#!/bin/sh\necho "$@ <$(cat)> $ANTHROPIC_API_KEY $EXTRA"; echo said >&2; exit ${CODE:-0}\n')
    program.chmod(0o755)
    return program


def _sent(gateway: Any, path: str) -> Any:
    (body,) = [body for method, asked, body in gateway.requests if (method, asked) == ("POST", f"/dragoman{path}")]
    return body


BASE = ["--mode", "base-url", "--workdir"]


def test_a_run(run: Callable[..., Any], gateway: Any, claude: Path, tmp_path: Path) -> None:
    options = ["--task", "t", "--group", "g", "--expected", "2", "--temperature", "0.5", "--model", "m"]
    result = run("run", *BASE, str(tmp_path), *options, "--", "do", "this")

    assert result.code == 0, result.err
    assert result.out == f"-p --dangerously-skip-permissions --model m <do this> dgm_{'0' * 32} \n"
    lines = result.err.splitlines()
    assert lines[:2] == ["episode e1", "said"]
    assert lines[2].startswith("episode e1 completed: 3 calls (1 refused), 1,234 tokens in, 5 out, ")
    opened = _sent(gateway, "/episodes")
    assert (opened["task"], opened["group"], opened["expected"], opened["temperature"]) == ("t", "g", 2, 0.5)
    version = find_harness("claude").version
    assert opened["metadata"] == {"harness": "claude", "mode": "base-url", "model": "m", "version": version}
    assert _sent(gateway, "/episodes/e1/end") == {"end": "completed"}
    kept = {entry["name"] for entry in _sent(gateway, "/episodes/e1/artefacts")["artefacts"]}
    assert kept == {"run.json", "stderr.txt", "stdout.txt"}


def test_the_exit_code_is_the_harness_own(run: Callable[..., Any], gateway: Any, claude: Path, tmp_path: Path) -> None:
    result = run("run", *BASE, str(tmp_path), "--env", "CODE=7", "--", "x")

    assert result.code == 7
    assert "failed (claude exited with 7)" in result.err
    assert _sent(gateway, "/episodes/e1/end") == {"end": "failed", "reason": "claude exited with 7"}


@pytest.mark.parametrize(("code", "shells"), [(None, 124), (0, 0), (7, 7), (-9, 137)])
def test_exit_codes_as_a_shell_has_them(code: int | None, shells: int) -> None:
    assert exit_code(code) == shells


def test_variables_by_name_and_by_value(
    run: Callable[..., Any], gateway: Any, claude: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXTRA", "from the shell")
    assert "from the shell" not in run("run", *BASE, str(tmp_path), "--", "x").out
    assert "from the shell" in run("run", *BASE, str(tmp_path), "--env", "EXTRA", "--", "x").out
    wrong = run("run", *BASE, str(tmp_path), "--env", "NOT_SET_HERE", "--", "x")
    assert (wrong.code, "'NOT_SET_HERE' is neither NAME=VALUE" in wrong.err) == (1, True)


def test_any_program(run: Callable[..., Any], gateway: Any, tmp_path: Path) -> None:
    script = "import os, sys; print(sys.argv[1:], os.environ['OPENAI_API_KEY'][:4], os.environ['HOME'])"
    command = [sys.executable, "-c", script, "--flag", "-x"]
    result = run("run", "--harness", "command", *BASE, str(tmp_path), "--", *command)

    assert result.code == 0, result.err
    assert result.out.startswith("['--flag', '-x'] dgm_ ")
    assert str(Path.home()) + "\n" not in result.out
    assert _sent(gateway, "/episodes")["metadata"]["harness"] == Path(sys.executable).name


def test_a_program_that_is_not_there(run: Callable[..., Any], gateway: Any, tmp_path: Path) -> None:
    result = run("run", "--harness", "command", *BASE, str(tmp_path), "--", "no-such-program")

    assert result.code == 127
    assert "no-such-program" in result.err
    assert _sent(gateway, "/episodes/e1/end")["end"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--harness", "emacs", "--", "x"], "no harness 'emacs'; there are: pi,"),
        (["--harness", "pi", "--", "x"], "is not installed: `dragoman harness install pi`"),
        (["--workdir", "/no/such/folder", "--", "x"], "--workdir /no/such/folder is no folder"),
        (["--variant", "loud", "--", "x"], "claude has no variant 'loud'; there are: none"),
        (["--harness", "command"], "needs the program to run"),
        (["--harness", "command", "--model", "m", "--", "x"], "--model means nothing for `command`"),
        (["--", " "], "there is no prompt"),
    ],
)
def test_what_cannot_be_opens_no_episode(
    run: Callable[..., Any], gateway: Any, claude: Path, arguments: list[str], says: str
) -> None:
    result = run("run", "--mode", "base-url", *arguments)

    assert (result.code, says in result.err) == (1, True), result.err
    assert not any(method == "POST" for method, _, _ in gateway.requests)


def test_without_a_gateway_it_says_how_to_start_one(run: Callable[..., Any], claude: Path, nobody: str) -> None:
    result = run("run", "--gateway", nobody, "--", "x")

    assert result.code == 1
    assert "start one with `dragoman serve`" in result.err


def test_another_ca_is_told_before_anything_is_opened(run: Callable[..., Any], gateway: Any, claude: Path) -> None:
    result = run("run", "--mode", "proxy", "--", "x")  # the stub speaks no TLS at all

    assert result.code == 1
    assert "no TLS handshake with" in result.err
    assert not any(method == "POST" for method, _, _ in gateway.requests)


def test_the_prompt_may_come_on_stdin_and_ctrl_c_abandons(gateway: Any, claude: Path, tmp_path: Path) -> None:
    claude.write_text('#!/bin/sh\necho "begun <$(cat)>"; exec sleep 600\n')
    command = [sys.executable, "-m", "dragoman", "run", *BASE, str(tmp_path)]
    process = subprocess.Popen(
        command, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"from a file\n")
    process.stdin.close()
    process.stdin = None
    assert process.stdout.readline() == b"begun <from a file>\n"

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130, err
    assert b"interrupted" in err
    assert _sent(gateway, "/episodes/e1/end") == {"end": "abandoned", "reason": "interrupted by Ctrl-C"}


def test_a_reader_that_goes_away_ends_the_run(gateway: Any, claude: Path, tmp_path: Path) -> None:
    claude.write_text("#!/bin/sh\nwhile :; do echo line; done\n")
    command = [sys.executable, "-m", "dragoman", "run", *BASE, str(tmp_path), "--", "x"]
    process = subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    process.stdout = None

    _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert err.decode().splitlines()[-1].startswith("nobody reads the output any more")
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    assert _sent(gateway, "/episodes/e1/end")["end"] == "abandoned"


def test_a_gateway_that_only_looks_on_is_reached_by_proxy(
    run: Callable[..., Any],
    serve_stub: Callable[..., Any],
    claude: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = serve_stub(lambda method, path, body: (200, STATUS | {"observes": "provider"}))
    monkeypatch.setenv("DRAGOMAN_GATEWAY", stub.address)
    result = run("run", *BASE, str(tmp_path), "--", "do")
    assert result.code == 1
    assert "only looks on" in result.err
    assert "--mode proxy" in result.err
    assert {method for method, _, _ in stub.requests} == {"GET"}, "no episode was opened"


def test_an_unknown_harness_is_named_before_any_gateway_is_asked(
    run: Callable[..., Any], nobody: str, tmp_path: Path
) -> None:
    result = run("run", "--gateway", nobody, "--harness", "nonsuch", "--workdir", str(tmp_path), "--", "do")
    assert result.code == 1
    assert "nonsuch" in result.err
    assert "gateway" not in result.err
