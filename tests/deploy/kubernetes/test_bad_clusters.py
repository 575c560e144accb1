"""What goes wrong in a cluster: Kubernetes, or the log of the driver, names the cause and the remedy."""

from __future__ import annotations

import datetime as dates
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes import CONTROL, Cluster
from object_server import BUCKET, KEY, SECRET as SECRET_KEY, Link, ObjectServer
from pods import DEPLOY, Objects, Release

from dpdist.runtime import tls

pytestmark = [pytest.mark.slow, pytest.mark.namespaces]
JOB = DEPLOY / "overlays" / "release" / "job.yaml"
SECRET = "dpdist-tls-driver"


@pytest.fixture
def release(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Release]:
    made = Release(cluster, request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-"))
    yield made
    made.close()


def applied(release: Release, *said: object, change: Callable[[Objects], None] = lambda objects: None) -> None:
    objects = release.manifests(JOB, "--workers", "1", "--set", "runtime.start_timeout=20", *said)
    change(objects)
    release.apply(objects)


def credentials(release: Release) -> Path:
    path = release.folder / "credentials"
    path.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    return path


def in_bucket(port: int) -> tuple[str, ...]:
    return ("--workspace", f"s3://{BUCKET}/release", "--store", f"{CONTROL}/32", "--region", "us-east-1",
            "--endpoint", f"http://{CONTROL}:{port}")  # fmt: skip


def allow_http(objects: Objects) -> None:
    """The store of the tests speaks no TLS, and listens on a port of its own."""
    for one in (*of_kind(objects, "Job"), *of_kind(objects, "Deployment")):
        for container in one["spec"]["template"]["spec"]["containers"]:
            container["env"] = [*container.get("env", []), {"name": "AWS_ALLOW_HTTP", "value": "true"}]


def of_kind(objects: Objects, kind: str) -> Objects:
    return [one for one in objects if one["kind"] == kind]


def said_by_driver(release: Release, *words: str) -> str:
    """The driver's log, which says all of this."""
    logs = [""]

    def found() -> bool:
        logs.append(release.logs("driver"))
        return all(word in logs[-1] for word in words)

    release.cluster.until(found, f"{words} in the log of the driver", 300)
    return logs[-1]


def final(release: Release, *words: str) -> None:
    """The driver says it, and its Job is not tried again."""
    said_by_driver(release, *words)
    release.cluster.until(lambda: release.job_state() == "Failed PodFailurePolicy", "the end of the Job", 60)


def told(release: Release, role: str, *words: str) -> None:
    """`kubectl describe` of a role's pod says it."""
    release.cluster.until(
        lambda: all(
            word in release.kubectl("describe", "pod", "-l", f"app.kubernetes.io/component={role}") for word in words
        ),
        f"{words} of the {role}",
        120,
    )


def test_image_of_another_digest(release: Release) -> None:
    def change(objects: Objects) -> None:
        (job,) = of_kind(objects, "Job")
        job["spec"]["template"]["spec"]["containers"][0]["image"] = f"registry.example/dpdist@sha256:{'0' * 64}"

    applied(release, change=change)
    told(release, "driver", "ErrImagePull", f"registry.example/dpdist@sha256:{'0' * 64}")


def test_secret_that_is_missing(release: Release) -> None:
    release.kubectl("delete", "secret", SECRET)
    applied(release)
    final(release, "/etc/dpdist/tls/ca.crt cannot be read", "(on Kubernetes the secret dpdist-tls-ROLE)")


def test_secret_of_the_store_that_is_missing(release: Release) -> None:
    applied(release, *in_bucket(9000), change=allow_http)
    final(release, "/etc/dpdist/store/credentials, which AWS_SHARED_CREDENTIALS_FILE names, cannot be read", "mount it")


def test_secret_of_the_ledger_that_is_missing(release: Release) -> None:
    applied(release, "--ledger", "192.0.2.7/32:5432")
    final(release, "ledger @/etc/dpdist/ledger/url: it cannot be read", "name a file with a ledger's URL")


def test_quota_that_is_used_up(release: Release) -> None:
    def change(objects: Objects) -> None:
        of_kind(objects, "ResourceQuota")[0]["spec"]["hard"]["pods"] = "0"

    applied(release, change=change)
    release.cluster.until(
        lambda: "exceeded quota: dpdist" in release.kubectl("describe", "job", "dpdist-release"), "the quota"
    )


def test_quota_without_room_for_workers(release: Release) -> None:
    def change(objects: Objects) -> None:
        (workers,) = [one for one in of_kind(objects, "Deployment") if one["metadata"]["name"] == "dpdist-worker"]
        workers["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64"
        workers["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "64"

    applied(release, change=change)
    said_by_driver(release, "has no workers")
    told(release, "worker", "Insufficient cpu")


def test_workspace_that_cannot_be_written(release: Release) -> None:
    def change(objects: Objects) -> None:
        for one in (*of_kind(objects, "Job"), *of_kind(objects, "Deployment")):
            for mount in one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
                mount["readOnly"] = mount.get("readOnly", False) or mount["name"] == "workspace"

    applied(release, change=change)
    said_by_driver(release, "workspace /workspace/release: cannot be written (Read-only file system)")


def test_workspace_of_another_user(release: Release) -> None:
    (release.folder / "workspace").chmod(0o700)
    os.chown(release.folder / "workspace", 0, 0)
    applied(release)
    said_by_driver(release, "Permission denied: /workspace/release", "access; the same command resumes")


def test_clock_an_hour_slow(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a node whose clock is an hour slow, a certificate of now begins in an hour."""

    class Later(dates.datetime):
        @classmethod
        def now(cls, tz: dates.tzinfo | None = None) -> dates.datetime:  # type: ignore[override]
            return dates.datetime.now(tz) + dates.timedelta(hours=1)

    monkeypatch.setattr(tls, "datetime", Later)
    tls.make_certificates(release.folder / "later", days=1)
    release.secret(SECRET, f"--from-file={release.folder / 'later' / 'driver'}")
    applied(release)
    final(release, "/etc/dpdist/tls/tls.crt is not valid before", "set this machine's clock")


def test_store_without_conditional_writes(release: Release) -> None:
    server = ObjectServer(release.folder / "store")
    link = Link(server.port, b"if-none-match", host=CONTROL)
    try:
        release.secret("dpdist-store", f"--from-file={credentials(release)}")
        applied(release, *in_bucket(link.port), change=allow_http)
        final(release, "the store ignores conditional writes (If-None-Match)", "use a store that supports them")
    finally:
        link.cut()
        server.close()
