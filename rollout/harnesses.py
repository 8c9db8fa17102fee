"""The harnesses that Dragoman can start, one table entry each: package, version, variants.

How each is configured is in ``setups``, one function a harness. ``launch`` is pure: it says what to run and changes
nothing. Two modes, and a harness needs no change for either:

- ``proxy``: ``HTTPS_PROXY`` names the gateway and carries the episode's token; the harness calls its own provider's
  host with a key that is worth nothing, and the certificate variables make it trust the gateway.
- ``base-url``: the harness is configured to call the gateway itself; its API key is ``dgm_<token>``.

In both modes the gateway is also the only proxy for everything else, so what a harness or its tools ask of other
hosts meets the gateway's egress policy. That is a setting, not a wall: a program that ignores proxy variables can
still open connections; for code that is not trusted add a container without any other route.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from dragoman.certs.trust import trust_environment
from dragoman.rollout import setups
from dragoman.rollout.process import HarnessResult, Launch, run
from dragoman.rollout.setups import Ask, Mode, Setup

__all__ = ["HARNESSES", "NODE_VERSION", "Harness", "HarnessResult", "Launch", "Mode", "find_harness", "launch", "run"]

NODE_VERSION = "24.21.0"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FAKE_KEY = "sk-ant-fake-000000000000"


@dataclass(frozen=True)
class Harness:
    name: str
    """Also the name of its program in the install folder's ``bin``."""
    registry: Literal["npm", "pypi"]
    package: str
    version: str
    program: str
    """npm: pattern of the program's path below ``node_modules``; one file matches it after an install. PyPI: the
    module to run."""
    setup: Callable[[Ask], Setup]
    variants: tuple[str, ...] = ()
    """Dialects or providers that it can be set up for, where there are several; the first is the default."""
    can_limit_turns: bool = False
    with_packages: tuple[str, ...] = ()
    """PyPI: requirements that the package leaves open and we do not."""
    python_below: tuple[int, int] = (3, 14)
    """PyPI: it needs an older Python than this."""
    version_argument: str = "--version"
    """Makes it print its version and end with 0."""


HARNESSES: tuple[Harness, ...] = (
    Harness(
        name="pi",
        registry="npm",
        package="@earendil-works/pi-coding-agent",
        version="1.6.0",
        program="@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        setup=setups.pi,
        variants=("anthropic", "chat", "responses", "gemini"),
    ),
    Harness(
        name="claude",
        registry="npm",
        package="@anthropic-ai/claude-code",
        version="2.1.332",
        # The native program lies in the package of the platform; the main package only links to it by an install
        # script, which we do not run.
        program="@anthropic-ai/claude-code-*/claude",
        setup=setups.claude,
        can_limit_turns=True,
    ),
    Harness(
        name="codex",
        registry="npm",
        package="@openai/codex",
        version="0.171.0",
        program="@openai/codex-*/vendor/*/bin/codex",
        setup=setups.codex,
        # The first one is easier for a small model: its tools are plain functions.
        variants=("custom", "builtin"),
    ),
    Harness(
        name="gemini",
        registry="npm",
        package="@google/gemini-cli",
        version="0.61.0",
        program="@google/gemini-cli/bundle/gemini.js",
        setup=setups.gemini,
        can_limit_turns=True,
    ),
    Harness(
        name="qwen",
        registry="npm",
        package="@qwen-code/qwen-code",
        version="0.24.4",
        program="@qwen-code/qwen-code/cli-entry.js",
        setup=setups.qwen,
        can_limit_turns=True,
    ),
    Harness(
        name="opencode",
        registry="npm",
        package="opencode-ai",
        version="1.18.33",
        # Not the one for processors without AVX2, which npm brings along (opencode-linux-x64-baseline).
        program="opencode-*-*64/bin/opencode",
        setup=setups.opencode,
        variants=("chat", "anthropic", "responses"),
    ),
    Harness(
        name="mini",
        registry="pypi",
        package="mini-swe-agent",
        version="2.4.6",
        program="minisweagent.run.mini",
        setup=setups.mini,
        can_limit_turns=True,
        with_packages=("litellm==1.110.2",),
        # It has no option for it, but says it before everything else.
        version_argument="--help",
    ),
    Harness(
        name="aider",
        registry="pypi",
        package="aider-chat",
        version="0.86.2",
        program="aider",
        setup=setups.aider,
        python_below=(3, 13),
    ),
)


def find_harness(name: str) -> Harness:
    """The table entry of that name. Raises ``ValueError`` that lists the names there are."""
    for harness in HARNESSES:
        if harness.name == name:
            return harness
    names = ", ".join(harness.name for harness in HARNESSES)
    raise ValueError(f"There is no harness {name!r}; there are: {names}.")


def launch(
    harness: Harness,
    *,
    installed: Path,
    mode: Mode,
    gateway: str,
    token: str,
    prompt: str,
    home: Path,
    workdir: Path,
    certs: Path,
    variant: str | None = None,
    model: str | None = None,
    max_turns: int | None = None,
    max_reply_tokens: int = 4096,
    context_tokens: int = 32768,
    path: str = DEFAULT_PATH,
) -> Launch:
    """How to run ``harness`` once on ``prompt`` against the gateway.

    ``installed`` is the folder from ``install.install(harness)``; ``gateway`` is ``http://host:port``; ``token`` is
    the episode's token, bare; ``home`` is a private home folder for this run; ``certs`` is the folder of the
    gateway's certificate authority. ``variant`` None is the first that the harness has, ``model`` None is the
    harness's own choice. ``max_turns`` None is no limit. ``context_tokens`` and ``max_reply_tokens`` tell a harness
    that asks how much fits. ``path`` is where the agent's tools are found. Raises ``ValueError`` for a gateway without
    host and port, for a variant that the harness does not have, and for a limit of turns that it cannot keep.
    """
    if variant is not None and variant not in harness.variants:
        there = ", ".join(harness.variants) or "none"
        raise ValueError(f"{harness.name} has no variant {variant!r}; there are: {there}.")
    if max_turns is not None and not harness.can_limit_turns:
        raise ValueError(f"{harness.name} cannot limit its turns: leave max_turns out, and use the time limit.")
    try:
        parts = urlsplit(gateway)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise ValueError(f"The gateway's address {gateway!r} is not of the form http://host:port.")
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    setup = harness.setup(
        Ask(
            mode=mode,
            variant=variant or next(iter(harness.variants), ""),
            base_url=address,
            key=f"dgm_{token}" if mode == "base-url" else FAKE_KEY,
            home=home,
            prompt=prompt,
            model=model,
            max_turns=max_turns,
            max_reply_tokens=max_reply_tokens,
            context_tokens=context_tokens,
        )
    )
    direct = ["localhost", "127.0.0.1", "::1"]
    if mode == "base-url" and parts.hostname not in direct:
        direct.append(str(parts.hostname))
    env = {
        "PATH": f"{installed / 'bin'}:{path}",
        "HOME": str(home),
        "USER": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "DO_NOT_TRACK": "1",
        **_proxy(address, token, direct),
        **trust_environment(certs),
        **setup.env,
    }
    program = str(installed / "bin" / harness.name)
    return Launch((program, *setup.arguments), env, setup.files, workdir, prompt if setup.prompt_by_stdin else "")


def _proxy(address: str, token: str, direct: list[str]) -> dict[str, str]:
    """Both spellings: some programs read only the one, some only the other."""
    scheme, _, rest = address.partition("://")
    url = f"{scheme}://{quote(token, safe='')}:x@{rest}"
    named = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": ",".join(direct)}
    return {**named, **{name.lower(): value for name, value in named.items()}}
