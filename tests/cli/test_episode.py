"""``dragoman episode``: output for eval and for programs, and plain refusals with exit code 1."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPENED = {
    "id": "k3v9x2m1q8zt",
    "token": "0" * 32,
    "api_key": "dgm_" + "0" * 32,
    "expires_at": 12.5,
    "environment": {
        "proxy": {"HTTPS_PROXY": "http://tok:x@127.0.0.1:1", "NODE_EXTRA_CA_CERTS": "/a folder/it's.pem"},
        "base_url": {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"},
    },
}


@pytest.fixture
def gateway(serve_stub: Callable[..., Any]) -> Any:
    return serve_stub(lambda method, path, body: (201, OPENED) if path == "/dragoman/episodes" else (200, {}))


def test_open_prints_what_a_shell_can_evaluate(run: Callable[..., Any], gateway: Any) -> None:
    result = run("episode", "open", "--gateway", gateway.address)
    assert result.code == 0
    assert "# token   " + "0" * 32 in result.out
    script = 'eval "$1"; printf "%s\\n" "$HTTPS_PROXY" "$NODE_EXTRA_CA_CERTS" "$DRAGOMAN_EPISODE" "$DRAGOMAN_GATEWAY"'
    shell = subprocess.run(["sh", "-c", script, "sh", result.out], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines() == [
        "http://tok:x@127.0.0.1:1",
        "/a folder/it's.pem",
        "k3v9x2m1q8zt",
        gateway.address,
    ]


def test_open_sends_the_options_and_the_operator_key(run: Callable[..., Any], gateway: Any, state: Path) -> None:
    options = ["--task", "t", "--group", "g", "--expected", "4", "--deadline", "600", "--profile", "as_asked"]
    result = run("episode", "open", "--gateway", gateway.address, *options, "--temperature", "0.7", "--ttl", "60")
    assert result.code == 0
    assert gateway.requests[0][2] == {
        "task": "t",
        "group": "g",
        "expected": 4,
        "deadline_seconds": 600,
        "profile": "as_asked",
        "temperature": 0.7,
        "ttl_seconds": 60,
    }
    assert gateway.headers[0]["authorization"] == "Bearer " + (state / "operator.key").read_text().strip()


def test_open_json_and_export(run: Callable[..., Any], gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_GATEWAY", gateway.address.removeprefix("http://"))
    assert json.loads(run("episode", "open", "--json").out) == OPENED
    lines = run("episode", "open", "--export", "--mode", "base-url").out.splitlines()
    assert lines[0] == "export OPENAI_BASE_URL=http://127.0.0.1:1/v1"
    assert all(line.startswith("export ") for line in lines)
    refused = run("episode", "open", "--export", "--json")
    assert (refused.code, refused.err) == (1, "dragoman: --json and --export exclude each other\n")


def test_end_takes_the_episode_of_the_shell(
    run: Callable[..., Any], gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_GATEWAY", gateway.address)
    monkeypatch.setenv("DRAGOMAN_EPISODE", "fromshell")
    assert run("episode", "end", "--end", "timed_out", "--reason", "too slow").code == 0
    assert gateway.requests == [
        ("POST", "/dragoman/episodes/fromshell/end", {"end": "timed_out", "reason": "too slow"})
    ]


@pytest.mark.parametrize(("text", "value"), [("1.0", 1.0), ("-1", -1.0), ("-0.25", -0.25), ("1e-3", 0.001)])
def test_reward_takes_any_number(run: Callable[..., Any], gateway: Any, text: str, value: float) -> None:
    result = run("episode", "reward", "abc", text, "--gateway", gateway.address, "--component", "tests=-1")
    assert result.code == 0, result.err
    assert gateway.requests[-1][1:] == (
        "/dragoman/episodes/abc/reward",
        {"reward": value, "components": {"tests": -1.0}},
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nan"], "finite"), (["inf"], "finite"), (["1", "--component", "x"], "'x' is not NAME=VALUE")],
)
def test_reward_refuses_nonsense(run: Callable[..., Any], gateway: Any, arguments: list[str], says: str) -> None:
    result = run("episode", "reward", "abc", *arguments, "--gateway", gateway.address)
    assert result.code == 1
    assert says in result.err
    assert gateway.requests == []


@pytest.mark.parametrize("command", [["open"], ["end", "abc"], ["reward", "abc", "1"]])
def test_plain_words_when_it_fails(
    run: Callable[..., Any], serve_stub: Callable[..., Any], nobody: str, command: list[str]
) -> None:
    absent = run("episode", *command, "--gateway", nobody)
    assert absent.code == 1
    assert absent.err.startswith(f"dragoman: no gateway answers at {nobody}")
    wrong_key = {"error": {"code": "unauthorized", "message": "unknown operator key"}}
    stub = serve_stub(lambda method, path, body: (401, wrong_key))
    refused = run("episode", *command, "--gateway", stub.address)
    assert refused.code == 1
    assert "unknown operator key; the operator key is in `operator.key`" in refused.err
    assert "Traceback" not in refused.err + absent.err
