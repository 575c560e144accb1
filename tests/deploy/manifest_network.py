"""Network policies as Kubernetes reads them: which links between pods are open, and whether those are the needed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from manifest_checks import Pod, pods, selects
from rendering import Objects

DASK, WORKER, NANNY, HTTP, NAMES = 8786, 8790, 8791, "http", 53
NEEDED = {
    ("worker", "scheduler", DASK),
    ("driver", "scheduler", DASK),
    *(("scheduler", "worker", port) for port in (WORKER, NANNY)),
    *(("worker", "worker", port) for port in (WORKER, NANNY)),
}


def network(objects: Objects) -> Iterator[str]:
    """Between our pods exactly the needed links are open; from elsewhere only figures; to elsewhere only names."""
    policies = [o["spec"] for o in objects if o["kind"] == "NetworkPolicy"]
    templates = {pod.component: pod for pod in pods(objects)}
    if not any(p["podSelector"] == {} and set(p["policyTypes"]) == {"Ingress", "Egress"} for p in policies):
        yield "nothing denies by default"
    asked = {(a, b, port) for a in templates for b in templates for port in (DASK, WORKER, NANNY, 22)}
    for source, target, port in sorted(asked):
        a, b = templates[source], templates[target]
        leaves = _allowed(policies, "egress", a, {"pod": b}, port)
        enters = _allowed(policies, "ingress", b, {"pod": a}, port)
        if (leaves and enters) != ((source, target, port) in NEEDED):
            yield f"{source} → {target}:{port} is {'open' if leaves and enters else 'closed'}"
    for name, pod in templates.items():
        if not _allowed(policies, "egress", pod, {"namespace": "kube-system"}, NAMES):
            yield f"{name} cannot resolve names"
        for namespace, port, wanted in (("monitoring", HTTP, True), ("default", HTTP, False), ("monitoring", DASK, False)):
            number = pod.port(port) or port
            if _allowed(policies, "ingress", pod, {"namespace": namespace}, number) != wanted:
                yield f"{namespace} → {name}:{port}: {not wanted}"
        if _allowed(policies, "egress", pod, {"namespace": "default"}, 443):
            yield f"{name} may speak to the world"


def _allowed(policies: list[dict[str, Any]], way: str, pod: Pod, peer: dict[str, Any], port: int | str) -> bool:
    """True if a policy that selects the pod lets the peer through; without a policy everything passes."""
    kind, side = ("Ingress", "from") if way == "ingress" else ("Egress", "to")
    own = [p for p in policies if kind in p["policyTypes"] and selects(p["podSelector"], pod.labels)]
    if not own:
        return True
    server = pod if way == "ingress" else peer.get("pod")
    for rule in (rule for policy in own for rule in policy.get(way, [])):
        numbers = {
            server.port(p["port"]) if server and isinstance(p["port"], str) else p["port"] for p in rule.get("ports", [])
        }
        if numbers and port not in numbers:
            continue
        if side not in rule or any(_peer(one, peer) for one in rule[side]):
            return True
    return False


def _peer(said: dict[str, Any], peer: dict[str, Any]) -> bool:
    if "namespaceSelector" in said:
        labels = {"kubernetes.io/metadata.name": peer.get("namespace", "dpdist")}
        return selects(said["namespaceSelector"], labels)
    return "pod" in peer and "podSelector" in said and selects(said["podSelector"], peer["pod"].labels)
