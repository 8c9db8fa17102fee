"""How to run a harness against the gateway: the whole command, environment and files. Pure: it changes nothing.

Two modes, and a harness needs no change for either:

- ``proxy``: ``HTTPS_PROXY`` names the gateway and carries the episode's token; the harness calls its own provider's
  host with a key that is worth nothing, and the certificate variables make it trust the gateway.
- ``base-url``: the harness is configured to call the gateway itself; its API key is ``dgm_<token>``.

In both modes the gateway is also the only proxy for everything else, so what a harness or its tools ask of other
hosts meets the gateway's egress policy. That is a setting, not a wall: a program that ignores proxy variables can
still open connections; for code that is not trusted add a container without any other route.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from dragoman.certs.trust import trust_environment
from dragoman.rollout import setups
from dragoman.rollout.harnesses import Harness
from dragoman.rollout.process import Launch
from dragoman.rollout.setups import Ask, Mode

__all__ = ["DEFAULT_PATH", "Mode", "Shell", "Target", "launch", "launch_command", "shell"]

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FAKE_KEY = "sk-ant-fake-000000000000"


@dataclass(frozen=True)
class Target:
    """The gateway and the episode that a harness is pointed at."""

    gateway: str
    """``http://host:port``."""
    token: str
    """The episode's token, bare."""
    mode: Mode
    certs: Path
    """The folder of the gateway's certificate authority."""
    max_reply_tokens: int = 4096
    """This and ``context_tokens`` tell a harness that asks how much fits."""
    context_tokens: int = 32768

    def address(self) -> str:
        """``scheme://host:port`` alone. Raises ``ValueError`` for a gateway without host and port."""
        try:
            parts = urlsplit(self.gateway)
            complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
        except ValueError:
            complete = False
        if not complete:
            raise ValueError(f"The gateway's address {self.gateway!r} is not of the form http://host:port.")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def key(self) -> str:
        return f"dgm_{self.token}" if self.mode == "base-url" else FAKE_KEY


@dataclass(frozen=True)
class Shell:
    """What a person's own shell needs to start a harness by hand."""

    env: dict[str, str]
    files: tuple[tuple[Path, str], ...]
    """Absolute path and content of each file to write before, mode 0600."""
    arguments: tuple[str, ...]
    """What to type after the program's name, so that it asks the right model; may be empty."""


def launch(
    harness: Harness,
    target: Target,
    *,
    installed: Path,
    prompt: str,
    home: Path,
    workdir: Path,
    variant: str | None = None,
    model: str | None = None,
    max_turns: int | None = None,
    path: str = DEFAULT_PATH,
    extra: Mapping[str, str] | None = None,
) -> Launch:
    """How to run ``harness`` once on ``prompt`` against the gateway.

    ``installed`` is the folder from ``install.install(harness)``; ``home`` is a private home folder for this run.
    ``variant`` None is the first that the harness has, ``model`` None is the harness's own choice, ``max_turns`` None
    is no limit. ``path`` is where the agent's tools are found; ``extra`` are further variables, which go before all
    others. Raises ``ValueError`` for a gateway without host and port, for a variant that the harness does not have,
    and for a limit of turns that it cannot keep.
    """
    if max_turns is not None and not harness.can_limit_turns:
        raise ValueError(f"{harness.name} cannot limit its turns: leave max_turns out, and use the time limit.")
    ask = _ask(target, home, variant=_variant(harness, variant), prompt=prompt, model=model, max_turns=max_turns)
    setup = harness.setup(ask)
    env = {
        **_private(home, f"{installed / 'bin'}:{path}"),
        **_network(target),
        **setup.env,
        **setup.unattended,
        **(extra or {}),
    }
    files = setup.files if isinstance(setup.prompt_to, str) else (*setup.files, (setup.prompt_to, prompt))
    program = str(installed / "bin" / harness.name)
    stdin = prompt if setup.prompt_to == "stdin" else ""
    return Launch((program, *setup.arguments), env, files, workdir, stdin)


def launch_command(
    words: tuple[str, ...],
    target: Target,
    *,
    home: Path,
    workdir: Path,
    path: str = DEFAULT_PATH,
    extra: Mapping[str, str] | None = None,
) -> Launch:
    """How to run any program against the gateway, with the caller's own standard input.

    In ``base-url`` mode it gets the variables that SDKs read for an address. Raises ``ValueError`` as ``launch``.
    """
    setup = setups.command(_ask(target, home))
    env = {**_private(home, path), **_network(target), **setup.env, **(extra or {})}
    return Launch(words, env, (), workdir, None)


def shell(
    harness: Harness | None, target: Target, *, folder: Path, variant: str | None = None, model: str | None = None
) -> Shell:
    """The variables for a person's own shell, whose HOME and PATH stay as they are.

    ``harness`` None is any program. ``folder`` is a private folder for the files. Raises ``ValueError`` as ``launch``.
    """
    if harness is None:
        setup = setups.command(_ask(target, folder))
    else:
        setup = harness.setup(_ask(target, folder, variant=_variant(harness, variant), model=model))
    return Shell({**_network(target), **setup.env}, setup.files, setup.by_hand)


def _variant(harness: Harness, variant: str | None) -> str:
    if variant is not None and variant not in harness.variants:
        there = ", ".join(harness.variants) or "none"
        raise ValueError(f"{harness.name} has no variant {variant!r}; there are: {there}.")
    return variant or next(iter(harness.variants), "")


def _ask(
    target: Target,
    home: Path,
    *,
    variant: str = "",
    prompt: str = "",
    model: str | None = None,
    max_turns: int | None = None,
) -> Ask:
    return Ask(
        mode=target.mode,
        variant=variant,
        base_url=target.address(),
        key=target.key(),
        home=home,
        prompt=prompt,
        model=model,
        max_turns=max_turns,
        max_reply_tokens=target.max_reply_tokens,
        context_tokens=target.context_tokens,
    )


def _private(home: Path, path: str) -> dict[str, str]:
    """A plain environment that knows nothing of the caller's."""
    return {
        "PATH": path,
        "HOME": str(home),
        "USER": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "DO_NOT_TRACK": "1",
    }


def _network(target: Target) -> dict[str, str]:
    """The proxy, in both spellings (some programs read only the one, some only the other), and trust in its CA."""
    scheme, _, rest = target.address().partition("://")
    direct = ["localhost", "127.0.0.1", "::1"]
    host = urlsplit(target.address()).hostname
    if target.mode == "base-url" and host not in direct:
        direct.append(str(host))
    url = f"{scheme}://{quote(target.token, safe='')}:x@{rest}"
    named = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": ",".join(direct)}
    return {**named, **{name.lower(): value for name, value in named.items()}, **trust_environment(target.certs)}
