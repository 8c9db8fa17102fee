"""What became of a row: what the store, the saved flows and its folder say of a finished run."""

import dataclasses
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.cli.output import Failure
from dragoman.rollout.harnesses import find_harness
from dragoman.rollout.network import no_route
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.records import CallInfo, JsonObject
from scripts.harness_rows import FILE, RAN, Row
from scripts.harness_run import Ran
from scripts.turns_account import Account, account_of, read_account
from scripts.turns_rows import NOTE, NOTE_FILE, is_turns


@dataclass(frozen=True)
class Outcome:
    row: str
    version: str
    exit_code: int | None
    """The harness's own. None: killed at the time limit."""
    run_code: int
    """Exit code of `dragoman run`."""
    end: str
    """The episode's typed end."""
    kept: tuple[str, ...]
    """Names of the artefacts that are stored with the episode."""
    in_diff: bool
    """The file is in the stored diff."""
    seconds: float
    calls: tuple[str, ...]
    """Of each stored call its status, and its HTTP status where that is not 200."""
    turns: tuple[str, ...]
    """Of each answered call: ``start``, ``exact``, or the reason of its fork."""
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
    no_route: int | None
    """How often anything in the row's network (harness, gateway, engine) tried to send to an address beside loopback;
    None: not watched."""
    stdout: str
    """The end of it."""
    stderr: str
    finished_at: float
    """Unix seconds."""
    account: Account | None = None
    """Only of a row of several turns."""


def read_outcome(folder: Path) -> Outcome | None:
    file = folder / "outcome.json"
    if not file.is_file():
        return None
    values: dict[str, Any] = json.loads(file.read_text())
    if values.keys() | {"account"} != {field.name for field in dataclasses.fields(Outcome)}:
        return None  # of an older script
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    counted = values.get("account")
    account = None if counted is None else read_account(counted)
    return Outcome(**(values | lists | {"account": account}))


def outcome(
    row: Row,
    ran: Ran,
    folder: Path,
    steps: tuple[int | None, ...],
    names: list[str] | None,
) -> Outcome:
    """What the store, the saved flows and the folder say of a finished run."""
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            calls = read_calls(session, ran.episode_id)
    finally:
        database.close()
    file = folder / "work" / FILE
    hosts, escaped = read_flows(folder / "flows")
    return Outcome(
        row=row.id,
        version=find_harness(row.harness).version,
        exit_code=ran.result.exit_code,
        run_code=ran.code,
        end=ran.end,
        kept=ran.kept,
        in_diff=ran.in_diff,
        seconds=round(ran.result.seconds, 1),
        calls=tuple(status_of(call) for call in calls),
        turns=tuple(turn_of(call) for call in calls if call.outcome and call.outcome.status == "answered"),
        steps=steps,
        tool_ran=RAN.encode() in shown_to_the_model(calls),
        file_hash=hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else "",
        hosts=hosts,
        escaped=escaped,
        names=None if names is None else tuple(sorted(set(names))),
        no_route=None if names is None else no_route(),
        stdout=ran.result.stdout[-1500:],
        stderr=ran.result.stderr[-1500:],
        finished_at=time.time(),
        account=account_of(calls, ledger_of(ran.episode_id, folder), note=note_kept(folder)) if is_turns(row) else None,
    )


def note_kept(folder: Path) -> bool:
    """A line break at the end apart, which a patch adds."""
    note = folder / "work" / NOTE_FILE
    return note.is_file() and note.read_bytes().removesuffix(b"\n") == NOTE.encode()


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
