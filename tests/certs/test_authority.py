"""The authority's files: made once, private, used by mitmproxy, renewed in time, refused when broken."""

import datetime
import logging
import multiprocessing
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from mitmproxy.certs import CertStore

from dragoman.certs.authority import KEY_FILE, AuthorityError, bundle, ensure_authority, rotate_authority
from dragoman.certs.trust import split_certificates

DAY = datetime.timedelta(days=1)


def _make(folder: Path) -> bytes:
    return ensure_authority(folder).cert_path.read_bytes()


def test_a_new_authority_is_private_and_lasts_ten_years(tmp_path: Path) -> None:
    authority = ensure_authority(tmp_path / "certs")

    assert stat.S_IMODE(authority.key_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(authority.key_path.parent.stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate(authority.cert_path.read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=Dragoman CA"
    assert certificate.not_valid_after_utc == authority.not_after
    left = authority.not_after - datetime.datetime.now(datetime.UTC)
    assert 3649 * DAY < left <= 3650 * DAY
    assert b"PRIVATE" not in authority.cert_path.read_bytes()


def test_the_second_call_changes_nothing(tmp_path: Path) -> None:
    ensure_authority(tmp_path)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}

    ensure_authority(tmp_path)

    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert {name: value for name, value in after.items() if name != ".lock"} == {
        name: value for name, value in before.items() if name != ".lock"
    }


def test_mitmproxy_signs_with_this_authority(tmp_path: Path) -> None:
    authority = ensure_authority(tmp_path)

    store = CertStore.from_store(tmp_path, "mitmproxy", 2048)
    leaf = store.get_cert("api.example.com", [x509.DNSName("api.example.com")])

    issuer = x509.load_pem_x509_certificate(authority.cert_path.read_bytes())
    leaf.cert.to_cryptography().verify_directly_issued_by(issuer)
    assert dict(leaf.cert.issuer) == {"CN": "Dragoman CA"}


def test_processes_that_start_together_share_one_authority(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        made = pool.map(_make, [tmp_path / "certs"] * 4)

    assert len(set(made)) == 1


def test_the_bundle_holds_the_system_roots_and_the_authority_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = split_certificates(ensure_authority(tmp_path).cert_path.read_text())
    # As inside a harness that this authority was handed to: the setting names our own bundle.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca-bundle.pem"))

    blocks = split_certificates(bundle(tmp_path).read_text())

    assert len(blocks) > 50
    assert blocks.count(own[0]) == 1
    assert len(set(blocks)) == len(blocks)
    ssl.create_default_context(cafile=str(tmp_path / "ca-bundle.pem"))


def test_the_bundle_follows_a_machine_with_roots_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    company = ensure_authority(tmp_path / "company").cert_path
    monkeypatch.setenv("SSL_CERT_FILE", str(company))

    blocks = split_certificates(bundle(tmp_path / "ours").read_text())

    assert blocks[0] == split_certificates(company.read_text())[0]
    assert len(blocks) == 2


@pytest.mark.parametrize("days", [pytest.param(3650 - 29, id="ends soon"), pytest.param(3651, id="has ended")])
def test_renewed_in_time_with_the_same_key_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    first = ensure_authority(tmp_path)
    old = x509.load_pem_x509_certificate(first.cert_path.read_bytes())
    later = datetime.datetime.now(datetime.UTC) + days * DAY

    with caplog.at_level(logging.WARNING):
        second = ensure_authority(tmp_path, now=later)

    new = x509.load_pem_x509_certificate(second.cert_path.read_bytes())
    assert second.not_after > later + 3000 * DAY
    assert new.public_key() == old.public_key()
    assert new.serial_number != old.serial_number
    assert "renewed until" in caplog.text
    assert str(second.key_path) in caplog.text
    assert stat.S_IMODE(second.key_path.stat().st_mode) == 0o600
    assert split_certificates(second.cert_path.read_text())[0] in (tmp_path / "ca-bundle.pem").read_text()


def test_not_renewed_while_there_is_time(tmp_path: Path) -> None:
    first = ensure_authority(tmp_path).cert_path.read_bytes()

    ensure_authority(tmp_path, now=datetime.datetime.now(datetime.UTC) + (3650 - 32) * DAY)

    assert (tmp_path / "mitmproxy-ca-cert.pem").read_bytes() == first


def test_a_lost_certificate_file_is_written_again(tmp_path: Path) -> None:
    path = ensure_authority(tmp_path).cert_path
    content = path.read_bytes()
    path.unlink()

    assert ensure_authority(tmp_path).cert_path.read_bytes() == content


def test_a_key_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    path = ensure_authority(tmp_path).key_path
    path.chmod(0o644)

    ensure_authority(tmp_path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_broken_file_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("not PEM")

    with pytest.raises(AuthorityError, match=r"mitmproxy-ca\.pem holds no private key and certificate.*Move it away"):
        ensure_authority(tmp_path)
    assert (tmp_path / KEY_FILE).read_text() == "not PEM"


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    ours = ensure_authority(tmp_path / "a").key_path
    other = ensure_authority(tmp_path / "b")
    key = serialization.load_pem_private_key(ours.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    ours.write_bytes(key + other.cert_path.read_bytes())

    with pytest.raises(AuthorityError, match="do not belong together"):
        ensure_authority(tmp_path / "a")


def test_someone_elses_authority_is_never_overwritten(tmp_path: Path) -> None:
    CertStore.from_store(tmp_path, "mitmproxy", 2048)
    content = (tmp_path / KEY_FILE).read_bytes()
    ensure_authority(tmp_path)

    with pytest.raises(AuthorityError, match="was not made by Dragoman"):
        ensure_authority(tmp_path, now=datetime.datetime.now(datetime.UTC) + 3650 * DAY)
    assert (tmp_path / KEY_FILE).read_bytes() == content


def test_someone_elses_authority_is_used_until_its_end_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    CertStore.from_store(tmp_path, "mitmproxy", 2048)
    end = ensure_authority(tmp_path).not_after
    assert caplog.text == ""

    assert ensure_authority(tmp_path, now=end - DAY).not_after == end

    assert "was not made by Dragoman" in caplog.text


def test_rotation_makes_another_key_and_keeps_nothing_of_the_old_one(tmp_path: Path) -> None:
    first = ensure_authority(tmp_path)
    old_key, old = first.key_path.read_bytes(), first.cert_path.read_bytes()

    second = rotate_authority(tmp_path)

    new = x509.load_pem_x509_certificate(second.cert_path.read_bytes())
    assert new.public_key() != x509.load_pem_x509_certificate(old).public_key()
    assert stat.S_IMODE(second.key_path.stat().st_mode) == 0o600
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert everything.count(b"BEGIN RSA PRIVATE KEY") == 1
    assert old_key not in everything
    assert old.strip() not in everything
    assert ensure_authority(tmp_path).cert_path.read_bytes() == second.cert_path.read_bytes()


def test_rotation_leaves_someone_elses_authority_alone(tmp_path: Path) -> None:
    CertStore.from_store(tmp_path, "mitmproxy", 2048)
    content = (tmp_path / KEY_FILE).read_bytes()

    with pytest.raises(AuthorityError, match="was not made by Dragoman"):
        rotate_authority(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == content


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(AuthorityError, match=r"Cannot write in the certificates' folder .*file/certs"):
        ensure_authority(tmp_path / "file" / "certs")
