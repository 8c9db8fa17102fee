"""Which dialect a request is in. The one list of dialects is ``PROVIDERS``."""

from collections.abc import Mapping
from dataclasses import replace

from dragoman.addons.providers.anthropic import ANTHROPIC
from dragoman.addons.providers.base import Provider, Route
from dragoman.addons.providers.google import GOOGLE
from dragoman.addons.providers.openai_chat import OPENAI_CHAT
from dragoman.addons.providers.openai_responses import OPENAI_RESPONSES

PROVIDERS: tuple[Provider, ...] = (ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, GOOGLE)


def find_provider(
    *, host: str | None, method: str, path: str, headers: Mapping[str, str], query: str = ""
) -> tuple[Provider, Route] | None:
    """The dialect and the route of a request; ``None``: not one of ours.

    ``host`` is the provider host that the harness believes to talk to (proxy mode); ``None``: base-URL mode, where the
    path decides. ``path`` has no query; ``query`` goes into the route. ``headers`` must be readable by lower-case
    names; they decide only for paths that several dialects have (``/v1/models``).
    """
    matches = []
    for provider in PROVIDERS:
        if (host is None or host.lower() in provider.hosts) and (route := provider.route(method, path)) is not None:
            matches.append((provider, replace(route, query=query)))
    if len(matches) < 2:
        return matches[0] if matches else None
    wanted = _dialect_of(headers)
    for provider, route in matches:
        if provider is wanted:
            return provider, route
    return matches[0]


def _dialect_of(headers: Mapping[str, str]) -> Provider:
    """Whose client sends such headers; OpenAI's where nothing tells, since its clients send none of their own."""
    if "x-goog-api-client" in headers or "x-goog-api-key" in headers:  # keys do not come past the proxy
        return GOOGLE
    if "anthropic-version" in headers or "x-api-key" in headers:
        return ANTHROPIC
    return OPENAI_CHAT


def provider_for_host(host: str) -> Provider | None:
    """The first dialect that this provider host speaks; ``None``: it is no provider."""
    return next((provider for provider in PROVIDERS if host.lower() in provider.hosts), None)


def provider_for_path(path: str) -> Provider:
    """The dialect in which to shape an error about a path that is no route: a best guess."""
    if path.startswith("/v1/messages") or (path.startswith("/api/") and not path.startswith("/api/v1/")):
        return ANTHROPIC
    if path.startswith("/v1beta/"):
        return GOOGLE
    return OPENAI_CHAT
