"""A job's Kubernetes manifests: the shipped ones, with the sizes of its plan."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from ipaddress import ip_network
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from dpdist.core.errors import JobError, Problem, escape
from dpdist.job import Job
from dpdist.job.loading import OPENED_LATER, SourcedKeys
from dpdist.job.yaml_lines import as_yaml, documents, keys_of, written_documents
from dpdist.planning.blocks import log_lik_bytes
from dpdist.planning.plan import Plan
from dpdist.runtime.services import NANNY_BYTES

KEYS = {"apiVersion", "kind", "namespace", "resources", "patches", "images", "configMapGenerator", "generatorOptions"}
CLUSTERED = {"Namespace"}
LISTS = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
"""Lists in manifests, each with the key that identifies its entries."""
Objects: TypeAlias = list[dict[str, Any]]


def shipped() -> Path:
    """Returns the folder of manifests shipped with dpdist. In a source checkout the folder is next to the package."""
    inside = Path(str(resources.files("dpdist") / "deploy"))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "deploy"


def render(folder: Path) -> Objects:
    """Renders the objects of a kustomization. Raises `ValueError` for an unknown key of kustomize."""
    (kustomization,) = documents((folder / "kustomization.yaml").read_text())
    if unknown := kustomization.keys() - KEYS:
        raise ValueError(f"{folder}: this renderer does not know {sorted(unknown)}")
    objects: Objects = []
    for name in kustomization.get("resources", []):
        path = folder / name
        objects += render(path) if path.is_dir() else documents(path.read_text())
    for manifest in kustomization.get("configMapGenerator", []):
        assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}
        data = {name: (folder / name).read_text() for name in manifest["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": manifest["name"]}, "data": data})
    for manifest in kustomization.get("patches", []):
        for patch in documents((folder / manifest["path"]).read_text()):
            apply(patch, objects)
    for image in kustomization.get("images", []):
        _name_images(objects, image)
    for manifest in objects:
        if "namespace" in kustomization and manifest["kind"] not in CLUSTERED:
            manifest["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def pick(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (manifest,) = [manifest for manifest in objects if manifest["kind"] == kind and manifest["metadata"]["name"] == name]
    return manifest


def _identity(manifest: dict[str, Any]) -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def apply(patch: dict[str, Any], objects: Objects) -> None:
    """Merges a patch into the object that it names, or deletes that object."""
    (target,) = [k for k, manifest in enumerate(objects) if _identity(manifest) == _identity(patch)]
    if patch.get("$patch") == "delete":
        del objects[target]
    else:
        objects[target] = _patch(objects[target], patch)


def _patch(old: Any, new: Any, name: str = "") -> Any:
    """Merges a patch by kustomize's rules: mappings by key, null deletes, known lists by the key of their entries."""
    if isinstance(old, dict) and isinstance(new, dict):
        result = {k: v for k, v in old.items() if k not in new}
        result |= {k: _patch(old.get(k), v, k) for k, v in new.items() if v is not None}
        return result
    if isinstance(old, list) and isinstance(new, list) and name in LISTS:
        key, by_name = LISTS[name], {entry[LISTS[name]]: entry for entry in old}
        for entry in new:
            by_name[entry[key]] = _patch(by_name.get(entry[key], {}), entry)
        return list(by_name.values())
    return copy.deepcopy(new)


def _name_images(value: Any, image: dict[str, str]) -> None:
    if isinstance(value, list):
        for entry in value:
            _name_images(entry, image)
    elif isinstance(value, dict):
        if isinstance(image_name := value.get("image"), str) and image_name.partition(":")[0] == image["name"]:
            value["image"] = f"{image['newName']}:{image['newTag']}"
        for entry in value.values():
            _name_images(entry, image)


HEADROOM = 1.1
"""Factor by which a process has more memory than was projected; a worker is ended at 95 % of its own."""
WORKSPACE_HEADROOM = 1.25
STEP = 64 * 2**20
STORED_BYTES = 240
"""Bytes of a record in a workspace."""
LEAST_WORKSPACE = 10 * 2**30
SHIPPED_WORKSPACE = 50 * 2**30
"""Bytes of the volume claim in deploy/common/storage.yaml."""


def worker_memory(plan: Plan) -> int:
    """Returns the bytes of a worker's container: the largest task with headroom, and the process that watches the worker.

    If the job keeps sizes confidential, the job's limit for a worker is used in place of the largest task.
    """
    allowed = int(plan.job.runtime.memory_per_worker)
    needed = allowed if plan.job.sizes_secret else plan.largest_task_bytes * HEADROOM
    return ceil((needed + NANNY_BYTES) / STEP) * STEP


def driver_memory(plan: Plan) -> int:
    """Returns the bytes of the driver's container: what publishing needs, with headroom."""
    needed = ceil(plan.publishing_bytes * HEADROOM / STEP) * STEP
    return needed if plan.cost is not None else max(DRIVER_MEMORY, needed)


def workers_of(plan: Plan, most: int) -> int:
    """Returns the number of workers that get a task; it is `most` if the number of tasks is confidential."""
    return most if plan.job.sizes_secret else min(most, tasks(plan, most))


def workspace_bytes(plan: Plan) -> int:
    """Returns the bytes of a workspace, which holds tensors and draws once and the records twice.

    If sizes are confidential, it is the size of the shipped claim.
    """
    if plan.job.sizes_secret:
        return SHIPPED_WORKSPACE
    crosstab, layout = plan.crosstab, plan.layout
    tensors = log_lik_bytes(crosstab, layout.draws) if layout.log_lik else 0
    draws = 8 * layout.draws * (layout.parameters + 1) * len(crosstab.stratum_labels)
    needed = WORKSPACE_HEADROOM * (tensors + draws + 2 * STORED_BYTES * int(crosstab.count.sum()))
    return max(LEAST_WORKSPACE, ceil(needed / 2**30) * 2**30)


def tasks(plan: Plan, workers: int) -> int:
    """Returns the number of tasks that can run at once: bins of small strata, and record spans of the largest stratum."""
    layout = plan.layout
    return max(1, len(layout.bins(workers)) + max((len(layout.spans(k)) for k in layout.giants), default=0))


def worker_patch(plan: Plan, workers: int) -> dict[str, Any]:
    """Returns a strategic merge patch for the Deployment of the workers."""
    memory = f"{worker_memory(plan) // 2**20}Mi"
    resources = {"requests": {"cpu": "1", "memory": memory}, "limits": {"cpu": "1", "memory": memory}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "dpdist-worker", "namespace": "dpdist"},
        "spec": {
            "replicas": workers_of(plan, workers),
            "template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}},
        },
    }


INPUT, WORKSPACE, LEDGER = "/input", "/workspace", "/etc/dpdist/ledger"
"""Paths at which the driver, the process that runs the release, finds them."""
JOB = "job.yaml"
"""File name of the job."""
BESIDE_JOB = "/etc/dpdist/job"
"""Folder of the ConfigMap with the job and its files."""
DRIVER_MEMORY = 2 * 2**30
"""Least memory of a driver, in bytes, if the plan has no cost."""
MOST_OF_CONFIG_MAP, MOST_APPLIED = 2**20, 250_000
"""Largest ConfigMap, and largest that client-side `kubectl apply` can hold in its annotation, in bytes."""
SPARE_PODS = 8
"""Number of pods besides the workers: scheduler, driver, and pods that replace others."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSIONED = re.compile(r"[^\s@]+(@sha256:[0-9a-f]{64}|:(?!latest$)[\w][\w.-]*)")
_BUCKET = re.compile(r"s3://[^/\s]+(/\S*)?")
_FOLDER = re.compile(r"/workspace(/[\w.-]*\w)+")


@dataclass(frozen=True)
class ManifestPlace:
    """The facts of the cluster in which a job is to run.

    `store` (network addresses), `region` and `endpoint` are for a workspace in an object store. `ledger` is the address of
    the ledger's server, as CIDR:port.
    """

    namespace: str
    image: str
    workers: int = 32
    workspace: str = "/workspace/release"
    storage_class: str | None = None
    store: tuple[str, ...] = ()
    region: str | None = None
    endpoint: str | None = None
    ledger: str | None = None

    @property
    def in_bucket(self) -> bool:
        return "://" in self.workspace

    @property
    def store_port(self) -> int:
        """The port of the bucket's store: that of its URL, or the one of its scheme."""
        url = urlsplit(self.endpoint or "https:")
        return url.port or {"http": 80}.get(url.scheme, 443)

    def problems(self) -> Iterator[Problem]:
        """Lists values that a cluster would refuse, or that would make the run fail there."""
        if not _LABEL.fullmatch(self.namespace):
            allowed = "a name of at most 63 lower-case letters, digits and hyphens"
            yield Problem("--namespace", f"'{self.namespace}'", allowed, "give another name")
        if not _VERSIONED.fullmatch(self.image):
            allowed = "an image with its digest, or with a tag other than latest"
            yield Problem("--image", f"'{self.image}'", allowed, "name it as REGISTRY/dpdist@sha256:…")
        if not (_BUCKET if self.in_bucket else _FOLDER).fullmatch(self.workspace):
            allowed = f"a folder below {WORKSPACE}, or s3://BUCKET/PREFIX"
            yield Problem("--workspace", f"'{self.workspace}'", allowed, "correct it")
        if self.in_bucket and not (self.store and self.region):
            missing = "--store" if not self.store else "--region"
            yield Problem(missing, "not given", "addresses and region of the store", "a bucket needs both")
        for address in self.store:
            if not _network(address):
                yield Problem("--store", f"'{address}'", "addresses such as 192.0.2.0/24, no wider than /8", "correct it")
        if self.endpoint is not None and not _url(self.endpoint):
            yield Problem("--endpoint", f"'{self.endpoint}'", "a URL as https://store.example:9000", "correct it")
        if self.ledger is not None and not _ledger_of(self.ledger):
            allowed = "the addresses and the port of its server, such as 192.0.2.7/32:5432"
            yield Problem("--ledger", f"'{self.ledger}'", allowed, "correct it")


class Manifests(NamedTuple):
    """The Kubernetes objects of a release, and the text of its job file where that is no part of them."""

    objects: Objects
    job: str | None


def objects_of(plan: Plan, resolved: SourcedKeys, place: ManifestPlace, job_in_claim: bool = False) -> Manifests:
    """Returns what a release needs. With `job_in_claim` the driver reads the job from the input's claim, at any size.

    Workers read the job that the driver has stored in the workspace. Raises `JobError` for a place in which the job cannot
    run.
    """
    if problems := list(place.problems()):
        raise JobError("cluster manifests", problems)
    objects: Objects = json.loads(json.dumps(render(shipped() / "overlays" / ("bucket" if place.in_bucket else "release"))))
    apply(worker_patch(plan, place.workers), objects)
    job, files = job_in_cluster(resolved, f"{BESIDE_JOB}/" if job_in_claim else "")
    pick(objects, "ConfigMap", "dpdist-job")["data"] = files if job_in_claim else files | {JOB: as_yaml(job)}
    if (size := job_bytes(objects)) > MOST_OF_CONFIG_MAP:
        remedy = "give --job-file FILE, so that the job is read from the claim dpdist-input, or shorten the names of levels"
        allowed = f"{MOST_OF_CONFIG_MAP:,} bytes: Kubernetes takes no larger ConfigMap"
        raise JobError.of("cluster manifests", "JOB", f"{size:,} bytes with its files", allowed, remedy)
    if job_in_claim:
        _take_job_from_claim(objects, bool(files))
    _storage(objects, plan, place, needs_input=bool(inputs(resolved)) or job_in_claim)
    _driver(objects, plan, place)
    replicas = pick(objects, "Deployment", "dpdist-worker")["spec"]["replicas"]
    pick(objects, "ResourceQuota", "dpdist")["spec"]["hard"]["pods"] = str(ceil(1.25 * replicas) + SPARE_PODS)
    for manifest in objects:
        _placed(manifest, place)
    return Manifests(objects, as_yaml(job) if job_in_claim else None)


def inputs(resolved: SourcedKeys) -> dict[str, str]:
    """Returns the files that the job opens: for each name in the job, the path at which the driver finds the file."""
    paths = {}
    for section, key in OPENED_LATER:
        location = keys_of(resolved.keys.get(section)).get(key)
        if isinstance(location, str) and "://" not in location:
            within = INPUT if section == "input" else f"{INPUT}/reference"
            paths[location] = f"{within}/{Path(location).name}"
    return paths


def job_in_cluster(resolved: SourcedKeys, folder: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the job as the driver needs it, and the text of further files by name.

    The job has what it extends merged into it, and names its files by the driver's paths. Further files are in `folder`.
    """
    job = {key: value for key, value in resolved.keys.items() if key != "extends"}
    path_in_cluster, files = inputs(resolved), {}
    for section, key in OPENED_LATER:
        part = keys_of(job.get(section))
        if part.get(key) in path_in_cluster:
            job[section] = part | {key: path_in_cluster[part[key]]}
    for section, key in (("calibration", "path"), ("model", "program")):
        part = keys_of(job.get(section))
        if isinstance(location := part.get(key), str):
            files[Path(location).name] = (resolved.folder / location).read_text(encoding="utf-8")
            job[section] = part | {key: folder + Path(location).name}
    settings = {
        key: value for key, value in job.get("runtime", {}).items() if key not in ("scheduler", "tls", "allow_plain")
    }
    job["runtime"] = settings | {"executor": "dask"}
    return job, files


def _storage(objects: Objects, plan: Plan, place: ManifestPlace, needs_input: bool) -> None:
    """Sizes the volumes of the objects by the plan: claims, or scratch volumes for a workspace in an object store.

    Removes the input's volume if the input is simulated.
    """
    size = f"{workspace_bytes(plan) // 2**30}Gi"
    if not needs_input:
        objects.remove(pick(objects, "PersistentVolumeClaim", "dpdist-input"))
        _unmount(_pod(objects, "driver"), "input")
    if not place.in_bucket:
        claim = pick(objects, "PersistentVolumeClaim", "dpdist-workspace")["spec"]
        claim["resources"]["requests"]["storage"] = size
        if place.storage_class is not None:
            claim["storageClassName"] = place.storage_class
        return
    way = pick(objects, "NetworkPolicy", "store")["spec"]["egress"][0]
    way["to"] = [{"ipBlock": {"cidr": block}} for block in place.store]
    way["ports"] = [{"protocol": "TCP", "port": place.store_port}]
    for role in ("driver", "worker"):
        spec = _pod(objects, role)
        block = spec["containers"][0]
        variables = {"AWS_REGION": place.region} | ({"AWS_ENDPOINT_URL": place.endpoint} if place.endpoint else {})
        block["env"] = [e for e in block["env"] if e["name"] not in variables] + [
            {"name": k, "value": v} for k, v in variables.items()
        ]
        block["resources"]["requests"]["ephemeral-storage"] = f"{workspace_bytes(plan) // 2**30 + 1}Gi"
        (scratch,) = [volume for volume in spec["volumes"] if volume["name"] == "workspace"]
        scratch["emptyDir"] = {"sizeLimit": size}


def _driver(objects: Objects, plan: Plan, place: ManifestPlace) -> None:
    spec = _pod(objects, "driver")
    container = spec["containers"][0]
    container["args"][container["args"].index("--workspace") + 1] = place.workspace
    memory = f"{driver_memory(plan) // 2**20}Mi"
    for kind in ("requests", "limits"):
        container["resources"][kind]["memory"] = memory
    if place.ledger is None:
        _unmount(spec, "ledger")
        return
    container["env"].append({"name": "DPDIST_LEDGER", "value": f"@{LEDGER}/url"})
    address, port = place.ledger.rsplit(":", 1)
    objects.append(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "ledger"},
            "spec": {
                "podSelector": {"matchLabels": {"app.kubernetes.io/component": "driver"}},
                "policyTypes": ["Egress"],
                "egress": [{"to": [{"ipBlock": {"cidr": address}}], "ports": [{"protocol": "TCP", "port": int(port)}]}],
            },
        }
    )


def _take_job_from_claim(objects: Objects, has_files: bool) -> None:
    spec = _pod(objects, "driver")
    container = spec["containers"][0]
    container["args"][container["args"].index(f"{BESIDE_JOB}/{JOB}")] = f"{INPUT}/{JOB}"
    if not has_files:
        objects.remove(pick(objects, "ConfigMap", "dpdist-job"))
        _unmount(spec, "job")


def _pod(objects: Objects, role: str) -> dict[str, Any]:
    kind, name = {"driver": ("Job", "dpdist-release"), "worker": ("Deployment", "dpdist-worker")}[role]
    spec: dict[str, Any] = pick(objects, kind, name)["spec"]["template"]["spec"]
    return spec


def _unmount(spec: dict[str, Any], volume: str) -> None:
    spec["volumes"] = [entry for entry in spec["volumes"] if entry["name"] != volume]
    entry = spec["containers"][0]
    entry["volumeMounts"] = [mount for mount in entry["volumeMounts"] if mount["name"] != volume]


def _placed(entry: dict[str, Any], place: ManifestPlace) -> None:
    if entry["kind"] == "Namespace":
        entry["metadata"]["name"] = place.namespace
    else:
        entry["metadata"]["namespace"] = place.namespace
    for container in entry.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
        container["image"] = place.image


def head(job: Job, resolved: SourcedKeys, place: ManifestPlace, job_file: Path | None = None) -> str:
    """Lists what must exist before `kubectl apply`, as YAML comments for the head of the manifests."""
    secrets = [f"dpdist-tls-{role}" for role in ("scheduler", "worker", "driver")]
    secrets += ["dpdist-ledger"] * (place.ledger is not None) + ["dpdist-store"] * place.in_bucket
    lines = [f"Made by `dpdist cluster manifests` for {job.dataset} {job.period}. Before `kubectl apply -f`, have ready:"]
    lines.append(f"- in the namespace {place.namespace}, the secrets {', '.join(secrets)} (deploy/README.md)")
    lines += [f"- in the claim dpdist-input, {path.removeprefix(INPUT + '/')}" for path in inputs(resolved).values()]
    if job_file is not None:
        lines.append(f"- in the claim dpdist-input, {JOB}, which is the file {job_file.name}")
    if not place.in_bucket:
        lines.append("- for the claim dpdist-workspace, storage with ReadWriteMany, hard links and locks across nodes")
    return "".join(f"# {escape(line)}\n" for line in lines)


def job_bytes(objects: Objects) -> int:
    """Returns the bytes of the ConfigMap with the job, if there is one."""
    maps = [
        manifest for manifest in objects if (manifest["kind"], manifest["metadata"]["name"]) == ("ConfigMap", "dpdist-job")
    ]
    return sum(len(content.encode()) for manifest in maps for content in manifest["data"].values())


def text(objects: Objects, heading: str) -> str:
    if job_bytes(objects) > MOST_APPLIED:
        heading += f"# - the job has more than {MOST_APPLIED:,} bytes: use `kubectl apply --server-side -f`\n"
    return heading + written_documents(objects)


def _network(address: str) -> bool:
    try:
        return "/" in address and ip_network(address).prefixlen >= 8
    except ValueError:
        return False


def _url(location: str) -> bool:
    try:
        url = urlsplit(location)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _ledger_of(location: str) -> bool:
    address, _, port = location.rpartition(":")
    return _network(address) and port.isdecimal() and 0 < int(port) < 65536
