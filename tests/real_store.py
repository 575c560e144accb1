"""A real S3 server to test against, MinIO, and a way to it on which some requests fail."""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from object_server import BUCKET, KEY, SECRET, free_port

BUILD = Path(__file__).parent / "deploy" / "build_store.sh"
CACHE = Path.home() / ".cache" / "dpdist-tests"
_DROPPED = {"connection", "transfer-encoding", "keep-alive"}


def program() -> Path:
    """MinIO's program: the one that DPDIST_MINIO names, or one that is built here once."""
    named = Path(os.environ.get("DPDIST_MINIO", CACHE / "minio"))
    if not named.is_file():
        subprocess.run([BUILD, named.parent], check=True, timeout=5400)
    return named


@contextmanager
def minio(folder: Path, host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a server with one versioned bucket."""
    import boto3

    port = free_port()
    told = {**os.environ, "MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    command = [program(), "server", "--quiet", "--address", f"{host}:{port}", folder]
    process = subprocess.Popen(command, env=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not _alive(host, port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield port
    finally:
        process.kill()
        process.wait()


def _alive(host: str, port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/minio/health/ready", timeout=5):
        return True
    return False


class Way(ThreadingHTTPServer):
    """To a server on this machine. Of all requests a proportion fails: every other one before it arrives (503), the others
    when it has done its work, but the answer is lost."""

    daemon_threads = True

    def __init__(self, port: int, failing: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.to, self.failing = port, failing
        self.chance, self.lock = random.Random(1), threading.Lock()
        self.requests = self.lists = self.refused = self.lost = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def fate(self, path: str) -> str:
        with self.lock:
            self.requests += 1
            self.lists += "list-type=2" in path
            if self.chance.random() >= self.failing:
                return "passes"
            kind = "refused" if self.refused <= self.lost else "lost"
            setattr(self, kind, getattr(self, kind) + 1)
            return kind

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no fault of the way."""


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Way

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fate = self.server.fate(self.path)
        if fate == "refused":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        link = http.client.HTTPConnection("127.0.0.1", self.server.to, timeout=60)
        link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _DROPPED:
                link.putheader(name, value)
        link.endheaders(body or None)
        answer = link.getresponse()
        data = answer.read()
        link.close()
        if fate == "lost":
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {*_DROPPED, "server", "date", "content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
