"""A whole rollout on the real engine with a real harness, and its account: ``make e2e-rollout``.

64 tasks, four samples each, eight at once, on vLLM with a small model. Afterwards every episode must have a typed end,
every group must be complete, the ledger must balance, no process of an agent may be left, and engine and gateway must
use next to no CPU. The exit code is 1 when one of that does not hold. ``--model smollm2`` is slower and calls tools.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from dragoman.cli.gateway_process import gateway
from dragoman.cli.quickstart import engine_address
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from dragoman.store.groups import settle_groups

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".run" / "e2e-rollout"
IDLE_SECONDS = 10.0
IDLE_SHARE = 0.10
"""Of one core, for engine and gateway together: both look at the clock and at the store now and then."""
LEAST_IDLE = 3.0
"""Seconds that a server may take to settle after its last request."""


def write_tasks(path: Path, count: int) -> None:
    """Small tasks, each with a bug of its own and a hidden test."""
    lines = []
    for number in range(count):
        right, wrong = f"a + {number}", f"a - {number + 1}"
        test = f"from shift import shift\n\ndef test_shift():\n    assert shift(1) == {1 + number}\n"
        task = {
            "id": f"shift-{number:02}",
            "prompt": f"shift.py is wrong: shift(a) must return {right}. Fix it.",
            "workspace": {"files": {"shift.py": f"def shift(a):\n    return {wrong}\n"}},
            "checks": [{"kind": "pytest", "files": {"test_shift.py": test}}],
            "split": "train",
        }
        lines.append(json.dumps(task))
    path.write_text("\n".join(lines) + "\n")


def agents_left() -> list[str]:
    """Processes of this run's boxes: all have a home or a workspace in the run's own scratch folder."""
    mine = str(FOLDER / "scratch").encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        if path.name == str(os.getpid()):
            continue
        try:
            about = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            about += os.fsencode(os.readlink(path / "cwd"))
            if mine in about:
                found.append(f"{path.name} {(path / 'cmdline').read_bytes().replace(bytes(1), b' ').decode():.120}")
        except OSError:
            continue
    return found


def cpu_seconds(parent: int) -> float:
    """CPU time of all descendants of a process so far."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(path.parent.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    mine, total = {parent}, 0
    for pid in sorted(stats):
        if stats[pid][0] in mine:
            mine.add(pid)
            total += stats[pid][1]
    return total / os.sysconf("SC_CLK_TCK")


def account(expected: int, groups: int) -> list[str]:
    """What does not hold in the store; prints what does."""
    wrong = []
    database = Database.open(f"sqlite:///{FOLDER / 'state' / 'dragoman.db'}")
    try:
        with database.session() as session:
            episodes = [one.episode for one in list_episodes(session, limit=10 * expected)]
            complete = len(settle_groups(session, time.time()))
    finally:
        database.close()
    ends = collections.Counter(episode.end for episode in episodes)
    print(f"episodes    {len(episodes)}: {', '.join(f'{count} {end}' for end, count in ends.most_common())}")
    print(f"groups      {complete} of {groups} complete")
    if ends[None] or sum(ends.values()) - ends["abandoned"] != expected:
        wrong.append(f"{expected} episodes should have ended otherwise than abandoned, and none be open")
    if any(episode.reward is None for episode in episodes if episode.end == "completed"):
        wrong.append("a completed episode has no reward")
    if complete != groups:
        wrong.append(f"{groups - complete} groups are not complete")
    return wrong


def dragoman(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "dragoman", *arguments], cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--harness", default="pi")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--max-reply-tokens", type=int, default=64)
    parser.add_argument("--time-limit", default="240")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = FOLDER / "state"
    for old in state.glob("dragoman.db*"):
        old.unlink()
    os.environ |= {"DRAGOMAN_HOME": str(state), "HF_HUB_OFFLINE": "1"}
    write_tasks(FOLDER / "tasks.jsonl", options.tasks)
    (FOLDER / "scratch").mkdir(exist_ok=True)
    with engine_address(None, options.model, None) as engine, gateway(engine, options.max_reply_tokens) as address:
        began = time.monotonic()
        command = ["rollout", str(FOLDER / "tasks.jsonl"), "--harness", options.harness, "--gateway", address]
        command += ["--samples", str(options.samples), "--concurrency", str(options.concurrency), "--again"]
        command += ["--time-limit", options.time_limit, "--scratch", str(FOLDER / "scratch")]
        code = dragoman(*command)
        seconds = time.monotonic() - began
        left = agents_left()
        time.sleep(LEAST_IDLE)
        used = cpu_seconds(os.getpid())
        time.sleep(IDLE_SECONDS)
        used = (cpu_seconds(os.getpid()) - used) / IDLE_SECONDS
    episodes = options.tasks * options.samples
    wrong = [] if code == 0 else [f"dragoman rollout ended with {code}"]
    wrong += account(episodes, options.tasks)
    if dragoman("ledger", "--all") != 0:
        wrong.append("the ledger does not balance")
    print(f"time        {seconds:.0f} s, {60 * episodes / seconds:.1f} episodes a minute")
    print(f"left        {len(left)} processes of agents")
    print(f"idle        engine and gateway use {used:.1%} of a core")
    wrong += [f"left: {one}" for one in left]
    wrong += [f"left: {path}" for path in (FOLDER / "scratch").iterdir()]
    if used > IDLE_SHARE:
        wrong.append(f"engine and gateway use more than {IDLE_SHARE:.0%} of a core with nothing to do")
    for one in wrong:
        print(f"WRONG       {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
