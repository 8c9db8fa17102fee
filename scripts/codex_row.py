"""Real Codex through one whole session: tools, a sub-agent, a compaction, a resume; in a network of its own.

    python -m scripts.codex_row VARIANT MODE TRANSPORT FOLDER

VARIANT is ``builtin`` (an API key) or ``chatgpt`` (a login that never was), MODE ``base-url`` or ``proxy``. TRANSPORT
is ``websocket`` (the gateway as it comes) or ``http`` (it takes no WebSockets). With ``killed`` and ``cut``, which are
by base URL, the session is one tool call over a WebSocket: the gateway is killed while the tool runs, or the connection
is cut within the reply that follows. What became of it is written to ``outcome.json`` in FOLDER.
"""

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoTokenizer

from dragoman.addons.messages import TextPart
from dragoman.addons.providers.openai_items import SUMMARISE
from dragoman.cli import processes
from dragoman.cli.episode import connect
from dragoman.cli.gateway_process import wait_for_gateway
from dragoman.cli.ledger import read_flows
from dragoman.cli.output import Failure
from dragoman.cli.run_plan import installed_harness
from dragoman.rollout.launch import Target, launch
from dragoman.rollout.network import isolate
from dragoman.rollout.process import HarnessResult, run
from dragoman.signals import terminable
from dragoman.store.call_facts import facts_of
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.flow_calls import FlowCall, compare_with_flows
from dragoman.store.ledger import audit
from dragoman.store.records import CallInfo
from dragoman.store.traces import build_traces
from scripts.harness_outcome import turn_of
from scripts.harness_row import CONTEXT_TOKENS, REPLY_TOKENS, START_SECONDS, start_engine
from scripts.harness_rows import Row, Step
from scripts.turns_again import QUESTION, going_on
from scripts.turns_model import plain_model
from scripts.turns_rows import AWAIT, MARK, PROMPT, SUB_TASK
from scripts.turns_tools import agent, shell

LIMIT = 27_000
"""Tokens at which Codex compacts: more than its own prompt takes with a few turns, less than with ``LONG``."""
LONG = "seq -s ' ' 1 2200; printf 'ran-%s' 54"
SUMMARY = "Two files were written, by the main agent and by a helper; only some counting is left."
TIME_LIMIT = 120.0
DISTURBED = ("killed", "cut")
_VOLATILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # threads, turns
    r"|call_[a-z0-9]{20}_\d+"
    r'|"chunk_id":"[0-9a-f]+"|"wall_time_seconds":[0-9.e-]+|Wall time [0-9.]+ seconds'
)


@dataclass(frozen=True)
class CodexOutcome:
    exit_codes: tuple[int | None, ...]
    """Of the session and of its resumption; None: killed at the time limit."""
    calls: tuple[str, ...]
    """Kind, thread (``main`` or ``sub``) and status of each stored call."""
    turns: tuple[str, ...]
    """Of each sampled call: ``start``, ``exact``, or the reason of its fork."""
    traces: tuple[str, ...]
    """Kind, thread and number of trained turns of each trace."""
    problems: tuple[str, ...]
    """What the ledger says does not balance, or does not agree with the saved flows."""
    sockets: int
    """Flows that were WebSockets."""
    asked: int
    """Requests that the engine got."""
    ran: tuple[str, ...]
    """The marks that tools printed and the model was shown."""
    prompts: tuple[str, ...]
    """For each step of the script, in its order, a digest of the prompt that it answered, without what differs from
    run to run (``plain``). The prompts themselves are in ``prompts.json``."""
    escaped: bool
    """Whether something looked a name up past the proxy."""
    output: str


def steps(row: Row, transport: str) -> list[Step]:
    """What the model says, in order; its sub-agent is not shown ``MARK``."""
    if transport in DISTURBED:
        hold = {"hold": "last"} if transport == "cut" else {}
        wait = 8 if transport == "killed" else 0  # longer ones it takes for a command that runs on
        call = shell(row, f"sleep {wait}; printf 'ran-%s' 51")
        return [{"match": "ran-51", "text": "It ran, I am done.", **hold}, {"text": "I begin.", "tool_calls": [call]}]
    main: list[Step] = [
        {"text": "I begin.", "tool_calls": [shell(row, "printf hello > out.txt; printf 'ran-%s' 51")]},
        {"text": "Somebody else can do this.", "tool_calls": [agent(row, SUB_TASK)]},
        {"text": "I wait.", "tool_calls": [shell(row, AWAIT)]},
        {"text": "Counting.", "tool_calls": [shell(row, LONG)]},
        {"text": "Öl ☀.", "tool_calls": [shell(row, "printf 'ran-%s' 55")]},
        {"text": "Six.", "tool_calls": [shell(row, "printf 'ran-%s' 56")]},
        {"text": "Seven.", "tool_calls": [shell(row, "printf 'ran-%s' 57")]},
        {"text": "All is done."},
        {"text": "A command.", "tool_calls": [shell(row, "printf 'ran-%s' 58")]},
        {"text": "It printed ran and a number."},
    ]
    sub: list[Step] = [
        {"text": "I will.", "tool_calls": [shell(row, "printf 'ran-%s' 61")]},
        {"text": "Now.", "tool_calls": [shell(row, "printf hello > sub.txt; printf 'ran-%s' 62")]},
        {"text": "sub.txt says hello."},
    ]
    asked = next(part.text for part in SUMMARISE.parts if isinstance(part, TextPart))
    return [
        {"match": asked[:50], "text": SUMMARY},
        *({"unless": MARK, **step} for step in sub),
        *({"match": MARK, **step} for step in main),
    ]


def play(row: Row, transport: str, folder: Path) -> CodexOutcome:
    """Run the session; everything that it needed is stopped afterwards, and lies in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    names = isolate(folder)
    os.environ["DRAGOMAN_HOME"] = str(folder / "state")
    (folder / "work").mkdir()
    subprocess.run(["git", "init", "-q", "."], cwd=folder / "work", check=True)
    with start_engine(steps(row, transport), folder, plain_model()) as engine:
        if transport in DISTURBED:
            episode_id, results = disturbed_session(row, transport, folder, engine)
        else:
            with gateway(engine, folder, websockets=transport == "websocket") as (address, _):
                episode_id, token = open_episode(address)
                questions = ((PROMPT, False), (QUESTION, True))
                results = [run_codex(row, folder, address, token, asked, resume=again) for asked, again in questions]
        asked = httpx.get(f"{engine}/scripted/requests", trust_env=False).json()
    flows = [] if transport == "killed" else list(read_flows(folder / "flows"))  # with it the open socket's is lost
    return outcome(episode_id, results, folder, asked, flows, escaped=bool(names))


def disturbed_session(row: Row, transport: str, folder: Path, engine: str) -> tuple[str, list[HarnessResult]]:
    """The gateway is killed while Codex's tool runs; or the connection is cut within the reply after it."""

    def state(number: int) -> str | None:
        asked: list[dict[str, Any]] = httpx.get(f"{engine}/scripted/requests", trust_env=False).json()
        return asked[number]["state"] if len(asked) > number else None

    with relay() as (front, connect_to, cut), ThreadPoolExecutor(1) as pool:
        with gateway(engine, folder) as (address, child):
            connect_to(address)
            episode_id, token = open_episode(address)
            running = pool.submit(run_codex, row, folder, front, token, PROMPT, resume=False)
            if transport == "killed":
                wait_for(lambda: state(0) == "done")
                time.sleep(0.5)  # until Codex has the reply, and its tool runs
                child.kill()
                cut()
            else:
                wait_for(lambda: state(1) == "running")
                time.sleep(1)  # until Codex has the reply's beginning
                cut()
                httpx.post(f"{engine}/scripted/release", trust_env=False).raise_for_status()
                return episode_id, [running.result()]
        with gateway(engine, folder) as (address, _):
            connect_to(address)
            return episode_id, [running.result()]


@contextmanager
def gateway(engine: str, folder: Path, *, websockets: bool = True) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Address and process of a gateway as ``mitmdump`` with the addon."""
    port = processes.free_port()
    command = [str(Path(sys.executable).parent / "mitmdump"), "-q", "-s", "addons/intercept.py"]
    command += ["--listen-host", "127.0.0.1", "-p", str(port), "-w", f"+{folder / 'flows'}"]
    command += ["--set", f"dragoman_engine={engine}", "--set", f"dragoman_max_reply_tokens={REPLY_TOKENS}"]
    command += ["--set", f"dragoman_websockets={str(websockets).lower()}"]
    with processes.running(command, os.environ, folder / "gateway.log") as child:
        wait_for_gateway(child, f"http://127.0.0.1:{port}", START_SECONDS)
        yield f"http://127.0.0.1:{port}", child.process


@contextmanager
def relay() -> Iterator[tuple[str, Callable[[str], None], Callable[[], None]]]:
    """A TCP relay that does not know what it carries: its address, a function that says where to, and one that cuts."""
    listener = socket.create_server(("127.0.0.1", 0))
    target: list[str] = []
    live: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = listener.accept()
                try:
                    host, _, port = target[-1].removeprefix("http://").partition(":")
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    near.close()
                    continue
                live.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def cut() -> None:
        for end in live:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        live.clear()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", target.append, cut
    finally:
        cut()
        listener.close()


def wait_for(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + TIME_LIMIT
    while not holds():
        if time.monotonic() > limit:
            raise Failure("the session did not come so far")
        time.sleep(0.05)


def open_episode(address: str) -> tuple[str, str]:
    """Id and token."""
    with connect(address) as client:
        opened = client.open_episode(task="e2e-codex")
    return opened.id, opened.token


def run_codex(row: Row, folder: Path, address: str, token: str, prompt: str, *, resume: bool) -> HarnessResult:
    harness, place = installed_harness("codex")
    target = Target(address, token, row.mode, folder / "state" / "certs", REPLY_TOKENS, CONTEXT_TOKENS)
    home, work = folder / "home", folder / "work"
    prepared = launch(harness, target, installed=place, prompt=prompt, home=home, workdir=work, variant=row.variant)
    files = tuple(
        (path, f"model_auto_compact_token_limit = {LIMIT}\n{text}" if path.name == "config.toml" else text)
        for path, text in prepared.files
    )
    command = going_on(row, prepared.command) if resume else prepared.command
    result = run(dataclasses.replace(prepared, files=files, command=command), timeout=TIME_LIMIT)
    name = "resumed" if resume else "first"
    (folder / f"{name}.stdout.txt").write_text(result.stdout)
    (folder / f"{name}.stderr.txt").write_text(result.stderr)
    return result


def outcome(
    episode_id: str,
    results: list[HarnessResult],
    folder: Path,
    asked: list[dict[str, Any]],
    flows: list[FlowCall],
    *,
    escaped: bool,
) -> CodexOutcome:
    """What the store, the saved flows and the engine say of a finished session."""
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.reading() as session:
            calls = read_calls(session, episode_id)
    finally:
        database.close()
    main = next((call.arrival.thread for call in calls), None)

    def who(thread: str | None) -> str:
        return "main" if thread == main else "sub"

    tokenizer: Any = AutoTokenizer.from_pretrained(plain_model(), local_files_only=True)
    by_step = sorted((request["step"], tokenizer.decode(request["prompt_ids"])) for request in asked)
    prompts = [plain(text, folder) for _, text in by_step]
    (folder / "prompts.json").write_text(json.dumps(prompts, indent=1, ensure_ascii=False))
    facts = [facts_of(call) for call in calls]
    return CodexOutcome(
        exit_codes=tuple(result.exit_code for result in results),
        calls=tuple(f"{call.arrival.kind} {who(call.arrival.thread)} {status_of(call)}" for call in calls),
        turns=tuple(turn_of(call) for call in calls if sampled(call)),
        traces=tuple(f"{t.kind} {who(t.thread)} {len(t.call_ids)}" for t in build_traces(calls).traces),
        problems=audit(calls).problems + (compare_with_flows(facts, flows) if flows else ()),
        sockets=sockets(folder / "flows"),
        asked=len(asked),
        ran=tuple(sorted(set(re.findall(r"ran-\d\d", "".join(prompts))))),
        prompts=tuple(sha256(prompt.encode()).hexdigest()[:12] for prompt in prompts),
        escaped=escaped,
        output=results[-1].stdout[-500:] + results[-1].stderr[-1500:],
    )


def sampled(call: CallInfo) -> bool:
    return call.arrival.kind != "warm_up" and call.outcome is not None and call.outcome.prompt_ids is not None


def sockets(flows: Path) -> int:
    from mitmproxy import http
    from mitmproxy.io import FlowReader

    with flows.open("rb") as file:
        return sum(isinstance(f, http.HTTPFlow) and f.websocket is not None for f in FlowReader(file).stream())


def plain(prompt: str, folder: Path) -> str:
    """A prompt without ids, times and the folder's name."""
    return _VOLATILE.sub("*", prompt).replace(str(folder), "FOLDER")


def status_of(call: CallInfo) -> str:
    if call.outcome is None:
        return "open"
    return "retry" if call.outcome.retry_of is not None else call.outcome.status


def main(arguments: list[str]) -> int:
    variant, mode, transport, folder = arguments[0], arguments[1], arguments[2], Path(arguments[3]).resolve()
    known = ("builtin", "chatgpt"), ("base-url", "proxy"), ("websocket", "http", *DISTURBED)
    if any(word not in words for word, words in zip((variant, mode, transport), known, strict=True)):
        raise SystemExit(__doc__)
    with terminable():
        try:
            result = play(Row("codex", variant, mode, "session"), transport, folder)  # type: ignore[arg-type]
        except Failure as error:
            print(error, file=sys.stderr)
            return 1
    (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(result), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
