"""What another user of this machine can make of the ports of a run: python intruder.py FILE SCHEDULER_PORT [PORT]...

As JSON. `plain`, `other_certificate`: what a Dask client got of FILE by code that the scheduler ran. `greeted`: the ports
that said a word to a plain link, or to TLS without a certificate. `pages`: what was shown over HTTP. It starts as root,
because a package may lie where nobody else can read, and gives all rights up before it speaks to a port.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
import warnings
from pathlib import Path

from distributed import Client, LocalCluster, Security

NOBODY = 65534
PATIENCE = 2.0
PAGES = ("/info/main/workers.html", "/json/identity.json", "/status", "/metrics", "/health")


def main() -> None:
    file, scheduler, *others = sys.argv[1:]
    with LocalCluster(0, processes=False, dashboard_address=None, security=True) as own, Client(own) as client:
        client.run_on_scheduler(os.getuid)  # everything is imported by now
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        Path(file).read_text()
    except PermissionError:
        print(json.dumps(_found(file, int(scheduler), list(map(int, others)))))


def _found(file: str, scheduler: int, others: list[int]) -> dict[str, object]:
    ports = [scheduler, *others]
    return {
        "plain": _read(f"tcp://127.0.0.1:{scheduler}", None, file),
        "other_certificate": _read(f"tls://127.0.0.1:{scheduler}", Security.temporary(), file),
        "greeted": [port for port in ports if _greeting(port, False) or _greeting(port, True)],
        "pages": [page for port in ports for page in _pages(port)],
    }


def _read(address: str, security: Security | None, file: str) -> str | None:
    warnings.simplefilter("ignore")
    try:
        with Client(address, security=security, timeout=PATIENCE) as client:
            return str(client.run_on_scheduler(lambda: Path(file).read_text()))
    except Exception:  # a TLS client has many words for "nothing came"
        return None


def _greeting(port: int, encrypted: bool) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
            if not encrypted:
                return bool(link.recv(1))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(link) as inside:
                return bool(inside.recv(1))
    except OSError:
        return False


def _pages(port: int) -> list[str]:
    shown, link = [], http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        for page in PAGES:
            link.request("GET", page)
            answer = link.getresponse()
            answer.read()
            shown += [f"{port}{page}"] if answer.status < 400 else []
    except (OSError, http.client.HTTPException):
        pass
    finally:
        link.close()
    return shown


if __name__ == "__main__":
    main()
