"""Where the workspace of a release is: one volume for driver and workers, or an object store and what each needs for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from manifest_checks import Pod, pods
from rendering import Objects

WORKSPACE, SECRET = "dpdist-workspace", "dpdist-store"


def in_store(objects: Objects) -> bool:
    """True if the driver is told a URL."""
    return any("://" in (pod.option("--workspace") or "") for pod in pods(objects))


def storage(objects: Objects) -> Iterator[str]:
    """Driver and workers see one workspace, in the place that the driver names."""
    workers = [pod for pod in pods(objects) if pod.component in ("driver", "worker")]
    if not in_store(objects):
        for pod in workers:
            if _claims(pod) - ({"dpdist-input"} if pod.component == "driver" else set()) != {WORKSPACE}:
                yield f"{pod.owner}: does not see the workspace"
        return
    if any(o["kind"] == "PersistentVolumeClaim" and o["metadata"]["name"] == WORKSPACE for o in objects):
        yield "a volume for a workspace that is elsewhere"
    for pod in workers:
        if _claims(pod) - {"dpdist-input"}:
            yield f"{pod.owner}: claims {sorted(_claims(pod))}"
        file, scratch = pod.env("AWS_SHARED_CREDENTIALS_FILE") or "", pod.env("DPDIST_SCRATCH") or ""
        if _source(pod, file.rpartition("/")[0]).get("secret", {}).get("secretName") != SECRET:
            yield f"{pod.owner}: its credentials are no mounted secret"
        if "emptyDir" not in _source(pod, scratch):
            yield f"{pod.owner}: its scratch folder cannot be written, or stays"
    told = {tuple(pod.env(name) for name in ("AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP")) for pod in workers}
    if len(told) != 1 or any(place[2] for place in told):
        yield "driver and workers are told different stores, or a plain one"
    yield from _way_out(objects)


def _way_out(objects: Objects) -> Iterator[str]:
    """Every rule out of the cluster is over TLS, to addresses that are named, for driver and workers alone."""
    found = False
    for o in objects:
        rules = (o["spec"].get("egress") or []) if o["kind"] == "NetworkPolicy" and not _to_the_ledger(o) else []
        for rule in rules:
            to = rule.get("to") or []  # without it, anywhere
            blocks = [one["ipBlock"]["cidr"] for one in to if "ipBlock" in one]
            if to and not blocks:
                continue
            found = True
            wide = not blocks or any(int(block.rpartition("/")[2]) < 8 for block in blocks)
            chosen = str(o["spec"].get("podSelector") or {})
            if wide or rule.get("ports") != [{"protocol": "TCP", "port": 443}] or "scheduler" in chosen or chosen == "{}":
                yield f"NetworkPolicy {o['metadata']['name']}: a way to more than the store"
    if not found:
        yield "no way to the store"


def _to_the_ledger(o: dict[str, Any]) -> bool:
    """True for a policy by which the driver alone reaches named addresses at one port: the ledger's server."""
    rules, chosen = o["spec"].get("egress") or [], o["spec"].get("podSelector")
    if o["metadata"]["name"] != "ledger" or chosen != {"matchLabels": {"app.kubernetes.io/component": "driver"}}:
        return False
    return all(
        [int(peer["ipBlock"]["cidr"].rpartition("/")[2]) >= 8 for peer in rule.get("to") or []] == [True]
        and len(rule.get("ports") or []) == 1
        and rule["ports"][0].keys() == {"protocol", "port"}
        for rule in rules
    )


def _claims(pod: Pod) -> set[str]:
    return {v["persistentVolumeClaim"]["claimName"] for v in pod.spec.get("volumes", []) if "persistentVolumeClaim" in v}


def _source(pod: Pod, place: str) -> dict[str, dict[str, str]]:
    """The volume that is mounted at a path."""
    mounted = {m["mountPath"]: m["name"] for m in pod.container.get("volumeMounts", [])}
    volumes = {v["name"]: v for v in pod.spec.get("volumes", [])}
    found: dict[str, dict[str, str]] = volumes.get(mounted.get(place, ""), {})
    return found
