"""The certificate authority of this machine's gateway: made on first use, kept in one folder.

The proxy decrypts a harness's traffic with leaf certificates that this authority signs, so a harness must trust it
(see ``trust.py``). Files, in the names and formats that mitmproxy's ``confdir`` expects, so that it takes ours
instead of making its own:

- ``mitmproxy-ca.pem``       private key and certificate, mode 0600; never leaves this machine
- ``mitmproxy-ca-cert.pem``  the certificate alone; what clients trust
- ``ca-bundle.pem``          the system's roots and the certificate, for runtimes whose setting replaces their roots

Two processes may start at once: the folder's lock file lets one of them make the authority, the other reads it.
"""

import datetime
import fcntl
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dragoman.certs.trust import BUNDLE_FILE, CERTIFICATE_FILE, SYSTEM_ROOTS, split_certificates

__all__ = ["KEY_FILE", "Authority", "AuthorityError", "bundle", "ensure_authority", "rotate_authority"]

log = logging.getLogger(__name__)

KEY_FILE = "mitmproxy-ca.pem"
COMMON_NAME = "Dragoman CA"
LIFETIME = datetime.timedelta(days=3650)
# Backdated, so that a client whose clock is a little behind accepts it.
BACKDATED = datetime.timedelta(days=2)
# Renewed this long before the end, so that no run of a few weeks meets an expired certificate.
RENEW_BEFORE = datetime.timedelta(days=30)


class AuthorityError(Exception):
    """The authority's files cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class Authority:
    key_path: Path
    """Private key and certificate (PEM), mode 0600."""
    cert_path: Path
    """The certificate alone (PEM)."""
    not_after: datetime.datetime
    """End of validity, UTC."""


def ensure_authority(folder: Path, *, now: datetime.datetime | None = None) -> Authority:
    """The authority in ``folder``, made or renewed when needed, with its bundle up to date.

    ``now`` (UTC, None = the clock) decides about renewal. Renewal keeps the key, so leaf certificates already
    handed out stay valid for a client that trusts the new certificate. Raises ``AuthorityError``.
    """
    moment = now or datetime.datetime.now(datetime.UTC)
    key_path, cert_path = folder / KEY_FILE, folder / CERTIFICATE_FILE
    with _locked(folder):
        if key_path.exists():
            key, certificate = _load(key_path)
            if certificate.not_valid_after_utc - moment < RENEW_BEFORE:
                certificate = _renew(key_path, key, certificate, moment)
        else:
            certificate = _make(key_path, moment)
        _publish(folder, certificate)
    return Authority(key_path, cert_path, certificate.not_valid_after_utc)


def rotate_authority(folder: Path, *, now: datetime.datetime | None = None) -> Authority:
    """Replace the authority in ``folder`` by a new one with a new key; the old key is not kept.

    A gateway that runs goes on signing with the old one until it is started again, and programs started from now on
    do not trust it. ``now`` as in ``ensure_authority``. Raises ``AuthorityError``, also for an authority that Dragoman
    did not make: its key may be the only one there is.
    """
    key_path = folder / KEY_FILE
    with _locked(folder):
        if key_path.exists() and not _is_ours(*_load(key_path)):
            raise AuthorityError(f"The authority {key_path} was not made by Dragoman. Move it away to have one made.")
        certificate = _make(key_path, now or datetime.datetime.now(datetime.UTC))
        _publish(folder, certificate)
    return Authority(key_path, folder / CERTIFICATE_FILE, certificate.not_valid_after_utc)


def bundle(folder: Path) -> Path:
    """PEM file with the system's root certificates and the authority's, written by ``ensure_authority``."""
    ensure_authority(folder)
    return folder / BUNDLE_FILE


def _make(key_path: Path, now: datetime.datetime) -> x509.Certificate:
    """Write a new key with its certificate."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = _certificate(key, now)
    _write(key_path, _pem(key) + _pem_certificate(certificate), mode=0o600)
    return certificate


def _publish(folder: Path, certificate: x509.Certificate) -> None:
    """Write the two public files: always from the key file's certificate, so a crash in between heals itself."""
    cert_path = folder / CERTIFICATE_FILE
    _write(cert_path, _pem_certificate(certificate), mode=0o644)
    _write(folder / BUNDLE_FILE, _bundle_text(folder, cert_path), mode=0o644)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel frees it when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise AuthorityError(f"Cannot write in the certificates' folder {folder}: {error.strerror}.") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _certificate(key: rsa.RSAPrivateKey, now: datetime.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME)])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .serial_number(x509.random_serial_number())
        .public_key(key.public_key())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _load(path: Path) -> tuple[PrivateKeyTypes, x509.Certificate]:
    remedy = "Move it away to have a new authority made (clients must then trust that one)."
    try:
        content = path.read_bytes()
        key = serialization.load_pem_private_key(content, password=None)
        certificate = x509.load_pem_x509_certificates(content)[0]
    except OSError as error:
        raise AuthorityError(f"Cannot read the certificate authority {path}: {error.strerror}.") from error
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"{path} holds no private key and certificate in PEM form ({error}). {remedy}") from error
    if key.public_key() != certificate.public_key():
        raise AuthorityError(f"The private key and the certificate in {path} do not belong together. {remedy}")
    path.chmod(0o600)
    return key, certificate


def _is_ours(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    return isinstance(key, rsa.RSAPrivateKey) and certificate.subject.rfc4514_string() == f"CN={COMMON_NAME}"


def _renew(path: Path, key: PrivateKeyTypes, old: x509.Certificate, now: datetime.datetime) -> x509.Certificate:
    """The same key under a new certificate. One that somebody else made is theirs to renew: until its end a warning."""
    end = old.not_valid_after_utc
    if not _is_ours(key, old):
        said = (
            f"The certificate authority {path} ends on {end:%Y-%m-%d} and was not made by Dragoman "
            f"({old.subject.rfc4514_string()!r}). Replace the file, or move it away to have one made."
        )
        if end <= now:
            raise AuthorityError(said)
        log.warning("%s", said)
        return old
    assert isinstance(key, rsa.RSAPrivateKey)  # as ours is
    certificate = _certificate(key, now)
    _write(path, _pem(key) + _pem_certificate(certificate), mode=0o600)
    log.warning(
        "The certificate authority %s ends on %s: renewed until %s. Start the gateway and the harnesses again; "
        "a system or browser that was told to trust the old certificate must be told again.",
        path,
        f"{end:%Y-%m-%d}",
        f"{certificate.not_valid_after_utc:%Y-%m-%d}",
    )
    return certificate


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _pem_certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Write a whole file or nothing; unchanged content is left alone, so readers never see it move."""
    if path.exists() and path.read_bytes() == content:
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _system_roots(folder: Path) -> Path:
    """The file of root certificates this machine uses: its own setting, OpenSSL's default, else certifi's.

    A setting that points into ``folder`` (we run inside our own trust environment) says nothing about the system.
    """
    for name in (ssl.get_default_verify_paths().cafile, *SYSTEM_ROOTS):
        if name and Path(name).is_file() and folder.resolve() not in Path(name).resolve().parents:
            return Path(name)
    return Path(certifi.where())


def _bundle_text(folder: Path, cert_path: Path) -> bytes:
    roots = split_certificates(_system_roots(folder).read_text(errors="replace"))
    own = split_certificates(cert_path.read_text())
    return "\n".join(dict.fromkeys([*roots, *own])).encode() + b"\n"
