import base64

import pytest

from dragoman.addons.errors import Unauthorized
from dragoman.addons.identity import (
    EpisodeCache,
    check_usable,
    environments,
    hash_token,
    message_headers,
    new_id,
    new_token,
    read_credentials,
    read_harness,
    read_proxy_user,
)
from dragoman.store.records import EpisodeInfo, EpisodeSpec

TOKEN = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:x".encode()).decode()


def test_ids_and_tokens_are_random_and_of_their_alphabet() -> None:
    assert len({new_token() for _ in range(50)}) == 50
    assert len(new_id(20)) == 20
    assert new_id(20).isalnum()


@pytest.mark.parametrize(
    ("headers", "path", "query", "proxy_user"),
    [
        ({"authorization": f"Bearer dgm_{TOKEN}"}, "/v1/messages", "", None),
        ({"x-api-key": f"dgm_{TOKEN}"}, "/v1/messages", "", None),
        ({"x-goog-api-key": f"dgm_{TOKEN}"}, "/v1/messages", "", None),
        ({}, "/v1/messages", f"key=dgm_{TOKEN}", None),
        ({}, f"/e/{TOKEN}/v1/messages", "", None),
        ({}, "/v1/messages", "", TOKEN),
        ({}, "/v1/messages", "", f"dgm_{TOKEN}"),
        ({"x-api-key": "sk-ant-real"}, "/v1/messages", "", TOKEN),
        ({"x-api-key": f"dgm_{TOKEN}"}, f"/e/{TOKEN}/v1/messages", "", TOKEN),
    ],
)
def test_one_token_is_found_wherever_it_is_and_taken_off(
    headers: dict[str, str], path: str, query: str, proxy_user: str | None
) -> None:
    credentials, rest, rest_query = read_credentials(headers, path, query, proxy_user)
    assert credentials.token() == TOKEN
    assert (rest, rest_query) == ("/v1/messages", "")


@pytest.mark.parametrize(
    ("headers", "path", "proxy_user"),
    [
        ({"x-api-key": f"dgm_{OTHER}"}, "/v1/messages", TOKEN),
        ({"x-api-key": f"dgm_{OTHER}", "authorization": f"Bearer dgm_{TOKEN}"}, "/v1/messages", None),
        ({"x-api-key": f"dgm_{OTHER}"}, f"/e/{TOKEN}/v1/messages", None),
        ({"x-api-key": f"dgm_{TOKEN}"}, "/v1/messages", "somebody"),
        ({"x-api-key": "dgm_rubbish"}, f"/e/{TOKEN}/v1/messages", None),
        ({}, f"/e/{TOKEN}/e/{OTHER}/v1/messages", None),
    ],
)
def test_credentials_that_disagree_are_refused(headers: dict[str, str], path: str, proxy_user: str | None) -> None:
    credentials, _, _ = read_credentials(headers, path, "", proxy_user)
    with pytest.raises(Unauthorized, match="different episodes"):
        credentials.token()


def test_a_foreign_key_alone_is_no_token() -> None:
    credentials, _, _ = read_credentials({"authorization": "Bearer sk-real", "x-api-key": "sk-ant"}, "/v1", "", None)
    assert credentials.token() is None
    assert credentials.foreign


def test_the_operator_key_is_not_a_token() -> None:
    credentials, _, _ = read_credentials({"authorization": "Bearer dgo_abc"}, "/dragoman/episodes", "", None)
    assert credentials.operator == "dgo_abc"
    assert credentials.token() is None


def test_a_rubbish_token_is_not_kept_in_clear() -> None:
    credentials, _, _ = read_credentials({}, "/e/secret-thing/v1/messages", "", None)
    assert "secret-thing" not in str(credentials)
    assert credentials.token() is not None


def test_other_query_parameters_stay() -> None:
    _, _, query = read_credentials({}, "/v1", f"beta=true&key=dgm_{TOKEN}&alt=sse", None)
    assert query == "beta=true&alt=sse"


@pytest.mark.parametrize("header", [None, "", "Bearer x", "Basic", "Basic ????", "Basic /w=="])
def test_unreadable_proxy_credentials_are_none(header: str | None) -> None:
    assert read_proxy_user(header) is None


def test_proxy_user_is_read() -> None:
    assert read_proxy_user(basic(TOKEN)) == TOKEN


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            {"user-agent": "claude-cli/2.1.332 (external, sdk-cli)", "x-claude-code-session-id": "s1"},
            ("claude", "2.1.332", "s1", "main"),
        ),
        (
            {"user-agent": "claude-cli/2.1.332", "x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1"},
            ("claude", "2.1.332", "a1", "subagent"),
        ),
        (
            {"user-agent": "claude-cli/2.1.332", "x-claude-code-request-class": "auxiliary"},
            ("claude", "2.1.332", None, "side"),
        ),
        ({"user-agent": "pi/1.6.0 (linux; node/v24.21.0; x64)"}, ("pi", "1.6.0", None, "main")),
        ({"x-claude-1p-request-class": "summary-extraction"}, (None, None, None, "compaction")),
        ({"x-codex-turn-metadata": '{"turn_id": "1", "request_kind": "compaction"}'}, (None, None, None, "compaction")),
        ({"x-codex-turn-metadata": '{"request_kind":"turn"}'}, (None, None, None, "main")),
        ({"user-agent": "GeminiCLI-tui/0.61.0/gemini-3.1-pro (linux; x64)"}, ("gemini", "0.61.0", None, "main")),
        ({"user-agent": "codex_exec/0.171.0 (Debian)"}, ("codex", "0.171.0", None, "main")),
        ({"user-agent": "QwenCode/0.24.4 (linux; x64)"}, ("qwen", "0.24.4", None, "main")),
        ({"user-agent": "pi"}, ("pi", None, None, "main")),
        ({"user-agent": "curl/8"}, (None, None, None, "main")),
        ({}, (None, None, None, "main")),
    ],
)
def test_harness_headers(headers: dict[str, str], expected: tuple[str | None, ...]) -> None:
    harness = read_harness(headers)
    assert (harness.name, harness.version, harness.thread, harness.kind) == expected


def episode(**changes: float | None) -> EpisodeInfo:
    values = {"opened_at": 0.0, "expires_at": 100.0, "ended_at": None} | changes
    return EpisodeInfo("e1", EpisodeSpec(), end=None, end_reason=None, reward=None, **values)  # type: ignore[arg-type]


def test_the_cache_asks_once_and_forgets() -> None:
    asked: list[str] = []

    def lookup(digest: str) -> EpisodeInfo | None:
        asked.append(digest)
        return episode() if digest == hash_token(TOKEN) else None

    cache = EpisodeCache(lookup)
    assert cache.peek(TOKEN) is None
    assert cache.fetch(TOKEN).id == "e1"
    assert cache.peek(TOKEN) is not None
    assert asked == [hash_token(TOKEN)]
    with pytest.raises(Unauthorized):
        cache.fetch(OTHER)
    cache.forget("e1")
    assert cache.peek(TOKEN) is None


def test_a_stale_entry_is_not_used() -> None:
    cache = EpisodeCache(lambda _: episode(), lifetime=-1)
    cache.fetch(TOKEN)
    assert cache.peek(TOKEN) is None


@pytest.mark.parametrize(("changes", "now"), [({"ended_at": 5.0}, 6.0), ({}, 100.0)])
def test_ended_and_expired_episodes_are_unusable(changes: dict[str, float], now: float) -> None:
    with pytest.raises(Unauthorized):
        check_usable(episode(**changes), now)
    check_usable(episode(), 99.0)


def test_environments_point_at_the_gateway() -> None:
    made = environments("http://127.0.0.1:8080", TOKEN, {"SSL_CERT_FILE": "/ca"})
    assert made["proxy"]["HTTPS_PROXY"] == f"http://{TOKEN}:x@127.0.0.1:8080"
    assert made["proxy"]["SSL_CERT_FILE"] == "/ca"
    assert made["base_url"]["ANTHROPIC_API_KEY"] == f"dgm_{TOKEN}"


def test_a_sockets_message_has_the_headers_of_a_request_of_its_own() -> None:
    handshake = {"user-agent": "codex_exec/0.171.0", "thread-id": "t0", "x-codex-turn-metadata": "prewarm"}
    metadata = {
        "thread_id": "t1",
        "session_id": "s1",
        "x-codex-parent-thread-id": "t0",
        "X-OpenAI-Subagent": "collab_spawn",
        "authorization": "Bearer dgm_x",
        "turn_id": "u",
        "x-codex-window-id": 1,
    }
    assert message_headers(handshake, metadata) == {
        "user-agent": "codex_exec/0.171.0",
        "thread-id": "t1",
        "session-id": "s1",
        "x-codex-parent-thread-id": "t0",
        "x-openai-subagent": "collab_spawn",
    }
    assert read_harness(message_headers(handshake, metadata)).kind == "subagent"


@pytest.mark.parametrize("metadata", [None, [], "x", {1: "x"}])
def test_a_message_without_readable_metadata_is_as_the_handshake_was(metadata: object) -> None:
    assert message_headers({"thread-id": "t0", "x-codex-turn-metadata": "m"}, metadata) == {"thread-id": "t0"}
