"""What a cluster must give the workers of a job: a patch for the manifests in deploy/, from the job's plan."""

from __future__ import annotations

from math import ceil
from typing import Any

from dpdist.runtime.plan import Plan

NANNY_BYTES = 256 * 2**20
"""The process that watches a worker and restarts it."""
HEADROOM = 1.25
"""A worker is ended at 95 % of the container's memory: what was projected stays well below that."""
STEP = 256 * 2**20


def worker_memory(plan: Plan) -> int:
    """Bytes of a worker's container: the largest task, room above it, and the watching process."""
    return ceil((plan.layout.largest_task_bytes * HEADROOM + NANNY_BYTES) / STEP) * STEP


def tasks(plan: Plan) -> int:
    """Tasks that can run at once: bins of small strata, and the spans of the largest stratum."""
    layout = plan.layout
    return max(1, len(layout.bins) + max((len(layout.spans(k)) for k in layout.giants), default=0))


def worker_patch(plan: Plan, workers: int) -> dict[str, Any]:
    """A strategic merge patch of the worker Deployment."""
    memory = f"{worker_memory(plan) // 2**20}Mi"
    resources = {"requests": {"cpu": "1", "memory": memory}, "limits": {"cpu": "1", "memory": memory}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "dpdist-worker", "namespace": "dpdist"},
        "spec": {
            "replicas": min(workers, tasks(plan)),
            "template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}},
        },
    }
