"""Creates the TLS certificates of a cluster: its own certificate authority, and a signed certificate for each role.

Dask does not compare host names, so whoever holds a signed certificate may take part in the cluster. Therefore the
authority signs certificates for these roles only. The extended key usage keeps a driver's certificate from passing as a
scheduler's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpdist.core.errors import ClusterError
from dpdist.core.files import write_text

CA, CERTIFICATE, PRIVATE_KEY = "ca.crt", "tls.crt", "tls.key"
"""Files of a role's folder, named as in a Kubernetes secret of type kubernetes.io/tls."""
ROLES = {
    "scheduler": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "worker": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "driver": (ExtendedKeyUsageOID.CLIENT_AUTH,),
}
AUTHORITY = "authority"
"""Folder of the authority's certificate and key. The key is copied to no machine of the cluster."""
AUTHORITY_DAYS = 3650
CLOCK_SKEW = timedelta(minutes=5)
_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""Validity of certificates that exist only as long as a process.

They do not end when the machine's clock changes. The last date is RFC 5280's "no end".
"""


class Passing(NamedTuple):
    """An authority's certificate, one certificate that it signed for all roles, and the key of that one, as PEM texts."""

    authority: str
    certificate: str
    key: str


def passing_certificates() -> Passing:
    """Makes the certificates of one run on one machine. They stay in memory, and the authority's key is thrown away."""
    authority, key = _authority("dpdist run", *_ALWAYS)
    made, private = _signed("run", ROLES["worker"], authority, key, *_ALWAYS)
    return Passing(_pem(authority), _pem(made), _key_text(private))


def make_certificates(folder: Path, days: float = 365.0, new_authority: bool = False) -> list[Path]:
    """Makes new certificates for every role in folder/ROLE. The authority is made once, or anew if `new_authority` is true.

    After a new authority each role still trusts the earlier ones while they are valid. So machines can get their new files
    one after the other.
    """
    own = folder / AUTHORITY
    for path in (folder, own, *(folder / role for role in ROLES)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if new_authority or not (own / PRIVATE_KEY).exists():
        _make_authority(own)
    trusted = load_certificates(own / CA)
    try:
        key = serialization.load_pem_private_key((own / PRIVATE_KEY).read_bytes(), None)
    except (OSError, ValueError):
        raise ClusterError(f"{own / PRIVATE_KEY} is missing or damaged", "restore it, or say --new-authority", 2) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for role, usage in ROLES.items():
        made, private = _signed(role, usage, trusted[0], key, *_from_now(days))
        write_text(folder / role / CA, "".join(map(_pem, trusted)))
        write_text(folder / role / CERTIFICATE, _pem(made))
        _write_key(folder / role / PRIVATE_KEY, private)
    return [folder / role for role in ROLES]


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Reads the certificates of a PEM file. Raises `ClusterError` that names the file."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ClusterError(f"{path} cannot be read ({error.strerror})", _REMEDY, 2) from None
    except ValueError:
        raise ClusterError(f"{path} holds no certificate", _REMEDY, 2) from None


_REMEDY = (
    "make certificates with `dpdist cluster certs DIR` and give each machine the folder of its role "
    "(on Kubernetes the secret dpdist-tls-ROLE)"
)


def _make_authority(folder: Path) -> None:
    now = datetime.now(UTC)
    earlier = load_certificates(folder / CA) if (folder / CA).exists() else []
    made, key = _authority(f"dpdist cluster {now:%Y-%m-%d %H:%M:%S}", *_from_now(AUTHORITY_DAYS))
    _write_key(folder / PRIVATE_KEY, key)
    trusted = [made, *(one for one in earlier if one.not_valid_after_utc > now)]
    write_text(folder / CA, "".join(map(_pem, trusted)))


def _authority(title: str, begins: datetime, ends: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    made = (
        _builder(name, name, key, begins, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made, key


def _signed(
    role: str,
    usage: tuple[x509.ObjectIdentifier, ...],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
    made = (
        _builder(name, authority.subject, key, begins, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(role)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return made, key


def _from_now(days: float) -> tuple[datetime, datetime]:
    """Start and end of a validity of that many days from now. A negative number gives an expired certificate."""
    now = datetime.now(UTC)
    ends = now + timedelta(days=days)
    return min(now, ends) - CLOCK_SKEW, ends


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    no = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
        False,
    )
    own = not signs_certificates
    return x509.KeyUsage(digital_signature=own, key_cert_sign=signs_certificates, crl_sign=signs_certificates, **no)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode("ascii")


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    write_text(path, _key_text(key), mode=0o600)
