"""The file that ``dragoman loop`` is told everything in."""

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dragoman.cli.output import Failure

Mode = Literal["proxy", "base-url"]
PATHS = ("tasks", "trainer")


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Field by field what the file may hold; paths count from the file's folder."""

    run: str
    """Name of the run: of its groups, its policies, and what the trainer reads as."""
    tasks: Path
    """A task file."""
    trainer: Path
    """The configuration of ``dragoman train grpo``. Run, output folder, store and tasks are set by the loop."""
    harnesses: tuple[str, ...]
    train_split: str = "train"
    eval_splits: tuple[str, ...] = ()
    """None: nothing is evaluated. The first one decides ``stop_reward``."""
    samples: int = 8
    """Episodes of a group."""
    eval_samples: int = 4
    concurrency: int = 4
    ahead: int = 8
    """Groups that are on their way or waiting for the trainer at most; more is faster, and further off the policy."""
    eval_every: int = 10
    """Policy versions between two evaluations. One more is made at the beginning and one at the end."""
    stop_versions: int | None = None
    stop_reward: float | None = None
    stop_hours: float | None = None
    """Of this process; a run that is resumed begins to count again."""
    seed: int = 0
    """Of the order of tasks."""
    mode: Mode = "proxy"
    variant: str | None = None
    temperature: float = 1.0
    time_limit: float = 300.0
    check_time_limit: float = 60.0
    max_turns: int | None = None
    store: str | None = None
    """URL; None: the gateway's, or the state folder's."""


def read_loop(path: Path) -> LoopConfig:
    """Raises ``Failure`` naming what is wrong with the file."""
    import yaml

    try:
        given = yaml.safe_load(path.read_text())
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise Failure(f"{path} is no YAML: {error}") from error
    if not isinstance(given, dict):
        raise Failure(f"{path} holds no settings; it must be a mapping, one `name: value` a line")
    names = {each.name for each in fields(LoopConfig)}
    for key in given:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            raise Failure(f"{path}: there is no setting {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if missing := sorted({"run", "tasks", "trainer", "harnesses"} - set(given)):
        raise Failure(f"{path}: say {missing[0]}")
    hints = get_type_hints(LoopConfig)
    values = {key: _value(path, key, value, hints[key]) for key, value in given.items()}
    for key in PATHS:
        values[key] = (path.parent / values[key]).resolve()
    config = LoopConfig(**values)
    if config.stop_versions is None and config.stop_reward is None and config.stop_hours is None:
        raise Failure(f"{path}: say when to stop: stop_versions, stop_reward or stop_hours")
    for key in ("samples", "eval_samples", "concurrency", "ahead", "eval_every"):
        if getattr(config, key) < 1:
            raise Failure(f"{path}: {key} is {getattr(config, key)}; it is at least 1")
    if config.samples < 2:
        raise Failure(f"{path}: samples is 1; a group compares at least 2 episodes")
    return config


def _value(path: Path, key: str, value: Any, hint: Any) -> Any:
    allowed = get_args(hint) if get_origin(hint) not in (None, tuple) else (hint,)
    if get_origin(hint) is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise Failure(f"{path}: {key} is {value!r}; it is a list of names")
        return tuple(items)
    if get_origin(hint) is Literal:
        if value not in allowed:
            raise Failure(f"{path}: {key} is {value!r}; it is one of {', '.join(map(str, allowed))}")
        return value
    if value is None and type(None) in allowed:
        return None
    if float in allowed and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if int in allowed and isinstance(value, int) and not isinstance(value, bool):
        return value
    if (str in allowed or Path in allowed) and isinstance(value, str) and value:
        return value
    kind = next(one.__name__ for one in allowed if one is not type(None))
    raise Failure(f"{path}: {key} is {value!r}; it is of type {kind.lower()}")
