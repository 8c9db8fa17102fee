"""Task files: JSON lines (``.jsonl``) or a YAML list (``.yaml``, ``.yml``), read with all mistakes and their lines.

Rules of this module: a file is good as a whole or refused as a whole.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dragoman.rollout.task_fields import Mistake, Place, read_task
from dragoman.rollout.tasks import Task

__all__ = ["TaskFileError", "read_tasks"]


class TaskFileError(Exception):
    """What is wrong with a task file: one line for each mistake, with the line that it is in."""

    def __init__(self, path: Path, mistakes: list[tuple[int, str]]) -> None:
        self.mistakes = mistakes
        super().__init__("\n".join(f"{path}:{line}: {says}" for line, says in mistakes))


def read_tasks(path: Path, *, split: str | None = None) -> tuple[Task, ...]:
    """The tasks of a file, in its order; ``split`` takes only those of that split.

    The whole file is checked in any case. Raises ``TaskFileError`` with every mistake, also for a file without tasks
    (of that split) and for one that cannot be read.
    """
    path = path.resolve()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(path, [(1, f"it cannot be read: {error}")]) from error
    mistakes: list[tuple[int, str]] = []
    tasks: list[Task] = []
    first: dict[str, int] = {}
    for value, lines in _values(path, text, mistakes):
        found: list[Mistake] = []
        task = read_task(value, path, found)
        mistakes += [(_line(lines, one.place), _where(value, one)) for one in found]
        if task is None:
            continue
        line = lines[()]
        if task.id in first:
            mistakes.append((line, f"task {task.id!r} is there already, in line {first[task.id]}"))
        first.setdefault(task.id, line)
        tasks.append(task)
    if not mistakes and not tasks:
        mistakes.append((1, "there are no tasks in it"))
    if not mistakes and split is not None and split not in {task.split for task in tasks}:
        there = ", ".join(sorted({task.split for task in tasks if task.split})) or "none"
        mistakes.append((1, f"no task has the split {split!r}; splits in it: {there}"))
    if mistakes:
        raise TaskFileError(path, sorted(mistakes))
    return tuple(task for task in tasks if split is None or task.split == split)


Lines = dict[Place, int]
"""Place in a task → line in the file; ``()`` is always there."""


def _line(lines: Lines, place: Place) -> int:
    while place not in lines:
        place = place[:-1]
    return lines[place]


def _where(value: object, mistake: Mistake) -> str:
    """The mistake with the task and, inside of it, the check that it is about."""
    id_ = value.get("id") if isinstance(value, dict) else None
    names = [f"task {id_!r}"] if isinstance(id_, str) and id_ else []
    match mistake.place:
        case ("checks", int(at), *_):
            names.append(f"check {at + 1}")
        case ("workspace", *_):
            names.append("workspace")
    return ": ".join([*names, mistake.says])


def _values(path: Path, text: str, mistakes: list[tuple[int, str]]) -> Iterator[tuple[object, Lines]]:
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    yield json.loads(line, object_pairs_hook=_unique), {(): number}
                except ValueError as error:
                    mistakes.append((number, f"it is no JSON: {error}"))
    elif path.suffix in (".yaml", ".yml"):
        try:
            document = yaml.compose(text, Loader=yaml.SafeLoader)
            if not isinstance(document, yaml.SequenceNode):
                mistakes.append((1, "it is no list of tasks: each task begins with '- id: …'"))
                return
            for node in document.value:
                lines: Lines = {}
                try:
                    yield _plain(node, (), lines), lines
                except yaml.MarkedYAMLError as error:
                    mistakes.append(_yaml_mistake(error))
        except yaml.MarkedYAMLError as error:
            mistakes.append(_yaml_mistake(error))
        except yaml.YAMLError as error:
            mistakes.append((1, f"it is no YAML: {error}"))
    else:
        mistakes.append((1, f"a task file is .jsonl, .yaml or .yml, not {path.suffix or 'without an ending'}"))


def _yaml_mistake(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    return (mark.line + 1 if mark else 1), f"it is no YAML: {error.problem or error.context}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return result


def _plain(node: yaml.Node, place: Place, lines: Lines) -> Any:
    """The value of a YAML node; notes the line of each key and entry. Raises ``yaml.MarkedYAMLError``."""
    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node)
            if key in result:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", key_node.start_mark)
            result[key] = _plain(value_node, (*place, key), lines)
            lines[(*place, key)] = key_node.start_mark.line + 1
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(one, (*place, at), lines) for at, one in enumerate(node.value)]
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node, deep=True)
        hash(value)
    except TypeError:
        raise yaml.constructor.ConstructorError(None, None, "a key must be plain", node.start_mark) from None
    finally:
        loader.dispose()
    # A date or a set is no JSON, and a task is kept as JSON.
    return value if isinstance(value, str | int | float | bool | None) else str(getattr(node, "value", value))
