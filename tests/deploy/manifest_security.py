"""What of manifests is a matter of security: who holds what, who may do what, and as whom containers run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from manifest_checks import pods
from manifest_store import in_store
from rendering import Objects


def roles_secrets(objects: Objects) -> Iterator[str]:
    """Each role gets its own certificate; the ledger and the input are the driver's alone; keys are not for everybody."""
    for pod in pods(objects):
        store = {"dpdist-store"} if in_store(objects) and pod.component != "scheduler" else set()
        held = {v["secret"]["secretName"]: v["secret"] for v in pod.spec.get("volumes", []) if "secret" in v}
        wanted = {f"dpdist-tls-{pod.component}"} | store
        may = {"dpdist-ledger"} if pod.component == "driver" else set()
        if held.keys() - may != wanted:
            yield f"{pod.owner}: holds {sorted(held)}"
        if pod.component == "driver" and not all(secret.get("optional") for secret in held.values()):
            yield f"{pod.owner}: does not start without a secret, so that no log names the one that is missing"
        if any(secret.get("defaultMode", 0o644) & 0o007 for secret in held.values()):
            yield f"{pod.owner}: a secret that everybody may read"
        if (pod.env("DPDIST_LEDGER") or "@/etc/dpdist/ledger/url") != "@/etc/dpdist/ledger/url" or (
            pod.env("DPDIST_LEDGER") and "dpdist-ledger" not in held
        ):
            yield f"{pod.owner}: is told of a ledger that is not mounted"
        if pod.component != "driver" and "dpdist-input" in str(pod.spec.get("volumes")):
            yield f"{pod.owner}: sees the input"


def no_secret_in_the_open(objects: Objects) -> Iterator[str]:
    """Secrets are files: not in environments, arguments or manifests."""
    for o in objects:
        if o["kind"] == "Secret":
            yield f"Secret {o['metadata']['name']} in the manifests"
        if "PRIVATE KEY" in str(o) or re.search(r"\w+://[^/\s']*:[^/\s']*@", str(o)):
            yield f"{o['kind']} {o['metadata']['name']}: a secret in the open"
    for pod in pods(objects):
        said = [*pod.container.get("env", []), *pod.container.get("envFrom", [])]
        if any("secret" in key.lower() for entry in said for key in [*entry, *entry.get("valueFrom", {})]):
            yield f"{pod.owner}: a secret in its environment"


def hardened(objects: Objects) -> Iterator[str]:
    """Own user, read-only root, no capability, no token, nothing of the host."""
    for pod in pods(objects):
        whole, own = pod.spec.get("securityContext", {}), pod.container.get("securityContext", {})
        wrong = [
            whole.get("runAsNonRoot") is not True and "may run as root",
            not whole.get("runAsUser") and "no user of its own",
            not whole.get("fsGroup") and "cannot read its secrets",
            whole.get("fsGroupChangePolicy") != "OnRootMismatch" and "changes the rights of every file of a workspace",
            whole.get("seccompProfile", {}).get("type") != "RuntimeDefault" and "no seccomp profile",
            own.get("readOnlyRootFilesystem") is not True and "its root can be written",
            own.get("allowPrivilegeEscalation") is not False and "may gain privileges",
            own.get("capabilities") != {"drop": ["ALL"]} and "has capabilities",
            own.get("privileged") is True and "privileged",
            pod.spec.get("automountServiceAccountToken") is not False and "carries a token",
            any(pod.spec.get(k) for k in ("hostNetwork", "hostPID", "hostIPC")) and "shares the host's namespaces",
            any("hostPath" in v for v in pod.spec.get("volumes", [])) and "sees the host's files",
            "/tmp" not in [m["mountPath"] for m in pod.container.get("volumeMounts", [])] and "no /tmp to write to",
        ]
        yield from (f"{pod.owner}: {what}" for what in wrong if what)


def images(objects: Objects) -> Iterator[str]:
    """One image for all, with a version."""
    said = {pod.container["image"] for pod in pods(objects)}
    if len(said) != 1:
        yield f"several images: {sorted(said)}"
    for image in said:
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"{image} has no version"


def admission(objects: Objects) -> Iterator[str]:
    """The namespace admits hardened pods alone, so many of them, and offers none outside."""
    for o in objects:
        if o["kind"] == "Namespace":
            for mode in ("enforce", "audit", "warn"):
                label = f"pod-security.kubernetes.io/{mode}"
                if o["metadata"]["labels"].get(label) != "restricted" or f"{label}-version" not in o["metadata"]["labels"]:
                    yield f"{o['metadata']['name']}: {mode} is not restricted, of a version"
    (hard,) = [o["spec"]["hard"] for o in objects if o["kind"] == "ResourceQuota"] or [{}]
    if {hard.get("services.loadbalancers"), hard.get("services.nodeports")} != {"0"}:
        yield "a service may be offered outside"
    widest = [o["spec"]["maxReplicas"] for o in objects if o["kind"] == "HorizontalPodAutoscaler"]
    widest += [o["spec"].get("replicas", 1) for o in objects if o["kind"] == "Deployment"] or [1]
    if int(hard.get("pods", 0)) < max(widest) + 2:
        yield f"{hard.get('pods')} pods, and {max(widest)} workers are wanted beside scheduler and driver"


MAKES_PODS = {
    *("pods", "jobs", "cronjobs", "deployments", "replicasets", "statefulsets", "daemonsets", "replicationcontrollers"),
    *("podtemplates", "daskjobs", "daskclusters", "daskworkergroups", "configmaps"),
}
"""What a pod follows from. Whoever writes one chooses what the pod mounts; a ConfigMap, what the driver is to release."""


def rights(objects: Objects) -> Iterator[str]:
    """No wildcard, no secret, no shell in a pod, no pod of one's own; bindings name roles that exist."""
    for o in objects:
        for rule in o.get("rules", []) if o["kind"] in ("Role", "ClusterRole") else []:
            named = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "*" in named or {"secrets", "pods/exec", "pods/attach"} & set(named) or {"bind", "escalate"} & set(named):
                yield f"{o['metadata']['name']}: {rule}"
            if MAKES_PODS & set(rule["resources"]) and {"create", "update", "patch"} & set(rule["verbs"]):
                yield f"{o['metadata']['name']}: can have a pod that mounts any secret: {rule}"
        if o["kind"] == "ClusterRole":
            yield f"{o['metadata']['name']} holds for the whole machine park"
        if o["kind"] == "RoleBinding":
            names = [x["metadata"]["name"] for x in objects if x["kind"] == "Role"]
            if o["roleRef"]["name"] not in names:
                yield f"{o['metadata']['name']}: no role {o['roleRef']['name']}"
