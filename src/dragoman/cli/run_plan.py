"""From the options of ``dragoman run`` to what is to be run: all that can go wrong before an episode is opened."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dragoman.cli.output import Failure

if TYPE_CHECKING:
    from dragoman.gateway_client import GatewayClient
    from dragoman.rollout.episode_run import EpisodeRun
    from dragoman.rollout.harnesses import Harness
    from dragoman.rollout.launch import Target
    from dragoman.rollout.process import Launch


@dataclass(frozen=True)
class RunOptions:
    harness: str
    words: tuple[str, ...]
    mode: Literal["proxy", "base-url"]
    variant: str | None
    model: str | None
    workdir: Path
    timeout: float
    max_turns: int | None
    env: Mapping[str, str]
    home: Path | None
    task: str | None
    group: str | None
    expected: int | None
    deadline: float | None
    profile: Literal["train", "as_asked"] | None
    temperature: float | None
    context_tokens: int | None


def prepare_run(options: RunOptions, client: "GatewayClient") -> "EpisodeRun":
    """Everything that can be checked before an episode is opened.

    Raises ``Failure``, ``GatewayError`` and ``ValueError``.
    """
    from dragoman.rollout.episode_run import EpisodeRun
    from dragoman.rollout.harnesses import COMMAND
    from dragoman.rollout.launch import launch, launch_command

    workdir = options.workdir.resolve()
    if not workdir.is_dir():
        raise Failure(f"--workdir {options.workdir} is no folder")
    path = os.environ.get("PATH", os.defpath)
    about = {"mode": options.mode, "variant": options.variant, "model": options.model}
    harness = None
    if options.harness == COMMAND:
        check_command(options)
        name = Path(options.words[0]).name

        def prepare(token: str, home: Path) -> "Launch":
            return launch_command(
                options.words, with_token(target, token), home=home, workdir=workdir, path=path, extra=options.env
            )

    else:
        harness, installed = installed_harness(options.harness)
        name, prompt = harness.name, read_prompt(options.words)
        about |= {"version": harness.version, "variant": options.variant or next(iter(harness.variants), None)}

        def prepare(token: str, home: Path) -> "Launch":
            return launch(
                harness,
                with_token(target, token),
                installed=installed,
                prompt=prompt,
                home=home,
                workdir=workdir,
                variant=options.variant,
                model=options.model,
                max_turns=options.max_turns,
                path=path,
                extra=options.env,
            )

    target = find_target(options.mode, client, options.context_tokens)
    prepare("0" * 32, workdir)  # whatever is wrong with the options shows now, and not in an episode
    return EpisodeRun(
        name=name,
        harness=harness,
        prepare=prepare,
        workdir=workdir,
        timeout=options.timeout,
        about={key: value for key, value in about.items() if value is not None},
        home=options.home.resolve() if options.home else None,
        task=options.task,
        group=options.group,
        expected=options.expected,
        deadline_seconds=options.deadline,
        profile=options.profile,
        temperature=options.temperature,
    )


def check_command(options: RunOptions) -> None:
    """Raises ``Failure`` for what any program cannot be given."""
    if not options.words:
        raise Failure("--harness command needs the program to run: dragoman run --harness command -- PROGRAM ARGUMENT…")
    for name, value in (("variant", options.variant), ("model", options.model), ("max-turns", options.max_turns)):
        if value is not None:
            raise Failure(f"--{name} means nothing for `command`: give the program's own arguments")


def find_target(mode: Literal["proxy", "base-url"], client: "GatewayClient", context_tokens: int | None) -> "Target":
    """The gateway as a harness will be pointed at it, without a token. Raises ``Failure`` and ``GatewayError``."""
    from dragoman.cli.certs import certificates_folder
    from dragoman.cli.checks import check_gateway_ca
    from dragoman.rollout.launch import Target

    status = client.status()
    if status.observes is not None and mode == "base-url":
        raise Failure(
            f"the gateway at {client.address} only looks on, and calls need the provider's own key there: --mode proxy"
        )
    certs = certificates_folder()
    if mode == "proxy":
        check = check_gateway_ca(client.address, certs)
        if not check.ok:
            raise Failure(f"{check.found}; {check.remedy}")
    target = Target(client.address, "", mode, certs)
    return replace(
        target,
        max_reply_tokens=status.max_reply_tokens or target.max_reply_tokens,
        context_tokens=context_tokens or status.max_model_len or target.context_tokens,
    )


def with_token(target: "Target", token: str) -> "Target":
    return replace(target, token=token)


def installed_harness(name: str) -> "tuple[Harness, Path]":
    """The table entry, and the folder in which it is installed. Raises ``Failure``."""
    from dragoman.rollout.harnesses import COMMAND, find_harness
    from dragoman.rollout.install import installed

    try:
        harness = find_harness(name)
    except ValueError as error:
        raise Failure(f"{error} Any other program runs as `--harness {COMMAND} -- PROGRAM…`.") from error
    folder = installed(harness)
    if folder is None:
        raise Failure(f"{name} {harness.version} is not installed: `dragoman harness install {name}`")
    return harness, folder


def read_prompt(words: tuple[str, ...]) -> str:
    """The words, or what is piped in. Raises ``Failure`` when there is neither."""
    prompt = " ".join(words) if words or sys.stdin.isatty() else sys.stdin.read()
    if not prompt.strip():
        raise Failure("there is no prompt: give it after `--`, or on stdin")
    return prompt
