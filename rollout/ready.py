"""A workspace as an agent finds it: the task's files, and its setup run in them.

Rules of this module: the setup is the task author's own program and may use the network, so it runs with limits only.
It is run again, on new files, wherever the workspace is made again.
"""

from collections.abc import Callable
from pathlib import Path

from dragoman.rollout.box import Box, Resources, boxed, find_isolation
from dragoman.rollout.process import NO_LIMITS, Launch, Limits, run
from dragoman.rollout.tasks import Task
from dragoman.rollout.workspaces import Made, WorkspaceError, make_workspace

__all__ = ["NotReady", "make_ready"]


class NotReady(ValueError):
    """The workspace could not be made, or the task's setup did not end well."""


def make_ready(
    task: Task,
    folder: Path,
    home: Path,
    *,
    path: str,
    resources: Resources,
    time_limit: float,
    limits: Limits = NO_LIMITS,
    stopped: Callable[[], bool] | None = None,
) -> Made:
    """Make the task's workspace in ``folder``, which must not exist; ``home`` is the setup's home.

    Raises ``NotReady``.
    """
    try:
        made = make_workspace(task.workspace, folder)
    except WorkspaceError as error:
        raise NotReady(str(error)) from error
    if task.setup is None:
        return made
    env = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(home)}
    plain = Launch(("/bin/sh", "-c", task.setup), env, (), folder, "")
    box = Box(find_isolation("limits"), resources, writable=(folder, home))
    done = run(boxed(plain, box), timeout=time_limit, limits=limits, stopped=stopped)
    if done.exit_code != 0:
        how = "took too long" if done.exit_code is None else f"ended with {done.exit_code}"
        raise NotReady(f"the task's setup {how}: {(done.stdout + done.stderr).strip()[-500:]}")
    return made
