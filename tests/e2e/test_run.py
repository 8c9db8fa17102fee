"""`dragoman run` and `dragoman env` with real programs: a real gateway, a scripted engine, and the user's own files."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.rollout.harnesses import find_harness
from dragoman.rollout.install import installed
from dragoman.store.artefacts import list_artefacts, read_artefact
from dragoman.store.database import Database
from dragoman.store.episodes import get_episode
from dragoman.store.records import EpisodeInfo
from scripts.harness_rows import PROMPT, Row, script
from tests.gateway import RunningGateway, running_gateway
from tests.scripted import scripted_engine

# What a person may have: settings, a login, a history. Any of it that is read would send the harness elsewhere.
OWN_FILES = {
    ".claude.json": '{"theme": "light", "primaryApiKey": "sk-ant-own-secret"}',
    ".claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}}',
    ".codex/config.toml": 'model_provider = "x"\n[model_providers.x]\nname = "x"\nbase_url = "http://127.0.0.1:9"\n',
    ".codex/auth.json": '{"OPENAI_API_KEY": "sk-own-secret"}',
    ".pi/agent/models.json": '{"providers": {}}',
    ".gitconfig": "[user]\n\tname = me\n",
    ".bashrc": "export MINE=1\n",
}


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's HOME, and keys in their shell; the cache with the harnesses stays where it is."""
    from dragoman.home import cache_folder

    monkeypatch.setenv("DRAGOMAN_CACHE", str(cache_folder()))
    home = tmp_path / "own"
    for name, content in OWN_FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    monkeypatch.setenv("HOME", str(home))
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-own-secret")
    return home


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def _files(home: Path) -> dict[str, str]:
    """Every file below a folder with its hash."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in home.rglob("*")
        if path.is_file()
    }


def _dragoman(gateway: RunningGateway, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "DRAGOMAN_HOME": str(gateway.home), "DRAGOMAN_GATEWAY": gateway.address}
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments], env=env, input=stdin, capture_output=True, text=True
    )


def _stored(gateway: RunningGateway, said: str) -> tuple[EpisodeInfo, dict[str, bytes]]:
    """The episode that stderr names, and its artefacts."""
    episode_id = said.splitlines()[0].removeprefix("episode ")
    database = Database.open(gateway.store_url)
    try:
        with database.reading() as session:
            names = [info.name for info in list_artefacts(session, episode_id)]
            kept = {name: read_artefact(session, episode_id, name).data for name in names}
            return get_episode(session, episode_id), kept
    finally:
        database.close()


def _steps(harness: str, variant: str) -> Iterator[dict[str, object]]:
    return iter(script(Row(harness, variant, "proxy", "works")))


@pytest.mark.harness
@pytest.mark.parametrize("mode", ["proxy", "base-url"])
@pytest.mark.parametrize(("harness", "variant"), [("claude", ""), ("codex", "custom"), ("pi", "anthropic")])
def test_a_harness_works_in_the_folder_and_the_users_own_files_stay_as_they_are(
    tmp_path: Path, own_home: Path, work: Path, harness: str, variant: str, mode: str
) -> None:
    before = _files(own_home)
    chosen = ["--variant", variant] if variant else []
    with (
        scripted_engine(list(_steps(harness, variant)), max_model_len=131072) as engine,
        running_gateway(tmp_path / "state", engine.address, settings={"dragoman_max_reply_tokens": "4096"}) as gateway,
    ):
        done = _dragoman(
            gateway, "run", "--harness", harness, *chosen, "--mode", mode, "--workdir", str(work), "--", PROMPT
        )
        episode, kept = _stored(gateway, done.stderr)

    assert done.returncode == 0, done.stderr
    assert "I wrote the file." in done.stdout
    assert (work / "out.txt").read_text() == "hello from the tool\n"
    assert (episode.end, episode.spec.metadata["mode"]) == ("completed", mode)
    assert b"+hello from the tool\n" in kept["changes.diff"]
    assert kept["stdout.txt"].decode() == done.stdout
    assert json.loads(kept["run.json"])["version"] == find_harness(harness).version
    assert _files(own_home) == before
    assert b"own-secret" not in b"".join(kept.values())
    assert {path.name for path in work.iterdir()} == {".git", "out.txt"}


@pytest.mark.harness
@pytest.mark.parametrize("mode", ["proxy", "base-url"])
def test_a_persons_own_shell(tmp_path: Path, own_home: Path, work: Path, mode: str) -> None:
    """Codex, whose own settings name another provider, started by hand after ``eval "$(dragoman env codex)"``."""
    before = _files(own_home)
    place = installed(find_harness("codex"))
    by_hand = f"""
set -e
eval "$({sys.executable} -m dragoman env codex --mode {mode})"
echo "$HOME $MORE" >&2
cd {work}
{place}/bin/codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check '{PROMPT}' </dev/null
{sys.executable} -m dragoman episode end --end completed
echo "episode $DRAGOMAN_EPISODE" > {tmp_path}/id
"""
    with (
        scripted_engine(list(_steps("codex", "custom")), max_model_len=131072) as engine,
        running_gateway(tmp_path / "state", engine.address, settings={"dragoman_max_reply_tokens": "4096"}) as gateway,
    ):
        env = {**os.environ, "DRAGOMAN_HOME": str(gateway.home), "DRAGOMAN_GATEWAY": gateway.address, "MORE": "kept"}
        done = subprocess.run(["bash", "-c", by_hand], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        episode, _ = _stored(gateway, (tmp_path / "id").read_text())
        calls = gateway.calls(episode.id)

    assert f"{own_home} kept" in done.stderr
    assert (work / "out.txt").is_file()
    assert episode.end == "completed"
    assert [call.outcome.status for call in calls if call.outcome] == ["answered", "answered"]
    assert _files(own_home) == before


TALK = """
import os, sys
from openai import OpenAI
from anthropic import Anthropic
said = [{"role": "user", "content": "hi"}]
print(OpenAI().chat.completions.create(model="m", messages=said).choices[0].message.content)
with Anthropic().messages.stream(model="m", max_tokens=50, messages=said) as stream:
    print(stream.get_final_text())
print(open("in.txt").read(), sys.stdin.read(), sys.argv[1:], "MINE" in os.environ)
open("made.txt", "w").write("made\\n")
sys.exit(5)
"""


@pytest.mark.parametrize("mode", ["proxy", "base-url"])
def test_any_program_talks_to_the_gateway(
    tmp_path: Path, work: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "in.txt").write_text("from the folder")
    monkeypatch.setenv("MINE", "secret of this shell")
    with (
        scripted_engine([{"text": "hello from the model", "repeat": True}]) as engine,
        running_gateway(tmp_path / "state", engine.address) as gateway,
    ):
        options = ["--harness", "command", "--mode", mode, "--workdir", str(work), "--task", "talk"]
        done = _dragoman(gateway, "run", *options, "--", sys.executable, "-c", TALK, "-x", "--y", stdin="piped in")
        episode, kept = _stored(gateway, done.stderr)
        shown = _dragoman(gateway, "show", episode.id).stdout
        diff = _dragoman(gateway, "show", episode.id, "--artefact", "changes.diff").stdout

    assert done.returncode == 5, done.stderr
    assert done.stdout.splitlines() == [
        "hello from the model",
        "hello from the model",
        "from the folder piped in ['-x', '--y'] False",
    ]
    assert (episode.end, episode.spec.task) == ("failed", "talk")
    assert str(episode.end_reason).endswith("exited with 5")
    assert f"episode {episode.id} failed" in done.stderr
    assert "2 calls, " in done.stderr
    assert sorted(kept) == ["changes.diff", "run.json", "stderr.txt", "stdout.txt"]
    assert "+++ b/made.txt" in diff
    assert "in.txt" not in diff
    assert "changes.diff" in shown
    assert (gateway.home / "dragoman.db").is_file()


def test_a_gateway_with_another_ca_is_told_before_an_episode_is_opened(tmp_path: Path, work: Path) -> None:
    with (
        scripted_engine([{"text": "hello", "repeat": True}]) as engine,
        running_gateway(tmp_path / "state", engine.address) as gateway,
    ):
        rotated = _dragoman(gateway, "certs", "rotate")
        refused = _dragoman(gateway, "run", "--harness", "command", "--workdir", str(work), "--", "true")
        by_address = _dragoman(
            gateway, "run", "--harness", "command", "--mode", "base-url", "--workdir", str(work), "--", "true"
        )

    assert f"start again: the gateway at {gateway.address}" in rotated.stdout
    assert refused.returncode == 1
    assert "signs with another CA" in refused.stderr
    assert by_address.returncode == 0, by_address.stderr
