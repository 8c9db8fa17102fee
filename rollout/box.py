"""A box for a program that is not trusted: what it may use, see and reach.

Two strengths, and the caller is told which one there is:

- *namespaces* (Linux, root or unprivileged user namespaces): the disk can only be read but for the folders named; the
  state folder, temporary folders and whatever else is hidden are empty in it; no network but one port of loopback that
  leads to the gateway; no process outside can be seen; when the box ends, the kernel ends all in it.
- *limits* (Linux without them): resource limits, and a supervisor that every orphan falls to and that ends them all.

Elsewhere there is *none*, and only the process group is ended. Neither is a virtual machine: for code that attacks the
kernel use a container runtime or a machine of its own.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dragoman.rollout.process import Launch

__all__ = ["DEFAULT_RESOURCES", "Box", "Isolation", "Resources", "boxed", "find_isolation", "why_no_namespaces"]

Isolation = Literal["namespaces", "limits", "none"]
INSIDE = Path(__file__).resolve().parent / "box_inside.py"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Empty inside, and writable. ``/run`` holds the sockets of servers, a container engine's for one."""
CREDENTIALS = (".ssh", ".aws", ".azure", ".config", ".docker", ".gnupg", ".kube", ".netrc", ".git-credentials")
"""In the runner's own home: hidden with the rest."""


@dataclass(frozen=True)
class Resources:
    """Limits of each process, as ``setrlimit`` has them; None: no limit."""

    file_bytes: int | None = 4 << 30
    """One file; a program that writes more gets SIGXFSZ."""
    open_files: int | None = 4096
    processes: int | None = 4096
    """Of the user, everywhere. Root is held to it only in namespaces, since Linux 6.14, and not below 400."""
    memory_bytes: int | None = None
    """Address space. Node reserves far more than it uses: below 64 GiB it may not start."""

    def as_limits(self) -> dict[str, int]:
        named = {
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CORE": 0,
        }
        return {name: most for name, most in named.items() if most is not None}


DEFAULT_RESOURCES = Resources()


@dataclass(frozen=True)
class Box:
    isolation: Isolation
    resources: Resources = DEFAULT_RESOURCES
    writable: tuple[Path, ...] = ()
    """Folders that exist; with the temporary ones the only ones that can be written."""
    readable: tuple[Path, ...] = ()
    """Folders and files that stay visible though they lie in a hidden folder."""
    hidden: tuple[Path, ...] = ()
    """Folders and files that are empty inside."""
    gateway: tuple[str, int] | None = None
    """Host and port that 127.0.0.1:port leads to inside. None: no network at all."""
    temporary_bytes: int = 2 << 30
    """What the temporary folders hold at most, each."""


def find_isolation(wanted: Isolation | Literal["auto"]) -> Isolation:
    """The isolation to use; ``auto`` is the strongest there is. Raises ``ValueError`` when it cannot be had."""
    if sys.platform != "linux":
        if wanted == "namespaces":
            raise ValueError("namespaces need Linux; leave --isolation out, or use a container")
        return "none"
    why = why_no_namespaces() if wanted in ("auto", "namespaces") else None
    if wanted == "namespaces" and why is not None:
        raise ValueError(f"this system makes no namespaces for us: {why}")
    if wanted == "auto":
        return "namespaces" if why is None else "limits"
    return wanted


@functools.cache
def why_no_namespaces() -> str | None:
    """What the system says when a box with namespaces is tried; None: it works."""
    with tempfile.TemporaryDirectory(prefix="dragoman-box-") as folder:
        box = Box("namespaces", writable=(Path(folder),), gateway=("127.0.0.1", 9))
        tried = boxed(Launch(("/bin/sh", "-c", ": > made"), {"PATH": os.defpath}, (), Path(folder), ""), box)
        done = subprocess.run(tried.command, env=tried.env, cwd=folder, capture_output=True, text=True)
        if done.returncode == 0 and Path(folder, "made").is_file():
            return None
        said = done.stderr.strip().splitlines()
        return said[-1] if said else f"the first box ended with {done.returncode}"


def boxed(launch: Launch, box: Box) -> Launch:
    """The same launch in a box."""
    if box.isolation == "none":
        return launch
    hidden = _outermost([*map(Path, TEMPORARY), *_credentials(), *box.hidden])
    visible = [*box.readable, *_needed(launch), *_named(launch, box)]
    plan = {
        "parent": os.getpid(),
        "namespaces": box.isolation == "namespaces",
        "limits": box.resources.as_limits(),
        "cwd": str(launch.cwd),
        "command": list(launch.command),
        "relay": None if box.gateway is None else [box.gateway[1], *box.gateway],
        "hidden": [str(path) for path in hidden],
        "readable": [str(path) for path in _outermost(visible) if any(path.is_relative_to(one) for one in hidden)],
        "writable": [str(path.resolve()) for path in box.writable],
        "tmp_bytes": box.temporary_bytes,
    }
    command = (sys.executable, "-I", "-S", str(INSIDE), json.dumps(plan))
    return replace(launch, command=command, supervised=True)


def _needed(launch: Launch) -> list[Path]:
    """Folders without which nothing starts: where programs are looked for, and this Python."""
    named = [Path(one) for one in launch.env.get("PATH", "").split(":") if one.startswith("/")]
    named += [Path(sys.prefix), Path(sys.base_prefix), INSIDE.parent]
    return [path.resolve() for path in named if path.is_dir()]


def _named(launch: Launch, box: Box) -> list[Path]:
    """What the command itself names in a temporary folder: a program there would not be found else."""
    own = [path.resolve() for path in (*box.writable, *box.hidden)]
    found = []
    for word in launch.command:
        if word.startswith(TEMPORARY) and "\0" not in word and len(word) < 4096 and Path(word).exists():
            path = Path(word).resolve()
            if not any(path.is_relative_to(one) or one.is_relative_to(path) for one in own):
                found.append(path)
    return found


def _credentials() -> list[Path]:
    home = Path.home()
    return [home / name for name in CREDENTIALS if (home / name).exists()]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Resolved, without those that lie in another of them, and without those that do not exist."""
    found: list[Path] = []
    for path in sorted({path.resolve() for path in paths if path.exists()}):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found
