"""Certificates: who may read them, what they may be used for, how they are renewed while a cluster runs."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import ExtendedKeyUsage, load_pem_x509_certificates
from cryptography.x509.oid import ExtendedKeyUsageOID

from dpdist.core.errors import ClusterError
from dpdist.runtime.tls import ROLES, Credentials, make_certificates, passing_certificates, passing_security


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_reads_a_key_and_the_authority_key_is_in_no_role_folder(tmp_path: Path) -> None:
    folders = make_certificates(tmp_path / "made")
    assert [folder.name for folder in folders] == list(ROLES)
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"ca.crt", "tls.crt", "tls.key"}
        assert (mode(folder), mode(folder / "tls.key")) == (0o700, 0o600)
        Credentials(folder).check()
    assert mode(tmp_path / "made" / "authority" / "tls.key") == 0o600
    keys = {path.read_text() for path in (tmp_path / "made").rglob("tls.key")}
    assert len(keys) == 4


def test_certificates_of_one_run_are_its_own_end_with_no_clock_and_lie_in_no_file() -> None:
    one, other = passing_certificates(), passing_certificates()
    (authority,), (certificate,) = (load_pem_x509_certificates(text.encode()) for text in one[:2])
    certificate.verify_directly_issued_by(authority)
    assert (certificate.not_valid_before_utc.year, certificate.not_valid_after_utc.year) == (1970, 9999)
    (stranger,) = load_pem_x509_certificates(other.authority.encode())
    with pytest.raises(InvalidSignature):
        certificate.verify_directly_issued_by(stranger)
    said = passing_security()
    assert said.require_encryption
    for role in ("client", "scheduler", "worker"):
        told = said.get_tls_config_for_role(role)
        assert all("\n" in told[name] for name in ("ca_file", "cert", "key")), "texts, no paths"


def test_a_driver_may_only_call(tmp_path: Path) -> None:
    for folder in make_certificates(tmp_path):
        (own,) = load_pem_x509_certificates((folder / "tls.crt").read_bytes())
        serves = ExtendedKeyUsageOID.SERVER_AUTH in own.extensions.get_extension_for_class(ExtendedKeyUsage).value
        assert serves == (folder.name != "driver")


def test_renewed_certificates_work_beside_old_ones_also_under_a_new_authority(tmp_path: Path) -> None:
    (scheduler, *_) = make_certificates(tmp_path)
    old, trusted = (scheduler / "tls.crt").read_text(), (scheduler / "ca.crt").read_text()
    make_certificates(tmp_path)
    assert (scheduler / "tls.crt").read_text() != old
    assert (scheduler / "ca.crt").read_text() == trusted
    make_certificates(tmp_path, new_authority=True)
    both = (scheduler / "ca.crt").read_text()
    assert both.endswith(trusted)
    assert both != trusted
    Credentials(scheduler).check()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("ca.crt", "holds no certificate"),
        ("tls.crt", "holds no certificate"),
        ("tls.key", "is not that of the certificate"),
    ],
)
def test_a_damaged_file_is_named(damage: str, told: str, tmp_path: Path) -> None:
    (folder, *_) = make_certificates(tmp_path)
    (folder / damage).write_text("nothing of the kind")
    with pytest.raises(ClusterError, match=told) as found:
        Credentials(folder).check()
    assert damage in str(found.value)
    assert found.value.exit_code == 2


def test_a_lost_authority_key_is_not_replaced_silently(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    (tmp_path / "authority" / "tls.key").write_text("")
    with pytest.raises(ClusterError, match="missing or damaged"):
        make_certificates(tmp_path)
