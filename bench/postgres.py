"""A PostgreSQL server of our own that can be killed and started again on the same data, for campaigns."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


def find_pg_ctl() -> Path | None:
    """``None``: PostgreSQL is not installed."""
    found = [str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")]
    if on_path := shutil.which("pg_ctl"):
        found.append(on_path)
    return Path(found[0]).resolve() if found else None


@dataclass
class Postgres:
    """Reached over a Unix socket in its own folder. Made with ``make``; ``remove`` at the end."""

    pg_ctl: Path
    folder: Path
    user: str | None

    @classmethod
    def make(cls) -> "Postgres":
        """A new cluster, not started. Raises ``RuntimeError`` where PostgreSQL is not installed."""
        pg_ctl = find_pg_ctl()
        if pg_ctl is None:
            raise RuntimeError("no PostgreSQL: neither /usr/lib/postgresql/*/bin nor PATH has pg_ctl")
        folder = Path(tempfile.mkdtemp(prefix="dragoman-postgres-"))  # short: a socket's path may have 107 characters
        user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if user:
            shutil.chown(folder, user)
        server = cls(pg_ctl, folder, user)
        server._run("initdb", "-D", f"{folder}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        return server

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        """Return when it answers; after a kill it recovers first."""
        options = f"-k {self.folder} -c listen_addresses='' -c shared_buffers=16MB -c max_connections=40"
        log = f"{self.folder}/server.log"
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-t", "60", "-l", log, "-o", options, "start")

    def kill(self) -> int:
        """``kill -9`` for the server and all its processes, as when the machine runs out of memory. How many."""
        pids = self._pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # else the server would see its children die and tidy up
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        limit = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() and not _zombie(pid) for pid in pids):
            if time.monotonic() > limit:
                raise RuntimeError(f"PostgreSQL does not die: {pids}")
            time.sleep(0.01)
        # Its number may still be taken (some containers reap nobody), and the next server would think that it lives.
        for left in (self.folder / "data" / "postmaster.pid", self.folder / ".s.PGSQL.5432.lock"):
            left.unlink(missing_ok=True)
        return len(pids)

    def freeze(self, frozen: bool) -> None:
        """Let it hang, or go on."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> None:
        if Path(self.folder, "data", "postmaster.pid").exists():
            self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _pids(self) -> list[int]:
        """The server's process and its children."""
        try:
            parent = int(Path(self.folder, "data", "postmaster.pid").read_text().splitlines()[0])
        except FileNotFoundError:
            return []
        children = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    after_name = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(after_name[1]) == parent:
                    children.append(int(entry))
        return [parent, *children]

    def _run(self, program: str, *arguments: str) -> None:
        log = self.folder / "server.log"
        with (self.folder / "command.log").open("ab+") as output:  # no pipe: the server would keep it open
            command = [str(self.pg_ctl.parent / program), *arguments]
            done = subprocess.run(command, user=self.user, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            said = (self.folder / "command.log").read_text()[-2000:] + (log.read_text()[-2000:] if log.exists() else "")
            raise RuntimeError(f"{program} failed:\n{said}")


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
