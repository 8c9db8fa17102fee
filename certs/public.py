"""What may be shown and given away of the authority: its certificate, never its key.

Rules of this module: it reads the one public file, and makes nothing.
"""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from dragoman.certs.trust import CERTIFICATE_FILE

__all__ = ["FORMATS", "STORE_PASSWORD", "Facts", "Format", "export", "facts"]

Format = Literal["pem", "der", "p12"]
FORMATS: tuple[Format, ...] = ("pem", "der", "p12")
STORE_PASSWORD = b"changeit"
"""Of the ``p12`` key store. It protects nothing: the store holds a public certificate, and Java wants a password."""


@dataclass(frozen=True)
class Facts:
    path: Path
    subject: str
    """RFC 4514, ``CN=Dragoman CA``."""
    fingerprint: str
    """SHA-256 of the certificate as browsers show it: upper-case hex pairs with colons."""
    not_before: datetime.datetime
    """UTC."""
    not_after: datetime.datetime
    """UTC."""


def facts(folder: Path) -> Facts:
    """What the certificate in ``folder`` says of itself. Raises ``OSError``, and ``ValueError`` where it is none."""
    path = folder / CERTIFICATE_FILE
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return Facts(
        path,
        certificate.subject.rfc4514_string(),
        certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def export(folder: Path, form: Format) -> bytes:
    """The certificate in ``folder`` as a file for others: PEM, DER, or a PKCS #12 trust store as Java reads it.

    Raises ``OSError``, and ``ValueError`` where it is none.
    """
    certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE_FILE).read_bytes())
    match form:
        case "pem":
            return certificate.public_bytes(serialization.Encoding.PEM)
        case "der":
            return certificate.public_bytes(serialization.Encoding.DER)
        case "p12":
            entry = pkcs12.PKCS12Certificate(certificate, b"dragoman")
            encryption = serialization.BestAvailableEncryption(STORE_PASSWORD)
            return pkcs12.serialize_java_truststore([entry], encryption)
