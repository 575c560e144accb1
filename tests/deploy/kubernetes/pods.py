"""One release in a namespace of a real cluster: its volumes and secrets, what `kubectl` says of it, its serial twin."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from nodes import Cluster

from dpdist.runtime.tls import make_certificates
from dpdist.storage.workspace import Workspace

sys.path += [str(Path(__file__).parents[up] / name) for up, name in ((2, "faults"), (1, ""), (2, ""))]
from campaign import public_bytes

IMAGE, USER = "registry.example/dpdist:0.3.0", 10001
DEPLOY = Path(__file__).parents[3] / "deploy"
SHARE = "200m"
"""What a pod asks of a node's processors: the nodes of a test are one machine, whose processors each counts as its own."""
NAME = "app.kubernetes.io/name=dpdist"
Objects = list[dict[str, Any]]


class Release:
    """Volumes that every node sees, certificates and secrets; what is applied to the namespace is the caller's."""

    place = "release"
    """The folder of the workspace within its claim."""

    def __init__(self, cluster: Cluster, namespace: str = "dpdist") -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, cluster.folder / "releases" / namespace
        for name in ("workspace", "input"):
            (self.folder / name).mkdir(parents=True)
            os.chown(self.folder / name, USER, USER)
        make_certificates(self.folder / "certificates", days=1)
        volumes = [self._volume(name) for name in ("workspace", "input")]
        self.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(volumes))
        self.cluster.kubectl("create", "namespace", namespace, "--save-config")
        for role in ("scheduler", "worker", "driver"):
            self.secret(f"dpdist-tls-{role}", f"--from-file={self.folder / 'certificates' / role}")

    def _volume(self, name: str) -> dict[str, Any]:
        """Storage of this machine, which every node sees at one path."""
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{self.namespace}-{name}"},
            "spec": {
                "capacity": {"storage": "50Gi"},
                "accessModes": ["ReadWriteMany", "ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self.namespace, "name": f"dpdist-{name}"},
                "hostPath": {"path": str(self.folder / name)},
            },
        }

    def secret(self, name: str, *said: str) -> None:
        made = self.kubectl("create", "secret", "generic", name, *said, "--dry-run=client", "-o", "yaml")
        self.kubectl("apply", "-f", "-", text=made)

    def kubectl(self, *said: object, text: str | None = None, check: bool = True) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *said, text=text, check=check)

    def apply(self, objects: Objects) -> None:
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def apply_overlay(self, name: str, job: str | None = None) -> None:
        """`kubectl apply -k` of a shipped overlay, with a job of the caller's where one is given."""
        overlays = DEPLOY / "overlays"
        if job is not None:
            shutil.copytree(DEPLOY, self.folder / "deploy")
            overlays = self.folder / "deploy" / "overlays"
            own = overlays / name / "job.yaml"  # an overlay of another one takes its job
            (own if own.exists() else overlays / "release" / "job.yaml").write_text(job)
        self.kubectl("apply", "-k", overlays / name)

    def manifests(self, job: Path, *said: object) -> Objects:
        """`dpdist cluster manifests`; the input of the job is put into its claim."""
        line = [
            sys.executable,
            "-m",
            "dpdist",
            "cluster",
            "manifests",
            job,
            "--namespace",
            self.namespace,
            "--image",
            IMAGE,
        ]
        done = subprocess.run([*map(str, [*line, *said])], capture_output=True, text=True, check=True)
        self.taken(job)
        objects = list(yaml.safe_load_all(done.stdout))
        for one in objects:
            for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
                container["resources"]["requests"]["cpu"] = SHARE
        return objects

    def taken(self, job: Path) -> str:
        """The job as the driver finds it, whose input has been put into the claim."""
        said = yaml.safe_load(job.read_text())
        if (path := said["input"].get("path")) is not None:
            shutil.copy(path, self.folder / "input")
            said["input"]["path"] = f"/input/{Path(path).name}"
        return str(yaml.safe_dump(said))

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace" / self.place

    def job_state(self, name: str = "dpdist-release") -> str:
        """`Complete`, `Failed` with the reason, or nothing while it goes on."""
        said = json.loads(self.kubectl("get", "job", name, "-o", "json"))["status"].get("conditions", [])
        ends = [one for one in said if one["status"] == "True" and one["type"] in ("Complete", "Failed")]
        return " ".join([ends[0]["type"], ends[0].get("reason", "")]).strip() if ends else ""

    def until_ended(self, name: str = "dpdist-release", patience: float = 900.0) -> str:
        self.cluster.until(lambda: self.job_state(name), f"the end of {name}", patience)
        return self.job_state(name)

    def serial(self, objects: Objects, patience: float = 900.0, period: str | None = None) -> Path:
        """The same release, replayed with the same keys in one process of one pod of the same image."""
        (job,) = [json.loads(json.dumps(one)) for one in objects if one["kind"] == "Job"]
        job["metadata"]["name"] = "serial"
        job["spec"].pop("podFailurePolicy", None)
        spec = job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        container["args"] = ["run", "/etc/dpdist/job/job.yaml", "--workspace", "/workspace/serial", "--quiet"]
        container["args"] += ["--replay", f"/workspace/{self.place}/confidential", "--set", "runtime.executor=serial"]
        container["args"] += ["--set", f'period="{period}"'] if period is not None else []
        container["env"] = [one for one in container["env"] if one["name"] != "DPDIST_SCHEDULER"]
        self.apply([job])
        assert self.until_ended("serial", patience) == "Complete CompletionsReached", self.logs("driver")
        return self.folder / "workspace" / "serial"

    def same_bytes(self, objects: Objects, period: str | None = None) -> bool:
        return public_bytes(self.workspace) == public_bytes(self.serial(objects, period=period))

    def pods(self, role: str) -> list[dict[str, Any]]:
        said = self.kubectl("get", "pods", "-l", f"{NAME},app.kubernetes.io/component={role}", "-o", "json")
        return list(json.loads(said)["items"])

    def running(self, role: str) -> list[str]:
        """Names of a role's pods that run and are not about to end."""
        found = (pod for pod in self.pods(role) if pod["status"]["phase"] == "Running")
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def logs(self, role: str) -> str:
        """What the containers of a role have written; those of pods that are gone are gone."""
        said = ("logs", "-l", f"{NAME},app.kubernetes.io/component={role}", "--tail=-1", "--ignore-errors")
        return self.kubectl(*said, check=False)

    def described(self, kind: str, name: str) -> str:
        return self.kubectl("describe", kind, name)

    def lost(self, strata: int) -> int:
        """Strata without a mark whose files are all whole."""
        space = Workspace(self.workspace)
        units = [space.part("strata", k).name for k in range(strata)]
        return sum(not space.finished(unit) for unit in units)

    def close(self) -> None:
        self.cluster.kubectl(
            "delete", "namespace", self.namespace, "--ignore-not-found", "--grace-period=1", "--timeout=180s"
        )
        for name in ("workspace", "input"):
            self.cluster.kubectl("delete", "pv", f"{self.namespace}-{name}", "--ignore-not-found")
        shutil.rmtree(self.folder)
