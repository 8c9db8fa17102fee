"""How long do the commands that look into a store take, in a store of 1,000 episodes with 40 calls each?

``make bench-store``, or ``python -m bench.store_commands [--store URL]``. Each command is run as a person runs it,
interpreter start and all, three times, of which the fastest counts: ``dragoman episodes``, ``show`` of an episode and
of a call, and ``ledger --all``. They must answer in under 2 seconds. Beside that stands for how much of it the
processor was at work for them, since a machine may do other things too.

Without ``--store`` the store is a SQLite file in a temporary folder. A store that is named and holds episodes already
is measured as it is. Ends with one JSON line a figure.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from bench.store import Words, figure, new_episode, session, write
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, list_episodes, set_reward
from dragoman.store.records import EpisodeSpec, JsonObject

EPISODES, CALLS, GROUP = 1000, 40, 8
TURN_TOKENS, REPLY_TOKENS = 320, 80
LIMIT = 2.0
"""Seconds that a command may take."""


def fill(database: Database) -> None:
    words = Words()
    for n in range(EPISODES):
        spec = EpisodeSpec(task=f"task {n // GROUP}", group="bench", expected=GROUP, metadata={"n": n})
        episode = new_episode(database, spec)
        turns = session(words, episode, CALLS, turn_tokens=TURN_TOKENS, reply_tokens=REPLY_TOKENS)
        write(database, list(turns))
        with database.session() as session_:
            set_reward(session_, episode, n % GROUP / GROUP, components={"tests": 1.0}, now=time.time())
            end_episode(session_, episode, "completed", reason=None, now=time.time())


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(url: str, episode: str, call: str) -> Iterator[JsonObject]:
    commands = {
        "episodes": ["episodes"],
        "show_episode": ["show", episode],
        "show_call": ["show", call],
        "ledger_all": ["ledger", "--all"],
    }
    for name, arguments in commands.items():
        times: list[float] = []
        cpu: list[float] = []
        for _ in range(3):
            start, before = time.perf_counter(), cpu_of_children()
            done = subprocess.run([sys.executable, "-m", "dragoman", *arguments, "--store", url], capture_output=True)
            times.append(time.perf_counter() - start)
            cpu.append(cpu_of_children() - before)
            assert done.returncode == 0, done.stderr.decode()
        yield figure(name, min(times), "s", LIMIT, min(times) < LIMIT)
        yield figure(f"{name}_cpu", min(cpu), "s", None, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="SQLAlchemy URL of the store (default: a new SQLite file)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dragoman-store-") as folder:
        url = arguments.store or f"sqlite:///{folder}/big.db"
        database = Database.open(url)
        with database.reading() as session_:
            empty = not list_episodes(session_, limit=1)
        if empty:
            fill(database)
        with database.reading() as session_:
            episode = list_episodes(session_, limit=EPISODES // 2)[-1].episode.id
            call = read_calls(session_, episode)[-1].arrival.id
        database.close()
        figures = list(measure(url, episode, call))
    for one in figures:
        print(json.dumps(one))
    if not all(one["met"] for one in figures):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
