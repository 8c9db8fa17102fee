"""``dragoman env``: real shells read back exactly what was meant, files stay out of HOME, and the comments are true."""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.env import exports, fish_quoted, syntax_of

HARD = {
    "PLAIN": "http://t:x@127.0.0.1:1",
    "QUOTES": """it's "so" """,
    "SHELL_SIGNS": "$HOME `id` $(id) \\ \\' * ? ! # ; & | < > ~",
    "EMPTY": "",
    "TWO_LINES": "a\nb\\\n",
    "UNICODE": "é ✓",
}
OPENED = {"id": "e1", "token": "0" * 32, "api_key": "dgm_" + "0" * 32, "expires_at": 9.0}
STATUS = {"version": "1", "engine": "http://e", "store": "s", "outbox_depth": 0, "max_model_len": 5000}


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])
def test_a_shell_reads_back_what_was_meant(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    lines = "\n".join(exports(HARD, syntax_of(shell, "")))
    names = " ".join(f'"${name}"' for name in HARD)
    done = subprocess.run([shell, "-c", f"{lines}\nprintf '%s\\0' {names}"], capture_output=True, check=True)

    assert done.stdout.decode().split("\0")[:-1] == list(HARD.values())


def test_fish_reads_only_these_two_signs_in_single_quotes() -> None:
    assert fish_quoted("a'b\\c$d") == "'a\\'b\\\\c$d'"


@pytest.mark.parametrize(
    ("named", "login", "syntax"),
    [
        (None, "/usr/bin/fish", "fish"),
        (None, "/bin/zsh", "posix"),
        ("bash", "/usr/bin/fish", "posix"),
        (None, "", "posix"),
    ],
)
def test_the_syntax_is_the_named_shells_else_the_login_shells(named: str | None, login: str, syntax: str) -> None:
    assert syntax_of(named, login) == syntax


@pytest.fixture
def gateway(serve_stub: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    environment = {"proxy": {"HTTPS_PROXY": "http://x"}, "base_url": {"OPENAI_API_KEY": "dgm_x"}}
    stub = serve_stub(
        lambda method, path, body: (200, STATUS) if method == "GET" else (201, OPENED | {"environment": environment})
    )
    monkeypatch.setenv("DRAGOMAN_GATEWAY", stub.address)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHELL", "/bin/bash")
    return stub


def _evaluated(text: str) -> dict[str, str]:
    script = f"{text}\nenv -0"
    env = {"PATH": os.environ["PATH"], "HOME": "/my/home"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=True)
    return dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)


def test_codex_by_base_url_gets_its_file_and_the_variable_that_names_it(
    run: Callable[..., Any], gateway: Any, state: Path
) -> None:
    result = run("env", "codex", "--mode", "base-url", "--task", "t")

    assert result.code == 0, result.err
    env = _evaluated(result.out)
    folder = state / "shells" / "e1" / ".codex"
    assert (env["HOME"], env["CODEX_HOME"]) == ("/my/home", str(folder))
    assert (env["DRAGOMAN_EPISODE"], env["DRAGOMAN_GATEWAY"]) == ("e1", gateway.address)
    assert env["OPENAI_API_KEY"] == "dgm_" + "0" * 32
    assert f'base_url = "{gateway.address}/v1"' in (folder / "config.toml").read_text()
    assert stat.S_IMODE((folder / "config.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "shells" / "e1").stat().st_mode) == 0o700
    ((_, _, body),) = [request for request in gateway.requests if request[0] == "POST"]
    assert (body["task"], body["metadata"]["harness"]) == ("t", "codex")


def test_the_comments_say_how_to_start_and_how_to_end(run: Callable[..., Any], gateway: Any) -> None:
    result = run("env", "pi", "--mode", "base-url", "--model", "m")
    out = result.out
    comments = [line for line in out.splitlines() if line.startswith("#")]

    assert comments[0] == "# episode e1"
    assert "# start    pi --provider dragoman --model m" in comments
    assert any("dragoman episode end --end completed" in line for line in comments)
    assert [f"# {line}" for line in result.err.splitlines()] == comments[:-1], "whoever evaluates sees stderr only"
    undo = next(line for line in comments if line.startswith("# undo")).removeprefix("# undo").split(";")[0]
    assert _evaluated(out + undo.strip()).keys() <= _evaluated("").keys()


def test_fish_is_told_in_fish(run: Callable[..., Any], gateway: Any) -> None:
    out = run("env", "pi", "--mode", "base-url", "--shell", "fish").out

    assert all(line.startswith(("# ", "set -gx ")) for line in out.splitlines())
    assert "# undo     set -e HTTPS_PROXY" in out


def test_a_harness_that_only_we_have_is_started_from_its_folder(
    run: Callable[..., Any], gateway: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.rollout.harnesses import find_harness

    folder = tmp_path / "cache" / "harnesses" / f"pi-{find_harness('pi').version}" / "bin"
    folder.mkdir(parents=True)
    (folder / "pi").write_text('#!/bin/sh\necho "$@ by $(command -v node)"\n')
    (folder / "node").write_text("")
    for program in folder.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    out = run("env", "pi", "--mode", "base-url").out
    start = next(line for line in out.splitlines() if line.startswith("# start")).removeprefix("# start").strip()

    for shell in filter(shutil.which, ("bash", "fish")):
        done = subprocess.run([shell, "-c", start], capture_output=True, text=True, check=True)
        assert done.stdout == f"--provider dragoman --model policy by {folder}/node\n"
    assert "export PATH=" not in out
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert "# start    pi --provider" in run("env", "pi", "--mode", "base-url").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["emacs"], "no harness 'emacs'"), (["pi", "--variant", "x"], "pi has no variant 'x'")],
)
def test_what_cannot_be_opens_no_episode(
    run: Callable[..., Any], gateway: Any, arguments: list[str], says: str
) -> None:
    result = run("env", *arguments, "--mode", "base-url")

    assert (result.code, result.out, says in result.err) == (1, "", True)
    assert not any(method == "POST" for method, _, _ in gateway.requests)
