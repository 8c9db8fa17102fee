"""The first whole path with real harnesses, as a table of 8 rows: ``make e2e-first``.

Each harness runs in both modes, against a scripted engine (a tool call must really happen: a file is written) and
against the real vLLM (it must end well; a model of this size may only talk). Every row goes through a real gateway
that blocks all other hosts, with a state folder of its own. A harness that cannot be installed fails its rows. The
exit code is 0 when all rows are good; else 1, and the folder with the logs is kept and named.

``--only scripted`` or ``--only real`` runs four rows.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.cli import processes
from dragoman.cli.episode import connect
from dragoman.cli.gateway_process import gateway
from dragoman.cli.lookup import reading
from dragoman.cli.output import Failure
from dragoman.cli.quickstart import engine_address
from dragoman.gateway_client import GatewayError
from dragoman.home import cache_folder, state_folder
from dragoman.rollout.episode_run import EpisodeRun, run_in_episode
from dragoman.rollout.harnesses import find_harness
from dragoman.rollout.install import InstallError, install
from dragoman.rollout.launch import Mode, Target, launch
from dragoman.rollout.process import HarnessResult, Launch
from dragoman.signals import terminable
from dragoman.store.calls import read_calls
from dragoman.trainer.tiny_model import build_tiny

EngineKind = Literal["scripted", "real"]

HARNESSES = ("pi", "claude")
MODES: tuple[Mode, ...] = ("proxy", "base-url")


@dataclass(frozen=True)
class Model:
    """A small model, and how it is run so that its replies end by themselves.

    A reply that is cut off is no success: pi then ends with exit code 1, and Claude Code asks again.
    """

    name: str
    temperature: float | None
    """Of the episode; None leaves it to the gateway."""
    max_reply_tokens: int
    context_tokens: int


REAL_MODEL = {
    # Greedy, a reply has some 30 tokens; at temperature 1 one in a few rambles on to any limit.
    "pi": Model("smollm2", temperature=0.0, max_reply_tokens=400, context_tokens=8192),
    # Claude Code's prompt of some 12,000 tokens does not fit there. Random weights: some 250 tokens, then the end.
    "claude": Model("tiny", temperature=None, max_reply_tokens=2000, context_tokens=65536),
}
FILE, CONTENT = "out.txt", "hello from the tool\n"
PROMPT = f"Create a file {FILE} that says hello, with your shell tool. Then say in one sentence what you did."
TIMEOUT = 300.0
GATEWAY_REPLY_TOKENS = 2000
COMMAND = f"printf {CONTENT!r} > {FILE}"
SCRIPT = [
    {"match": "<tool_response>", "text": "I wrote the file.", "repeat": True},
    {
        "match": '"Bash"',
        "tool_calls": [{"name": "Bash", "arguments": {"command": COMMAND, "description": "Write the file"}}],
        "repeat": True,
    },
    {"match": '"bash"', "tool_calls": [{"name": "bash", "arguments": {"command": COMMAND}}], "repeat": True},
    {"text": "A title", "repeat": True},
]


@dataclass(frozen=True)
class Row:
    harness: str
    mode: Mode
    engine: EngineKind
    exit_code: int | None
    """None: killed at the time limit, or never started."""
    calls: int
    file_hash: str
    """The first 12 hex digits of the file's SHA-256; empty: no file."""
    seconds: float
    problems: tuple[str, ...]
    """What is wrong with this row; empty when it is good."""

    def cells(self) -> tuple[str, ...]:
        exit_code = "-" if self.exit_code is None else str(self.exit_code)
        result = "ok" if not self.problems else "FAILED: " + "; ".join(self.problems)
        file_hash = self.file_hash or "-"
        return (
            self.harness,
            self.mode,
            self.engine,
            exit_code,
            str(self.calls),
            file_hash,
            f"{self.seconds:.1f}",
            result,
        )


HEAD = ("harness", "mode", "engine", "exit", "calls", "file sha256", "seconds", "result")
WANTED_HASH = hashlib.sha256(CONTENT.encode()).hexdigest()[:12]


@contextmanager
def scripted_engine(folder: Path) -> Iterator[str]:
    """The address of a scripted engine that knows ``SCRIPT``, with the tiny model's tokenizer."""
    model = build_tiny(cache_folder() / "models" / "tiny")
    script, port_file = folder / "script.json", folder / "scripted.port"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", str(model)]
    command += ["--script", str(script), "--port", "0", "--port-file", str(port_file)]
    with processes.running(command, os.environ, folder / "scripted-engine.log") as child:
        limit = time.monotonic() + 120
        while not port_file.exists():
            if child.returncode() is not None or time.monotonic() > limit:
                raise Failure("\n".join(["the scripted engine did not start", *child.last_lines(15)]))
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text()}"


def run_row(address: str, harness: str, mode: Mode, engine: EngineKind, folder: Path) -> Row:
    """One harness run in an episode of its own; its home, working folder and output stay in ``folder``."""
    work = folder / "work"
    work.mkdir(parents=True)
    model = REAL_MODEL[harness]
    entry = find_harness(harness)

    def prepare(token: str, home: Path) -> Launch:
        certs = state_folder() / "certs"
        target = Target(address, token, mode, certs, model.max_reply_tokens, model.context_tokens)
        return launch(entry, target, installed=install(entry), prompt=PROMPT, home=home, workdir=work)

    wanted = EpisodeRun(
        harness,
        entry,
        prepare,
        work,
        TIMEOUT,
        about={"mode": mode, "engine": engine},
        home=folder / "home",
        task="e2e-first",
        temperature=model.temperature,
    )
    with connect(address) as client:
        finished = run_in_episode(client, wanted)
        result = finished.result
        client.set_reward(finished.episode_id, float(result.exit_code == 0))
    (folder / "stdout.txt").write_text(result.stdout)
    (folder / "stderr.txt").write_text(result.stderr)
    with reading(None) as (session, _):
        calls = read_calls(session, finished.episode_id)
    statuses = [call.outcome.status if call.outcome else "open" for call in calls]
    file = work / FILE
    file_hash = hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else ""
    problems = judge(engine, result, statuses, file_hash)
    return Row(harness, mode, engine, result.exit_code, len(statuses), file_hash, result.seconds, problems)


def judge(engine: EngineKind, result: HarnessResult, statuses: list[str], file_hash: str) -> tuple[str, ...]:
    """What is wrong with a run. ``statuses``: of the calls stored for its episode."""
    problems = []
    if result.exit_code is None:
        problems.append(f"stopped after {TIMEOUT:.0f} s")
    elif result.exit_code != 0:
        problems.append(f"exit code {result.exit_code}")
    if not result.stdout.strip():
        problems.append("it printed nothing")
    if "answered" not in statuses:
        problems.append("no call was answered")
    if odd := sorted({status for status in statuses if status not in ("answered", "refused")}):
        problems.append("calls that are " + ", ".join(odd))
    if engine == "scripted" and statuses.count("answered") < 2:
        problems.append("no second call after the tool's result")
    if engine == "scripted" and file_hash != WANTED_HASH:
        problems.append("the tool call wrote no file" if not file_hash else "the file is not the one asked for")
    return tuple(problems)


def failed_row(harness: str, mode: Mode, engine: EngineKind, error: Exception) -> Row:
    return Row(harness, mode, engine, None, 0, "", 0.0, (str(error).strip().splitlines()[0],))


def run_rows(address: str, harnesses: tuple[str, ...], engine: EngineKind, folder: Path) -> Iterator[Row]:
    for harness in harnesses:
        for mode in MODES:
            try:
                yield run_row(address, harness, mode, engine, folder / f"{engine}-{harness}-{mode}")
            except (GatewayError, InstallError) as error:
                yield failed_row(harness, mode, engine, error)


def scripted_rows(folder: Path) -> Iterator[Row]:
    """Four rows: a tool call that really runs."""
    with scripted_engine(folder) as engine, gateway(engine, GATEWAY_REPLY_TOKENS) as address:
        yield from run_rows(address, HARNESSES, "scripted", folder)


def real_rows(folder: Path) -> Iterator[Row]:
    """Four rows: text of a real model. One vLLM at a time."""
    for harness in HARNESSES:
        with (
            engine_address(None, REAL_MODEL[harness].name, None) as engine,
            gateway(engine, GATEWAY_REPLY_TOKENS) as address,
        ):
            yield from run_rows(address, (harness,), "real", folder)


def collect(kind: EngineKind, folder: Path, rows: list[Row]) -> None:
    """Run the rows of one kind of engine; what could not even start becomes failed rows."""
    try:
        for row in scripted_rows(folder) if kind == "scripted" else real_rows(folder):
            rows.append(row)
            print("  ".join(row.cells()), file=sys.stderr, flush=True)
    except (Failure, OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr, flush=True)
        there = {(row.harness, row.mode) for row in rows if row.engine == kind}
        missing = [(harness, mode) for harness in HARNESSES for mode in MODES if (harness, mode) not in there]
        rows += [failed_row(harness, mode, kind, error) for harness, mode in missing]


def table(rows: list[Row]) -> str:
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="e2e_first.py", description=__doc__)
    parser.add_argument("--only", choices=("scripted", "real"))
    only = parser.parse_args(arguments).only
    kinds: tuple[EngineKind, ...] = ("scripted", "real") if only is None else (only,)
    folder = Path(tempfile.mkdtemp(prefix="dragoman-e2e-"))
    # Before anything asks where the state is: this run must not touch the user's own.
    os.environ["DRAGOMAN_HOME"] = str(folder / "state")
    rows: list[Row] = []
    with terminable():
        for kind in kinds:
            collect(kind, folder, rows)
    print(table(rows))
    if any(row.problems for row in rows):
        print(f"\nThe logs, and what each harness printed, are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
