"""A Harbor environment that needs no container engine: each command runs on this machine in a view of its own.

Rules of this module: Harbor's API, ``unshare`` and the standard library only. A trial has its own /app, /logs, /tests,
/tmp, /root, …; everything else is this machine's, read-only at the top. That keeps trials apart and the machine clean.
It is no sandbox: processes have the machine's network, and what a command leaves running ends with it. A task that
comes with an image is refused, since it would run on the wrong system.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment, ExecResult

OWN = ("app", "home", "installed-agent", "logs", "root", "solution", "tests", "tmp", "workspace")
"""Top folders that each trial has for itself."""
IMAGES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")
INSIDE = """
set -e
root=$1; cwd=$2; command=$3; view=$root/view
mount -t tmpfs tmpfs "$view"
for path in /*; do
  name=${path#/}
  [ -e "$root/own/$name" ] || [ "$name" = proc ] && continue
  if [ -L "$path" ]; then cp -P "$path" "$view/$name"
  elif [ -d "$path" ]; then
    mkdir "$view/$name"; mount --rbind "$path" "$view/$name"
    case $name in dev|sys|run) ;; *) mount -o remount,bind,ro "$view/$name" 2>/dev/null || true ;; esac
  fi
done
mkdir "$view/proc"; mount -t proc proc "$view/proc"
for path in "$root"/own/*; do
  name=${path##*/}; mkdir -p "$view/$name"; mount --bind "$path" "$view/$name"
done
exec chroot "$view" /bin/sh -c 'cd "$1" && exec /bin/bash -c "$2"' sh "$cwd" "$command"
"""


class LocalEnvironment(BaseEnvironment):  # type: ignore[misc]  # Harbor has an environment of its own
    """``harbor run -e dragoman_local:LocalEnvironment``."""

    root: Path | None = None

    @staticmethod
    def type() -> str:
        return "dragoman-local"

    def _validate_definition(self) -> None:
        image = self.task_env_config.docker_image
        found = [name for name in IMAGES if (self.environment_dir / name).exists()]
        if image or found:
            raise ValueError(
                f"the task {self.environment_name} comes with an image ({image or found[0]}), which dragoman-local "
                "does not build: run it with an environment that does, such as docker"
            )

    @property
    def workdir(self) -> str:
        return self.task_env_config.workdir or "/app"

    async def start(self, force_build: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dragoman-harbor-"))
        (self.root / "view").mkdir()
        for name in OWN:
            (self.root / "own" / name).mkdir(parents=True)
        self.place(self.workdir).mkdir(parents=True, exist_ok=True)
        for folder in ("agent", "verifier", "artifacts"):
            (self.root / "own" / "logs" / folder).mkdir()
        if self.environment_dir.is_dir():
            shutil.copytree(self.environment_dir, self.place(self.workdir), symlinks=True, dirs_exist_ok=True)

    async def stop(self, delete: bool) -> None:
        if self.root is not None and delete:
            shutil.rmtree(self.root, ignore_errors=True)

    def place(self, path: str) -> Path:
        """Where a path inside lies on this machine. Raises ``ValueError`` for one that is the machine's own."""
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or parts[0] != "/" or ".." in parts:
            raise ValueError(f"{path} is no path below a top folder")
        assert self.root is not None
        own = self.root / "own" / parts[1]
        if not own.exists():
            if Path("/", parts[1]).exists():
                raise ValueError(f"{path} belongs to this machine; trials have /{', /'.join(OWN)} for themselves")
            own.mkdir()
        place = own.joinpath(*parts[2:])
        if not place.parent.resolve().is_relative_to(self.root.resolve()):
            raise ValueError(f"{path} leads out through a link")
        return place

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        place = self.place(target_path)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source_path, place)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self.place(target_dir), symlinks=True, dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self.place(source_path), target_path, follow_symlinks=False)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self.place(source_dir), target_dir, symlinks=True, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """``user`` is not heeded: inside, this user is root."""
        basic = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"),
            *("/bin/sh", "-c", INSIDE, "sh", str(self.root), cwd or self.workdir, command),
            env={**basic, **(self._merge_env(env) or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            raise RuntimeError(f"the command took longer than {timeout_sec} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        out, err = (text.decode(errors="replace") for text in (stdout, stderr))
        return ExecResult(stdout=out, stderr=err, return_code=process.returncode or 0)
