"""How each harness is configured: what its arguments, variables and files say for what is asked."""

import base64
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout import setups
from dragoman.rollout.setups import Ask, Mode, Setup

HOME = Path("/runs/7/home")
BASE = "http://127.0.0.1:8080"


def _ask(mode: Mode, variant: str = "", **changes: Any) -> Ask:
    ask = Ask(
        mode=mode,
        variant=variant,
        base_url=BASE,
        key="the-key",
        home=HOME,
        prompt="- do @this",
        model=None,
        max_turns=None,
        max_reply_tokens=100,
        context_tokens=8192,
    )
    return replace(ask, **changes)


def _json(setup: Setup, name: str) -> Any:
    return json.loads(dict(setup.files)[HOME / name])


def _toml(setup: Setup) -> dict[str, Any]:
    return tomllib.loads(dict(setup.files)[HOME / ".codex/config.toml"])


@pytest.mark.parametrize(
    ("variant", "provider", "model", "variable"),
    [
        ("anthropic", "anthropic", "claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("chat", "openrouter", "qwen/qwen3-coder", "OPENROUTER_API_KEY"),
        ("responses", "openai", "gpt-5.2", "OPENAI_API_KEY"),
        ("gemini", "google", "gemini-2.5-pro", "GEMINI_API_KEY"),
    ],
)
def test_pi_by_proxy_uses_its_own_provider(variant: str, provider: str, model: str, variable: str) -> None:
    setup = setups.pi(_ask("proxy", variant))

    assert setup.arguments == ("-p", "--provider", provider, "--model", model)
    assert setup.env[variable] == "the-key"
    assert [path.name for path, _ in setup.files] == ["settings.json"]
    assert setup.env["PI_OFFLINE"] == "1"
    assert setups.pi(_ask("proxy", variant, model="other")).arguments[-1] == "other"


@pytest.mark.parametrize(
    ("variant", "api", "path"),
    [
        ("anthropic", "anthropic-messages", ""),
        ("chat", "openai-completions", "/v1"),
        ("responses", "openai-responses", "/v1"),
        ("gemini", "google-generative-ai", "/v1beta"),
    ],
)
def test_pi_by_base_url_has_a_provider_of_ours(variant: str, api: str, path: str) -> None:
    setup = setups.pi(_ask("base-url", variant, model="small"))

    assert setup.arguments == ("-p", "--provider", "dragoman", "--model", "small")
    assert _json(setup, ".pi/agent/models.json") == {
        "providers": {
            "dragoman": {
                "baseUrl": f"{BASE}{path}",
                "api": api,
                "apiKey": "the-key",
                "models": [{"id": "small", "contextWindow": 8192, "maxTokens": 100}],
            }
        }
    }
    assert not any(name.endswith("_API_KEY") for name in setup.env)


def test_claude_by_proxy_calls_its_own_host() -> None:
    setup = setups.claude(_ask("proxy", max_turns=3))

    assert setup.arguments == ("-p", "--dangerously-skip-permissions", "--max-turns", "3")
    assert "ANTHROPIC_BASE_URL" not in setup.env
    assert setup.unattended["IS_SANDBOX"] == "1"
    assert setup.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "100"
    assert setup.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"


def test_claude_by_base_url_calls_the_gateway() -> None:
    setup = setups.claude(_ask("base-url", model="claude-x"))

    assert setup.arguments[-2:] == ("--model", "claude-x")
    assert setup.env["ANTHROPIC_BASE_URL"] == BASE
    assert setup.env["ANTHROPIC_API_KEY"] == "the-key"


@pytest.mark.parametrize(("mode", "address"), [("base-url", f"{BASE}/v1"), ("proxy", "https://api.openai.com/v1")])
def test_codex_with_a_provider_of_ours(mode: Mode, address: str) -> None:
    config = _toml(setups.codex(_ask(mode, "custom")))

    assert config["model_provider"] == "dragoman"
    assert config["model_providers"]["dragoman"] == {
        "name": "dragoman",
        "base_url": address,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    assert (config["model"], config["model_context_window"]) == ("policy", 8192)


def test_codex_with_its_own_provider() -> None:
    by_proxy = _toml(setups.codex(_ask("proxy", "builtin")))
    by_address = _toml(setups.codex(_ask("base-url", "builtin", model='a"b')))

    assert by_address.pop("openai_base_url") == f"{BASE}/v1"
    assert by_address.pop("model") == 'a"b'
    assert by_proxy == by_address
    assert "model_provider" not in by_proxy
    assert by_proxy["check_for_update_on_startup"] is False
    assert by_proxy["analytics"] == {"enabled": False}


def test_codex_with_a_login_that_never_was() -> None:
    by_proxy = setups.codex(_ask("proxy", "chatgpt"))
    by_address = setups.codex(_ask("base-url", "chatgpt"))
    assert "openai_base_url" not in _toml(by_proxy)
    # The login's token stands where a key would, so the path has to name the episode.
    assert re.fullmatch(r"http://[^/]+/e/[^/]+/backend-api/codex", _toml(by_address)["openai_base_url"])
    assert "dgm_" not in _toml(by_address)["openai_base_url"]
    for setup in (by_proxy, by_address):
        login = json.loads(dict(setup.files)[HOME / ".codex/auth.json"])
        head, claims, _ = login["tokens"]["access_token"].split(".")
        assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "none"}
        account = json.loads(base64.urlsafe_b64decode(claims + "=="))["https://api.openai.com/auth"]
        assert account["chatgpt_account_id"] == login["tokens"]["account_id"]
        assert not {"OPENAI_API_KEY", "CODEX_API_KEY"} & setup.env.keys()


def test_codex_reads_the_prompt_and_asks_nothing() -> None:
    setup = setups.codex(_ask("proxy", "custom"))

    assert setup.arguments[0] == "exec"
    assert setup.arguments[-1] == "-"
    assert "--dangerously-bypass-approvals-and-sandbox" in setup.arguments


def test_gemini() -> None:
    by_address = setups.gemini(_ask("base-url", model="gemini-x", max_turns=5))
    by_proxy = setups.gemini(_ask("proxy"))

    key = {"GEMINI_API_KEY": "the-key", "GEMINI_CLI_HOME": str(HOME)}
    assert by_address.env == key | {"GOOGLE_GEMINI_BASE_URL": BASE}
    assert by_address.arguments == ("--yolo", "--skip-trust", "-m", "gemini-x")
    settings = _json(by_address, ".gemini/settings.json")
    assert settings["model"] == {"maxSessionTurns": 5}
    # Without it the run ends with 41 in base-URL mode.
    assert settings["security"] == {"auth": {"selectedType": "gemini-api-key"}}
    assert settings["privacy"] == {"usageStatisticsEnabled": False}
    assert by_proxy.env == key
    assert by_proxy.arguments == ("--yolo", "--skip-trust")


def test_qwen() -> None:
    by_address = setups.qwen(_ask("base-url", model="small", max_turns=5))
    by_proxy = setups.qwen(_ask("proxy"))

    assert by_address.env == {
        "OPENAI_API_KEY": "the-key",
        "OPENAI_MODEL": "small",
        "OPENAI_BASE_URL": f"{BASE}/v1",
        "QWEN_HOME": str(HOME / ".qwen"),
    }
    assert by_address.arguments == ("--yolo", "--max-session-turns", "5")
    assert by_proxy.env["OPENAI_BASE_URL"] == "https://api.openai.com/v1"
    assert _json(by_proxy, ".qwen/settings.json")["privacy"] == {"usageStatisticsEnabled": False}


@pytest.mark.parametrize(
    ("mode", "variant", "model"),
    [
        ("base-url", "chat", "dragoman/policy"),
        ("base-url", "anthropic", "anthropic/claude-sonnet-4-5"),
        ("base-url", "responses", "openai/gpt-5.2"),
        ("proxy", "chat", "openrouter/qwen/qwen3-coder"),
        ("proxy", "anthropic", "anthropic/claude-sonnet-4-5"),
        ("proxy", "responses", "openai/gpt-5.2"),
    ],
)
def test_opencode(mode: Mode, variant: str, model: str) -> None:
    setup = setups.opencode(_ask(mode, variant))

    assert setup.arguments == ("run", "--auto", "-m", model)
    config = _json(setup, ".config/opencode/opencode.json")
    provider, _, name = model.partition("/")
    settings = config["provider"][provider]
    assert settings["models"] == {name: {"limit": {"context": 8192, "output": 100}}}
    assert settings["options"]["apiKey"] == "the-key"
    assert settings["options"].get("baseURL") == (f"{BASE}/v1" if mode == "base-url" else None)
    assert settings.get("npm") == ("@ai-sdk/openai-compatible" if provider == "dragoman" else None)
    assert (config["autoupdate"], config["share"]) == (False, "disabled")


def test_mini() -> None:
    by_address = setups.mini(_ask("base-url", max_turns=7))
    by_proxy = setups.mini(_ask("proxy"))

    assert by_address.env["OPENAI_API_BASE"] == by_address.env["OPENAI_BASE_URL"] == f"{BASE}/v1"
    assert by_address.arguments[:4] == ("-y", "--exit-immediately", "-m", "openai/policy")
    assert "--task=- do @this" in by_address.arguments
    assert by_address.arguments[-2:] == ("-c", "agent.step_limit=7")
    assert "OPENAI_API_BASE" not in by_proxy.env
    assert "openai/gpt-4.1-mini" in by_proxy.arguments
    assert by_proxy.env["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


def test_aider() -> None:
    by_address = setups.aider(_ask("base-url", model="small"))
    by_proxy = setups.aider(_ask("proxy"))

    assert by_address.env["OPENAI_API_BASE"] == f"{BASE}/v1"
    assert by_address.arguments[:2] == ("--model", "openai/small")
    assert _json(by_address, ".aider/models.json") == {
        "openai/small": {"max_input_tokens": 8192, "max_tokens": 100, "max_output_tokens": 100}
    }
    assert {"--no-check-update", "--analytics-disable", "--yes-always"} <= set(by_address.arguments)
    assert "OPENAI_API_BASE" not in by_proxy.env
    assert by_proxy.arguments[:2] == ("--model", "openai/gpt-4.1-mini")
