"""``dragoman doctor`` finds what is wrong, each thing really produced, and passes when all is right."""

import ctypes
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import checks
from dragoman.cli.checks import (
    check_bridges,
    check_harness,
    check_machine,
    check_store,
    check_template,
    check_trust,
)
from dragoman.cli.engine_checks import check_engine
from dragoman.cli.processes import free_port

LOGITS = {"token_id:1": 2.0, "token_id:2": 1.5, "token_id:3": 1.1, "token_id:4": 0.2, "token_id:5": 0.0}


def engine_answers(
    *, scale_out: bool = True, processed: bool = True, control: bool = True, spread: float = 1.0, model: str = "m"
) -> Callable[[str, str, Any], tuple[int, Any]]:
    """What a vLLM answers that was started with or without the flags."""

    def answers(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            return 200, {"data": [{"id": "served", "root": model, "max_model_len": 2048}]}
        if path == "/is_paused":
            return (200, {"is_paused": False}) if control else (404, {"detail": "Not Found"})
        if path == "/inference/v1/generate":
            if not scale_out:
                return 403, {"error": {"message": "Scale-out endpoints are disabled."}}
            content = [{"token_id": 1, "logprob": -0.5}]
            return 200, {"choices": [{"token_ids": [1], "logprobs": {"content": content}}]}
        if path == "/v1/completions":
            assert body["model"] == "served"
            scale = spread / body["temperature"] if processed else spread
            total = math.log(sum(math.exp(logit * scale) for logit in LOGITS.values()))
            top = {token: logit * scale - total for token, logit in LOGITS.items()}
            return 200, {"choices": [{"logprobs": {"top_logprobs": [top]}}]}
        raise AssertionError(path)

    return answers


def states(checks: list[Any]) -> dict[str, bool | None]:
    return {check.name: check.ok for check in checks}


def test_an_engine_started_right(serve_stub: Callable[..., Any]) -> None:
    checks, model = check_engine(serve_stub(engine_answers(model="/models/m")).address)
    assert states(checks) == {"engine": True, "scale-out": True, "logprobs": True, "control": True}
    assert model == "/models/m"


def test_no_engine(nobody: str, serve_stub: Callable[..., Any]) -> None:
    (check,), model = check_engine(nobody)
    assert (check.ok, model) == (False, None)
    assert nobody in check.found
    assert "dragoman engine" in check.remedy
    (check,), _ = check_engine(serve_stub(lambda *asked: (503, {})).address)
    assert (check.ok, "answers 503" in check.found) == (False, True)
    (check,), _ = check_engine(serve_stub(lambda method, path, body: (200, {"data": []})).address)
    assert (check.ok, "names no model" in check.found) == (False, True)


def test_an_engine_without_scale_out(serve_stub: Callable[..., Any]) -> None:
    checks, _ = check_engine(serve_stub(engine_answers(scale_out=False)).address)
    assert states(checks) == {"engine": True, "scale-out": False, "logprobs": True, "control": True}
    assert "--enable-scale-out" in checks[1].remedy


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_the_wrong_logprobs_mode(serve_stub: Callable[..., Any], spread: float) -> None:
    right, _ = check_engine(serve_stub(engine_answers(spread=spread)).address)
    assert states(right)["logprobs"] is True
    checks, _ = check_engine(serve_stub(engine_answers(processed=False, spread=spread)).address)
    assert states(checks) == {"engine": True, "scale-out": True, "logprobs": False, "control": True}
    assert "--logprobs-mode processed_logprobs" in checks[2].remedy


def test_an_engine_without_the_route_is_said_to_lack_it(serve_stub: Callable[..., Any]) -> None:
    right = engine_answers()
    checks, _ = check_engine(
        serve_stub(
            lambda method, path, body: (404, {}) if path == "/v1/completions" else right(method, path, body)
        ).address
    )
    assert (checks[2].ok, checks[2].found) == (False, "/v1/completions answers 404")


def test_a_model_that_cannot_tell(serve_stub: Callable[..., Any]) -> None:
    checks, _ = check_engine(serve_stub(engine_answers(spread=0.0)).address)
    assert states(checks)["logprobs"] is False
    assert "equally likely" in checks[2].found


def test_no_control_routes_is_a_remark(serve_stub: Callable[..., Any]) -> None:
    checks, _ = check_engine(serve_stub(engine_answers(control=False)).address)
    assert states(checks)["control"] is None


def test_an_engine_that_talks_nonsense(serve_stub: Callable[..., Any]) -> None:
    right = engine_answers()

    def answers(method: str, path: str, body: Any) -> tuple[int, Any]:
        return (200, {}) if path in ("/inference/v1/generate", "/v1/completions") else right(method, path, body)

    checks, _ = check_engine(serve_stub(answers).address)
    assert states(checks) == {"engine": True, "scale-out": False, "logprobs": False, "control": True}
    assert all("made no sense" in check.found for check in checks[1:3])


def tokenizer_folder(folder: Path, template: str | None) -> Path:
    from dragoman.trainer.tiny_model import build_tiny_tokenizer

    folder.mkdir()
    build_tiny_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_template_without_tools(tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    check = check_template(str(tokenizer_folder(tmp_path / "plain", plain)), "auto")
    assert check.ok is False
    assert "ignores tools" in check.found
    assert "chat_template.jinja" in check.remedy
    good = check_template(str(tokenizer_folder(tmp_path / "tools", None)), "auto")
    assert good.ok is True
    assert "renderer " in good.found
    missing = check_template(str(tmp_path / "nothing"), "auto")
    assert (missing.ok, "cannot be loaded" in missing.found) == (False, True)


def test_kinds_of_turn_that_are_rendered_in_full(tmp_path: Path) -> None:
    exact = check_bridges(str(tokenizer_folder(tmp_path / "exact", None)), "auto")
    assert (exact.ok, "continue the sampled tokens exactly" in exact.found) == (True, True)
    no_thoughts = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}{{ m.tool_calls or '' }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    dropping = check_bridges(str(tokenizer_folder(tmp_path / "dropping", no_thoughts)), "auto")
    assert dropping.ok is None
    assert "text after reasoning (thinking_policy)" in dropping.found
    assert "parallel" not in dropping.found
    missing = check_bridges(str(tmp_path / "nothing"), "auto")
    assert (missing.ok, "not looked at" in missing.found) == (None, True)


def test_an_untrusted_ca(tmp_path: Path) -> None:
    from dragoman.certs.authority import ensure_authority
    from dragoman.certs.trust import trust_environment

    certificates = tmp_path / "certs"
    proxied = {"HTTPS_PROXY": "http://t:x@127.0.0.1:8080"}
    bare = check_trust(proxied, certificates)
    assert bare.ok is False
    assert "NODE_EXTRA_CA_CERTS is not set" in bare.found
    assert "dragoman episode open" in bare.remedy
    # A CA of another state folder is as bad as none.
    ensure_authority(tmp_path / "other")
    other = check_trust({**proxied, **trust_environment(tmp_path / "other")}, certificates)
    assert (other.ok, "does not hold the certificate" in other.found) == (False, True)
    assert check_trust({**proxied, **trust_environment(certificates)}, certificates).ok is True
    assert check_trust({}, certificates).ok is True
    (tmp_path / "file").write_text("")
    assert check_trust({}, tmp_path / "file" / "certs").ok is False


def as_ordinary_owner() -> None:
    """In a child: root loses its right to write read-only files; any other user has none."""
    cap_dac_override, pr_capbset_drop = 1, 24
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0)


def test_an_unwritable_database(state: Path, nobody: str) -> None:
    from dragoman.home import default_store_url, state_folder

    assert check_store(default_store_url()).ok is True
    (state_folder() / "dragoman.db").chmod(0o400)
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "doctor", "--json", "--engine", nobody],
        capture_output=True,
        text=True,
        preexec_fn=as_ordinary_owner,
    )
    assert done.returncode == 1, done.stderr
    store = next(check for check in json.loads(done.stdout) if check["name"] == "store")
    assert store["ok"] is False
    assert str(state_folder() / "dragoman.db") in store["found"]
    assert "writable" in store["found"]
    assert "--store" in store["remedy"]


def test_a_database_that_can_be_read_only(store_url: str) -> None:
    """PostgreSQL opens for a user who may only read, so only a real write finds out."""
    assert check_store(store_url).ok is True
    if store_url.startswith("sqlite"):
        return  # its own case is test_an_unwritable_database
    joined = "&" if "?" in store_url else "?"
    check = check_store(f"{store_url}{joined}options=-c%20default_transaction_read_only%3Don")
    assert check.ok is False
    assert "read-only" in check.found


def test_a_store_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database" * 100)
    assert check_store(f"sqlite:///{tmp_path / 'text.db'}").ok is False
    assert check_store("mysql://host/name").ok is False


def test_a_missing_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = check_harness("pi", wanted=True)
    assert missing.ok is False
    assert missing.remedy == "run `dragoman harness install pi`"
    assert check_harness("pi", wanted=False).ok is None
    assert check_harness("emacs", wanted=True).ok is False
    program = tmp_path / "pi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert str(program) in check_harness("pi", wanted=True).found
    installed = tmp_path / "cache" / "harnesses" / "pi-1.6.0" / "bin" / "pi"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(program)
    assert check_harness("pi", wanted=True).found.startswith("1.6.0 in ")


def test_machine() -> None:
    assert [check.name for check in check_machine()] == ["Python", "g++", "disk"]


def test_the_command_when_all_is_right(
    run: Callable[..., Any], serve_stub: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tokenizer_folder(tmp_path / "model", None)
    engine = serve_stub(engine_answers(model=str(model)))
    status = {"version": "9.9", "engine": engine.address, "store": "sqlite:///x", "outbox_depth": 3}
    gateway = serve_stub(lambda method, path, body: (200, status))
    # The stub speaks no TLS, so this one cannot be right here; test_serve has it with a real gateway.
    monkeypatch.setattr(checks, "check_gateway_ca", lambda address, folder: checks.good("gateway CA", address))
    result = run("doctor", "--gateway", gateway.address)
    assert result.code == 0, result.out
    assert "FAIL" not in result.out
    assert f"ok   engine         {engine.address} serves {model}" in result.out
    assert "version 9.9" in result.out
    assert "3 records wait" in result.out
    assert "ok   template" in result.out


def test_a_gateway_that_only_looks_on_needs_no_engine(
    run: Callable[..., Any], serve_stub: Callable[..., Any], nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {"version": "9.9", "engine": nobody, "observes": "provider", "store": "sqlite:///x", "outbox_depth": 0}
    gateway = serve_stub(lambda method, path, body: (200, status))
    monkeypatch.setattr(checks, "check_gateway_ca", lambda address, folder: checks.good("gateway CA", address))
    result = run("doctor", "--gateway", gateway.address)
    assert result.code == 0, result.out
    assert "note engine         not looked at: the gateway only looks on" in result.out
    assert "only looks on, calls go to provider" in result.out
    assert run("doctor", "--gateway", gateway.address, "--engine", nobody).code == 1


def test_the_command_names_every_failure_and_a_remedy(run: Callable[..., Any], nobody: str) -> None:
    result = run("doctor", "--engine", nobody, "--gateway", nobody, "--harness", "emacs", "--store", "mysql://h/d")
    assert result.code == 1
    lines = result.out.splitlines()
    failed = [index for index, line in enumerate(lines) if line.startswith("FAIL")]
    assert [lines[index].split()[1] for index in failed] == ["engine", "store", "gateway", "harness"]
    assert all(lines[index + 1].strip().startswith("→ ") for index in failed)


def test_a_gateway_that_refuses_our_key(run: Callable[..., Any], serve_stub: Callable[..., Any], nobody: str) -> None:
    refusal = {"error": {"code": "unauthorized", "message": "unknown operator key"}}
    stub = serve_stub(lambda method, path, body: (401, refusal))
    shown = json.loads(run("doctor", "--engine", nobody, "--gateway", stub.address, "--json").out)
    gateway = next(check for check in shown if check["name"] == "gateway")
    assert gateway["ok"] is False
    assert "unknown operator key" in gateway["found"]


@pytest.fixture(scope="module")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], str]]:
    """Start a real vLLM on the tiny model with the flags or without; the address. One runs at a time."""
    from dragoman.cli.engine_process import EngineOptions, engine_command, engine_environment, find_python, wait_ready
    from dragoman.cli.processes import Child, start, stop
    from dragoman.trainer.tiny_model import build_tiny

    folder = tmp_path_factory.mktemp("engine")
    model = build_tiny(folder / "tiny")
    python = find_python(None)
    running: list[Child] = []

    def run_engine(right: bool) -> str:
        while running:
            stop(running.pop())
        options = EngineOptions(str(model), port=free_port(), max_model_len=1024)
        command = engine_command(python, options)
        if not right:
            # Everything that was measured to matter, left out.
            command.remove("--enable-scale-out")
            at = command.index("--logprobs-mode")
            del command[at : at + 2]
        environment = engine_environment(python, options.model, os.environ)
        if not right:
            del environment["VLLM_SERVER_DEV_MODE"]
        running.append(start(command, environment, folder / f"{right}.log"))
        address = f"http://127.0.0.1:{options.port}"
        wait_ready(running[0], address, 600, lambda line: None)
        return address

    yield run_engine
    while running:
        stop(running.pop())


@pytest.mark.engine
def test_a_real_engine_started_without_the_flags(real_engine: Callable[[bool], str]) -> None:
    checks, _ = check_engine(real_engine(False), timeout=180)
    assert states(checks) == {"engine": True, "scale-out": False, "logprobs": False, "control": None}


@pytest.mark.engine
def test_a_real_engine_started_right(real_engine: Callable[[bool], str]) -> None:
    checks, model = check_engine(real_engine(True), timeout=180)
    assert states(checks) == {"engine": True, "scale-out": True, "logprobs": True, "control": True}
    assert model is not None
    assert Path(model).name == "tiny"
