"""A rollout over a real Ray cluster that loses a node half-way, and its account: ``make e2e-cluster``.

Two Ray nodes on this machine, a scripted engine, a real gateway, ``dragoman rollout --ray`` with a harness that makes
some calls. When half of the samples have ended, one node is killed with all its workers. Afterwards every sample must
have exactly one result and one episode in its group, every group be complete, nothing be left open, and the ledger
balance. The exit code is 1 when one of that does not hold. Needs Ray: ``pip install ray``.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.cli import processes
from dragoman.cli.gateway_process import gateway
from dragoman.cli.output import Failure
from dragoman.home import cache_folder
from dragoman.rollout.journal import Journal
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from dragoman.store.groups import settle_groups
from dragoman.trainer.tiny_model import build_tiny

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".run" / "e2e-cluster"
TOY = ROOT / "tests" / "toys" / "chaos_harness.py"
RUN = "cluster"


@dataclass
class Account:
    """What a run came to."""

    expected: int
    killed_at: int | None = None
    """Samples that had ended when the node was killed. None: the run was over before."""
    seconds: float = 0.0
    ends: collections.Counter[str | None] = field(default_factory=collections.Counter)
    lost: int = 0
    """Episodes that were abandoned because their node was gone."""
    wrong: list[str] = field(default_factory=list)


@contextmanager
def cluster(cpus: int) -> Iterator[Any]:
    """Two Ray nodes, and nothing of them left afterwards."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 80 << 20, "include_dashboard": False}
    made: Any = Cluster(initialize_head=True, head_node_args=node)
    try:
        made.add_node(**node)
        yield made
    finally:
        made.shutdown()


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """The address of a scripted engine that always says the same."""
    script, port_file = folder / "script.json", folder / "engine.port"
    script.write_text(json.dumps([{"text": "Done.", "repeat": True}]))
    port_file.unlink(missing_ok=True)
    model = build_tiny(cache_folder() / "models" / "tiny")
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", str(model)]
    command += ["--script", str(script), "--port", "0", "--port-file", str(port_file)]
    with processes.running(command, os.environ, folder / "engine.log") as child:
        limit = time.monotonic() + 120
        while not port_file.exists():
            if child.returncode() is not None or time.monotonic() > limit:
                raise Failure("\n".join(["the scripted engine did not start", *child.last_lines(15)]))
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text()}"


def write_tasks(path: Path, count: int) -> None:
    check = {"kind": "equal", "path": "hello.txt", "to": "hello"}
    tasks = [{"id": f"t{number:02}", "prompt": "many", "checks": [check]} for number in range(count)]
    path.write_text("\n".join(json.dumps(task) for task in tasks))


def ended(folder: Path) -> int:
    path = folder / "state" / "rollouts" / RUN / "journal.jsonl"
    return path.read_text().count('"event": "ended"') if path.is_file() else 0


def run(folder: Path, tasks: int, samples: int, concurrency: int, isolation: str = "auto") -> Account:
    """Do it in an empty folder. Changes this process's environment."""
    os.environ |= {"DRAGOMAN_HOME": str(folder / "state"), "HF_HUB_OFFLINE": "1"}
    account = Account(tasks * samples)
    write_tasks(folder / "tasks.jsonl", tasks)
    with cluster(concurrency) as ray, engine(folder) as model, gateway(model, 64) as address:
        began = time.monotonic()
        command = [sys.executable, "-m", "dragoman", "rollout", str(folder / "tasks.jsonl"), "--harness", "command"]
        command += ["--mode", "base-url", "--gateway", address, "--run", RUN, "--isolation", isolation]
        command += ["--samples", str(samples), "--concurrency", str(concurrency), "--ray", ray.address]
        with processes.running([*command, "--", sys.executable, str(TOY)], os.environ, folder / "rollout.log") as child:
            while child.returncode() is None:
                if account.killed_at is None and ended(folder) >= account.expected / 2:
                    account.killed_at = ended(folder)
                    ray.remove_node(ray.worker_nodes.copy().pop(), allow_graceful=False)
                time.sleep(0.1)
            account.seconds = time.monotonic() - began
            if child.returncode() != 0:
                account.wrong.append(f"dragoman rollout ended with {child.returncode()}: {child.last_lines(10)}")
        look(account, folder, tasks, samples)
        ledger = subprocess.run([sys.executable, "-m", "dragoman", "ledger", "--all"], capture_output=True, text=True)
        if ledger.returncode != 0:
            account.wrong.append(f"the ledger does not balance: {ledger.stdout}{ledger.stderr}")
    return account


def look(account: Account, folder: Path, tasks: int, samples: int) -> None:
    """Compares journal and store with what there must be."""
    with Journal(folder / "state" / "rollouts" / RUN) as journal:
        done, left = dict(journal.done), list(journal.open)
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            episodes = [one.episode for one in list_episodes(session, limit=10 * account.expected)]
            complete = len(settle_groups(session, time.time()))
    finally:
        database.close()
    account.ends.update(episode.end for episode in episodes)
    account.lost = sum("lost" in (episode.end_reason or "") for episode in episodes)
    wanted = {(f"t{task:02}", number): 1 for task in range(tasks) for number in range(samples)}
    kept = [one for one in episodes if one.end != "abandoned"]
    found = collections.Counter((one.spec.task, one.spec.metadata["sample"]) for one in kept)
    wrong = account.wrong
    if found != wanted:
        wrong.append(f"not every sample once: {found - collections.Counter(wanted)} too many, or some are missing")
    if {outcome.episode_id for outcome in done.values()} != {one.id for one in kept}:
        wrong.append("the journal and the store do not name the same episodes")
    if any(one.end != "completed" or one.reward != 1.0 for one in kept):
        wrong.append("an episode is open, did not complete, or has no reward of 1")
    if left:
        wrong.append(f"the journal knows of no end of {left}")
    if complete != tasks:
        wrong.append(f"{tasks - complete} groups are not complete")
    if account.killed_at is None:
        wrong.append("the run was over before a node could be killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=25)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--isolation", default="auto")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    account = run(FOLDER, options.tasks, options.samples, options.concurrency, options.isolation)
    ends = ", ".join(f"{count} {end}" for end, count in account.ends.most_common())
    print(f"samples     {account.expected}, a node killed after {account.killed_at}")
    print(f"episodes    {account.ends.total()}: {ends}; {account.lost} of them lost with the node")
    print(f"time        {account.seconds:.0f} s, {60 * account.expected / account.seconds:.1f} samples a minute")
    for one in account.wrong:
        print(f"WRONG       {one}")
    return 1 if account.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
