"""The manifests in deploy/, rendered: valid by schema, sound by meaning; every check fails when its fault is planted."""

from __future__ import annotations

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
            valid_by_kubernetes(json.dumps(found))


@cache
def valid_by_kubernetes(found: str) -> None:
    """Most objects are of several overlays."""
    for release in (LEAST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(json.loads(found), release, strict=True)


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


def remove(objects: Objects, kind: str, name: str) -> None:
    objects.remove(pick(objects, kind, name))


def volume(spec: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in spec["volumes"] if one["name"] == name]
    return found


def open_store(objects: Objects) -> None:
    policy(objects, "store")["egress"][0]["to"][0]["ipBlock"].update(cidr="0.0.0.0/0")


FAULTS: list[tuple[str, str, str, Callable[[Objects], object]]] = [
    ("restarts", "release", "a deployment that is not restarted", lambda o: worker(o).update(restartPolicy="Never")),
    ("final_exits", "release", "two drivers", lambda o: pick(o, "Job", "dpdist-release")["spec"].update(parallelism=2)),
    ("quantities", "release", "2Gib", lambda o: first(worker(o))["resources"]["limits"].update(memory="2Gib")),
    (
        "selectors",
        "release",
        "a policy for nobody",
        lambda o: policy(o, "worker").update(podSelector={"matchLabels": {"a": "b"}}),
    ),
    ("ports", "release", "a probe's port", lambda o: first(worker(o))["livenessProbe"]["httpGet"].update(port="health")),
    ("probes", "release", "an unwatched worker", lambda o: first(worker(o)).pop("livenessProbe")),
    ("mounts", "release", "no such volume", lambda o: first(worker(o))["volumeMounts"][0].update(name="certificates")),
    ("roles_secrets", "release", "a secret to wait for", lambda o: volume(driver(o), "ledger")["secret"].pop("optional")),
    (
        "roles_secrets",
        "bucket",
        "credentials for everybody",
        lambda o: volume(worker(o), "store")["secret"].pop("defaultMode"),
    ),
    (
        "no_secret_in_the_open",
        "release",
        "a secret in a manifest",
        lambda o: o.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}),
    ),
    ("hardened", "release", "root", lambda o: worker(o)["securityContext"].update(runAsNonRoot=False)),
    ("images", "release", "another image", lambda o: first(worker(o)).update(image="registry.example/dpdist:0.0.9")),
    ("rights", "release", "all", lambda o: pick(o, "Role", "dpdist-operator")["rules"][0].update(verbs=["*"])),
    ("admission", "release", "no quota", lambda o: remove(o, "ResourceQuota", "dpdist")),
    ("network", "release", "no names", lambda o: remove(o, "NetworkPolicy", "names")),
    ("storage", "bucket", "no way out", lambda o: remove(o, "NetworkPolicy", "store")),
    ("storage", "bucket", "every way out", open_store),
]
"""Controls: a check, an overlay, and a fault in it that the check must see."""


@pytest.mark.parametrize(
    ("name", "overlay", "what", "fault"), FAULTS, ids=[f"{name}: {what}" for name, _, what, _ in FAULTS]
)
def test_each_check_fails_when_its_fault_is_planted(
    name: str, overlay: str, what: str, fault: Callable[[Objects], object]
) -> None:
    assert {name for name, *_ in FAULTS} == set(CHECKS)
    objects = rendered(overlay)
    fault(objects)
    assert list(CHECKS[name](objects)) != []


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
