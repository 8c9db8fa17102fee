"""``dragoman certs``: what it says, what it writes, and whom rotation concerns."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from dragoman import home


def test_show_makes_the_authority_and_says_everything_about_it(run: Callable[..., Any], state: Path) -> None:
    result = run("certs", "show")

    assert result.code == 0
    certificate = x509.load_pem_x509_certificate((state / "certs" / "mitmproxy-ca-cert.pem").read_bytes())
    for said in ("CN=Dragoman CA", f"{certificate.not_valid_after_utc:%Y-%m-%d}, 36", "never leaves this machine"):
        assert said in result.out
    assert f"  SSL_CERT_FILE={state / 'certs' / 'ca-bundle.pem'}\n" in result.out
    shown = json.loads(run("certs", "show", "--json").out)
    assert shown["environment"]["NODE_EXTRA_CA_CERTS"] == shown["certificate"]
    assert shown["sha256"] in result.out


@pytest.mark.parametrize("form", ["der", "p12"])
def test_export_of_a_binary_form_needs_a_file(run: Callable[..., Any], tmp_path: Path, form: str) -> None:
    refused = run("certs", "export", "--format", form)
    assert (refused.code, refused.out) == (1, "")
    assert "is binary: name the file" in refused.err

    written = run("certs", "export", "--format", form, str(tmp_path / "ca"))
    assert written.code == 0
    assert "and no key" in written.err
    assert (tmp_path / "ca").stat().st_size > 500


def test_export_prints_pem_for_a_pipe(run: Callable[..., Any], state: Path) -> None:
    result = run("certs", "export")

    assert result.out == (state / "certs" / "mitmproxy-ca-cert.pem").read_text()


def test_a_file_that_cannot_be_written_is_named(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("certs", "export", str(tmp_path / "no" / "ca.pem"))

    assert result.code == 1
    assert "no/ca.pem cannot be written: No such file" in result.err


def test_rotate_names_the_gateways_that_must_start_again(run: Callable[..., Any], state: Path) -> None:
    before = run("certs", "export").out
    with home.announce_gateway(state, "http://127.0.0.1:8123"):
        result = run("certs", "rotate")

    assert result.code == 0
    assert "start again: the gateway at http://127.0.0.1:8123" in result.out
    assert run("certs", "export").out != before
    assert "nothing to start again" in run("certs", "rotate").out


def test_a_broken_authority_is_a_plain_failure(run: Callable[..., Any], state: Path) -> None:
    (state / "certs").mkdir(parents=True)
    (state / "certs" / "mitmproxy-ca.pem").write_text("x")

    for command in (["show"], ["export"], ["rotate"]):
        result = run("certs", *command)
        assert result.code == 1
        assert "holds no private key and certificate" in result.err


def test_nothing_of_it_is_in_git(tmp_path: Path) -> None:
    """A state folder inside a checkout (``DRAGOMAN_HOME=.run/state``) is ignored there."""
    root = Path(__file__).resolve().parents[2]
    names = [".run/state/certs/mitmproxy-ca.pem", "mitmproxy-ca.pem", "certs/mitmproxy-ca.pem"]

    done = subprocess.run(["git", "check-ignore", *names], cwd=root, capture_output=True, text=True)

    assert done.stdout.split() == names
