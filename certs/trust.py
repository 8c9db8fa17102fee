"""How each runtime is made to trust the gateway's certificate authority, by environment variables alone.

Standard library only: a machine that only runs harnesses needs no more than the two public files of the folder.

A variable either *adds* our certificate to the runtime's own roots or *replaces* them; the latter must name the
bundle (system roots + ours), or the agent could reach nothing else. ``RUNTIMES`` is the table, with the evidence
for each row; ``certs/README.md`` says the same for people and covers what no variable reaches (Java, browsers).
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = [
    "BUNDLE_FILE",
    "CERTIFICATE_FILE",
    "RUNTIMES",
    "SYSTEM_ROOTS",
    "Runtime",
    "Untrusted",
    "Verdict",
    "check_trusted",
    "split_certificates",
    "trust_environment",
]

CERTIFICATE_FILE = "mitmproxy-ca-cert.pem"
BUNDLE_FILE = "ca-bundle.pem"
SYSTEM_ROOTS: tuple[str, ...] = (
    ssl.get_default_verify_paths().openssl_cafile,
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/cert.pem",  # macOS, BSD
)
"""Where the system's root certificates are, best first, whatever this process's environment says."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\r?\n.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class Runtime:
    name: str
    """Who reads the variable."""
    variable: str
    effect: Literal["adds", "replaces"]
    """What the variable does to the runtime's own roots."""
    system_store: bool
    """Whether the runtime falls back on the system's roots when the variable is not set."""
    evidence: str
    """``measured`` here (tests/certs or reference runs), or where it is documented."""


RUNTIMES: tuple[Runtime, ...] = (
    Runtime("Node.js, Bun (claude, gemini, qwen, pi, opencode)", "NODE_EXTRA_CA_CERTS", "adds", False, "measured"),
    Runtime("OpenSSL, Python ssl and httpx, Go, Rust (native-certs)", "SSL_CERT_FILE", "replaces", True, "measured"),
    Runtime("Python requests", "REQUESTS_CA_BUNDLE", "replaces", False, "measured"),
    Runtime("curl", "CURL_CA_BUNDLE", "replaces", True, "measured"),
    Runtime("git", "GIT_SSL_CAINFO", "replaces", True, "measured"),
    Runtime("Codex", "CODEX_CA_CERTIFICATE", "adds", True, "measured"),
    Runtime("pip", "PIP_CERT", "replaces", False, "measured"),
    Runtime("npm", "NPM_CONFIG_CAFILE", "replaces", False, "measured"),
    Runtime("AWS SDKs and CLI", "AWS_CA_BUNDLE", "replaces", False, "botocore's configuration guide"),
    Runtime("cargo", "CARGO_HTTP_CAINFO", "replaces", True, "the Cargo book, http.cainfo"),
    Runtime("Deno", "DENO_CERT", "adds", False, "Deno's environment variables"),
)


@dataclass(frozen=True)
class Untrusted:
    runtime: Runtime
    reason: str


@dataclass(frozen=True)
class Verdict:
    trusted: tuple[Runtime, ...]
    untrusted: tuple[Untrusted, ...]

    @property
    def ok(self) -> bool:
        """Every runtime of the table trusts the authority."""
        return not self.untrusted

    def trusts(self, variable: str) -> bool:
        """Whether the runtime that reads ``variable`` (``NODE_EXTRA_CA_CERTS``, …) trusts the authority."""
        return any(runtime.variable == variable for runtime in self.trusted)


def trust_environment(folder: Path) -> dict[str, str]:
    """The variables that make every runtime of the table trust the authority in ``folder``.

    Pure: it reads nothing; ``authority.ensure_authority(folder)`` makes the two files that the values name.
    """
    files = {"adds": str(folder / CERTIFICATE_FILE), "replaces": str(folder / BUNDLE_FILE)}
    return {runtime.variable: files[runtime.effect] for runtime in RUNTIMES}


def check_trusted(environment: Mapping[str, str], certificate: Path) -> Verdict:
    """Which runtimes, started with ``environment``, trust the certificate in the PEM file ``certificate``.

    A variable that is set decides alone (its file must hold the certificate); one that is not set leaves the
    system's store to decide for the runtimes that use it. Raises ``OSError`` where ``certificate`` cannot be read and
    ``ValueError`` where it holds none.
    """
    wanted = _fingerprints(certificate)
    if not wanted:
        raise ValueError(f"{certificate} holds no certificate in PEM form.")
    system = _system_store()
    trusted: list[Runtime] = []
    untrusted: list[Untrusted] = []
    for runtime in RUNTIMES:
        reason = _why_not(runtime, environment.get(runtime.variable), wanted, system)
        if reason is None:
            trusted.append(runtime)
        else:
            untrusted.append(Untrusted(runtime, reason))
    return Verdict(tuple(trusted), tuple(untrusted))


def split_certificates(text: str) -> list[str]:
    """The PEM blocks of a file, in order, without the comments between them."""
    return [match.group(0) for match in _CERTIFICATE.finditer(text)]


def _why_not(runtime: Runtime, value: str | None, wanted: set[bytes], system: set[bytes]) -> str | None:
    """Why this runtime does not trust the wanted certificate; None if it does."""
    if not value:
        if runtime.system_store and wanted <= system:
            return None
        also = " and the system's store does not hold it" if runtime.system_store else ""
        return f"{runtime.variable} is not set{also}"
    path = Path(value)
    if not path.is_file():
        return f"{runtime.variable} names {value!r}, which is no file"
    if wanted <= _fingerprints(path):
        return None
    return f"{runtime.variable} names {value!r}, which does not hold the certificate"


def _fingerprints(path: Path) -> set[bytes]:
    """The certificates of a PEM file in DER form; a block that is not base64 is left out."""
    found: set[bytes] = set()
    for block in split_certificates(path.read_text(errors="replace")):
        try:
            found.add(ssl.PEM_cert_to_DER_cert(block))
        except ValueError:
            continue
    return found


def _system_store() -> set[bytes]:
    """The certificates of the system's own file of roots; empty where there is none."""
    return next((_fingerprints(Path(name)) for name in SYSTEM_ROOTS if Path(name).is_file()), set())
