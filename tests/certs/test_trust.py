"""The trust variables, against real clients: each refuses our certificate without them and accepts it with them."""

import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from mitmproxy.certs import CertStore

from dragoman.certs.authority import ensure_authority
from dragoman.certs.trust import RUNTIMES, check_trusted, split_certificates, trust_environment


@dataclass(frozen=True)
class Site:
    folder: Path
    """The authority's folder."""
    url: str
    """``https://localhost:PORT``, served with a certificate of that authority; every path is 404."""
    requests: list[str]
    """The paths asked for so far: a client that refuses the certificate never gets to ask."""


class _Server(ThreadingHTTPServer):
    def __init__(self, requests: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), _NotFound)
        self.requests = requests

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that refuses the certificate ends the handshake; that is what is tested."""


class _NotFound(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("certs")
    ensure_authority(folder)
    entry = CertStore.from_store(folder, "mitmproxy", 2048).get_cert("localhost", [x509.DNSName("localhost")])
    leaf = folder / "leaf.pem"
    key = entry.privatekey.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    leaf.write_bytes(key + entry.cert.to_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf)
    requests: list[str] = []
    server = _Server(requests)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Site(folder, f"https://localhost:{server.server_port}", requests)
    server.shutdown()
    thread.join()
    server.server_close()


PYTHON = sys.executable
CLIENTS = [
    pytest.param(
        "SSL_CERT_FILE",
        [PYTHON, "-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])", "{url}"],
        id="python urllib",
    ),
    pytest.param("SSL_CERT_FILE", [PYTHON, "-c", "import sys, httpx; httpx.get(sys.argv[1])", "{url}"], id="httpx"),
    pytest.param(
        "REQUESTS_CA_BUNDLE",
        [PYTHON, "-c", "import sys, requests; requests.get(sys.argv[1])", "{url}"],
        id="requests",
    ),
    pytest.param("CURL_CA_BUNDLE", ["curl", "-sS", "{url}"], id="curl"),
    pytest.param("GIT_SSL_CAINFO", ["git", "ls-remote", "{url}/x.git"], id="git"),
    pytest.param(
        "PIP_CERT",
        [PYTHON, "-m", "pip", "download", "--no-deps", "--retries=0", "-i", "{url}/simple", "nothing"],
        id="pip",
    ),
    pytest.param("NPM_CONFIG_CAFILE", ["npm", "view", "nothing", "--registry={url}", "--fetch-retries=0"], id="npm"),
    pytest.param("NODE_EXTRA_CA_CERTS", ["node", "-e", "fetch('{url}').catch(() => null)"], id="node"),
]


def _reaches(command: list[str], site: Site, home: Path, variables: dict[str, str]) -> bool:
    """Whether the command, run with no certificate settings but ``variables``, gets to ask the site for anything."""
    # A private home and no configuration of the machine: its own CA settings must not decide.
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "localhost"}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "NPM_CONFIG_GLOBALCONFIG": str(home / "npmrc"), **variables}
    before = len(site.requests)
    words = [part.format(url=site.url) for part in command]
    subprocess.run(words, env=environment, cwd=home, capture_output=True, timeout=120)
    return len(site.requests) > before


@pytest.mark.parametrize(("variable", "command"), CLIENTS)
def test_a_client_trusts_the_authority_through_its_variable_alone(
    site: Site, tmp_path: Path, variable: str, command: list[str]
) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    variables = trust_environment(site.folder)

    assert not _reaches(command, site, tmp_path, {})
    assert _reaches(command, site, tmp_path, {variable: variables[variable]})


def test_every_measured_row_but_codex_has_a_client_here() -> None:
    # Codex was measured by running it; see certs/README.md.
    measured = {runtime.variable for runtime in RUNTIMES if runtime.evidence == "measured"}
    assert measured - {"CODEX_CA_CERTIFICATE"} == {parameter.values[0] for parameter in CLIENTS}


def test_the_environment_is_trusted_and_an_empty_one_is_not(site: Site) -> None:
    certificate = site.folder / "mitmproxy-ca-cert.pem"

    whole = check_trusted(trust_environment(site.folder), certificate)
    empty = check_trusted({}, certificate)

    assert whole.ok
    assert len(whole.trusted) == len(RUNTIMES)
    assert not empty.ok
    assert empty.trusted == ()
    assert not empty.trusts("SSL_CERT_FILE")
    assert "system's store does not hold it" in {u.runtime.variable: u.reason for u in empty.untrusted}["SSL_CERT_FILE"]


def test_a_variable_that_names_another_file_or_none_is_told(site: Site, tmp_path: Path) -> None:
    certificate = site.folder / "mitmproxy-ca-cert.pem"
    other = ensure_authority(tmp_path).cert_path
    environment = trust_environment(site.folder)
    environment |= {"NODE_EXTRA_CA_CERTS": str(other), "SSL_CERT_FILE": str(tmp_path / "missing.pem")}

    verdict = check_trusted(environment, certificate)

    reasons = {item.runtime.variable: item.reason for item in verdict.untrusted}
    assert reasons == {
        "NODE_EXTRA_CA_CERTS": f"NODE_EXTRA_CA_CERTS names {str(other)!r}, which does not hold the certificate",
        "SSL_CERT_FILE": f"SSL_CERT_FILE names {str(tmp_path / 'missing.pem')!r}, which is no file",
    }
    assert verdict.trusts("GIT_SSL_CAINFO")


def test_the_system_store_counts_for_those_that_use_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.certs.trust.SYSTEM_ROOTS", (str(site.folder / "ca-bundle.pem"),))

    verdict = check_trusted({}, site.folder / "mitmproxy-ca-cert.pem")

    assert {runtime.variable for runtime in verdict.trusted} == {r.variable for r in RUNTIMES if r.system_store}


def test_a_certificate_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")

    with pytest.raises(ValueError, match=r"ca\.pem holds no certificate"):
        check_trusted({}, tmp_path / "ca.pem")
    with pytest.raises(FileNotFoundError):
        check_trusted({}, tmp_path / "missing.pem")


def test_comments_between_certificates_are_left_out() -> None:
    block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"

    assert split_certificates(f"# one\n{block}\n# two\n{block}\n") == [block, block]
