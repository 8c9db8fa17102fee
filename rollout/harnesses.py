"""The harnesses that Dragoman can start, one table entry each: package and version, variants, what shows on the wire.

How each is configured is in ``setups``, one function a harness; ``launch`` puts the whole environment together. This
table is the one place where versions stand: the installer, ``dragoman harness``, the tables of measurements and the
tests read them here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dragoman.rollout import setups
from dragoman.rollout.setups import Ask, Setup
from dragoman.store.records import ProviderName

__all__ = ["COMMAND", "HARNESSES", "NODE_VERSION", "Harness", "find_harness", "sign_of_failure"]

NODE_VERSION = "24.21.0"
COMMAND = "command"
"""The name of the harness that is any program: nothing to install, and its arguments are the caller's own."""


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
    dialects: tuple[ProviderName, ...]
    """What it speaks: one for each of ``variants``, or the one of a harness without variants."""
    variants: tuple[str, ...] = ()
    """Dialects or providers that it can be set up for, where there are several; the first is the default."""
    session_header: str | None = None
    """The request header that names its session, in every variant that sends one. None: it sends none, and calls are
    told apart by their messages alone."""
    subagent_header: str | None = None
    """The request header that only a sub-agent's calls have. None: none, or it has no sub-agents."""
    failure_signs: tuple[str, ...] = ()
    """Patterns of what it prints, on either stream, when it ends with 0 and did not do its work. A group is the part
    that says why."""
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
        dialects=("anthropic", "openai_chat", "openai_responses", "google"),
        # In the variant `responses` only.
        session_header="session-id",
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
        dialects=("anthropic",),
        session_header="x-claude-code-session-id",
        subagent_header="x-claude-code-agent-id",
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
        variants=("custom", "builtin", "chatgpt"),
        dialects=("openai_responses", "openai_responses", "openai_responses"),
        session_header="thread-id",
        subagent_header="x-codex-parent-thread-id",
    ),
    Harness(
        name="gemini",
        registry="npm",
        package="@google/gemini-cli",
        version="0.61.0",
        program="@google/gemini-cli/bundle/gemini.js",
        setup=setups.gemini,
        dialects=("google",),
        # After four empty replies.
        failure_signs=(r"\[ERROR\] The model returned an empty response",),
        can_limit_turns=True,
    ),
    Harness(
        name="qwen",
        registry="npm",
        package="@qwen-code/qwen-code",
        version="0.24.4",
        program="@qwen-code/qwen-code/cli-entry.js",
        setup=setups.qwen,
        dialects=("openai_chat",),
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
        dialects=("openai_chat", "anthropic", "openai_responses"),
        session_header="x-session-id",
        subagent_header="x-parent-session-id",
    ),
    Harness(
        name="mini",
        registry="pypi",
        package="mini-swe-agent",
        version="2.4.6",
        program="minisweagent.run.mini",
        setup=setups.mini,
        dialects=("openai_chat",),
        # It ends with 0 whatever came of it; after these it has submitted nothing.
        failure_signs=(r"(?m)^Exit:\s+(RepeatedFormatError|LimitsExceeded|TimeExceeded)\b",),
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
        dialects=("openai_chat",),
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


def sign_of_failure(harness: Harness, output: str) -> str | None:
    """What a harness that ended with 0 printed to say that it failed; None: nothing of the kind."""
    for pattern in harness.failure_signs:
        if match := re.search(pattern, output):
            return match.group(match.lastindex or 0)
    return None
