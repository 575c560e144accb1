"""TLS certificates and encrypted links, with the causes of failed links.

Dask does not compare host names, so every holder of a signed certificate can take part in the cluster. Therefore the
cluster's own authority signs certificates for its roles only.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpdist.core.errors import ClusterError
from dpdist.core.files import write_text

CA, CERTIFICATE, PRIVATE_KEY = "ca.crt", "tls.crt", "tls.key"
"""Files of a role's folder, named as in a Kubernetes secret of type kubernetes.io/tls."""
ROLES = {  # the extended key usage keeps a driver's certificate from passing as a scheduler's
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

They stay valid if the machine's clock changes. The last date is RFC 5280's "no end".
"""


class IssuedCertificate(NamedTuple):
    """An authority's certificate, one certificate that it signed for all roles, and the key of that one, as PEM texts."""

    authority: str
    certificate: str
    key: str


def passing_certificates() -> IssuedCertificate:
    """Makes the certificates of one run on one machine. They stay in memory, and the authority's key is thrown away."""
    authority, key = _authority("dpdist run", *_ALWAYS)
    certificate, private = _sign("run", ROLES["worker"], authority, key, *_ALWAYS)
    return IssuedCertificate(_pem(authority), _pem(certificate), _key_text(private))


def make_certificates(folder: Path, days: float = 365.0, new_authority: bool = False) -> list[Path]:
    """Makes new certificates for every role in folder/ROLE. The authority is made once, or anew if `new_authority` is true.

    After a new authority each role still trusts the earlier ones while they are valid. So machines can get their new files
    one after the other.
    """
    authority = folder / AUTHORITY
    for path in (folder, authority, *(folder / role for role in ROLES)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if new_authority or not (authority / PRIVATE_KEY).exists():
        _make_authority(authority)
    trusted = load_certificates(authority / CA)
    try:
        key = serialization.load_pem_private_key((authority / PRIVATE_KEY).read_bytes(), None)
    except (OSError, ValueError):
        raise ClusterError(
            f"{authority / PRIVATE_KEY} is missing or damaged", "restore it, or use --new-authority", 2
        ) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for role, usage in ROLES.items():
        certificate, private = _sign(role, usage, trusted[0], key, *_from_now(days))
        write_text(folder / role / CA, "".join(map(_pem, trusted)))
        write_text(folder / role / CERTIFICATE, _pem(certificate))
        _write_key(folder / role / PRIVATE_KEY, private)
    return [folder / role for role in ROLES]


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Raises `ClusterError` that names the file."""
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
    certificate, key = _authority(f"dpdist cluster {now:%Y-%m-%d %H:%M:%S}", *_from_now(AUTHORITY_DAYS))
    _write_key(folder / PRIVATE_KEY, key)
    trusted = [certificate, *(trusted_one for trusted_one in earlier if trusted_one.not_valid_after_utc > now)]
    write_text(folder / CA, "".join(map(_pem, trusted)))


def _authority(title: str, begins: datetime, ends: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    certificate = (
        _builder(name, name, key, begins, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _sign(
    role: str,
    usage: tuple[x509.ObjectIdentifier, ...],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
    certificate = (
        _builder(name, authority.subject, key, begins, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(role)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return certificate, key


def _from_now(days: float) -> tuple[datetime, datetime]:
    """Start and end of a validity of that many days; a negative number gives an expired certificate."""
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
    of_role = not signs_certificates
    return x509.KeyUsage(digital_signature=of_role, key_cert_sign=signs_certificates, crl_sign=signs_certificates, **no)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    encryption = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode("ascii")


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    write_text(path, _key_text(key), mode=0o600)


ANSWER_TIMEOUT = 5.0
"""Seconds that one attempt waits for the scheduler's greeting."""
_RETRY_INTERVAL = 0.5
_RENEW = (
    "renew it with `dpdist cluster certs DIR` and give each machine the folder of its role "
    "(on Kubernetes the secret dpdist-tls-ROLE)"
)


@dataclass(frozen=True)
class Credentials:
    folder: Path

    def security(self) -> Any:
        """Returns Dask's settings, under which all links are encrypted.

        Raises `ClusterError` for files that no other process would accept.
        """
        self.check()
        return _security(*(str(self.folder / name) for name in (CA, CERTIFICATE, PRIVATE_KEY)))

    def check(self) -> None:
        trusted, certificate = load_certificates(self.folder / CA), load_certificates(self.folder / CERTIFICATE)[0]
        place, now = self.folder / CERTIFICATE, datetime.now(UTC)
        if certificate.not_valid_after_utc <= now:
            raise ClusterError(f"{place} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", _RENEW, 2)
        if certificate.not_valid_before_utc > now:
            fault = f"{place} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise ClusterError(fault, "set this machine's clock", 2)
        if not any(_issued(certificate, authority) for authority in trusted):
            fault = f"{place} is not signed by the authority in {CA}"
            raise ClusterError(fault, "give this machine the whole folder of its role", 2)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(place, self.folder / PRIVATE_KEY)
        except OSError as error:  # SSLError is one
            why = (
                "is not that of the certificate"
                if isinstance(error, ssl.SSLError)
                else f"cannot be read ({error.strerror})"
            )
            raise ClusterError(f"{self.folder / PRIVATE_KEY} {why}", _RENEW, 2) from None


def passing_security() -> Any:
    """Returns Dask's settings for a cluster that ends with this process. No other process has a certificate for it."""
    return _security(*passing_certificates())


def _security(authority: str, certificate: str, key: str) -> Any:
    from distributed import Security

    roles = {
        f"tls_{role}_{what}": pem
        for role in ("client", "scheduler", "worker")
        for what, pem in (("cert", certificate), ("key", key))
    }
    return Security(tls_ca_file=authority, require_encryption=True, **roles)


def connect(address: str, security: Any, timeout: float, who: str = "the scheduler") -> None:
    """Waits until the scheduler greets this process.

    Raises `ClusterError`, which names the cause: at once if certificates are refused, after `timeout` seconds if there is
    no answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _greeted(address, security)
        except ssl.SSLError as error:
            if (refusal := _certificate_cause(error)) is not None:
                raise ClusterError(f"{who} at {address}: {refusal[0]}", refusal[1]) from None
            cause = f"{error.reason or 'the TLS handshake failed'}"
        except OSError as error:
            cause = _network_cause(error)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{who} at {address} did not answer for {timeout:g} s: {cause}",
                "check that it runs, the address, name resolution and network policies, or raise runtime.start_timeout; "
                "the same command resumes",
            ) from None
        time.sleep(_RETRY_INTERVAL)


def address_here(address: str) -> str:
    """Returns this machine's address on the route to a scheduler. It sends nothing.

    Dask would use the route to the internet, or loopback if there is no such route.
    """
    host, port = _place(address)
    family, kind, number, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, number) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _greeted(address: str, security: Any) -> None:
    with socket.create_connection(_place(address), timeout=ANSWER_TIMEOUT) as connection:
        if address.startswith("tcp://"):
            greeting = connection.recv(1)
        else:
            context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
            with context.wrap_socket(connection) as link:
                greeting = link.recv(1)
    if not greeting:
        raise ConnectionResetError("the connection is closed at once")


def _certificate_cause(error: ssl.SSLError) -> tuple[str, str] | None:
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        fault = f"its certificate is refused here ({error.verify_message})"
        return fault, "give both sides certificates of one authority that have not expired: `dpdist cluster certs DIR`"
    if "ALERT" in reason and any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "BAD_CERT")):
        alert = reason.split("ALERT_")[-1].replace("_", " ").lower()
        fault = f"it refuses the certificate of this side ({alert})"
        return fault, "give both sides certificates of one authority that have not expired: `dpdist cluster certs DIR`"
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return (
            "it does not use TLS",
            "start it with certificates (`dpdist cluster scheduler --tls DIR`), or name the right port",
        )
    return None


def _network_cause(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there (connection refused)"
    if isinstance(error, TimeoutError):
        return "no answer (a firewall or network policy, a scheduler that hangs, or TLS at a tcp:// address)"
    return error.strerror or str(error) or type(error).__name__


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
