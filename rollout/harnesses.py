"""The harnesses that Dragoman can start, one table entry each: package, version, and how to point it at the gateway.

``launch`` is pure: it says what to run and changes nothing. Two modes, and a harness needs no change for either:

- ``proxy``: ``HTTPS_PROXY`` names the gateway and carries the episode's token; the harness calls its own provider's
  host with a key that is worth nothing, and the certificate variables make it trust the gateway.
- ``base-url``: the harness is configured to call the gateway itself; its API key is ``dgm_<token>``.

In both modes the gateway is also the only proxy for everything else, so what a harness or its tools ask of other
hosts meets the gateway's egress policy. That is a setting, not a wall: a program that ignores proxy variables can
still open connections; for code that is not trusted add a container without any other route.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from dragoman.certs.trust import trust_environment
from dragoman.rollout.process import HarnessResult, Launch, run

__all__ = ["HARNESSES", "NODE_VERSION", "Harness", "HarnessResult", "Launch", "Mode", "find_harness", "launch", "run"]

Mode = Literal["proxy", "base-url"]

NODE_VERSION = "24.21.0"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FAKE_KEY = "sk-ant-fake-000000000000"


@dataclass(frozen=True)
class _Ask:
    """What a table entry needs to know to configure its harness."""

    mode: Mode
    base_url: str
    """``http://host:port``, no path."""
    key: str
    """The API key for the harness: ``dgm_<token>`` in base-URL mode, a worthless one in proxy mode."""
    home: Path
    model: str | None
    max_turns: int | None
    max_reply_tokens: int
    context_tokens: int


@dataclass(frozen=True)
class _Setup:
    """What a table entry answers."""

    arguments: tuple[str, ...]
    """After the program's name. The prompt comes by standard input, so none of it is read as an option or a file."""
    env: dict[str, str]
    files: tuple[tuple[Path, str], ...] = ()


@dataclass(frozen=True)
class Harness:
    name: str
    """Also the name of its program in the install folder's ``bin``."""
    package: str
    """npm package."""
    version: str
    program: str
    """Pattern of the program's path below ``node_modules``; one file matches it after an install."""
    can_limit_turns: bool
    setup: Callable[[_Ask], _Setup]


def _pi(ask: _Ask) -> _Setup:
    folder = ask.home / ".pi" / "agent"
    files = [(folder / "settings.json", json.dumps({"retry": {"maxRetries": 1}}))]
    env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
    if ask.mode == "proxy":
        provider, model = "anthropic", ask.model or "claude-sonnet-4-5"
        env["ANTHROPIC_API_KEY"] = ask.key
    else:
        provider, model = "dragoman", ask.model or "policy"
        entry = {"id": model, "contextWindow": ask.context_tokens, "maxTokens": ask.max_reply_tokens}
        custom = {
            "baseUrl": f"{ask.base_url}/v1",
            "api": "openai-completions",
            "apiKey": ask.key,
            "models": [entry],
        }
        files.append((folder / "models.json", json.dumps({"providers": {provider: custom}})))
    return _Setup(("-p", "--provider", provider, "--model", model), env, tuple(files))


def _claude(ask: _Ask) -> _Setup:
    arguments = ["-p", "--dangerously-skip-permissions"]
    if ask.model is not None:
        arguments += ["--model", ask.model]
    if ask.max_turns is not None:
        arguments += ["--max-turns", str(ask.max_turns)]
    env = {
        "ANTHROPIC_API_KEY": ask.key,
        # It refuses to skip permission questions as root otherwise.
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(ask.max_reply_tokens),
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }
    if ask.mode == "base-url":
        env["ANTHROPIC_BASE_URL"] = ask.base_url
    return _Setup(tuple(arguments), env)


HARNESSES: tuple[Harness, ...] = (
    Harness(
        name="pi",
        package="@earendil-works/pi-coding-agent",
        version="1.6.0",
        program="@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        can_limit_turns=False,
        setup=_pi,
    ),
    Harness(
        name="claude",
        package="@anthropic-ai/claude-code",
        version="2.1.332",
        # The native program lies in the package of the platform; the main package only links to it by an install
        # script, which we do not run.
        program="@anthropic-ai/claude-code-*/claude",
        can_limit_turns=True,
        setup=_claude,
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
    model: str | None = None,
    max_turns: int | None = None,
    max_reply_tokens: int = 4096,
    context_tokens: int = 32768,
    path: str = DEFAULT_PATH,
) -> Launch:
    """How to run ``harness`` once on ``prompt`` against the gateway.

    ``installed`` is the folder from ``install.install(harness)``; ``gateway`` is ``http://host:port``; ``token`` is
    the episode's token, bare; ``home`` is a private home folder for this run; ``certs`` is the folder of the
    gateway's certificate authority. ``model`` None is the harness's own choice. ``max_turns`` None is no limit.
    ``context_tokens`` and ``max_reply_tokens`` tell a harness that asks how much fits. ``path`` is where the agent's
    tools are found. Raises ``ValueError`` for a gateway without host and port, and for a limit of turns that the
    harness cannot keep.
    """
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
        _Ask(
            mode=mode,
            base_url=address,
            key=f"dgm_{token}" if mode == "base-url" else FAKE_KEY,
            home=home,
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
    return Launch((program, *setup.arguments), env, setup.files, workdir, prompt)


def _proxy(address: str, token: str, direct: list[str]) -> dict[str, str]:
    """Both spellings: some programs read only the one, some only the other."""
    scheme, _, rest = address.partition("://")
    url = f"{scheme}://{quote(token, safe='')}:x@{rest}"
    named = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": ",".join(direct)}
    return {**named, **{name.lower(): value for name, value in named.items()}}
