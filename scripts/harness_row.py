"""One row, in a network of its own: scripted engine, gateway, harness; then what became of it, as JSON.

    python -m scripts.harness_row ROW FOLDER

Where the system lets us (Linux, as root), the three share a network namespace that has nothing but loopback, and a
name server that knows no name and notes each one asked for: a harness that would ignore the proxy can reach nothing,
and it shows. Elsewhere they are plain processes, and only the proxy variables keep a harness in.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from dragoman.cli import processes
from dragoman.cli.episode import connect
from dragoman.cli.gateway_process import wait_for_gateway
from dragoman.cli.output import Failure
from dragoman.rollout.harnesses import HarnessResult, find_harness, launch, run
from dragoman.rollout.install import installed
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.records import CallInfo, JsonObject
from scripts.harness_rows import FILE, HELD, PROMPT, RAN, Row, defect_rows, matrix_rows, script
from scripts.turns_account import Account, account_of
from scripts.turns_model import plain_model, thinking_model
from scripts.turns_rows import IMAGE, is_turns, png, turns_rows, turns_script
from scripts.turns_rows import PROMPT as TURNS_PROMPT

CONTEXT_TOKENS = 131072
REPLY_TOKENS = 4096
START_SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    row: str
    version: str
    exit_code: int | None
    """None: killed at the time limit."""
    seconds: float
    calls: tuple[str, ...]
    """Of each stored call its status, and its HTTP status where that is not 200."""
    turns: tuple[str, ...]
    """Of each answered call of the main thread: ``start``, ``exact``, or the reason of its fork."""
    steps: tuple[int | None, ...]
    """Of each request that reached the engine, which step of the script answered it."""
    tool_ran: bool
    """The tool's output was in a later prompt."""
    file_hash: str
    """The first 12 hex digits of the file's SHA-256; empty: no file."""
    hosts: tuple[str, ...]
    """Each host beside the providers' that was asked, with the statuses that the gateway answered."""
    escaped: tuple[str, ...]
    """Hosts to which the gateway opened a connection; must be empty."""
    names: tuple[str, ...] | None
    """Names that something tried to look up, past the proxy; None: not watched."""
    stdout: str
    """The end of it."""
    stderr: str
    finished_at: float
    """Unix seconds."""
    account: Account | None = None
    """Only of a row of several turns."""


def play(row: Row, folder: Path) -> Outcome:
    """Run the row; everything that it needed is stopped afterwards, and lies in ``folder``."""
    names = isolate(folder)
    os.environ["DRAGOMAN_HOME"] = str(folder / "state")
    work = folder / "work"
    work.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "."], cwd=work, check=True)
    if is_turns(row):
        (work / IMAGE).write_bytes(png())
    harness = find_harness(row.harness)
    place = installed(harness)
    if place is None:
        raise Failure(f"{row.harness} is not installed: python -m dragoman.rollout.install {row.harness}")
    with scripted_engine(row, folder) as engine:
        with gateway(engine, folder) as address, connect(address) as client:
            opened = client.open_episode(task="e2e-harnesses", metadata={"row": row.id})
            prepared = launch(
                harness,
                installed=place,
                mode=row.mode,
                gateway=address,
                token=opened.token,
                prompt=TURNS_PROMPT if is_turns(row) else PROMPT,
                home=folder / "home",
                workdir=work,
                certs=folder / "state" / "certs",
                variant=row.variant or None,
                max_reply_tokens=REPLY_TOKENS,
                context_tokens=CONTEXT_TOKENS,
            )
            with releasing(engine):
                result = run(prepared, timeout=row.time_limit)
            ended = result.exit_code is not None
            client.end_episode(opened.id, "completed" if ended else "timed_out")
        asked = httpx.get(f"{engine}/scripted/requests", trust_env=False).json()
    (folder / "asked.json").write_text(json.dumps(asked))
    steps = tuple(request["step"] for request in asked)
    for name in ("stdout", "stderr"):
        (folder / f"{name}.txt").write_text(getattr(result, name))
    return outcome(row, result, folder, opened.id, steps, names)


def outcome(
    row: Row,
    result: HarnessResult,
    folder: Path,
    episode_id: str,
    steps: tuple[int | None, ...],
    names: list[str] | None,
) -> Outcome:
    """What the store, the saved flows and the folder say of a finished run."""
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            calls = read_calls(session, episode_id)
    finally:
        database.close()
    file = folder / "work" / FILE
    hosts, escaped = read_flows(folder / "flows")
    return Outcome(
        row=row.id,
        version=find_harness(row.harness).version,
        exit_code=result.exit_code,
        seconds=round(result.seconds, 1),
        calls=tuple(status_of(call) for call in calls),
        turns=tuple(turn_of(call) for call in calls if call.outcome and call.outcome.status == "answered"),
        steps=steps,
        tool_ran=RAN.encode() in shown_to_the_model(calls),
        file_hash=hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else "",
        hosts=hosts,
        escaped=escaped,
        names=None if names is None else tuple(sorted(set(names))),
        stdout=result.stdout[-1500:],
        stderr=result.stderr[-1500:],
        finished_at=time.time(),
        account=account_of(calls, ledger_of(episode_id, folder)) if is_turns(row) else None,
    )


def ledger_of(episode_id: str, folder: Path) -> JsonObject:
    """What ``dragoman ledger`` prints of the episode, held against the saved flows."""
    command = [sys.executable, "-m", "dragoman", "ledger", episode_id, "--flows", str(folder / "flows"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise Failure(f"dragoman ledger ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    (folder / "ledger.json").write_text(done.stdout)
    found: JsonObject = json.loads(done.stdout)
    return found


def status_of(call: CallInfo) -> str:
    if call.outcome is None:
        return "open"
    status = call.outcome.http_status
    return call.outcome.status if status == 200 else f"{call.outcome.status} {status}"


def turn_of(call: CallInfo) -> str:
    assert call.outcome is not None
    if call.outcome.fork_reason is not None:
        return call.outcome.fork_reason
    return "start" if call.outcome.parent_id is None else "exact"


def shown_to_the_model(calls: list[CallInfo]) -> bytes:
    """All messages of all calls, as they are stored."""
    return b"\n".join(blob.data for call in calls if call.outcome for blob in call.outcome.messages)


def read_flows(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hosts beside the providers' with their statuses, and hosts to which a connection was opened."""
    from mitmproxy import http
    from mitmproxy.io import FlowReader

    from dragoman.addons.providers import provider_for_host

    statuses: dict[str, set[int]] = {}
    escaped: set[str] = set()
    with path.open("rb") as file:
        for flow in FlowReader(file).stream():
            assert isinstance(flow, http.HTTPFlow)
            host = flow.request.pretty_host
            if flow.server_conn.peername is not None and not flow.server_conn.peername[0].startswith("127."):
                escaped.add(host)
            if provider_for_host(host) is None and host not in ("127.0.0.1", "localhost"):
                statuses.setdefault(host, set()).add(flow.response.status_code if flow.response else 0)
    hosts = (f"{host} {'/'.join(map(str, sorted(codes)))}" for host, codes in sorted(statuses.items()))
    return tuple(hosts), tuple(sorted(escaped))


# -- the processes ---------------------------------------------------------------------------------------------------


@contextmanager
def scripted_engine(row: Row, folder: Path) -> Iterator[str]:
    """The address of a scripted engine that knows the row's script."""
    model = thinking_model(folder) if row.scenario == "turns-thinking" else plain_model()
    steps, port_file = folder / "script.json", folder / "engine.port"
    steps.write_text(json.dumps(turns_script(row) if is_turns(row) else script(row)))
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", str(model)]
    command += ["--script", str(steps), "--port", "0", "--port-file", str(port_file)]
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


# -- the network -----------------------------------------------------------------------------------------------------


def isolate(folder: Path) -> list[str] | None:
    """Go into a network with nothing but loopback. Returns the list into which the names asked for are written.

    None: the system does not let us; nothing has changed.
    """
    try:
        os.unshare(os.CLONE_NEWNET | os.CLONE_NEWNS)
    except (AttributeError, OSError):
        return None
    loopback_up()
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    # else the mount would show outside, too
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", str(resolver), os.path.realpath("/etc/resolv.conf")], check=True)
    names: list[str] = []
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=answer_names, args=(server, names), name="name server", daemon=True).start()
    return names


def loopback_up() -> None:
    """What ``ip link set lo up`` does: SIOCSIFFLAGS with IFF_UP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, 0x8914, struct.pack("16sh14x", b"lo", 0x1))


def answer_names(server: socket.socket, names: list[str]) -> None:
    """No such name, to every question."""
    while True:
        question, sender = server.recvfrom(4096)
        names.append(asked_name(question))
        # id; response, recursion available, NXDOMAIN; one question; then the question as it came
        server.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], sender)


def asked_name(question: bytes) -> str:
    labels, at = [], 12
    while at < len(question) and (length := question[at]):
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", errors="replace"))
        at += 1 + length
    return ".".join(labels)


def find_row(row_id: str) -> Row:
    for row in (*matrix_rows(), *defect_rows(), *turns_rows()):
        if row.id == row_id:
            return row
    raise SystemExit(f"there is no row {row_id!r}")


def main(arguments: list[str]) -> int:
    row, folder = find_row(arguments[0]), Path(arguments[1])
    with processes.terminable():
        try:
            result = play(row, folder)
        except Failure as error:
            print(error, file=sys.stderr)
            return 1
    (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(result), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
