"""A row's harness, run by the command line that people use, `dragoman run`; and what that kept in the store."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli import processes
from dragoman.cli.output import Failure
from dragoman.rollout.process import HarnessResult
from dragoman.store.artefacts import list_artefacts, read_artefact
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes
from scripts.harness_rows import FILE, Row


@dataclass(frozen=True)
class Ran:
    code: int
    """Exit code of `dragoman run`."""
    episode_id: str
    end: str
    """The episode's typed end, or ``open``."""
    result: HarnessResult
    """As it is stored: the harness's own exit code and output."""
    kept: tuple[str, ...]
    """Names of the stored artefacts."""
    in_diff: bool
    """The file that the row is about is in the stored diff."""


def dragoman_run(row: Row, prompt: str, folder: Path, address: str) -> Ran:
    """Run the row's harness once, in the folder's ``work`` and ``home``.

    Raises ``Failure`` when no episode came of it.
    """
    command = [sys.executable, "-m", "dragoman", "run", "--harness", row.harness, "--mode", row.mode]
    command += ["--variant", row.variant] if row.variant else []
    command += ["--workdir", str(folder / "work"), "--home", str(folder / "home"), "--timeout", str(row.time_limit)]
    command += ["--gateway", address, "--task", "e2e-harnesses", "--", prompt]
    with processes.running(command, os.environ, folder / "run.log") as child:
        code = child.process.wait()
        said = child.last_lines(3)
    database = Database.open(f"sqlite:///{folder / 'state' / 'dragoman.db'}")
    try:
        with database.reading() as session:
            found = list_episodes(session, limit=2)
            if len(found) != 1:
                raise Failure("\n".join([f"dragoman run ended with {code} and opened {len(found)} episodes", *said]))
            episode = found[0].episode
            names = tuple(info.name for info in list_artefacts(session, episode.id))
            kept = {name: read_artefact(session, episode.id, name).data for name in names}
    finally:
        database.close()
    if "run.json" not in kept:
        raise Failure("\n".join([f"dragoman run ended with {code} and kept nothing", *said]))
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    facts = json.loads(kept["run.json"])
    stdout, stderr = (kept[name].decode(errors="replace") for name in ("stdout.txt", "stderr.txt"))
    result = HarnessResult(facts["exit_code"], stdout, stderr, facts["seconds"])
    in_diff = f"+++ b/{FILE}\n".encode() in kept.get("changes.diff", b"")
    return Ran(code, episode.id, episode.end or "open", result, names, in_diff)
