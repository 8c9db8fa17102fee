"""One row, in a network of its own: scripted engine, gateway, `dragoman run`; then what became of it, as JSON.

    python -m scripts.harness_row ROW FOLDER

Where the system lets us (Linux, as root), the three share a network namespace that has nothing but loopback, and a
name server that knows no name and notes each one asked for: a harness that would ignore the proxy can reach nothing,
and it shows. Elsewhere they are plain processes, and only the proxy variables keep a harness in.
"""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from dragoman.cli import processes
from dragoman.cli.gateway_process import wait_for_gateway
from dragoman.cli.output import Failure
from dragoman.cli.run_plan import installed_harness
from dragoman.rollout.network import isolate
from dragoman.signals import terminable
from scripts.harness_outcome import Outcome, outcome
from scripts.harness_rows import HELD, PROMPT, Row, Step, defect_rows, matrix_rows, script
from scripts.harness_run import dragoman_run
from scripts.turns_model import plain_model, thinking_model
from scripts.turns_rows import IMAGE, THINKING, is_turns, png, turns_rows, turns_script
from scripts.turns_rows import PROMPT as TURNS_PROMPT
from scripts.turns_twice import ask_twice

CONTEXT_TOKENS = 131072
REPLY_TOKENS = 4096
START_SECONDS = 120.0


def play(row: Row, folder: Path) -> Outcome:
    """Run the row by ``dragoman run``; everything that it needed is stopped afterwards, and lies in ``folder``."""
    names = isolate(folder)
    os.environ["DRAGOMAN_HOME"] = str(folder / "state")
    work = folder / "work"
    work.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "."], cwd=work, check=True)
    if is_turns(row):
        (work / IMAGE).write_bytes(png())
    installed_harness(row.harness)  # or the row fails before anything is started
    with scripted_engine(row, folder) as engine:
        with gateway(engine, folder) as address, releasing(engine):
            ask = ask_twice if row.scenario == "turns-question" else dragoman_run
            ran = ask(row, TURNS_PROMPT if is_turns(row) else PROMPT, folder, address)
        asked = httpx.get(f"{engine}/scripted/requests", trust_env=False).json()
    (folder / "asked.json").write_text(json.dumps(asked))
    steps = tuple(request["step"] for request in asked)
    return outcome(row, ran, folder, steps, names)


# -- the processes ---------------------------------------------------------------------------------------------------


@contextmanager
def scripted_engine(row: Row, folder: Path) -> Iterator[str]:
    """The address of a scripted engine that knows the row's script."""
    model = thinking_model(folder) if row.scenario in THINKING else plain_model()
    steps = turns_script(row, str(folder / "work")) if is_turns(row) else script(row)
    with start_engine(steps, folder, model) as address:
        yield address


@contextmanager
def start_engine(steps: list[Step], folder: Path, model: Path) -> Iterator[str]:
    """The address of a scripted engine that knows ``steps``, with the tokenizer of ``model``."""
    file, port_file = folder / "script.json", folder / "engine.port"
    file.write_text(json.dumps(steps))
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", str(model)]
    command += ["--script", str(file), "--port", "0", "--port-file", str(port_file)]
    command += ["--max-model-len", str(CONTEXT_TOKENS)]
    with processes.running(command, os.environ, folder / "engine.log") as child:
        limit = time.monotonic() + START_SECONDS
        while not port_file.exists():
            if child.returncode() is not None or time.monotonic() > limit:
                raise Failure("\n".join(["the scripted engine did not start", *child.last_lines(15)]))
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text()}"


@contextmanager
def gateway(engine: str, folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{processes.free_port()}"
    command = [sys.executable, "-m", "dragoman", "serve", "--listen", address, "--engine", engine]
    command += ["--max-reply-tokens", str(REPLY_TOKENS), "--flows", str(folder / "flows"), "--verbose"]
    with processes.running(command, os.environ, folder / "gateway.log") as child:
        wait_for_gateway(child, f"http://{address}", START_SECONDS)
        yield f"http://{address}"


@contextmanager
def releasing(engine: str) -> Iterator[None]:
    """Let a held reply go on when it has waited for ``HELD`` seconds."""
    over = threading.Event()

    def watch() -> None:
        seen: dict[str, float] = {}
        while not over.wait(0.5):
            for asked in httpx.get(f"{engine}/scripted/requests", trust_env=False).json():
                if asked["state"] == "running":
                    since = seen.setdefault(asked["request_id"], time.monotonic())
                    if time.monotonic() - since > HELD:
                        seen[asked["request_id"]] = float("inf")
                        httpx.post(f"{engine}/scripted/release", trust_env=False).raise_for_status()

    thread = threading.Thread(target=watch, name="release held replies", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def find_row(row_id: str) -> Row:
    for row in (*matrix_rows(), *defect_rows(), *turns_rows()):
        if row.id == row_id:
            return row
    raise SystemExit(f"there is no row {row_id!r}")


def main(arguments: list[str]) -> int:
    row, folder = find_row(arguments[0]), Path(arguments[1])
    with terminable():
        try:
            result = play(row, folder)
        except Failure as error:
            print(error, file=sys.stderr)
            return 1
    (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(result), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
