"""Start one harness, watch the clock, and end everything that it started.

A harness's shell tool puts its commands in process groups and sessions of their own, and an agent may leave servers
running, so killing one process group is not enough. Each run carries a random mark in its environment, which every
descendant inherits; at the end all processes with the mark are killed (found in ``/proc``; where there is none, as on
macOS, only the process group is). A program that clears its environment escapes the mark: a launch in a box
(``rollout.box``) has a supervisor that is told first, and finds those too.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["NO_LIMITS", "HarnessResult", "Launch", "Limits", "OnOutput", "Stopped", "Stream", "run", "write_private"]

MARK = "DRAGOMAN_RUN"
# Each round kills all processes that carry the mark; a fork bomb could outrun any number of rounds.
KILL_ROUNDS = 100
# Seconds between looks at what a harness has printed, when somebody wants to see it.
LOOK_EVERY = 0.05
SUPERVISOR_SECONDS = 20.0
"""How long a box's supervisor may take to end what is in it."""
READ_LIMIT = 16 * 1024 * 1024
"""Bytes of each stream that a result holds: of longer output the beginning and the end."""

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
"""Called in the caller's own thread with what a harness has printed since the last time, never nothing."""


@dataclass(frozen=True)
class Launch:
    """All that is needed to start a harness once; nothing of the caller's environment is added."""

    command: tuple[str, ...]
    env: dict[str, str]
    files: tuple[tuple[Path, str], ...]
    """Absolute path and content of each file to write before the start, mode 0600."""
    cwd: Path
    stdin: str | None
    """What the harness reads from its standard input; None: the caller's own."""
    supervised: bool = False
    """The command is a supervisor of a box, which on SIGTERM ends all that is in it."""


@dataclass(frozen=True)
class Limits:
    """What a run may use before it is ended; None: no limit."""

    output_bytes: int | None = None
    """Printed, both streams together."""
    disk_bytes: int | None = None
    """Of all files below ``folders``."""
    folders: tuple[Path, ...] = ()


NO_LIMITS = Limits()


class Stopped(Exception):
    """The run was ended because its caller wanted no more of it."""


@dataclass(frozen=True)
class HarnessResult:
    exit_code: int | None
    """None: it was killed, at the time limit unless ``over_limit`` says otherwise; negative: a signal ended it."""
    stdout: str
    """At most ``READ_LIMIT`` bytes of it, as ``stderr``."""
    stderr: str
    seconds: float
    over_limit: str | None = None
    """The limit other than the time limit at which it was killed, in words."""


def run(
    launch: Launch,
    *,
    timeout: float,
    on_output: OnOutput | None = None,
    limits: Limits = NO_LIMITS,
    stopped: Callable[[], bool] | None = None,
) -> HarnessResult:
    """Run a harness to its end, at most ``timeout`` seconds; afterwards nothing that it started is left.

    ``on_output`` gets what it prints, as it is printed; also the rest, when a signal ends the run. An error that it
    raises ends the run. ``stopped`` is asked several times a second; once it says yes, the run is ended and
    ``Stopped`` is raised. Raises ``FileNotFoundError`` where the command or the working folder is missing, and
    ``PermissionError`` where the command may not be started.
    """
    if not launch.cwd.is_dir():
        raise FileNotFoundError(f"The working folder {launch.cwd} does not exist.")
    for path, content in launch.files:
        write_private(path, content)
    Path(launch.env["HOME"]).mkdir(parents=True, exist_ok=True, mode=0o700)
    mark = secrets.token_hex(16)
    # Files, not pipes: a process left behind could hold a pipe open for ever.
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write((launch.stdin or "").encode())
        stdin.seek(0)
        show = _Show(on_output, {"stdout": stdout.fileno(), "stderr": stderr.fileno()})
        started = time.monotonic()
        process = subprocess.Popen(
            launch.command,
            env={**launch.env, MARK: mark},
            cwd=launch.cwd,
            stdin=None if launch.stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        watch = _Watch(limits, (stdout.fileno(), stderr.fileno()), stopped)
        exit_code: int | None = None
        try:
            exit_code = _wait(process, started + timeout, show, watch)
        finally:
            if launch.supervised and process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SUPERVISOR_SECONDS)
            _kill_all(process.pid, mark)
            process.wait()
            show.rest()
        seconds = time.monotonic() - started
        printed = (_read(stdout.fileno()), _read(stderr.fileno()))
        return HarnessResult(exit_code, *printed, seconds, watch.over)


@dataclass
class _Show:
    """Hands on what has come to the files that a harness prints into."""

    on_output: OnOutput | None
    descriptors: dict[Stream, int]
    at: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    broken: bool = False
    """``on_output`` has raised: it is not called again."""

    def some(self, most: int = 1 << 20) -> bool:
        """Hand on at most ``most`` bytes of each stream; whether there was anything."""
        if self.on_output is None or self.broken:
            return False
        any_ = False
        for stream, descriptor in self.descriptors.items():
            if data := os.pread(descriptor, most, self.at[stream]):
                any_ = True
                self.at[stream] += len(data)
                try:
                    self.on_output(stream, data)
                except Exception:
                    self.broken = True
                    raise
        return any_

    def rest(self) -> None:
        while self.some():
            pass


@dataclass
class _Watch:
    """Looks at what a run uses."""

    limits: Limits
    descriptors: tuple[int, int]
    stopped: Callable[[], bool] | None
    over: str | None = None
    disk_at: float = 0.0
    """When to look at the disk again, by ``time.monotonic``."""

    @property
    def needed(self) -> bool:
        return self.stopped is not None or self.limits != NO_LIMITS

    def ended(self) -> bool:
        """Whether the run is to be ended now, and notes why. Raises ``Stopped``."""
        if self.stopped is not None and self.stopped():
            raise Stopped
        most = self.limits.output_bytes
        if most is not None and sum(os.fstat(one).st_size for one in self.descriptors) > most:
            self.over = f"it printed more than {most:,} bytes"
        most, now = self.limits.disk_bytes, time.monotonic()
        if self.over is None and most is not None and now >= self.disk_at:
            if sum(_size(folder) for folder in self.limits.folders) > most:
                self.over = f"it wrote more than {most:,} bytes"
            took = time.monotonic() - now
            self.disk_at = now + max(0.5, 20 * took)  # a large tree must not keep us busy
        return self.over is not None


def _size(folder: Path) -> int:
    """Bytes on the disk of all files below it, as far as they can be seen."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_blocks * 512
    return total


def _wait(process: subprocess.Popen[bytes], limit: float, show: _Show, watch: _Watch) -> int | None:
    """The exit code; None when the clock has reached ``limit`` or another limit is passed."""
    looking = show.on_output is not None or watch.needed
    while True:
        left = limit - time.monotonic()
        if left <= 0:
            return process.poll()
        try:
            code = process.wait(min(left, LOOK_EVERY) if looking else left)
        except subprocess.TimeoutExpired:
            show.some()  # not all: who prints without end must still meet the limit
            if watch.ended():
                return None
        else:
            watch.ended()
            return None if watch.over else code


def write_private(path: Path, content: str) -> None:
    """Write a file, and its folders where needed, for the owner alone."""
    for folder in reversed(path.parents):  # one by one: `parents=True` would make those between for everybody
        folder.mkdir(exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    if size <= READ_LIMIT:
        return os.pread(descriptor, size, 0).decode(errors="replace")
    half = READ_LIMIT // 2
    ends = (os.pread(descriptor, half, 0), os.pread(descriptor, half, size - half))
    return f"\n[... {size - READ_LIMIT} bytes left out ...]\n".join(end.decode(errors="replace") for end in ends)


def _kill_all(group: int, mark: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    wanted = f"{MARK}={mark}".encode()
    for _ in range(KILL_ROUNDS):
        if sum(_kill_marked(pid, wanted) for pid in _pids()) == 0:
            return


def _pids() -> Iterator[int]:
    proc = Path("/proc")
    if proc.is_dir():
        yield from (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def _kill_marked(pid: int, wanted: bytes) -> bool:
    """Kill the process if its environment carries the mark; whether it did.

    The pidfd pins the process, so an id that is given to another process meanwhile cannot be hit.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # A process that has ended and waits for its parent (a zombie) has an empty environment.
        if wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except (ProcessLookupError, PermissionError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True
