"""``providers/__init__.py``: which dialect a request is in."""

from typing import get_args

import pytest

from dragoman.addons.errors import DragomanError, ErrorCode, Overloaded
from dragoman.addons.providers import PROVIDERS, find_provider, provider_for_host, provider_for_path
from dragoman.addons.providers.base import Provider, Route

CHAT = Route("generate", variant="chat")


@pytest.mark.parametrize(
    ("host", "method", "path", "headers", "name", "route"),
    [
        (None, "POST", "/v1/messages", {}, "anthropic", Route("generate")),
        (None, "POST", "/v1/messages/count_tokens", {}, "anthropic", Route("count_tokens")),
        (None, "POST", "/v1/chat/completions", {}, "openai_chat", CHAT),
        (None, "POST", "/v1/chat/completions", {"x-api-key": "k"}, "openai_chat", CHAT),
        (None, "POST", "/api/v1/chat/completions", {}, "openai_chat", CHAT),
        (None, "POST", "/v1/completions", {}, "openai_chat", Route("generate", variant="completions")),
        (None, "POST", "/v1/responses", {}, "openai_responses", Route("generate")),
        (None, "GET", "/v1/models", {}, "openai_chat", Route("models")),
        (None, "GET", "/v1/models", {"authorization": "Bearer k"}, "openai_chat", Route("models")),
        (None, "GET", "/v1/models", {"anthropic-version": "2023-06-01"}, "anthropic", Route("models")),
        (None, "GET", "/v1/models/a%2Fb", {"x-api-key": "k"}, "anthropic", Route("model", model="a/b")),
        (None, "GET", "/v1/models/a/b", {}, "openai_chat", Route("model", model="a/b")),
        (None, "GET", "/v1/models", {"x-goog-api-key": "k"}, "google", Route("models")),
        (None, "GET", "/v1/models", {"x-goog-api-client": "google-genai-sdk/3.6.1"}, "google", Route("models")),
        (None, "GET", "/v1/models/a%2Fb", {"x-goog-api-key": "k"}, "google", Route("model", model="a/b")),
        (None, "GET", "/v1beta/models", {}, "google", Route("models")),
        (None, "POST", "/v1/models/m:countTokens", {}, "google", Route("count_tokens", model="m", stream=False)),
        ("generativelanguage.googleapis.com", "GET", "/v1/models", {}, "google", Route("models")),
        ("api.anthropic.com", "POST", "/v1/messages", {}, "anthropic", Route("generate")),
        ("api.anthropic.com", "GET", "/v1/models", {}, "anthropic", Route("models")),
        ("API.openai.com", "POST", "/v1/chat/completions", {}, "openai_chat", CHAT),
        ("openrouter.ai", "POST", "/api/v1/chat/completions", {}, "openai_chat", CHAT),
        ("openrouter.ai", "POST", "/api/v1/responses", {}, "openai_responses", Route("generate")),
        ("chatgpt.com", "POST", "/backend-api/codex/responses", {}, "openai_responses", Route("generate")),
        ("openrouter.ai", "GET", "/api/v1/models", {}, "openai_chat", Route("models")),
    ],
)
def test_found(host: str | None, method: str, path: str, headers: dict[str, str], name: str, route: Route) -> None:
    found = find_provider(host=host, method=method, path=path, headers=headers)
    assert found is not None
    assert (found[0].name, found[1]) == (name, route)


@pytest.mark.parametrize(
    ("host", "method", "path"),
    [
        (None, "GET", "/v1/messages"),
        (None, "POST", "/v1/models"),
        (None, "GET", "/v1/chat/completions"),
        (None, "GET", "/v1/responses"),
        (None, "POST", "/chat/completions"),
        (None, "POST", "/v1/messages/batches"),
        (None, "POST", "/v1/embeddings"),
        (None, "GET", "/v1/models/"),
        ("api.anthropic.com", "POST", "/v1/chat/completions"),
        ("api.openai.com", "POST", "/v1/messages"),
        ("example.com", "POST", "/v1/messages"),
        (None, "POST", "/v1beta/models/m:embedContent"),
    ],
)
def test_not_found(host: str | None, method: str, path: str) -> None:
    assert find_provider(host=host, method=method, path=path, headers={}) is None


def test_hosts() -> None:
    names = {
        host: provider.name if (provider := provider_for_host(host)) else None
        for host in ("api.anthropic.com", "Api.OpenAI.com", "openrouter.ai", "example.com")
    }
    assert names == {
        "api.anthropic.com": "anthropic",
        "Api.OpenAI.com": "openai_chat",
        "openrouter.ai": "openai_chat",
        "example.com": None,
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/messages/batches", "anthropic"),
        ("/api/claude_code/new", "anthropic"),
        ("/api/v1/generation", "openai_chat"),
        ("/v1/embeddings", "openai_chat"),
        ("/v1beta/files", "google"),
        ("/", "openai_chat"),
    ],
)
def test_best_guess_for_an_unknown_path(path: str, name: str) -> None:
    assert provider_for_path(path).name == name


@pytest.mark.parametrize("code", get_args(ErrorCode))
@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_every_error_has_a_shape(provider: Provider, code: ErrorCode) -> None:
    error = DragomanError("what was wrong", field="a")
    error.code = code
    body = provider.error_body(error, "0123456789abcdefghij")
    assert body["error"]["message"].endswith("what was wrong")
    assert body["error"].get("type") or body["error"].get("status")
    assert provider.error_status(error) >= 400


def test_overloaded_has_each_dialects_own_status() -> None:
    statuses = {provider.name: provider.error_status(Overloaded("later")) for provider in PROVIDERS}
    assert statuses["anthropic"] == 529
    assert statuses["openai_chat"] == statuses["openai_responses"] == 503
