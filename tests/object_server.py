"""An S3 server to test against: moto's, in memory, a process of its own; and a link to it that can be cut.

It is the only one that Debian and PyPI offer with If-None-Match and If-Match: Debian's rclone has no `serve s3`, and its
radosgw needs a whole cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

KEY, SECRET = "AKIACANARY0KEY0IDENT", "canary/secret+of/tests"
BUCKET = "releases"
ALLOWED = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"]


class ObjectServer:
    """The server, with one versioned bucket; scratch folders of its clients go to `folder`. `page`: names of a list."""

    def __init__(self, folder: Path, page: int = 1000) -> None:
        self.port, self.folder = free_port(), folder
        told = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "INITIAL_NO_AUTH_ACTION_COUNT": "inf",
            "MOTO_S3_DEFAULT_MAX_KEYS": str(page),
        }
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, env=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.client("s3").create_bucket(Bucket=BUCKET)
        self.client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.url = f"http://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5):
                return True
        except OSError:
            return False

    def client(self, service: str) -> Any:
        import boto3

        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        return boto3.client(service, endpoint_url=f"http://127.0.0.1:{self.port}", **keys)

    def environment(self, key: str = KEY, secret: str = SECRET, port: int | None = None) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
            "DPDIST_SCRATCH": str(self.folder),
        }

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Every object below a prefix, by the name after it."""
        client = self.client("s3")
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        names = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return {n.removeprefix(f"{prefix}/"): client.get_object(Bucket=BUCKET, Key=n)["Body"].read() for n in names}

    def versions(self, prefix: str) -> dict[str, int]:
        """How often each object below a prefix was written."""
        pages = self.client("s3").get_paginator("list_object_versions").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        names = [one["Key"].removeprefix(f"{prefix}/") for page in pages for one in page.get("Versions", ())]
        return {name: names.count(name) for name in names}

    def user(self, name: str, actions: list[str]) -> tuple[str, str]:
        """Key and secret of a new user who may do these things."""
        iam, document = self.client("iam"), {"Effect": "Allow", "Action": actions, "Resource": "*"}
        iam.create_user(UserName=name)
        policy = json.dumps({"Version": "2012-10-17", "Statement": [document]})
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=policy)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def guard(self) -> None:
        """From now on credentials are checked."""
        request = urllib.request.Request(
            f"{self.url}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


class Link:
    """A way to a server that can be cut, as by a firewall that resets, and mended. `spoil`: a word of requests that
    does not arrive, as at a server that does not know it. `lists`: how often a list, or its next page, was asked for."""

    def __init__(self, port: int, spoil: bytes | None = None, host: str = "127.0.0.1") -> None:
        self.host, self.port, self._to, self._open, self._spoil = host, free_port(), port, False, spoil
        self.lists = 0
        self._pairs: list[socket.socket] = []
        self.mend()

    def mend(self) -> None:
        self._server = socket.create_server((self.host, self.port))
        self._open = True
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        self._open = False
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in self._pairs:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._pairs.clear()

    def _accept(self, server: socket.socket) -> None:
        while self._open:
            try:
                near, _ = server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._pairs += [near, far]
            for a, b, spoil in ((near, far, self._spoil), (far, near, None)):
                threading.Thread(target=self._pump, args=(a, b, spoil), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, spoil: bytes | None) -> None:
        try:
            while data := source.recv(65536):
                self.lists += data.count(b"list-type=2")
                sink.sendall(data.replace(spoil, b"x" * len(spoil)) if spoil else data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
