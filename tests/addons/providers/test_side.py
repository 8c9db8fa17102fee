import json

import pytest

from dragoman.addons.providers import find_provider
from dragoman.addons.providers.side import find_side_answer

CLAUDE = "api.anthropic.com"


@pytest.mark.parametrize(
    ("host", "method", "path", "status"),
    [
        (None, "HEAD", "/api/hello", 200),
        (CLAUDE, "HEAD", "/api/hello", 200),
        (None, "HEAD", "/", 200),
        (CLAUDE, "GET", "/api/claude_code/settings", 404),
        (CLAUDE, "GET", "/api/claude_code/policy_limits", 404),
        (CLAUDE, "GET", "/api/claude_code/organizations/metrics_enabled", 404),
        (CLAUDE, "GET", "/api/claude_cli/bootstrap", 404),
        (CLAUDE, "GET", "/api/claude_code_penguin_mode", 404),
        (CLAUDE, "GET", "/api/directory/server-urls", 404),
        (CLAUDE, "POST", "/api/eval/sdk-zAZezfDKGoZuXXKe", 404),
        (CLAUDE, "POST", "/api/event_logging/v2/batch", 200),
        (None, "POST", "/api/event_logging/v2/batch", 200),
        ("chatgpt.com", "GET", "/backend-api/codex/models", 200),
        ("chatgpt.com", "GET", "/backend-api/wham/accounts/check", 404),
        ("chatgpt.com", "GET", "/backend-api/wham/settings/user", 404),
        ("chatgpt.com", "GET", "/backend-api/plugins/export/curated", 404),
        ("chatgpt.com", "POST", "/backend-api/ps/mcp", 404),
        ("downloads.claude.ai", "GET", "/claude-code-releases/latest", 404),
        ("models.opencode.ai", "GET", "/api.json", 404),
        ("raw.githubusercontent.com", "GET", "/BerriAI/litellm/main/prices.json", 404),
        ("x-default.rum.aliyuncs.com", "POST", "/", 404),
        ("play.googleapis.com", "POST", "/log", 404),
        ("AB.chatgpt.com", "POST", "/otlp/v1/metrics", 404),
    ],
)
def test_known(host: str | None, method: str, path: str, status: int) -> None:
    answer = find_side_answer(host, method, path)
    assert answer is not None
    assert answer.status == status
    assert find_provider(host=host, method=method, path=path, headers={}) is None


@pytest.mark.parametrize(
    ("host", "method", "path"),
    [
        (None, "GET", "/api/hello"),
        (None, "HEAD", "/api/hello2"),
        (None, "POST", "/v1/messages"),
        ("api.openai.com", "POST", "/api/event_logging/v2/batch"),
        ("evil-rum.aliyuncs.com", "POST", "/"),
        ("play.googleapis.com", "GET", "/other"),
        (None, "GET", "/log"),
        (None, "GET", "/backend-api/codex/models2"),
        ("chatgpt.com", "POST", "/backend-api/codex/responses"),
    ],
)
def test_unknown(host: str | None, method: str, path: str) -> None:
    assert find_side_answer(host, method, path) is None


def test_a_chatgpt_login_finds_its_own_account() -> None:
    answer = find_side_answer("chatgpt.com", "GET", "/backend-api/wham/accounts/check", 'acc-"1')

    assert answer is not None
    said = json.loads(answer.body)
    assert (answer.status, said["default_account_id"], said["account_ordering"]) == (200, 'acc-"1', ['acc-"1'])
    assert [account["id"] for account in said["accounts"]] == ['acc-"1']


def test_codex_is_told_of_no_models() -> None:
    answer = find_side_answer("chatgpt.com", "GET", "/backend-api/codex/models")

    assert answer is not None
    assert json.loads(answer.body) == {"models": []}
