"""The shipped overlays on a real cluster: each release to its end, with the bytes of a serial run of the same image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dask_kubernetes
import pytest
from network import has_calico
from node_images import PAUSE
from nodes import CONTROL, Cluster
from object_server import BUCKET, KEY, SECRET
from pod_campaign import campaign, strict_job
from pod_faults import processes
from pods import DEPLOY, SHARE, USER, Release
from policies import Policies
from real_store import minio
from rendering import render
from test_bad_clusters import allow_http, credentials, in_bucket

from dpdist.cli.scheduled import last_period, time_of

pytestmark = [pytest.mark.slow, pytest.mark.namespaces]
SHIPPED = DEPLOY / "overlays" / "release" / "job.yaml"


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Release]:
    made = Release(cluster)
    yield made
    made.close()


@pytest.fixture
def enforced(cluster: Cluster) -> Iterator[None]:
    """Network policies in force: by Calico where it was built, otherwise by rules that the tests write."""
    if has_calico(cluster.programs):
        yield
        return
    made = Policies(cluster)
    made.start()
    yield
    assert made.written.is_set()
    made.end()


STRANGER = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}}
STRANGER |= {"spec": {"containers": [{"name": "one", "image": PAUSE}], "terminationGracePeriodSeconds": 1}}
"""A pod that does nothing, and says nothing of its security."""


@pytest.mark.usefixtures("enforced")
def test_a_release_under_pod_security_and_network_policies(release: Release) -> None:
    release.apply_overlay("release")
    assert release.cluster.kubectl("get", "namespace", release.namespace, "-o", "json").count('enforce": "restricted"') == 1
    with pytest.raises(RuntimeError, match="violates PodSecurity"):
        release.apply([STRANGER])
    assert release.until_ended() == "Complete CompletionsReached", release.logs("driver")
    assert_closed(release)
    assert release.same_bytes(render(DEPLOY / "overlays" / "release"))


def assert_closed(release: Release) -> None:
    """From another namespace nobody reaches the scheduler, and no worker reaches the API server.

    Control: the same pod of the other namespace reaches the server of names and the API server.
    """
    cluster = release.cluster
    cluster.kubectl("apply", "-f", "-", text=json.dumps(STRANGER))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s")
    said = cluster.kubectl("-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "json")
    (uid,) = [json.loads(cluster.kubectl("get", "pod", "stranger", "-o", "json"))["metadata"]["uid"]]
    (pid, *_) = [number for number, line in processes(cluster, uid) if "pause" in line]
    assert reaches(pid, json.loads(said)["items"][0]["status"]["podIP"], 53)
    assert reaches(pid, CONTROL, 6443)
    assert not reaches(pid, release.pods("scheduler")[0]["status"]["podIP"], 8786)
    (worker, *_) = processes(cluster, release.pods("worker")[0]["metadata"]["uid"])
    assert not reaches(worker[0], CONTROL, 6443)
    cluster.kubectl("delete", "pod", "stranger")


def reaches(pid: int, address: str, port: int) -> bool:
    """True if a process on that one's network can connect."""
    line = f"import socket; socket.create_connection(('{address}', {port}), 3)"
    said = ["nsenter", "--net", "--target", str(pid), sys.executable, "-c", line]
    return subprocess.run(said, capture_output=True, check=False).returncode == 0


def test_a_cron_job_is_fired(release: Release) -> None:
    release.apply_overlay("periodic")
    release.kubectl("scale", "deployment/dpdist-worker", "--replicas=2")  # the nodes have no room for more and a driver
    release.kubectl("patch", "cronjob", "dpdist-release", "-p", json.dumps({"spec": {"schedule": "* * * * *"}}))
    release.cluster.until(lambda: jobs(release), "the first Job", 120)
    release.kubectl("patch", "cronjob", "dpdist-release", "-p", json.dumps({"spec": {"suspend": True}}))
    (name, *_) = jobs(release)
    assert release.until_ended(name) == "Complete CompletionsReached", release.logs("driver")
    release.place = last_period("quarter", time_of(name))
    assert release.same_bytes(render(DEPLOY / "overlays" / "release"), release.place)


def jobs(release: Release) -> list[str]:
    return [one["metadata"]["name"] for one in json.loads(release.kubectl("get", "jobs", "-o", "json"))["items"]]


FOR_GROWTH = 2500
"""Strata that keep one worker busy for minutes: the autoscaler looks at metrics that are a minute old."""


def test_workers_follow_the_load(release: Release, tmp_path: Path) -> None:
    release.cluster.add("metrics.yaml")
    release.cluster.kubectl(
        "-n", "kube-system", "wait", "--for=condition=Available", "deployment/metrics-server", "--timeout=180s"
    )
    release.apply_overlay("hpa", release.taken(strict_job(tmp_path, FOR_GROWTH)))
    release.kubectl("set", "resources", "deployment/dpdist-worker", f"--requests=cpu={SHARE}")
    release.kubectl("scale", "deployment/dpdist-worker", "--replicas=1")
    seen, began = dict[int, float](), time.monotonic()  # two run for a moment, while the change of requests is rolled out

    def ended() -> bool:
        seen.setdefault(len(release.running("worker")), round(time.monotonic() - began))
        return bool(release.job_state())

    release.cluster.until(ended, "the end of the release", 1500)
    print(f"workers, and the seconds after which so many ran: {seen}")
    assert release.job_state() == "Complete CompletionsReached", release.logs("driver")
    assert max(seen) > 2, release.kubectl("describe", "hpa", "dpdist-worker")
    assert release.same_bytes(render(DEPLOY / "overlays" / "hpa"))


@pytest.fixture
def operator(cluster: Cluster) -> Iterator[None]:
    """The Dask operator of PyPI, as a process beside the control plane."""
    cluster.kubectl("apply", "--server-side", "-f", CRDS)
    cluster.kubectl("wait", "--for=condition=Established", "-f", CRDS, "--timeout=60s")
    line = ["-m", "kopf", "run", "--standalone", "--all-namespaces", "-m", "dask_kubernetes.operator.controller"]
    with (cluster.folder / "logs" / "operator").open("ab") as log:
        env = {**os.environ, "KUBECONFIG": str(cluster.config("admin"))}
        process = subprocess.Popen([sys.executable, *line], stdout=log, stderr=log, env=env)
    yield
    process.terminate()
    process.wait(timeout=60)


CRDS = Path(dask_kubernetes.__file__).with_name("operator") / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"


@pytest.mark.usefixtures("operator")
def test_a_dask_job_by_its_operator(release: Release) -> None:
    release.apply_overlay("operator")

    def ended() -> bool:
        said = json.loads(release.kubectl("get", "daskjob", "dpdist", "-o", "json")).get("status", {})
        return said.get("jobStatus") in ("Successful", "Failed")

    release.cluster.until(ended, "the end of the DaskJob", 900)
    said = json.loads(release.kubectl("get", "daskjob", "dpdist", "-o", "json"))["status"]
    assert said["jobStatus"] == "Successful", release.logs("driver")
    assert release.same_bytes(render(DEPLOY / "overlays" / "release"))


@pytest.mark.usefixtures("enforced")
def test_a_release_in_an_object_store(release: Release, tmp_path: Path) -> None:
    with minio(tmp_path / "store", host=CONTROL) as port:
        release.secret("dpdist-store", f"--from-file={credentials(release)}")
        objects = release.manifests(SHIPPED, "--workers", "2", *in_bucket(port))
        allow_http(objects)
        release.apply(objects)
        assert release.until_ended() == "Complete CompletionsReached", release.logs("driver")
        bring(release, port)
    folder = release.manifests(SHIPPED, "--workers", "2")
    release.apply([one for one in folder if one["kind"] == "PersistentVolumeClaim"])
    assert release.same_bytes(folder)


def bring(release: Release, port: int) -> None:
    """The workspace from the bucket into the folder where that of a release without a bucket is."""
    import boto3

    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{CONTROL}:{port}", **keys)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="release/"):
        for one in page["Contents"]:
            path = release.workspace.parent / one["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(BUCKET, one["Key"], str(path))
    for path in (release.workspace, *release.workspace.rglob("*")):
        os.chown(path, USER, USER)


def test_sixty_faults_lose_nothing_and_draw_nothing_again(release: Release, tmp_path: Path) -> None:
    found = campaign(release, strict_job(tmp_path, 600), 600)
    print(json.dumps(found, indent=2))
    assert int(str(found["faults"])) >= 60
    assert (found["lost"], found["redrawn"], found["finished files changed"]) == (0, 0, 0)
    assert found["serial bytes"]
