"""From the options of ``dragoman rollout`` to a setting: all that can go wrong before anything is run."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dragoman.cli.output import Failure, say

if TYPE_CHECKING:
    from dragoman.gateway_client import GatewayClient
    from dragoman.rollout.samples import Setting
    from dragoman.rollout.tasks import Task


@dataclass(frozen=True)
class RolloutOptions:
    tasks: Path
    harnesses: tuple[str, ...]
    samples: int
    concurrency: int
    mode: Literal["proxy", "base-url"]
    variant: str | None
    model: str | None
    split: str | None
    only: tuple[str, ...]
    time_limit: float
    check_time_limit: float
    temperature: float | None
    profile: Literal["train", "as_asked"] | None
    max_turns: int | None
    run: str | None
    again: bool
    deadline: float | None
    isolation: Literal["auto", "namespaces", "limits", "none"]
    memory: float | None
    disk: float
    hide: tuple[Path, ...]
    env: Mapping[str, str]
    scratch: Path | None
    store: str | None
    command: tuple[str, ...]
    gateway: str
    ray: str | None = None
    """Address of a Ray cluster. None: samples run on this machine."""
    ray_cpus: float = 1.0


def runs_folder() -> Path:
    """Where runs note what they have done."""
    from dragoman.home import state_folder

    return state_folder() / "rollouts"


def run_name(options: RolloutOptions) -> str:
    """The run's name: the one given, or one that the same tasks and options always have. Raises ``Failure``."""
    from dragoman.rollout.journal import RunName, free_name

    name = options.run
    if name is None:
        content = hashlib.sha256(options.tasks.read_bytes())
        said = (options.harnesses, options.samples, options.mode, options.variant, options.model, options.split)
        more = (options.only, options.temperature, options.profile, options.max_turns, options.command)
        content.update(json.dumps([*said, *more]).encode())
        stem = "".join(one if one.isalnum() else "-" for one in options.tasks.stem).strip("-") or "tasks"
        name = f"{stem[:60]}-{content.hexdigest()[:8]}"
    try:
        name = RunName(name).text
    except ValueError as error:
        raise Failure(f"--run: {error}") from error
    return free_name(runs_folder(), name) if options.again else name


def make_setting(options: RolloutOptions, name: str, client: "GatewayClient") -> "Setting":
    """Everything that can be checked before a sample is run. Raises ``Failure`` and ``GatewayError``."""
    from dragoman.cli.episode import operator_credential
    from dragoman.cli.run_plan import find_target, installed_harness
    from dragoman.home import state_folder
    from dragoman.rollout.box import Resources, find_isolation
    from dragoman.rollout.harnesses import COMMAND
    from dragoman.rollout.samples import Setting

    installed = {}
    for one in options.harnesses:
        if one == COMMAND:
            if not options.command:
                raise Failure("--harness command needs the program: dragoman rollout … --harness command -- PROGRAM…")
            continue
        found, installed[one] = installed_harness(one)
        if options.variant is not None and options.variant not in found.variants:
            raise Failure(f"{one} has no variant {options.variant!r}; it has: {', '.join(found.variants) or 'none'}")
        if options.max_turns is not None and not found.can_limit_turns:
            raise Failure(f"{one} cannot limit its turns: leave --max-turns out, and use --time-limit")
    if options.command and COMMAND not in options.harnesses:
        raise Failure(f"{options.command[0]!r} means nothing without --harness command")
    target = find_target(options.mode, client, None)
    try:
        isolation = find_isolation(options.isolation)
    except ValueError as error:
        raise Failure(f"--isolation: {error}") from error
    if isolation != "namespaces":
        say(f"isolation: {isolation}; agents can read this user's files and open connections past the gateway")
    memory = None if options.memory is None else int(options.memory * 2**30)
    return Setting(
        run=name,
        gateway=target.address(),
        operator_key=operator_credential(),
        samples=options.samples,
        mode=options.mode,
        variant=options.variant,
        model=options.model,
        command=options.command,
        installed=installed,
        certs=target.certs,
        time_limit=options.time_limit,
        check_time_limit=options.check_time_limit,
        deadline=options.deadline,
        temperature=options.temperature,
        profile=options.profile or "train",
        max_turns=options.max_turns,
        max_reply_tokens=target.max_reply_tokens,
        context_tokens=target.context_tokens,
        isolation=isolation,
        resources=Resources(memory_bytes=memory),
        disk_bytes=int(options.disk * 2**30),
        hidden=(state_folder(), *(path.resolve() for path in options.hide)),
        store=readable_store(options.store, client),
        path=os.environ.get("PATH", os.defpath),
        env=options.env,
        scratch=None if options.scratch is None else options.scratch.resolve(),
    )


def readable_store(named: str | None, client: "GatewayClient") -> str | None:
    """URL of the store if it can be read from here; None: checks that read replies get what harnesses print."""
    url = named or client.status().store
    scheme, _, path = url.partition(":///")
    if named is None and not (scheme.startswith("sqlite") and Path(path).is_file()):
        return None
    return url


def check_tasks(tasks: "tuple[Task, ...]") -> None:
    """Says what a run of these tasks will lack."""
    if without := sum(not task.checks for task in tasks):
        say(f"{without} of {len(tasks)} tasks have no check: their episodes get no reward")
