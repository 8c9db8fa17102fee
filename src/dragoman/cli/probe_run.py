"""The runs of a probe: a scripted engine and a gateway of its own, and the harness once for each case.

Rules of this module: it starts, watches and stops; what the runs mean is for ``rollout.probe``. Everything lies in one
folder, listens on free loopback ports, and is stopped when the block is left in any way.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dragoman.cli import probe_watch, processes
from dragoman.cli.gateway_process import GATEWAY_SECONDS, wait_for_gateway
from dragoman.cli.output import Failure

if TYPE_CHECKING:
    from dragoman.gateway_client import GatewayClient
    from dragoman.rollout.harnesses import Harness
    from dragoman.rollout.launch import Target
    from dragoman.rollout.probe.cases import Case
    from dragoman.rollout.probe.records import CaseRun, SeenCall
    from dragoman.rollout.process import HarnessResult, Launch
    from dragoman.store.records import JsonObject

Mode = Literal["base-url", "proxy"]
CONTEXT_TOKENS, REPLY_TOKENS = 131072, 4096
ENGINE_SECONDS = 120.0
PROVIDERS = {
    "anthropic": "https://api.anthropic.com",
    "openai_chat": "https://api.openai.com",
    "openai_responses": "https://api.openai.com",
    "google": "https://generativelanguage.googleapis.com",
}
"""Where a harness that is told an address finds its provider, by dialect, in proxy mode."""


@dataclass(frozen=True)
class Probe:
    """What to probe, and how."""

    harness: "Harness | None"
    """None: ``words`` are the command of any program."""
    place: Path | None
    """Where the harness is installed; None: it is any program."""
    words: tuple[str, ...]
    modes: tuple[Mode, ...]
    prompt: str
    variant: str | None
    model: str
    timeout: float
    """Seconds for each run."""
    long: bool
    only: tuple[str, ...]
    """Names of the cases to try behind the first; empty: all."""
    env: Mapping[str, str]
    path: str


@dataclass(frozen=True)
class _Played:
    """A run, as it stands before the gateway has ended and the flows can be read."""

    case: str
    mode: Mode
    episode_id: str
    started: float
    result: "HarnessResult"
    steps: tuple[int | None, ...]
    notes: "tuple[JsonObject, ...]"
    names: tuple[str, ...] | None
    no_route: int | None
    made: bool


def play(probe: Probe, folder: Path, *, private: bool, say: Callable[[str], None]) -> "list[CaseRun]":
    """Run every case that makes sense, and return what was seen. ``private``: in a network of this process's own.

    Raises ``Failure`` when engine or gateway do not start, ``OSError`` when the harness cannot be started at all.
    """
    from dragoman.rollout.network import isolate

    names = isolate(folder) if private else None
    (folder / "state").mkdir(mode=0o700)
    with _engine(folder) as engine, _gateway(engine, folder) as address, _client(address, folder) as client:
        played = list(_Player(probe, folder, engine, client, names, say).all())
    return seen(played, folder)


def seen(played: "Sequence[_Played]", folder: Path) -> "list[CaseRun]":
    """The runs with what flows and store know of them."""
    from dragoman.addons.providers import provider_for_host
    from dragoman.cli.probe_seen import seen_calls, seen_requests
    from dragoman.rollout.probe.records import CaseRun
    from dragoman.store.database import Database

    requests = sorted(seen_requests(folder / "flows"), key=lambda request: request.at)
    database = Database.open(_store(folder))
    runs = []
    try:
        with database.reading() as session:
            for at, one in enumerate(played):
                end = played[at + 1].started if at + 1 < len(played) else float("inf")
                hosts = {note["host"] for note in one.notes if "host" in note}
                strange = {h for h in hosts if provider_for_host(h) is None and h not in ("127.0.0.1", "localhost")}
                runs.append(
                    CaseRun(
                        case=one.case,
                        mode=one.mode,
                        exit_code=one.result.exit_code,
                        seconds=round(one.result.seconds, 1),
                        requests=tuple(request for request in requests if one.started <= request.at < end),
                        calls=seen_calls(session, one.episode_id),
                        steps=one.steps,
                        hosts=tuple(sorted(strange)),
                        secure=any(note.get("secure") for note in one.notes),
                        distrusted=tuple(sorted({n["distrusted"] for n in one.notes if "distrusted" in n})),
                        names=one.names,
                        no_route=one.no_route,
                        made=one.made,
                        stdout=one.result.stdout[-2000:],
                        stderr=one.result.stderr[-2000:],
                    )
                )
    finally:
        database.close()
    return runs


class _Player:
    """Runs the harness case by case at a gateway."""

    def __init__(
        self,
        probe: Probe,
        folder: Path,
        engine: str,
        client: "GatewayClient",
        names: list[str] | None,
        say: Callable[[str], None],
    ) -> None:
        self.probe, self.folder, self.engine, self.client = probe, folder, engine, client
        self.names, self.say = names, say
        self.dialect = "openai_chat"
        """What it spoke last, for the address of its provider."""

    def all(self) -> Iterator[_Played]:
        """Each mode: first a plain text, which shows whether it is reached and what tools there are; then the rest."""
        from dragoman.rollout.probe.cases import CASES, cases_for
        from dragoman.rollout.probe.tools import find_agent, find_shell

        first = True
        for mode in self.probe.modes:
            text = self.play(CASES[0], mode, ())
            yield text
            calls = [call for call in self.calls(text) if call.status == "answered"]
            if not calls or not _came(text, mode):
                continue
            self.dialect = calls[0].provider
            tools = max((call.tools for call in calls if call.kind == "main"), key=len, default=())
            shell, agent = find_shell(tools), find_agent(tools)
            for case in cases_for(shell, agent, first=first, long=self.probe.long, only=self.probe.only):
                yield self.play(case, mode, tools)
            first = False

    def play(self, case: "Case", mode: Mode, tools: "tuple[object, ...]") -> _Played:
        import httpx

        from dragoman.rollout.network import no_route
        from dragoman.rollout.probe.cases import steps
        from dragoman.rollout.probe.tools import OfferedTool, find_agent, find_shell
        from dragoman.rollout.process import run

        self.say(f"{mode}: {case.name}")
        known = [tool for tool in tools if isinstance(tool, OfferedTool)]
        script = steps(case, find_shell(known), find_agent(known), self.probe.prompt)
        httpx.post(f"{self.engine}/scripted/script", json=script, trust_env=False).raise_for_status()
        fault, notes = self.folder / probe_watch.FAULT, self.folder / probe_watch.NOTES
        if case.fault is not None:
            fault.write_text(json.dumps(asdict(replace(case.fault, offers_tools=bool(known)))))
        notes.write_text("")
        looked_up, tried = len(self.names or ()), no_route() if self.names is not None else 0
        work = self._workdir(f"{mode}-{case.name}")
        opened = self.client.open_episode(task="probe", metadata={"case": case.name, "mode": mode})
        started = time.time()
        try:
            launch = self._launch(self._target(opened.token, mode), work)
            result = run(launch, timeout=self.probe.timeout + case.waits)
        finally:
            self.client.end_episode(opened.id, "completed")
            fault.unlink(missing_ok=True)
        (self.folder / f"{mode}-{case.name}.out").write_text(f"{result.stdout}\n--- stderr\n{result.stderr}")
        asked = httpx.get(f"{self.engine}/scripted/requests", trust_env=False).json()
        return _Played(
            case=case.name,
            mode=mode,
            episode_id=opened.id,
            started=started,
            result=result,
            steps=tuple(one["step"] for one in asked),
            notes=tuple(json.loads(line) for line in notes.read_text().splitlines()),
            names=None if self.names is None else tuple(dict.fromkeys(self.names[looked_up:])),
            no_route=None if self.names is None else no_route() - tried,
            made=(work / "probe.txt").is_file(),
        )

    def calls(self, played: _Played) -> "tuple[SeenCall, ...]":
        from dragoman.cli.probe_seen import seen_calls
        from dragoman.store.database import Database

        database = Database.open(_store(self.folder))
        try:
            with database.reading() as session:
                return seen_calls(session, played.episode_id)
        finally:
            database.close()

    def _workdir(self, name: str) -> Path:
        work = self.folder / "work" / name
        work.mkdir(parents=True)
        if shutil.which("git"):
            subprocess.run(["git", "init", "-q", "."], cwd=work, check=True)
        return work

    def _target(self, token: str, mode: Mode) -> "Target":
        from dragoman.rollout.launch import Target

        certs = self.folder / "state" / "certs"
        return Target(self.client.address, token, mode, certs, REPLY_TOKENS, CONTEXT_TOKENS)

    def _launch(self, target: "Target", work: Path) -> "Launch":
        from dragoman.rollout.launch import launch, launch_command

        probe = self.probe
        # One home for all runs of a mode: what names an installation is then alike, and what names a session is not.
        home = self.folder / f"home-{target.mode}"
        if probe.harness is not None and probe.place is not None:
            return launch(
                probe.harness,
                target,
                installed=probe.place,
                prompt=probe.prompt,
                home=home,
                workdir=work,
                variant=probe.variant,
                path=probe.path,
                extra=probe.env,
            )
        address = target.address() if target.mode == "base-url" else PROVIDERS[self.dialect]
        values = {
            "{prompt}": probe.prompt,
            "{base_url}": address,
            "{api_key}": target.key(),
            "{model}": probe.model,
            "{workdir}": str(work),
        }
        words = tuple(fill(word, values) for word in probe.words)
        made = launch_command(words, target, home=home, workdir=work, path=probe.path, extra=probe.env)
        return replace(made, stdin="" if any("{prompt}" in word for word in probe.words) else probe.prompt)


def fill(word: str, values: Mapping[str, str]) -> str:
    """A word of the command with its placeholders filled in; other braces stay as they are."""
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _came(played: _Played, mode: Mode) -> bool:
    """Whether anything came in the way that the mode asks for."""
    own = ("127.0.0.1", "localhost")
    return any("host" in note and (note["host"] in own) == (mode == "base-url") for note in played.notes)


def _store(folder: Path) -> str:
    return f"sqlite:///{folder / 'state' / 'dragoman.db'}"


# -- the processes ---------------------------------------------------------------------------------------------------


@contextmanager
def _engine(folder: Path) -> Iterator[str]:
    from dragoman.home import cache_folder
    from dragoman.trainer.tiny_model import build_tiny

    script, port = folder / "script.json", folder / "engine.port"
    script.write_text(json.dumps([{"text": "not yet", "repeat": True}]))
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--script", str(script), "--port", "0"]
    command += ["--model", str(build_tiny(cache_folder() / "models" / "tiny")), "--port-file", str(port)]
    command += ["--max-model-len", str(CONTEXT_TOKENS)]
    with processes.running(command, os.environ, folder / "engine.log") as child:
        limit = time.monotonic() + ENGINE_SECONDS
        while not port.exists():
            if child.returncode() is not None or time.monotonic() > limit:
                raise Failure("\n".join(["the scripted engine did not start", *child.last_lines(15)]))
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text()}"


@contextmanager
def _gateway(engine: str, folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{processes.free_port()}"
    command = [sys.executable, "-m", "dragoman", "serve", "--listen", address, "--engine", engine]
    command += ["--max-reply-tokens", str(REPLY_TOKENS), "--flows", str(folder / "flows"), "--verbose"]
    command += ["--", "-s", str(probe_watch.__file__), "--set", f"{probe_watch.FOLDER}={folder}"]
    environment = {**os.environ, "DRAGOMAN_HOME": str(folder / "state"), "HF_HUB_OFFLINE": "1"}
    with processes.running(command, environment, folder / "gateway.log") as child:
        with _client(f"http://{address}", folder) as client:
            wait_for_gateway(child, f"http://{address}", GATEWAY_SECONDS, client)
        yield f"http://{address}"


def _client(address: str, folder: Path) -> "GatewayClient":
    from dragoman.gateway_client import GatewayClient
    from dragoman.home import operator_key

    return GatewayClient(address, operator_key(folder / "state"))
