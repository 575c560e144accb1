"""The manifests in deploy/, rendered: valid by schema, sound by meaning; every check fails when its fault is planted."""

from __future__ import annotations

import copy
import importlib.util
import json
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import manifest_checks as checks
import pytest
import yaml
from every_check import CHECKS, LEAST
from rendering import DEPLOY, OVERLAYS, Objects, render
from typer.main import get_command

from dpdist.cli.main import app
from dpdist.cli.manifests import worker_memory, worker_patch
from dpdist.cli.scheduled import last_period
from dpdist.job.loading import PERIOD, load_job
from dpdist.release import validate

CUSTOM = "kubernetes.dask.org/v1"


@cache
def _rendered(overlay: str) -> str:
    return json.dumps(render(DEPLOY / "overlays" / overlay))


def rendered(overlay: str) -> Objects:
    """The objects of an overlay, this caller's own."""
    objects: Objects = json.loads(_rendered(overlay))
    return objects


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid_by_its_schema(overlay: str) -> None:
    for found in rendered(overlay):
        if found["apiVersion"] == CUSTOM:
            jsonschema.Draft202012Validator(custom_schema(found["kind"])).validate({"spec": found["spec"]})
        else:
            for release in (LEAST, kubernetes_validate.latest_version()):
                kubernetes_validate.validate(found, release, strict=True)


def custom_schema(kind: str) -> dict[str, Any]:
    """Of the CRD in the wheel dask-kubernetes; a key that it does not know is refused, as by `kubectl --validate`."""
    (package,) = importlib.util.find_spec("dask_kubernetes").submodule_search_locations
    folder = Path(package) / "operator" / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"
    crd = yaml.safe_load((folder / f"{kind.lower()}.yaml").read_text())
    (served,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    schema: dict[str, Any] = closed(served["schema"]["openAPIV3Schema"])
    return schema


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if (
        "properties" in made
        and not made.get("x-kubernetes-preserve-unknown-fields")
        and isinstance(made["properties"], dict)
    ):
        made.setdefault("additionalProperties", False)
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("anyOf", None)
        made.pop("type", None)
    return made


def test_the_schemas_refuse_what_is_wrong() -> None:
    (job,) = [o for o in rendered("operator") if o["kind"] == "DaskJob"]
    job["spec"]["cluster"]["spec"]["worker"]["replica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.Draft202012Validator(custom_schema("DaskJob")).validate({"spec": job["spec"]})
    (deployment,) = [
        o for o in rendered("release") if o["metadata"]["name"] == "dpdist-worker" and o["kind"] == "Deployment"
    ]
    deployment["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", CHECKS)
def test_nothing_is_wrong_by_meaning(overlay: str, name: str) -> None:
    assert list(CHECKS[name](rendered(overlay))) == []


def pick(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def worker(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = pick(objects, "Deployment", "dpdist-worker")["spec"]["template"]["spec"]
    return spec


def scheduler(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = pick(objects, "Deployment", "dpdist-scheduler")["spec"]["template"]["spec"]
    return spec


def driver(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = pick(objects, "Job", "dpdist-release")["spec"]["template"]["spec"]
    return spec


def first(spec: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = spec["containers"][0]
    return container


def policy(objects: Objects, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = pick(objects, "NetworkPolicy", name)["spec"]
    return spec


def failures(objects: Objects) -> dict[str, Any]:
    said: dict[str, Any] = pick(objects, "Job", "dpdist-release")["spec"]["podFailurePolicy"]
    return said


def quota(objects: Objects) -> dict[str, str]:
    hard: dict[str, str] = pick(objects, "ResourceQuota", "dpdist")["spec"]["hard"]
    return hard


def may(objects: Objects, group: str, resource: str, verb: str) -> None:
    """One more right for operators."""
    rules = pick(objects, "Role", "dpdist-operator")["rules"]
    rules.append({"apiGroups": [group], "resources": [resource], "verbs": [verb]})


def remove(objects: Objects, kind: str, name: str) -> None:
    objects.remove(pick(objects, kind, name))


FAULTS: list[tuple[str, str, Callable[[Objects], object]]] = [
    ("restarts", "a job that is always restarted", lambda o: driver(o).update(restartPolicy="Always")),
    ("restarts", "a deployment that is not", lambda o: worker(o).update(restartPolicy="Never")),
    (
        "final_exits",
        "a refused budget tried again",
        lambda o: pick(o, "Job", "dpdist-release")["spec"].pop("podFailurePolicy"),
    ),
    (
        "final_exits",
        "a fault of the program tried again",
        lambda o: failures(o)["rules"][0]["onExitCodes"].update(values=[2, 3]),
    ),
    ("final_exits", "a lost pod that counts", lambda o: failures(o)["rules"][1]["onPodConditions"][0].pop("status")),
    ("final_exits", "a job for ever", lambda o: pick(o, "Job", "dpdist-release")["spec"].pop("ttlSecondsAfterFinished")),
    ("final_exits", "two drivers", lambda o: pick(o, "Job", "dpdist-release")["spec"].update(parallelism=2)),
    ("quantities", "2Gib", lambda o: first(worker(o))["resources"]["limits"].update(memory="2Gib")),
    ("quantities", "no limit", lambda o: first(driver(o))["resources"]["limits"].pop("memory")),
    ("quantities", "request above limit", lambda o: first(scheduler(o))["resources"]["requests"].update(memory="3Gi")),
    (
        "quantities",
        "less disk than scratch",
        lambda o: first(worker(o))["resources"]["requests"].update({"ephemeral-storage": "1Mi"}),
    ),
    ("quantities", "a scratch volume without end", lambda o: worker(o)["volumes"][-1].update(emptyDir={})),
    (
        "selectors",
        "labels changed",
        lambda o: pick(o, "Deployment", "dpdist-worker")["spec"]["selector"]["matchLabels"].update(a="b"),
    ),
    (
        "selectors",
        "a service for nobody",
        lambda o: pick(o, "Service", "dpdist-scheduler")["spec"]["selector"].update(a="b"),
    ),
    (
        "selectors",
        "a budget for nobody",
        lambda o: pick(o, "PodDisruptionBudget", "dpdist-worker")["spec"].update(selector={"matchLabels": {"a": "b"}}),
    ),
    ("selectors", "a policy for nobody", lambda o: policy(o, "worker").update(podSelector={"matchLabels": {"a": "b"}})),
    ("ports", "the scheduler on another port", lambda o: first(scheduler(o))["args"].__setitem__(5, "8785")),
    (
        "ports",
        "a service's target",
        lambda o: pick(o, "Service", "dpdist-scheduler")["spec"]["ports"][0].update(targetPort="tls"),
    ),
    ("ports", "a probe's port", lambda o: first(worker(o))["livenessProbe"]["httpGet"].update(port="health")),
    ("ports", "a worker that asks elsewhere", lambda o: first(worker(o))["env"][0].update(value="tls://scheduler:8786")),
    ("ports", "a plain scheduler", lambda o: first(driver(o))["env"][0].update(value="tcp://dpdist-scheduler:8786")),
    ("probes", "an unwatched worker", lambda o: first(worker(o)).pop("livenessProbe")),
    ("mounts", "no such volume", lambda o: first(worker(o))["volumeMounts"][0].update(name="certificates")),
    ("mounts", "a volume for nothing", lambda o: first(driver(o))["volumeMounts"].pop(3)),
    ("mounts", "no such secret", lambda o: scheduler(o)["volumes"][0]["secret"].update(secretName="tls")),
    ("mounts", "no such claim", lambda o: remove(o, "PersistentVolumeClaim", "dpdist-workspace")),
    ("mounts", "no job file", lambda o: remove(o, "ConfigMap", "dpdist-job")),
    ("mounts", "a path beside its mount", lambda o: first(driver(o))["args"].__setitem__(1, "/etc/job/job.yaml")),
    (
        "roles_secrets",
        "the driver's certificate at a worker",
        lambda o: worker(o)["volumes"][0]["secret"].update(secretName="dpdist-tls-driver"),
    ),
    ("roles_secrets", "a driver that waits for a secret", lambda o: volume(driver(o), "ledger")["secret"].pop("optional")),
    ("roles_secrets", "a key for everybody", lambda o: scheduler(o)["volumes"][0]["secret"].update(defaultMode=0o644)),
    (
        "roles_secrets",
        "the input at a worker",
        lambda o: worker(o)["volumes"][1]["persistentVolumeClaim"].update(claimName="dpdist-input"),
    ),
    (
        "no_secret_in_the_open",
        "a password in an environment",
        lambda o: first(driver(o))["env"].append({"name": "LEDGER", "value": "postgresql://me:pw@db/ledger"}),
    ),
    (
        "no_secret_in_the_open",
        "a secret in an environment",
        lambda o: first(driver(o))["env"].append(
            {"name": "LEDGER", "valueFrom": {"secretKeyRef": {"name": "dpdist-ledger", "key": "url"}}}
        ),
    ),
    (
        "no_secret_in_the_open",
        "a secret in a manifest",
        lambda o: o.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}),
    ),
    ("hardened", "a slow mount", lambda o: worker(o)["securityContext"].pop("fsGroupChangePolicy")),
    ("hardened", "root", lambda o: worker(o)["securityContext"].update(runAsNonRoot=False)),
    (
        "hardened",
        "a root that can be written",
        lambda o: first(driver(o))["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    ("hardened", "capabilities", lambda o: first(scheduler(o))["securityContext"].pop("capabilities")),
    ("hardened", "a token", lambda o: driver(o).pop("automountServiceAccountToken")),
    ("hardened", "the host's network", lambda o: worker(o).update(hostNetwork=True)),
    ("hardened", "the host's files", lambda o: worker(o)["volumes"].append({"name": "h", "hostPath": {"path": "/"}})),
    (
        "images",
        "latest",
        lambda o: [first(s).update(image="registry.example/dpdist:latest") for s in (worker(o), driver(o), scheduler(o))],
    ),
    ("images", "another image", lambda o: first(worker(o)).update(image="registry.example/dpdist:0.0.9")),
    ("rights", "everything", lambda o: pick(o, "Role", "dpdist-operator")["rules"][0].update(verbs=["*"])),
    ("rights", "secrets", lambda o: pick(o, "Role", "dpdist-operator")["rules"][-1]["resources"].append("secrets")),
    ("rights", "a job of one's own", lambda o: may(o, "batch", "jobs", "create")),
    ("rights", "another template", lambda o: may(o, "apps", "deployments", "patch")),
    ("rights", "another CronJob", lambda o: may(o, "batch", "cronjobs", "update")),
    ("rights", "another job file", lambda o: may(o, "", "configmaps", "patch")),
    ("admission", "no quota", lambda o: remove(o, "ResourceQuota", "dpdist")),
    ("admission", "a service outside", lambda o: quota(o).pop("services.nodeports")),
    ("admission", "too few pods", lambda o: quota(o).update(pods="2")),
    (
        "admission",
        "any pod",
        lambda o: pick(o, "Namespace", "dpdist")["metadata"]["labels"].pop("pod-security.kubernetes.io/warn"),
    ),
    ("rights", "no such role", lambda o: pick(o, "RoleBinding", "dpdist-operator")["roleRef"].update(name="operator")),
    ("network", "nothing denied", lambda o: remove(o, "NetworkPolicy", "deny-all")),
    ("network", "no link to the scheduler", lambda o: policy(o, "scheduler")["ingress"].clear()),
    (
        "network",
        "the driver reached",
        lambda o: policy(o, "driver").update(
            ingress=[{"from": [{"podSelector": {}}], "ports": [{"port": 8786}]}], podSelector={"matchLabels": {}}
        ),
    ),
    ("network", "the world reached", lambda o: policy(o, "driver")["egress"].append({})),
    ("network", "no names", lambda o: remove(o, "NetworkPolicy", "names")),
    ("network", "figures for everybody", lambda o: policy(o, "figures")["ingress"][0].pop("from")),
    ("network", "the nanny out of reach", lambda o: [r["ports"].pop() for r in policy(o, "worker")["ingress"]]),
    (
        "storage",
        "a worker on another volume",
        lambda o: worker(o)["volumes"][1]["persistentVolumeClaim"].update(claimName="other"),
    ),
    ("storage", "a URL, and nothing for it", lambda o: first(driver(o))["args"].__setitem__(3, "s3://releases/2017")),
]


def volume(spec: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in spec["volumes"] if one["name"] == name]
    return found


def told(spec: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in first(spec)["env"] if one["name"] == name]
    return found


def way_out(objects: Objects, to: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Another policy like that for the store, to these peers; None for a rule that names none."""
    spec: dict[str, Any] = copy.deepcopy(policy(objects, "store"))
    spec["egress"][0].pop("to")
    if to is not None:
        spec["egress"][0]["to"] = to
    meta = {"name": "second", "namespace": "dpdist"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def every_address(objects: Objects) -> dict[str, Any]:
    """The rule for the store, to every address."""
    rule: dict[str, Any] = way_out(objects, [{"ipBlock": {"cidr": "0.0.0.0/0"}}])["spec"]["egress"][0]
    return rule


STORE_FAULTS: list[tuple[str, str, Callable[[Objects], object]]] = [
    ("storage", "a worker without credentials", lambda o: volume(worker(o), "store")["secret"].update(secretName="x")),
    (
        "storage",
        "credentials beside their mount",
        lambda o: told(driver(o), "AWS_SHARED_CREDENTIALS_FILE").update(value="/x/y"),
    ),
    ("storage", "a scratch folder on the root", lambda o: told(worker(o), "DPDIST_SCRATCH").update(value="/var/tmp")),
    ("storage", "a worker in another region", lambda o: told(worker(o), "AWS_REGION").update(value="us-east-1")),
    (
        "storage",
        "a plain store",
        lambda o: [first(s)["env"].append({"name": "AWS_ALLOW_HTTP", "value": "true"}) for s in (worker(o), driver(o))],
    ),
    ("storage", "no way out", lambda o: remove(o, "NetworkPolicy", "store")),
    ("storage", "every way out", lambda o: policy(o, "store")["egress"][0]["to"][0]["ipBlock"].update(cidr="0.0.0.0/0")),
    ("storage", "another way out", lambda o: policy(o, "store")["egress"][0]["ports"].append({"port": 80})),
    ("storage", "a second policy to everywhere", lambda o: o.append(way_out(o, [{"ipBlock": {"cidr": "0.0.0.0/0"}}]))),
    ("storage", "a second policy, to nobody in particular", lambda o: o.append(way_out(o, None))),
    ("storage", "a second rule to everywhere", lambda o: policy(o, "store")["egress"].append(every_address(o))),
    ("storage", "a rule that names no address", lambda o: policy(o, "store")["egress"][0].pop("to")),
    ("storage", "a rule that names no port", lambda o: policy(o, "store")["egress"][0].pop("ports")),
    (
        "storage",
        "a range of ports",
        lambda o: policy(o, "store")["egress"][0]["ports"][0].update(endPort=65535),
    ),
    ("storage", "a way out for all", lambda o: policy(o, "store").update(podSelector={})),
    (
        "roles_secrets",
        "the scheduler at the store",
        lambda o: scheduler(o)["volumes"].append(
            {"name": "s", "secret": {"secretName": "dpdist-store", "defaultMode": 0o440}}
        ),
    ),
    ("roles_secrets", "credentials for everybody", lambda o: volume(worker(o), "store")["secret"].pop("defaultMode")),
    ("mounts", "credentials not mounted", lambda o: first(worker(o))["volumeMounts"].pop()),
    ("quantities", "scratch without end", lambda o: volume(driver(o), "workspace").update(emptyDir={})),
]


@pytest.mark.parametrize(("name", "what", "fault"), FAULTS, ids=[f"{name}: {what}" for name, what, _ in FAULTS])
def test_each_check_fails_when_its_fault_is_planted(name: str, what: str, fault: Callable[[Objects], object]) -> None:
    objects = rendered("release")
    fault(objects)
    assert list(CHECKS[name](objects)) != []


@pytest.mark.parametrize(("name", "what", "fault"), STORE_FAULTS, ids=[f"{name}: {what}" for name, what, _ in STORE_FAULTS])
def test_each_check_of_a_store_fails_when_its_fault_is_planted(
    name: str, what: str, fault: Callable[[Objects], object]
) -> None:
    objects = rendered("bucket")
    fault(objects)
    assert list(CHECKS[name](objects)) != []


def test_every_check_has_a_fault() -> None:
    assert {name for name, _, _ in FAULTS} == set(CHECKS)


def test_an_autoscaler_needs_its_deployment() -> None:
    objects = rendered("hpa")
    pick(objects, "HorizontalPodAutoscaler", "dpdist-worker")["spec"]["scaleTargetRef"]["name"] = "workers"
    assert list(checks.selectors(objects)) != []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_commands_of_the_containers_are_commands_of_dpdist(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pod in checks.pods(rendered(overlay)):
        for entry in pod.container.get("env", []):
            monkeypatch.setenv(entry["name"], entry.get("value", OF_CRON_JOB))
        assert parsed(pod.container["args"])
        with pytest.raises(Exception, match="No such option"):
            parsed([*pod.container["args"], "--certificates"])


OF_CRON_JOB = "dpdist-release-29713110"
"""Name of the Job that the CronJob makes at 02:30 on 2026-06-30, which its pod has as a label."""


def test_each_time_of_the_periodic_overlay_has_its_period_from_the_schedule() -> None:
    (cron,) = [o for o in rendered("periodic") if o["kind"] == "CronJob"]
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (source,) = [one["valueFrom"] for one in container["env"] if one["name"] == "DPDIST_SCHEDULED"]
    assert source == {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}
    workspace, length = (container["args"][container["args"].index(name) + 1] for name in ("--workspace", "--period"))
    assert PERIOD in workspace
    minute, hour, day, months, weekday = cron["spec"]["schedule"].split()
    assert (day, weekday, months.split(",")) == ("1", "*", ["1", "4", "7", "10"])
    ran = [datetime(2026, int(month), 1, int(hour), int(minute), tzinfo=UTC) for month in months.split(",")]
    assert [last_period(length, time) for time in ran] == ["2025-Q4", "2026-Q1", "2026-Q2", "2026-Q3"]


def parsed(args: list[str]) -> str:
    """The verb that the arguments are for; raises what the command line would print."""
    command, left = get_command(app), list(args)
    while hasattr(command, "commands"):
        command, left = command.commands[left[0]], left[1:]
    return str(command.make_context("dpdist", left).info_name)


def test_the_size_of_the_workers_is_that_of_the_plan_of_the_job() -> None:
    folder = DEPLOY / "overlays" / "release"
    plan = validate(load_job(folder / "job.yaml"))
    said = json.loads((folder / "size.json").read_text())
    assert said == worker_patch(plan, 8)
    assert worker_memory(plan) > plan.layout.largest_task_bytes
    spec = worker(rendered("release"))
    for kind, sizes in said["spec"]["template"]["spec"]["containers"][0]["resources"].items():
        assert {name: first(spec)["resources"][kind][name] for name in sizes} == sizes


def test_the_image_is_this_version() -> None:
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for overlay in OVERLAYS:
        for pod in checks.pods(rendered(overlay)):
            assert pod.container["image"].rpartition(":")[2] == version
