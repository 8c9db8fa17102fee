"""The Harbor environment without containers: where paths lie, what is refused, and its view where namespaces are."""

import contextlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout.box import why_no_namespaces
from dragoman.rollout.harbor import PLUGIN


class _Base:
    """As much of Harbor's class as ours uses."""

    environment_name = "t"

    def __init__(self, environment_dir: Path, image: str | None = None) -> None:
        self.environment_dir = environment_dir
        self.task_env_config = types.SimpleNamespace(docker_image=image, workdir=None)
        self._validate_definition()

    def _validate_definition(self) -> None:
        raise NotImplementedError

    def _merge_env(self, env: dict[str, str] | None) -> dict[str, str] | None:
        return env


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class, loaded as Harbor loads it, over a stand-in for Harbor's."""
    base = types.ModuleType("harbor.environments.base")
    vars(base).update(BaseEnvironment=_Base, ExecResult=types.SimpleNamespace)
    for name in ("harbor", "harbor.environments"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "harbor.environments.base", base)
    spec = importlib.util.spec_from_file_location("dragoman_local", PLUGIN / "dragoman_local.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LocalEnvironment


def command_lines() -> list[bytes]:
    """Of all processes that sleep."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [line for line in found if line.startswith(b"sleep")]


async def test_files_go_in_and_come_out_but_not_through_links(tmp_path: Path, local: Any) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "start.txt").write_text("here")
    environment = local(tmp_path / "environment")
    await environment.start(False)
    try:
        await environment.download_file("/app/start.txt", tmp_path / "out.txt")
        assert (tmp_path / "out.txt").read_text() == "here"
        await environment.upload_dir(tmp_path / "environment", "/tests")
        assert environment.place("/tests/start.txt").is_file()
        environment.place("/app/out").symlink_to("/etc")
        with pytest.raises(ValueError, match="leads out through a link"):
            environment.place("/app/out/passwd")
        for path in ("/usr/bin/x", "relative", "/app/../usr", "/"):
            with pytest.raises(ValueError, match=r"belongs to this machine|no path below"):
                environment.place(path)
    finally:
        await environment.stop(True)
    assert not environment.root.exists()


def test_a_task_with_an_image_is_refused(tmp_path: Path, local: Any) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    with pytest.raises(ValueError, match=r"comes with an image \(Dockerfile\)"):
        local(tmp_path)
    with pytest.raises(ValueError, match="some/image"):
        local(tmp_path / "none", "some/image")


@pytest.mark.skipif(why_no_namespaces() is not None, reason="needs namespaces")
async def test_commands_see_their_own_folders_and_cannot_write_the_machines(tmp_path: Path, local: Any) -> None:
    environment = local(tmp_path)
    await environment.start(False)
    try:
        done = await environment.exec("pwd; echo $A; echo x > /tests/x; ls -A /root", env={"A": "b"})
        assert (done.return_code, done.stdout) == (0, "/app\nb\n")
        assert environment.place("/tests/x").read_text() == "x\n"
        assert (await environment.exec("touch /usr/made")).return_code != 0
        assert (await environment.exec("exit 7")).return_code == 7
        with pytest.raises(RuntimeError, match="longer than 1 s"):
            await environment.exec("echo $$ > /app/began; exec sleep 7529", timeout_sec=1)
        assert not any(b"7529" in line for line in command_lines())
    finally:
        await environment.stop(True)
