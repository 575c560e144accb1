"""Makes encrypted links to a scheduler: checks certificates first, and names the cause when there is no answer."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from dpdist.core.errors import ClusterError
from dpdist.runtime.certificates import CA, CERTIFICATE, PRIVATE_KEY, load_certificates, passing_certificates

ANSWER_TIMEOUT = 5.0
"""Seconds that one attempt waits for the scheduler's greeting."""
_RETRY_INTERVAL = 0.5
_RENEW = (
    "renew it with `dpdist cluster certs DIR` and give each machine the folder of its role "
    "(on Kubernetes the secret dpdist-tls-ROLE)"
)


@dataclass(frozen=True)
class Credentials:
    """The folder of a role: the authority that it trusts, its certificate, and its key."""

    folder: Path

    def security(self) -> Any:
        """Returns Dask's settings, under which all links are encrypted.

        Raises `ClusterError` for files that no other process would accept.
        """
        self.check()
        return _security(*(str(self.folder / name) for name in (CA, CERTIFICATE, PRIVATE_KEY)))

    def check(self) -> None:
        trusted, own = load_certificates(self.folder / CA), load_certificates(self.folder / CERTIFICATE)[0]
        place, now = self.folder / CERTIFICATE, datetime.now(UTC)
        if own.not_valid_after_utc <= now:
            raise ClusterError(f"{place} expired on {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", _RENEW, 2)
        if own.not_valid_before_utc > now:
            found = f"{place} is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise ClusterError(found, "set this machine's clock", 2)
        if not any(_issued(own, authority) for authority in trusted):
            found = f"{place} is not signed by the authority in {CA}"
            raise ClusterError(found, "give this machine the folder of its role, whole", 2)
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
    """Returns Dask's settings with one certificate for all roles, given as paths or as PEM texts."""
    from distributed import Security

    roles = {
        f"tls_{role}_{what}": said
        for role in ("client", "scheduler", "worker")
        for what, said in (("cert", certificate), ("key", key))
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
            if (found := _certificate_cause(error)) is not None:
                raise ClusterError(f"{who} at {address}: {found[0]}", found[1]) from None
            cause = f"{error.reason or 'the TLS handshake failed'}"
        except OSError as error:
            cause = _network_cause(error)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{who} at {address} did not answer for {timeout:g} s: {cause}",
                "look whether it runs, the address, name resolution and network policies, or raise runtime.start_timeout; "
                "the same command resumes",
            ) from None
        time.sleep(_RETRY_INTERVAL)


def address_here(address: str) -> str:
    """Returns this machine's address on the route to a scheduler. It sends nothing.

    Dask would take the route to the internet, or loopback where there is no such route.
    """
    host, port = _place(address)
    family, kind, number, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, number) as asked:
        asked.connect(target)
        return str(asked.getsockname()[0])


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _greeted(address: str, security: Any) -> None:
    """Waits for the scheduler's greeting, which it sends only after it has accepted this process's certificate."""
    with socket.create_connection(_place(address), timeout=ANSWER_TIMEOUT) as plain:
        if address.startswith("tcp://"):
            greeting = plain.recv(1)
        else:
            context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
            with context.wrap_socket(plain) as link:
                greeting = link.recv(1)
    if not greeting:
        raise ConnectionResetError("the connection is closed at once")


def _certificate_cause(error: ssl.SSLError) -> tuple[str, str] | None:
    """What is wrong with the certificates, and the remedy; None for a cause that may pass by itself."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        found = f"its certificate is refused here ({error.verify_message})"
        return found, "give both sides certificates of one authority that have not expired: `dpdist cluster certs DIR`"
    if "ALERT" in reason and any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "BAD_CERT")):
        said = reason.split("ALERT_")[-1].replace("_", " ").lower()
        found = f"it refuses the certificate of this side ({said})"
        return found, "give both sides certificates of one authority that have not expired: `dpdist cluster certs DIR`"
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return (
            "it speaks no TLS",
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
