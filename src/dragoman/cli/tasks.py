"""``dragoman tasks validate|preview``: is a task file good, and what is in it?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import Failure, console

if TYPE_CHECKING:
    from dragoman.rollout.tasks import Check, Task, Workspace

app = typer.Typer(no_args_is_help=True, help="Look at task files.", rich_markup_mode=None)

TaskFile = Annotated[Path, typer.Argument(metavar="TASKS", help="A task file: .jsonl, .yaml or .yml.")]
Split = Annotated[str | None, typer.Option(help="Only tasks of this split.")]


def load_tasks(path: Path, split: str | None, only: list[str] | None = None) -> "tuple[Task, ...]":
    """The tasks of a file. Raises ``Failure`` that lists every mistake."""
    from dragoman.rollout.task_files import TaskFileError, read_tasks

    try:
        tasks = read_tasks(path, split=split)
    except TaskFileError as error:
        count = len(error.mistakes)
        raise Failure(f"{path} has {count} mistake{'' if count == 1 else 's'}:\n{error}") from error
    if only and (missing := sorted(set(only) - {task.id for task in tasks})):
        raise Failure(f"{path} has no task {missing[0]!r}{f' of split {split!r}' if split else ''}")
    return tuple(task for task in tasks if not only or task.id in only)


@app.command()
def validate(tasks: TaskFile) -> None:
    """Read a task file and report every mistake with its line; exit code 1 when there is one."""
    found = load_tasks(tasks, None)
    splits = sorted({task.split or "no split" for task in found})
    print(f"{tasks}: {len(found)} tasks ({', '.join(splits)})")
    if without := [task.id for task in found if not task.checks]:
        shown = ", ".join(without[:5]) + (", …" if len(without) > 5 else "")
        print(f"{len(without)} of them have no check, so their episodes get no reward: {shown}")


@app.command()
def preview(
    tasks: TaskFile,
    task: Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be repeated.")] = None,
    split: Split = None,
) -> None:
    """Show what each task asks, where it starts from and how it is checked; one task in full."""
    from rich.table import Table

    found = load_tasks(tasks, split, task)
    if len(found) == 1:
        print(in_full(found[0]))
        return
    table = Table("task", "split", "workspace", "checks", "limit", "prompt", box=None, pad_edge=False)
    for one in found:
        names = ", ".join(check.name for check in one.checks) or "none"
        limit = "" if one.time_limit is None else f"{one.time_limit:g} s"
        prompt = " ".join(one.prompt.split())
        table.add_row(one.id, one.split or "", origin(one.workspace), names, limit, f"{prompt:.60}")
    console().print(table)


def in_full(task: "Task") -> str:
    lines = [f"task       {task.id}", f"split      {task.split or 'none'}", f"workspace  {origin(task.workspace)}"]
    lines += [f"setup      {task.setup or 'none'}"]
    lines += [f"limit      {'as the run says' if task.time_limit is None else f'{task.time_limit:g} s'}"]
    lines += [f"check      {described(check)}" for check in task.checks] or ["check      none: no reward"]
    lines += [f"metadata   {task.metadata}"] if task.metadata else []
    return "\n".join([*lines, "", task.prompt])


def origin(workspace: "Workspace") -> str:
    from dragoman.rollout.tasks import ArchiveWorkspace, FolderWorkspace, GitWorkspace

    match workspace:
        case FolderWorkspace(folder):
            return f"folder {folder.name}"
        case GitWorkspace(repository, commit):
            return f"git {Path(repository).name} at {commit:.12}"
        case ArchiveWorkspace(archive):
            return f"archive {archive.name}"
        case _:
            return f"{len(workspace.files)} files" if workspace.files else "empty"


def described(check: "Check") -> str:
    from dragoman.rollout.tasks import CommandCheck, FunctionCheck, TestsCheck

    match check:
        case CommandCheck(run=run):
            what = f"exit code of `{run}`"
        case TestsCheck(framework=framework, paths=paths):
            what = f"{framework} {' '.join(paths)}"
        case FunctionCheck(function=function):
            what = function
        case _:
            what = type(check).__name__.removesuffix("Check").lower()
    return f"{check.name}: {what} (weight {check.weight:g})"
