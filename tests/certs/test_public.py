"""What is given away of the authority: the certificate in each format, and the key in none."""

import datetime
import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from dragoman.certs.authority import ensure_authority
from dragoman.certs.public import FORMATS, STORE_PASSWORD, Format, export, facts


def _read(content: bytes, form: Format) -> x509.Certificate:
    if form == "pem":
        return x509.load_pem_x509_certificate(content)
    if form == "der":
        return x509.load_der_x509_certificate(content)
    store = pkcs12.load_pkcs12(content, STORE_PASSWORD)
    assert store.key is None
    (entry,) = store.additional_certs
    return entry.certificate


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_holds_the_certificate_and_no_key(tmp_path: Path, form: Format) -> None:
    authority = ensure_authority(tmp_path)
    key = serialization.load_pem_private_key(authority.key_path.read_bytes(), None)
    secret = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )

    content = export(tmp_path, form)

    assert _read(content, form) == x509.load_pem_x509_certificate(authority.cert_path.read_bytes())
    assert b"PRIVATE" not in content
    assert secret[320:360] not in content  # in the private exponent; the modulus before it is public


def test_facts_are_those_of_the_certificate(tmp_path: Path) -> None:
    authority = ensure_authority(tmp_path)

    found = facts(tmp_path)

    der = ssl.PEM_cert_to_DER_cert(authority.cert_path.read_text())
    assert found.path == authority.cert_path
    assert found.subject == "CN=Dragoman CA"
    assert found.fingerprint.replace(":", "").lower() == hashlib.sha256(der).hexdigest()
    assert found.fingerprint.count(":") == 31
    assert found.not_after == authority.not_after
    assert found.not_after - found.not_before == datetime.timedelta(days=3652)


def test_without_an_authority_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        facts(tmp_path)
    assert list(tmp_path.iterdir()) == []
