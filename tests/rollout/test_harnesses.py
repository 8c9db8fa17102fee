"""How each harness is pointed at the gateway: the whole launch, from its inputs alone."""

import json
from pathlib import Path

import pytest

from dragoman.certs.trust import trust_environment
from dragoman.rollout.harnesses import HARNESSES, Launch, Mode, find_harness, launch

HOME = Path("/runs/7/home")
CERTS = Path("/state/certs")


def _launch(
    name: str,
    mode: Mode,
    *,
    gateway: str = "http://127.0.0.1:8080",
    model: str | None = None,
    max_turns: int | None = None,
    max_reply_tokens: int = 4096,
) -> Launch:
    return launch(
        find_harness(name),
        installed=Path("/cache/it"),
        mode=mode,
        gateway=gateway,
        token="t0k",
        prompt="- do @this",
        home=HOME,
        workdir=Path("/runs/7/work"),
        certs=CERTS,
        model=model,
        max_turns=max_turns,
        max_reply_tokens=max_reply_tokens,
        context_tokens=8192,
    )


BOTH = pytest.mark.parametrize("mode", ["proxy", "base-url"])
EACH = pytest.mark.parametrize("name", [harness.name for harness in HARNESSES])


@BOTH
@EACH
def test_the_gateway_is_the_only_way_out_and_is_trusted(name: str, mode: Mode) -> None:
    env = _launch(name, mode).env

    for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        assert env[variable] == "http://t0k:x@127.0.0.1:8080"
    assert env["NO_PROXY"] == env["no_proxy"] == "localhost,127.0.0.1,::1"
    assert trust_environment(CERTS).items() <= env.items()


@BOTH
@EACH
def test_the_run_is_private_and_plain(name: str, mode: Mode) -> None:
    result = _launch(name, mode)

    assert result.env["HOME"] == str(HOME)
    assert result.env["PATH"].startswith("/cache/it/bin:")
    assert (result.env["TERM"], result.env["LANG"]) == ("dumb", "C.UTF-8")
    assert result.cwd == Path("/runs/7/work")
    assert result.command[0] == f"/cache/it/bin/{name}"
    assert all(path.is_relative_to(HOME) for path, _ in result.files)


@BOTH
@EACH
def test_a_prompt_is_never_read_as_an_option_or_a_file(name: str, mode: Mode) -> None:
    result = _launch(name, mode)

    assert result.stdin == "- do @this"
    assert not any("do @this" in part for part in result.command)


@EACH
def test_the_token_is_a_key_in_base_url_mode_only(name: str) -> None:
    def whole(mode: Mode) -> str:
        result = _launch(name, mode)
        return json.dumps([result.env, [content for _, content in result.files]])

    assert "dgm_t0k" in whole("base-url")
    assert "dgm_t0k" not in whole("proxy")
    assert "sk-ant-fake" in whole("proxy")


def test_pi_by_proxy_uses_its_own_provider() -> None:
    result = _launch("pi", "proxy")

    assert result.command[1:] == ("-p", "--provider", "anthropic", "--model", "claude-sonnet-4-5")
    assert [path.name for path, _ in result.files] == ["settings.json"]
    assert result.env["PI_OFFLINE"] == "1"


def test_pi_by_base_url_has_a_provider_of_ours() -> None:
    result = _launch("pi", "base-url", model="small", max_reply_tokens=100)

    assert result.command[1:] == ("-p", "--provider", "dragoman", "--model", "small")
    models = dict(result.files)[HOME / ".pi/agent/models.json"]
    assert json.loads(models) == {
        "providers": {
            "dragoman": {
                "baseUrl": "http://127.0.0.1:8080/v1",
                "api": "openai-completions",
                "apiKey": "dgm_t0k",
                "models": [{"id": "small", "contextWindow": 8192, "maxTokens": 100}],
            }
        }
    }
    assert "ANTHROPIC_API_KEY" not in result.env


def test_claude_by_proxy_calls_its_own_host() -> None:
    result = _launch("claude", "proxy", max_turns=3, max_reply_tokens=64)

    assert result.command[1:] == ("-p", "--dangerously-skip-permissions", "--max-turns", "3")
    assert "ANTHROPIC_BASE_URL" not in result.env
    assert result.env["IS_SANDBOX"] == "1"
    assert result.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "64"
    assert result.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"


def test_claude_by_base_url_calls_the_gateway() -> None:
    result = _launch("claude", "base-url", model="claude-x")

    assert result.command[-2:] == ("--model", "claude-x")
    assert result.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    assert result.env["ANTHROPIC_API_KEY"] == "dgm_t0k"


def test_a_gateway_on_another_machine_is_called_without_the_proxy_in_base_url_mode() -> None:
    base = _launch("claude", "base-url", gateway="http://gpu-box:9000/")
    proxy = _launch("claude", "proxy", gateway="http://gpu-box:9000/")

    assert base.env["ANTHROPIC_BASE_URL"] == "http://gpu-box:9000"
    assert base.env["NO_PROXY"] == "localhost,127.0.0.1,::1,gpu-box"
    assert proxy.env["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert proxy.env["HTTPS_PROXY"] == "http://t0k:x@gpu-box:9000"


@pytest.mark.parametrize("gateway", ["127.0.0.1:8080", "http://gpu-box", "ftp://host:1", "http://host:port", ""])
def test_an_address_that_is_none_is_refused(gateway: str) -> None:
    with pytest.raises(ValueError, match="is not of the form http://host:port"):
        _launch("claude", "proxy", gateway=gateway)


def test_a_limit_that_pi_cannot_keep_is_refused() -> None:
    with pytest.raises(ValueError, match="pi cannot limit its turns"):
        _launch("pi", "proxy", max_turns=3)


def test_an_unknown_harness_is_told_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no harness 'pip'; there are: pi, claude"):
        find_harness("pip")


def test_versions_are_exact() -> None:
    assert all(harness.version.replace(".", "").isdigit() for harness in HARNESSES)
