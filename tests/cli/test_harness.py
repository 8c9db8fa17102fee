"""``dragoman harness``: the table, and which of it is ready."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout.harnesses import HARNESSES, find_harness


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with a stand-in for claude that prints its version, and one for pi that does not start."""
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    for name, script in (("claude", f"echo {find_harness('claude').version}"), ("pi", "echo broken >&2; exit 3")):
        folder = tmp_path / "cache" / "harnesses" / f"{name}-{find_harness(name).version}" / "bin"
        folder.mkdir(parents=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "cache" / "harnesses" / "codex-0.0.1").mkdir()
    return tmp_path / "cache" / "harnesses"


def test_list(run: Callable[..., Any], cache: Path) -> None:
    result = run("harness", "list")

    rows = [line.split() for line in result.out.splitlines()]
    version = find_harness("claude").version
    assert ["claude", "-", "anthropic", version, "yes", "npm", "@anthropic-ai/claude-code"] in rows
    assert ["qwen", "-", "openai_chat", find_harness("qwen").version, "no", "npm", "@qwen-code/qwen-code"] in rows
    assert ["builtin", "openai_responses"] in rows
    assert rows[-1][0] == "command"


def test_list_as_json_has_every_harness(run: Callable[..., Any], cache: Path) -> None:
    shown = json.loads(run("harness", "list", "--json").out)

    assert [entry["name"] for entry in shown] == [harness.name for harness in HARNESSES]
    codex = shown[[entry["name"] for entry in shown].index("codex")]
    assert (codex["installed"], codex["subagent_header"]) == (None, "x-codex-parent-thread-id")


def test_check_says_why_not_and_fails_for_what_was_named(run: Callable[..., Any], cache: Path) -> None:
    everything = run("harness", "check")
    assert everything.code == 0
    lines = {line.split()[0]: line for line in everything.out.splitlines()}
    assert len(lines) == len(HARNESSES)
    assert "ready      " in lines["claude"]
    assert "not ready  " in lines["pi"]
    assert "exit code 3 and 'broken'" in lines["pi"]
    assert "not installed; there is codex-0.0.1: `dragoman harness install codex`" in lines["codex"]

    assert run("harness", "check", "claude").code == 0
    assert run("harness", "check", "claude", "codex").code == 1
    shown = json.loads(run("harness", "check", "codex", "--json").out)
    assert (shown[0]["ready"], "not installed" in shown[0]["why_not"]) == (False, True)


def test_install_leaves_what_is_there_and_names_what_failed(
    run: Callable[..., Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no npm
    result = run("harness", "install", "claude", "codex")

    assert result.code == 1
    assert result.out == f"claude {find_harness('claude').version} {cache}/claude-{find_harness('claude').version}\n"
    assert "npm is not installed" in result.err
    assert result.err.endswith("dragoman: not installed: codex\n")


@pytest.mark.parametrize("command", ["install", "check"])
def test_an_unknown_name(run: Callable[..., Any], cache: Path, command: str) -> None:
    result = run("harness", command, "emacs")

    assert (result.code, "no harness 'emacs'" in result.err) == (1, True)
