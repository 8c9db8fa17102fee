"""How each harness is told where its model is: arguments, variables and configuration files. Pure.

Rules of this module: one function a harness, named like it. In ``base-url`` mode the harness calls the gateway itself,
with ``dgm_<token>`` as its key; in ``proxy`` mode it calls its own provider's host, with a key that is worth nothing.
Telemetry, update checks and downloads are off where the harness has a switch. Nothing changes what it asks of the
model. Every file lies in ``Ask.home``, and where a variable names it to the harness that variable is set, so that the
files hold in a person's own shell, too, whose HOME is another.
"""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Ask", "Mode", "Setup", "aider", "claude", "codex", "command", "gemini", "mini", "opencode", "pi", "qwen"]

Mode = Literal["proxy", "base-url"]

OPENAI = "https://api.openai.com/v1"
ACCOUNT = "account-fake"
FAR_FUTURE = 4102444800
"""Unix seconds of the year 2100."""
OWN_NAME = "policy"
"""The model's name where the harness lets us choose one; the gateway answers to any."""


@dataclass(frozen=True)
class Ask:
    """What a harness is to be set up for."""

    mode: Mode
    variant: str
    """One of the variants of the harness's table entry; empty where it has none."""
    base_url: str
    """``http://host:port`` of the gateway, no path."""
    key: str
    """The API key for the harness: ``dgm_<token>`` in base-URL mode, a worthless one in proxy mode."""
    home: Path
    prompt: str
    model: str | None
    """None: the harness's own choice, or ``OWN_NAME`` where it has none."""
    max_turns: int | None
    max_reply_tokens: int
    context_tokens: int


@dataclass(frozen=True)
class Setup:
    arguments: tuple[str, ...]
    """After the program's name, for a run on one prompt that nobody watches."""
    env: dict[str, str]
    files: tuple[tuple[Path, str], ...] = ()
    prompt_to: Literal["stdin", "argument"] | Path = "stdin"
    """``argument``: it is in ``arguments``, where it cannot be taken for an option. A path: the file that
    ``arguments`` name for it."""
    unattended: dict[str, str] = field(default_factory=dict)
    """Variables beside ``env`` for a run that nobody watches."""
    by_hand: tuple[str, ...] = ()
    """Arguments that a person types after the program's name, so that it asks the right model."""


def pi(ask: Ask) -> Setup:
    folder = ask.home / ".pi" / "agent"
    # Its own default of 3 tries again costs 14 s when the gateway refuses for good.
    files = [(folder / "settings.json", json.dumps({"retry": {"maxRetries": 1}}))]
    env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1", "PI_CODING_AGENT_DIR": str(folder)}
    if ask.mode == "proxy":
        provider, model, variable = {
            "anthropic": ("anthropic", "claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
            "chat": ("openrouter", "qwen/qwen3-coder", "OPENROUTER_API_KEY"),
            "responses": ("openai", "gpt-5.2", "OPENAI_API_KEY"),
            "gemini": ("google", "gemini-2.5-pro", "GEMINI_API_KEY"),
        }[ask.variant]
        model = ask.model or model
        env[variable] = ask.key
    else:
        provider, model = "dragoman", ask.model or OWN_NAME
        api, path = {
            "anthropic": ("anthropic-messages", ""),
            "chat": ("openai-completions", "/v1"),
            "responses": ("openai-responses", "/v1"),
            "gemini": ("google-generative-ai", "/v1beta"),
        }[ask.variant]
        entry = {"id": model, "contextWindow": ask.context_tokens, "maxTokens": ask.max_reply_tokens}
        custom = {"baseUrl": f"{ask.base_url}{path}", "api": api, "apiKey": ask.key, "models": [entry]}
        files.append((folder / "models.json", json.dumps({"providers": {provider: custom}})))
    choice = ("--provider", provider, "--model", model)
    return Setup(("-p", *choice), env, tuple(files), by_hand=choice)


def claude(ask: Ask) -> Setup:
    choice = () if ask.model is None else ("--model", ask.model)
    arguments = ["-p", "--dangerously-skip-permissions", *choice]
    if ask.max_turns is not None:
        arguments += ["--max-turns", str(ask.max_turns)]
    env = {
        "ANTHROPIC_API_KEY": ask.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(ask.max_reply_tokens),
    }
    if ask.mode == "base-url":
        env["ANTHROPIC_BASE_URL"] = ask.base_url
    # It refuses to skip permission questions as root without IS_SANDBOX.
    unattended = {"IS_SANDBOX": "1", "CLAUDE_CODE_MAX_RETRIES": "2"}
    return Setup(tuple(arguments), env, unattended=unattended, by_hand=choice)


def codex(ask: Ask) -> Setup:
    """``custom`` is a provider of the configuration file: plain HTTP, plain function tools. ``builtin`` is OpenAI's,
    whose default model has one freeform tool, and which speaks over a WebSocket. ``chatgpt`` is the same with a login
    instead of a key; where its account lives it asks chatgpt.com in either mode, by the proxy, since it takes no other
    address for that but an HTTPS one."""
    address = f"{ask.base_url}/v1" if ask.mode == "base-url" else OPENAI
    settings: list[str] = ["check_for_update_on_startup = false"]
    tables: list[str] = ["[analytics]", "enabled = false", "[otel]", 'metrics_exporter = "none"']
    model = ask.model
    if ask.variant == "custom":
        model = model or OWN_NAME
        settings.append('model_provider = "dragoman"')
        tables += ["[model_providers.dragoman]", 'name = "dragoman"', f"base_url = {_toml(address)}"]
        tables += ['env_key = "OPENAI_API_KEY"', 'wire_api = "responses"']
        settings.append(f"model_context_window = {ask.context_tokens}")
    elif ask.variant == "chatgpt" and ask.mode == "base-url":
        token = ask.key.removeprefix("dgm_")  # its requests carry the login's token as their key
        settings.append(f"openai_base_url = {_toml(f'{ask.base_url}/e/{token}/backend-api/codex')}")
    elif ask.mode == "base-url":
        settings.append(f"openai_base_url = {_toml(address)}")
    if model is not None:
        settings.append(f"model = {_toml(model)}")
    folder = ask.home / ".codex"
    config = (folder / "config.toml", "\n".join([*settings, *tables, ""]))
    arguments = ("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "-")
    env = {"CODEX_HOME": str(folder)}
    if ask.variant == "chatgpt":
        return Setup(arguments, env, (config, (folder / "auth.json", _chatgpt_login())))
    return Setup(arguments, {**env, "OPENAI_API_KEY": ask.key, "CODEX_API_KEY": ask.key}, (config,))


def _chatgpt_login() -> str:
    """Codex's file of a login that never was, and that it does not think of refreshing."""
    of_openai = {"chatgpt_account_id": ACCOUNT, "chatgpt_plan_type": "pro", "chatgpt_user_id": "user-fake"}
    claims = {"exp": FAR_FUTURE, "email": "agent@example.invalid", "https://api.openai.com/auth": of_openai}
    token = ".".join(_base64url(part) for part in (b'{"alg":"none"}', json.dumps(claims).encode(), b"none"))
    tokens = {"id_token": token, "access_token": token, "refresh_token": "fake", "account_id": ACCOUNT}
    login = {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": "2100-01-01T00:00:00Z"}
    return json.dumps(login)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def gemini(ask: Ask) -> Setup:
    choice = () if ask.model is None else ("-m", ask.model)
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    if ask.max_turns is not None:
        settings["model"] = {"maxSessionTurns": ask.max_turns}
    file = ask.home / ".gemini" / "settings.json"
    env = {"GEMINI_API_KEY": ask.key, "GEMINI_CLI_HOME": str(ask.home)}
    if ask.mode == "base-url":
        env["GOOGLE_GEMINI_BASE_URL"] = ask.base_url
    return Setup(("--yolo", "--skip-trust", *choice), env, ((file, json.dumps(settings)),), by_hand=choice)


def qwen(ask: Ask) -> Setup:
    arguments = ["--yolo"]
    if ask.max_turns is not None:
        arguments += ["--max-session-turns", str(ask.max_turns)]
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    env = {
        "OPENAI_API_KEY": ask.key,
        "OPENAI_MODEL": ask.model or OWN_NAME,
        "OPENAI_BASE_URL": f"{ask.base_url}/v1" if ask.mode == "base-url" else OPENAI,
        "QWEN_HOME": str(ask.home / ".qwen"),
    }
    return Setup(tuple(arguments), env, ((ask.home / ".qwen" / "settings.json", json.dumps(settings)),))


def opencode(ask: Ask) -> Setup:
    limit = {"context": ask.context_tokens, "output": ask.max_reply_tokens}
    options: dict[str, str] = {"apiKey": ask.key}
    if ask.variant == "chat" and ask.mode == "base-url":
        name, model = "dragoman", OWN_NAME
    else:
        name, model = {
            "chat": ("openrouter", "qwen/qwen3-coder"),
            "anthropic": ("anthropic", "claude-sonnet-4-5"),
            "responses": ("openai", "gpt-5.2"),
        }[ask.variant]
    model = ask.model or model
    if ask.mode == "base-url":
        options["baseURL"] = f"{ask.base_url}/v1"
    provider: dict[str, Any] = {"options": options, "models": {model: {"limit": limit}}}
    if name == "dragoman":
        provider |= {"npm": "@ai-sdk/openai-compatible", "name": name}
    config = {"autoupdate": False, "share": "disabled", "provider": {name: provider}}
    path = ask.home / ".config" / "opencode" / "opencode.json"
    env = {
        "OPENCODE_CONFIG": str(path),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    choice = ("-m", f"{name}/{model}")
    # Without --auto a tool that wants a path outside the project is refused, and the run ends.
    return Setup(("run", "--auto", *choice), env, ((path, json.dumps(config)),), by_hand=choice)


def mini(ask: Ask) -> Setup:
    model = ask.model or (OWN_NAME if ask.mode == "base-url" else "gpt-4.1-mini")
    # As one argument, so that a task that begins with a dash is no option.
    settings = ["-c", "mini.yaml", "-c", f"model.model_kwargs.max_tokens={ask.max_reply_tokens}"]
    choice = ("-m", f"openai/{model}", *settings)
    arguments = ["-y", "--exit-immediately", "-m", f"openai/{model}", f"--task={ask.prompt}", *settings]
    if ask.max_turns is not None:
        arguments += ["-c", f"agent.step_limit={ask.max_turns}"]
    env = {
        "OPENAI_API_KEY": ask.key,
        "MSWEA_CONFIGURED": "true",
        # Nobody knows what a token of ours costs, and it would stop for that.
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(ask.home / ".config" / "mini-swe-agent"),
    }
    return Setup(tuple(arguments), env | _litellm(ask), prompt_to="argument", by_hand=choice)


def aider(ask: Ask) -> Setup:
    model = f"openai/{ask.model or (OWN_NAME if ask.mode == 'base-url' else 'gpt-4.1-mini')}"
    folder = ask.home / ".aider"
    limits = {"max_input_tokens": ask.context_tokens, "max_tokens": ask.max_reply_tokens}
    limits |= {"max_output_tokens": ask.max_reply_tokens}
    prompt, models = folder / "prompt.txt", folder / "models.json"
    choice = ("--model", model, "--model-metadata-file", str(models))
    arguments = [*choice, "--yes-always", "--message-file", str(prompt)]
    arguments += ["--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes"]
    # Its own notes do not belong into the work of the agent.
    arguments += ["--no-gitignore", "--chat-history-file", str(folder / "chat.md")]
    arguments += ["--input-history-file", str(folder / "input")]
    env = {"OPENAI_API_KEY": ask.key} | _litellm(ask)
    files = ((models, json.dumps({model: limits})),)
    return Setup(tuple(arguments), env, files, prompt_to=prompt, by_hand=choice)


def command(ask: Ask) -> Setup:
    """Any program: the variables that SDKs read, and nothing else. What it is, and its arguments, are the caller's."""
    env = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), ask.key)
    if ask.mode == "base-url":
        env |= {"ANTHROPIC_BASE_URL": ask.base_url, "GOOGLE_GEMINI_BASE_URL": ask.base_url}
        env |= {"OPENAI_BASE_URL": f"{ask.base_url}/v1", "OPENAI_API_BASE": f"{ask.base_url}/v1"}
    return Setup((), env)


def _litellm(ask: Ask) -> dict[str, str]:
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if ask.mode == "base-url":
        env |= {"OPENAI_API_BASE": f"{ask.base_url}/v1", "OPENAI_BASE_URL": f"{ask.base_url}/v1"}
    return env


def _toml(text: str) -> str:
    """A basic string of TOML, which JSON's strings are."""
    return json.dumps(text)
