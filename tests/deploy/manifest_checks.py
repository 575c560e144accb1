"""What a schema does not see in manifests. Each check tells what is wrong, in words; nothing if nothing is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rendering import Objects

from dpdist.cli.console import INTERNAL
from dpdist.cli.releases import REFUSED
from dpdist.cli.scheduled import NothingReleased

SECRETS = {"dpdist-tls-scheduler", "dpdist-tls-worker", "dpdist-tls-driver", "dpdist-ledger", "dpdist-store"}
"""Made by the operator (deploy/README.md), never by manifests."""
QUANTITY = {
    "cpu": re.compile(r"\d+(\.\d+)?|\d+m"),
    "memory": re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|k|M|G|T)?"),
    "storage": re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|k|M|G|T)?"),
}
UNIT = {
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "m": 1e-3,
}
DASK, WORKER, NANNY, HTTP, NAMES = 8786, 8790, 8791, "http", 53


class Pod(NamedTuple):
    """A pod template: whose it is, its labels, its spec."""

    owner: str
    kind: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        (one,) = self.spec["containers"]
        return dict(one)

    @property
    def component(self) -> str:
        return self.labels.get("app.kubernetes.io/component", "")

    def port(self, said: int | str) -> int | None:
        """A container port by number or name."""
        for port in self.container.get("ports", []):
            if said in (port["containerPort"], port.get("name")):
                return int(port["containerPort"])
        return None

    def option(self, name: str) -> str | None:
        args = [*self.container.get("command", []), *self.container.get("args", [])]
        return str(args[args.index(name) + 1]) if name in args else None

    def env(self, name: str) -> str | None:
        return next((e.get("value") for e in self.container.get("env", []) if e["name"] == name), None)


def pods(objects: Objects) -> list[Pod]:
    found: list[Pod] = []
    for o in objects:
        name, spec = f"{o['kind']} {o['metadata']['name']}", o.get("spec", {})
        if o["kind"] in ("Deployment", "Job"):
            found.append(_pod(name, o["kind"], spec["template"]))
        elif o["kind"] == "CronJob":
            found.append(_pod(name, "Job", spec["jobTemplate"]["spec"]["template"]))
        elif o["kind"] == "DaskJob":
            cluster = spec["cluster"]["spec"]
            found.append(_pod(f"{name} driver", "Job", spec["job"]))
            found += [_pod(f"{name} {role}", "Deployment", cluster[role]) for role in ("scheduler", "worker")]
    return found


def _pod(owner: str, kind: str, template: dict[str, Any]) -> Pod:
    return Pod(owner, kind, template.get("metadata", {}).get("labels", {}), template["spec"])


def services(objects: Objects) -> list[tuple[str, dict[str, Any]]]:
    """Name and spec of every service, those that the operator makes included."""
    made = [(o["metadata"]["name"], o["spec"]) for o in objects if o["kind"] == "Service"]
    jobs = [o for o in objects if o["kind"] == "DaskJob"]
    return made + [
        (f"{o['metadata']['name']}-scheduler", o["spec"]["cluster"]["spec"]["scheduler"]["service"]) for o in jobs
    ]


def restarts(objects: Objects) -> Iterator[str]:
    """A job's pods end; a deployment's are always restarted."""
    for pod in pods(objects):
        said, allowed = pod.spec.get("restartPolicy", "Always"), ("Never", "OnFailure")
        if (pod.kind == "Job") != (said in allowed):
            yield f"{pod.owner}: restartPolicy {said}"


def final_exits(objects: Objects) -> Iterator[str]:
    """A wrong job (2), a refused budget (3), a held release (4), a schedule without a release (5) and a fault of dpdist
    (70) are not tried again, a lost pod is. One driver works on a workspace, and a finished job goes in the end.
    """
    jobs = [(o, o["spec"]) for o in objects if o["kind"] == "Job"]
    jobs += [(o, o["spec"]["jobTemplate"]["spec"]) for o in objects if o["kind"] == "CronJob"]
    for o, spec in jobs:
        rules = spec.get("podFailurePolicy", {}).get("rules", [])
        final = [set(r["onExitCodes"]["values"]) for r in rules if r["action"] == "FailJob" and "onExitCodes" in r]
        if {2, 3, REFUSED, NothingReleased.exit_code, INTERNAL} not in final:
            yield f"{o['kind']}: exits 2, 3, {REFUSED}, {NothingReleased.exit_code} and {INTERNAL} are tried again"
        conditions = [condition for rule in rules for condition in rule.get("onPodConditions", [])]
        if {"type": "DisruptionTarget", "status": "True"} not in conditions:
            yield f"{o['kind']}: a lost pod counts as a failure"
        if "ttlSecondsAfterFinished" not in spec:
            yield f"{o['kind']}: stays for ever"
        if spec.get("parallelism", 1) != 1 or o["spec"].get("concurrencyPolicy", "Forbid") != "Forbid":
            yield f"{o['kind']}: two drivers at once"


def quantities(objects: Objects) -> Iterator[str]:
    """Requests and limits are there, well written, and no request above its limit."""
    for pod in pods(objects):
        said = pod.container.get("resources", {})
        for name in ("cpu", "memory"):
            values = [said.get(kind, {}).get(name) for kind in ("requests", "limits")]
            if any(value is None or not QUANTITY[name].fullmatch(str(value)) for value in values):
                yield f"{pod.owner}: {name} {values}"
            elif _amount(values[0]) > _amount(values[1]):
                yield f"{pod.owner}: requests more {name} than its limit"
        sizes = [v["emptyDir"].get("sizeLimit") for v in pod.spec.get("volumes", []) if "emptyDir" in v]
        if any(size is None or not QUANTITY["storage"].fullmatch(str(size)) for size in sizes):
            yield f"{pod.owner}: scratch volumes have sizes {sizes}"
        elif sum(map(_amount, sizes)) > _amount(said.get("requests", {}).get("ephemeral-storage", "0")):
            yield f"{pod.owner}: asks for less of the node's disk than its scratch volumes take"
    for o in objects:
        if o["kind"] == "PersistentVolumeClaim":
            size = o["spec"]["resources"]["requests"]["storage"]
            if not QUANTITY["storage"].fullmatch(str(size)):
                yield f"{o['metadata']['name']}: storage {size}"


def _amount(said: object) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", str(said)).groups()  # type: ignore[union-attr]
    return float(number) * UNIT[unit]


def selectors(objects: Objects) -> Iterator[str]:
    """Every selector finds a pod, a deployment's its own, an autoscaler its deployment."""
    templates = pods(objects)
    for o in objects:
        name, spec = f"{o['kind']} {o['metadata']['name']}", o.get("spec", {})
        if o["kind"] == "Deployment" and not selects(spec["selector"], spec["template"]["metadata"]["labels"]):
            yield f"{name}: its selector does not select its own pods"
        if o["kind"] == "PodDisruptionBudget" and not any(selects(spec["selector"], pod.labels) for pod in templates):
            yield f"{name}: selects no pod"
        if o["kind"] == "NetworkPolicy":
            peers = [
                p for way in ("ingress", "egress") for rule in spec.get(way, []) for p in rule.get("from", rule.get("to"))
            ]
            wanted = [spec["podSelector"], *(p["podSelector"] for p in peers if "podSelector" in p)]
            for one in wanted:
                exempt = o["metadata"]["name"] == "driver"  # of a cluster without a release
                if not exempt and not any(selects(one, pod.labels) for pod in templates):
                    yield f"{name}: {one} selects no pod"
        if o["kind"] == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            found = [x for x in objects if x["kind"] == target["kind"] and x["metadata"]["name"] == target["name"]]
            if not found or "replicas" in found[0]["spec"]:
                yield f"{name}: no such {target['kind']}, or one whose manifest sets replicas"
    for name, spec in services(objects):
        chosen = [pod for pod in templates if selects({"matchLabels": spec["selector"]}, pod.labels)]
        if [pod.component for pod in chosen] != ["scheduler"]:
            yield f"Service {name}: selects {[pod.owner for pod in chosen]}"


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    equal = all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())
    one_of = all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []) if e["operator"] == "In")
    return equal and one_of


def ports(objects: Objects) -> Iterator[str]:
    """What a container is told to listen on, what it declares, what probes, services and clients ask for: the same."""
    templates = pods(objects)
    offered = {(name, p["port"]) for name, spec in services(objects) for p in spec["ports"]}
    for pod in templates:
        told = {
            p for p in (pod.option("--port"), (pod.option("--http") or pod.env("DPDIST_METRICS") or "").split(":")[-1]) if p
        }
        if pod.component == "worker" and (first := pod.option("--port")):
            told.add(str(int(first) + 1))
        declared = {str(port["containerPort"]) for port in pod.container.get("ports", [])}
        if told != declared:
            yield f"{pod.owner}: listens on {sorted(told)}, declares {sorted(declared)}"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = pod.container.get(probe, {}).get("httpGet")
            if asked is not None and pod.port(asked["port"]) is None:
                yield f"{pod.owner}: {probe} asks port {asked['port']}"
        address = pod.env("DPDIST_SCHEDULER")
        if pod.component != "scheduler":
            match = re.fullmatch(r"tls://([a-z0-9-]+):(\d+)", address or "")
            if match is None or (match[1], int(match[2])) not in offered:
                yield f"{pod.owner}: no service at {address}"
    for name, spec in services(objects):
        for pod in (p for p in templates if selects({"matchLabels": spec["selector"]}, p.labels)):
            if any(pod.port(p.get("targetPort", p["port"])) is None for p in spec["ports"]):
                yield f"Service {name}: {pod.owner} has no such port"


def probes(objects: Objects) -> Iterator[str]:
    """Long-running containers are watched, and a driver until it has begun."""
    for pod in pods(objects):
        needed = {"driver": ["startupProbe"], "scheduler": ["startupProbe", "readinessProbe", "livenessProbe"]}
        for probe in needed.get(pod.component, ["startupProbe", "livenessProbe"]):
            if probe not in pod.container:
                yield f"{pod.owner}: no {probe}"


def mounts(objects: Objects) -> Iterator[str]:
    """Everything that is mounted exists, everything that exists is mounted, and paths in arguments lie in a mount."""
    here = {(o["kind"], o["metadata"]["name"]) for o in objects}
    for pod in pods(objects):
        volumes = {v["name"]: v for v in pod.spec.get("volumes", [])}
        mounted = [m["name"] for m in pod.container.get("volumeMounts", [])]
        yield from (f"{pod.owner}: mounts {name}, which is no volume" for name in mounted if name not in volumes)
        yield from (f"{pod.owner}: volume {name} is not mounted" for name in volumes if name not in mounted)
        for volume in volumes.values():
            if "secret" in volume and volume["secret"]["secretName"] not in SECRETS:
                yield f"{pod.owner}: no secret {volume['secret']['secretName']}"
            if "configMap" in volume and ("ConfigMap", volume["configMap"]["name"]) not in here:
                yield f"{pod.owner}: no ConfigMap {volume['configMap']['name']}"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and ("PersistentVolumeClaim", claim) not in here:
                yield f"{pod.owner}: no claim {claim}"
        places = [m["mountPath"] for m in pod.container.get("volumeMounts", [])]
        for arg in pod.container.get("args", []):
            if arg.startswith("/") and not any(arg == place or arg.startswith(f"{place}/") for place in places):
                yield f"{pod.owner}: {arg} lies in no mount"
    for kind, name in here:
        used = [str(pod.spec.get("volumes")) for pod in pods(objects)]
        if kind in ("ConfigMap", "PersistentVolumeClaim") and not any(f"'{name}'" in one for one in used):
            yield f"{kind} {name} is not used"
