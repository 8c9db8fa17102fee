"""``dragoman serve``: mitmdump's command line, what is refused, and the real gateway up and down again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.certs.authority import ensure_authority
from dragoman.cli.checks import check_gateway_ca
from dragoman.cli.output import Failure
from dragoman.cli.processes import free_port, running
from dragoman.cli.serve import ServeOptions, greeting, mitmdump_arguments, split_listen


def options(**changes: Any) -> ServeOptions:
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 8080,
        "engine": "http://e:8000",
        "store": None,
        "model": None,
        "renderer": "auto",
        "max_reply_tokens": 4096,
        "open_mode": False,
        "egress": "block",
        "observe": None,
        "fsync": False,
        "outbox": None,
        "outbox_megabytes": None,
        "flows": None,
        "verbose": False,
        "extra": (),
    }
    return ServeOptions(**(values | changes))


def settings(arguments: list[str]) -> dict[str, str]:
    pairs = [arguments[at + 1].partition("=") for at, word in enumerate(arguments) if word == "--set"]
    return {name: value for name, _, value in pairs}


def test_who_only_looks_on_is_told_that_a_run_needs_the_providers_key() -> None:
    plain, watching = ("\n".join(greeting(options(observe=observe))) for observe in (None, "provider"))

    assert "--env" not in plain
    assert "--harness claude --env ANTHROPIC_API_KEY -- PROMPT" in watching


@pytest.mark.parametrize(
    ("listen", "parts"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        (":9000", ("127.0.0.1", 9000)),
        ("[::1]:81", ("::1", 81)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
    ],
)
def test_listen(listen: str, parts: tuple[str, int]) -> None:
    assert split_listen(listen) == parts


@pytest.mark.parametrize("listen", ["8080", "host:", "host:x", "host:0", "host:65536", ""])
def test_listen_refuses(listen: str) -> None:
    with pytest.raises(Failure, match="is not HOST:PORT"):
        split_listen(listen)


def test_arguments_say_only_what_was_said() -> None:
    arguments = mitmdump_arguments(options())
    assert arguments[:4] == ["--listen-host", "127.0.0.1", "--listen-port", "8080"]
    script = Path(arguments[arguments.index("-s") + 1])
    assert script.name == "intercept.py"
    assert script.is_file()
    assert settings(arguments) == {
        "dragoman_engine": "http://e:8000",
        "dragoman_renderer": "auto",
        "dragoman_max_reply_tokens": "4096",
        "dragoman_egress": "block",
        "flow_detail": "0",
        "termlog_verbosity": "warn",
    }


def test_arguments_for_everything() -> None:
    full = options(
        store="sqlite:////x.db",
        model="/m",
        open_mode=True,
        egress="allow a.b c.d",
        observe="https://gate.example",
        fsync=True,
        outbox=Path("/o.db"),
        outbox_megabytes=7,
        flows=Path("f.flows"),
        verbose=True,
        extra=("--set", "stream_large_bodies=1m"),
    )
    arguments = mitmdump_arguments(full)
    said = settings(arguments)
    assert said["dragoman_store"] == "sqlite:////x.db"
    assert said["dragoman_model"] == "/m"
    assert said["dragoman_open"] == said["dragoman_fsync"] == "true"
    assert (said["dragoman_outbox"], said["dragoman_outbox_megabytes"]) == ("/o.db", "7")
    assert said["dragoman_egress"] == "allow a.b c.d"
    assert said["dragoman_observe"] == "https://gate.example"
    assert arguments[arguments.index("-w") + 1] == "f.flows"
    assert arguments[-2:] == ["--set", "stream_large_bodies=1m"]


def test_open_mode_beyond_loopback_is_refused(run: Callable[..., Any]) -> None:
    result = run("serve", "--open", "--listen", "0.0.0.0:8099")
    assert result.code == 1
    assert "listens on loopback only" in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--egress", "some"], "--egress must be block, pass or 'allow HOST…', not 'some'"),
        (["--egress", "allow"], "'allow' needs host names behind it"),
        (["--observe", "anthropic"], "--observe must be 'provider' or an address"),
        (["--store", "mysql://h/d"], "only sqlite and postgresql"),
        (["--listen", "host.invalid:8099"], "cannot listen on host.invalid port 8099"),
    ],
)
def test_what_cannot_start_is_said_before_it_starts(run: Callable[..., Any], arguments: list[str], says: str) -> None:
    free = [] if "--listen" in arguments else ["--listen", f"127.0.0.1:{free_port()}"]
    result = run("serve", *free, *arguments)
    assert result.code == 1
    assert says in result.err
    assert "point a harness" not in result.err


def test_the_greeting_says_where_to_go(state: Path) -> None:
    text = "\n".join(greeting(options(port=8099)))
    assert "http://127.0.0.1:8099" in text
    assert "dragoman episode open --gateway http://127.0.0.1:8099" in text
    assert str(state / "dragoman.db") in text
    assert "warning" not in text
    assert "warning: 0.0.0.0 is not loopback" in greeting(options(host="0.0.0.0"))[-1]


def test_a_port_in_use(run: Callable[..., Any]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = run("serve", "--listen", f"127.0.0.1:{port}")
    assert result.code == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_gateway_starts_and_stops(state: Path, nobody: str, number: signal.Signals, tmp_path: Path) -> None:
    from dragoman.cli.episode import connect
    from dragoman.gateway_client import GatewayError

    port = free_port()
    command = [sys.executable, "-m", "dragoman", "serve", "--listen", f"127.0.0.1:{port}", "--engine", nobody]
    with running(command, os.environ, tmp_path / "log") as child, connect(f"127.0.0.1:{port}") as client:
        while True:
            assert child.returncode() is None, child.log.read_text()
            try:
                status = client.status()
                break
            except GatewayError:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(0.1)  # leaves it the processor meanwhile
        assert status.engine == nobody
        opened = client.open_episode(task="t")
        assert opened.proxy["HTTPS_PROXY"] == f"http://{opened.token}:x@127.0.0.1:{port}"
        client.end_episode(opened.id, "completed")
        address = client.address
        assert check_gateway_ca(address, state / "certs").ok is True
        ensure_authority(tmp_path / "other")
        foreign = check_gateway_ca(address, tmp_path / "other")
        assert (foreign.ok, "signs with another CA" in foreign.found) == (False, True)
        client.close()
        child.process.send_signal(number)
        assert child.process.wait(30) == 0, child.log.read_text()
    log = child.log.read_text()
    assert "point a harness at it" in log
    assert "Traceback" not in log
    assert (state / "operator.key").stat().st_mode & 0o777 == 0o600
    assert (state / "certs" / "mitmproxy-ca-cert.pem").exists()
