"""How each harness is pointed at the gateway: the whole launch, from its inputs alone."""

import json
from pathlib import Path

import pytest

from dragoman.certs.trust import trust_environment
from dragoman.rollout.harnesses import HARNESSES, find_harness
from dragoman.rollout.launch import Mode, Shell, Target, launch, launch_command, shell
from dragoman.rollout.process import Launch

HOME = Path("/runs/7/home")
CERTS = Path("/state/certs")


def _launch(
    name: str,
    mode: Mode,
    *,
    gateway: str = "http://127.0.0.1:8080",
    variant: str | None = None,
    extra: dict[str, str] | None = None,
) -> Launch:
    return launch(
        find_harness(name),
        Target(gateway, "t0k", mode, CERTS),
        installed=Path("/cache/it"),
        prompt="- do @this",
        home=HOME,
        workdir=Path("/runs/7/work"),
        variant=variant,
        extra=extra,
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

    # By standard input; in a file; or glued to its option, so that its own dash begins no option.
    by_file = [path for path, content in result.files if content == "- do @this"]
    ways = [result.stdin == "- do @this", "--task=- do @this" in result.command, bool(by_file)]
    assert ways.count(True) == 1
    assert result.stdin in ("- do @this", "")
    assert "- do @this" not in result.command
    assert all(str(path) in result.command for path in by_file)


@pytest.mark.parametrize(
    ("name", "variant"), [(harness.name, variant) for harness in HARNESSES for variant in harness.variants or (None,)]
)
def test_the_token_is_a_key_in_base_url_mode_only(name: str, variant: str | None) -> None:
    def whole(mode: Mode) -> str:
        result = _launch(name, mode, variant=variant)
        return json.dumps([result.env, [content for _, content in result.files]])

    assert "dgm_t0k" in whole("base-url") or "/e/t0k/" in whole("base-url")
    assert "dgm_t0k" not in whole("proxy")
    assert "/e/t0k/" not in whole("proxy")
    assert "fake" in whole("proxy")
    assert "http://127.0.0.1:8080" in whole("base-url").replace("http://t0k:x@127.0.0.1:8080", "")
    assert "http://127.0.0.1:8080" not in whole("proxy")


def test_the_first_variant_is_the_default() -> None:
    assert _launch("pi", "proxy") == _launch("pi", "proxy", variant="anthropic")
    assert _launch("pi", "proxy") != _launch("pi", "proxy", variant="chat")


@pytest.mark.parametrize(("name", "there"), [("codex", "custom, builtin, chatgpt"), ("claude", "none")])
def test_an_unknown_variant_is_told_those_there_are(name: str, there: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no variant 'chatty'; there are: {there}"):
        _launch(name, "proxy", variant="chatty")


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
        launch(
            find_harness("pi"),
            Target("http://127.0.0.1:8080", "t0k", "proxy", CERTS),
            installed=Path("/cache/it"),
            prompt="x",
            home=HOME,
            workdir=HOME,
            max_turns=3,
        )


def test_further_variables_go_before_all_others() -> None:
    env = _launch("claude", "proxy", extra={"ANTHROPIC_API_KEY": "mine", "MORE": "1"}).env

    assert (env["ANTHROPIC_API_KEY"], env["MORE"]) == ("mine", "1")


def _shell(name: str | None, mode: Mode, model: str | None = None) -> Shell:
    harness = None if name is None else find_harness(name)
    return shell(harness, Target("http://127.0.0.1:8080", "t0k", mode, CERTS), folder=HOME, model=model)


@BOTH
@EACH
def test_a_persons_shell_gets_the_same_variables_but_keeps_its_own_home(name: str, mode: Mode) -> None:
    found, run = _shell(name, mode), _launch(name, mode)

    assert not {"HOME", "PATH", "USER", "SHELL", "TERM", "LANG", "IS_SANDBOX"} & found.env.keys()
    assert found.env.items() <= run.env.items()
    assert found.env["HTTPS_PROXY"] == "http://t0k:x@127.0.0.1:8080"
    assert trust_environment(CERTS).items() <= found.env.items()
    assert {path for path, _ in found.files} <= {path for path, _ in run.files}
    # Without HOME a harness finds its files only by what names them to it.
    said = [*found.env.values(), *found.arguments]
    assert all(str(path) in said or any(str(folder) in said for folder in path.parents) for path, _ in found.files)


def test_what_a_person_types_names_the_model() -> None:
    assert _shell("pi", "proxy", model="m").arguments == ("--provider", "anthropic", "--model", "m")
    assert _shell("opencode", "base-url").arguments == ("-m", "dragoman/policy")
    assert _shell("claude", "proxy").arguments == ()


def _command(mode: Mode) -> Launch:
    target = Target("http://127.0.0.1:8080", "t0k", mode, CERTS)
    return launch_command(("my tool", "-p"), target, home=HOME, workdir=HOME, path="/my/bin", extra={"A": "1"})


@BOTH
def test_any_program_gets_the_network_a_private_home_and_its_callers_path_and_input(mode: Mode) -> None:
    found = _command(mode)

    assert (found.command, found.stdin, found.files) == (("my tool", "-p"), None, ())
    assert (found.env["HOME"], found.env["PATH"], found.env["A"]) == (str(HOME), "/my/bin", "1")
    assert found.env["HTTPS_PROXY"] == "http://t0k:x@127.0.0.1:8080"
    assert trust_environment(CERTS).items() <= found.env.items()
    assert {*_shell(None, mode).env.items()} <= {*found.env.items()}


def test_any_program_by_base_url_gets_what_sdks_read() -> None:
    by_address, by_proxy = _command("base-url").env, _command("proxy").env

    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        assert by_address[name] == "http://127.0.0.1:8080/v1"
    for name in ("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        assert by_address[name] == "http://127.0.0.1:8080"
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        assert (by_address[name], by_proxy[name][:12]) == ("dgm_t0k", "sk-ant-fake-")
    assert not any("BASE" in name for name in by_proxy)
